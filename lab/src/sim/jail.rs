//! A directory as a file system of its own, in which every entry has all of its attributes.
//!
//! A client's directory in a world, where other clients move the clock, can so be compared step by
//! step with one in the model: without times. [`Jail::over`] keeps times, where one clock is moved
//! by hand.

use base::{Access, Attr, ByteRange, Cred, EntryName, Ino, LockKind, SetAttr, Time};
use bytes::Bytes;
use client::{FileLock, FileSystem, Handle, Made, New, Result, Unnamed};
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, ReaddirPage, RenameMode, Renamed,
    SeekTo, Statfs, XattrMode,
};

/// The directory, seen through a client.
pub struct Jail<F> {
    inner: F,
    root: DirRef,
    attr: Attr,
    has_times: bool,
}

impl<F: FileSystem> Jail<F> {
    /// A jail that is the whole file system, with times.
    pub fn over(inner: F) -> Jail<F> {
        let (root, attr) = inner.root();
        Jail { inner, root, attr, has_times: true }
    }

    /// Makes the directory `name` in the root, and a jail of it.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub async fn make(inner: F, name: &EntryName) -> anyhow::Result<Jail<F>> {
        let top = inner.root().0;
        let entry = inner.mkdir(&Cred::ROOT, &top, name, 0o755).await?;
        let Some(root) = entry.dir else { anyhow::bail!("mkdir made no directory") };
        let mut jail = Jail { inner, root, attr: entry.attr, has_times: false };
        jail.attr = jail.shown(entry.attr);
        Ok(jail)
    }

    /// Finds the directory `name` in the root, which another client has made, and makes a jail of
    /// it.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn find(inner: F, name: &EntryName) -> anyhow::Result<Jail<F>> {
        let top = inner.root().0;
        let entry = inner.lookup(&Cred::ROOT, &top, name).await?;
        let Some(root) = entry.dir else { anyhow::bail!("it is no directory") };
        let mut jail = Jail { inner, root, attr: entry.attr, has_times: false };
        jail.attr = jail.shown(entry.attr);
        Ok(jail)
    }

    fn shown(&self, attr: Attr) -> Attr {
        let never = Time::default();
        match self.has_times {
            true => attr,
            false => Attr { atime: never, mtime: never, ctime: never, btime: never, ..attr },
        }
    }

    fn entry(&self, entry: Entry) -> Entry {
        Entry { attr: self.shown(entry.attr), ..entry }
    }

    fn page(&self, mut page: ReaddirPage) -> ReaddirPage {
        page.attr = self.shown(page.attr);
        for listed in &mut page.entries {
            listed.entry = listed.entry.take().map(|entry| self.entry(entry));
        }
        page
    }
}

impl<F: FileSystem> FileSystem for Jail<F> {
    fn root(&self) -> (DirRef, Attr) {
        (self.root, self.attr)
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        self.inner.opened_attr(handle).map(|attr| self.shown(attr))
    }

    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        self.inner.lookup(cred, dir, name).await.map(|entry| self.entry(entry))
    }

    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr> {
        self.inner.getattr(cred, node).await.map(|attr| self.shown(attr))
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        self.inner.setattr(cred, node, set).await.map(|attr| self.shown(attr))
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
        let mut found = self.inner.create(cred, dir, name, new, exclusive, open).await?;
        if !found.entry.whole {
            // The attributes of the entry are on another server.
            found.entry = self.inner.lookup(cred, dir, name).await?;
        }
        Ok(Made { entry: self.entry(found.entry), ..found })
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        let made = self.inner.tmpfile(cred, dir, mode, linkable).await?;
        Ok(Unnamed { attr: self.shown(made.attr), ..made })
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        self.inner.mkdir(cred, dir, name, mode).await.map(|entry| self.entry(entry))
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        self.inner.symlink(cred, dir, name, target).await.map(|entry| self.entry(entry))
    }

    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        self.inner.link(cred, target, dir, name).await.map(|entry| self.entry(entry))
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        self.inner.unlink(cred, dir, name).await.map(|attr| self.shown(attr))
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
        let mut found = self.inner.readdir(cred, dir, after, entries_max, plus).await?;
        // A listing lacks the attributes of entries whose inodes are on other servers.
        for listed in found.entries.iter_mut().filter(|listed| plus && listed.entry.is_none()) {
            listed.entry = self.inner.lookup(cred, dir, &listed.name).await.ok();
        }
        Ok(self.page(found))
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
        self.inner.allocate(handle, offset, len, mode, clear_set_id).await
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner.seek(handle, offset, to).await
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        self.inner.search(ino).await
    }

    async fn statfs(&self) -> Result<Statfs> {
        self.inner.statfs().await
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        self.inner.info(node).await
    }
}
