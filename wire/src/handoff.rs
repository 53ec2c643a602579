//! Requests between servers while names of a directory move from one partition to another.
//!
//! The switch itself is a transaction ([`Prepare`](crate::Prepare), [`Decide`](crate::Decide));
//! these requests come before and after it. Each may be repeated when an answer was lost, and then
//! changes nothing.
//!
//! Paper: SFS §3.4, §3.6; DESIGN, *Handoff*.

use base::{DirId, Ino, Layout, Moving, codec};
use bytes::Bytes;

use crate::peer::TxnId;

codec! {
    /// Announces that names will come. Answer: an empty [`Tally`], or none when the partition is
    /// not free for that.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HandoffBegin {
        /// Id of the transaction that will end the handoff.
        pub txn: TxnId,
        /// Id of the directory.
        pub dir: DirId,
        /// Inode number of the directory.
        pub ino: Ino,
        /// The id by which the directory is placed.
        pub home: DirId,
        /// Number of the partition that has the names.
        pub source: u16,
        /// Number of the partition that gets the names.
        pub target: u16,
        /// The names that move.
        pub moving: Moving,
    }
}

codec! {
    /// Sends names of a handoff, or their later changes. Answer: [`Tally`] of all that has come, or
    /// none when the server does not know this handoff.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HandoffPut {
        /// Id of the transaction that will end the handoff.
        pub txn: TxnId,
        /// Id of the directory.
        pub dir: DirId,
        /// The id by which the directory is placed.
        pub home: DirId,
        /// Number of the partition that gets the names.
        pub target: u16,
        /// The number of this message within the handoff, from 0 on.
        pub number: u64,
        /// Keys of the target's shard, each with the record that is there now, or none.
        pub changes: Vec<(Bytes, Option<Bytes>)>,
        /// Whether the answer waits until all that has come is on stable storage.
        pub stable: bool,
    }
}

codec! {
    /// Number of names, and of directories among them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Tally {
        /// Number of all names.
        pub entries: u64,
        /// Number of directories among them.
        pub subdirs: u64,
    }
}

impl Tally {
    /// Returns the tally with one record in place of another.
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
    /// Tells a partition how its directory is divided, as another partition knows it; the partition
    /// also checks whether it has names to give. Answer: the [`Layout`] with all that this one
    /// knows, on stable storage; [`Layout::Whole`] where there is no such partition.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LayoutLearnt {
        /// Id of the directory.
        pub dir: DirId,
        /// Inode number of the directory.
        pub ino: Ino,
        /// The id by which the directory is placed.
        pub home: DirId,
        /// Number of the partition that learns the layout.
        pub partition: u16,
        /// The layout to learn.
        pub layout: Layout,
    }
}
