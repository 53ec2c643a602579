//! How much a server of several may charge to a root with limits, as allowed by the coordinator.
//!
//! A server charges to a root, and to those above, while its charges stay within its *allowance* of
//! each. All allowances of a root together are within its limits ([`ledger`](super::ledger)), so no
//! server needs another to charge. A server without room asks for more ([`ask`](super::ask)).
//!
//! Released usage makes room at once, on this server. It goes back to the others in *rounds*, in
//! which servers say what they use. An allowance counts only until the next round, so one that was
//! on its way meanwhile is ignored.
//!
//! Race: usage that a transaction of another core has released may be given back before that
//! transaction fails, or before the server dies without having written it. A limit may then be
//! exceeded by as much.

use wire::{Allowed, Amounts, AskRoom, Gave, GiveRoom};

use super::{QuotaId, Quotas};
use crate::{
    bugs::{Bug, Planted},
    record::{QuotaRecord, Usage},
};

/// Bound on all that a server may charge to a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Round in which the server last said what it uses; 0 if it has not since it started.
    pub(crate) round: u64,
    pub(crate) upto: Usage,
}

impl Allowance {
    /// An allowance that lets nothing grow.
    const NONE: Allowance =
        Allowance { round: 0, upto: Usage { bytes: i64::MIN, entries: i64::MIN } };

    /// The allowance of a root that is new here. A single server may use the whole limit.
    pub(super) fn first(record: &QuotaRecord, several: bool) -> Allowance {
        if several { Allowance::NONE } else { Allowance { round: 0, upto: record.limits() } }
    }
}

/// A root without room for a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    /// The root that is full.
    pub(crate) root: QuotaId,
    /// The charge that does not fit: all that a transaction charges there, less what it releases.
    pub(crate) more: Usage,
}

/// The coordinator's last word on room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    /// The coordinator has no room.
    Full(Short),
    /// The request may not ask: it fails when this server has no room.
    MayNotAsk,
}

impl Heard {
    /// Whether a need fails too: as much as was refused, or more, below the same root.
    pub(crate) fn refuses(self, short: Short) -> bool {
        match self {
            Heard::Nothing => false,
            Heard::MayNotAsk => true,
            Heard::Full(full) => full.root == short.root && short.more.max(full.more) == short.more,
        }
    }
}

impl Quotas {
    /// An active root, and how often usage below it came to count elsewhere.
    pub(super) fn holding(&self, root: QuotaId) -> Option<(QuotaRecord, u64)> {
        let table = self.table.lock();
        let quota = table.get(&root).filter(|quota| quota.holds())?;
        Some((quota.record, quota.left))
    }

    /// The question to the coordinator; `None` if there is room by now.
    pub(super) fn wants(&self, short: Short) -> Option<AskRoom> {
        let table = self.table.lock();
        let quota = table.get(&short.root).filter(|quota| !quota.has_room(short.more))?;
        let (round, used) = (quota.allowance.round, quota.total.into());
        Some(AskRoom { root: short.root.0, round, used, more: short.more.into() })
    }

    /// Takes in a larger allowance from the coordinator.
    pub(super) fn allow(&self, root: QuotaId, allowed: Allowed) {
        let mut table = self.table.lock();
        let Some(quota) = table.get_mut(&root) else { return };
        let Allowance { round, upto } = &mut quota.allowance;
        if *round == allowed.round {
            // Two answers may come in any order; within a round the allowance only grows.
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
        let had = quota.allowance.upto;
        let upto = if bugs.has(Bug::AllowanceKept) {
            had
        } else if bugs.has(Bug::BytesAllowanceKept) {
            Usage { bytes: had.bytes, ..quota.total }
        } else {
            quota.total
        };
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
