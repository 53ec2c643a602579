//! The steps of a handoff that a core executes within its groups, among the requests.
//!
//! [`give`](super::give) and [`finish`](super::finish) have these steps executed one after the
//! other. Each is a small transaction, which may be run again before its group is written.

use std::ops::ControlFlow;

use base::{EntryName, Ino, Layout, Moving};
use bytes::Bytes;
use tokio::time::Instant;
use wire::TxnId;

use super::{HandoffRecord, table::Partition, target};
use crate::{
    bugs::Bug,
    error::Result,
    lock,
    record::{EntryRecord, Inode, Key, Location, Record as _, key},
    server::{Counters, Shared},
    transact::doubt,
    txn::{Located, Place, Txn, Unwritten},
};

/// Number of names whose inodes one step takes out.
pub(super) const NAMES_A_STEP: usize = 256;
/// Number of names that one step of a sweep looks at.
const LOOKED_AT: usize = 4096;
/// A sweep that finds at most so many rows of names removes them as ranges, at one write each. Each
/// range slows reads a little until the store has merged it, and a subset that gives away leaves as
/// many rows as names.
const RANGES_MAX: usize = 4;

/// Remembers which of the names that are about to move change.
pub(super) fn watch(txn: &mut Txn<'_>, id: TxnId, of: Partition, moving: Moving) -> Result<()> {
    txn.lock(lock::dir_lock(of.dir))?;
    nothing_unwritten(txn, of)?;
    txn.shared.handoffs.watch(id, of, moving);
    Ok(())
}

/// Freezes the moving names. Where that fails, new writers are kept off until `until`. Returns
/// whether the names are frozen.
pub(super) fn freeze(
    txn: &mut Txn<'_>,
    id: TxnId,
    (of, moving): (Partition, Moving),
    until: Instant,
) -> Result<bool> {
    txn.lock(lock::dir_lock(of.dir))?;
    nothing_unwritten(txn, of)?;
    let freeze = || txn.shared.prepared.freeze(id, of.share(), moving, until);
    let frozen = txn.shared.bugs.has(Bug::NotFrozen) || freeze();
    if !frozen {
        // Entries of new directories that could be confirmed may hold the names.
        doubt::expedite_entries(txn.shared);
    }
    Ok(frozen)
}

/// Asks for the group to be written first, if it has unwritten changes of the directory's names.
fn nothing_unwritten(txn: &Txn<'_>, of: Partition) -> Result<()> {
    let names = key::names(of.shard, of.dir);
    if txn.has_unwritten(&names, &key::end_of(&names)) { Err(Unwritten.into()) } else { Ok(()) }
}

/// Takes the inodes of files out of their names, into their slots, where they stay, so that the
/// names can move. Each name comes with the inode number that it had when it was read.
pub(crate) fn detach(txn: &mut Txn<'_>, of: Partition, names: &[(Key, Ino)]) -> Result<()> {
    txn.lock(lock::dir_lock(of.dir))?;
    let Some(share) = txn.get_content(&of.share())? else { return Ok(()) };
    // All reads come before all writes: each read of an operation looks through what the operation
    // has written.
    let mut found = Vec::with_capacity(names.len());
    for (at, ino) in names {
        let inode = inode_of(txn, at, *ino)?;
        let name = key::parse_name(at).and_then(|(_, name, _)| EntryName::new(name).ok());
        found.extend(inode.zip(name).map(|(inode, name)| (at, inode, name)));
    }
    for (at, inode, name) in found {
        let location = Location { dir: of.dir, home: share.home, name };
        let ino = inode.ino;
        let mut located = Located { place: Place::Entry(location, of.shard), inode };
        txn.move_inode(&mut located, Place::Slot)?;
        txn.put(at.clone(), &EntryRecord::Link(ino));
        Counters::add(&txn.shared.counters.handoff_inodes_left);
    }
    Ok(())
}

/// Returns the key of a name and the number of the inode embedded in it, if there is one.
pub(crate) fn inode_in(at: &Key, value: &Bytes) -> Option<(Key, Ino)> {
    match EntryRecord::from_record(value) {
        Ok(EntryRecord::Node(inode)) if key::is_entry(at) => Some((at.clone(), inode.ino)),
        Ok(EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_)) | Err(_) => None,
    }
}

/// Locks and returns the inode embedded in a name. Its number is `seen`, unless another file has
/// got the name since that was read.
fn inode_of(txn: &mut Txn<'_>, at: &Key, mut seen: Ino) -> Result<Option<Inode>> {
    loop {
        txn.lock(lock::ino_lock(seen))?;
        match txn.get(at)? {
            Some(EntryRecord::Node(inode)) if inode.ino == seen => return Ok(Some(inode)),
            Some(EntryRecord::Node(other)) => seen = other.ino,
            Some(EntryRecord::Dir(_) | EntryRecord::Link(_)) | None => return Ok(None),
        }
    }
}

/// Notes that a handoff into this partition did not happen.
pub(super) fn abandon(txn: &mut Txn<'_>, of: Partition, id: TxnId) -> Result<()> {
    txn.lock(lock::dir_lock(of.dir))?;
    let at = of.handoff();
    txn.settle_change(&at)?;
    let record = txn.get::<HandoffRecord>(&at)?;
    let ours =
        |record: &HandoffRecord| matches!(record, HandoffRecord::Receiving(what) if what.txn == id);
    if let Some(sweeps) = record.filter(ours).as_ref().and_then(target::abandoned) {
        txn.put(at, &sweeps);
    }
    Ok(())
}

/// The source says that a handoff into this server will not happen.
pub(crate) fn given_up(txn: &mut Txn<'_>, id: TxnId) -> Result<()> {
    match txn.shared.handoffs.is_given_up(id) {
        Some(of) => abandon(txn, of, id),
        None => Ok(()),
    }
}

/// Notes that the master knows the layout after a handoff from this partition.
pub(crate) fn told(txn: &mut Txn<'_>, of: Partition) -> Result<()> {
    txn.lock(lock::dir_lock(of.dir))?;
    let at = of.handoff();
    let Some(sweeps) = txn.get::<HandoffRecord>(&at)?.as_ref().and_then(target::told) else {
        return Ok(());
    };
    if txn.get_content(&of.share())?.is_some_and(|share| !share.is_live()) {
        // Requests that come here from now on are sent to the master, which knows the layout.
        txn.delete(of.share());
    }
    txn.put(at, &sweeps);
    Ok(())
}

/// Removes names that the partition does not own, from this key on. Returns the key to go on at.
///
/// Race: only a request that looked at the layout before the switch still reads names that the
/// partition does not own. A request that misses a name looks at the layout again.
pub(crate) fn sweep(txn: &mut Txn<'_>, of: Partition, from: &Key) -> Result<Option<Key>> {
    txn.lock(lock::dir_lock(of.dir))?;
    // A range is found by a scan of the store, so unwritten names must be written first.
    nothing_unwritten(txn, of)?;
    let at = of.handoff();
    let Some(HandoffRecord::Sweeping(_)) = txn.get::<HandoffRecord>(&at)? else {
        return Ok(None);
    };
    // The layout may be that of a later directory with the same id. Names that its partition does
    // not own belong to no directory.
    let layout = txn.get_content(&of.share())?.map(|share| share.layout);
    let careless = txn.shared.bugs.has(Bug::OwnedSwept);
    let layout = layout.filter(|_| !careless);
    let (runs, next) = junk(txn.shared, of, layout.as_ref(), from)?;
    if runs.len() <= RANGES_MAX {
        runs.into_iter().for_each(|run| txn.delete_run(run));
    } else {
        runs.into_iter().flatten().for_each(|key| txn.delete(key));
    }
    if next.is_none() {
        txn.delete(at);
    }
    Ok(next)
}

/// Finds the next names that a partition does not own, and the key to go on at. The names come in
/// rows: nothing else is stored between the names of one row.
fn junk(
    shared: &Shared,
    of: Partition,
    layout: Option<&Layout>,
    from: &Key,
) -> Result<(Vec<Vec<Key>>, Option<Key>)> {
    let end = key::end_of(&key::names(of.shard, of.dir));
    let (mut from, mut seen, mut runs) = (from.clone(), 0, vec![Vec::new()]);
    loop {
        let (mut next, mut is_full) = (None, false);
        shared.engine.scan(&from, &end, &mut |key, _| {
            is_full = seen == LOOKED_AT;
            if is_full {
                next = Some(Key::from_slice(key));
                return ControlFlow::Break(());
            }
            seen += 1;
            let pos = key::parse_moving(key);
            let keeps = |pos: u64| layout.filter(|layout| layout.partition(pos) == of.number);
            if let (Some(pos), Some(run)) = (pos, runs.last_mut())
                && keeps(pos).is_none()
            {
                run.push(Key::from_slice(key));
                return ControlFlow::Continue(());
            }
            if runs.last().is_some_and(|run| !run.is_empty()) {
                runs.push(Vec::new());
            }
            if let Some(Layout::Extendible(splits)) = pos.and_then(keeps) {
                // All names that a partition by splits owns are in one range, which is skipped.
                let (_, last) = splits.range(of.number);
                next = Some(key::names_to(of.shard, of.dir, last));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        match next {
            Some(next) if !is_full => from = next,
            next => return Ok((runs, next)),
        }
    }
}
