//! Plan of a run: phases in a fixed order, as mdtest has them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One kind of operation, timed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// mkdir.
    DirCreate,
    /// stat of directories that another rank made.
    DirStat,
    /// Rename a directory within the one above it.
    DirRename,
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
    /// List the rank's directory; an operation is an entry listed, a latency is that of a whole
    /// listing.
    Readdir,
    /// unlink.
    FileRemove,
}

impl Phase {
    /// All phases, in the order in which they run.
    pub const ALL: [Phase; 10] = [
        Phase::DirCreate,
        Phase::DirStat,
        Phase::DirRename,
        Phase::DirRemove,
        Phase::FileCreate,
        Phase::FileStat,
        Phase::FileOpen,
        Phase::FileRename,
        Phase::Readdir,
        Phase::FileRemove,
    ];

    /// Name of the phase on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::DirCreate => "dir_create",
            Phase::DirStat => "dir_stat",
            Phase::DirRename => "dir_rename",
            Phase::DirRemove => "dir_remove",
            Phase::FileCreate => "file_create",
            Phase::FileStat => "file_stat",
            Phase::FileOpen => "file_open",
            Phase::FileRename => "file_rename",
            Phase::Readdir => "readdir",
            Phase::FileRemove => "file_remove",
        }
    }

    /// Kind of the phase's paths, as it stands in their names.
    pub(crate) fn kind(self) -> &'static str {
        if self.is_of_directories() { "dir" } else { "file" }
    }

    fn is_of_directories(self) -> bool {
        match self {
            Phase::DirCreate | Phase::DirStat | Phase::DirRename | Phase::DirRemove => true,
            Phase::FileCreate
            | Phase::FileStat
            | Phase::FileOpen
            | Phase::FileRename
            | Phase::Readdir
            | Phase::FileRemove => false,
        }
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

/// Work of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Number of ranks.
    pub ranks: usize,
    /// Files and directories of each rank.
    pub files: usize,
    /// All ranks work in one directory; otherwise each has its own.
    pub shared: bool,
    /// Number of directories between the run's folder and the directory that is worked in, without
    /// either.
    pub depth: usize,
    /// Phases that are reported.
    pub phases: Vec<Phase>,
    /// Operations that each rank has under way at a time.
    pub in_flight: usize,
    /// Number of runs of all phases, after a shorter run that is not reported.
    pub iterations: usize,
    /// The directory, below the target's root, that the run makes, works in and removes.
    pub folder: String,
}

/// Files of each rank, at most, in the run before the first that counts.
const WARM_UP_FILES: usize = 500;

impl Plan {
    /// The directories in which `rank` works: from the uppermost to the one with the files.
    pub(crate) fn directories(&self, rank: usize) -> Vec<String> {
        let folder = &self.folder;
        let top =
            if self.shared { format!("{folder}/shared") } else { format!("{folder}/rank.{rank}") };
        let below = |above: &String| Some(format!("{above}/d"));
        std::iter::successors(Some(top), below).take(self.depth + 1).collect()
    }

    /// The directory that `rank` works in.
    pub(crate) fn directory(&self, rank: usize) -> String {
        self.directories(rank).pop().expect("there is at least one")
    }

    /// Whether the paths of `phase` have been renamed by then.
    pub(crate) fn renamed_before(&self, phase: Phase) -> bool {
        let rename = if phase.is_of_directories() { Phase::DirRename } else { Phase::FileRename };
        phase > rename && self.phases.contains(&rename)
    }

    /// Number of files of a rank in the run that warms up.
    pub(crate) fn warm_up_files(&self) -> usize {
        self.files.min(WARM_UP_FILES)
    }
}

/// Order that all workers get at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Kind of work.
    pub work: Work,
    /// With how many files of each rank.
    pub files: usize,
}

/// One step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Make the run's folder.
    MakeFolder,
    /// Make the directories that are worked in.
    MakeDirectories,
    /// Do all operations of a phase.
    Phase(Phase),
    /// Remove the directories that were worked in.
    RemoveDirectories,
    /// Remove the run's folder.
    RemoveFolder,
    /// Remove the run's folder with all that is in it, if it is there.
    Clear,
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
