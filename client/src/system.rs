//! The clock and the randomness of the machine, for programs that need no others.
//!
//! Nothing in this crate uses them unless they are handed in through [`crate::Config`].

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use base::{Clock, Random, Time};

/// The machine's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that others are handed")]
    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sec = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Time { sec, nsec: since.subsec_nanos() }
    }
}

/// Random numbers from a seed that the operating system gives. They spread load and are no secrets.
#[derive(Debug, Default)]
pub struct SystemRandom {
    seed: RandomState,
    drawn: AtomicU64,
}

impl Random for SystemRandom {
    fn next(&self) -> u64 {
        let mut hasher = self.seed.build_hasher();
        hasher.write_u64(self.drawn.fetch_add(1, Ordering::Relaxed));
        hasher.finish()
    }
}
