//! The part of a server in a move, in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use base::BlockId;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ahead::{Ahead, QUIET_MAX};

/// The part of this server in a move.
#[derive(Default)]
pub(crate) struct Moves {
    /// The plan for which this server has stopped, and when it was last told to.
    stopped: Mutex<Option<(u64, Instant)>>,
    /// Whether all is stable that the server executed before it stopped.
    is_still: AtomicBool,
    /// Whether the move is over for which this server has stopped.
    over: AtomicBool,
    /// The pulls of this run that have ended.
    ended: Mutex<Vec<Ended>>,
    wanted: Mutex<Wanted>,
    /// Number of records of the pull that goes on, or has ended last.
    pub(super) records: AtomicU64,
    /// Copies ahead of shards that this server gets.
    copied: Mutex<Vec<Copied>>,
    /// Copies ahead of shards that leave it.
    pub(crate) ahead: Arc<Ahead>,
    /// Whether this server pulls shards just now.
    takes: AtomicBool,
    /// Whether no record is here of a shard that is another server's.
    swept: AtomicBool,
}

/// The plans by which this server gets shards.
#[derive(Default)]
struct Wanted {
    /// The present one, and when somebody has last led it.
    now: Option<(u64, Instant)>,
    /// The plans before it.
    before: BTreeSet<u64>,
}

/// A pull of shards that has ended.
struct Ended {
    plan: u64,
    from: u16,
    /// Number of records; `None` if it has failed.
    records: Option<u64>,
}

/// Shards that were copied ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) plan: u64,
    pub(super) from: u16,
    /// The round from which on changes are missing.
    pub(super) round: u64,
    /// Number of records so far.
    pub(super) records: u64,
    /// Contents that have changed meanwhile.
    pub(super) contents: Contents,
}

/// Contents of files that have changed while they were copied ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Keys of records of which a block was gone when it was asked for. They have changed since.
    pub(super) left: BTreeSet<Bytes>,
    /// Blocks here that records have named.
    pub(super) unnamed: BTreeSet<BlockId>,
    /// Blocks that changed records name, each with the key of its record.
    pub(super) named: BTreeMap<BlockId, Bytes>,
}

/// A pull of shards; it has ended when this is dropped.
pub(super) struct Taking<'a>(&'a Moves);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.takes.store(false, Ordering::Release);
    }
}

impl Moves {
    /// Somebody still leads a move, in which this server may get shards or give some.
    pub(super) fn is_led_on(&self, plan: u64) {
        if let Some((_, told)) = self.wanted.lock().now.as_mut().filter(|(now, _)| *now == plan) {
            *told = Instant::now();
        }
        self.ahead.is_led(plan);
    }

    /// This server gets shards by a plan; `false` if another plan has followed on it. A request that
    /// was late must touch nothing of what came later.
    pub(super) fn gets_by(&self, plan: u64) -> bool {
        let mut wanted = self.wanted.lock();
        if wanted.before.contains(&plan) {
            return false;
        }
        if let Some((before, _)) = wanted.now.replace((plan, Instant::now()))
            && before != plan
        {
            wanted.before.insert(before);
            self.copied.lock().clear();
        }
        true
    }

    /// Whether this server gets shards by a move that somebody leads, or has stopped for one.
    pub(super) fn is_part(&self) -> bool {
        let now = self.wanted.lock().now;
        self.is_stopped() || now.is_some_and(|(_, told)| told.elapsed() < QUIET_MAX)
    }

    /// Whether the copy ahead for a plan is to go on.
    pub(super) fn is_wanted(&self, plan: u64) -> bool {
        let now = self.wanted.lock().now;
        now.is_some_and(|(of, told)| of == plan && told.elapsed() < QUIET_MAX)
    }

    /// Whether shards were pulled for a plan from a server that had stopped.
    pub(super) fn has_pulled(&self, plan: u64) -> bool {
        self.ended.lock().iter().any(|it| it.plan == plan)
    }

    /// Whether this server has stopped for a move.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.lock().is_some()
    }

    /// Whether this server has stopped for this plan.
    pub(super) fn is_stopped_for(&self, plan: u64) -> bool {
        self.stopped.lock().is_some_and(|(known, _)| known == plan)
    }

    /// This server stops for a plan.
    pub(super) fn stops(&self, plan: u64) {
        *self.stopped.lock() = Some((plan, Instant::now()));
    }

    /// Whether the server stops for this plan already, and is led still; if so, whether it has
    /// stopped.
    pub(super) fn is_led(&self, plan: u64) -> Option<bool> {
        let mut stopped = self.stopped.lock();
        let (_, told) = stopped.as_mut().filter(|(known, _)| *known == plan)?;
        *told = Instant::now();
        Some(self.is_still.load(Ordering::Acquire))
    }

    /// The server has stopped.
    pub(super) fn has_stopped(&self) {
        self.is_still.store(true, Ordering::Release);
    }

    /// The move is over for which this server has stopped.
    pub(super) fn is_led_no_more(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Whether the move is over for which this server has stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// How a pull for a plan has ended that is asked for once more, or that comes after another one
    /// for this plan which has failed.
    pub(super) fn ended(&self, plan: u64, from: u16) -> Option<Result<u64, ()>> {
        let ended = self.ended.lock();
        let of_plan = || ended.iter().filter(|it| it.plan == plan);
        if of_plan().any(|it| it.records.is_none()) {
            return Some(Err(()));
        }
        of_plan().find(|it| it.from == from).and_then(|it| it.records).map(Ok)
    }

    /// A pull has ended.
    pub(super) fn ends(&self, plan: u64, from: u16, records: Option<u64>) {
        self.ended.lock().push(Ended { plan, from, records });
    }

    /// The copy ahead that was made for a plan.
    pub(super) fn copied(&self, plan: u64, from: u16) -> Option<Copied> {
        let mut copied = self.copied.lock();
        let at = copied.iter().position(|it| it.plan == plan && it.from == from)?;
        Some(copied.swap_remove(at))
    }

    /// A copy ahead was made, or brought up to date. Copies for other plans count no more.
    pub(super) fn has_copied(&self, copy: Copied) {
        let mut copied = self.copied.lock();
        copied.retain(|it| it.plan == copy.plan && it.from != copy.from);
        copied.push(copy);
    }

    /// When the server was last told to stop, if it has.
    pub(super) fn told(&self) -> Option<Instant> {
        self.stopped.lock().map(|(_, told)| told)
    }

    /// Begins a pull of shards; `None` while another one goes on, or records may be here of shards
    /// that are others'.
    pub(super) fn takes(&self) -> Option<Taking<'_>> {
        let free = self.swept.load(Ordering::Acquire) && !self.takes.swap(true, Ordering::AcqRel);
        free.then(|| Taking(self))
    }

    /// No record is here of a shard that is another server's.
    pub(super) fn is_swept(&self) {
        self.swept.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_stops_for_one_plan_and_takes_once_at_a_time() {
        let moves = Moves::default();
        assert!(moves.takes().is_none(), "nothing is swept yet");
        moves.is_swept();
        let first = moves.takes().unwrap();
        assert!(moves.takes().is_none());
        drop(first);
        assert!(moves.takes().is_some());
        assert!(!moves.is_stopped() && moves.told().is_none());
        moves.stops(7);
        assert_eq!((moves.is_stopped_for(7), moves.is_led(7)), (true, Some(false)));
        assert_eq!((moves.is_stopped_for(8), moves.is_led(8)), (false, None));
        moves.has_stopped();
        assert_eq!(moves.is_led(7), Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_another_has_followed_counts_no_more() {
        let moves = Moves::default();
        let copied =
            |from| Copied { plan: 7, from, round: 3, records: 5, contents: Contents::default() };
        assert!(!moves.is_wanted(7) && moves.gets_by(7) && moves.is_wanted(7));
        moves.has_copied(copied(1));
        assert!(moves.gets_by(7));
        assert_eq!((moves.copied(7, 1), moves.copied(7, 1)), (Some(copied(1)), None));
        moves.has_copied(copied(1));
        moves.is_led_on(8);
        assert!(moves.is_wanted(7), "a word to another plan is none to this one");
        assert!(moves.gets_by(8) && moves.is_wanted(8) && !moves.is_wanted(7));
        assert_eq!(moves.copied(7, 1), None, "nobody brings it up to date");
        assert!(!moves.gets_by(7) && moves.is_wanted(8));
        tokio::time::advance(QUIET_MAX).await;
        assert!(!moves.is_wanted(8));
        moves.is_led_on(8);
        assert!(moves.is_wanted(8));
    }

    #[test]
    fn a_pull_is_done_once_and_none_after_one_that_has_failed() {
        let moves = Moves::default();
        assert_eq!(moves.ended(7, 1), None);
        moves.ends(7, 1, Some(5));
        assert_eq!(
            (moves.ended(7, 1), moves.ended(7, 2), moves.ended(8, 1)),
            (Some(Ok(5)), None, None)
        );
        moves.ends(7, 2, None);
        assert_eq!((moves.ended(7, 1), moves.ended(7, 3)), (Some(Err(())), Some(Err(()))));
    }
}
