//! Requests about open files.
//!
//! The shard of a file's name holds in memory which session has it open, so that a file removed while it
//! is open lives on. A client counts its own opens, and numbers them; it tells the server only of the
//! first one of a file and, later and in batches, of the last close. A release that arrives after a newer
//! open of the same file is older than that open and does nothing.

use base::{Attr, Ino, codec};
use bytes::Bytes;

use crate::{data::ChunkSlices, node::FileRef};

codec! {
    /// Open a file. Needs read or write permission, or execute. Answer: [`Opened`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Open {
        /// Which.
        pub file: FileRef,
        /// The client's number for this open; each is greater than all before.
        pub number: u64,
        /// The permissions to check, with the bits of `access(2)`.
        pub access: u8,
    }
}

codec! {
    /// An open file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Opened {
        /// Its attributes when it was opened.
        pub attr: Attr,
        /// Its contents, or where they begin.
        pub contents: OpenState,
        /// Proof for this session that it opened the file, for [`crate::Claim`].
        pub proof: u64,
    }
}

codec! {
    /// What the client learns of the contents when it opens a file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum OpenState {
        /// All of it.
        Inline(Bytes) = 1,
        /// They are in blocks; this is the first chunk.
        Blocks(ChunkSlices) = 2,
        /// The file was not opened for reading.
        Withheld = 3,
    }
}

codec! {
    /// These files are closed: the inode and the number of its latest open. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Release {
        /// What is closed.
        pub files: Vec<(Ino, u64)>,
    }
}
