//! The wall clock of a world: the time of its runtime, which passes only when all tasks wait, plus
//! the skipped time.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use base::{Clock, Time};
use tokio::time::Instant;

/// Second at which worlds begin.
const BEGINS: i64 = 1_700_000_000;

/// The clock that the servers and clients of a world read.
#[derive(Debug)]
pub struct SimClock {
    started: Instant,
    /// Whether every reading gives another time. A coarse clock stands still for a millisecond.
    fine: bool,
    looks: AtomicU32,
    skipped: AtomicI64,
}

impl SimClock {
    /// A clock that starts now. Must be called within the runtime of the world.
    #[must_use]
    pub fn start(fine: bool) -> SimClock {
        SimClock {
            started: Instant::now(),
            fine,
            looks: AtomicU32::new(0),
            skipped: AtomicI64::new(0),
        }
    }

    /// Sets the clock forward by some seconds.
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
