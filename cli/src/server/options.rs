//! Options of a server.

use std::{num::NonZeroUsize, time::Duration};

use meta::{Durability, MemoryBudget, Word};

use super::listen::{Listen, Tls};
use crate::{audit::AuditOptions, data::Kept};

/// Options of a server.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) listen: Listen,
    /// Address of the status page; `None`: there is none.
    pub(crate) http: Option<Listen>,
    pub(crate) tls: Tls,
    /// Address at which others reach the server, if it is not the one that it listens on.
    pub(crate) advertise: Option<String>,
    /// Addresses that the data directory keeps for later starts.
    pub(crate) kept: Kept,
    pub(crate) cores: NonZeroUsize,
    /// One core more runs on the thread that starts the server ([`Running::near`]).
    pub(crate) near: bool,
    pub(crate) durability: Durability,
    /// The audit log, if there is one.
    pub(crate) audit: Option<AuditOptions>,
    pub(crate) commit_interval: Duration,
    pub(crate) lease: Duration,
    /// Bytes of the disks that are kept free; `None`: what is sensible for their size.
    pub(crate) reserve: Option<u64>,
    /// More connections than this are refused; `None`: as many as leave files to be opened.
    pub(crate) connections_max: Option<usize>,
    /// More sessions than this are not opened.
    pub(crate) sessions_max: usize,
    /// More sessions than this are not opened with one token.
    pub(crate) sessions_a_token_max: usize,
    /// Partitions split by a locked scan, for measurements.
    pub(crate) split_by_locked_scan: bool,
    /// Memory of the process.
    pub(crate) memory: MemoryBudget,
    pub(crate) role: Role,
    /// Time for which a server of several serves, without a lease, operations that stand on no
    /// cached path.
    pub(crate) alone: Duration,
    /// The operator's word on the data directory.
    pub(crate) word: Word,
    /// The segment at which the journal was seen to end, of a server that has stood by.
    pub(crate) ends_at: Option<u64>,
    /// Added to round trips to other servers, for measurements.
    pub(crate) peer_rtt: Duration,
}

/// The role of a server among those of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only one.
    Alone,
    /// The first of several, which the others come to.
    Coordinator {
        /// Time for which a server of the cluster serves without hearing of the coordinator.
        lease: Duration,
    },
    /// A server other than the coordinator.
    Member {
        /// Where the coordinator may be, besides where it was last.
        coordinators: Vec<String>,
    },
}

/// [`Role::Coordinator`]'s `lease`, unless told otherwise.
pub(crate) const CLUSTER_LEASE: Duration = Duration::from_secs(3);

/// Default of the time for which servers of several go on without their coordinator.
pub(crate) const ALONE: Duration = Duration::from_secs(600);
