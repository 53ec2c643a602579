//! The wait of a change for stable storage to catch up.

use futures::{FutureExt as _, future::LocalBoxFuture};

use super::Lag;
use crate::{
    error::{Fault, Result},
    incoming::Incoming,
    wait::{AtCore, Wait, WaitApart},
};

/// The wait for stable storage to catch up.
#[derive(Debug)]
struct CaughtUp;

/// Lets a change begin, or has it wait.
pub(crate) fn admits(lag: &Lag) -> Result<()> {
    if lag.is_long() { Err(Fault::Wait(Wait::Apart(Box::new(CaughtUp)))) } else { Ok(()) }
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
        assert!(admits(&lag).is_ok());
        lag.over().await;
        lag.set(true);
        assert!(matches!(admits(&lag), Err(Fault::Wait(Wait::Apart(_)))));
        let over = lag.over();
        tokio::pin!(over);
        assert!(futures::poll!(over.as_mut()).is_pending());
        lag.set(true);
        assert!(futures::poll!(over.as_mut()).is_pending());
        lag.set(false);
        over.await;
        assert!(admits(&lag).is_ok());
    }
}
