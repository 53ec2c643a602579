//! The values that requests and replies are made of: ids, times, attributes, locks.
//!
//! For implementations of a [`Handler`](crate::Handler). Plain values: nothing here does IO, and
//! each id is its own type, so that a node is never taken for a handle.

use std::time::Duration;

use crate::abi;

/// The kernel's name for an inode: chosen by the file system, given back by FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The node at the top of every mount; the kernel knows it without a look-up.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open file or directory: chosen by the file system in its answer to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// The kernel's number of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// Owner of a lock: a process for POSIX locks, an open file description for flock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// A point in time: seconds since 1970, which may be negative, and nanoseconds below a thousand
/// million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timespec {
    /// Seconds since 1970-01-01 UTC.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

/// Attributes of a file that stat(2) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number that programs see.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timespec,
    /// Last change of the contents.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file, in the kernel's 32-bit form.
    pub rdev: u32,
    /// Preferred size of an IO, in bytes.
    pub blksize: u32,
}

impl Attr {
    pub(crate) fn to_abi(self) -> abi::Attr {
        abi::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.secs.cast_unsigned(),
            mtime: self.mtime.secs.cast_unsigned(),
            ctime: self.ctime.secs.cast_unsigned(),
            atimensec: self.atime.nanos,
            mtimensec: self.mtime.nanos,
            ctimensec: self.ctime.nanos,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// A name that was found or made, and for how long the kernel may believe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Node id that the kernel will use for this inode; each entry sent counts one look-up until it
    /// is forgotten.
    pub node: NodeId,
    /// Tells two inodes apart that had the same node id, one after the other.
    pub generation: u64,
    /// The inode's attributes.
    pub attr: Attr,
    /// Duration for which the name may be cached.
    pub entry_ttl: Duration,
    /// Duration for which the attributes may be cached.
    pub attr_ttl: Duration,
}

impl Entry {
    pub(crate) fn to_abi(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.node.0,
            generation: self.generation,
            entry_valid: self.entry_ttl.as_secs(),
            attr_valid: self.attr_ttl.as_secs(),
            entry_valid_nsec: self.entry_ttl.subsec_nanos(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            attr: self.attr.to_abi(),
        }
    }
}

/// Attributes that statx(2) returns beyond [`Attr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatxExtra {
    /// When the inode was made, if known.
    pub btime: Option<Timespec>,
    /// `STATX_ATTR_*` bits that are set.
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that the file system knows of.
    pub attributes_mask: u64,
}

/// Facts of the file system that statfs(2) returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size, in units of `frsize`.
    pub blocks: u64,
    /// Free space, in units of `frsize`.
    pub bfree: u64,
    /// Free space for ordinary users, in units of `frsize`.
    pub bavail: u64,
    /// Number of inodes there can be.
    pub files: u64,
    /// Number of inodes still free.
    pub ffree: u64,
    /// Preferred size of an IO, in bytes.
    pub bsize: u32,
    /// Longest name, in bytes.
    pub namelen: u32,
    /// The unit of the sizes above, in bytes.
    pub frsize: u32,
}

/// Type of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockType {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// Releases held locks, or says that no lock is in the way.
    Unlock,
}

/// Family of locks that a request belongs to; the two families never conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Byte ranges of fcntl(2), owned by a process or (OFD) by an open file.
    Posix,
    /// The whole file, flock(2), owned by an open file.
    Flock,
}

/// A byte range and what it is locked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` means to the end of the file, however long it grows.
    pub end: u64,
    /// Shared, exclusive or none.
    pub kind: LockType,
    /// The process that asks, or in an answer the one that holds it.
    pub pid: u32,
}

const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

impl FileLock {
    pub(crate) fn from_abi(lock: abi::FileLock) -> Option<Self> {
        let kind = match lock.kind {
            F_RDLCK => LockType::Read,
            F_WRLCK => LockType::Write,
            F_UNLCK => LockType::Unlock,
            _ => return None,
        };
        Some(FileLock { start: lock.start, end: lock.end, kind, pid: lock.pid })
    }

    pub(crate) fn to_abi(self) -> abi::FileLock {
        let kind = match self.kind {
            LockType::Read => F_RDLCK,
            LockType::Write => F_WRLCK,
            LockType::Unlock => F_UNLCK,
        };
        abi::FileLock { start: self.start, end: self.end, kind, pid: self.pid }
    }
}

bitflags::bitflags! {
    /// Flags of an open file in an answer to open or create (`FOPEN_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep what the page cache has of the file.
        const KEEP_CACHE = 1 << 1;
        /// The file cannot be sought in.
        const NONSEEKABLE = 1 << 2;
        /// Let the kernel cache the directory's listing.
        const CACHE_DIR = 1 << 3;
        /// There is no file position at all.
        const STREAM = 1 << 4;
        /// Send no FLUSH when it is closed.
        const NOFLUSH = 1 << 5;
        /// Several direct writes may run at once.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}
