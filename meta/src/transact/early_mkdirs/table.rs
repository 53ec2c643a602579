//! The early mkdirs of a server, in memory.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base::{HashMap, HashSet};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use wire::{Birth, TxnId};

use super::freed::Freed;
use crate::{log_limit::LogLimit, record::Key, transact::Child};

/// Shortest time between two lines of the log about records that wait for servers.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The early mkdirs that began here and are not over, and the servers that this one has not heard
/// since it started.
#[derive(Default)]
pub(crate) struct EarlyMkdirs {
    table: Mutex<HashMap<TxnId, Begun>>,
    /// Number of times that a request has waited for one of these early mkdirs.
    pub(super) hurried: watch::Sender<u64>,
    /// Early mkdirs begun by other servers that requests here wait for: those servers are told.
    pub(super) wanted: Mutex<HashSet<TxnId>>,
    pub(super) wants: Notify,
    unheard: Mutex<HashSet<u16>>,
    unheard_count: AtomicUsize,
    waits_logged: Mutex<Option<LogLimit>>,
    /// Ids that are free by what is not stable.
    pub(crate) freed: Freed,
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

impl EarlyMkdirs {
    /// Notes that none of `others` has been heard yet.
    pub(crate) fn hear_of(&self, others: impl Iterator<Item = u16>) {
        let mut unheard = self.unheard.lock();
        unheard.extend(others);
        self.unheard_count.store(unheard.len(), Ordering::Release);
    }

    /// Whether some server may still report the early mkdir of a directory whose record is lost
    /// here.
    pub(crate) fn are_unheard(&self) -> bool {
        self.unheard_count.load(Ordering::Acquire) > 0
    }

    /// Says in the log, now and then, that records do not fit together, and which servers may still
    /// report what is missing.
    pub(crate) fn log_wait(&self) {
        let mut limit = self.waits_logged.lock();
        let limit = limit.get_or_insert_with(|| LogLimit::new(LOG_PERIOD));
        if let Some(unlogged) = limit.due() {
            tracing::warn!(
                servers = ?self.others(), unlogged,
                "records do not fit together; requests wait until these servers have said which \
                 directories they made before the power failed. If all are heard and it stays so, \
                 the log says what is damaged"
            );
        }
    }

    pub(crate) fn has_heard(&self, server: u16) -> bool {
        !self.unheard.lock().contains(&server)
    }

    pub(super) fn heard(&self, server: u16) {
        let mut unheard = self.unheard.lock();
        unheard.remove(&server);
        self.unheard_count.store(unheard.len(), Ordering::Release);
    }

    pub(super) fn others(&self) -> Vec<u16> {
        self.unheard.lock().iter().copied().collect()
    }

    /// Notes an early mkdir that is prepared. The key of its entry is not known yet.
    pub(in crate::transact) fn begin(&self, txn: TxnId, server: u16, child: Child) {
        self.table.lock().insert(txn, Begun { server, child, stage: Stage::Begun });
    }

    /// Notes an early mkdir from before a crash.
    pub(in crate::transact) fn resume(&self, txn: TxnId, server: u16, child: Child) {
        self.table.lock().insert(txn, Begun { server, child, stage: Stage::Written });
    }

    /// Notes that the entry is about to be written. `None`: the directory's server has started
    /// anew, and the early mkdir comes to nothing.
    pub(super) fn commit(&self, txn: TxnId, entry: &Key) -> Option<Child> {
        let mut table = self.table.lock();
        let begun = table.get_mut(&txn)?;
        begun.stage = Stage::Committed;
        begun.child.name = Bytes::copy_from_slice(entry);
        Some(begun.child.clone())
    }

    /// Forgets an early mkdir that is confirmed, or came to nothing.
    pub(crate) fn end(&self, txn: TxnId) {
        self.table.lock().remove(&txn);
    }

    /// The early mkdirs at a server that has started anew. Those that have not committed are given
    /// up.
    pub(crate) fn at(&self, server: u16) -> Vec<Birth> {
        let mut table = self.table.lock();
        table.retain(|_, begun| begun.server != server || begun.stage > Stage::Begun);
        let at = table.iter().filter(|(_, begun)| begun.server == server);
        let early_mkdir = |(txn, begun): (&TxnId, &Begun)| {
            let Child { key, content, .. } = begun.child.clone();
            Birth { txn: *txn, key, content }
        };
        at.map(early_mkdir).collect()
    }

    /// Notes that the entry is written.
    pub(super) fn written(&self, txn: TxnId) {
        if let Some(begun) = self.table.lock().get_mut(&txn) {
            begun.stage = Stage::Written;
        }
    }

    /// The early mkdirs among `txns` whose entries are written.
    pub(crate) fn born_of(&self, txns: &[TxnId]) -> Vec<TxnId> {
        let table = self.table.lock();
        let is_born =
            |txn: &&TxnId| table.get(txn).is_some_and(|begun| begun.stage == Stage::Written);
        txns.iter().filter(is_born).copied().collect()
    }

    /// Notes that a request waits for an early mkdir that began here.
    pub(crate) fn hurry(&self) {
        self.hurried.send_modify(|times| *times += 1);
    }

    /// Notes that requests wait for early mkdirs that other servers have begun.
    pub(crate) fn want(&self, early_mkdirs: impl IntoIterator<Item = TxnId>) {
        let mut wanted = self.wanted.lock();
        wanted.extend(early_mkdirs);
        if !wanted.is_empty() {
            self.wants.notify_one();
        }
    }

    pub(super) fn child(&self, txn: TxnId) -> Option<(u16, Key)> {
        let table = self.table.lock();
        table.get(&txn).map(|begun| (begun.server, Key::from_slice(&begun.child.name)))
    }
}
