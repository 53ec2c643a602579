//! A clock that is moved by hand, so that two file systems give the same times.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use base::{Clock, Time};

/// The time in whole seconds. Clones show the same time.
#[derive(Debug, Clone)]
pub struct HandClock(Arc<AtomicI64>);

impl HandClock {
    /// A clock that shows `sec` until it is moved.
    #[must_use]
    pub fn at(sec: i64) -> HandClock {
        HandClock(Arc::new(AtomicI64::new(sec)))
    }

    /// Moves the clock a second on.
    pub fn tick(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Time {
        Time { sec: self.0.load(Ordering::SeqCst), nsec: 0 }
    }
}
