//! Directories whose entries are here and whose content records are another server's.
//!
//! mkdir makes one, as a transaction with that server, and waits for no stable storage. The other
//! server stores the record, out of sight, and answers at once; the batch with the entry here is
//! the commit. Then the directory is *born*: everybody sees it as soon as the other server hears of
//! the commit. That is at once while few births are under way, and otherwise when it asks, because
//! a request waits. Later the directory is *confirmed*: when the entry is stable, and the directory
//! confirmed that the entry is in. Until then everybody uses it, but whatever must be stable inside
//! it waits. So does every transaction over several servers that touches it
//! ([`Prepared::confirmed`], [`Prepared::take`]). So nothing stable ever hangs on an entry that was
//! lost.
//!
//! - *The entry is lost* with what this server has not synced: the other server asks, hears that
//!   nothing is known, and forgets the directory if nothing is in it; otherwise it puts the entry
//!   back where it was ([`orphaned`]).
//! - *The record is lost* with what the other server has not synced: when it starts it asks all
//!   servers what was born there, before it says of any directory that it does not exist
//!   ([`learn`]). A birth that has not committed by then never does. The entry stays as it is until
//!   it is confirmed, so nobody removes a directory that comes back.
//!
//! Always true: an entry is committed here only while the record that was prepared for it is
//! stored, or while its server must ask for it before it answers anybody about it.

mod here;
mod tell;

use std::sync::atomic::{AtomicUsize, Ordering};

use base::{HashMap, HashSet};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use wire::{Birth, Expected, PeerWrite, TxnId};

use super::{Child, locks::Prepared};
use crate::{
    record::{Key, key},
    txn::{Txn, remote::Plan},
};

pub(super) use here::{end, orphaned, store};
pub(crate) use tell::Telling;
pub(super) use tell::{hurry, learn, tell};

/// The births that began here and are not over, and the servers that this one has not heard since
/// it started.
#[derive(Default)]
pub(crate) struct Births {
    table: Mutex<HashMap<TxnId, Begun>>,
    /// Number of times that a request has waited for one of these births.
    hurried: watch::Sender<u64>,
    /// Births begun by other servers that requests here wait for: those servers are told.
    wanted: Mutex<HashSet<TxnId>>,
    wants: Notify,
    unheard: Mutex<HashSet<u16>>,
    unheard_count: AtomicUsize,
}

struct Begun {
    server: u16,
    child: Child,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The content record is prepared at its server.
    Begun,
    /// The entry is in a batch that is about to be written.
    Committed,
    /// The entry is written.
    Written,
}

impl Births {
    /// Notes that none of `others` has been heard yet.
    pub(crate) fn hear_of(&self, others: impl Iterator<Item = u16>) {
        let mut unheard = self.unheard.lock();
        unheard.extend(others);
        self.unheard_count.store(unheard.len(), Ordering::Release);
    }

    /// Whether some server may still report the birth of a directory whose record is lost here.
    pub(crate) fn are_unheard(&self) -> bool {
        self.unheard_count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn has_heard(&self, server: u16) -> bool {
        !self.unheard.lock().contains(&server)
    }

    fn heard(&self, server: u16) {
        let mut unheard = self.unheard.lock();
        unheard.remove(&server);
        self.unheard_count.store(unheard.len(), Ordering::Release);
    }

    fn others(&self) -> Vec<u16> {
        self.unheard.lock().iter().copied().collect()
    }

    /// Notes a birth that is prepared. The key of its entry is not known yet.
    pub(super) fn begin(&self, txn: TxnId, server: u16, child: Child) {
        self.table.lock().insert(txn, Begun { server, child, stage: Stage::Begun });
    }

    /// Notes a birth from before a crash.
    pub(super) fn resume(&self, txn: TxnId, server: u16, child: Child) {
        self.table.lock().insert(txn, Begun { server, child, stage: Stage::Written });
    }

    /// Notes that the entry is about to be written. `None`: the directory's server has started
    /// anew, and the birth comes to nothing.
    pub(super) fn commit(&self, txn: TxnId, entry: &Key) -> Option<Child> {
        let mut table = self.table.lock();
        let begun = table.get_mut(&txn)?;
        begun.stage = Stage::Committed;
        begun.child.name = Bytes::copy_from_slice(entry);
        Some(begun.child.clone())
    }

    /// Forgets a birth that is confirmed, or came to nothing.
    pub(crate) fn end(&self, txn: TxnId) {
        self.table.lock().remove(&txn);
    }

    /// The births at a server that has started anew. Those that have not committed are given up.
    pub(crate) fn at(&self, server: u16) -> Vec<Birth> {
        let mut table = self.table.lock();
        table.retain(|_, begun| begun.server != server || begun.stage > Stage::Begun);
        let at = table.iter().filter(|(_, begun)| begun.server == server);
        let birth = |(txn, begun): (&TxnId, &Begun)| {
            let Child { key, content, .. } = begun.child.clone();
            Birth { txn: *txn, key, content }
        };
        at.map(birth).collect()
    }

    /// Notes that the entry is written.
    fn written(&self, txn: TxnId) {
        if let Some(begun) = self.table.lock().get_mut(&txn) {
            begun.stage = Stage::Written;
        }
    }

    /// The births among `txns` whose entries are written.
    pub(crate) fn born_of(&self, txns: &[TxnId]) -> Vec<TxnId> {
        let table = self.table.lock();
        let is_born =
            |txn: &&TxnId| table.get(txn).is_some_and(|begun| begun.stage == Stage::Written);
        txns.iter().filter(is_born).copied().collect()
    }

    /// Notes that a request waits for a birth that began here.
    pub(crate) fn hurry(&self) {
        self.hurried.send_modify(|times| *times += 1);
    }

    /// Notes that requests wait for births that other servers have begun.
    pub(crate) fn want(&self, births: impl IntoIterator<Item = TxnId>) {
        let mut wanted = self.wanted.lock();
        wanted.extend(births);
        if !wanted.is_empty() {
            self.wants.notify_one();
        }
    }

    fn child(&self, txn: TxnId) -> Option<(u16, Key)> {
        let table = self.table.lock();
        table.get(&txn).map(|begun| (begun.server, Key::from_slice(&begun.child.name)))
    }
}

/// The content record that a transaction makes at a server, if it does nothing else there.
pub(super) fn made<'a>(
    expects: &'a [Expected],
    writes: &'a [PeerWrite],
) -> Option<(&'a Bytes, &'a Bytes)> {
    let ([expected], [PeerWrite::Put((at, content))]) = (expects, writes) else { return None };
    let is_birth = expected.was.is_none() && expected.key == *at && key::is_content(at);
    is_birth.then_some((at, content))
}

/// The directory that a plan makes, and its server, if the plan is a birth.
pub(super) fn planned(plan: &Plan) -> Option<(u16, Child)> {
    let (server, part) = plan.first_key_value().filter(|_| plan.len() == 1)?;
    let (key, content) = made(&part.expects, &part.writes)?;
    let name = Bytes::new();
    Some((*server, Child { name, key: key.clone(), content: content.clone() }))
}

/// Commits a birth whose entry is about to be written. The entry stays as it is until the directory
/// is confirmed. `None`: not now.
pub(super) fn commit(txn: &Txn<'_>, birth: TxnId) -> Option<Child> {
    let entry = txn.written().into_iter().find(|key| key::is_entry(key))?;
    let prepared = &txn.shared.prepared;
    if !prepared.take_entry(birth, entry.clone()) {
        return None;
    }
    let child = txn.shared.births.commit(birth, &entry);
    if child.is_none() {
        prepared.free(birth);
    }
    child
}

/// Holds the keys again that were held for births before this start.
pub(super) fn hold(prepared: &Prepared, txn: TxnId, child: &Child) {
    let taken = prepared.take_entry(txn, Key::from_slice(&child.name));
    assert!(taken, "what was held together is held together again");
}
