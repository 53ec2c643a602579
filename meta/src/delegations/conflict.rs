//! The wait of a request for a directory that another session holds.

use base::DirId;
use futures::future::{FutureExt as _, LocalBoxFuture};
use wire::Request;

use crate::{
    bugs::Bug,
    error::{Fault, Result},
    incoming::Incoming,
    record::key,
    txn::Txn,
    wait::{AtCore, Wait, WaitApart},
};

/// A directory that another session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldByOther(pub(crate) DirId);

impl From<HeldByOther> for Fault {
    fn from(held: HeldByOther) -> Fault {
        Fault::Wait(Wait::Apart(Box::new(held)))
    }
}

impl WaitApart for HeldByOther {
    fn begin(&self, of: &Incoming) {
        of.waits_since();
    }

    fn over<'a>(&'a self, at: AtCore<'a>, _of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        at.shared.delegations.until_ended(self.0).boxed_local()
    }

    fn changes_records(&self) -> bool {
        true
    }
}

/// Whether a request of the session that holds a directory recalls it at no server: the mount knows
/// the directory as the request leaves it. Others change what it does not know, such as counts.
pub(crate) fn keeps_held(request: &Request) -> bool {
    matches!(request, Request::Setattr(_))
}

impl Txn<'_> {
    /// Refuses a use of a key that is covered by a delegation of another session: the request waits
    /// until the directory is given back.
    pub(crate) fn settle_held(&self, key: &[u8]) -> Result<()> {
        let held = &self.shared.delegations;
        if !held.any() || self.shared.bugs.has(Bug::RecallNotAwaited) {
            return Ok(());
        }
        let Some(dir) = key::parse_covered(key) else { return Ok(()) };
        match held.holder(dir) {
            None => Ok(()),
            Some(holder) if self.keeps_held_by(holder) => Ok(()),
            Some(_) => {
                // Not everybody waits: another server is told to ask again.
                held.recall(dir);
                Err(HeldByOther(dir).into())
            }
        }
    }
}
