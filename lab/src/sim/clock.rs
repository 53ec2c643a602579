//! The wall clock of a world: the time of its runtime, which passes only when everybody waits, and
//! what was skipped.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use base::{Clock, Time};
use tokio::time::Instant;

/// Worlds begin at this second.
const BEGINS: i64 = 1_700_000_000;

/// The clock.
#[derive(Debug)]
pub struct SimClock {
    started: Instant,
    /// Every look at a fine clock shows another time; a coarse one stands still for a millisecond.
    fine: bool,
    looks: AtomicU32,
    skipped: AtomicI64,
}

impl SimClock {
    /// A clock that starts now; must be made within the runtime of the world.
    #[must_use]
    pub fn start(fine: bool) -> SimClock {
        SimClock {
            started: Instant::now(),
            fine,
            looks: AtomicU32::new(0),
            skipped: AtomicI64::new(0),
        }
    }

    /// Sets it forward by so many seconds.
    pub fn skip(&self, seconds: i64) {
        self.skipped.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let ms = u64::try_from(self.started.elapsed().as_millis()).expect("worlds are short");
        let began = BEGINS + self.skipped.load(Ordering::Relaxed);
        let mut time = Time { sec: began, nsec: 0 }.plus_ms(ms);
        if self.fine {
            time.nsec += self.looks.fetch_add(1, Ordering::Relaxed) % 1_000_000;
        }
        time
    }
}
