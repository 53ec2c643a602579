//! Stable storage that is far behind: changes wait until it has caught up.
//!
//! A server whose stable storage is elsewhere, in a journal, goes on while that is slow. So that
//! never more than a bound is lost with the machine, who keeps the journal says when it is too far
//! behind ([`Server::stable_storage_lags`](crate::Server::stable_storage_lags)). Then each change
//! waits apart from its core ([`wait`]), and reads, leases and what has changed already go on.
//!
//! Not here: how far is too far, and what the storage is.

pub(crate) mod wait;

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether stable storage is too far behind.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    is_long: AtomicBool,
    ended: Notify,
}

impl Lag {
    /// Says whether stable storage is too far behind from now on.
    pub(crate) fn set(&self, is_long: bool) {
        if self.is_long.swap(is_long, Ordering::AcqRel) && !is_long {
            self.ended.notify_waiters();
        }
    }

    /// Whether changes wait.
    pub(crate) fn is_long(&self) -> bool {
        self.is_long.load(Ordering::Acquire)
    }

    /// Returns when changes go on.
    async fn over(&self) {
        loop {
            let ended = self.ended.notified();
            if !self.is_long() {
                return;
            }
            ended.await;
        }
    }
}
