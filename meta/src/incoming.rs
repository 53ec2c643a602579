//! A request that has arrived at a core, and what is known of it.

use std::{cell::Cell, rc::Rc};

use tokio::time::Instant;
use wire::{Request, RequestHeader};

use crate::{
    brought::Brought,
    observe::{Nanos, Parked},
    quota::grant::GrantState,
    serve::connection::{Connection, Waits},
};

/// A request that has arrived.
pub(crate) struct Incoming {
    pub(crate) connection: Rc<Connection>,
    pub(crate) header: RequestHeader,
    pub(crate) request: Request,
    /// The time at which the request's bytes were read.
    pub(crate) arrived: Nanos,
    /// The time that the request has waited for names that move.
    pub(crate) parked: Parked,
    /// The coordinator's answer about room below quotas.
    pub(crate) grant_state: Cell<GrantState>,
    /// The request's place among those of its connection that wait, while it waits.
    pub(crate) waits: Option<Waits>,
    /// Since when the request has waited for transactions of others, if it has.
    pub(crate) waited_since: Cell<Option<Instant>>,
    /// State of the blocks that the request brings.
    pub(crate) brought: Cell<Brought>,
}

impl Incoming {
    /// Returns since when the request has waited for a transaction of others; the first call starts
    /// the wait.
    pub(crate) fn waits_since(&self) -> Instant {
        let since = self.waited_since.get().unwrap_or_else(Instant::now);
        self.waited_since.set(Some(since));
        since
    }
}
