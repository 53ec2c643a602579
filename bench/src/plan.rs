//! What is run: phases in a fixed order, as mdtest has them.

use std::fmt;

/// One kind of operation, timed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// mkdir.
    DirCreate,
    /// stat of directories that another rank made.
    DirStat,
    /// rmdir.
    DirRemove,
    /// Create and close an empty file.
    FileCreate,
    /// stat of files that another rank made.
    FileStat,
    /// Open and close a file that another rank made.
    FileOpen,
    /// Rename a file within its directory.
    FileRename,
    /// List the rank's directory; an operation is an entry listed, a latency is that of a whole listing.
    Readdir,
    /// unlink.
    FileRemove,
}

impl Phase {
    /// All of them, in the order in which they run.
    pub const ALL: [Phase; 9] = [
        Phase::DirCreate,
        Phase::DirStat,
        Phase::DirRemove,
        Phase::FileCreate,
        Phase::FileStat,
        Phase::FileOpen,
        Phase::FileRename,
        Phase::Readdir,
        Phase::FileRemove,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::DirCreate => "dir_create",
            Phase::DirStat => "dir_stat",
            Phase::DirRemove => "dir_remove",
            Phase::FileCreate => "file_create",
            Phase::FileStat => "file_stat",
            Phase::FileOpen => "file_open",
            Phase::FileRename => "file_rename",
            Phase::Readdir => "readdir",
            Phase::FileRemove => "file_remove",
        }
    }

    fn is_of_directories(self) -> bool {
        matches!(self, Phase::DirCreate | Phase::DirStat | Phase::DirRemove)
    }

    /// The phases that must run, timed or not, so that `wanted` can and nothing is left.
    pub(crate) fn needed(wanted: &[Phase]) -> Vec<Phase> {
        let frame = [Phase::DirCreate, Phase::DirRemove, Phase::FileCreate, Phase::FileRemove];
        let needed = |phase: &Phase| {
            let same = |other: &Phase| other.is_of_directories() == phase.is_of_directories();
            wanted.contains(phase) || (frame.contains(phase) && wanted.iter().any(same))
        };
        Phase::ALL.into_iter().filter(needed).collect()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What each rank does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How many ranks.
    pub ranks: usize,
    /// Files and directories of each rank.
    pub files: usize,
    /// All ranks work in one directory; otherwise each has its own.
    pub shared: bool,
    /// Phases that are reported.
    pub phases: Vec<Phase>,
    /// Operations that each rank has under way at a time.
    pub in_flight: usize,
    /// How often all phases are run.
    pub iterations: usize,
    /// The directory, below the target's root, that the run makes, works in and removes.
    pub folder: String,
}

impl Plan {
    /// The directory that `rank` works in.
    pub(crate) fn directory(&self, rank: usize) -> String {
        let folder = &self.folder;
        if self.shared { format!("{folder}/shared") } else { format!("{folder}/rank.{rank}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_brings_what_makes_and_removes() {
        assert_eq!(
            Phase::needed(&[Phase::FileStat]),
            [Phase::FileCreate, Phase::FileStat, Phase::FileRemove]
        );
        assert_eq!(Phase::needed(&[Phase::DirRemove]), [Phase::DirCreate, Phase::DirRemove]);
        assert_eq!(Phase::needed(&Phase::ALL), Phase::ALL);
    }
}
