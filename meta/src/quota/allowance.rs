//! How much a server of several may charge to a root with limits, as far as the coordinator has allowed it.
//!
//! A server charges to a root, and to those above, while what it has charged stays within its *allowance* of each. All
//! allowances of a root together are within its limits ([`ledger`](super::ledger)), so nobody needs another server to charge.
//! Who has no room left asks for more ([`ask`](super::ask)).
//!
//! What is released makes room at once, here. It is given back in *rounds*, in which servers say what they use: an
//! allowance counts only until the next one, so that one that was under way meanwhile is passed over.
//!
//! Race: what a transaction of another core has released is given back already when that transaction fails, or the server dies
//! before it is written. Then a limit may be exceeded by as much.

use wire::{Allowed, Amounts, AskRoom, Gave, GiveRoom};

use super::{QuotaId, Quotas};
use crate::{
    bugs::{Bug, Planted},
    record::{QuotaRecord, Usage},
};

/// What a server may charge to a root in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// When the server last said what it uses; 0: not yet, since it started.
    pub(crate) round: u64,
    pub(crate) upto: Usage,
}

impl Allowance {
    /// Nothing may grow.
    const NONE: Allowance =
        Allowance { round: 0, upto: Usage { bytes: i64::MIN, entries: i64::MIN } };

    /// Of a root that is new here. One server alone may use all of it.
    pub(super) fn first(record: &QuotaRecord, several: bool) -> Allowance {
        if several { Allowance::NONE } else { Allowance { round: 0, upto: record.limits() } }
    }
}

/// There is no room for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    /// Below this root.
    pub(crate) root: QuotaId,
    /// What there is no room for: all that a transaction charges there, less what it releases.
    pub(crate) more: Usage,
}

/// What a request has heard of the room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    /// There is none.
    Full(Short),
    /// It may not ask: there is none where this server has none.
    MayNotAsk,
}

impl Heard {
    /// Whether there is none for what is short now.
    pub(crate) fn refuses(self, short: Short) -> bool {
        match self {
            Heard::Nothing => false,
            Heard::MayNotAsk => true,
            Heard::Full(full) => full.root == short.root && short.more.max(full.more) == short.more,
        }
    }
}

impl Quotas {
    /// A root that holds, and how often something that was used below it came to count elsewhere.
    pub(super) fn holding(&self, root: QuotaId) -> Option<(QuotaRecord, u64)> {
        let table = self.table.lock();
        let quota = table.get(&root).filter(|quota| quota.holds())?;
        Some((quota.record, quota.left))
    }

    /// What to ask the coordinator; `None`: there is room by now.
    pub(super) fn wants(&self, short: Short) -> Option<AskRoom> {
        let table = self.table.lock();
        let quota = table.get(&short.root).filter(|quota| !quota.has_room(short.more))?;
        let (round, used) = (quota.allowance.round, quota.total.into());
        Some(AskRoom { root: short.root.0, round, used, more: short.more.into() })
    }

    /// The coordinator allows more.
    pub(super) fn allow(&self, root: QuotaId, allowed: Allowed) {
        let mut table = self.table.lock();
        let Some(quota) = table.get_mut(&root) else { return };
        let Allowance { round, upto } = &mut quota.allowance;
        if *round == allowed.round {
            // Two answers may come in any order; in a round there is only more and more.
            *upto = upto.max(allowed.amounts.into());
        }
    }

    /// Gives back what is allowed and not used.
    pub(crate) fn give(&self, give: &GiveRoom, bugs: Planted) -> Gave {
        let mut table = self.table.lock();
        let roots = self.version();
        let Some(quota) = table.get_mut(&QuotaId(give.root)) else {
            return Gave { roots, used: Usage::default().into() };
        };
        let upto = if bugs.has(Bug::AllowanceKept) { quota.allowance.upto } else { quota.total };
        quota.allowance = Allowance { round: give.round, upto };
        Gave { roots, used: quota.total.into() }
    }
}

impl From<Amounts> for Usage {
    fn from(Amounts { bytes, entries }: Amounts) -> Usage {
        Usage { bytes, entries }
    }
}

impl From<Usage> for Amounts {
    fn from(Usage { bytes, entries }: Usage) -> Amounts {
        Amounts { bytes, entries }
    }
}
