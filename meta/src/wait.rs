//! Waits: what is in the way of an operation, and how to let it pass.
//!
//! A mechanism that has an operation wait hands it a value of the mechanism's own, which is then
//! the operation's fault ([`Fault::Wait`](crate::error::Fault)). `core` lets the wait pass and runs
//! the operation again. Neither of them knows what is awaited.
//!
//! Invariant: an operation that waits has written nothing. Locks that it has taken stay with its
//! core's group until the group is written, which is before a wait on the core's thread begins, and
//! soon after one apart does.

use std::{fmt::Debug, sync::Arc};

use futures::future::LocalBoxFuture;

use crate::{incoming::Incoming, peer::Peers, server::Shared};

/// The obstacle of an operation, and how to let it pass.
#[derive(Debug)]
pub(crate) enum Wait {
    /// Groups are in the way. The core writes its own group and waits; everything else on this core
    /// waits meanwhile.
    Now(Box<dyn WaitNow>),
    /// Something takes longer. The operation waits apart, and the core goes on with others.
    Apart(Box<dyn WaitApart>),
}

/// A wait that ends with the groups of other cores, or with this core's own.
pub(crate) trait WaitNow: Debug {
    /// Blocks this thread until the operation can be run again. The core's own group is written.
    fn pass(&self, shared: &Shared);

    /// Whether the operation must be run while no other core has a group under way.
    fn wants_alone(&self) -> bool {
        false
    }
}

/// A core, as the mechanisms below it see it: the memory of the server, and the other
/// servers.
#[derive(Clone, Copy)]
pub(crate) struct AtCore<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) peers: &'a Peers,
    /// Number of the core.
    pub(crate) core: usize,
}

/// A wait for servers, or for operations that involve other servers.
pub(crate) trait WaitApart: Debug {
    /// A client's request begins this wait.
    fn begin(&self, _of: &Incoming) {}

    /// Returns when the operation can be run again, on this core. A client's request may note why
    /// it has waited.
    fn over<'a>(&'a self, at: AtCore<'a>, of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()>;

    /// Whether to wait is what the request asks for: the time of its answer is counted from the end
    /// of the wait.
    fn is_asked_for(&self) -> bool {
        false
    }

    /// Whether records change meanwhile, so that an operation over several servers reads them anew.
    /// Otherwise it begins from nothing, and may assume what it assumed before.
    fn changes_records(&self) -> bool;
}
