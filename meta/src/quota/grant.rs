//! How much a server of several may charge to a root with limits, as allowed by the coordinator.
//!
//! A server charges to a root, and to those above, while its charges stay within its *grant* of
//! each. All grants of a root together are within its limits ([`ledger`](super::ledger)), so no
//! server needs another to charge. A server without room asks for more ([`ask`](super::ask)).
//!
//! Released usage makes room at once, on this server. It goes back to the others in *rounds*, in
//! which servers say what they use. A grant counts only until the next round, so one that was
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
pub(crate) struct Grant {
    /// Round in which the server last said what it uses; 0 if it has not since it started.
    pub(crate) round: u64,
    pub(crate) upto: Usage,
}

impl Grant {
    /// A grant that lets nothing grow.
    const NONE: Grant = Grant { round: 0, upto: Usage { bytes: i64::MIN, entries: i64::MIN } };

    /// The grant of a root that is new here. A single server may use the whole limit.
    pub(super) fn first(record: &QuotaRecord, several: bool) -> Grant {
        if several { Grant::NONE } else { Grant { round: 0, upto: record.limits() } }
    }
}

/// A root without room for a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedsGrant {
    /// The root that is full.
    pub(crate) root: QuotaId,
    /// The charge that does not fit: all that a transaction charges there, less what it releases.
    pub(crate) more: Usage,
}

/// The coordinator's last word on room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantState {
    Nothing,
    /// The coordinator has no room.
    Full(NeedsGrant),
    /// The request may not ask: it fails when this server has no room.
    MayNotAsk,
}

impl GrantState {
    /// Whether a need fails too: as much as was refused, or more, below the same root.
    pub(crate) fn refuses(self, short: NeedsGrant) -> bool {
        match self {
            GrantState::Nothing => false,
            GrantState::MayNotAsk => true,
            GrantState::Full(full) => {
                full.root == short.root && short.more.max(full.more) == short.more
            }
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
    pub(super) fn wants(&self, short: NeedsGrant) -> Option<AskRoom> {
        let table = self.table.lock();
        let quota = table.get(&short.root).filter(|quota| !quota.has_room(short.more))?;
        let (round, used) = (quota.grant.round, quota.total.into());
        Some(AskRoom { root: short.root.0, round, used, more: short.more.into() })
    }

    /// Takes in a larger grant from the coordinator.
    pub(super) fn allow(&self, root: QuotaId, allowed: Allowed) {
        let mut table = self.table.lock();
        let Some(quota) = table.get_mut(&root) else { return };
        let Grant { round, upto } = &mut quota.grant;
        if *round == allowed.round {
            // Two answers may come in any order; within a round the grant only grows.
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
        let had = quota.grant.upto;
        let upto = if bugs.has(Bug::AllowanceKept) {
            had
        } else if bugs.has(Bug::BytesAllowanceKept) {
            Usage { bytes: had.bytes, ..quota.total }
        } else {
            quota.total
        };
        quota.grant = Grant { round: give.round, upto };
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
