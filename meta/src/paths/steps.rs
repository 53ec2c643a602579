//! Walks up the tree, which end.

use base::{DirId, FsError};

/// Limits a walk up, so that it ends even in a damaged tree that has a loop (Brent's algorithm).
pub(crate) struct Steps {
    seen: DirId,
    left: u32,
    next: u32,
    /// Number of steps that are left.
    bound: u32,
}

impl Steps {
    pub(crate) fn from(start: DirId) -> Steps {
        Steps { seen: start, left: 1, next: 2, bound: u32::MAX }
    }

    /// Like [`Steps::from`], for a walk of at most `bound` steps.
    pub(crate) fn bounded(start: DirId, bound: u32) -> Steps {
        Steps { bound, ..Steps::from(start) }
    }

    /// Notes that the walk has come to `dir`.
    pub(crate) fn step(&mut self, dir: DirId) -> Result<(), FsError> {
        if dir == self.seen {
            tracing::error!(id = %dir, "a directory is below itself; run `pando fsck`");
            return Err(FsError::Io);
        }
        self.bound = self.bound.checked_sub(1).ok_or(FsError::NameTooLong)?;
        self.left -= 1;
        if self.left == 0 {
            (self.seen, self.left) = (dir, self.next);
            self.next = self.next.saturating_mul(2);
        }
        Ok(())
    }
}
