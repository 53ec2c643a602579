//! An open file, as a program that uses the client directly has it.

use std::path::Path;

use base::{Attr, ByteRange, FsError, LockKind, LockMode, SetAttr};
use bytes::{Bytes, BytesMut};
use wire::{AllocateMode, FileRef, LockFound, NodeRef, SeekTo};

use crate::{Client, FileLock, FileSystem, Handle, Result};

/// How much [`File::read_all`] asks for at once.
const READ_BYTES: u32 = 1 << 20;

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) no_follow: bool,
    pub(crate) mode: u32,
}

impl OpenOptions {
    /// Opens for reading.
    #[must_use]
    pub fn reading() -> OpenOptions {
        let mode = 0o644;
        OpenOptions {
            read: true,
            write: false,
            truncate: false,
            create: false,
            exclusive: false,
            no_follow: false,
            mode,
        }
    }

    /// Opens for writing, but not for reading.
    #[must_use]
    pub fn writing() -> OpenOptions {
        OpenOptions { read: false, write: true, ..OpenOptions::reading() }
    }

    /// Opens for reading and writing.
    #[must_use]
    pub fn both() -> OpenOptions {
        OpenOptions { write: true, ..OpenOptions::reading() }
    }

    /// Cut it to nothing (needs writing).
    #[must_use]
    pub fn truncate(self) -> OpenOptions {
        OpenOptions { truncate: true, ..self }
    }

    /// Make it, with permission bits `mode`, if it is not there.
    #[must_use]
    pub fn create(self, mode: u32) -> OpenOptions {
        OpenOptions { create: true, mode, ..self }
    }

    /// Make it, with permission bits `mode`; `Exists` if it is there.
    #[must_use]
    pub fn create_new(self, mode: u32) -> OpenOptions {
        OpenOptions { create: true, exclusive: true, mode, ..self }
    }

    /// Fail with `Loop` where the path names a symbolic link (`O_NOFOLLOW`).
    #[must_use]
    pub fn no_follow(self) -> OpenOptions {
        OpenOptions { no_follow: true, ..self }
    }
}

/// An open file. Dropping it closes it and sends what was written in the background; only
/// [`File::close`] and [`File::sync_all`] tell whether that succeeded.
pub struct File {
    client: Client,
    handle: Handle,
    /// The name under which the file was opened.
    file: FileRef,
    read: bool,
    write: bool,
    closed: bool,
}

impl File {
    pub(crate) fn new(
        client: &Client,
        handle: Handle,
        file: FileRef,
        options: OpenOptions,
    ) -> File {
        let OpenOptions { read, write, .. } = options;
        File { client: client.clone(), handle, file, read, write, closed: false }
    }

    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `BadHandle` when it was not opened for reading.
    pub async fn read_at(&self, offset: u64, len: u32) -> Result<Bytes> {
        if !self.read {
            return Err(FsError::BadHandle.into());
        }
        FileSystem::read(&self.client, self.handle, offset, len).await
    }

    /// Everything.
    ///
    /// # Errors
    /// `BadHandle` when it was not opened for reading.
    pub async fn read_all(&self) -> Result<Bytes> {
        let mut all = BytesMut::new();
        loop {
            let bytes = self.read_at(all.len() as u64, READ_BYTES).await?;
            let last = bytes.len() < READ_BYTES as usize;
            if last && all.is_empty() {
                return Ok(bytes);
            }
            all.extend_from_slice(&bytes);
            if last {
                return Ok(all.freeze());
            }
        }
    }

    /// Writes all of `data` at `offset`. Other clients see it after a flush.
    ///
    /// # Errors
    /// `BadHandle` when it was not opened for writing; `FileTooBig` beyond 16 PiB.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(Some(offset), data).await?;
        Ok(())
    }

    /// Writes all of `data` at the end, as this client knows it; where it was written.
    ///
    /// # Errors
    /// `BadHandle` when it was not opened for writing; `FileTooBig` beyond 16 PiB.
    pub async fn append(&self, data: &[u8]) -> Result<u64> {
        self.write(None, data).await
    }

    async fn write(&self, offset: Option<u64>, data: &[u8]) -> Result<u64> {
        if !self.write {
            return Err(FsError::BadHandle.into());
        }
        let open = self.client.core.files.handle(self.handle)?;
        let clear_set_id = !open.cred.is_root();
        self.client.write_file(&open, offset, data, clear_set_id).await
    }

    /// Sends what was written: other clients that open the file afterwards see it.
    ///
    /// # Errors
    /// When something that was written could not be stored, once.
    pub async fn flush(&self) -> Result<()> {
        let open = self.client.core.files.handle(self.handle)?;
        self.client.flush_file(&open).await
    }

    /// Flushes as [`File::flush`] does; the contents are on stable storage when it returns.
    ///
    /// # Errors
    /// When something that was written could not be stored, once.
    pub async fn sync_all(&self) -> Result<()> {
        self.client.fsync(self.handle).await
    }

    /// Cuts the file, or makes it longer with zeros.
    ///
    /// # Errors
    /// `BadHandle` when it was not opened for writing.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        if !self.write {
            return Err(FsError::BadHandle.into());
        }
        let open = self.client.core.files.handle(self.handle)?;
        let clear_set_id = !open.cred.is_root();
        let set = SetAttr { size: Some(size), clear_set_id, ..SetAttr::default() };
        self.client.setattr(&open.cred, &self.node(), set).await?;
        Ok(())
    }

    /// Takes a lock of the whole file (as `flock`), or changes its mode; waits until it is free.
    /// The lock is this open file's, and ends with it at the latest. Who has it sees what the one
    /// before wrote.
    ///
    /// # Errors
    /// `NoLocks` when the session has as many as it may; `SessionLost`.
    pub async fn lock(&self, mode: LockMode) -> Result<()> {
        let never = std::future::pending();
        self.client.lock_wait(self.handle, self.handle.0, self.whole(mode), never).await
    }

    /// Takes a lock as [`File::lock`] does, without waiting.
    ///
    /// # Errors
    /// `TryAgain` when another has it; a lock of another mode that this file had is lost then.
    pub async fn try_lock(&self, mode: LockMode) -> Result<()> {
        FileSystem::lock(&self.client, self.handle, self.handle.0, self.whole(mode)).await
    }

    /// Gives the lock back, once what was written is sent.
    ///
    /// # Errors
    /// When the session was lost, and the lock with it.
    pub async fn unlock(&self) -> Result<()> {
        let (owner, all) = (self.handle.0, ByteRange::ALL);
        FileSystem::unlock(&self.client, self.handle, owner, LockKind::Whole, all).await
    }

    /// Takes a lock of a range (as `fcntl` does for an open file), or changes its mode; waits until
    /// it is free. Dropped before it is done, it gives up the range.
    ///
    /// # Errors
    /// `BadHandle` when the mode is exclusive and the file was not opened for writing, or shared
    /// and not for reading; `Deadlock` when it would wait for itself; `NoLocks`.
    pub async fn lock_range(&self, range: ByteRange, mode: LockMode) -> Result<()> {
        let (lock, never) = (self.ranged(range, mode)?, std::future::pending());
        self.client.lock_wait(self.handle, self.handle.0, lock, never).await
    }

    /// Takes a lock as [`File::lock_range`] does, without waiting.
    ///
    /// # Errors
    /// As there, and `TryAgain` when another has it.
    pub async fn try_lock_range(&self, range: ByteRange, mode: LockMode) -> Result<()> {
        let lock = self.ranged(range, mode)?;
        FileSystem::lock(&self.client, self.handle, self.handle.0, lock).await
    }

    /// Gives back what this open file has of the range, once what was written is sent.
    ///
    /// # Errors
    /// When the session was lost, and the locks with it.
    pub async fn unlock_range(&self, range: ByteRange) -> Result<()> {
        let owner = self.handle.0;
        FileSystem::unlock(&self.client, self.handle, owner, LockKind::Range, range).await
    }

    /// Returns a lock that conflicts with a lock of this range, if there is one.
    ///
    /// # Errors
    /// When the session was lost.
    pub async fn get_lock(&self, range: ByteRange, mode: LockMode) -> Result<Option<LockFound>> {
        let lock = FileLock { range, kind: LockKind::Range, ..self.whole(mode) };
        self.client.find_lock(self.handle, self.handle.0, lock).await
    }

    fn ranged(&self, range: ByteRange, mode: LockMode) -> Result<FileLock> {
        let may = match mode {
            LockMode::Shared => self.read,
            LockMode::Exclusive => self.write,
        };
        if !may {
            return Err(FsError::BadHandle.into());
        }
        Ok(FileLock { range, kind: LockKind::Range, ..self.whole(mode) })
    }

    /// Makes it longer, or a range of it zeros (`fallocate`).
    ///
    /// # Errors
    /// `BadHandle` when it was not opened for writing; `Invalid` for no bytes; `FileTooBig` beyond
    /// 16 PiB.
    pub async fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        if !self.write {
            return Err(FsError::BadHandle.into());
        }
        self.client.allocate(self.handle, offset, len, mode, false).await
    }

    /// Where the next data or hole from `offset` on is. Behind the last byte is a hole.
    ///
    /// # Errors
    /// `NoSuchDevice` when there is none, as from the end of the file on.
    pub async fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        FileSystem::seek(&self.client, self.handle, offset, to).await
    }

    /// Copies up to `len` bytes from `offset` to `to_offset` of a file of the same client; how
    /// many: less at the end of this file, and otherwise at least 64 MiB.
    ///
    /// # Errors
    /// `BadHandle` when this file was not opened for reading or the other one for writing;
    /// `Invalid` when the ranges overlap within one file.
    pub async fn copy_to(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        if !self.read || !to.write {
            return Err(FsError::BadHandle.into());
        }
        let apart = offset.abs_diff(to_offset) >= len;
        if self.file.ino == to.file.ino && !apart {
            return Err(FsError::Invalid.into());
        }
        self.client.copy_range((self.handle, offset), (to.handle, to_offset), len, false).await
    }

    /// Gives it one more name, or its first one (see [`Client::tmpfile`]), with all that was
    /// written to it.
    ///
    /// # Errors
    /// As `link(2)`; `NotFound` when it has lost its last name, or was made not to get one;
    /// `SessionLost`.
    pub async fn link(&self, path: impl AsRef<Path>) -> Result<()> {
        let linked = self.client.link_open(self, path.as_ref()).await;
        if linked.is_err() {
            self.client.core.files.handle(self.handle)?.state.lock().check()?;
        }
        linked
    }

    /// Returns the attributes of the file.
    ///
    /// # Errors
    /// When the session was lost.
    pub async fn metadata(&self) -> Result<Attr> {
        let open = self.client.core.files.handle(self.handle)?;
        self.client.getattr(&open.cred, &self.node()).await
    }

    /// How to name it in operations by handle, where it is now as far as this client knows.
    #[must_use]
    pub fn node(&self) -> NodeRef {
        let open = self.client.core.files.handle(self.handle);
        NodeRef::File(
            open.map_or_else(|_| self.file.clone(), |open| open.state.lock().file.clone()),
        )
    }

    /// A lock of the whole file, asked for by this process.
    fn whole(&self, mode: LockMode) -> FileLock {
        let pid = self.client.core.config.pid;
        FileLock { kind: LockKind::Whole, mode, range: ByteRange::ALL, pid }
    }

    /// Sends what was written and closes the file.
    ///
    /// # Errors
    /// When something that was written could not be stored, once.
    pub async fn close(mut self) -> Result<()> {
        let flushed = self.flush().await;
        let released = self.client.release(self.handle).await;
        // Race: a caller that gives up before has the drop do it.
        self.closed = true;
        released.and(flushed)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if self.client.has_locks(self.file.ino, self.handle) {
            let (client, handle) = (self.client.clone(), self.handle);
            self.client.core.spawn(async move {
                if let Err(error) = client.release(handle).await {
                    tracing::debug!(%error, "what a dropped file had locked was not given back");
                }
            });
        } else {
            // The file is open, so this cannot fail.
            let _ = self.client.release_handle(self.handle);
        }
    }
}
