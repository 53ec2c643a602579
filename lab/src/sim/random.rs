//! Random numbers from the seed: every part of a world has a stream of its own.
//!
//! A stream depends on the seed and its label only, so the draws of one part do not change those of
//! another.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::Random;

/// A stream of random numbers. Clones draw from the same one.
#[derive(Debug, Clone)]
pub struct SimRandom {
    seed: u64,
    drawn: Arc<AtomicU64>,
}

impl SimRandom {
    /// The root stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> SimRandom {
        SimRandom { seed, drawn: Arc::new(AtomicU64::new(0)) }
    }

    /// A stream derived from this one by a label. Draws from this one do not matter.
    #[must_use]
    pub fn stream(&self, label: &str) -> SimRandom {
        let seed = label.bytes().fold(mix(self.seed), |seed, byte| mix(seed ^ u64::from(byte)));
        SimRandom::new(seed)
    }

    /// A number below `end`, which is not 0.
    #[must_use]
    pub fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// An index below `len`, which is not 0.
    #[must_use]
    pub fn index(&self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("less than an usize")
    }

    /// A number within a range that is not empty.
    #[must_use]
    pub fn within(&self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True once in `n` times.
    #[must_use]
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// An element of a list that is not empty.
    #[must_use]
    pub fn pick<T: Copy>(&self, list: &[T]) -> T {
        list[self.index(list.len())]
    }

    /// A time in milliseconds, within a range.
    #[must_use]
    pub fn ms(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// `len` random bytes.
    #[must_use]
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

impl Random for SimRandom {
    fn next(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        mix(self.seed.wrapping_add(drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// The finalizer of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_depends_on_seed_and_label_only() {
        let (a, b) = (SimRandom::new(7), SimRandom::new(7));
        let _ = a.below(10);
        assert_eq!(a.stream("net").next(), b.stream("net").next());
        assert_ne!(a.stream("net").next(), a.stream("disk").next());
        assert_ne!(a.stream("net").next(), SimRandom::new(8).stream("net").next());
    }
}
