//! The locks that are held of one file, in one family.

use super::{ByteRange, LockMode, LockOwner};

/// One lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHeld {
    /// Owner of the lock.
    pub owner: LockOwner,
    /// The process that asked for it, as its client numbers processes.
    pub pid: u32,
    /// Bytes that the lock covers.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub mode: LockMode,
}

/// All of them.
///
/// Cost: each operation looks at every lock of the file once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldLocks {
    held: Vec<LockHeld>,
}

impl HeldLocks {
    /// Every lock.
    pub fn iter(&self) -> impl Iterator<Item = &LockHeld> {
        self.held.iter()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the locks of other owners that are in the way of `asked`.
    pub fn conflicts(&self, asked: LockHeld) -> impl Iterator<Item = &LockHeld> {
        self.held.iter().filter(move |held| in_conflict(held, &asked))
    }

    /// Gives the range to `asked.owner` in `asked.mode`, whatever that owner had there; locks of
    /// other owners do not change.
    pub fn take(&mut self, asked: LockHeld) {
        let mut range = asked.range;
        let touching = |held: &LockHeld| {
            held.owner == asked.owner && held.mode == asked.mode && held.range.touches(asked.range)
        };
        for held in self.held.iter().filter(|held| touching(held)) {
            range.first = range.first.min(held.range.first);
            range.last = range.last.max(held.range.last);
        }
        self.give_back(asked.owner, range);
        self.held.push(LockHeld { range, ..asked });
    }

    /// The range is not `owner`'s any more. What sticks out on either side stays.
    pub fn give_back(&mut self, owner: LockOwner, range: ByteRange) {
        for index in (0..self.held.len()).rev() {
            let held = self.held[index];
            if held.owner != owner || !held.range.overlaps(range) {
                continue;
            }
            self.held.swap_remove(index);
            if held.range.first < range.first {
                let before = ByteRange { last: range.first - 1, ..held.range };
                self.held.push(LockHeld { range: before, ..held });
            }
            if held.range.last > range.last {
                let after = ByteRange { first: range.last + 1, ..held.range };
                self.held.push(LockHeld { range: after, ..held });
            }
        }
    }

    /// Whether giving back the range would leave more locks than there were.
    #[must_use]
    pub fn splits(&self, owner: LockOwner, range: ByteRange) -> bool {
        self.held.iter().any(|held| {
            held.owner == owner && held.range.first < range.first && held.range.last > range.last
        })
    }

    /// Drops those that `keep` does not want.
    pub fn retain(&mut self, keep: impl FnMut(&LockHeld) -> bool) {
        self.held.retain(keep);
    }
}

/// Whether two locks cannot be held at once.
pub(super) fn in_conflict(one: &LockHeld, other: &LockHeld) -> bool {
    let both_share = one.mode == LockMode::Shared && other.mode == LockMode::Shared;
    one.owner != other.owner && !both_share && one.range.overlaps(other.range)
}
