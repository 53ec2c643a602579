//! The file system behind a mount, watched: requests are counted, and tests make it late, stuck or
//! unlucky.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use base::{Access, Attr, ByteRange, Cred, EntryName, Ino, LockKind, SetAttr};
use bytes::Bytes;
use client::{FileLock, FileSystem, Handle, Made, New, Result, Unnamed};
use tokio::sync::watch;
use wire::{
    AllocateMode, DirRef, Entry, FileRef, LockFound, NodeRef, ReaddirPage, RenameMode, Renamed,
    SeekTo, Statfs, XattrMode,
};

/// Number of bits of a position.
pub(crate) const POSITION_BITS: u32 = 63;

/// One client of the model, or of a server.
pub(crate) struct Probe<F> {
    pub(crate) inner: F,
    pub(crate) seen: Arc<Seen>,
    /// No operation is ready at once.
    pub(crate) late: bool,
    /// Positions are cut to so many high bits, so that many names have the same one.
    pub(crate) position_bits: u32,
}

/// State that the test and the probe share.
#[derive(Debug)]
pub(crate) struct Seen {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    outdated: Mutex<Vec<String>>,
    stuck: watch::Sender<Option<&'static str>>,
    blocks: Mutex<Option<&'static str>>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            counts: Mutex::default(),
            outdated: Mutex::default(),
            stuck: watch::Sender::new(None),
            blocks: Mutex::default(),
        }
    }
}

impl Seen {
    /// How often an operation was asked for.
    pub(crate) fn count(&self, op: &str) -> u64 {
        self.counts.lock().unwrap().get(op).copied().unwrap_or_default()
    }

    /// From now on `op` does not go on, until `release`.
    pub(crate) fn hold(&self, op: &'static str) {
        self.stuck.send_replace(Some(op));
    }

    /// The next `op` blocks the thread of the mount, which no operation should do, for a while.
    pub(crate) fn block(&self, op: &'static str) {
        *self.blocks.lock().unwrap() = Some(op);
    }

    pub(crate) fn release(&self) {
        self.stuck.send_replace(None);
    }

    /// Files that were asked for by a name that they do not have, while they had another.
    pub(crate) fn outdated(&self) -> Vec<String> {
        self.outdated.lock().unwrap().clone()
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread must be away for a known time")]
fn block_the_thread() {
    std::thread::sleep(std::time::Duration::from_millis(500));
}

impl<F: FileSystem> Probe<F> {
    async fn enter(&self, op: &'static str) {
        *self.seen.counts.lock().unwrap().entry(op).or_default() += 1;
        if self.seen.blocks.lock().unwrap().take_if(|blocks| *blocks == op).is_some() {
            block_the_thread();
        }
        if self.late {
            tokio::task::yield_now().await;
        }
        let mut stuck = self.seen.stuck.subscribe();
        stuck.wait_for(|stuck| *stuck != Some(op)).await.expect("the sender is in `seen`");
    }

    async fn enter_node(&self, op: &'static str, node: &NodeRef) {
        self.enter(op).await;
        if let NodeRef::File(file) = node {
            self.check(op, file).await;
        }
    }

    async fn check(&self, op: &'static str, file: &FileRef) {
        let found = self.inner.lookup(&Cred::ROOT, &file.dir, &file.name).await;
        let right = found.is_ok_and(|found| found.attr.ino == file.ino);
        let node = NodeRef::File(file.clone());
        let attr = self.inner.getattr(&Cred::ROOT, &node).await;
        if !right && attr.is_ok_and(|attr| attr.nlink == 1) {
            self.seen.outdated.lock().unwrap().push(format!("{op} {}", file.name));
        }
    }

    fn coarse(&self, pos: u64) -> u64 {
        let low = POSITION_BITS - self.position_bits;
        (pos >> low << low).max(base::hash::POS_MIN)
    }
}

impl<F: FileSystem> FileSystem for Probe<F> {
    fn root(&self) -> (DirRef, Attr) {
        self.inner.root()
    }

    async fn lookup(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        self.enter("lookup").await;
        self.inner.lookup(cred, dir, name).await
    }

    async fn getattr(&self, cred: &Cred, node: &NodeRef) -> Result<Attr> {
        self.enter_node("getattr", node).await;
        self.inner.getattr(cred, node).await
    }

    async fn setattr(&self, cred: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        self.enter_node("setattr", node).await;
        self.inner.setattr(cred, node, set).await
    }

    async fn readlink(&self, cred: &Cred, file: &FileRef) -> Result<Bytes> {
        self.enter("readlink").await;
        self.check("readlink", file).await;
        // The client reads a link in the same way: by name.
        let entry = self.inner.lookup(cred, &file.dir, &file.name).await?;
        Ok(entry.target.expect("a symbolic link"))
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
        self.enter("create").await;
        self.inner.create(cred, dir, name, new, exclusive, open).await
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        self.enter("tmpfile").await;
        self.inner.tmpfile(cred, dir, mode, linkable).await
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        self.enter("mkdir").await;
        self.inner.mkdir(cred, dir, name, mode).await
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        self.enter("symlink").await;
        self.inner.symlink(cred, dir, name, target).await
    }

    async fn link(
        &self,
        cred: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        self.enter_node("link", target).await;
        self.inner.link(cred, target, dir, name).await
    }

    async fn unlink(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        self.enter("unlink").await;
        self.inner.unlink(cred, dir, name).await
    }

    async fn rmdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        self.enter("rmdir").await;
        self.inner.rmdir(cred, dir, name).await
    }

    async fn rename(
        &self,
        cred: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.enter("rename").await;
        self.inner.rename(cred, from, to, mode).await
    }

    fn changed_dir(&self, dir: Ino) -> Option<Attr> {
        self.inner.changed_dir(dir)
    }

    async fn readdir(
        &self,
        cred: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        self.enter(if plus { "readdirplus" } else { "readdir" }).await;
        if self.position_bits == POSITION_BITS {
            return self.inner.readdir(cred, dir, after, entries_max, plus).await;
        }
        let mut page = self.inner.readdir(cred, dir, 0, u32::MAX, plus).await?;
        for entry in &mut page.entries {
            entry.pos = self.coarse(entry.pos);
        }
        page.entries.retain(|entry| entry.pos > after);
        page.entries.sort_by(|one, other| (one.pos, &one.name).cmp(&(other.pos, &other.name)));
        let mut len = page.entries.len().min(usize::try_from(entries_max).unwrap());
        while len < page.entries.len() && page.entries[len - 1].pos == page.entries[len].pos {
            len += 1;
        }
        page.end = len == page.entries.len();
        page.entries.truncate(len);
        Ok(page)
    }

    async fn open(&self, cred: &Cred, file: &FileRef, access: Option<Access>) -> Result<Handle> {
        self.enter("open").await;
        self.check("open", file).await;
        self.inner.open(cred, file, access).await
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        // One of the two ways in which a mount learns it, each used by some of the tests.
        if self.late { None } else { self.inner.opened_attr(handle) }
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.enter("read").await;
        self.inner.read(handle, offset, len).await
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        self.enter("write").await;
        self.inner.write(handle, offset, data, clear_set_id).await
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        self.enter("flush").await;
        self.inner.flush(handle).await
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        self.enter("fsync").await;
        self.inner.fsync(handle).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.enter("release").await;
        self.inner.release(handle).await
    }

    async fn lock(&self, handle: Handle, owner: u64, lock: FileLock) -> Result<()> {
        self.enter("lock").await;
        self.inner.lock(handle, owner, lock).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.enter("lock_wait").await;
        self.inner.lock_wait(handle, owner, lock, interrupted).await
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.enter("unlock").await;
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
        self.enter("find_lock").await;
        self.inner.find_lock(handle, owner, lock).await
    }

    async fn sync(&self) -> Result<()> {
        self.enter("sync").await;
        self.inner.sync().await
    }

    async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        self.enter("sync_dir").await;
        self.inner.sync_dir(dir).await
    }

    async fn xattrs(&self, cred: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        self.enter_node("xattrs", node).await;
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
        self.enter_node("setxattr", node).await;
        self.inner.setxattr(cred, node, name, value, mode).await
    }

    async fn removexattr(&self, cred: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        self.enter_node("removexattr", node).await;
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
        self.enter("allocate").await;
        self.inner.allocate(handle, offset, len, mode, clear_set_id).await
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        self.enter("seek").await;
        self.inner.seek(handle, offset, to).await
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        self.enter("search").await;
        self.inner.search(ino).await
    }

    async fn statfs(&self) -> Result<Statfs> {
        self.enter("statfs").await;
        self.inner.statfs().await
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        self.enter_node("info", node).await;
        self.inner.info(node).await
    }
}
