//! The fates of the changes that a region has answered.

/// Changes by what became of them. Each is counted once, when its fate is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Changes that were answered.
    pub acknowledged: u64,
    /// Changes of which a commit took the result below. A commit takes the newest state.
    pub committed: u64,
    /// Changes that a later one made void before a commit: a file that was written twice, or made
    /// and removed.
    pub superseded: u64,
    /// Changes that the file system below refuses.
    pub failed: u64,
    /// Commits: calls that changed something below.
    pub commits: u64,
    /// Commits that were tried once more.
    pub retried: u64,
    /// Names that somebody outside the region had taken, or removed.
    pub outside: u64,
    /// Look-ups below.
    pub loads: u64,
}

impl Counts {
    /// Whether every change that was answered is accounted for, when nothing is left to commit.
    #[must_use]
    pub fn add_up(&self) -> bool {
        self.acknowledged == self.committed + self.superseded + self.failed
    }
}
