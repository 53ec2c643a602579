//! Sizes at which partitions split and are merged away.

use std::hash::Hasher as _;

use base::{Ino, Layout, hash::FixedHasher};

use crate::record::{Content, ContentState};

/// Thresholds of this many entries or more differ from partition to partition.
const VARIES_FROM: u64 = 1000;

/// A partition with fewer entries than this is never too large.
fn least(threshold: u64) -> u64 {
    threshold / 4 * 3
}

/// Number of entries from which partition `number` splits, in a directory with this inode number
/// that is divided already.
///
/// Partitions of one directory grow alike. So that they do not all split at once, each has a size
/// of its own, between three and five quarters of the threshold, which never changes. A threshold
/// below [`VARIES_FROM`] is used as it is.
fn splits_at(ino: Ino, number: u16, threshold: u64) -> u64 {
    if threshold < VARIES_FROM {
        return threshold;
    }
    let mut hasher = FixedHasher::default();
    hasher.write_u64(ino.0);
    hasher.write_u16(number);
    // Number of 512ths of the threshold to add: 0 to 255.
    let part = hasher.finish() >> 56;
    least(threshold).saturating_add(threshold / 512 * part)
}

impl Content {
    /// Whether the partition is live: it has not given all its names away.
    pub(crate) fn is_live(&self) -> bool {
        self.state != ContentState::Merged
    }

    /// Whether the partition has so few entries that it should be merged away.
    pub(super) fn is_small(&self, threshold: u64) -> bool {
        self.entries.saturating_mul(4) <= threshold
    }

    /// Whether partition `number`, whose share this is, has so many entries that it should give
    /// some away.
    pub(super) fn is_large(&self, number: u16, threshold: u64) -> bool {
        match self.layout {
            Layout::Extendible(_) => {
                self.entries >= least(threshold)
                    && self.entries >= splits_at(self.ino, number, threshold)
            }
            Layout::Whole | Layout::Subsets(_) => self.entries >= threshold,
        }
    }

    /// Whether the partition may have names to give, being too large or too small. `number` finds
    /// the number of the partition, and is called only when needed. A directory of one partition
    /// costs two comparisons.
    pub(crate) fn is_out_of_bounds(&self, number: impl FnOnce() -> u16, threshold: u64) -> bool {
        let threshold = self.policy.threshold(threshold);
        let is_small = || self.layout != Layout::Whole && self.is_small(threshold);
        let may_be_large = self.entries >= least(threshold);
        (may_be_large && self.is_large(number(), threshold)) || is_small()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_split_at_sizes_of_their_own_near_the_threshold() {
        let of = |threshold| (0..64).map(move |number| splits_at(Ino(77), number, threshold));
        let mut sizes: Vec<u64> = of(8000).collect();
        assert!(sizes.iter().all(|size| (6000..10_000).contains(size)), "{sizes:?}");
        assert_eq!(sizes.iter().max(), of(8000).max().as_ref(), "they stay");
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() > 32, "{sizes:?}");
        assert!((7600..8400).contains(&(sizes.iter().sum::<u64>() / sizes.len() as u64)));
        assert!(of(999).all(|size| size == 999));
        assert!(of(u64::MAX).all(|size| size > u64::MAX / 2), "never");
    }
}
