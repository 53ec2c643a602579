//! How far to read ahead of a handle that is read in sequence.
//!
//! `read` notes each read here. This file only counts; it fetches nothing.

use std::ops::Range;

const AHEAD_BYTES_MIN: u64 = 256 << 10;
/// The most that a handle reads ahead, in bytes.
pub(super) const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// How a handle is read.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Offset at which the next read starts if it goes on in sequence.
    next: u64,
    /// How far ahead to read; 0 while reads jump about.
    window: u64,
    /// Up to here it was asked for.
    asked: u64,
}

impl Ahead {
    /// Notes a read; what to read ahead, where it is known up to `known` where the contents are.
    pub(super) fn note(&mut self, offset: u64, end: u64, known: u64) -> Range<u64> {
        if offset != self.next {
            *self = Ahead { next: end, window: 0, asked: end };
            return end..end;
        }
        self.next = end;
        self.window = (self.window * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let from = self.asked.max(end);
        let to = known.min(end + self.window);
        // Not in small steps, unless the end is near.
        if to < from + self.window / 2 && to != known {
            return end..end;
        }
        self.asked = to.max(from);
        from..to.max(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_reads_are_read_ahead_and_others_are_not() {
        let size = 100 << 20;
        let mut ahead = Ahead::default();
        assert_eq!(ahead.note(0, 4096, size), 4096..4096 + AHEAD_BYTES_MIN);
        assert_eq!(ahead.note(1 << 20, (1 << 20) + 4096, size).len_bytes(), 0);
        let mut at = (1 << 20) + 4096;
        let mut asked = 0;
        for _ in 0..64 {
            asked += ahead.note(at, at + 131_072, size).len_bytes();
            at += 131_072;
        }
        assert!(asked >= 64 * 131_072);
        assert!(ahead.asked <= at + AHEAD_BYTES_MAX);
    }

    trait LenBytes {
        fn len_bytes(&self) -> u64;
    }

    impl LenBytes for Range<u64> {
        fn len_bytes(&self) -> u64 {
            self.end - self.start
        }
    }
}
