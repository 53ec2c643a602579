//! The file system below a region, as the region uses it: blocking calls on paths.
//!
//! `commit` and `structural` call it, and loads of what the region does not know yet. It caches
//! nothing and decides nothing: each method is one change, which is made or is not. [`Mounted`] is
//! any directory of this machine; [`Memory`] is one in memory, with faults, for tests.
//!
//! No method follows a symbolic link, and none leaves the region's directory, whatever somebody
//! else puts there meanwhile.

mod memory;
mod mounted;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use base::{Attr, EntryName, FileKind, FsError, Ino, Time};
use bytes::Bytes;
use wire::{AllocateMode, RenameMode, SeekTo, Statfs, XattrMode};

pub use self::{
    memory::{Call, Memory},
    mounted::{Mounted, OpenError},
};
use crate::Path;

/// The result of a call below: its errno is all that is known of a failure.
pub type Result<T> = std::result::Result<T, FsError>;

/// A file or directory that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Attributes, with the inode number that the file system below has for it, and
    /// [`base::attr::MODE_ACL`] and [`base::attr::MODE_XATTRS`] in the mode where they hold.
    pub attr: Attr,
    /// Whether it is a directory whose files get an ACL when they are made: then only the file
    /// system below knows their modes.
    pub default_acl: bool,
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name in the directory.
    pub name: EntryName,
    /// Inode number below.
    pub ino: Ino,
    /// Kind, where the listing says it.
    pub kind: Option<FileKind>,
}

/// Permission bits, owner and times that something is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Permission and special bits; of no use to a symbolic link.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
}

/// Something to be made under a name that must be free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum New {
    /// A regular file with these contents.
    File(Arc<Vec<u8>>),
    /// A directory. The owner may do everything in it until [`Below::set`] gives it its mode.
    Directory,
    /// A symbolic link with this target.
    Symlink(Bytes),
    /// A named pipe, a socket or a device with this number.
    Special(FileKind, u32),
}

/// Changes of what is there; what is `None` stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// All contents of a regular file.
    pub contents: Option<Arc<Vec<u8>>>,
    /// Permission and special bits.
    pub mode: Option<u32>,
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Times of the last access and of the last change of contents; set last.
    pub times: Option<(Time, Time)>,
}

/// A file system below. Every method blocks.
pub trait Below: Send + Sync + 'static {
    /// Says what is at a path; `None` where nothing is, or where no directory is above.
    ///
    /// # Errors
    /// The errno of the file system below, here and in all methods.
    fn look(&self, path: &Path) -> Result<Option<Found>>;
    /// Entries of a directory, up to so many of them, in any order, without `.` and `..`.
    fn list(&self, path: &Path, entries_max: usize) -> Result<Vec<Listed>>;
    /// The contents of a regular file, up to `bytes_max` of them.
    fn read(&self, path: &Path, bytes_max: usize) -> Result<Vec<u8>>;
    /// The target of a symbolic link.
    fn target(&self, path: &Path) -> Result<Bytes>;

    /// Makes what is not there, with its metadata. `Exists` where the name is taken, which is then
    /// left alone. What was begun and failed is taken away again.
    fn make(&self, path: &Path, new: &New, meta: &Meta) -> Result<Found>;
    /// Changes what is there. A file whose owner may not write to it is changed all the same.
    fn set(&self, path: &Path, change: &Change) -> Result<Found>;
    /// Removes a name that is not a directory's.
    fn unlink(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, path: &Path) -> Result<()>;
    /// Moves an entry.
    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()>;
    /// Gives a file one more name.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// All extended attributes.
    fn xattrs(&self, path: &Path) -> Result<Vec<(Bytes, Bytes)>>;
    /// Sets one.
    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    /// Removes one.
    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()>;

    /// Opens a regular file to read and, where its owner may at all, to write.
    fn open(&self, path: &Path) -> Result<Arc<dyn Contents>>;
    /// Makes a file without a name in a directory, with its mode and owner, and opens it.
    fn unnamed(&self, dir: &Path, meta: &Meta) -> Result<(Found, Arc<dyn Contents>)>;

    /// The file and its contents are on stable storage, but perhaps not its name.
    fn sync_file(&self, path: &Path) -> Result<()>;
    /// The names in a directory are on stable storage.
    fn sync_dir(&self, path: &Path) -> Result<()>;
    /// Everything is on stable storage.
    fn sync_all(&self) -> Result<()>;
    /// Space and inodes.
    fn statfs(&self) -> Result<Statfs>;
}

/// An open regular file below. Every method blocks.
pub trait Contents: Send + Sync {
    /// Attributes as [`Found`] has them.
    ///
    /// # Errors
    /// The errno of the file system below, here and in all methods.
    fn attr(&self) -> Result<Attr>;
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: u32) -> Result<Bytes>;
    /// Writes all of `data`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Changes the file, contents excepted.
    fn set(&self, change: &Change) -> Result<()>;
    /// Cuts, or grows with zeros.
    fn truncate(&self, size: u64) -> Result<()>;
    /// `fallocate`.
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()>;
    /// Where the next data or hole is.
    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64>;
    /// The contents are on stable storage.
    fn sync(&self) -> Result<()>;
    /// Gives a file that was made by [`Below::unnamed`] a name.
    fn link(&self, to: &Path) -> Result<()>;
    /// The descriptor, of a file that has one.
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}
