//! Time and randomness, passed in by the code that builds a process or a simulated one.

use std::time::Duration;

use crate::attr::Time;

/// The wall clock. File times come from it; waiting does not.
pub trait Clock: Send + Sync + 'static {
    /// Now, since the Unix epoch.
    fn now(&self) -> Time;
}

/// A source of random numbers; a simulation hands in one with a seed.
pub trait Random: Send + Sync + 'static {
    /// The next 64 random bits.
    fn next(&self) -> u64;
}

/// The lengths of pauses between attempts: they grow, and each is drawn from the upper half of what
/// it may be, so that those who are in each other's way do not come in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Backoff by pauses of at most `first`, then of twice as much each time, up to `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { next: first, max }
    }

    /// The next pause, in whole microseconds, at least 1.
    pub fn draw(&mut self, random: &dyn Random) -> Duration {
        let full = u64::try_from(self.next.as_micros()).unwrap_or(u64::MAX).max(2);
        let drawn = full / 2 + random.next() % (full / 2);
        self.next = (self.next * 2).min(self.max);
        Duration::from_micros(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Always(u64);

    impl Random for Always {
        fn next(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn pauses_double_up_to_their_limit_and_are_never_below_half() {
        let of = |random: u64| {
            let mut pauses = Backoff::new(Duration::from_micros(100), Duration::from_micros(300));
            [0; 3].map(|_| pauses.draw(&Always(random)).as_micros())
        };
        assert_eq!(of(0), [50, 100, 150]);
        assert_eq!(of(49), [99, 149, 199]);
        assert_eq!(
            of(u64::MAX - 15),
            [50, 100, 150].map(|half| half + u128::from(u64::MAX - 15) % half)
        );
    }
}
