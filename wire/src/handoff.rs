//! What servers say to each other while names of a directory go from one partition to another.
//!
//! The switch itself is a transaction ([`Prepare`](crate::Prepare), [`Decide`](crate::Decide)); this is what comes
//! before it and after it. Everything may be said again when an answer was lost, and then changes nothing.
//!
//! Paper: SFS §3.4, §3.6; DESIGN, *Handoff*.

use base::{DirId, Ino, Layout, Moving, codec};
use bytes::Bytes;

use crate::peer::TxnId;

codec! {
    /// Names are about to come. Answer: [`Tally`] of nothing, or none when the partition is not free for that.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HandoffBegin {
        /// The transaction that will end it.
        pub txn: TxnId,
        /// The directory,
        pub dir: DirId,
        /// its inode number,
        pub ino: Ino,
        /// and how it is placed.
        pub home: DirId,
        /// The partition that has the names,
        pub giver: u16,
        /// the one that gets them,
        pub taker: u16,
        /// and which names they are.
        pub moving: Moving,
    }
}

codec! {
    /// Names have come, or have changed since. Answer: [`Tally`] of all that has come, or none when nothing of this
    /// handoff is known.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HandoffPut {
        /// The transaction that will end it.
        pub txn: TxnId,
        /// The directory.
        pub dir: DirId,
        /// How it is placed.
        pub home: DirId,
        /// The partition that gets the names.
        pub taker: u16,
        /// The number of this message within the handoff, from 0 on.
        pub number: u64,
        /// Keys of the taker's shard, each with the record that is there now, or none.
        pub changes: Vec<(Bytes, Option<Bytes>)>,
        /// The answer waits until all that has come is on stable storage.
        pub stable: bool,
    }
}

codec! {
    /// How many names there are, and how many of them are directories.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Tally {
        /// All names.
        pub entries: u64,
        /// Directories among them.
        pub subdirs: u64,
    }
}

impl Tally {
    /// With one record in place of another.
    #[must_use]
    pub fn changed(self, was: Tally, is: Tally) -> Tally {
        let of = |sum: u64, was: u64, is: u64| sum.saturating_add(is).saturating_sub(was);
        Tally {
            entries: of(self.entries, was.entries, is.entries),
            subdirs: of(self.subdirs, was.subdirs, is.subdirs),
        }
    }
}

codec! {
    /// A directory is divided like this, by what a partition of it knows: another one is to know it too, and to see
    /// whether it has names to give. Answer: the [`Layout`] with all that this one knows, on stable storage;
    /// [`Layout::Whole`] where there is no such partition.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LayoutLearnt {
        /// The directory,
        pub dir: DirId,
        /// its inode number,
        pub ino: Ino,
        /// and how it is placed.
        pub home: DirId,
        /// The partition that learns it.
        pub partition: u16,
        /// How it is divided.
        pub layout: Layout,
    }
}
