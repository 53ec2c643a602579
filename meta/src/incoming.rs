//! A request that has arrived at a core, and what is known of it.

use std::{cell::Cell, rc::Rc};

use base::FsError;
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
    /// User and group that the client has named, once they were made those of the file system;
    /// `None`: they are the same.
    pub(crate) asked_as: Option<(u32, u32)>,
}

impl Incoming {
    /// Makes the ids of the request those of the file system, where its session's token squashes
    /// or maps them. Only the first call does: a request is executed again with what it has become.
    ///
    /// Race: a request that is ahead of its Hello has no session yet, and is refused.
    ///
    /// # Errors
    /// Fails as [`wire::IdMapping::take_in`] does.
    pub(crate) fn take_in_ids(&mut self) -> Result<(), FsError> {
        if self.asked_as.is_some() {
            return Ok(());
        }
        let Some(ids) = self.connection.ids() else { return Ok(()) };
        self.asked_as = Some((self.header.cred.uid, self.header.cred.gid));
        self.header.cred = ids.acting(&self.header.cred);
        ids.take_in(&mut self.request)
    }

    /// Returns since when the request has waited for a transaction of others; the first call starts
    /// the wait.
    pub(crate) fn waits_since(&self) -> Instant {
        let since = self.waited_since.get().unwrap_or_else(Instant::now);
        self.waited_since.set(Some(since));
        since
    }
}
