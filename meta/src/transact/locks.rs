//! Keys of prepared transactions, and the reads and writes that must wait for them.
//!
//! Pure but for the waiting. The participant (`participant`) puts keys in when it prepares a
//! transaction, and takes them out when the outcome is applied. Every read and write of a
//! transaction (`txn`) asks. While nothing is prepared, asking is one look at a number. The source
//! of a handoff freezes all names that are about to move, without naming them. While other
//! transactions hold some of them, it can keep more from coming, so that those end.
//!
//! An early mkdir holds one key on each of two servers: the content record of a directory on the
//! one, and its entry on the other ([`early_mkdirs`](super::early_mkdirs)).
//!
//! Always true: of several transactions that hold one key, none changes more of it than its counts.
//! No transaction holds a frozen key, but to stand on it.

mod closed;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base::{DirId, HashMap, HashSet, Moving};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use wire::{InDoubt, TxnId};

use crate::record::{Key, key};

/// Longest wait for a directory to be confirmed before the answer is that all is stable.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// The use that a prepared transaction makes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// The transaction stands on the value.
    Shared,
    /// The transaction adds to counts and moves times forward; everything else stays.
    Increment,
    /// The transaction is a handoff, which changes the names that a partition has, or the early
    /// mkdir of a directory that everybody sees and that is not confirmed. Reads here go on with
    /// the content record until it ends, and no other transaction stands on the record.
    Update,
    /// The transaction changes or removes the value.
    Exclusive,
}

impl Mode {
    fn goes_with(self, other: Mode) -> bool {
        self.max(other) <= Mode::Increment
    }
}

/// The use of a key that a request makes which is no prepared transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// To read the value, but for counts and times of a directory.
    Read,
    /// To read the whole value.
    ReadCounts,
    /// To show counts and times. This does not wait for a transaction that has been in doubt for
    /// long. A request that has waited for so long, since the given time, for one transaction after
    /// the other waits for no more.
    ShowCounts(Option<Instant>),
    /// To list the value, with the same limits to waiting: after them it is listed as it was
    /// before.
    List(Option<Instant>),
    /// To change the value.
    Change,
}

impl Want {
    fn waits_for(self, mode: Mode) -> bool {
        match self {
            Want::Read | Want::List(_) => mode == Mode::Exclusive,
            Want::ReadCounts | Want::ShowCounts(_) => {
                mode == Mode::Increment || mode == Mode::Exclusive
            }
            Want::Change => true,
        }
    }

    /// Whether the answer may leave out a transaction that has been in doubt for long.
    fn may_go_without(self, mode: Mode) -> bool {
        match self {
            Want::ShowCounts(_) => mode == Mode::Increment,
            Want::List(_) => true,
            Want::Read | Want::ReadCounts | Want::Change => false,
        }
    }

    /// Since when the request has waited, if that matters.
    fn waited_since(self) -> Option<Instant> {
        match self {
            Want::ShowCounts(since) | Want::List(since) => since,
            Want::Read | Want::ReadCounts | Want::Change => None,
        }
    }
}

/// The transaction that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The transaction whose outcome must be known first.
    pub(crate) txn: TxnId,
    /// Whether this is an early mkdir that everybody sees: then the wait is for its confirmation.
    born: bool,
    /// The end of the wait; `None`: the wait lasts until the outcome is known.
    until: Option<Instant>,
}

/// The record that a server has of a directory that is not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Has {
    /// The content record.
    Content,
    /// The entry.
    Entry,
}

/// The keys that are held here, by transactions and handoffs.
#[derive(Default)]
pub(crate) struct Prepared {
    /// Longest wait of an answer that may leave out a transaction in doubt.
    patience: Duration,
    count: AtomicUsize,
    table: Mutex<Table>,
    ended: Notify,
}

type Holders = SmallVec<[(TxnId, Mode); 1]>;

#[derive(Default)]
struct Table {
    keys: BTreeMap<Key, Holders>,
    txns: HashMap<TxnId, Vec<Key>>,
    /// The time at which each transaction took its first key.
    since: HashMap<TxnId, Instant>,
    frozen: Vec<Frozen>,
    early_mkdirs: HashMap<TxnId, EarlyMkdir>,
    /// Transactions that are not prepared, and hold some records that they have read.
    holding: HashSet<TxnId>,
    /// Transactions that are never prepared from now on.
    closed: HashSet<TxnId>,
    /// Early mkdirs whose directories may be relied on, by number, and since when.
    unconfirmed: BTreeMap<u64, (TxnId, Instant)>,
    last: u64,
    /// Names to be frozen as soon as nobody holds any of them, and until when others are kept off
    /// for that.
    wanted: Vec<(Frozen, Instant)>,
}

/// The record that this server has of a directory that is not confirmed.
#[derive(Clone, Copy)]
enum EarlyMkdir {
    /// The content record, and whether everybody sees it. Early mkdirs that anything may hang on
    /// are numbered, in the order in which they came.
    Here { number: Option<u64>, born: bool },
    /// The entry.
    Elsewhere,
}

impl EarlyMkdir {
    fn is_here(&self) -> bool {
        matches!(self, EarlyMkdir::Here { .. })
    }
}

/// Names of a directory that stay as they are: a handoff stands on them.
struct Frozen {
    txn: TxnId,
    /// The key of the partition's content record.
    share: Key,
    /// The prefix of the keys of all names of the directory.
    names: Key,
    moving: Moving,
}

impl Frozen {
    fn has(&self, key: &[u8]) -> bool {
        let pos = || key::parse_name(key).map(|(pos, _, _)| pos);
        key.starts_with(&self.names) && pos().is_some_and(|pos| self.moving.contains(pos))
    }
}

impl Table {
    /// Numbers an early mkdir: from now on something may hang on the directory.
    fn rely_on(&mut self, txn: TxnId) {
        if let Some(EarlyMkdir::Here { number: number @ None, .. }) =
            self.early_mkdirs.get_mut(&txn)
        {
            self.last += 1;
            *number = Some(self.last);
            self.unconfirmed.insert(self.last, (txn, Instant::now()));
        }
    }

    fn doubt(&self, txn: TxnId) -> Doubt {
        Doubt { txn, born: self.is_born(txn), until: None }
    }

    fn is_born(&self, txn: TxnId) -> bool {
        matches!(self.early_mkdirs.get(&txn), Some(EarlyMkdir::Here { born: true, .. }))
    }

    /// The first transaction besides `own` that holds the key and for which `want` must wait.
    fn waits_for(
        &self,
        holders: &Holders,
        want: Want,
        own: Option<TxnId>,
        patience: Duration,
    ) -> Option<Doubt> {
        holders.iter().filter(|(txn, mode)| Some(*txn) != own && want.waits_for(*mode)).find_map(
            |(txn, mode)| {
                let may_go = want.may_go_without(*mode);
                let prepared = self.since.get(txn).filter(|_| may_go).copied();
                let since =
                    prepared.map(|at| want.waited_since().map_or(at, |since| at.min(since)));
                let until = since.map(|since| since + patience);
                let waits = until.is_none_or(|until| Instant::now() < until);
                waits.then(|| Doubt { until, ..self.doubt(*txn) })
            },
        )
    }

    /// The handoff besides `own` that stands on `key`, if there is one.
    fn frozen_by(&self, key: &[u8], own: Option<TxnId>) -> Option<TxnId> {
        let mut holding = self.frozen.iter().filter(|frozen| Some(frozen.txn) != own);
        holding.find(|frozen| frozen.has(key)).map(|frozen| frozen.txn)
    }

    /// Whether another transaction is to freeze `key`, or names of the partition that has `key` as
    /// its content record.
    fn is_wanted(&self, key: &Key, own: TxnId) -> bool {
        let concerns =
            |wanted: &Frozen| wanted.txn != own && (wanted.share == *key || wanted.has(key));
        self.wanted.iter().any(|(wanted, until)| concerns(wanted) && Instant::now() < *until)
    }
}

impl Prepared {
    /// Makes an empty table. Answers that may leave out a transaction in doubt wait for it as long
    /// as `patience`.
    pub(crate) fn new(patience: Duration) -> Prepared {
        Prepared { patience, ..Prepared::default() }
    }

    /// Whether any transaction is prepared at all.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether `txn` has any keys here.
    pub(crate) fn has(&self, txn: TxnId) -> bool {
        self.table.lock().txns.contains_key(&txn)
    }

    /// All transactions that other servers have begun, and handoffs of this server.
    pub(crate) fn all(&self) -> Vec<TxnId> {
        let table = self.table.lock();
        let ours =
            |txn: &&TxnId| matches!(table.early_mkdirs.get(txn), Some(EarlyMkdir::Elsewhere));
        let mut all: Vec<_> = table.txns.keys().filter(|txn| !ours(txn)).copied().collect();
        all.sort_unstable();
        all
    }

    /// The transactions of other servers than `me` that have been in doubt here for at least
    /// `for_long`; `None` if there are none. Early mkdirs that everybody sees, and that are merely
    /// not confirmed, do not count.
    pub(crate) fn in_doubt(&self, me: u16, for_long: Duration) -> Option<InDoubt> {
        if !self.any() {
            return None;
        }
        let (table, now) = (self.table.lock(), Instant::now());
        let ages = table.since.iter().map(|(txn, since)| (now.duration_since(*since), *txn));
        let late =
            ages.filter(|(age, txn)| *age >= for_long && txn.server != me && !table.is_born(*txn));
        let (count, oldest) =
            late.fold((0, None), |(count, oldest), late| (count + 1, oldest.max(Some(late))));
        let (age, txn) = oldest?;
        let oldest_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Some(InDoubt { count, oldest_ms, server: txn.server })
    }

    /// Whether `txn` is prepared, and does not merely hold records.
    pub(crate) fn is_prepared(&self, txn: TxnId) -> bool {
        let table = self.table.lock();
        table.txns.contains_key(&txn) && !table.holding.contains(&txn)
    }

    /// Whether `txn` holds records that it has read, and is not prepared.
    pub(crate) fn is_holding(&self, txn: TxnId) -> bool {
        self.table.lock().holding.contains(&txn)
    }

    /// Frees the keys of a transaction that is not prepared. Returns `false` if it holds nothing,
    /// or is prepared.
    pub(crate) fn let_go(&self, txn: TxnId) -> bool {
        let mut table = self.table.lock();
        let holds = table.holding.contains(&txn);
        if holds {
            self.free_in(&mut table, txn);
            drop(table);
            self.ended.notify_waiters();
        }
        holds
    }

    /// Whether another transaction holds a content record so that no other one may stand on it.
    pub(crate) fn is_being_updated(&self, content: &[u8], own: TxnId) -> bool {
        let table = self.table.lock();
        let mut holders = table.keys.get(content).into_iter().flatten();
        holders.any(|(txn, mode)| *txn != own && *mode >= Mode::Update)
    }

    /// Takes all keys for `txn`. Returns `false`, and takes none, when another transaction is in
    /// the way.
    pub(crate) fn take(&self, txn: TxnId, keys: Vec<(Key, Mode)>) -> bool {
        let mut table = self.table.lock();
        let taken = self.take_in(&mut table, txn, keys);
        if taken {
            table.holding.remove(&txn);
        }
        taken
    }

    /// Like [`Prepared::take`], before `txn` is prepared: nobody reads any of the records.
    pub(crate) fn hold(&self, txn: TxnId, keys: Vec<Key>) -> bool {
        let mut table = self.table.lock();
        let is_new = !table.txns.contains_key(&txn);
        let keys = keys.into_iter().map(|key| (key, Mode::Exclusive)).collect();
        let taken = (is_new || table.holding.contains(&txn)) && self.take_in(&mut table, txn, keys);
        if taken {
            table.holding.insert(txn);
        }
        taken
    }

    /// Like [`Prepared::take`], for the content record of a directory that is born here: nobody
    /// reads it before [`Prepared::is_born`], and nobody relies on it before it is freed.
    pub(crate) fn take_early_mkdir(&self, txn: TxnId, content: Key) -> bool {
        let mut table = self.table.lock();
        let taken = self.take_in(&mut table, txn, vec![(content, Mode::Exclusive)]);
        if taken {
            table.early_mkdirs.insert(txn, EarlyMkdir::Here { number: None, born: false });
        }
        taken
    }

    /// Like [`Prepared::take_early_mkdir`], for an early mkdir from before this start: everybody
    /// may have seen the directory.
    pub(crate) fn take_old_early_mkdir(&self, txn: TxnId, content: Key) -> bool {
        let taken = self.take_early_mkdir(txn, content);
        if taken {
            self.table.lock().rely_on(txn);
        }
        taken
    }

    /// Like [`Prepared::take`], for the entry of a directory that is born on another server: the
    /// entry stays until that is confirmed.
    pub(crate) fn take_entry(&self, txn: TxnId, entry: Key) -> bool {
        let mut table = self.table.lock();
        let taken = self.take_in(&mut table, txn, vec![(entry, Mode::Shared)]);
        if taken {
            table.early_mkdirs.insert(txn, EarlyMkdir::Elsewhere);
        }
        taken
    }

    /// Shows a directory that is born here to everybody: its entry is written.
    pub(crate) fn is_born(&self, txn: TxnId) {
        let mut table = self.table.lock();
        table.rely_on(txn);
        let Table { keys, txns, early_mkdirs, .. } = &mut *table;
        let Some(EarlyMkdir::Here { born: born @ false, .. }) = early_mkdirs.get_mut(&txn) else {
            return;
        };
        *born = true;
        for key in txns.get(&txn).into_iter().flatten() {
            let holders = keys.get_mut(key).into_iter().flatten();
            holders.filter(|(holder, _)| *holder == txn).for_each(|(_, mode)| *mode = Mode::Update);
        }
        drop(table);
        self.ended.notify_waiters();
    }

    /// The record that this server has of the directory whose early mkdir `txn` is.
    pub(crate) fn early_mkdir(&self, txn: TxnId) -> Option<Has> {
        self.table.lock().early_mkdirs.get(&txn).map(|early_mkdir| match early_mkdir {
            EarlyMkdir::Here { .. } => Has::Content,
            EarlyMkdir::Elsewhere => Has::Entry,
        })
    }

    /// The key of the content record of the directory whose early mkdir `txn` is, if that is here.
    pub(crate) fn early_mkdir_content(&self, txn: TxnId) -> Option<Key> {
        let table = self.table.lock();
        let here = table.early_mkdirs.get(&txn).is_some_and(EarlyMkdir::is_here);
        table.txns.get(&txn).filter(|_| here)?.first().cloned()
    }

    /// The early mkdirs of directories here that are not confirmed.
    pub(crate) fn unconfirmed(&self) -> Vec<TxnId> {
        self.table.lock().unconfirmed.values().map(|(txn, _)| *txn).collect()
    }

    /// The early mkdir that holds one of these keys, if there is one: it ends by itself, whatever
    /// else waits.
    pub(crate) fn early_mkdir_among<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
    ) -> Option<Doubt> {
        let table = self.table.lock();
        if table.early_mkdirs.is_empty() {
            return None;
        }
        let holder = |key: &Key| {
            let holders = table.keys.get(key)?;
            holders.iter().map(|(txn, _)| *txn).find(|txn| table.early_mkdirs.contains_key(txn))
        };
        keys.find_map(holder).map(|txn| table.doubt(txn))
    }

    /// Returns when every directory born here before this call is confirmed, or has come to
    /// nothing. An early mkdir that takes longer than [`CONFIRMED_WITHIN`] is not waited for: the
    /// server of its entry must be away. If that loses the entry, it is put back when the server
    /// returns.
    pub(crate) async fn confirmed(&self) {
        let last = self.table.lock().last;
        let young = |table: &Table| {
            let now = Instant::now();
            let mut ours = table.unconfirmed.range(..=last).map(|(_, (_, since))| *since);
            ours.rfind(|since| now.duration_since(*since) < CONFIRMED_WITHIN)
        };
        loop {
            let Some(since) = young(&self.table.lock()) else { return };
            // All older early mkdirs have been given up by then.
            let over = self.until(|table| young(table).is_none());
            let _ = timeout_at(since + CONFIRMED_WITHIN, over).await;
        }
    }

    /// Returns when every directory born here before this call is confirmed, or has come to
    /// nothing, or has its entry back, however long that takes.
    pub(crate) async fn early_mkdirs_over(&self) {
        let under_way: Vec<TxnId> = {
            let table = self.table.lock();
            let here = table.early_mkdirs.iter().filter(|(_, it)| it.is_here());
            here.map(|(txn, _)| *txn).collect()
        };
        for txn in under_way {
            self.until(|table| !table.early_mkdirs.contains_key(&txn)).await;
        }
    }

    /// Returns when nothing is prepared.
    pub(crate) async fn until_none(&self) {
        self.until(|table| table.txns.is_empty()).await;
    }

    /// Returns when `txn` has no keys here.
    pub(crate) async fn until_free(&self, txn: TxnId) {
        self.until(|table| !table.txns.contains_key(&txn)).await;
    }

    fn take_in(&self, table: &mut Table, txn: TxnId, keys: Vec<(Key, Mode)>) -> bool {
        let free = keys.iter().all(|(key, mode)| {
            let holders = table.keys.get(key);
            let thawed = || *mode == Mode::Shared || table.frozen_by(key, Some(txn)).is_none();
            holders.is_none_or(|holders| {
                holders.iter().all(|(other, held)| *other == txn || mode.goes_with(*held))
            }) && thawed()
                && (table.txns.contains_key(&txn) || !table.is_wanted(key, txn))
        });
        if !free || table.closed.contains(&txn) {
            return false;
        }
        let mut names = Vec::with_capacity(keys.len());
        for (key, mode) in keys {
            table.keys.entry(key.clone()).or_default().push((txn, mode));
            names.push(key);
        }
        if let Some(held) = table.txns.get_mut(&txn) {
            held.extend(names);
        } else {
            table.txns.insert(txn, names);
            table.since.insert(txn, Instant::now());
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        true
    }

    /// Freezes the moving names of a partition for `txn`: they are read, and not changed. `share`
    /// is the key of the partition's content record. Returns `false`, and freezes nothing, when a
    /// transaction holds one of them, or the content record. Then no other transaction takes any of
    /// these keys until they are frozen, or [`Prepared::no_longer_wanted`], or the time is `until`.
    pub(crate) fn freeze(&self, txn: TxnId, share: Key, moving: Moving, until: Instant) -> bool {
        let Some(dir) = key::parse_dir(&share) else { return false };
        let shard = key::shard_of(&share);
        let frozen = Frozen { txn, share: share.clone(), names: key::names(shard, dir), moving };
        let from = key::names_from(shard, dir, moving.bounds().0);
        let mut table = self.table.lock();
        let mut within =
            table.keys.range(from..).take_while(|(key, _)| key.starts_with(&frozen.names));
        let held = table.keys.contains_key(&share) || within.any(|(key, _)| frozen.has(key));
        table.wanted.retain(|(wanted, _)| wanted.txn != txn);
        if held || table.txns.contains_key(&txn) {
            table.wanted.push((frozen, until));
            return false;
        }
        table.frozen.push(frozen);
        table.keys.entry(share.clone()).or_default().push((txn, Mode::Update));
        table.txns.insert(txn, vec![share]);
        table.since.insert(txn, Instant::now());
        self.count.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Takes back what `txn` was to freeze.
    pub(crate) fn no_longer_wanted(&self, txn: TxnId) {
        self.table.lock().wanted.retain(|(wanted, _)| wanted.txn != txn);
    }

    /// Frees the keys of `txn`, whose outcome everybody sees now.
    pub(crate) fn free(&self, txn: TxnId) {
        self.free_in(&mut self.table.lock(), txn);
        self.ended.notify_waiters();
    }

    fn free_in(&self, table: &mut Table, txn: TxnId) {
        let Some(keys) = table.txns.remove(&txn) else { return };
        table.since.remove(&txn);
        if let Some(EarlyMkdir::Here { number: Some(number), .. }) = table.early_mkdirs.remove(&txn)
        {
            table.unconfirmed.remove(&number);
        }
        table.holding.remove(&txn);
        table.frozen.retain(|frozen| frozen.txn != txn);
        for key in keys {
            if let Some(holders) = table.keys.get_mut(&key) {
                holders.retain(|(holder, _)| *holder != txn);
                if holders.is_empty() {
                    table.keys.remove(&key);
                }
            }
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// The transaction besides `own` whose outcome must be known before `want`, if there is one.
    pub(crate) fn in_the_way(&self, key: &[u8], want: Want, own: Option<TxnId>) -> Option<Doubt> {
        let table = self.table.lock();
        let held = table.keys.get(key);
        let found = held.and_then(|held| table.waits_for(held, want, own, self.patience));
        if found.is_some() {
            return found;
        }
        let frozen = want.waits_for(Mode::Shared).then(|| table.frozen_by(key, own)).flatten();
        frozen.map(|txn| table.doubt(txn))
    }

    /// Like [`Prepared::in_the_way`], for all keys in a range, to be read or listed.
    pub(crate) fn in_range(
        &self,
        from: &[u8],
        to: &[u8],
        want: Want,
        own: Option<TxnId>,
    ) -> Option<Doubt> {
        let table = self.table.lock();
        let from = Key::from_slice(from);
        let mut within = table.keys.range(from..).take_while(|(key, _)| key[..] < *to);
        within.find_map(|(_, holders)| table.waits_for(holders, want, own, self.patience))
    }

    /// The transaction that holds any key from `first` to `last`, in whichever mode.
    pub(crate) fn holds(&self, first: &[u8], last: &[u8]) -> Option<Doubt> {
        if !self.any() {
            return None;
        }
        let table = self.table.lock();
        let mut within = table.keys.range(Key::from_slice(first)..);
        let (_, holders) = within.next().filter(|(key, _)| key[..] <= *last)?;
        holders.first().map(|(txn, _)| table.doubt(*txn))
    }

    /// Whether a transaction has a part in a directory: in its content records, or in its names.
    pub(crate) fn has_part_in(&self, dir: DirId) -> bool {
        self.any() && self.table.lock().keys.keys().any(|at| key::parse_covered(at) == Some(dir))
    }

    /// Returns when the transaction of `doubt` has no keys here any more, or when the wait is over.
    /// If the wait is for an early mkdir to be seen, returns also when everybody sees the
    /// directory.
    pub(crate) async fn until_ended(&self, doubt: Doubt) {
        let stays = |table: &Table| {
            table.txns.contains_key(&doubt.txn) && table.is_born(doubt.txn) == doubt.born
        };
        let ended = self.until(|table| !stays(table));
        match doubt.until {
            // The request looks once more then, whatever has happened.
            Some(until) => drop(timeout_at(until, ended).await),
            None => ended.await,
        }
    }

    async fn until(&self, is_so: impl Fn(&Table) -> bool) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if is_so(&self.table.lock()) {
                return;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests;
