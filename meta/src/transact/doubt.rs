//! How operations wait for transactions in doubt.
//!
//! An early mkdir, which would take its time otherwise, is expedited. Others only say what they
//! wait for.

use futures::future::{FutureExt as _, LocalBoxFuture};

use super::locks::{Doubt, Has};
use crate::{
    error::Fault,
    incoming::Incoming,
    server::Shared,
    wait::{AtCore, Wait, WaitApart},
};

impl From<Doubt> for Fault {
    fn from(doubt: Doubt) -> Fault {
        Fault::Wait(Wait::Apart(Box::new(doubt)))
    }
}

impl WaitApart for Doubt {
    fn begin(&self, of: &Incoming) {
        of.waits_since();
    }

    fn over<'a>(&'a self, at: AtCore<'a>, of: Option<&'a Incoming>) -> LocalBoxFuture<'a, ()> {
        async move {
            let shared = at.shared;
            let (moves, since) = (shared.handoffs.is_of(self.txn), shared.observed.now());
            self.ended(shared).await;
            // Times for which names are frozen are measured at clients' requests.
            if let Some(incoming) = of.filter(|of| moves && !of.request.kind().between_servers) {
                let waited = shared.observed.now().since(since);
                incoming.parked.add(shared, at.core, waited);
            }
        }
        .boxed_local()
    }

    fn changes_records(&self) -> bool {
        true
    }
}

impl Doubt {
    /// Returns when the transaction has ended, which is expedited.
    pub(super) async fn ended(self, shared: &Shared) {
        self.expedite(shared);
        shared.prepared.until_ended(self).await;
    }

    /// Has an early mkdir in the way confirmed at once.
    fn expedite(self, shared: &Shared) {
        match shared.prepared.early_mkdir(self.txn) {
            Some(Has::Content) => shared.early_mkdirs.want([self.txn]),
            Some(Has::Entry) => shared.early_mkdirs.hurry(),
            None => {}
        }
    }
}

/// Has all early mkdirs confirmed at once whose entries are here: they may hold names, and end no
/// earlier than their round otherwise.
pub(crate) fn expedite_entries(shared: &Shared) {
    shared.early_mkdirs.hurry();
}
