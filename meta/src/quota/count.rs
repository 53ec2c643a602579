//! Counting what is below a directory that gets a quota, and releasing what was below one that
//! loses it.
//!
//! The count is a walk in small transactions, each over a page of one directory, while the file
//! system is in use. It charges what it finds to the new root, directories before their contents:
//! so whatever is made meanwhile is charged correctly at once, and nothing is missed. Directories
//! that would cross the border of the root wait for the end of the walk. So do directories that the
//! walk has not met yet and that are renamed within their parent. A file with several names is
//! charged where it gets one (see `ops::rename`, `ops::link`). After a crash the walk begins anew
//! and finds most of the work done. A directory that is charged may then have uncounted ones below
//! it, so directories that would be renamed anywhere below the root wait.
//!
//! With several servers the coordinator walks. Each page is done by the server that has it, which
//! charges it and answers when that is stable, so no page is a transaction over several servers.
//! The walk begins when all servers have received the root, or may not serve. Where names moved to
//! another partition meanwhile, the directory is walked again.
//!
//! *Directories that are put back.* A server that begins anew may have lost the entry of an early
//! mkdir. The walk misses this entry. Later the directory's server puts it back where the walk has
//! been already, with all below it, and none of that is counted. So the walk is repeated if any
//! server has begun anew meanwhile, and it begins when all early mkdirs of before are over on all
//! servers: what was lost is back then. An entry that is lost after the walk is of a directory that
//! is counted. If the walk has found the entry, the directory was confirmed before it was counted;
//! if the entry came later, the directory inherited the new root. The generations of servers show
//! which began anew: a server has a new one before it answers the walk. While a server is away, no
//! walk ends.
//!
//! Race: a file whose slot is on another server than its name is changed a moment after it was
//! found. If it is renamed out of the tree in that moment it counts where it was found.

pub(crate) mod part;

use std::{collections::BTreeMap, time::Duration};

use base::{HashSet, Ino, Layout};
use bytes::Bytes;
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};
use wire::{Count, CountNames, CountShare, CountWhat, Counted, DirRef, Reply, Request};

use crate::{
    Core,
    bugs::Bug,
    cluster::Cluster,
    coordinator::state::Coordinator,
    error::Result,
    lock,
    peer::Unanswered,
    record::{QuotaId, QuotaRecord, QuotaState, Record as _, key, key::UsagePart},
    server::Shared,
    space_guard::Level,
    txn::{Txn, unshown},
};
use part::Border;

/// Number of directories that are walked at once with several servers.
const DIRS_AT_ONCE: usize = 16;
/// Pause before a part that failed is tried again. A part of this server is tried [`TRIES_MAX`]
/// times, a part of a server that is away without end.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
const TRIES_MAX: u32 = 50;
/// With several servers, pause before a failed walk begins anew, and between searches for roots
/// that are gone.
const PERIOD: Duration = Duration::from_secs(30);

/// Runs the walks for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = core.inner.shared.clone();
    if shared.cluster.as_ref().is_some_and(|cluster| !cluster.coordinates()) {
        return;
    }
    loop {
        let mut walks = shared.quotas.unfinished();
        walks.sort_unstable_by_key(|(id, _)| *id);
        for (id, record) in walks {
            let border = match record.state {
                QuotaState::Counting => Border { from: QuotaId(record.parent), to: id },
                QuotaState::Removing => Border { from: id, to: QuotaId(record.parent) },
                QuotaState::Active | QuotaState::Gone => continue,
            };
            if is_stored(&shared, id, &record) {
                count(&core, id, &record, border).await;
            }
        }
        if shared.cluster.is_none() {
            shared.quotas.wake.notified().await;
            continue;
        }
        look_for_gone(&core).await;
        // Another look is due after a wake-up and after the period alike.
        let _ = timeout(PERIOD, shared.quotas.wake.notified()).await;
    }
}

/// Whether the root's record is on disk, not just pending in a request that may fail.
fn is_stored(shared: &Shared, id: QuotaId, record: &QuotaRecord) -> bool {
    let stored = shared.engine.get(&key::usage(id, UsagePart::Root));
    let stored = stored.ok().flatten().and_then(|value| QuotaRecord::from_record(&value).ok());
    stored.is_some_and(|stored| stored.state == record.state)
}

async fn count(core: &Core, id: QuotaId, record: &QuotaRecord, border: Border) {
    let top = unshown(record.dir, id.0, record.home);
    // No record of another server may name a root that a power failure takes back.
    core.inner.shared.sync.wait().await;
    all_have_heard(core).await;
    let is_once = core.inner.shared.bugs.has(Bug::PutBackUncounted);
    loop {
        // Race: the generations come first. What a server loses when it begins anew after this is
        // looked for by the next walk.
        let before = generations(core);
        if !is_once {
            births_are_over(core).await;
        }
        if !walk(core, top, border).await {
            core.inner.shared.quotas.counts_again(id);
            tracing::error!(root = %record.dir, "a quota could not be counted; run `pando fsck`");
            return;
        }
        // Roots below count elsewhere now, and all servers must know.
        all_have_heard(core).await;
        if is_once || generations(core) == before {
            break;
        }
        core.inner.shared.quotas.counts_again(id);
    }
    let state = match record.state {
        QuotaState::Counting => QuotaState::Active,
        QuotaState::Removing => QuotaState::Gone,
        QuotaState::Active | QuotaState::Gone => return,
    };
    is_counted(core, id, state).await;
}

/// Notes that a walk is complete.
///
/// Race: a dump of several servers must not have this without what the walk has changed on all of
/// them. So the note is written before the servers pause, or when each has its snapshot.
async fn is_counted(core: &Core, id: QuotaId, state: QuotaState) {
    let shared = &core.inner.shared;
    loop {
        shared.space_guard.until(Level::Low).await;
        let _under_way = shared.pauses.transaction().await;
        // Waiting for room while others wait for the end of this would hold them up.
        if shared.space_guard.has(Level::Low).is_ok() {
            core.step(move |txn| counted(txn, id, state)).await;
            return;
        }
    }
}

/// Returns when all servers know the current roots, or serve nothing before they do.
async fn all_have_heard(core: &Core) {
    let shared = &core.inner.shared;
    let Some(cluster) = &shared.cluster else { return };
    let Some(coordinator) = &cluster.coordinator else { return };
    while !coordinator.all_know_roots(shared.quotas.version(), cluster.me, Instant::now()) {
        sleep(AGAIN_PAUSE).await;
    }
}

/// The generations of all servers.
fn generations(core: &Core) -> Vec<u64> {
    let cluster = core.inner.shared.cluster.as_ref();
    let coordinator = cluster.and_then(|cluster| cluster.coordinator.as_ref());
    coordinator.map(Coordinator::generations).unwrap_or_default()
}

/// Returns when every directory that was born on any server before this call is confirmed, or has
/// come to nothing, or has its entry back.
async fn births_are_over(core: &Core) {
    let Some(cluster) = &core.inner.shared.cluster else { return };
    let map = cluster.map();
    join_all(map.members().map(|server| births_are_over_at(core, cluster, server))).await;
}

async fn births_are_over_at(core: &Core, cluster: &Cluster, server: u16) {
    let shared = &core.inner.shared;
    if server == cluster.me {
        while shared.early_mkdirs.are_unheard() {
            sleep(AGAIN_PAUSE).await;
        }
        shared.prepared.early_mkdirs_over().await;
        return;
    }
    while core.inner.peers.ask(server, &Request::SettleBirths).await != Ok(Reply::Nothing)
        && !cluster.map().has_left(server)
    {
        sleep(AGAIN_PAUSE).await;
    }
}

/// Finds roots whose directory was removed: no other server tells the coordinator.
async fn look_for_gone(core: &Core) {
    for (id, record) in core.inner.shared.quotas.active() {
        let dir = unshown(record.dir, id.0, record.home);
        let what = CountWhat::Share(CountShare { dir, partition: 0 });
        let count = Count { from: id.0, to: id.0, what };
        let gone = ask(core, count).await.is_some_and(|found| found.layout.is_none());
        if gone {
            is_counted(core, id, QuotaState::Gone).await;
        }
    }
}

/// Walks the tree below `top`; returns whether all of it could be done.
async fn walk(core: &Core, top: DirRef, border: Border) -> bool {
    // With several servers each answer waits for a sync; on a single server more at once would only
    // hold up other requests.
    let at_once = if core.inner.shared.cluster.is_some() { DIRS_AT_ONCE } else { 1 };
    let (mut dirs, mut under_way) = (vec![top], FuturesUnordered::new());
    loop {
        while under_way.len() < at_once
            && let Some(dir) = dirs.pop()
        {
            under_way.push(directory(core, dir, border));
        }
        match under_way.next().await {
            Some(Some(found)) => dirs.extend(found),
            Some(None) => return false,
            None => return true,
        }
    }
}

/// Walks all partitions of a directory, and returns the directories in it.
async fn directory(core: &Core, dir: DirRef, border: Border) -> Option<Vec<DirRef>> {
    let (mut found, mut known) = (Vec::new(), HashSet::default());
    let mut before: Option<BTreeMap<u16, Layout>> = None;
    loop {
        let shares = shares(core, dir, border).await?;
        // No name has come to a partition after the walk passed it.
        if before.as_ref() == Some(&shares) {
            return Some(found);
        }
        for partition in shares.keys() {
            let share = CountShare { dir, partition: *partition };
            let mut from = Some(Bytes::new());
            while let Some(page) = from {
                let names = CountNames { share: share.clone(), from: page };
                let page = ask(core, border.of(CountWhat::Names(names))).await?;
                found.extend(page.dirs.into_iter().filter(|dir| known.insert(dir.ino)));
                slots(core, page.slots, border).await?;
                from = page.next;
            }
        }
        if shares.len() < 2 && core.inner.shared.cluster.is_none() {
            return Some(found);
        }
        before = Some(shares);
    }
}

/// Charges the shares of a directory, and returns their layouts by partition. `None` if the
/// directory is gone or counts for another root.
async fn shares(core: &Core, dir: DirRef, border: Border) -> Option<BTreeMap<u16, Layout>> {
    let mut shares = BTreeMap::new();
    let (mut asked, mut next) = (HashSet::default(), vec![0]);
    while let Some(partition) = next.pop() {
        if !asked.insert(partition) {
            continue;
        }
        let share = CountShare { dir, partition };
        let counted = ask(core, border.of(CountWhat::Share(share))).await?;
        if counted.is_root {
            inner_root(core, QuotaId(dir.ino), border).await;
        }
        if let Some(layout) = counted.layout {
            next.extend(layout.active());
            shares.insert(partition, layout);
        }
    }
    Some(shares)
}

/// Lets a root below count for the other root. What is charged to the root itself stays.
async fn inner_root(core: &Core, id: QuotaId, border: Border) {
    core.step(move |txn| counts_for(txn, id, border.from, border.to)).await;
}

/// Charges inodes in slots of other servers.
async fn slots(core: &Core, slots: Vec<Ino>, border: Border) -> Option<()> {
    let mut by_server = BTreeMap::<Option<u16>, Vec<Ino>>::new();
    for ino in slots {
        let map = core.inner.shared.map();
        by_server.entry(map.server_of(ino.shard())).or_default().push(ino);
    }
    for inos in by_server.into_values() {
        ask(core, border.of(CountWhat::Slots(inos))).await?;
    }
    Some(())
}

impl Border {
    fn of(self, what: CountWhat) -> Count {
        Count { from: self.from.0, to: self.to.0, what }
    }
}

/// Has the server of a part do it; `None` if it cannot.
async fn ask(core: &Core, count: Count) -> Option<Counted> {
    let shared = &core.inner.shared;
    let mut tries = 0;
    loop {
        let shard = match &count.what {
            CountWhat::Share(share) | CountWhat::Names(CountNames { share, .. }) => {
                shared.config.placement().shard_of(share.dir.home, share.partition)
            }
            CountWhat::Slots(inos) => inos.first()?.shard(),
        };
        let elsewhere = match &shared.cluster {
            Some(cluster) => cluster.map().server_of(shard).filter(|server| *server != cluster.me),
            None => None,
        };
        let Some(server) = elsewhere else {
            let here = count.clone();
            let counted = core.step(move |txn| part::run(txn, &here)).await;
            tries += 1;
            if counted.is_some() || shared.cluster.is_none() || tries == TRIES_MAX {
                return counted;
            }
            sleep(AGAIN_PAUSE).await;
            continue;
        };
        match core.inner.peers.ask(server, &Request::Count(count.clone())).await {
            Ok(Reply::Counted(counted)) => return Some(counted),
            Err(Unanswered::Lost) => sleep(AGAIN_PAUSE).await,
            Ok(_) | Err(Unanswered::Failed(_)) => return None,
        }
    }
}

/// Lets a root count for another parent root.
fn counts_for(txn: &mut Txn<'_>, id: QuotaId, from: QuotaId, to: QuotaId) -> Result<()> {
    change_root(txn, id, |record| {
        (record.parent == from.0).then_some(QuotaRecord { parent: to.0, ..record })
    })
}

/// Ends a walk: from now on the limits are enforced, or the root is gone.
fn counted(txn: &mut Txn<'_>, id: QuotaId, state: QuotaState) -> Result<()> {
    // Charges of other servers to a root that is gone do not count above it, so those of this
    // server must not either.
    let ends = txn.shared.cluster.is_some() && state == QuotaState::Gone;
    change_root(txn, id, |record| {
        let parent = if ends { Ino(0) } else { record.parent };
        (record.state != QuotaState::Gone).then_some(QuotaRecord { state, parent, ..record })
    })
}

fn change_root(
    txn: &mut Txn<'_>,
    id: QuotaId,
    change: impl FnOnce(QuotaRecord) -> Option<QuotaRecord>,
) -> Result<()> {
    let quotas = &txn.shared.quotas;
    let Some(root) = quotas.get(id) else { return Ok(()) };
    // Race: another core may be changing the root's limits.
    txn.lock(lock::dir_lock(root.record.dir))?;
    if let Some(record) = quotas.get(id).and_then(|seen| change(seen.record)) {
        txn.put_quota(id, &record);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wire::{DumpStage, DumpStep};

    use super::*;
    use crate::{coordinator::tests::several::in_cluster, dump};

    #[test]
    fn no_walk_ends_between_the_moments_of_two_servers_of_a_dump() {
        in_cluster(async |three| {
            let core = &three.node(0).core;
            let take = async |stage| {
                let step = DumpStep { dump: 7, stage };
                dump::pause::step(&core.inner.shared, step).await.unwrap();
            };
            take(DumpStage::Gather).await;
            take(DumpStage::Pause).await;
            let ends = is_counted(core, QuotaId(Ino::new(base::ShardId(0), 9)), QuotaState::Gone);
            tokio::pin!(ends);
            for _ in 0..100 {
                assert!(futures::poll!(ends.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
            take(DumpStage::Resume).await;
            ends.await;
        });
    }
}
