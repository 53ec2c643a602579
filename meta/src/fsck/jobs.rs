//! The latest check of a server, and what it asks of cores.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{asked::Asked, repairs::Repairs, report::Report};

/// The latest check, running or done.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(super) latest: Mutex<Option<Job>>,
    pub(super) repairs: Repairs,
    pub(super) asked: Asked,
}

impl Jobs {
    /// Whether a check of this server goes on.
    pub(crate) fn are_checking(&self) -> bool {
        self.latest.lock().as_ref().is_some_and(|job| !job.report.is_done())
    }
}

pub(super) struct Job {
    pub(super) number: u64,
    pub(super) report: Arc<Report>,
}
