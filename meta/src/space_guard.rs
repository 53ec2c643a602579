//! Free space on the disks: what may still be written when they are nearly full.
//!
//! Above the low-water mark everything is served. Below it, requests that need room are refused
//! with ENOSPC. Reads, removals and all requests that take next to no room still work, so that
//! space can be freed. When nearly nothing is left, only reads are served: a write that the engine
//! could not finish would stop the server. Refused requests are admitted again a little above the
//! mark, so that the level does not flicker.
//!
//! The mark is the reserve plus what the engine holds in memory and must still write. Cores look at
//! the disk after they have written a certain amount, and a task looks from time to time, because
//! others write to the disk as well.
//!
//! Invariant: a refused request has changed nothing. With a reserve of 0 nothing is ever refused
//! here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{FsError, error::describe};
use store::Engine;
use tokio::sync::Notify;
use wire::{Needs, Request, Stand};

/// A core looks again when it has written this many bytes.
const BYTES_A_LOOK: u64 = 1 << 20;
/// Interval at which the task looks.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// With less than this, or a quarter of the reserve, only reads are served.
const CRITICAL_BYTES_MAX: u64 = 16 << 20;

/// Free bytes of the fullest of the disks that hold the server's data.
pub type FreeBytes = Arc<dyn Fn() -> u64 + Send + Sync>;

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// Only reads are served.
    Nothing = 0,
    /// Requests that need room are refused.
    Low = 1,
    /// There is enough room for everything.
    Enough = 2,
}

impl From<Needs> for Level {
    fn from(needs: Needs) -> Level {
        match needs {
            Needs::Nothing => Level::Nothing,
            Needs::Little => Level::Low,
            Needs::Space => Level::Enough,
        }
    }
}

/// The guard of the space on the server's disks.
pub(crate) struct SpaceGuard {
    free: FreeBytes,
    reserve: u64,
    level: AtomicU8,
    written: AtomicU64,
    changed: Notify,
}

impl SpaceGuard {
    pub(crate) fn new(free: FreeBytes, reserve: u64, engine: &dyn Engine) -> SpaceGuard {
        let level = AtomicU8::new(Level::Enough as u8);
        let guard =
            SpaceGuard { free, reserve, level, written: AtomicU64::new(0), changed: Notify::new() };
        guard.look(engine);
        guard
    }

    /// The level at the last look.
    pub(crate) fn level(&self) -> Level {
        match self.level.load(Ordering::Relaxed) {
            0 => Level::Nothing,
            1 => Level::Low,
            _ => Level::Enough,
        }
    }

    /// Whether there is room for what `request` writes. A change that a mount has answered already,
    /// in a directory that it holds, is served for as long as there is any.
    pub(crate) fn admits(&self, request: &Request, stand: &Stand) -> Result<(), FsError> {
        let needed = Level::from(request.kind().needs);
        let was_answered = stand.held.is_some_and(|held| held.dir.is_some());
        self.has(if was_answered { needed.min(Level::Low) } else { needed })
    }

    /// Fails with `NoSpace` if there is less room than needed.
    pub(crate) fn has(&self, needed: Level) -> Result<(), FsError> {
        if self.level() < needed { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Whether nothing is refused for want of room.
    pub(crate) fn is_enough(&self) -> bool {
        self.level() == Level::Enough
    }

    /// Returns when there is as much room as needed.
    pub(crate) async fn until(&self, needed: Level) {
        self.until_level(|level| level >= needed).await;
    }

    /// Returns when requests that need room are refused.
    pub(crate) async fn until_scarce(&self) {
        self.until_level(|level| level < Level::Enough).await;
    }

    async fn until_level(&self, is_so: impl Fn(Level) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so(self.level()) {
                return;
            }
            changed.await;
        }
    }

    /// Counts written bytes, and looks at the disk when there are enough of them.
    pub(crate) fn wrote(&self, bytes: usize, engine: &dyn Engine) {
        let bytes = bytes as u64;
        if self.reserve > 0
            && self.written.fetch_add(bytes, Ordering::Relaxed) + bytes >= BYTES_A_LOOK
        {
            self.look(engine);
        }
    }

    /// Looks at the disk, and sets the level.
    pub(crate) fn look(&self, engine: &dyn Engine) {
        if self.reserve == 0 {
            return;
        }
        self.written.store(0, Ordering::Relaxed);
        let free = (self.free)();
        let before = self.level();
        let now = next(before, free, self.reserve, engine.unwritten_bytes());
        if now == before {
            return;
        }
        self.level.store(now as u8, Ordering::Relaxed);
        self.changed.notify_waiters();
        let reserve = self.reserve;
        match now {
            Level::Enough => tracing::warn!(free, reserve, "there is room again: writes resume"),
            Level::Low => {
                tracing::error!(free, reserve, "the disk is nearly full: writes are refused");
                // The engine's log and memory take room that a table of the same records does not.
                if let Err(error) = engine.write_out() {
                    tracing::error!(error = describe(&error), "the engine cannot free its log");
                }
            }
            Level::Nothing => {
                tracing::error!(free, reserve, "the disk is full: only reads are served");
            }
        }
    }

    /// Looks at the disk for as long as the server runs.
    pub(crate) async fn watch(&self, engine: &dyn Engine) {
        if self.reserve == 0 {
            return;
        }
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            self.look(engine);
        }
    }
}

fn next(before: Level, free: u64, reserve: u64, unwritten: u64) -> Level {
    let low = reserve.saturating_add(unwritten);
    let critical = (reserve / 4).clamp(1, CRITICAL_BYTES_MAX);
    // The level rises only a little above the mark at which it fell.
    let low_end = if before < Level::Enough { low.saturating_add(reserve / 8) } else { low };
    let critical_end = if before == Level::Nothing { critical * 2 } else { critical };
    if free < critical_end {
        Level::Nothing
    } else if free < low_end {
        Level::Low
    } else {
        Level::Enough
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use base::{DirId, EntryName, Ino, Moving, ShardId, layout::POS_MAX, placement::shard_of};
    use bytes::Bytes;
    use store::Batch;
    use wire::{
        Decide, Expected, HandoffBegin, HandoffPut, PeerWrite, Prepare, Reply, Stands, Tally,
        TxnId, Vote,
    };

    use super::*;
    use crate::{
        Limits, ServerOptions,
        coordinator::tests::several::in_cluster_of,
        peer::Unanswered,
        record::{key, key::Part},
    };

    const MIB: u64 = 1 << 20;

    thread_local! {
        /// Free bytes on the disk of the second server.
        static FREE: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    fn options(address: &str) -> ServerOptions {
        let options = ServerOptions::simulated(address);
        if address != "b:1" {
            return options;
        }
        let free: FreeBytes = Arc::new(|| FREE.get());
        let limits = Limits { free, reserve: 64 * MIB, ..options.limits.clone() };
        ServerOptions { limits, ..options }
    }

    async fn fill(free: u64) {
        FREE.set(free);
        tokio::time::sleep(2 * LOOK_PERIOD).await;
    }

    fn prepare(number: u64, key: &Bytes, was: Option<&Bytes>, write: PeerWrite) -> Request {
        let txn = TxnId { server: 0, run: 1, number };
        let expects =
            vec![Expected { key: key.clone(), was: was.cloned(), stands: Stands::Stable }];
        let (writes, early_mkdir, held) = (vec![write], false, false);
        Request::Prepare(Prepare {
            txn,
            expects,
            writes,
            early_mkdir,
            held,
            others: vec![],
            session: None,
        })
    }

    #[test]
    fn a_nearly_full_server_takes_nothing_that_needs_room_from_others_and_ends_what_it_has_taken() {
        let at = |text: &str| {
            let name = EntryName::new(text.as_bytes()).unwrap();
            let at = key::name(ShardId(1), DirId(77), 7, &name, Part::Main);
            Bytes::copy_from_slice(&at)
        };
        let (old, new, value) = (at("old"), at("new"), Bytes::from_static(b"value"));
        in_cluster_of(options, async |three| {
            let mut batch = Batch::default();
            batch.put(&old, &value);
            three.engines[1].write(batch).unwrap();
            let peers = &three.node(0).core.inner.peers;
            let put = |number, key: &Bytes, early_mkdir| {
                let write = PeerWrite::Put((key.clone(), value.clone()));
                let Request::Prepare(prepare) = prepare(number, key, None, write) else {
                    unreachable!("it is one");
                };
                Request::Prepare(Prepare { early_mkdir, ..prepare })
            };
            let remove =
                |number| prepare(number, &old, Some(&value), PeerWrite::Delete(old.clone()));
            let decide = |number, commit| {
                let txn = TxnId { server: 0, run: 1, number };
                Request::Decide(Decide { txn, commit })
            };
            let (full, prepared) =
                (Err(Unanswered::Failed(FsError::NoSpace)), Ok(Reply::Vote(Vote::Prepared)));
            assert_eq!(peers.ask(1, &put(1, &new, false)).await, prepared);

            fill(63 * MIB).await;
            for early_mkdir in [false, true] {
                assert_eq!(peers.ask(1, &put(2, &at("newer"), early_mkdir)).await, full);
            }
            // A wrong assumption is reported first: the transaction may need no room without it.
            let assumed = Ok(Reply::Vote(Vote::Changed));
            assert_eq!(peers.ask(1, &put(5, &old, false)).await, assumed);
            assert_eq!(peers.ask(1, &remove(3)).await, prepared);
            fill(MIB).await;
            for (number, commit) in [(1, true), (3, false)] {
                assert_eq!(peers.ask(1, &decide(number, commit)).await, Ok(Reply::Nothing));
            }
            assert_eq!(three.engines[1].get(&new).unwrap(), Some(value.clone()));
            assert_eq!(peers.ask(1, &remove(4)).await, full);
            fill(u64::MAX).await;
            assert_eq!(peers.ask(1, &remove(4)).await, prepared);
        });
    }

    #[test]
    fn a_nearly_full_server_takes_no_names_from_others() {
        in_cluster_of(options, async |three| {
            let home = DirId(77);
            let target = (1..5).find(|target| shard_of(home, *target, 5) == ShardId(1)).unwrap();
            let txn = TxnId { server: 0, run: 1, number: 1 };
            let (dir, ino, moving) = (home, Ino(7), Moving::Range((0, POS_MAX)));
            let begin = HandoffBegin { txn, dir, ino, home, source: 0, target, moving };
            let begin = Request::HandoffBegin(begin);
            let (number, changes, stable) = (0, Vec::new(), false);
            let put = HandoffPut { txn, dir, home, target, number, changes, stable };
            let peers = &three.node(0).core.inner.peers;
            fill(63 * MIB).await;
            assert_eq!(peers.ask(1, &begin).await, Ok(Reply::Taken(None)));
            fill(u64::MAX).await;
            let none = Tally::default();
            assert_eq!(peers.ask(1, &begin).await, Ok(Reply::Taken(Some(none))));
            fill(63 * MIB).await;
            assert_eq!(peers.ask(1, &Request::HandoffPut(put)).await, Ok(Reply::Taken(None)));
            fill(u64::MAX).await;
        });
    }

    #[test]
    fn writes_resume_a_little_above_the_mark_that_stopped_them() {
        let reserve = 64 * MIB;
        let level = |before, free| next(before, free * MIB, reserve, 0);
        assert_eq!(level(Level::Enough, 64), Level::Enough);
        assert_eq!(level(Level::Enough, 63), Level::Low);
        assert_eq!(level(Level::Low, 71), Level::Low);
        assert_eq!(level(Level::Low, 72), Level::Enough);
        assert_eq!(level(Level::Low, 15), Level::Nothing);
        assert_eq!(level(Level::Nothing, 31), Level::Nothing);
        assert_eq!(level(Level::Nothing, 32), Level::Low);
    }

    #[test]
    fn what_the_engine_has_not_written_out_counts_as_used() {
        let level = |unwritten| next(Level::Enough, 100 * MIB, 64 * MIB, unwritten * MIB);
        assert_eq!((level(36), level(37)), (Level::Enough, Level::Low));
    }
}
