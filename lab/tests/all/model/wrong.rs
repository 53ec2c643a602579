//! File systems with one bug each: the model, behind a layer that gets one thing wrong.

use base::{
    Access, Attr, ByteRange, Cred, EntryName, Ino, LockKind, SetAttr,
    attr::{MODE_SETGID, MODE_SETUID},
};
use bytes::Bytes;
use client::{FileLock, FileSystem, Handle, Made, New, Result, Unnamed, model::Model};
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, ReaddirPage, RenameMode, Renamed,
    SeekTo, Statfs, XattrMode,
};

/// The bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A subdirectory does not inherit the set-group-id bit.
    SetgidInheritance,
    /// `RENAME_NOREPLACE` replaces.
    NoReplace,
    /// A write leaves set-id bits.
    SetIdOnWrite,
    /// The first entry of every further page of a listing is lost.
    Cookie,
    /// Growing a file does not count.
    Growth,
    /// The answer of `link` has a link count that is too low by one.
    LinkCount,
    /// A hole that is punched beyond the end makes the file longer.
    ZeroGrows,
}

impl Bug {
    pub(crate) const ALL: [Bug; 7] = [
        Bug::SetgidInheritance,
        Bug::NoReplace,
        Bug::SetIdOnWrite,
        Bug::Cookie,
        Bug::Growth,
        Bug::LinkCount,
        Bug::ZeroGrows,
    ];
}

/// The model with a bug.
pub(crate) struct Wrong {
    pub(crate) inner: Model,
    pub(crate) bug: Bug,
}

impl FileSystem for Wrong {
    fn root(&self) -> (DirRef, Attr) {
        self.inner.root()
    }

    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        self.inner.lookup(cred, dir, name).await
    }

    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr> {
        self.inner.getattr(cred, node).await
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        let before = self.inner.getattr(cred, node).await?;
        if self.bug == Bug::Growth && set.size.is_some_and(|size| size > before.size) {
            return self
                .inner
                .setattr(cred, node, SetAttr { size: Some(before.size), ..set })
                .await;
        }
        self.inner.setattr(cred, node, set).await
    }

    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes> {
        self.inner.readlink(cred, file).await
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Made> {
        self.inner.create(cred, dir, name, new, exclusive, open).await
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        self.inner.tmpfile(cred, dir, mode, linkable).await
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        let mut entry = self.inner.mkdir(cred, dir, name, mode).await?;
        if self.bug == Bug::SetgidInheritance {
            let mode = Some(entry.attr.mode & !(MODE_SETGID | MODE_SETUID));
            let node = entry.node(dir, name);
            let set = SetAttr { mode, ..SetAttr::default() };
            entry.attr = self.inner.setattr(&Cred::ROOT, &node, set).await?;
        }
        Ok(entry)
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        self.inner.symlink(cred, dir, name, target).await
    }

    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        let mut entry = self.inner.link(cred, target, dir, name).await?;
        if self.bug == Bug::LinkCount {
            entry.attr.nlink -= 1;
        }
        Ok(entry)
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        self.inner.unlink(cred, dir, name).await
    }

    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        self.inner.rmdir(cred, dir, name).await
    }

    async fn rename(
        &self,
        cred: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let wrong = self.bug == Bug::NoReplace && mode == RenameMode::NoReplace;
        let mode = if wrong { RenameMode::Replace } else { mode };
        self.inner.rename(cred, from, to, mode).await
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        let mut page = self.inner.readdir(cred, dir, after, entries_max, plus).await?;
        if self.bug == Bug::Cookie && after > 0 && !page.entries.is_empty() {
            page.entries.remove(0);
        }
        Ok(page)
    }

    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle> {
        self.inner.open(cred, file, access).await
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.inner.read(handle, offset, len).await
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        let clear_set_id = clear_set_id && self.bug != Bug::SetIdOnWrite;
        self.inner.write(handle, offset, data, clear_set_id).await
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        self.inner.flush(handle).await
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        self.inner.fsync(handle).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.inner.release(handle).await
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.inner.lock(handle, owner, lock).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.inner.lock_wait(handle, owner, lock, interrupted).await
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.inner.unlock(handle, owner, kind, range).await
    }

    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()> {
        self.inner.unlock_closed(handle, owner).await
    }

    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        self.inner.find_lock(handle, owner, lock).await
    }

    async fn sync(&self) -> Result<()> {
        self.inner.sync().await
    }

    async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        self.inner.sync_dir(dir).await
    }

    async fn xattrs(&self, cred: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        self.inner.xattrs(cred, node).await
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        self.inner.setxattr(cred, node, name, value, mode).await
    }

    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        self.inner.removexattr(cred, node, name).await
    }

    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        let wrong = self.bug == Bug::ZeroGrows && mode == AllocateMode::ZeroWithin;
        let mode = if wrong { AllocateMode::Zero } else { mode };
        self.inner.allocate(handle, offset, len, mode, clear_set_id).await
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner.seek(handle, offset, to).await
    }

    async fn statfs(&self) -> Result<Statfs> {
        self.inner.statfs().await
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        self.inner.info(node).await
    }
}
