//! Counting what is below a directory that gets a quota, and releasing what was below one that
//! loses it.
//!
//! The count is a walk in small transactions, each over a page of one directory, while the file
//! system is in use. It charges what it finds to the new root, directories before their contents:
//! so whatever is made meanwhile is charged correctly at once, and nothing is missed. Directories
//! that would cross the border of the root wait for the end of the walk. So do directories that the
//! walk has not met yet and that are renamed within their parent. A file with several names is
//! charged where it gets one (see `ops::rename`, `ops::link`). After a crash the walk begins anew
//! and finds most of the work done. It skips what it finds done together with all below it, so
//! directories that would be renamed anywhere below the root wait then.
//!
//! With several servers the coordinator walks. Each page is done by the server that has it, which
//! charges it and answers when that is stable, so no page is a transaction over several servers.
//! The walk begins when all servers have received the root, or may not serve. Where names moved to
//! another partition meanwhile, the directory is walked again.
//!
//! Race: a file whose slot is on another server than its name is changed a moment after it was
//! found. If it is renamed out of the tree in that moment it counts where it was found.

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

use base::{EntryName, HashSet, Ino, Layout, placement::shard_of};
use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};
use wire::{Count, CountNames, CountShare, CountWhat, Counted, DirRef, Reply, Request};

use crate::{
    Core,
    error::{Fault, Result},
    lock,
    peer::Unanswered,
    record::{
        EntryRecord, Inode, Key, QuotaId, QuotaRecord, QuotaState, Record as _, Slot, Usage, key,
        key::{Part, UsagePart},
    },
    room::Level,
    server::Shared,
    txn::{Dir, Txn, unshown},
};

/// Number of records of a directory that one step takes.
const RECORDS_A_STEP: usize = 256;
/// Number of directories that are walked at once with several servers.
const DIRS_AT_ONCE: usize = 16;
/// Pause before a part that failed is tried again. A part of this server is tried [`TRIES_MAX`]
/// times, a part of a server that is away without end.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
const TRIES_MAX: u32 = 50;
/// With several servers, pause before a failed walk begins anew, and between searches for roots
/// that are gone.
const PERIOD: Duration = Duration::from_secs(30);

/// The two roots of a walk: records charged to `from` are charged to `to` from now on.
#[derive(Debug, Clone, Copy)]
struct Border {
    from: QuotaId,
    to: QuotaId,
}

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
    if !walk(core, top, border).await {
        core.inner.shared.quotas.counts_again(id);
        tracing::error!(root = %record.dir, "a quota could not be counted; run `pando fsck`");
        return;
    }
    // Roots below count elsewhere now, and all servers must know.
    all_have_heard(core).await;
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
        shared.room.until(Level::Low).await;
        let _under_way = shared.pauses.transaction().await;
        // Waiting for room while others wait for the end of this would hold them up.
        if shared.room.has(Level::Low).is_ok() {
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
                shard_of(share.dir.home, share.partition, shared.config.shards)
            }
            CountWhat::Slots(inos) => inos.first()?.shard(),
        };
        let elsewhere = match &shared.cluster {
            Some(cluster) => cluster.map().server_of(shard).filter(|server| *server != cluster.me),
            None => None,
        };
        let Some(server) = elsewhere else {
            let here = count.clone();
            let counted = core.step(move |txn| part(txn, &here)).await;
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

/// Does a part on this server.
pub(crate) fn part(txn: &mut Txn<'_>, count: &Count) -> Result<Counted> {
    let border = Border { from: QuotaId(count.from), to: QuotaId(count.to) };
    match &count.what {
        CountWhat::Share(share) => self::share(txn, border, share),
        CountWhat::Names(names) => self::names(txn, border, names),
        CountWhat::Slots(inos) => {
            for ino in inos {
                slot(txn, border, *ino)?;
            }
            Ok(Counted::default())
        }
    }
}

/// The share of a request, locked; `None` if it is gone.
fn locked(txn: &mut Txn<'_>, share: &CountShare) -> Result<Option<Dir>> {
    let CountShare { dir: DirRef { id, home, ino, .. }, partition } = *share;
    txn.lock(lock::dir_lock(id))?;
    let key = txn.share_key(home, id, partition);
    if !txn.has_shard(key::shard_of(&key)) {
        return Err(Fault::Retry(wire::Retry::Busy));
    }
    let content = txn.get_content(&key)?;
    let shard = key::shard_of(&key);
    if content.is_none() && txn.may_be_born(shard, ino) {
        return Err(txn.no_dir(shard, ino));
    }
    Ok(content.filter(|content| content.ino == ino).map(|content| Dir { id, partition, content }))
}

fn share(txn: &mut Txn<'_>, border: Border, share: &CountShare) -> Result<Counted> {
    let Some(mut dir) = locked(txn, share)? else { return Ok(Counted::default()) };
    // A lost entry takes its charge with it, so the directory must be confirmed first.
    txn.settle_birth(&dir)?;
    let quota = dir.content.quota;
    if quota != border.from && quota != border.to {
        // The directory may also have been moved away after it was found.
        let is_root = quota == QuotaId(dir.content.ino);
        return Ok(Counted { is_root, ..Counted::default() });
    }
    if quota == border.from && border.from != border.to {
        if dir.partition == 0 {
            txn.recharge_freely(border.from, border.to, Usage::of(1, 0));
        }
        dir.content.quota = border.to;
        txn.put_dir(&dir);
    }
    Ok(Counted { layout: Some(dir.content.layout), ..Counted::default() })
}

fn names(txn: &mut Txn<'_>, border: Border, names: &CountNames) -> Result<Counted> {
    let mut counted = Counted::default();
    let Some(dir) = locked(txn, &names.share)? else { return Ok(counted) };
    if dir.content.quota != border.to || !dir.content.is_live() {
        return Ok(counted);
    }
    let all = key::names(txn.shard_of_share(&dir), dir.id);
    let start = match names.from.starts_with(&all) {
        true => Key::from_slice(&names.from),
        false => all.clone(),
    };
    let mut records: Vec<(Key, Bytes)> = Vec::new();
    txn.scan(&start, &key::end_of(&all), &mut |key, value| {
        records.push((Key::from_slice(key), Bytes::copy_from_slice(value)));
        let more = records.len() < RECORDS_A_STEP;
        if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if records.len() == RECORDS_A_STEP {
        counted.next = records.last().map(|(key, _)| [&key[..], &[0]].concat().into());
    }
    for (key, value) in records {
        let Some((pos, name, part)) = key::parse_name(&key) else { continue };
        // Names that have not arrived yet, or have left and are not swept yet, are the other
        // partition's.
        let is_its = dir.content.layout.partition(pos) == dir.partition;
        if is_its && part == Part::Main as u8 && EntryName::new(name).is_ok() {
            one_entry(txn, border, key, &EntryRecord::from_record(&value)?, &mut counted)?;
        }
    }
    Ok(counted)
}

/// Charges the inode of an entry. Directories, and inodes in slots of other servers, are noted in
/// `counted`.
fn one_entry(
    txn: &mut Txn<'_>,
    border: Border,
    key: Key,
    entry: &EntryRecord,
    counted: &mut Counted,
) -> Result<()> {
    match entry {
        EntryRecord::Dir(access) => {
            counted.dirs.push(unshown(access.id, access.ino, access.home));
        }
        EntryRecord::Node(inode) => {
            txn.lock(lock::ino_lock(inode.ino))?;
            // Race: a writer locks only the inode, and may just have changed it.
            if let Some(EntryRecord::Node(mut inode)) = txn.get(&key)?
                && moves(txn, border, &mut inode)
            {
                txn.put(key, &EntryRecord::Node(inode));
            }
        }
        // A file with several names counts where it was made, or where it is found first.
        EntryRecord::Link(ino) if txn.has_shard(ino.shard()) => slot(txn, border, *ino)?,
        EntryRecord::Link(ino) => counted.slots.push(*ino),
    }
    Ok(())
}

fn slot(txn: &mut Txn<'_>, border: Border, ino: Ino) -> Result<()> {
    txn.lock(lock::ino_lock(ino))?;
    let key = key::inode(ino, Part::Main);
    if let Some(Slot::Inode(mut inode)) = txn.get(&key)?
        && moves(txn, border, &mut inode)
    {
        txn.put(key, &Slot::Inode(inode));
    }
    Ok(())
}

/// Charges what an inode uses to the other root; `false` if it was not charged to `from`.
fn moves(txn: &mut Txn<'_>, border: Border, inode: &mut Inode) -> bool {
    let moves = inode.quota == border.from;
    if moves {
        txn.count_freely_for(inode, border.to);
    }
    moves
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
