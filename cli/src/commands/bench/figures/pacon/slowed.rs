//! A file system below that makes one call at a time, and takes its time for each.

use std::{sync::Arc, time::Duration};

use base::FileKind;
use bytes::Bytes;
use parking_lot::Mutex;
use region::{
    Below, BelowResult as Result, Change, Contents, Found, Listed, Memory, Meta, New, Path,
};
use wire::{RenameMode, Statfs, XattrMode};

/// The queue before a file system, which several may share.
pub(super) struct Queue {
    each: Duration,
    busy: Mutex<()>,
}

impl Queue {
    pub(super) fn new(each: Duration) -> Arc<Queue> {
        Arc::new(Queue { each, busy: Mutex::default() })
    }

    #[expect(clippy::disallowed_methods, reason = "the file system takes this time")]
    fn wait(&self) {
        let _turn = self.busy.lock();
        std::thread::sleep(self.each);
    }
}

/// A file system in memory behind a queue. Calls on open files do not wait.
pub(super) struct Slowed {
    memory: Memory,
    queue: Arc<Queue>,
}

impl Slowed {
    pub(super) fn new(memory: Memory, queue: Arc<Queue>) -> Slowed {
        Slowed { memory, queue }
    }

    fn after(&self) -> &Memory {
        self.queue.wait();
        &self.memory
    }
}

impl Below for Slowed {
    fn look(&self, path: &Path) -> Result<Option<Found>> {
        self.after().look(path)
    }

    fn list(&self, path: &Path, entries_max: usize) -> Result<Vec<Listed>> {
        self.after().list(path, entries_max)
    }

    fn read(&self, path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
        self.after().read(path, bytes_max)
    }

    fn target(&self, path: &Path) -> Result<Bytes> {
        self.after().target(path)
    }

    fn make(&self, path: &Path, new: &New, meta: &Meta) -> Result<Found> {
        self.after().make(path, new, meta)
    }

    fn set(&self, path: &Path, change: &Change) -> Result<Found> {
        self.after().set(path, change)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.after().unlink(path)
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.after().rmdir(path)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        self.after().rename(from, to, mode)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.after().link(from, to)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(Bytes, Bytes)>> {
        self.after().xattrs(path)
    }

    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.after().set_xattr(path, name, value, mode)
    }

    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()> {
        self.after().remove_xattr(path, name)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Contents>> {
        self.after().open(path)
    }

    fn unnamed(&self, dir: &Path, meta: &Meta) -> Result<(Found, Arc<dyn Contents>)> {
        self.after().unnamed(dir, meta)
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.after().sync_file(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.after().sync_dir(path)
    }

    fn sync_all(&self) -> Result<()> {
        self.after().sync_all()
    }

    fn statfs(&self) -> Result<Statfs> {
        self.after().statfs()
    }
}

/// Work of clients on the file system itself, without a region.
pub(super) struct Direct(Slowed);

impl Direct {
    /// A directory for each client.
    pub(super) fn new(
        queue: &Arc<Queue>,
        memory: Memory,
        clients: usize,
    ) -> anyhow::Result<Direct> {
        let direct = Direct(Slowed::new(memory, queue.clone()));
        for client in 0..clients {
            direct.make(&New::Directory, &Path::root(), &format!("client{client}"))?;
        }
        Ok(direct)
    }

    fn make(&self, new: &New, dir: &Path, name: &str) -> anyhow::Result<()> {
        let time = base::Time { sec: 1, nsec: 0 };
        let mode = if matches!(new, New::Directory) { 0o755 } else { 0o644 };
        let meta = Meta { mode, uid: 0, gid: 0, atime: time, mtime: time };
        self.0.make(&dir.child(&super::jobs::name_of(name)?), new, &meta)?;
        Ok(())
    }

    fn dir(client: usize) -> anyhow::Result<Path> {
        Ok(Path::root().child(&super::jobs::name_of(&format!("client{client}"))?))
    }

    pub(super) fn mkdir(&self, client: usize, name: &str) -> anyhow::Result<()> {
        self.make(&New::Directory, &Direct::dir(client)?, name)
    }

    pub(super) fn create(&self, client: usize, name: &str) -> anyhow::Result<()> {
        self.make(&New::File(Arc::default()), &Direct::dir(client)?, name)
    }

    pub(super) fn stat(&self, client: usize, name: &str) -> anyhow::Result<()> {
        let path = Direct::dir(client)?.child(&super::jobs::name_of(name)?);
        let found = self.0.look(&path)?;
        anyhow::ensure!(found.is_some_and(|found| found.attr.kind == FileKind::File), "{name}");
        Ok(())
    }
}
