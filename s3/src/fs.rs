//! The calls of the file system that the gateway makes, all by handle and as one user.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use base::{Access, Attr, Cred, EntryName, FileKind, FsError, SetAttr};
use bytes::Bytes;
use client::{Client, Error, FileSystem, Handle, New, Result};
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirEntry, RenameMode, XattrMode};

/// Number of entries that a listing asks for at once.
const ENTRIES_MAX: u32 = 4096;
/// Permission bits of files that the gateway makes, until they get the names of objects.
const FILE_MODE: u32 = 0o600;

/// Extended attributes of a node.
pub(crate) type Xattrs = Vec<(Bytes, Bytes)>;

/// The file system, as the user of one session.
#[derive(Clone)]
pub(crate) struct Fs {
    client: Client,
    cred: Cred,
    /// Set when the session turns out to be lost.
    lost: Arc<AtomicBool>,
}

impl Fs {
    pub(crate) fn new(client: Client, cred: Cred, lost: Arc<AtomicBool>) -> Fs {
        Fs { client, cred, lost }
    }

    /// Takes note of a lost session.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::SessionLost | Error::Closed) = &result {
            self.lost.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The directory at a path that the operator chose; symbolic links are followed.
    pub(crate) async fn dir(&self, path: &str) -> Result<DirRef> {
        if path == "/" {
            return Ok(self.client.root().0);
        }
        match self.told(self.client.resolve(path).await)? {
            NodeRef::Dir(dir) => Ok(dir),
            NodeRef::File(_) => Err(FsError::NotDirectory.into()),
        }
    }

    pub(crate) async fn lookup(&self, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        self.told(FileSystem::lookup(&self.client, &self.cred, dir, name).await)
    }

    /// The entry, or `None` where nothing has the name.
    pub(crate) async fn find(&self, dir: &DirRef, name: &EntryName) -> Result<Option<Entry>> {
        match self.lookup(dir, name).await {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::Fs(FsError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn getattr(&self, node: &NodeRef) -> Result<Attr> {
        self.told(FileSystem::getattr(&self.client, &self.cred, node).await)
    }

    pub(crate) async fn setattr(&self, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        self.told(FileSystem::setattr(&self.client, &self.cred, node, set).await)
    }

    pub(crate) async fn mkdir(&self, dir: &DirRef, name: &EntryName, mode: u32) -> Result<DirRef> {
        let made = FileSystem::mkdir(&self.client, &self.cred, dir, name, mode).await;
        self.told(made)?.dir.ok_or(Error::Fs(FsError::NotDirectory))
    }

    pub(crate) async fn rmdir(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
        self.told(FileSystem::rmdir(&self.client, &self.cred, dir, name).await)?;
        Ok(())
    }

    pub(crate) async fn unlink(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
        self.told(FileSystem::unlink(&self.client, &self.cred, dir, name).await)?;
        Ok(())
    }

    pub(crate) async fn rename(
        &self,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<()> {
        self.told(FileSystem::rename(&self.client, &self.cred, from, to, mode).await)?;
        Ok(())
    }

    /// The names in a directory are stable, and all that was answered before.
    pub(crate) async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        self.told(FileSystem::sync_dir(&self.client, dir).await)
    }

    /// All entries of a directory in no order, and the attributes of the directory before.
    pub(crate) async fn entries(&self, dir: &DirRef) -> Result<(Vec<ReaddirEntry>, Attr)> {
        let (mut entries, mut after, mut before) = (Vec::new(), 0, None);
        loop {
            let page = FileSystem::readdir(&self.client, &self.cred, dir, after, ENTRIES_MAX, true);
            let page = self.told(page.await)?;
            let attr = *before.get_or_insert(page.attr);
            after = page.reach;
            entries.extend(page.entries);
            if page.end {
                return Ok((entries, attr));
            }
        }
    }

    /// Makes a file that is not there, and opens it.
    pub(crate) async fn create(&self, dir: &DirRef, name: &EntryName) -> Result<(FileRef, Handle)> {
        let new = New { kind: FileKind::File, mode: FILE_MODE, rdev: 0 };
        let made = FileSystem::create(&self.client, &self.cred, dir, name, new, true, true).await;
        let made = self.told(made)?;
        let handle = made.handle.ok_or(Error::Fs(FsError::Exists))?;
        Ok((FileRef { dir: *dir, name: name.clone(), ino: made.entry.attr.ino }, handle))
    }

    pub(crate) async fn open(&self, file: &FileRef) -> Result<Handle> {
        let read = Some(Access::from_bits(4));
        self.told(FileSystem::open(&self.client, &self.cred, file, read).await)
    }

    /// The attributes of an open file.
    pub(crate) fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        FileSystem::opened_attr(&self.client, handle)
    }

    pub(crate) async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.told(FileSystem::read(&self.client, handle, offset, len).await)
    }

    pub(crate) async fn write(&self, handle: Handle, offset: u64, data: Bytes) -> Result<()> {
        self.told(FileSystem::write(&self.client, handle, offset, data, false).await)
    }

    pub(crate) async fn fsync(&self, handle: Handle) -> Result<()> {
        self.told(FileSystem::fsync(&self.client, handle).await)
    }

    pub(crate) async fn release(&self, handle: Handle) -> Result<()> {
        self.told(FileSystem::release(&self.client, handle).await)
    }

    /// Copies a range; how many bytes.
    pub(crate) async fn copy_range(
        &self,
        from: (Handle, u64),
        to: (Handle, u64),
        len: u64,
    ) -> Result<u64> {
        self.told(FileSystem::copy_range(&self.client, from, to, len, false).await)
    }

    pub(crate) async fn xattrs(&self, node: &NodeRef) -> Result<Xattrs> {
        self.told(FileSystem::xattrs(&self.client, &self.cred, node).await)
    }

    pub(crate) async fn setxattr(&self, node: &NodeRef, name: &[u8], value: Vec<u8>) -> Result<()> {
        let name = Bytes::copy_from_slice(name);
        let set = FileSystem::setxattr(
            &self.client,
            &self.cred,
            node,
            name,
            value.into(),
            XattrMode::Set,
        );
        self.told(set.await)
    }

    /// Removes an extended attribute, if it is there.
    pub(crate) async fn removexattr(&self, node: &NodeRef, name: &[u8]) -> Result<()> {
        let name = Bytes::copy_from_slice(name);
        match self.told(FileSystem::removexattr(&self.client, &self.cred, node, name).await) {
            Err(Error::Fs(FsError::NoData)) => Ok(()),
            done => done,
        }
    }
}
