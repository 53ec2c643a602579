//! Counts of a writer, and how long its puts take.

use std::time::Duration;

/// Puts whose times are remembered.
const TIMES: usize = 256;

/// The work of a writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStatus {
    /// Number of the last segment that is stored.
    pub number: u64,
    /// Last sequence number that is stored.
    pub last: u64,
    /// Puts that were sent, with hedges and retries.
    pub puts: u64,
    /// Puts that were sent because an earlier one took long.
    pub hedges: u64,
    /// Puts that were sent because an earlier one left nothing.
    pub retries: u64,
    /// Bytes of the segments that were stored, sealed.
    pub bytes: u64,
    /// Half of the last puts took no longer.
    pub put_p50: Duration,
    /// 99 of 100 of the last puts took no longer.
    pub put_p99: Duration,
}

/// The times of the last puts.
#[derive(Default)]
pub(crate) struct Latency {
    times: Vec<Duration>,
    next: usize,
}

impl Latency {
    pub(crate) fn add(&mut self, time: Duration) {
        if self.times.len() < TIMES {
            self.times.push(time);
        } else {
            self.times[self.next % TIMES] = time;
        }
        self.next = (self.next + 1) % TIMES;
    }

    /// The time that so many of 100 puts did not exceed; zero when there were none.
    pub(crate) fn percentile(&self, of_100: usize) -> Duration {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * of_100).div_ceil(100).saturating_sub(1);
        sorted.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_last_puts() {
        let mut latency = Latency::default();
        assert_eq!(latency.percentile(99), Duration::ZERO);
        for ms in 1..=100 {
            latency.add(Duration::from_millis(ms));
        }
        assert_eq!(latency.percentile(50), Duration::from_millis(50));
        assert_eq!(latency.percentile(99), Duration::from_millis(99));
        for _ in 0..TIMES {
            latency.add(Duration::from_millis(7));
        }
        assert_eq!(latency.percentile(99), Duration::from_millis(7));
    }
}
