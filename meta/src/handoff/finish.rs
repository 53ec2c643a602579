//! Finishes handoffs after their commit, their failure or a crash.
//!
//! A part of the background of one core. After a handoff the source tells the master the new layout
//! of the directory, until the master has stored it. Then the source removes the names that it does
//! not own any more. A partition whose names did not come removes what it received, and tells
//! nobody.
//!
//! Always true: the record of a handoff stays until all its work is done.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use base::{DirId, Layout, Locality, ShardId};
use bytes::Bytes;
use wire::{LayoutLearnt, Outcome, Reply, Request, TxnId};

use super::{HandoffRecord, Receiving, steps, table::Partition, take, when};
use crate::{
    Core,
    bugs::Bug,
    error::Result,
    record::{Content, Key, Record, key},
    server::Shared,
    transact::outcome::outcome_of,
};

/// The pause before a master that could not be told is told again, at first and at most.
const TELL_FIRST: Duration = Duration::from_millis(2);
const TELL_MAX: Duration = Duration::from_millis(500);
/// Interval between two searches for handoffs that have gone silent.
const PERIOD: Duration = Duration::from_millis(250);
/// A handoff is silent when its source has sent nothing for this long.
const PATIENCE: Duration = Duration::from_millis(1000);
/// Number of content records that are read at once after a start, and the pause after each batch.
const READ_AT_ONCE: usize = 500;
const READ_PAUSE: Duration = Duration::from_millis(5);

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = core.inner.shared.clone();
    if shared.cluster.is_none() {
        // One server hands nothing off.
        if shared.config.locality == Locality::Hybrid {
            look_for_steps(&core).await;
        }
        return;
    }
    resume(&core);
    tokio::join!(when::run(&core), look_after(&core), look_for_steps(&core));
}

/// Resumes the handoffs that the last run left unfinished.
fn resume(core: &Core) {
    if core.inner.shared.bugs.has(Bug::HandoffForgotten) {
        return;
    }
    for (at, record) in stored(&core.inner.shared) {
        let core = core.clone();
        tokio::task::spawn_local(async move {
            // A handoff that was promised ends with its transaction: this step waits for that.
            if let HandoffRecord::Receiving(what) = record {
                core.step(move |txn| steps::abandon(txn, at, what.txn)).await;
            }
            finish(core, at).await;
        });
    }
}

/// Reads the records of all unfinished handoffs of this server.
fn stored(shared: &Shared) -> Vec<(Partition, HandoffRecord)> {
    let mut found = Vec::new();
    let prefix = key::works(b'H');
    let scanned = shared.engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        let record = HandoffRecord::from_record(&Bytes::copy_from_slice(value));
        match (key::parse_handoff(key), record) {
            (Some((dir, number)), Ok(record)) => {
                found.push((Partition { shard: key::shard_of(key), dir, number }, record));
            }
            _ => tracing::error!("what is stored of a handoff cannot be read; run `pando fsck`"),
        }
        ControlFlow::Continue(())
    });
    if let Err(error) = scanned {
        tracing::error!(%error, "handoffs of before this start cannot be read");
    }
    found.retain(|(at, _)| shared.owns(at.shard));
    found
}

/// Resumes steps to another number of subsets after a restart. A restart forgets which masters were
/// in such a step, and it is the masters that tell the next sources. So this queues each master
/// whose directory is in a step. With hybrid placement it counts, on the way, what homes have.
async fn look_for_steps(core: &Core) {
    let shared = &core.inner.shared;
    let counts = shared.config.locality == Locality::Hybrid;
    each_master(shared, |at, master| {
        if shared.cluster.is_some() && is_in_a_step(master) {
            shared.handoffs.again(at);
        }
        if counts {
            shared.homes.found(master);
        }
    })
    .await;
}

/// Reads the content records of all directories whose masters this server has, slowly.
async fn each_master(shared: &Shared, mut visit: impl FnMut(Partition, &Content)) {
    for shard in (0..shared.config.shards).map(ShardId) {
        let all = key::kind(shard, b'D');
        let end = key::end_of(&all);
        let mut next = Some(all).filter(|_| shared.owns(shard));
        while let Some(from) = next.take() {
            let mut read = 0;
            // A snapshot does not fill the engine's cache, which is left to others.
            let scanned = shared.engine.snapshot().scan(&from, &end, &mut |at, value| {
                if read == READ_AT_ONCE {
                    next = Some(Key::from_slice(at));
                    return ControlFlow::Break(());
                }
                read += 1;
                if let Some((master, content)) = master(at, value) {
                    visit(master, &content);
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = scanned {
                tracing::error!(%error, "how directories are divided cannot be read");
            }
            tokio::time::sleep(READ_PAUSE).await;
        }
    }
}

/// The master that a record is of. Damaged records are not reported here.
fn master(at: &[u8], value: &[u8]) -> Option<(Partition, Content)> {
    let master = Partition::of_share(at).filter(|of| of.number == 0 && key::is_content(at))?;
    Some((master, Content::from_record(&Bytes::copy_from_slice(value)).ok()?))
}

/// Whether a directory is on the way to another number of subsets.
fn is_in_a_step(master: &Content) -> bool {
    matches!(&master.layout, Layout::Subsets(subsets) if !subsets.is_settled())
}

/// Reads a record as it is stored.
pub(super) fn read<R: Record>(shared: &Shared, at: &[u8]) -> Result<Option<R>> {
    let found = shared.engine.get(at)?;
    Ok(found.map(|bytes| R::from_record(&bytes)).transpose()?)
}

/// Tells the master and sweeps the names that the partition does not own, until nothing is left to
/// do.
pub(super) async fn finish(core: Core, at: Partition) {
    let shared = core.inner.shared.clone();
    let mut pause = TELL_FIRST;
    loop {
        match read::<HandoffRecord>(&shared, &at.handoff()) {
            Ok(Some(HandoffRecord::Given(_))) => {
                let forgets = shared.bugs.has(Bug::MergedForgotten) && is_merged(&shared, at);
                if forgets || tell_master(&core, at).await {
                    core.step(move |txn| steps::told(txn, at)).await;
                    continue;
                }
            }
            Ok(Some(HandoffRecord::Sweeping(_))) => sweep(&core, at).await,
            Ok(Some(HandoffRecord::Receiving(_)) | None) => return,
            Err(fault) => {
                tracing::error!(?fault, "what is left of a handoff cannot be read");
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(TELL_MAX);
    }
}

/// Whether the partition has given all its names away.
fn is_merged(shared: &Shared, at: Partition) -> bool {
    matches!(read::<Content>(shared, &at.share()), Ok(Some(share)) if !share.is_live())
}

/// Tells the master the layout of the directory. Returns whether the master has stored it, or is
/// gone.
async fn tell_master(core: &Core, at: Partition) -> bool {
    let shared = &core.inner.shared;
    let Ok(Some(share)) = read::<Content>(shared, &at.share()) else { return false };
    tell(core, at.dir, &share, 0, &share.layout).await
}

/// Tells `partition` of the directory that `share` belongs to how the directory is divided. Returns
/// whether that partition has stored the layout, or is gone.
pub(super) async fn tell(
    core: &Core,
    dir: DirId,
    share: &Content,
    partition: u16,
    layout: &Layout,
) -> bool {
    let shared = &core.inner.shared;
    let at = Partition::of(share.home, dir, partition, shared.config.placement());
    let Some(cluster) = &shared.cluster else { return false };
    let Some(server) = cluster.server_of_key(&at.share()) else { return false };
    let Content { ino, home, .. } = *share;
    let learnt = LayoutLearnt { dir, ino, home, partition, layout: layout.clone() };
    if server == cluster.me {
        core.step(move |txn| take::learn(txn, &learnt)).await;
        shared.sync.wait().await;
        return true;
    }
    // The layout must be stable first: a power cut may take it here, but not from a partition that
    // has learnt it.
    if !shared.bugs.has(Bug::LayoutToldEarly) {
        shared.sync.until_stable().await;
    }
    let answer = core.inner.peers.ask(server, &Request::LayoutLearnt(learnt)).await;
    matches!(answer, Ok(Reply::Layout(_)))
}

async fn sweep(core: &Core, at: Partition) {
    let mut from = key::names(at.shard, at.dir);
    loop {
        match core.step(move |txn| steps::sweep(txn, at, &from)).await.flatten() {
            Some(next) => from = next,
            None => return,
        }
    }
}

/// Asks how the handoffs ended that have gone silent or were given up.
async fn look_after(core: &Core) {
    let shared = core.inner.shared.clone();
    loop {
        tokio::time::sleep(PERIOD).await;
        for (at, id) in silent(&shared) {
            // A handoff that was promised is ended by its transaction.
            if shared.prepared.has(id) {
                continue;
            }
            let known = match read::<HandoffRecord>(&shared, &at.handoff()) {
                Ok(Some(HandoffRecord::Receiving(what))) => Some(what),
                Ok(Some(HandoffRecord::Given(_) | HandoffRecord::Sweeping(_))) => {
                    tokio::task::spawn_local(finish(core.clone(), at));
                    None
                }
                Ok(None) => None,
                Err(_) => continue,
            };
            match known {
                Some(what) if is_over(core, what).await => {
                    core.step(move |txn| steps::abandon(txn, at, what.txn)).await;
                    tokio::task::spawn_local(finish(core.clone(), at));
                }
                Some(_) => continue,
                None => {}
            }
            shared.handoffs.received(|received| {
                if received.get(&at).is_some_and(|received| received.state.what.txn == id) {
                    received.remove(&at);
                }
            });
        }
    }
}

fn silent(shared: &Arc<Shared>) -> Vec<(Partition, TxnId)> {
    shared.handoffs.received(|received| {
        let silent = received
            .iter()
            .filter(|(_, received)| received.is_over || received.heard.elapsed() >= PATIENCE);
        silent.map(|(at, received)| (*at, received.state.what.txn)).collect()
    })
}

/// Whether a handoff into this server has ended without its names.
async fn is_over(core: &Core, what: Receiving) -> bool {
    let shared = &core.inner.shared;
    if shared.cluster.as_ref().is_some_and(|cluster| cluster.me == what.txn.server) {
        return !shared.initiated.is_open(what.txn);
    }
    // A committed handoff was promised here, so its end is told here.
    outcome_of(core, what.txn, &[]).await == Some(Outcome::Aborted)
}
