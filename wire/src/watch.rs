//! The change feed: what has changed below a directory, told to whom watches it.
//!
//! Each server tells of what is stored there, in the order in which it was written. A position is a
//! place in the feed of one server. The positions of another server, or of the time before the
//! feed was switched on, mean nothing there.

use base::{FileKind, Ino, Time, codec};
use bytes::Bytes;

use crate::node::DirRef;

codec! {
    /// Asks one server for changes below a directory. The first request switches the server's feed
    /// on. Answer: [`Watched`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Watch {
        /// The directory.
        pub dir: DirRef,
        /// Position after which changes are wanted; `None`: those from now on, of which the answer
        /// has the position and nothing else.
        pub since: Option<u64>,
        /// Most changes of one answer, at least 1; the server answers at most 1,024.
        pub max: u16,
        /// Whether to wait for a change while there is none. The answer may be empty all the same.
        pub wait: bool,
        /// Seconds for which the server should record changes after this request, so that it can
        /// be repeated. The server decides.
        pub keep_secs: u32,
    }
}

codec! {
    /// Changes below a directory, oldest first.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Watched {
        /// The changes that the caller may see.
        pub events: Vec<WatchEvent>,
        /// Position up to which there are no others: to be asked for next.
        pub next: u64,
        /// Whether changes between the position that was asked for and `next` are lost to the
        /// caller: they are no longer kept, or a power failure took back what the caller saw.
        pub gap: bool,
    }
}

codec! {
    /// A change of one name, or of the node under it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct WatchEvent {
        /// Position of the change in the feed of its server.
        pub position: u64,
        /// Kind of the change.
        pub change: Change,
        /// Path from the watched directory, without a slash in front; empty: the directory itself.
        pub path: Bytes,
        /// Inode number of the node.
        pub ino: Ino,
        /// Kind of the node; `None`: it has several names, and the feed does not know.
        pub kind: Option<FileKind>,
        /// Time of the change, by the clock of its server.
        pub time: Time,
    }
}

codec! {
    /// The kind of a change.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Change {
        /// A new node has this name.
        Created = 1,
        /// A node that was there before has this name as well.
        Linked = 2,
        /// The name is gone: removed, or replaced by a rename.
        Removed = 3,
        /// The node was renamed, and this was its name.
        MovedFrom = 4,
        /// The node was renamed, and this is its name.
        MovedTo = 5,
        /// Mode, owner, times, size or extended attributes were set.
        Attributes = 6,
        /// A file that was written was closed.
        Written = 7,
    }
}
