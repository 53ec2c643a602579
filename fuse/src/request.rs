//! A request of the kernel, decoded: requester, node and operation.
//!
//! The session decodes each request and hands it to the [`Handler`](crate::Handler). All slices
//! borrow from the buffer the kernel wrote into; [`Request::keep`] and [`Request::detach`] take
//! what must live longer, without copying large bodies. Only requests that want an answer from the
//! file system are here: INIT, FORGET, INTERRUPT and DESTROY are the session's own.

mod decode;
mod extension;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    abi::opcode,
    buffer::Buffer,
    types::{FileLock, Handle, LockKind, LockOwner, NodeId, Timespec, Unique},
};

pub(crate) use decode::{Malformed, Message, decode, header};
pub use extension::{SecurityContext, SecurityContexts, SupplementaryGroups};

/// Requester and node of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kernel's number of this request.
    pub unique: Unique,
    /// The node it is about: the parent, where the operation has a name.
    pub node: NodeId,
    /// User of the calling process, as seen by file systems.
    pub uid: u32,
    /// Group of the calling process, as seen by file systems.
    pub gid: u32,
    /// The calling process, in the mount's pid namespace; 0 when it is not visible there.
    pub pid: u32,
    /// Operation code in the protocol; [`Request::name`] is its name.
    pub opcode: u32,
}

/// One request: its header, its operation and what some operations carry along.
#[derive(Debug)]
pub struct Request<'a> {
    /// Requester and node.
    pub header: Header,
    /// Operation with its arguments.
    pub op: Op<'a>,
    /// Security contexts and groups for what is about to be made.
    pub extensions: Extensions<'a>,
    pub(crate) bytes: Source<'a>,
}

/// Data that create-like operations carry along when the capability was negotiated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions<'a> {
    /// Labels for the new inode (`SECURITY_CTX`).
    pub security: SecurityContexts<'a>,
    /// The caller's groups that matter here (`CREATE_SUPP_GROUP`).
    pub groups: SupplementaryGroups<'a>,
}

/// Where a request's bytes live.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// In the session's read buffer: the first `len` bytes of it.
    Buffer { buffer: &'a Arc<Buffer>, len: usize },
    /// In an [`OwnedRequest`].
    Owned(&'a Bytes),
}

/// Parts up to this many bytes are copied; larger ones keep the whole read buffer instead.
const COPY_MAX: usize = 8 << 10;

impl<'a> Request<'a> {
    /// A part of this request (a name, a write's data) in a form that outlives it.
    ///
    /// Cost: a copy up to 8 KiB, otherwise none: the read buffer itself is kept, and goes back to
    /// the session's pool when the last such part is dropped.
    ///
    /// # Panics
    /// When `part` is larger than that and not a slice of this request.
    pub fn keep(&self, part: &[u8]) -> Bytes {
        if part.len() <= COPY_MAX {
            Bytes::copy_from_slice(part)
        } else {
            self.whole().slice_ref(part)
        }
    }

    /// The whole request in a form that outlives this call, at the cost of [`keep`](Self::keep).
    pub fn detach(&self) -> OwnedRequest {
        match self.bytes {
            Source::Buffer { buffer, len } if len <= COPY_MAX => {
                OwnedRequest(Bytes::copy_from_slice(&buffer[..len]))
            }
            Source::Buffer { .. } | Source::Owned(_) => OwnedRequest(self.whole()),
        }
    }

    /// The operation's name in the protocol, for logs and metrics.
    pub fn name(&self) -> &'static str {
        opcode::name(self.header.opcode)
    }

    fn whole(&self) -> Bytes {
        match self.bytes {
            Source::Buffer { buffer, len } => Buffer::share(buffer, len),
            Source::Owned(bytes) => bytes.clone(),
        }
    }
}

/// A request that has been taken out of the session's buffer, for later.
#[derive(Clone, Debug)]
pub struct OwnedRequest(Bytes);

impl OwnedRequest {
    /// The request again; decoding is a few loads.
    pub fn get(&self) -> Request<'_> {
        let Ok(Message::Request(request)) = decode(&self.0, Source::Owned(&self.0)) else {
            unreachable!("these bytes were decoded as a request before they were kept");
        };
        request
    }
}

/// A time as SETATTR sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's present time.
    Now,
    /// This time.
    At(Timespec),
}

/// Changes of SETATTR; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, with the file's type.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; only sent with `WRITEBACK_CACHE`.
    pub ctime: Option<Timespec>,
    /// The open file through which it is changed.
    pub fh: Option<Handle>,
    /// Owner whose mandatory locks apply to a truncation.
    pub lock_owner: Option<LockOwner>,
    /// Clear set-user-id, and set-group-id where group execution is allowed (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

/// Operation of a request. Names are bytes without `/` and NUL. Flags are those of the system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are the arguments of the system call that the line names"
)]
pub enum Op<'a> {
    /// Find a name; answer [`entry`](crate::Reply::entry), a negative entry or ENOENT.
    Lookup { name: &'a [u8] },
    /// stat(2); answer [`attr`](crate::Reply::attr).
    GetAttr { fh: Option<Handle> },
    /// statx(2), with the flags and the mask of the call; answer [`statx`](crate::Reply::statx).
    Statx { fh: Option<Handle>, flags: u32, mask: u32 },
    /// chmod, chown, truncate, utimensat; answer [`attr`](crate::Reply::attr).
    SetAttr(SetAttr),
    /// readlink(2); answer [`data`](crate::Reply::data).
    ReadLink,
    /// symlink(2); answer `entry`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// mknod(2); answer `entry`. The umask is only to be applied with `DONT_MASK`.
    MkNod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// mkdir(2); answer `entry`.
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// unlink(2); answer `ok`.
    Unlink { name: &'a [u8] },
    /// rmdir(2); answer `ok`.
    RmDir { name: &'a [u8] },
    /// renameat2(2), `flags` as `RENAME_*`; answer `ok`.
    Rename { name: &'a [u8], new_parent: NodeId, new_name: &'a [u8], flags: u32 },
    /// link(2): a new name in `header.node` for `node`; answer `entry`.
    Link { node: NodeId, name: &'a [u8] },
    /// open(2) of what exists; answer [`opened`](crate::Reply::opened).
    Open { flags: u32, kill_suidgid: bool },
    /// read(2); answer `data`, shorter only at the end of the file.
    Read { fh: Handle, offset: u64, size: u32, flags: u32, lock_owner: Option<LockOwner> },
    /// write(2); answer [`written`](crate::Reply::written). `cached`: from the page cache, long
    /// after the call, and the handle is a guess.
    Write {
        fh: Handle,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        lock_owner: Option<LockOwner>,
        cached: bool,
        kill_suidgid: bool,
    },
    /// statfs(2); answer [`statfs`](crate::Reply::statfs).
    StatFs,
    /// The last close of an open file; the kernel waits for no answer, but wants `ok`.
    /// `flock_owner`: the flock locks of this owner end.
    Release { fh: Handle, flags: u32, flush: bool, flock_owner: Option<LockOwner> },
    /// fsync(2) or fdatasync(2); answer `ok`.
    FSync { fh: Handle, datasync: bool },
    /// setxattr(2); answer `ok`. `acl_kill_sgid`: clear set-group-id along (`SETXATTR_EXT`).
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32, acl_kill_sgid: bool },
    /// getxattr(2); answer `data`, or [`xattr_size`](crate::Reply::xattr_size) when `size` is 0, or
    /// ERANGE.
    GetXattr { name: &'a [u8], size: u32 },
    /// listxattr(2); answered like `GetXattr`, the names ended by NUL each.
    ListXattr { size: u32 },
    /// removexattr(2); answer `ok`.
    RemoveXattr { name: &'a [u8] },
    /// Each close(2) of a descriptor: the POSIX locks of this owner end; answer `ok`.
    Flush { fh: Handle, lock_owner: LockOwner },
    /// opendir(3); answer `opened`.
    OpenDir { flags: u32 },
    /// getdents(2); answer a [`DirPage`](crate::DirPage) of at most `size` bytes, empty at the end.
    ReadDir { fh: Handle, offset: u64, size: u32 },
    /// List a directory like `ReadDir`, with a look-up of each name; answer a
    /// [`DirPlusPage`](crate::DirPlusPage).
    ReadDirPlus { fh: Handle, offset: u64, size: u32 },
    /// The last close of an open directory; answer `ok`.
    ReleaseDir { fh: Handle, flags: u32 },
    /// fsync(2) of a directory; answer `ok`.
    FSyncDir { fh: Handle, datasync: bool },
    /// Find a lock in the way of this one; answer [`lock`](crate::Reply::lock).
    GetLk { fh: Handle, owner: LockOwner, lock: FileLock, kind: LockKind },
    /// Take, change or release a lock; answer `ok` or EAGAIN, after waiting when `wait`.
    SetLk { fh: Handle, owner: LockOwner, lock: FileLock, kind: LockKind, wait: bool },
    /// access(2), without `default_permissions`; answer `ok`.
    Access { mask: u32 },
    /// open(2) with `O_CREAT` of what did not exist; answer [`created`](crate::Reply::created).
    Create { name: &'a [u8], mode: u32, umask: u32, flags: u32, kill_suidgid: bool },
    /// open(2) with `O_TMPFILE` in this directory; answer `created`.
    TmpFile { mode: u32, umask: u32, flags: u32 },
    /// Where a block is on a device; answer [`bmap`](crate::Reply::bmap).
    BMap { block: u64, blocksize: u32 },
    /// ioctl(2); answer [`ioctl`](crate::Reply::ioctl).
    Ioctl { fh: Handle, flags: u32, cmd: u32, arg: u64, data: &'a [u8], out_size: u32 },
    /// poll(2); answer [`poll`](crate::Reply::poll). `notify`: wake `kh` later, by a notification.
    Poll { fh: Handle, kh: u64, events: u32, notify: bool },
    /// fallocate(2); answer `ok`.
    FAllocate { fh: Handle, offset: u64, length: u64, mode: u32 },
    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`; answer [`offset`](crate::Reply::offset).
    LSeek { fh: Handle, offset: u64, whence: u32 },
    /// copy_file_range(2) from `header.node`; answer [`copied`](crate::Reply::copied).
    CopyFileRange {
        fh_in: Handle,
        offset_in: u64,
        node_out: NodeId,
        fh_out: Handle,
        offset_out: u64,
        len: u64,
        flags: u64,
    },
    /// syncfs(2); answer `ok`.
    SyncFs,
}
