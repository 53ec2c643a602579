//! Counters and histograms with one writer.
//!
//! Invariant: only one task adds to a [`Count`]; any task may read it. So adding needs no locked
//! instruction.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::Distribution;

/// A number that one task counts and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    pub(crate) fn subtract(&self, less: u64) {
        self.set(self.get().saturating_sub(less));
    }
}

/// Number of buckets. Bounds double from one bucket to the next, and the last bucket takes what is
/// larger.
pub(crate) const BUCKETS: usize = 28;

/// A histogram whose first bucket ends at `UNIT`.
#[derive(Debug)]
pub(crate) struct Histogram<const UNIT: u64 = 1000> {
    buckets: [Count; BUCKETS],
    sum: Count,
}

impl<const UNIT: u64> Default for Histogram<UNIT> {
    fn default() -> Histogram<UNIT> {
        Histogram { buckets: std::array::from_fn(|_| Count::default()), sum: Count::default() }
    }
}

impl<const UNIT: u64> Histogram<UNIT> {
    /// Adds one value.
    pub(crate) fn record(&self, value: u64) {
        self.buckets[bucket(value.div_ceil(UNIT))].add(1);
        self.sum.add(value);
    }

    /// Adds all that was counted to a sum over cores.
    pub(crate) fn add_to(&self, total: &mut Distribution) {
        total.unit = UNIT;
        total.buckets.resize(BUCKETS, 0);
        for (total, bucket) in total.buckets.iter_mut().zip(&self.buckets) {
            *total += bucket.get();
        }
        total.sum = total.sum.wrapping_add(self.sum.get());
    }
}

/// The first bucket whose bound, a power of two, is at least `units`.
fn bucket(units: u64) -> usize {
    let doublings = u64::BITS - units.saturating_sub(1).leading_zeros();
    usize::try_from(doublings).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_bucket_that_reaches_it() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 9].map(bucket), [0, 0, 1, 2, 2, 3, 3, 4]);
        assert_eq!(bucket(1 << 26), 26);
        assert_eq!(bucket((1 << 26) + 1), 27);
        assert_eq!(bucket(u64::MAX), 27);
    }

    #[test]
    fn a_histogram_knows_how_many_and_how_much() {
        let histogram: Histogram = Histogram::default();
        for nanos in [1, 1000, 1001, 5_000_000] {
            histogram.record(nanos);
        }
        let mut total = Distribution::default();
        histogram.add_to(&mut total);
        assert_eq!((total.unit, total.sum), (1000, 5_002_002));
        assert_eq!(total.buckets[..2], [2, 1]);
        assert_eq!(total.buckets.iter().sum::<u64>(), 4);
    }
}
