//! The bytes that were written to all files and not sent yet, and how many there may be.
//!
//! `write` takes from the budget and waits at its end. What was sent or is lost is given back.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// How much was written and not sent, over all files.
pub(crate) struct Budget {
    used: AtomicU64,
    max: u64,
    pub(super) freed: Notify,
}

impl Budget {
    pub(crate) fn new(max: u64) -> Budget {
        Budget { used: AtomicU64::new(0), max: max.max(1), freed: Notify::new() }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.used.load(Ordering::Acquire) >= self.max
    }

    pub(super) fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
        self.freed.notify_waiters();
    }
}
