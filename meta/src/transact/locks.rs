//! The keys of prepared transactions: who may read and write them meanwhile.
//!
//! Pure but for the waiting: the participant (`participant`) puts keys in when it prepares a transaction and takes them
//! out when its outcome is applied; every read and write of a transaction (`txn`) asks. While nothing is prepared,
//! asking is one look at a number. The source of a handoff freezes all names that are about to move, without naming
//! them; while others hold some of them it can keep more from coming, so that those end.
//!
//! A birth holds one key, and two keys in all, on two servers: the content record of a directory on the one, and its
//! entry on the other ([`births`](super::births)).
//!
//! Always true: of several transactions that hold one key, none changes more of it than its counts. Nobody holds a key
//! that is frozen, but to stand on it.

mod closed;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base::{HashMap, HashSet, Moving};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use wire::{InDoubt, TxnId};

use crate::record::{Key, key};

/// Nothing waits longer for a directory to be confirmed before it is said to be stable.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// What a prepared transaction does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// It stands on what is there.
    Stands,
    /// It adds to counts and moves times forward; everything else stays.
    Adds,
    /// It changes what belongs to the directory, or makes it what others may rely on: everybody here goes on with it
    /// until then, and no other transaction stands on it.
    Shifts,
    /// It changes or removes it.
    Changes,
}

impl Mode {
    fn goes_with(self, other: Mode) -> bool {
        self.max(other) <= Mode::Adds
    }
}

/// What somebody who is no prepared transaction wants of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// To read it, but for counts and times of a directory.
    Read,
    /// To read all of it.
    ReadCounts,
    /// To show its counts and times. A transaction that has been in doubt for long is not waited for, and none is by who
    /// has waited for so long, since this time, for one after the other.
    ShowCounts(Option<Instant>),
    /// To list it. The same are not waited for: it is listed as it was before.
    List(Option<Instant>),
    /// To change it.
    Change,
}

impl Want {
    fn waits_for(self, mode: Mode) -> bool {
        match self {
            Want::Read | Want::List(_) => mode == Mode::Changes,
            Want::ReadCounts | Want::ShowCounts(_) => mode == Mode::Adds || mode == Mode::Changes,
            Want::Change => true,
        }
    }

    /// Whether this may be told without a transaction that has been in doubt for long.
    fn may_go_without(self, mode: Mode) -> bool {
        match self {
            Want::ShowCounts(_) => mode == Mode::Adds,
            Want::List(_) => true,
            Want::Read | Want::ReadCounts | Want::Change => false,
        }
    }

    /// Since when who asks has waited, if that matters.
    fn waited_since(self) -> Option<Instant> {
        match self {
            Want::ShowCounts(since) | Want::List(since) => since,
            Want::Read | Want::ReadCounts | Want::Change => None,
        }
    }
}

/// What somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// Its outcome must be known first.
    pub(crate) txn: TxnId,
    /// It is the birth of a directory that everybody sees: that must be confirmed.
    born: bool,
    /// After this time the transaction is not waited for; `None`: it is waited for until its outcome is known.
    until: Option<Instant>,
}

/// What a server has of a directory that is not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Has {
    /// Its content record.
    Content,
    /// Its entry.
    Entry,
}

/// The table.
#[derive(Default)]
pub(crate) struct Prepared {
    /// What may be told without a transaction in doubt waits so long for it.
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
    /// When each of them took its first key.
    since: HashMap<TxnId, Instant>,
    frozen: Vec<Frozen>,
    births: HashMap<TxnId, Birth>,
    /// Transactions that are not prepared, and hold something of what they have read.
    holding: HashSet<TxnId>,
    /// Those that are not prepared from now on, whatever comes.
    closed: HashSet<TxnId>,
    /// Those that are here and may be relied on, by number, and since when.
    unconfirmed: BTreeMap<u64, (TxnId, Instant)>,
    last: u64,
    /// What is to be frozen as soon as nobody holds any of it, and until when others are kept off for that.
    wanted: Vec<(Frozen, Instant)>,
}

/// What this server has of a directory that is not confirmed.
#[derive(Clone, Copy)]
enum Birth {
    /// Its content record, and whether everybody sees it. Those that anything may hang on are numbered, in the order in
    /// which they came.
    Here { number: Option<u64>, born: bool },
    /// Its entry.
    Elsewhere,
}

/// Names of a directory that stay as they are: a handoff stands on them.
struct Frozen {
    txn: TxnId,
    /// The key of the content record.
    share: Key,
    /// What the keys of all names of the directory begin with.
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
    /// From now on something may hang on a directory that was born here.
    fn rely_on(&mut self, txn: TxnId) {
        if let Some(Birth::Here { number: number @ None, .. }) = self.births.get_mut(&txn) {
            self.last += 1;
            *number = Some(self.last);
            self.unconfirmed.insert(self.last, (txn, Instant::now()));
        }
    }

    fn doubt(&self, txn: TxnId) -> Doubt {
        Doubt { txn, born: self.is_born(txn), until: None }
    }

    fn is_born(&self, txn: TxnId) -> bool {
        matches!(self.births.get(&txn), Some(Birth::Here { born: true, .. }))
    }

    /// The first of the transactions that hold a key which `want` must wait for, besides `own`.
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

    /// The handoff that stands on `key`, if there is one besides `own`.
    fn frozen_by(&self, key: &[u8], own: Option<TxnId>) -> Option<TxnId> {
        let mut holding = self.frozen.iter().filter(|frozen| Some(frozen.txn) != own);
        holding.find(|frozen| frozen.has(key)).map(|frozen| frozen.txn)
    }

    /// Whether another transaction is to freeze `key`, or the names of the partition whose content record that is.
    fn is_wanted(&self, key: &Key, own: TxnId) -> bool {
        let concerns =
            |wanted: &Frozen| wanted.txn != own && (wanted.share == *key || wanted.has(key));
        self.wanted.iter().any(|(wanted, until)| concerns(wanted) && Instant::now() < *until)
    }
}

impl Prepared {
    /// A table with nothing in it; what may be told without a transaction in doubt waits for it as long as `patience`.
    pub(crate) fn new(patience: Duration) -> Prepared {
        Prepared { patience, ..Prepared::default() }
    }

    /// Whether any transaction is prepared at all.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether this one is.
    pub(crate) fn has(&self, txn: TxnId) -> bool {
        self.table.lock().txns.contains_key(&txn)
    }

    /// All that others have begun, and handoffs of this server.
    pub(crate) fn all(&self) -> Vec<TxnId> {
        let table = self.table.lock();
        let ours = |txn: &&TxnId| matches!(table.births.get(txn), Some(Birth::Elsewhere));
        let mut all: Vec<_> = table.txns.keys().filter(|txn| !ours(txn)).copied().collect();
        all.sort_unstable();
        all
    }

    /// The transactions of other servers than `me` that have been in doubt here for as long as `for_long`; `None`: none has.
    /// Directories that everybody sees and that are only not confirmed are not counted.
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

    /// Whether this one is, and does not only hold something.
    pub(crate) fn is_prepared(&self, txn: TxnId) -> bool {
        let table = self.table.lock();
        table.txns.contains_key(&txn) && !table.holding.contains(&txn)
    }

    /// Whether this one holds something of what it has read, and is not prepared.
    pub(crate) fn is_holding(&self, txn: TxnId) -> bool {
        self.table.lock().holding.contains(&txn)
    }

    /// Frees what a transaction holds that is not prepared; `false`: it holds nothing, or is prepared.
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

    /// Whether another transaction changes what belongs to a directory, or is about to.
    pub(crate) fn is_shifted(&self, content: &[u8], own: TxnId) -> bool {
        let table = self.table.lock();
        let mut holders = table.keys.get(content).into_iter().flatten();
        holders.any(|(txn, mode)| *txn != own && *mode >= Mode::Shifts)
    }

    /// Takes all keys for `txn`; `false`, and none is taken, when another transaction is in the way.
    pub(crate) fn take(&self, txn: TxnId, keys: Vec<(Key, Mode)>) -> bool {
        let mut table = self.table.lock();
        let taken = self.take_in(&mut table, txn, keys);
        if taken {
            table.holding.remove(&txn);
        }
        taken
    }

    /// As [`Prepared::take`], before it is prepared: nobody reads any of it.
    pub(crate) fn hold(&self, txn: TxnId, keys: Vec<Key>) -> bool {
        let mut table = self.table.lock();
        let is_new = !table.txns.contains_key(&txn);
        let keys = keys.into_iter().map(|key| (key, Mode::Changes)).collect();
        let taken = (is_new || table.holding.contains(&txn)) && self.take_in(&mut table, txn, keys);
        if taken {
            table.holding.insert(txn);
        }
        taken
    }

    /// As [`Prepared::take`], of the content record of a directory that is born here: nobody reads it before
    /// [`Prepared::is_born`], and nobody relies on it before it is freed.
    pub(crate) fn take_birth(&self, txn: TxnId, content: Key) -> bool {
        let mut table = self.table.lock();
        let taken = self.take_in(&mut table, txn, vec![(content, Mode::Changes)]);
        if taken {
            table.births.insert(txn, Birth::Here { number: None, born: false });
        }
        taken
    }

    /// As [`Prepared::take_birth`], of one that was here before this start: everybody may have seen it.
    pub(crate) fn take_old_birth(&self, txn: TxnId, content: Key) -> bool {
        let taken = self.take_birth(txn, content);
        if taken {
            self.table.lock().rely_on(txn);
        }
        taken
    }

    /// As [`Prepared::take`], of the entry of a directory that is born on another server: it stays until that is
    /// confirmed.
    pub(crate) fn take_entry(&self, txn: TxnId, entry: Key) -> bool {
        let mut table = self.table.lock();
        let taken = self.take_in(&mut table, txn, vec![(entry, Mode::Stands)]);
        if taken {
            table.births.insert(txn, Birth::Elsewhere);
        }
        taken
    }

    /// The entry of a directory that is born here is written: it is there for everybody.
    pub(crate) fn is_born(&self, txn: TxnId) {
        let mut table = self.table.lock();
        table.rely_on(txn);
        let Table { keys, txns, births, .. } = &mut *table;
        let Some(Birth::Here { born: born @ false, .. }) = births.get_mut(&txn) else { return };
        *born = true;
        for key in txns.get(&txn).into_iter().flatten() {
            let holders = keys.get_mut(key).into_iter().flatten();
            holders.filter(|(holder, _)| *holder == txn).for_each(|(_, mode)| *mode = Mode::Shifts);
        }
        drop(table);
        self.ended.notify_waiters();
    }

    /// What this server has of the directory whose birth `txn` is.
    pub(crate) fn birth(&self, txn: TxnId) -> Option<Has> {
        self.table.lock().births.get(&txn).map(|birth| match birth {
            Birth::Here { .. } => Has::Content,
            Birth::Elsewhere => Has::Entry,
        })
    }

    /// The key of the content record of the directory whose birth `txn` is, if that is here.
    pub(crate) fn birth_content(&self, txn: TxnId) -> Option<Key> {
        let table = self.table.lock();
        let here = matches!(table.births.get(&txn), Some(Birth::Here { .. }));
        table.txns.get(&txn).filter(|_| here)?.first().cloned()
    }

    /// The births of directories here that are not confirmed.
    pub(crate) fn unconfirmed(&self) -> Vec<TxnId> {
        self.table.lock().unconfirmed.values().map(|(txn, _)| *txn).collect()
    }

    /// The birth that holds one of these keys, if there is one: it ends by itself, whatever else waits.
    pub(crate) fn birth_among<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> Option<Doubt> {
        let table = self.table.lock();
        if table.births.is_empty() {
            return None;
        }
        let holder = |key: &Key| {
            let holders = table.keys.get(key)?;
            holders.iter().map(|(txn, _)| *txn).find(|txn| table.births.contains_key(txn))
        };
        keys.find_map(holder).map(|txn| table.doubt(txn))
    }

    /// Returns when every directory is confirmed that has been born here before this call, or has come to nothing; or
    /// has not been confirmed for so long that the server of its entry must be away. What is lost of it then is put back
    /// when that is there again.
    pub(crate) async fn confirmed(&self) {
        let last = self.table.lock().last;
        let young = |table: &Table| {
            let now = Instant::now();
            let mut ours = table.unconfirmed.range(..=last).map(|(_, (_, since))| *since);
            ours.rfind(|since| now.duration_since(*since) < CONFIRMED_WITHIN)
        };
        loop {
            let Some(since) = young(&self.table.lock()) else { return };
            // All that are older have been given up by then.
            let over = self.until(|table| young(table).is_none());
            let _ = timeout_at(since + CONFIRMED_WITHIN, over).await;
        }
    }

    /// Returns when nothing is prepared.
    pub(crate) async fn until_none(&self) {
        self.until(|table| table.txns.is_empty()).await;
    }

    /// Returns when nothing of `txn` is known.
    pub(crate) async fn until_free(&self, txn: TxnId) {
        self.until(|table| !table.txns.contains_key(&txn)).await;
    }

    fn take_in(&self, table: &mut Table, txn: TxnId, keys: Vec<(Key, Mode)>) -> bool {
        let free = keys.iter().all(|(key, mode)| {
            let holders = table.keys.get(key);
            let thawed = || *mode == Mode::Stands || table.frozen_by(key, Some(txn)).is_none();
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

    /// Freezes the moving names of a partition, whose content record has the key `share`, for `txn`: they are read, and
    /// not changed. `false`, and nothing is frozen, when a transaction holds one of them, or the content record: then no
    /// other one takes any of it until it is frozen, or [`Prepared::no_longer_wanted`], or the time is `until`.
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
        table.keys.entry(share.clone()).or_default().push((txn, Mode::Shifts));
        table.txns.insert(txn, vec![share]);
        table.since.insert(txn, Instant::now());
        self.count.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// What `txn` was to freeze need not be.
    pub(crate) fn no_longer_wanted(&self, txn: TxnId) {
        self.table.lock().wanted.retain(|(wanted, _)| wanted.txn != txn);
    }

    /// The outcome of `txn` is there for everybody to see.
    pub(crate) fn free(&self, txn: TxnId) {
        self.free_in(&mut self.table.lock(), txn);
        self.ended.notify_waiters();
    }

    fn free_in(&self, table: &mut Table, txn: TxnId) {
        let Some(keys) = table.txns.remove(&txn) else { return };
        table.since.remove(&txn);
        if let Some(Birth::Here { number: Some(number), .. }) = table.births.remove(&txn) {
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

    /// The transaction whose outcome must be known first, if there is one besides `own`.
    pub(crate) fn in_the_way(&self, key: &[u8], want: Want, own: Option<TxnId>) -> Option<Doubt> {
        let table = self.table.lock();
        let held = table.keys.get(key);
        let found = held.and_then(|held| table.waits_for(held, want, own, self.patience));
        if found.is_some() {
            return found;
        }
        let frozen = want.waits_for(Mode::Stands).then(|| table.frozen_by(key, own)).flatten();
        frozen.map(|txn| table.doubt(txn))
    }

    /// As [`Prepared::in_the_way`], of all keys in a range, to be read or listed.
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

    /// The transaction that holds any key from `first` to `last`, in whichever way.
    pub(crate) fn holds(&self, first: &[u8], last: &[u8]) -> Option<Doubt> {
        if !self.any() {
            return None;
        }
        let table = self.table.lock();
        let mut within = table.keys.range(Key::from_slice(first)..);
        let (_, holders) = within.next().filter(|(key, _)| key[..] <= *last)?;
        holders.first().map(|(txn, _)| table.doubt(*txn))
    }

    /// Returns when the outcome that somebody waits for is there, or nothing of it is known. Of a birth also when
    /// everybody sees the directory, if that was what is waited for. And when it is not waited for any longer.
    pub(crate) async fn until_ended(&self, doubt: Doubt) {
        let stays = |table: &Table| {
            table.txns.contains_key(&doubt.txn) && table.is_born(doubt.txn) == doubt.born
        };
        let ended = self.until(|table| !stays(table));
        match doubt.until {
            // It is looked at once more then, whatever has happened.
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
