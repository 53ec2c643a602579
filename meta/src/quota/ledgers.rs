//! The ledgers of all roots, and the lock around them.

use base::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ledger::Ledger;
use crate::record::QuotaId;

/// The coordinator's ledgers, one for each root.
#[derive(Default)]
pub(crate) struct Ledgers {
    pub(super) of: Mutex<HashMap<QuotaId, Ledger>>,
    /// Notified when a round is over.
    pub(super) over: Notify,
}
