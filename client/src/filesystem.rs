//! The file system as a program sees it: POSIX by handle.
//!
//! The mount calls this trait, and so do the model tests; [`crate::Client`] is one implementation,
//! the model in memory is another, and a region will be a third. Paths are not in it: a caller with
//! paths resolves them first ([`crate::Client`] has the same operations by path).
//!
//! Every operation is atomic. What it returns is what its own transaction left.

use base::{
    Access, Attr, ByteRange, Cred, EntryName, FileKind, FsError, Ino, LockKind, LockMode, SetAttr,
};
use bytes::Bytes;
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, ReaddirPage, RenameMode, Renamed,
    SeekTo, Statfs, XattrMode,
};

use crate::Result;

/// A file that is open through one client; the client's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// Kind and mode of a file that `create` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// A regular file or a special file.
    pub kind: FileKind,
    /// Permission bits, and the umask where it is not taken off yet (see
    /// [`base::acl::with_umask`]).
    pub mode: u32,
    /// Device number of a special file.
    pub rdev: u32,
}

/// Result of `create`.
#[derive(Debug, Clone)]
pub struct Made {
    /// The entry.
    pub entry: Entry,
    /// Whether the file existed before; then nothing was made or opened.
    pub existed: bool,
    /// The open file, if one was asked for and made.
    pub handle: Option<Handle>,
}

/// Result of `tmpfile`.
#[derive(Debug, Clone)]
pub struct Unnamed {
    /// How operations by handle name it, also after it was given a name.
    pub file: FileRef,
    /// Attributes of the file.
    pub attr: Attr,
    /// The open file.
    pub handle: Handle,
}

/// A lock that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// The family; a lock of the whole file has no range.
    pub kind: LockKind,
    /// Mode of the lock.
    pub mode: LockMode,
    /// The bytes to lock.
    pub range: ByteRange,
    /// The process that asks; 0 when it is not known.
    pub pid: u32,
}

/// A POSIX file system. Futures need not be `Send`: a mount polls them where it reads its requests.
#[expect(async_fn_in_trait, reason = "implementations and callers are ours; see the note on Send")]
pub trait FileSystem {
    /// The root that this client may see, and its attributes.
    fn root(&self) -> (DirRef, Attr);

    /// Looks up `name` in `dir`.
    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry>;
    /// The attributes of a node, with what this client has written but not yet sent.
    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr>;
    /// chmod, chown, utimensat, truncate.
    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr>;
    /// The target of a symbolic link.
    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes>;

    /// Make a file or special file, and open it if `open` is set; `exclusive` refuses a taken name.
    async fn create(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Made>;
    /// Make a regular file without a name and open it; `mode` as in [`New`]. It is gone when it is
    /// closed, unless `link` has given it a name; that is allowed if it is `linkable`.
    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed>;
    /// Make a directory; `mode` as in [`New`].
    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry>;
    /// Make a symbolic link.
    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry>;
    /// Give a file one more name.
    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry>;
    /// Remove a name that is not a directory's; the attributes of what it named.
    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr>;
    /// Remove an empty directory.
    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino>;
    /// Move an entry; what was moved, and which directory was replaced.
    async fn rename(
        &self,
        cred: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed>;
    /// Takes the attributes of a directory that came with the answer to the latest change of a name
    /// in it through this client; asks nobody. `None` where none came: then `getattr` says.
    ///
    /// The caller sees to it that no other change of the directory was under way meanwhile, and
    /// that nothing newer was told: the attributes are of the moment of the change.
    fn changed_dir(&self, _dir: Ino) -> Option<Attr> {
        None
    }
    /// Somebody comes back to a node by a file handle (`open_by_handle_at`), as an NFS server does:
    /// from now on what is answered must not be lost with this client.
    async fn serves_handles(&self) {}
    /// A page of a listing, see [`wire::Readdir`].
    async fn readdir(
        &self,
        cred: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage>;

    /// Open a file for what `access` says (`None`: without any permission, as `O_PATH` users do).
    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle>;
    /// The attributes of an open file as its latest open found them, or newer; asks nobody. `None`
    /// when they are not known: then `getattr` says.
    fn opened_attr(&self, _handle: Handle) -> Option<Attr> {
        None
    }
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes>;
    /// Write all of `data` at `offset`; `clear_set_id` when the writer may not keep set-id bits.
    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()>;
    /// Send what was written: other clients that open the file afterwards see it. Every `close` of
    /// a descriptor calls it, and others may share the handle: so an error is told again, until
    /// `fsync` has told it.
    async fn flush(&self, handle: Handle) -> Result<()>;
    /// Flush as `flush` does; the contents are on stable storage when it returns. An error of
    /// sending is told once.
    async fn fsync(&self, handle: Handle) -> Result<()>;
    /// The last user of the handle has closed it. What was locked through it is free, for whomever
    /// it was.
    async fn release(&self, handle: Handle) -> Result<()>;
    /// Take a lock for `owner`, a number of the caller's choice, or change its mode: `TryAgain`
    /// when another owner has it. What others wrote while they had it is seen from then on.
    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()>;
    /// Lock as `lock` does, and wait: `Interrupted` when `interrupted` comes first, `Deadlock` when
    /// it would wait for itself. A dropped future gives up the range.
    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()>;
    /// Give back what `owner` has of a range, after sending what was written.
    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()>;
    /// `owner` has closed a descriptor of the file: it gives back all ranges. Asks nobody when it
    /// has none.
    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()>;
    /// Returns a lock that conflicts with this one, if there is one.
    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>>;
    /// Everything answered before is on stable storage (`syncfs`).
    async fn sync(&self) -> Result<()>;
    /// The names in a directory are on stable storage (`fsync` of a directory).
    async fn sync_dir(&self, dir: &DirRef) -> Result<()>;

    /// All extended attributes.
    async fn xattrs(&self, cred: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>>;
    /// Set one.
    async fn setxattr(
        &self,
        cred: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()>;
    /// Remove one; `NoData` when there is none.
    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()>;

    /// Make a file longer or a range of it zeros (`fallocate`), see [`AllocateMode`];
    /// `clear_set_id` as for `write`.
    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()>;
    /// Where the next data or hole from `offset` on is; `NoSuchDevice` when there is none.
    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64>;
    /// Copy up to `len` bytes from one open file to another; how many, less only at the end of the
    /// first one or after [`COPY_BYTES_MAX`]. An error after the first bytes is the next call's to
    /// report.
    async fn copy_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
        clear_set_id: bool,
    ) -> Result<u64> {
        let len = len.min(COPY_BYTES_MAX);
        let mut copied = 0;
        while copied < len {
            let (from, to) = ((from.0, from.1 + copied), (to.0, to.1 + copied));
            match copy_piece(self, from, to, len - copied, clear_set_id).await {
                Ok(0) => break,
                Ok(piece) => copied += piece,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(copied)
    }

    /// Finds the node with an inode number, for a file handle of which nothing else is known;
    /// `Stale` where no node has the number, or where it cannot be found so.
    async fn search(&self, _ino: Ino) -> Result<NodeRef> {
        Err(FsError::Stale.into())
    }

    /// Space and inodes.
    async fn statfs(&self) -> Result<Statfs>;
    /// Returns what `pando info` prints: names and values.
    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>>;
}

/// How much one [`FileSystem::copy_range`] copies at most.
pub const COPY_BYTES_MAX: u64 = 64 << 20;
const PIECE_BYTES: u32 = 1 << 20;

async fn copy_piece<F: FileSystem + ?Sized>(
    fs: &F,
    from: (Handle, u64),
    to: (Handle, u64),
    len: u64,
    clear_set_id: bool,
) -> Result<u64> {
    let len = u32::try_from(len).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
    to.1.checked_add(len.into()).ok_or(FsError::FileTooBig)?;
    let data = fs.read(from.0, from.1, len).await?;
    let copied = data.len() as u64;
    fs.write(to.0, to.1, data, clear_set_id).await?;
    Ok(copied)
}
