//! Waits: what is in the way of an operation, and how to let it pass.
//!
//! A mechanism that has an operation wait hands it a value of the mechanism's own, which is then
//! the operation's fault ([`Fault::Wait`]). `core` lets the wait pass
//! and runs the operation again. Neither of them knows what is awaited.
//!
//! Invariant: an operation that waits has no effect, and holds no lock, until it is run again.

use std::fmt::Debug;

use futures::future::LocalBoxFuture;

use crate::{Core, driver::Incoming, error::Fault, server::Shared};

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

impl<W: WaitNow + 'static> From<W> for Fault {
    fn from(wait: W) -> Fault {
        Fault::Wait(Wait::Now(Box::new(wait)))
    }
}

/// A wait for servers, or for operations that involve other servers.
pub(crate) trait WaitApart: Debug {
    /// Returns when the operation can be run again, on this core. A client's request may note why
    /// it has waited.
    fn over<'a>(&'a self, core: &'a Core, of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()>;

    /// Whether records change meanwhile, so that an operation over several servers reads them anew.
    /// Otherwise it begins from nothing, and may presume what it presumed before.
    fn changes_records(&self) -> bool;
}
