//! Charges within a transaction: usage that an operation adds to quotas, and gives back when it
//! fails.

use base::FsError;

use super::Txn;
use crate::{
    error::Result,
    quota::{Limits, Quotas, Undo},
    record::{
        Accounts, Content, Inode, QuotaId, QuotaRecord, QuotaState, Usage, key, key::UsagePart,
    },
};

/// The changes of a transaction to the table of quotas; they are taken back unless it commits.
pub(super) struct Charges<'a> {
    quotas: &'a Quotas,
    done: Vec<Undo>,
}

impl<'a> Charges<'a> {
    pub(super) fn new(quotas: &'a Quotas) -> Charges<'a> {
        Charges { quotas, done: Vec::new() }
    }

    /// Whether accounting roots were changed.
    pub(super) fn changes_roots(&self) -> bool {
        self.done.iter().any(|undo| matches!(undo, Undo::Record(..)))
    }

    /// Returns the charges, to be stored; from now on they are not taken back.
    pub(super) fn keep(mut self) -> impl Iterator<Item = (QuotaId, Usage)> {
        std::mem::take(&mut self.done).into_iter().filter_map(|undo| match undo {
            Undo::Charge(id, usage) => Some((id, usage)),
            Undo::Record(..) => None,
        })
    }
}

impl Drop for Charges<'_> {
    fn drop(&mut self) {
        while let Some(undo) = self.done.pop() {
            self.quotas.undo(undo);
        }
    }
}

impl Txn<'_> {
    /// Charges new usage. Fails with `QuotaExceeded` when an account has no room for it.
    pub(crate) fn charge(&mut self, to: Accounts, usage: Usage) -> Result<()> {
        self.charge_with(to, usage, Limits::Hold)
    }

    /// Charges usage, or with negative numbers releases it, whatever the limits are.
    pub(crate) fn charge_freely(&mut self, to: Accounts, usage: Usage) {
        self.charge_with(to, usage, Limits::Pass).expect("no limit is looked at");
    }

    fn charge_with(&mut self, to: Accounts, usage: Usage, limits: Limits) -> Result<()> {
        if usage == Usage::default() {
            return Ok(());
        }
        let quotas = &self.shared.quotas;
        if let Err(short) = quotas.charge(to, usage, limits, &self.charges.done) {
            if !self.caller.grant_state.refuses(short) && self.shared.cluster.is_some() {
                return Err(short.into());
            }
            let session = self.caller.session.filter(|_| self.is_held() && short.root.is_owners());
            let Some(session) = session else { return Err(FsError::QuotaExceeded.into()) };
            // A program was told already that it is done. From now on its mount asks first.
            self.shared.delegations.passed_limit(session.id, short.root);
            let passed = quotas.charge(to, usage, Limits::Pass, &[]);
            passed.expect("no limit is looked at");
        }
        self.charges.done.extend(to.ids().map(|id| Undo::Charge(id, usage)));
        Ok(())
    }

    /// Charges the difference when a file grows or shrinks.
    pub(crate) fn charge_change(&mut self, to: Accounts, was: u64, is: u64) -> Result<()> {
        self.charge(to, Usage::of(0, is).plus(Usage::of(0, was).minus()))
    }

    /// Like [`Txn::charge_change`], whatever the limits are.
    pub(crate) fn charge_change_freely(&mut self, to: Accounts, was: u64, is: u64) {
        self.charge_freely(to, Usage::of(0, is).plus(Usage::of(0, was).minus()));
    }

    /// Moves a charge from some accounts to others.
    pub(crate) fn recharge(&mut self, from: Accounts, to: Accounts, usage: Usage) -> Result<()> {
        let (from, to) = from.apart(to);
        // Released first, so that quotas above both do not change.
        self.charge_freely(from, usage.minus());
        self.charge(to, usage)
    }

    /// Like [`Txn::recharge`], whatever the limits are.
    pub(crate) fn recharge_freely(&mut self, from: Accounts, to: Accounts, usage: Usage) {
        let (from, to) = from.apart(to);
        self.charge_freely(from, usage.minus());
        self.charge_freely(to, usage);
    }

    /// Charges a file to the quota `to` from now on.
    pub(crate) fn count_for(&mut self, inode: &mut Inode, to: QuotaId) -> Result<()> {
        let from = inode.accounts();
        self.recharge(from, Accounts { quota: to, ..from }, inode.usage())?;
        inode.quota = to;
        Ok(())
    }

    /// Like [`Txn::count_for`], whatever the limits are.
    pub(crate) fn count_freely_for(&mut self, inode: &mut Inode, to: QuotaId) {
        self.change_freely(inode, |inode| inode.quota = to);
    }

    /// Changes what a file is charged to, whatever the limits are.
    pub(crate) fn change_freely(&mut self, inode: &mut Inode, change: impl FnOnce(&mut Inode)) {
        let (from, usage) = (inode.accounts(), inode.usage());
        change(inode);
        self.recharge_freely(from, inode.accounts(), usage);
    }

    /// Ends the accounting root that a removed directory is, if it is one. In a cluster the
    /// coordinator finds out.
    pub(crate) fn end_root(&mut self, content: &Content) {
        let id = QuotaId(content.ino);
        if content.quota == id
            && self.shared.cluster.is_none()
            && let Some(seen) = self.shared.quotas.get(id)
        {
            self.put_quota(id, &QuotaRecord { state: QuotaState::Gone, ..seen.record });
        }
    }

    /// Stores an accounting root. In a cluster the coordinator does it.
    pub(crate) fn put_quota(&mut self, id: QuotaId, record: &QuotaRecord) {
        let old = self.shared.quotas.get(id).map(|seen| seen.record);
        self.shared.quotas.put(id, Some(*record));
        self.charges.done.push(Undo::Record(id, old));
        self.put(key::usage(id, UsagePart::Root), record);
    }
}
