//! Quotas of several servers: what is below a directory comes to count for another accounting root.
//!
//! The coordinator walks, and asks whoever has the records of each directory to change them. All of it may be asked twice:
//! what was changed is passed over.

use base::{Ino, Layout, codec};
use bytes::Bytes;

use crate::DirRef;

codec! {
    /// Have records count for another accounting root. Answer: [`Counted`], when it is on stable storage.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Count {
        /// What counts for this root, or for none,
        pub from: Ino,
        /// counts for this one.
        pub to: Ino,
        /// What of it.
        pub what: CountWhat,
    }
}

codec! {
    /// What is to count for another root.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum CountWhat {
        /// A directory, or another partition of it, without what is in it.
        Share(CountShare) = 1,
        /// Some of the names there, whose share does already.
        Names(CountNames) = 2,
        /// Inodes in their slots, to which names lead.
        Slots(Vec<Ino>) = 3,
    }
}

codec! {
    /// A partition of a directory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CountShare {
        /// The directory.
        pub dir: DirRef,
        /// Which of its partitions.
        pub partition: u16,
    }
}

codec! {
    /// Some of the names in it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CountNames {
        /// Where.
        pub share: CountShare,
        /// From this key on; nothing: from the first name.
        pub from: Bytes,
    }
}

codec! {
    /// What was done of a [`Count`].
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Counted {
        /// How the directory is divided, as its share knows; `None`: it is not there, or counts for something else.
        pub layout: Option<Layout>,
        /// That is because it is an accounting root itself.
        pub is_root: bool,
        /// Directories that were met,
        pub dirs: Vec<DirRef>,
        /// and inodes in slots of other servers.
        pub slots: Vec<Ino>,
        /// There are more names, from this key on.
        pub next: Option<Bytes>,
    }
}
