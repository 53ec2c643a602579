//! Quotas of several servers.
//!
//! What is below a directory comes to count for another accounting root: the coordinator walks, and asks whoever has the
//! records of each directory to change them. All of it may be asked twice: what was changed is passed over.
//!
//! And each server charges a root up to its allowance. Who needs more asks the coordinator, which has the others give back what
//! they do not use before it says that there is none.

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

codec! {
    /// Bytes and inodes, used or allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Amounts {
        /// Bytes; `i64::MAX`: any number of them.
        pub bytes: i64,
        /// Inodes; likewise. What a server uses is below 0 where it has released what others have charged.
        pub entries: i64,
    }
}

codec! {
    /// Ask the coordinator for room below an accounting root. Answer: [`Room`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AskRoom {
        /// The root.
        pub root: Ino,
        /// The round in which this server last said what it uses; 0: in none.
        pub round: u64,
        /// What it uses now,
        pub used: Amounts,
        /// and needs besides.
        pub more: Amounts,
    }
}

codec! {
    /// Whether there is room.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Room {
        /// There is.
        Allowed(Allowed) = 1,
        /// There is not.
        Full = 2,
        /// Nobody knows: of some server it was not heard yet what it uses.
        Unknown = 3,
    }
}

codec! {
    /// How much a server may use.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Allowed {
        /// It holds for a server that last said in this round what it uses.
        pub round: u64,
        /// In all.
        pub amounts: Amounts,
    }
}

codec! {
    /// Give back what is allowed and not used. Answer: [`Gave`], when what was released is on stable storage.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GiveRoom {
        /// Below this root.
        pub root: Ino,
        /// What was allowed in rounds before counts no more.
        pub round: u64,
    }
}

codec! {
    /// What a server uses, and may use from now on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Gave {
        /// The version of the accounting roots that it has.
        pub roots: u64,
        /// What it uses, as it knows them.
        pub used: Amounts,
    }
}
