//! Random operations: their kinds, how they are drawn, applied to two file systems, and compared.
//!
//! The universe is small, so that operations meet: a few names, three users, and for each client a
//! few slots for directories, nodes and handles. An operation names slots, and puts what it finds
//! or makes into a slot that it names too. So a sequence stays meaningful when shrinking takes
//! operations out of it. Slots hold on to what was moved or removed meanwhile, as programs do.
//!
//! Both sides see the same clock, which moves between operations only, so times are compared
//! exactly.

mod answer;
mod apply;
mod generate;
mod run;
mod search;

use base::{AclKind, Cred, EntryName, FileKind, SetTime};
use bytes::Bytes;
use wire::{AllocateMode, RenameMode, SeekTo, XattrMode};

pub use self::{
    answer::{Answer, Listed, Seen, SeenEntry},
    generate::steps,
    run::{Difference, Rules, Tallies, Tally, compare},
    search::{Found, search},
};

/// Number of a client's slots for directories. The first is always the root.
pub const DIRS: usize = 3;
/// Number of a client's slots for nodes of any kind.
pub const NODES: usize = 5;
/// Number of a client's slots for open files.
pub const HANDLES: usize = 2;

/// One operation of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The client that asks.
    pub client: usize,
    /// The user on whose behalf it asks.
    pub user: User,
    /// The operation.
    pub op: Op,
}

/// A user that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The superuser.
    Root,
    /// User 100 of group 100, and also of group 300.
    Ann,
    /// User 200 of group 200.
    Bob,
}

impl User {
    /// Credentials of the user.
    #[must_use]
    pub fn cred(self) -> Cred {
        match self {
            User::Root => Cred::ROOT,
            User::Ann => Cred { uid: 100, gid: 100, groups: vec![300] },
            User::Bob => Cred { uid: 200, gid: 200, groups: Vec::new() },
        }
    }
}

/// The name of something in the directory of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The slot of the directory; an empty one means the root.
    pub dir: usize,
    /// The name in that directory.
    pub name: EntryName,
}

/// Access that `open` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFor {
    /// Reading and writing.
    Both,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Neither reading nor writing.
    Nothing,
}

/// An operation. `into` is the slot for a node that was found or made, and for a directory too.
/// Where a file or a handle is needed, the next slot that holds one is taken.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Look up a name.
    Lookup { at: Place, into: usize },
    /// Read the attributes of a node.
    Getattr { node: usize },
    /// Change permission and special bits.
    Chmod { node: usize, mode: u32 },
    /// Change the owner, the group or both.
    Chown { node: usize, uid: Option<u32>, gid: Option<u32> },
    /// Change times.
    Utimes { node: usize, atime: Option<SetTime>, mtime: Option<SetTime> },
    /// Note that a read happened at this second.
    Accessed { node: usize, sec: i64 },
    /// Cut or grow a file.
    Truncate { node: usize, size: u64, clear_set_id: bool },
    /// Read the target of a symbolic link.
    Readlink { node: usize },
    /// Make a file or special file.
    Create {
        at: Place,
        kind: FileKind,
        mode: u32,
        exclusive: bool,
        open: Option<usize>,
        into: usize,
    },
    /// Make a file without a name in the directory of a slot, open in a slot for handles.
    Tmpfile { dir: usize, mode: u32, linkable: bool, open: usize, into: usize },
    /// Make a directory.
    Mkdir { at: Place, mode: u32, into: usize },
    /// Make a symbolic link.
    Symlink { at: Place, target: Bytes, into: usize },
    /// Add a name to a node.
    Link { node: usize, at: Place, into: usize },
    /// Remove something other than a directory.
    Unlink { at: Place },
    /// Remove a directory.
    Rmdir { at: Place },
    /// Move a name.
    Rename { from: Place, to: Place, mode: RenameMode },
    /// List a whole directory, page by page.
    List { dir: usize, plus: bool },
    /// Open a node into a slot for handles; what was open there is closed.
    Open { node: usize, access: OpenFor, into: usize },
    /// Read from an open file.
    Read { handle: usize, offset: u64, len: u32 },
    /// Write to an open file, bytes that `seed` decides.
    Write { handle: usize, offset: u64, len: u32, seed: u8, clear_set_id: bool },
    /// Close, `fsync` first if asked.
    Close { handle: usize, fsync: bool },
    /// Read all extended attributes.
    Xattrs { node: usize },
    /// Set an extended attribute to this many bytes.
    Setxattr { node: usize, name: &'static str, len: usize, mode: XattrMode },
    /// Set an ACL to these bytes, or remove it.
    SetAcl { node: usize, kind: AclKind, acl: Option<Bytes>, mode: XattrMode },
    /// Remove an extended attribute.
    Removexattr { node: usize, name: &'static str },
    /// Make a file longer, or a range of it zeros.
    Allocate { handle: usize, offset: u64, len: u64, mode: AllocateMode },
    /// Look for data or a hole.
    Seek { handle: usize, offset: u64, to: SeekTo },
    /// Copy from the first slot's open file to that of the second one.
    CopyRange { from: usize, to: usize, offset: u64, to_offset: u64, len: u64 },
    /// Wait for stable storage.
    Sync,
}
