//! The target's side, and the master's: what other servers ask of this one.
//!
//! Each request is executed within a group, as an operation is, and may come twice or late.

use std::ops::ControlFlow;

use base::{DirId, HashMap, Layout, Moving};
use bytes::Bytes;
use tokio::time::Instant;
use wire::{HandoffBegin, HandoffPut, LayoutLearnt, Retry, Tally};

use super::{
    HandoffRecord, Receiving,
    table::{Partition, Received},
    target::{Taking, Target},
};
use crate::{
    error::{Fault, Result},
    lock,
    record::{EntryRecord, Key, Record as _, key},
    txn::{Txn, Unwritten},
};

/// Number of handoffs that a server receives at a time.
const RECEIVED_MAX: usize = 4;

/// Locks the directory of a partition that this server owns.
fn locked(txn: &mut Txn<'_>, home: DirId, dir: DirId, number: u16) -> Result<Partition> {
    let at = Partition::of(home, dir, number, txn.shared.config.placement());
    if !txn.has_shard(at.shard) {
        return Err(Fault::Retry(Retry::Busy));
    }
    txn.lock(lock::dir_lock(dir))?;
    Ok(at)
}

/// Begins to receive names. Returns `None` when this server cannot take them now.
pub(crate) fn begin(txn: &mut Txn<'_>, req: &HandoffBegin) -> Result<Option<Tally>> {
    if !txn.shared.space_guard.is_enough() {
        return Ok(None);
    }
    let target = locked(txn, req.home, req.dir, req.target)?;
    let at = target.handoff();
    if txn.settle_change(&at).is_err() {
        return Ok(None);
    }
    // Another directory may have had this id, or may have it now.
    let share = txn.get_content(&target.share())?;
    let fits = match &share {
        // A new partition takes names only from a lower number. Partitions that it gave names to
        // give them back only while it is there.
        None => req.target > req.source,
        // This may be a late duplicate of a message whose names have come.
        Some(share) => {
            let has = matches!(
                req.moving,
                Moving::Range((first, _)) if share.layout.partition(first) == req.target
            );
            share.ino == req.ino && !has
        }
    };
    if !fits {
        return Ok(None);
    }
    let record = txn.get::<HandoffRecord>(&at)?;
    let empty = record.is_none() && is_empty(txn, target, req.moving)?;
    let what = Receiving { txn: req.txn, ino: req.ino, source: req.source, moving: req.moving };
    let begun = txn.shared.handoffs.received(|received| {
        let before = received.get(&target);
        let is_free = before.is_some() || received.len() < RECEIVED_MAX;
        let before = before.map(|before| &before.state);
        let state = Target::begin(what, record.as_ref(), before, empty);
        let state = state.filter(|_| is_free)?;
        let record = state.record();
        received.insert(target, Received { state, heard: Instant::now(), is_over: false });
        Some(record)
    });
    let Some(record) = begun else { return Ok(None) };
    txn.put(at, &record);
    Ok(Some(Tally::default()))
}

/// Whether nothing is stored in the range that the names come to. Names of a subset come to many
/// places, which are not looked at: then `false`.
fn is_empty(txn: &Txn<'_>, target: Partition, moving: Moving) -> Result<bool> {
    let Moving::Range((first, last)) = moving else { return Ok(false) };
    let from = key::names_from(target.shard, target.dir, first);
    let to = key::names_to(target.shard, target.dir, last);
    if txn.has_unwritten(&from, &to) {
        return Err(Unwritten.into());
    }
    let mut empty = true;
    txn.shared.engine.scan(&from, &to, &mut |_, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

/// Takes names, or changes of names. Returns `None` when this server does not know the handoff, or
/// has no room for more.
pub(crate) fn put(txn: &mut Txn<'_>, req: &HandoffPut) -> Result<Option<Tally>> {
    if !txn.shared.space_guard.is_enough() {
        return Ok(None);
    }
    let target = locked(txn, req.home, req.dir, req.target)?;
    let at = target.handoff();
    if txn.settle_change(&at).is_err() {
        return Ok(None);
    }
    let moving = match txn.get::<HandoffRecord>(&at)? {
        Some(HandoffRecord::Receiving(what)) if what.txn == req.txn => what.moving,
        Some(_) | None => return Ok(None),
    };
    let names = key::names(target.shard, target.dir);
    let moves = |key: &Bytes| {
        let pos = key::parse_moving(key);
        key.starts_with(&names) && pos.is_some_and(|pos| moving.contains(pos))
    };
    if !req.changes.iter().all(|(key, _)| moves(key)) {
        return Err(Fault::Refused("these names do not move".into()));
    }
    let new = txn.shared.handoffs.received(|received| {
        received.get(&target).is_some_and(|received| received.state.are_new(&req.changes))
    });
    let mut was: HashMap<&[u8], Option<Bytes>> = HashMap::default();
    if !new {
        for (key, _) in &req.changes {
            txn.settle_change(key)?;
            was.insert(key, txn.get_bytes(key)?);
        }
    } else if let Some(((first, _), (last, _))) = req.changes.first().zip(req.changes.last())
        && let Some(txn) = txn.shared.prepared.holds(first, last)
    {
        return Err(txn.into());
    }
    let taking = txn.shared.handoffs.received(|received| {
        let received = received.get_mut(&target)?;
        if received.state.what.txn != req.txn {
            return None;
        }
        received.heard = Instant::now();
        let before = |key: &[u8]| was.get(key).cloned().flatten();
        Some(received.state.put(req.number, &req.changes, before, weigh))
    });
    match taking {
        Some(Taking::Store(tally)) => {
            let puts =
                req.changes.iter().map(|(key, value)| (Key::from_slice(key), value.as_deref()));
            if new {
                txn.put_run(puts.filter_map(|(key, value)| Some((key, value?))));
                return Ok(Some(tally));
            }
            for (key, value) in puts {
                match value {
                    Some(value) => txn.put_stored(key, value),
                    None => txn.delete(key),
                }
            }
            Ok(Some(tally))
        }
        Some(Taking::Again(tally)) => Ok(Some(tally)),
        Some(Taking::Refuse) | None => Ok(None),
    }
}

/// Counts what one record adds: an entry, a subdirectory.
fn weigh(key: &[u8], value: &Bytes) -> Tally {
    let is_entry = key::is_entry(key);
    let is_dir = || matches!(EntryRecord::from_record(value), Ok(EntryRecord::Dir(_)));
    Tally { entries: u64::from(is_entry), subdirs: u64::from(is_entry && is_dir()) }
}

/// A partition learns how its directory is divided, answers with the layout it knows, and looks
/// whether it has names to give.
pub(crate) fn learn(txn: &mut Txn<'_>, req: &LayoutLearnt) -> Result<Layout> {
    let at = locked(txn, req.home, req.dir, req.partition)?;
    let Some(mut share) = txn.get_content(&at.share())?.filter(|share| share.ino == req.ino) else {
        return Ok(Layout::Whole);
    };
    if share.layout.learn(&req.layout) {
        txn.settle_change(&at.share())?;
        txn.put_content(at.share(), share.clone());
    }
    if at.number == 0 && is_stepping(&share.layout) {
        // During a step a master looks when the last source has told it, and until then only now
        // and then.
        txn.shared.handoffs.want(std::iter::once(at.share()));
    } else {
        txn.shared.handoffs.again(at);
    }
    Ok(share.layout)
}

/// Whether a directory is on the way to another number of subsets.
fn is_stepping(layout: &Layout) -> bool {
    matches!(layout, Layout::Subsets(subsets) if !subsets.is_settled())
}
