//! Pauses: for a moment no server begins a change, so that a dump shows one moment of all of them.
//!
//! The client that makes the dump leads all servers through [`DumpStage`]s together. Names that
//! move between partitions arrive, and no more begin to move. Changes wait, and transactions over
//! several servers that are in progress end. What these have prepared is applied everywhere, and
//! directories that were born are confirmed. Each server takes its snapshot. All go on. So nothing
//! that concerns several servers is half done in the snapshots. And if one change was answered
//! before another began, no snapshot has the second when none has the first: when the first was
//! answered late enough to be in no snapshot, all servers had paused, and each took its snapshot
//! before it went on.
//!
//! No server waits for long: one that is not led on in time goes on by itself, and drops the dump.
//! A later step of that dump is refused, so that nothing is made of it.
//!
//! Always true: a pause that is ended in time has held up all changes since the request that began
//! to hold was answered.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use base::{FsError, ShardId};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use wire::{DumpStage, DumpStep, Reply, Retry};

use crate::{
    bugs::Bug,
    error::{Fault, Result},
    record::key,
    server::Shared,
    transact::doubt,
};

/// Time limit for moving names to arrive.
const GATHERED_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for changes to wait.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// Polling interval for things that end without a notification.
const LOOK: Duration = Duration::from_millis(1);

/// The pause of this server, if any, and what it waits for.
#[derive(Default)]
pub(crate) struct Pauses {
    /// Whether changes wait.
    holds: AtomicBool,
    table: Mutex<Table>,
    changed: Notify,
}

#[derive(Default)]
struct Table {
    current: Option<Pause>,
    under_way: Counts,
    /// The latest dump that was ended here before it began: the request to begin may still arrive.
    ended: Option<u64>,
}

/// Numbers of things in progress that were begun here.
#[derive(Default)]
struct Counts {
    transactions: usize,
    handoffs: usize,
}

struct Pause {
    dump: u64,
    /// The time when the pause ends by itself.
    until: Instant,
    /// Whether changes wait; before that only handoffs do.
    holds: bool,
}

/// Something that a pause waits for; it has ended when this is dropped.
pub(crate) struct UnderWay<'a> {
    pauses: &'a Pauses,
    count: fn(&mut Counts) -> &mut usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *(self.count)(&mut self.pauses.table.lock().under_way) -= 1;
        self.pauses.changed.notify_waiters();
    }
}

impl Pauses {
    /// Whether changes wait.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }

    /// Returns when changes go on.
    pub(crate) async fn over(&self) {
        self.until(|_| !self.holds()).await;
    }

    /// Begins a transaction over several servers, as soon as it may.
    pub(crate) async fn transaction(&self) -> UnderWay<'_> {
        loop {
            if let Some(begun) = self.transaction_now() {
                return begun;
            }
            self.over().await;
        }
    }

    /// Like [`Pauses::transaction`]; `None` if changes wait.
    pub(crate) fn transaction_now(&self) -> Option<UnderWay<'_>> {
        let mut table = self.table.lock();
        // Race: a transaction that is counted before this lock is taken is waited for; a later one
        // sees that changes wait.
        (!self.holds()).then(|| self.begun(&mut table, |counts| &mut counts.transactions))
    }

    /// Begins a handoff; `None` if there is a pause.
    pub(crate) fn handoff(&self) -> Option<UnderWay<'_>> {
        let mut table = self.table.lock();
        let free = table.current.is_none();
        free.then(|| self.begun(&mut table, |counts| &mut counts.handoffs))
    }

    fn begun(&self, table: &mut Table, count: fn(&mut Counts) -> &mut usize) -> UnderWay<'_> {
        *count(&mut table.under_way) += 1;
        UnderWay { pauses: self, count }
    }

    /// Begins a pause: from now on no handoff begins. `Busy` when another dump is made.
    pub(crate) fn begin(&self, dump: u64) -> Result<Instant> {
        let mut table = self.table.lock();
        if table.current.as_ref().is_some_and(|pause| pause.dump != dump) {
            return Err(FsError::Busy.into());
        }
        if table.ended == Some(dump) {
            return Err(over());
        }
        let until = Instant::now() + GATHERED_WITHIN;
        let begun = Pause { dump, until, holds: false };
        Ok(table.current.get_or_insert(begun).until)
    }

    /// Makes changes wait from now on.
    pub(crate) fn hold(&self, dump: u64) -> Result<Instant> {
        let mut table = self.table.lock();
        let pause = table.current.as_mut().filter(|pause| pause.dump == dump).ok_or_else(over)?;
        if !pause.holds {
            pause.holds = true;
            pause.until = Instant::now() + PAUSE_MAX;
            self.holds.store(true, Ordering::SeqCst);
        }
        Ok(pause.until)
    }

    /// The time until which changes wait for this dump.
    fn held_until(&self, dump: u64) -> Result<Instant> {
        let table = self.table.lock();
        let held = table.current.as_ref().filter(|pause| pause.dump == dump && pause.holds);
        held.map(|pause| pause.until).ok_or_else(over)
    }

    /// Ends the pause; `true` if changes have waited until now.
    pub(crate) fn end(&self, dump: u64) -> bool {
        let mut table = self.table.lock();
        let Some(pause) = table.current.take_if(|pause| pause.dump == dump) else {
            table.ended = Some(dump);
            return false;
        };
        self.holds.store(false, Ordering::SeqCst);
        drop(table);
        self.changed.notify_waiters();
        pause.holds && Instant::now() < pause.until
    }

    async fn until(&self, is_so: impl Fn(&Table) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&self.table.lock()) {
                return;
            }
            changed.await;
        }
    }
}

fn over() -> Fault {
    Fault::Refused("the pause for the dump is over: try again".into())
}

/// Takes a step of a dump of several servers.
pub(crate) async fn step(shared: &Shared, step: DumpStep) -> Result<Reply> {
    let DumpStep { dump, stage } = step;
    let pauses = &shared.pauses;
    let Some(cluster) = &shared.cluster else {
        return Err(Fault::Refused("this file system has one server".into()));
    };
    if !cluster.has_lease() {
        return Err(Fault::Retry(Retry::Busy));
    }
    match stage {
        DumpStage::Gather if shared.dumps.is_making_other(dump) => return Err(FsError::Busy.into()),
        DumpStage::Gather => in_time(pauses.begin(dump)?, gathered(shared)).await?,
        DumpStage::Pause => {
            let quiet = pauses.until(|table| table.under_way.transactions == 0);
            in_time(pauses.hold(dump)?, ignored(shared, quiet)).await?;
        }
        DumpStage::Settle => {
            in_time(pauses.held_until(dump)?, ignored(shared, settled(shared))).await?;
        }
        DumpStage::Take => {
            pauses.held_until(dump)?;
            return super::start(shared, dump).map(Reply::DumpStarted);
        }
        DumpStage::Resume if pauses.end(dump) => {}
        DumpStage::Resume => return Err(over()),
    }
    Ok(Reply::Nothing)
}

async fn in_time(until: Instant, ends: impl Future<Output = ()>) -> Result<()> {
    timeout_at(until, ends).await.map_err(|_| over())
}

/// Waits for `ends`, unless [`Bug::PauseIgnored`] is planted.
async fn ignored(shared: &Shared, ends: impl Future<Output = ()>) {
    if shared.bugs.has(Bug::PauseIgnored) {
        shared.pauses.holds.store(false, Ordering::SeqCst);
    } else {
        ends.await;
    }
}

/// Returns when no handoff is in progress here.
async fn gathered(shared: &Shared) {
    shared.pauses.until(|table| table.under_way.handoffs == 0).await;
    until_swept(shared).await;
}

/// Returns when no work of any handoff is left here.
async fn until_swept(shared: &Shared) {
    loop {
        match is_swept(shared) {
            Ok(true) => return,
            Ok(false) => sleep(LOOK).await,
            Err(error) => {
                // The pause ends when its time is up.
                tracing::error!(%error, "what is stored of handoffs cannot be read");
                return std::future::pending().await;
            }
        }
    }
}

fn is_swept(shared: &Shared) -> store::Result<bool> {
    for shard in (0..shared.config.shards).map(ShardId).filter(|shard| shared.owns(*shard)) {
        let mut found = false;
        let prefix = key::kind(shard, b'H');
        shared.engine.scan(&prefix, &key::end_of(&prefix), &mut |_, _| {
            found = true;
            std::ops::ControlFlow::Break(())
        })?;
        if found {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns when nothing that concerns several servers is half done here. No server begins anything
/// meanwhile.
async fn settled(shared: &Shared) {
    loop {
        while shared.births.are_unheard() {
            sleep(LOOK).await;
        }
        // Births that wait to be confirmed need not wait for their round.
        doubt::expedite_entries(shared);
        shared.prepared.until_none().await;
        until_swept(shared).await;
        if !shared.prepared.any() && !shared.births.are_unheard() {
            return;
        }
    }
}

/// Ends the pause if no request does in time.
pub(crate) async fn watch(shared: &Shared, dump: u64) {
    let until = || {
        let table = shared.pauses.table.lock();
        table.current.as_ref().filter(|pause| pause.dump == dump).map(|pause| pause.until)
    };
    while let Some(time) = until() {
        if Instant::now() < time {
            sleep_until(time).await;
            continue;
        }
        tracing::warn!("a dump was dropped: its client is gone");
        shared.pauses.end(dump);
        shared.dumps.end(dump);
        shared.backlog.sweep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::tests::several::in_cluster;

    #[tokio::test(start_paused = true)]
    async fn who_is_under_way_is_waited_for_and_nobody_else_begins() {
        let pauses = Pauses::default();
        let first = pauses.transaction().await;
        let names = pauses.handoff().unwrap();
        pauses.begin(7).unwrap();
        assert!(pauses.handoff().is_none(), "no names begin to move");
        drop(names);
        let second = pauses.transaction().await;
        assert!(!pauses.holds());
        assert!(pauses.held_until(7).is_err(), "nothing waits yet");

        pauses.hold(7).unwrap();
        assert!(pauses.holds() && pauses.transaction_now().is_none());
        let third = pauses.transaction();
        tokio::pin!(third);
        assert!(futures::poll!(third.as_mut()).is_pending());
        let quiet = pauses.until(|table| table.under_way.transactions == 0);
        tokio::pin!(quiet);
        drop(first);
        assert!(futures::poll!(quiet.as_mut()).is_pending());
        drop(second);
        quiet.await;
        assert!(futures::poll!(third.as_mut()).is_pending());
        assert!(pauses.end(7), "all has waited until now");
        drop(third.await);
        assert!(pauses.handoff().is_some());
        assert!(!pauses.end(7), "it has ended");
    }

    #[test]
    fn a_dump_beside_another_is_refused_before_anybody_waits() {
        in_cluster(async |three| {
            let shared = &three.node(0).core.inner.shared;
            let take = |dump, stage| step(shared, DumpStep { dump, stage });
            for stage in [
                DumpStage::Gather,
                DumpStage::Pause,
                DumpStage::Settle,
                DumpStage::Take,
                DumpStage::Resume,
            ] {
                take(7, stage).await.unwrap();
            }
            let other = take(8, DumpStage::Gather).await;
            assert!(matches!(other, Err(Fault::Answer(FsError::Busy))));
            assert!(shared.pauses.handoff().is_some(), "nobody waits for it");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_late_hears_that_changes_have_not_waited() {
        let pauses = Pauses::default();
        assert!(pauses.hold(7).is_err(), "it has not begun here");
        pauses.begin(7).unwrap();
        assert!(matches!(pauses.begin(8), Err(Fault::Answer(FsError::Busy))));
        let until = pauses.hold(7).unwrap();
        sleep(PAUSE_MAX / 2).await;
        assert_eq!(pauses.hold(7).unwrap(), until, "to be told again does not make it longer");
        sleep(PAUSE_MAX).await;
        assert!(!pauses.end(7) && !pauses.holds());
        // A dump that was given up before it began does not begin.
        assert!(!pauses.end(9));
        assert!(pauses.begin(9).is_err());
        assert!(pauses.begin(10).is_ok());
    }
}
