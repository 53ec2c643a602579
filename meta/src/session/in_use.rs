//! The wait for a session that is in use.

use std::sync::Arc;

use super::Session;
use crate::{server::Shared, wait::WaitNow};

/// Groups hold requests of a session that is to end.
#[derive(Debug)]
pub(crate) struct InUse(pub(crate) Arc<Session>);

impl WaitNow for InUse {
    fn pass(&self, _shared: &Shared) {
        self.0.wait_until_unused();
    }
}
