//! Locks of files: whole files (flock) and byte ranges (fcntl), with their holders and waiters.
//!
//! Pure values. The metadata server keeps a [`LockTable`] for all its clients. A client keeps the
//! locks that it holds ([`HeldLocks`]), to claim them after a restart of the server. The model has
//! a table of its own. Nothing here waits: the table says which requests may go on, and its caller
//! wakes them.
//!
//! Always true, and compared with a map of single bytes in the tests: no two owners hold a byte of
//! one file and family unless both share it; the ranges of one owner do not overlap, and those of
//! one mode do not touch.
//!
//! Fair: who waits is served in the order of asking. Someone who could go on at once still waits
//! behind an earlier one who is in conflict with it, unless its process holds anything already:
//! then others may wait for it, and nobody who is waited for waits for the sake of fairness alone.

mod held;
mod table;
#[cfg(test)]
mod tests;

pub use held::{HeldLocks, LockHeld};
pub use table::{LockDenied, LockTable, LockWait, Waiting};

use crate::{SessionId, codec};

codec! {
    /// The two families, which never meet.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum LockKind {
        /// Byte ranges, as fcntl(2) has them.
        Range = 1,
        /// The whole file, as flock(2) has it. To change its mode is to give it up and take it
        /// anew.
        Whole = 2,
    }
}

codec! {
    /// Mode of a lock: whether other owners may lock the same bytes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum LockMode {
        /// Other owners may hold shared locks.
        Shared = 1,
        /// Other owners may hold no lock.
        Exclusive = 2,
    }
}

codec! {
    /// Bytes `first` to `last`, both included.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ByteRange {
        /// The first byte.
        pub first: u64,
        /// The last byte, not before the first; [`ByteRange::END`] is as far as files can grow.
        pub last: u64,
    }
}

impl ByteRange {
    /// The last byte that there can be.
    pub const END: u64 = i64::MAX.unsigned_abs();
    /// Everything.
    pub const ALL: ByteRange = ByteRange { first: 0, last: ByteRange::END };

    /// Whether the two have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether the two ranges overlap, or one begins where the other ends.
    #[must_use]
    pub fn touches(self, other: ByteRange) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// Whether the range has at least one byte.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.first <= self.last && self.last <= ByteRange::END
    }
}

/// Owner of a lock: a process or an open file of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The client's session.
    pub session: SessionId,
    /// The client's number for the owner.
    pub owner: u64,
}
