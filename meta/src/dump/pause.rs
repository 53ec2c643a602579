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

use std::{sync::atomic::Ordering, time::Duration};

use base::FsError;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use wire::{DumpStage, DumpStep, Reply, Retry};

use super::pauses::NoPause;
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    record::key,
    server::Shared,
    transact::doubt,
};

/// Polling interval for things that end without a notification.
const LOOK: Duration = Duration::from_millis(1);

impl From<NoPause> for Fault {
    fn from(none: NoPause) -> Fault {
        match none {
            NoPause::Busy => FsError::Busy.into(),
            NoPause::Over => Fault::Refused("the pause for the dump is over: try again".into()),
        }
    }
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
        DumpStage::Resume => return Err(NoPause::Over.into()),
    }
    Ok(Reply::Nothing)
}

async fn in_time(until: Instant, ends: impl Future<Output = ()>) -> Result<()> {
    timeout_at(until, ends).await.map_err(|_| NoPause::Over.into())
}

/// Waits for `ends`, unless [`Bug::PauseIgnored`] is planted.
async fn ignored(shared: &Shared, ends: impl Future<Output = ()>) {
    if shared.bugs.has(Bug::PauseIgnored) {
        shared.pauses.holds.store(false, Ordering::SeqCst);
    } else {
        ends.await;
    }
}

/// Returns when no handoff is in progress here, and no session holds a directory.
async fn gathered(shared: &Shared) {
    shared.delegations.gather().await;
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
    let (mut found, prefix) = (false, key::works(b'H'));
    shared.engine.scan(&prefix, &key::end_of(&prefix), &mut |key, _| {
        found = shared.owns(key::shard_of(key));
        if found { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    })?;
    Ok(!found)
}

/// Returns when nothing that concerns several servers is half done here. No server begins anything
/// meanwhile.
async fn settled(shared: &Shared) {
    loop {
        while shared.early_mkdirs.are_unheard() {
            sleep(LOOK).await;
        }
        // Early mkdirs that wait to be confirmed need not wait for their round.
        doubt::expedite_entries(shared);
        shared.prepared.until_none().await;
        until_swept(shared).await;
        if !shared.prepared.any() && !shared.early_mkdirs.are_unheard() {
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
}
