//! What a handoff does within groups of a core, among the requests around it.
//!
//! [`give`](super::give) and [`finish`](super::finish) have these executed one after the other.
//! Each is a small transaction, which may be run again before its group is written.

use std::{cell::Cell, ops::ControlFlow, rc::Rc};

use base::{EntryName, Ino, Layout, Moving};
use bytes::Bytes;
use tokio::time::Instant;
use wire::{HandoffBegin, HandoffPut, LayoutLearnt, Tally, TxnId};

use super::{HandoffRecord, table::Partition, take, target};
use crate::{
    bugs::Bug,
    error::{Fault, Result},
    lock,
    record::{EntryRecord, Inode, Key, Location, Record as _, key},
    server::{Counters, Shared},
    txn::{Located, Place, Txn},
};

/// The inodes of so many names are taken out of them by one step.
pub(super) const NAMES_A_STEP: usize = 256;
/// So many names are looked at by one that removes.
const LOOKED_AT: usize = 4096;
/// What is in so many rows at most is removed as ranges, which cost one write each. Each is a
/// little in the way of reads until the store has merged it, and what a subset gives is in as many
/// rows as names.
const RANGES_MAX: usize = 4;

/// What can be done.
pub(crate) enum Act {
    /// Remember which of the names that are about to move change.
    Watch(TxnId, Partition, Moving),
    /// Take the inodes out of names, so that these can move; whose they were when the names were
    /// read.
    Detach(TxnId, Partition, Vec<(Key, Ino)>),
    /// Let nobody change the moving names, and until then keep others off who would, for so long;
    /// whether that is so.
    Freeze { txn: TxnId, of: Partition, moving: Moving, until: Instant, frozen: Rc<Cell<bool>> },
    /// Be the target, of a source on this server.
    Begin(HandoffBegin, Rc<Cell<Option<Tally>>>),
    /// As [`Act::Begin`].
    Put(HandoffPut, Rc<Cell<Option<Tally>>>),
    /// Be the master, of a source on this server.
    Learn(LayoutLearnt),
    /// A handoff into this partition did not happen.
    Abandon(Partition, TxnId),
    /// The master knows the layout after a handoff from this partition.
    Told(Partition),
    /// Remove names that the partition does not have, from here on; where to go on.
    Sweep(Partition, Key, Rc<Cell<Option<Key>>>),
}

impl Act {
    /// The transaction that it is a part of: what that holds is not in its way.
    pub(crate) fn part_of(&self) -> Option<TxnId> {
        match self {
            Act::Detach(txn, ..) => Some(*txn),
            Act::Watch(..)
            | Act::Freeze { .. }
            | Act::Begin(..)
            | Act::Put(..)
            | Act::Learn(_)
            | Act::Abandon(..)
            | Act::Told(_)
            | Act::Sweep(..) => None,
        }
    }

    /// Does it.
    pub(crate) fn execute(&self, txn: &mut Txn<'_>) -> Result<()> {
        match self {
            Act::Watch(id, of, moving) => {
                txn.lock(lock::dir_lock(of.dir))?;
                nothing_unwritten(txn, *of)?;
                txn.shared.handoffs.watch(*id, *of, *moving);
                Ok(())
            }
            Act::Detach(_, of, names) => detach(txn, *of, names),
            Act::Freeze { txn: id, of, moving, until, frozen } => {
                txn.lock(lock::dir_lock(of.dir))?;
                nothing_unwritten(txn, *of)?;
                let prepared = &txn.shared.prepared;
                let freeze = || prepared.freeze(*id, of.share(), *moving, *until);
                frozen.set(txn.shared.bugs.has(Bug::NotFrozen) || freeze());
                if !frozen.get() {
                    // What is in the way may be entries of directories that could be confirmed.
                    txn.shared.births.hurry();
                }
                Ok(())
            }
            Act::Begin(req, taken) => take::begin(txn, req).map(|tally| taken.set(tally)),
            Act::Put(req, taken) => take::put(txn, req).map(|tally| taken.set(tally)),
            Act::Learn(req) => take::learn(txn, req).map(drop),
            Act::Abandon(of, id) => abandon(txn, *of, *id),
            Act::Told(of) => told(txn, *of),
            Act::Sweep(of, from, next) => sweep(txn, *of, from).map(|at| next.set(at)),
        }
    }
}

/// Has the group written what it has changed of a directory's names.
fn nothing_unwritten(txn: &Txn<'_>, of: Partition) -> Result<()> {
    let names = key::names(of.shard, of.dir);
    if txn.has_unwritten(&names, &key::end_of(&names)) { Err(Fault::WriteFirst) } else { Ok(()) }
}

/// Takes the inodes of files out of their names: they go to their slots, which is where they stay.
fn detach(txn: &mut Txn<'_>, of: Partition, names: &[(Key, Ino)]) -> Result<()> {
    txn.lock(lock::dir_lock(of.dir))?;
    let Some(share) = txn.get_content(&of.share())? else { return Ok(()) };
    // Everything is read before anything is written: what an operation has written, each of its
    // reads looks through.
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

/// The key of a name, and whose inode is in it, if one is.
pub(crate) fn inode_in(at: &Key, value: &Bytes) -> Option<(Key, Ino)> {
    match EntryRecord::from_record(value) {
        Ok(EntryRecord::Node(inode)) if key::is_entry(at) => Some((at.clone(), inode.ino)),
        Ok(EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_)) | Err(_) => None,
    }
}

/// The inode in a name, which is locked. It is `seen` unless another file has got the name since
/// that was read.
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

fn abandon(txn: &mut Txn<'_>, of: Partition, id: TxnId) -> Result<()> {
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

/// A handoff into this server will not happen, as its source says.
pub(crate) fn given_up(txn: &mut Txn<'_>, id: TxnId) -> Result<()> {
    match txn.shared.handoffs.is_given_up(id) {
        Some(of) => abandon(txn, of, id),
        None => Ok(()),
    }
}

fn told(txn: &mut Txn<'_>, of: Partition) -> Result<()> {
    txn.lock(lock::dir_lock(of.dir))?;
    let at = of.handoff();
    let Some(sweeps) = txn.get::<HandoffRecord>(&at)?.as_ref().and_then(target::told) else {
        return Ok(());
    };
    if txn.get_content(&of.share())?.is_some_and(|share| !share.is_live()) {
        // Who comes here now is sent to the master, which knows.
        txn.delete(of.share());
    }
    txn.put(at, &sweeps);
    Ok(())
}

/// Race: what the partition does not have nobody reads or changes, but for who looked at its layout
/// before that changed; and who misses a name then looks at the layout again.
fn sweep(txn: &mut Txn<'_>, of: Partition, from: &Key) -> Result<Option<Key>> {
    txn.lock(lock::dir_lock(of.dir))?;
    // What is removed as a range is what is stored there.
    nothing_unwritten(txn, of)?;
    let at = of.handoff();
    let Some(HandoffRecord::Sweeping(_)) = txn.get::<HandoffRecord>(&at)? else {
        return Ok(None);
    };
    // Whose ever it is: what it does not have nobody does.
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

/// The next names that a partition does not have, in rows between which nothing else is stored, and
/// where to go on.
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
                // All that it keeps is in one place.
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
