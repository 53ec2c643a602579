//! Directories whose entries are here and whose content records are another server's.
//!
//! mkdir makes one, as a transaction with that server, and waits for no stable storage. The other
//! server stores the record, out of sight, and answers at once; the batch with the entry here is
//! the commit. Then the directory is *born*: everybody sees it as soon as the other server hears of
//! the commit. That is at once while few early mkdirs are under way, and otherwise when it asks,
//! because a request waits. Later the directory is *confirmed*: when the entry is stable, and the
//! directory confirmed that the entry is in. Until then everybody uses it, but whatever must be
//! stable inside it waits. So does every transaction over several servers that touches it
//! ([`Prepared::confirmed`], [`Prepared::take`]). So nothing stable ever hangs on an entry that was
//! lost.
//!
//! - *The entry is lost* with what this server has not synced: the other server asks, hears that
//!   nothing is known, and forgets the directory if nothing is in it; otherwise it puts the entry
//!   back where it was ([`orphaned`]).
//! - *The record is lost* with what the other server has not synced: when it starts it asks all
//!   servers what was born there, before it says of any directory that it does not exist
//!   ([`learn`]). An early mkdir that has not committed by then never does. The entry stays as it
//!   is until it is confirmed, so nobody removes a directory that comes back.
//! - *The id was another directory's*, whose removal the other server loses: it votes when the removal
//!   is stable ([`freed`]).
//!
//! Always true: an entry is committed here only while the record that was prepared for it is
//! stored, or while its server must ask for it before it answers anybody about it.

pub(crate) mod freed;
mod here;
pub(crate) mod news;
mod orphaned;
pub(crate) mod table;
mod tell;

use bytes::Bytes;
use wire::{Expected, PeerWrite, Prepare, TxnId};

use super::{Child, locks::Prepared};
use crate::{
    bugs::Bug,
    record::{Key, key},
    txn::{Txn, remote::Plan},
};

pub(super) use here::{end, store};
pub(super) use orphaned::orphaned;
pub(super) use tell::{hurry, learn, tell};

/// The content record that a transaction makes at a server, if it does nothing else there.
pub(super) fn made<'a>(
    expects: &'a [Expected],
    writes: &'a [PeerWrite],
) -> Option<(&'a Bytes, &'a Bytes)> {
    let ([expected], [PeerWrite::Put((at, content))]) = (expects, writes) else { return None };
    let is_early_mkdir = expected.was.is_none() && expected.key == *at && key::is_content(at);
    is_early_mkdir.then_some((at, content))
}

/// The directory that a plan makes, and its server, if the plan is an early mkdir.
pub(super) fn planned(plan: &Plan) -> Option<(u16, Child)> {
    let (server, part) = plan.first_key_value().filter(|_| plan.len() == 1)?;
    let (key, content) = made(&part.expects, &part.writes)?;
    let name = Bytes::new();
    Some((*server, Child { name, key: key.clone(), content: content.clone() }))
}

/// Whether a vote for a directory must wait for stable storage: its id was that of another directory,
/// and the removal of that one may still be lost.
pub(crate) fn stands_on_a_removal(txn: &Txn<'_>, prepare: &Prepare) -> bool {
    let Some((at, _)) = made(&prepare.expects, &prepare.writes) else { return false };
    let is_unstable = txn.shared.early_mkdirs.freed.has(at) || txn.group_frees(at);
    prepare.early_mkdir && is_unstable && !txn.shared.bugs.has(Bug::RemovalNotAwaited)
}

/// Commits an early mkdir whose entry is about to be written. The entry stays as it is until the
/// directory is confirmed. `None`: not now.
pub(super) fn commit(txn: &Txn<'_>, early_mkdir: TxnId) -> Option<Child> {
    let entry = txn.written().into_iter().find(|key| key::is_entry(key))?;
    let prepared = &txn.shared.prepared;
    if !prepared.take_entry(early_mkdir, entry.clone()) {
        return None;
    }
    let child = txn.shared.early_mkdirs.commit(early_mkdir, &entry);
    if child.is_none() {
        prepared.free(early_mkdir);
    }
    child
}

/// Holds the keys again that were held for early mkdirs before this start.
pub(super) fn hold(prepared: &Prepared, txn: TxnId, child: &Child) {
    let taken = prepared.take_entry(txn, Key::from_slice(&child.name));
    assert!(taken, "what was held together is held together again");
}
