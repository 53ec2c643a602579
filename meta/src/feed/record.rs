//! Records of the change feed.

use base::{DirId, EntryName, FileKind, Ino, Time, codec};
use wire::{Change, DirRef, FileRef};

use crate::record::Record;

codec! {
    /// The state of a server's feed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) struct FeedState {
        /// Number of the run, in the upper half of its positions.
        pub run: u32,
        /// Time until which changes are recorded.
        pub until: Time,
        /// Position up to which changes were removed.
        pub pruned: u64,
        /// Number of changes that are kept. A crash may leave it too low by those of a few seconds.
        pub count: u64,
        /// Position in the run up to which all changes were written when the state was.
        pub whole: u64,
    }
}

impl Record for FeedState {}

impl FeedState {
    /// The state of a new run. Its number is the time, so that it is greater than all before, also
    /// of those that a power failure took back.
    pub(crate) fn begun(self, now: Time) -> FeedState {
        let run = u32::try_from(now.sec).unwrap_or_default();
        FeedState { run: run.max(self.run.saturating_add(1)), ..self }
    }
}

codec! {
    /// A change of a name, or of the node under it, as it is recorded.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Event {
        pub change: Change,
        pub time: Time,
        /// The directory that has the name, with its number and home.
        pub dir: DirId,
        pub dir_ino: Ino,
        pub dir_home: DirId,
        /// The name; `None`: the directory itself has changed.
        pub name: Option<EntryName>,
        pub ino: Ino,
        /// `None`: the inode is not under the name.
        pub kind: Option<FileKind>,
    }
}

impl Event {
    /// Whether the node has no name: a file that was made without one.
    pub(crate) fn is_of_nothing(&self) -> bool {
        let stand_in = FileRef::unnamed(DirRef::ROOT, self.ino).name;
        self.name.as_ref().is_some_and(|name| *name == stand_in)
    }
}

codec! {
    /// A directory that was removed. The record of it, as it was, says where it was: so the paths
    /// of what had changed in it are known.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Past {
        pub dir: DirId,
        pub ino: Ino,
        pub home: DirId,
        pub time: Time,
    }
}

codec! {
    /// A record of the feed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum Logged {
        /// A change.
        Event(Event) = 1,
        /// A directory of this server was removed, and is kept as it was as long as this record is.
        Past(Past) = 2,
    }
}

impl Record for Logged {}
