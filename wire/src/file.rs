//! Requests about open files.
//!
//! The shard of a file's name holds in memory which session has it open, so that a file removed
//! while it is open lives on. A client counts its own opens, and numbers them; it tells the server
//! only of the first one of a file and, later and in batches, of the last close. A release that
//! arrives after a newer open of the same file is older than that open and does nothing.

use base::{Attr, Ino, codec};
use bytes::Bytes;

use crate::{data::ChunkSlices, node::FileRef};

codec! {
    /// Open a file. Needs read or write permission, or execute. Answer: [`Opened`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Open {
        /// The file to open.
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
        /// Attributes of the file when it was opened.
        pub attr: Attr,
        /// Contents of the file, or where they begin.
        pub contents: OpenState,
        /// Proof for this session that it opened the file, for [`crate::Claim`].
        pub proof: u64,
    }
}

codec! {
    /// The contents, as far as a client learns of them when it opens a file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum OpenState {
        /// The whole contents.
        Inline(Bytes) = 1,
        /// The contents are in blocks; this is the first chunk.
        Blocks(ChunkSlices) = 2,
        /// The file was not opened for reading.
        Withheld = 3,
    }
}

codec! {
    /// Closes files. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Release {
        /// Inode number of each closed file, and the client's number of its latest open.
        pub files: Vec<(Ino, u64)>,
    }
}
