//! Quotas on directories, users and groups: usage of each, exact at any moment and after a crash.
//!
//! A directory with a quota is an *accounting root*. Every directory and inode below it carries the
//! root's number, inherited at creation, so an operation finds what to charge in the records it
//! reads anyway. Roots nest: a charge to one counts in those above as well.
//!
//! Operations are checked against the table here. It is charged while they execute, and the charges
//! of failed ones are given back. In the store each core keeps one record per root with all that it
//! has charged to that root itself, and writes it once with each group. So no operation writes to
//! the directories above, and cores share nothing but the table. After a crash the sum of a root's records
//! agrees with the surviving records.
//!
//! With several servers each charges what it does itself, wherever the inode is: a transaction is
//! charged by its initiator, in the batch of its commit. The sums of all servers together then
//! agree with the surviving records, and no operation needs another server to charge. The
//! coordinator owns the roots. Other servers have copies, which come with their leases, and also
//! charge to roots they have not heard of. The coordinator allows how much each server may charge
//! to a root with limits.
//!
//! A user and a group have an *account*, which is charged, stored and limited as a root is: without
//! a directory, a parent, or a walk that counts. Every account is kept from the beginning, whether
//! it has limits or not ([`owners`]).
//!
//! Invariant: `total` of a root is the sum of all charges here to it and to all roots below it.

pub(crate) mod ask;
pub(crate) mod count;
pub(crate) mod grant;
mod ledger;
pub(crate) mod ledgers;
pub(crate) mod owners;
pub(crate) mod sums;

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use base::{DirId, FsError, HashMap, Ino, codec};
use bytes::Bytes;
use parking_lot::Mutex;
use store::{Batch, Engine};
use tokio::sync::Notify;

use self::grant::{Grant, NeedsGrant};
use crate::{
    OpenError,
    record::{
        Accounts, QuotaId, QuotaRecord, QuotaState, Record, Usage,
        key::{self, UsagePart},
    },
};

/// All accounting roots of the file system.
#[derive(Default)]
pub(crate) struct Quotas {
    table: Mutex<HashMap<QuotaId, Quota>>,
    /// Whether the file system has several servers.
    several: bool,
    /// Version of the roots' records, counted by the coordinator; 0 while none were received.
    version: AtomicU64,
    /// Number of roots below which records change what they are charged to.
    moving: AtomicUsize,
    /// Wakes the walk that counts.
    pub(crate) wake: Notify,
}

/// An accounting root.
struct Quota {
    record: QuotaRecord,
    total: Usage,
    /// Charges of each core to this root itself, as stored with the core's next group.
    cores: Vec<Usage>,
    /// Bound on what this server may charge to this root and to those below.
    grant: Grant,
    /// Number of times that usage below this root came to count elsewhere.
    left: u64,
    /// Whether a counting walk was interrupted. A directory that it has passed may still have
    /// uncounted directories below it.
    again: bool,
}

/// A root as seen by callers of [`Quotas`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) record: QuotaRecord,
    pub(crate) total: Usage,
}

#[cfg(test)]
impl Seen {
    /// Whether the root is kept only for what is still charged to it.
    pub(crate) fn is_gone(&self) -> bool {
        self.record.state == QuotaState::Gone
    }
}

codec! {
    /// Answer of a server that another asks about an accounting root.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Told {
        /// The root's record, as far as the server knows.
        pub record: Option<QuotaRecord>,
        /// The server's charges to the root and to those below.
        pub usage: Usage,
    }
}

impl Record for Told {}

codec! {
    /// The accounting roots, as the coordinator sends them with leases.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Roots {
        pub version: u64,
        pub roots: Vec<Root>,
    }
}

codec! {
    /// One accounting root.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Root {
        pub id: Ino,
        pub record: QuotaRecord,
    }
}

impl Record for Roots {}

/// Whether limits are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    /// A charge beyond the limits fails.
    Hold,
    /// Everything is charged, whatever the limits say.
    Pass,
}

/// How to undo a transaction's change of the table.
pub(crate) enum Undo {
    Charge(QuotaId, Usage),
    /// The record before the change; `None` if there was none.
    Record(QuotaId, Option<QuotaRecord>),
}

impl Quotas {
    /// Loads the stored roots. Roots that are gone and have no charges are dropped, except with
    /// `several` servers: charges of the others are not known here.
    pub(crate) fn load(engine: &dyn Engine, several: bool) -> Result<Quotas, OpenError> {
        let mut table: HashMap<QuotaId, Quota> = HashMap::default();
        let mut damaged = None;
        let prefix = key::own(b'A');
        engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| match take_in(
            &mut table, several, key, value,
        ) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                damaged = Some(error);
                ControlFlow::Break(())
            }
        })?;
        if let Some(error) = damaged {
            return Err(error.into());
        }
        if !several {
            forget_gone(engine, &mut table)?;
        }
        add_up(&mut table);
        let moving = table.values().filter(|quota| quota.record.state.is_moving()).count();
        let (table, version) = (Mutex::new(table), AtomicU64::new(0));
        Ok(Quotas { table, several, version, moving: moving.into(), wake: Notify::new() })
    }

    /// A root, also one that is gone.
    pub(crate) fn get(&self, id: QuotaId) -> Option<Seen> {
        id.some()?;
        let table = self.table.lock();
        table.get(&id).map(|quota| Seen { record: quota.record, total: quota.total })
    }

    /// A root that is not gone. With several servers the coordinator decides which are.
    pub(crate) fn root(&self, id: QuotaId) -> Option<Seen> {
        self.get(id).filter(|seen| seen.record.state != QuotaState::Gone)
    }

    /// This server's answer to a question about a root.
    pub(crate) fn told(&self, id: QuotaId) -> Told {
        let usage = self.get(id).map_or_else(Usage::default, |seen| seen.total);
        Told { record: self.root(id).map(|seen| seen.record), usage }
    }

    /// The next accounts that `may_see` lets through, ascending by id: `max` of them at most. Those
    /// that are gone and were never charged are left out.
    pub(crate) fn page(
        &self,
        after: QuotaId,
        max: usize,
        may_see: impl Fn(QuotaId) -> bool,
    ) -> Vec<(QuotaId, Seen)> {
        let table = self.table.lock();
        let is_shown = |quota: &Quota| {
            quota.total != Usage::default() || quota.record.state != QuotaState::Gone
        };
        let mut shown: Vec<(QuotaId, Seen)> = table
            .iter()
            .filter(|(id, quota)| **id > after && is_shown(quota) && may_see(**id))
            .map(|(id, quota)| (*id, Seen { record: quota.record, total: quota.total }))
            .collect();
        drop(table);
        shown.sort_unstable_by_key(|(id, _)| *id);
        shown.truncate(max);
        shown
    }

    /// Sets the coordinator's first version.
    pub(crate) fn begin_versions(&self, first: u64) {
        self.version.store(first.max(1), Ordering::Release);
    }

    /// Version of the records.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes that records have changed and are stored.
    pub(crate) fn changed(&self) {
        if self.several {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        self.wake.notify_one();
    }

    /// All roots, encoded for a server that has version `known`; `None` if that is the current one.
    pub(crate) fn news(&self, known: u64) -> Option<Bytes> {
        let version = self.version();
        if version == known {
            return None;
        }
        let table = self.table.lock();
        let there = table.iter().filter(|(_, quota)| quota.record.state != QuotaState::Gone);
        let mut roots: Vec<Root> =
            there.map(|(id, quota)| Root { id: id.0, record: quota.record }).collect();
        roots.sort_unstable_by_key(|root| root.id);
        Some(Roots { version, roots }.to_record())
    }

    /// Takes in the roots that the coordinator has sent.
    pub(crate) fn learn(&self, news: &Bytes) -> Result<(), base::DecodeError> {
        let Roots { version, roots } = Roots::from_record(news)?;
        let told: HashMap<QuotaId, QuotaRecord> =
            roots.into_iter().map(|root| (QuotaId(root.id), root.record)).collect();
        let gone: Vec<QuotaId> = {
            let table = self.table.lock();
            let known = table.iter().filter(|(_, quota)| quota.record != UNHEARD);
            known.map(|(id, _)| *id).filter(|id| !told.contains_key(id)).collect()
        };
        for id in gone {
            self.put(id, None);
        }
        for (id, record) in told {
            self.put(id, Some(record));
        }
        self.version.store(version, Ordering::Release);
        Ok(())
    }

    /// Charges of a core to a root itself.
    pub(crate) fn charged(&self, id: QuotaId, core: u16) -> Option<Usage> {
        let table = self.table.lock();
        table.get(&id)?.cores.get(usize::from(core)).copied()
    }

    /// Roots that the walk has work for, in no order.
    pub(crate) fn unfinished(&self) -> Vec<(QuotaId, QuotaRecord)> {
        let table = self.table.lock();
        let all = table.iter().map(|(id, quota)| (*id, quota.record));
        all.filter(|(_, record)| record.state.is_moving()).collect()
    }

    /// Active roots of directories, ascending by id.
    pub(crate) fn active(&self) -> Vec<(QuotaId, QuotaRecord)> {
        let table = self.table.lock();
        let all = table.iter().map(|(id, quota)| (*id, quota.record));
        let active =
            all.filter(|(id, record)| record.state == QuotaState::Active && !id.is_owners());
        let mut active: Vec<_> = active.collect();
        active.sort_unstable_by_key(|(id, _)| *id);
        active
    }

    /// Whether a walk that counts below either of two roots, or above them, is unfinished.
    pub(crate) fn is_moving(&self, one: QuotaId, other: QuotaId) -> bool {
        if self.moving.load(Ordering::Acquire) == 0 {
            return false;
        }
        let table = self.table.lock();
        let moving = |id| {
            chain(&table, id)
                .any(|id| table.get(&id).is_some_and(|quota| quota.record.state.is_moving()))
        };
        moving(one) || moving(other)
    }

    /// Whether a walk is moving charges from `from` to `to`, so that records below may carry
    /// either.
    pub(crate) fn is_counted_from(&self, from: QuotaId, to: QuotaId) -> bool {
        let table = self.table.lock();
        let parent =
            |of: QuotaId| table.get(&of).map(|quota| (quota.record.state, quota.record.parent));
        parent(to) == Some((QuotaState::Counting, from.0))
            || parent(from) == Some((QuotaState::Removing, to.0))
    }

    /// Notes that the counting walk of a root was interrupted and begins anew.
    pub(crate) fn counts_again(&self, id: QuotaId) {
        if let Some(quota) = self.table.lock().get_mut(&id) {
            quota.again = true;
        }
    }

    /// Whether a directory charged to `id` may have uncounted records below it, though a walk has
    /// passed it: that walk was interrupted.
    pub(crate) fn is_counted_again(&self, id: QuotaId) -> bool {
        if self.moving.load(Ordering::Acquire) == 0 {
            return false;
        }
        let table = self.table.lock();
        let again = |(root, quota): (&QuotaId, &Quota)| match quota.record.state {
            QuotaState::Counting => quota.again && *root == id,
            QuotaState::Removing => quota.again && quota.record.parent == id.0,
            QuotaState::Active | QuotaState::Gone => false,
        };
        table.iter().any(again)
    }

    /// Charges usage to accounts and to the roots above. `before` is what the same transaction has
    /// done so far.
    ///
    /// # Errors
    /// When one of these has no room here for all that the transaction charges.
    pub(crate) fn charge(
        &self,
        accounts: Accounts,
        usage: Usage,
        limits: Limits,
        before: &[Undo],
    ) -> Result<(), NeedsGrant> {
        let mut table = self.table.lock();
        for id in accounts.ids().filter(|id| self.stays(*id)) {
            table.entry(id).or_insert_with(Quota::unheard);
        }
        let lacks = |root: &QuotaId| limits == Limits::Hold && !table[root].has_room(usage);
        for root in accounts.ids().flat_map(|id| chain(&table, id)).filter(lacks) {
            let more = before.iter().fold(usage, |sum, undo| match undo {
                Undo::Charge(id, usage) if chain(&table, *id).any(|above| above == root) => {
                    sum.plus(*usage)
                }
                Undo::Charge(..) | Undo::Record(..) => sum,
            });
            // The transaction may release more than it charges.
            if !table[&root].fits(more, table[&root].total.plus(usage)) {
                return Err(NeedsGrant { root, more });
            }
        }
        accounts.ids().for_each(|id| add(&mut table, id, usage));
        Ok(())
    }

    /// Whether an account has room for more than a mount makes before it sends it, as far as this
    /// server knows.
    pub(crate) fn has_ample_room(&self, id: QuotaId) -> bool {
        let table = self.table.lock();
        table.get(&id).is_none_or(|quota| {
            let (limits, then) = (quota.record.limits(), quota.total.plus(AMPLE));
            !quota.holds() || limits.max(then) == limits
        })
    }

    /// Whether an account is kept without a record: it may have one on another server, or is a
    /// user's or a group's.
    fn stays(&self, id: QuotaId) -> bool {
        self.several || id.is_owners()
    }

    /// Changes a root's record. Usage below it then counts in the new parent and no longer in the
    /// old one.
    pub(crate) fn put(&self, id: QuotaId, record: Option<QuotaRecord>) {
        let mut table = self.table.lock();
        let moves = |state: Option<QuotaState>| state.is_some_and(QuotaState::is_moving);
        let (was, is) = (table.get(&id).map(|quota| quota.record.state), record.map(|it| it.state));
        match (moves(was), moves(is)) {
            (false, true) => drop(self.moving.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.moving.fetch_sub(1, Ordering::AcqRel)),
            (true, true) | (false, false) => {}
        }
        if let Some(record) = record.filter(|record| self.several && record.parent != Ino(0)) {
            // The parent root may not have been received yet.
            table.entry(QuotaId(record.parent)).or_insert_with(Quota::unheard);
        }
        let Some(old) = table.get(&id).map(|quota| (quota.record.parent, quota.total)) else {
            if let Some(record) = record {
                table.insert(id, Quota::new(record, self.several));
            }
            return;
        };
        let record = record.or_else(|| self.stays(id).then_some(UNHEARD));
        let parent = record.map(|record| record.parent);
        if parent != Some(old.0) {
            leave(&mut table, QuotaId(old.0), old.1, self.several);
        }
        match record {
            Some(record) => {
                if parent != Some(old.0) {
                    add(&mut table, QuotaId(record.parent), old.1);
                }
                if let Some(quota) = table.get_mut(&id) {
                    quota.change(record, self.several);
                }
            }
            None => {
                table.remove(&id);
            }
        }
    }

    /// Whether the usage of root `id` could also be charged to `to`. Roots that are above both do
    /// not matter.
    ///
    /// # Errors
    /// `QuotaExceeded` when there is no room for it. With several servers `CrossDevice` when there
    /// is a limit, as nobody knows the usage of all servers at one moment.
    pub(crate) fn could_move(&self, id: QuotaId, to: QuotaId) -> Result<(), FsError> {
        let table = self.table.lock();
        let Some(quota) = table.get(&id) else { return Ok(()) };
        let above: Vec<QuotaId> = chain(&table, QuotaId(quota.record.parent)).collect();
        let mut new = chain(&table, to).filter(|id| !above.contains(id)).map(|id| &table[&id]);
        match self.several {
            true if new.any(|root| root.record.is_limited()) => Err(FsError::CrossDevice),
            false if !new.all(|root| root.has_room(quota.total)) => Err(FsError::QuotaExceeded),
            true | false => Ok(()),
        }
    }

    /// Undoes a change of a transaction.
    pub(crate) fn undo(&self, undo: Undo) {
        match undo {
            Undo::Charge(id, usage) => add(&mut self.table.lock(), id, usage.minus()),
            Undo::Record(id, record) => {
                self.put(id, record);
                // The version may have been sent to another server already.
                if self.several {
                    self.version.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
    }

    /// Adds a group's charges to its batch.
    pub(crate) fn store(&self, core: usize, charged: &mut HashMap<QuotaId, Usage>, to: &mut Batch) {
        if charged.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        for (id, usage) in charged.drain() {
            // A root whose creation was undone has no charges.
            let Some(quota) = table.get_mut(&id) else { continue };
            if quota.cores.len() <= core {
                quota.cores.resize(core + 1, Usage::default());
            }
            quota.cores[core] = quota.cores[core].plus(usage);
            let part = u16::try_from(core).expect("a machine has fewer cores");
            to.put(&key::usage(id, UsagePart::Core(part)), &quota.cores[core].to_record());
        }
    }
}

impl QuotaState {
    /// Whether a walk is changing the root that records below carry.
    pub(crate) fn is_moving(self) -> bool {
        match self {
            QuotaState::Counting | QuotaState::Removing => true,
            QuotaState::Active | QuotaState::Gone => false,
        }
    }
}

/// Room with which a mount may go on by itself.
const AMPLE: Usage = Usage { bytes: 16 << 20, entries: 1024 };

/// Record of a root that this server charges to and has not received, and of an owner without
/// limits.
pub(crate) const UNHEARD: QuotaRecord = QuotaRecord {
    state: QuotaState::Gone,
    dir: DirId(0),
    home: DirId(0),
    parent: Ino(0),
    bytes_max: None,
    entries_max: None,
};

impl Quota {
    fn new(record: QuotaRecord, several: bool) -> Quota {
        let grant = Grant::first(&record, several);
        let (total, cores) = (Usage::default(), Vec::new());
        Quota { record, total, cores, grant, left: 0, again: false }
    }

    fn unheard() -> Quota {
        Quota::new(UNHEARD, true)
    }

    fn change(&mut self, record: QuotaRecord, several: bool) {
        if !self.record.allows_as(&record) {
            self.grant = Grant::first(&record, several);
        }
        self.record = record;
    }

    fn holds(&self) -> bool {
        self.record.state == QuotaState::Active
    }

    fn has_room(&self, more: Usage) -> bool {
        self.fits(more, self.total.plus(more))
    }

    /// Whether usage may grow by `more`, to `then` in all.
    fn fits(&self, more: Usage, then: Usage) -> bool {
        let (limits, upto) = (self.record.limits(), self.grant.upto);
        let fits =
            |of: fn(Usage) -> i64| of(more) <= 0 || of(limits) == i64::MAX || of(then) <= of(upto);
        !self.holds() || (fits(|usage| usage.bytes) && fits(|usage| usage.entries))
    }
}

/// A root and all above it. A missing root ends the chain; fsck finds that.
fn chain(table: &HashMap<QuotaId, Quota>, id: QuotaId) -> impl Iterator<Item = QuotaId> {
    let known = |id: QuotaId| id.some().filter(|id| table.contains_key(id));
    // Roots nest no deeper than there are roots, whatever a damaged record says.
    std::iter::successors(known(id), move |id| known(QuotaId(table[id].record.parent)))
        .take(table.len())
}

/// Changes a root and all above it.
fn each(table: &mut HashMap<QuotaId, Quota>, id: QuotaId, change: impl Fn(&mut Quota)) {
    let mut next = id.some();
    for _ in 0..table.len() {
        let Some(quota) = next.and_then(|id| table.get_mut(&id)) else { return };
        change(quota);
        next = QuotaId(quota.record.parent).some();
    }
}

fn add(table: &mut HashMap<QuotaId, Quota>, id: QuotaId, usage: Usage) {
    each(table, id, |quota| quota.total = quota.total.plus(usage));
}

/// Subtracts usage that no longer counts below a root. With several servers this makes no room:
/// another server may have released it. What was allowed before counts no more.
fn leave(table: &mut HashMap<QuotaId, Quota>, id: QuotaId, usage: Usage, several: bool) {
    let less = usage.minus();
    each(table, id, |quota| {
        quota.total = quota.total.plus(less);
        if several {
            let upto = quota.grant.upto.plus(less.min(Usage::default()));
            quota.grant = Grant { round: 0, upto };
            quota.left += 1;
        }
    });
}

fn take_in(
    table: &mut HashMap<QuotaId, Quota>,
    several: bool,
    key: &[u8],
    value: &[u8],
) -> Result<(), base::DecodeError> {
    let value = Bytes::copy_from_slice(value);
    match key::parse_usage(key).ok_or(base::DecodeError::Invalid("quota key"))? {
        (id, UsagePart::Root) => {
            let record = QuotaRecord::from_record(&value)?;
            let again = record.state.is_moving();
            table.insert(id, Quota { again, ..Quota::new(record, several) });
        }
        (id, UsagePart::Core(core)) => {
            let usage = Usage::from_record(&value)?;
            if several || id.is_owners() {
                table.entry(id).or_insert_with(Quota::unheard);
            }
            // The root is missing; fsck reports that.
            let Some(quota) = table.get_mut(&id) else { return Ok(()) };
            quota.cores.resize(usize::from(core) + 1, Usage::default());
            quota.cores[usize::from(core)] = usage;
        }
    }
    Ok(())
}

/// Charges to a root itself.
fn direct(quota: &Quota) -> Usage {
    quota.cores.iter().fold(Usage::default(), |sum, usage| sum.plus(*usage))
}

fn forget_gone(engine: &dyn Engine, table: &mut HashMap<QuotaId, Quota>) -> store::Result<()> {
    let parents: Vec<Ino> = table.values().map(|quota| quota.record.parent).collect();
    let gone: Vec<QuotaId> = table
        .iter()
        .filter(|(id, quota)| {
            let empty = direct(quota) == Usage::default() && !parents.contains(&id.0);
            // The superuser's account says that owners are counted.
            quota.record.state == QuotaState::Gone && empty && **id != owners::superuser()
        })
        .map(|(id, _)| *id)
        .collect();
    let mut batch = Batch::default();
    for id in gone {
        let cores = table.remove(&id).map_or(0, |quota| quota.cores.len());
        batch.delete(&key::usage(id, UsagePart::Root));
        for core in 0..u16::try_from(cores).unwrap_or(u16::MAX) {
            batch.delete(&key::usage(id, UsagePart::Core(core)));
        }
    }
    if batch.is_empty() { Ok(()) } else { engine.write(batch) }
}

fn add_up(table: &mut HashMap<QuotaId, Quota>) {
    let direct: Vec<(QuotaId, Usage)> =
        table.iter().map(|(id, quota)| (*id, direct(quota))).collect();
    for (id, usage) in direct {
        add(table, id, usage);
    }
}

#[cfg(test)]
mod tests;
