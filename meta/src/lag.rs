//! Stable storage that is far behind: changes wait until it has caught up.
//!
//! A server whose stable storage is elsewhere, in a journal, goes on while that is slow. So that
//! never more than a bound is lost with the machine, who keeps the journal says when it is too far
//! behind ([`Server::stable_storage_lags`](crate::Server::stable_storage_lags)). Then each change
//! waits apart from its core, and reads, leases and what has changed already go on.
//!
//! Not here: how far is too far, and what the storage is.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::{FutureExt as _, future::LocalBoxFuture};
use tokio::sync::Notify;

use crate::{
    error::{Fault, Result},
    incoming::Incoming,
    wait::{AtCore, Wait, WaitApart},
};

/// Whether stable storage is too far behind.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    is_long: AtomicBool,
    ended: Notify,
}

/// The wait for stable storage to catch up.
#[derive(Debug)]
struct CaughtUp;

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

    /// Lets a change begin, or has it wait.
    pub(crate) fn admits(&self) -> Result<()> {
        if self.is_long() { Err(Fault::Wait(Wait::Apart(Box::new(CaughtUp)))) } else { Ok(()) }
    }

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

impl WaitApart for CaughtUp {
    fn over<'a>(&'a self, at: AtCore<'a>, _of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        at.shared.lag.over().boxed_local()
    }

    fn changes_records(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_wait_for_as_long_as_it_is_behind() {
        let lag = Lag::default();
        assert!(lag.admits().is_ok());
        lag.over().await;
        lag.set(true);
        assert!(matches!(lag.admits(), Err(Fault::Wait(Wait::Apart(_)))));
        let over = lag.over();
        tokio::pin!(over);
        assert!(futures::poll!(over.as_mut()).is_pending());
        lag.set(true);
        assert!(futures::poll!(over.as_mut()).is_pending());
        lag.set(false);
        over.await;
        assert!(lag.admits().is_ok());
    }
}
