//! Answers to requests.
//!
//! The adapter's operations make answers; `serve` sends them. In between the kernel may have given
//! up the request, so whatever an answer gives to the kernel (look-ups, handles) is only counted as
//! given when it is sent, and is taken back when it is not.

use std::time::Duration;

use base::Attr;
use bytes::Bytes;
use client::Handle;
use fuse::{DirPage, DirPlusPage, FileLock, NodeId, StatFs};
use wire::NodeRef;

use crate::convert::Failed;

/// Result of a request.
pub(crate) type Outcome = Result<Answer, Failed>;

/// A successful answer.
pub(crate) enum Answer {
    /// Done.
    Done,
    /// A name and what it stands for.
    Entry(Found),
    /// A new file, open.
    Created(Found, Handle),
    /// Attributes of a known node.
    Attr(Told),
    /// Attributes with the time of birth.
    Statx(Told),
    /// Contents, the target of a link, extended attributes.
    Data(Bytes),
    /// The size that `Data` would have.
    Size(u32),
    /// An open file; whether the kernel's pages of it are still right.
    Opened(Handle, bool),
    /// An open directory.
    OpenedDir(u64),
    /// Number of bytes written.
    Written(u32),
    /// Number of bytes copied.
    Copied(u64),
    /// Where something is in a file.
    Offset(u64),
    /// Space and inodes.
    StatFs(StatFs),
    /// A lock that is in the way, or none.
    Lock(FileLock),
    /// A page of a listing.
    Dir(DirPage),
    /// A page of names with their entries, and what the kernel is told of each entry.
    DirPlus(DirPlusPage, Vec<Found>),
}

/// Attributes of a node that the kernel knows.
pub(crate) struct Told {
    pub(crate) node: NodeId,
    pub(crate) attr: Attr,
    /// Age of the attributes.
    pub(crate) age: Duration,
    /// Changes of the node before they were asked for, see `nodes`.
    pub(crate) since: u64,
}

/// A node that the kernel is told of.
pub(crate) struct Found {
    pub(crate) at: NodeRef,
    pub(crate) attr: Attr,
    /// Age of the attributes.
    pub(crate) age: Duration,
}
