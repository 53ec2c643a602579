//! The calls of the file system that the gateway makes, all by handle and as one user.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use base::{Access, Attr, Cred, DirId, EntryName, FileKind, FsError, HashMap, SetAttr};
use bytes::Bytes;
use client::{Client, Error, FileSystem, Handle, New, Result};
use futures::future::join_all;
use parking_lot::Mutex;
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirEntry, RenameMode, XattrMode};

/// Number of entries that a listing asks for at once.
const ENTRIES_MAX: u32 = 4096;
/// Permission bits of files that the gateway makes, until they get the names of objects.
const FILE_MODE: u32 = 0o600;

/// Number of directories that are remembered at most.
const REMEMBERED_MAX: usize = 10_000;

/// Extended attributes of a node.
pub(crate) type Xattrs = Vec<(Bytes, Bytes)>;

/// The file system, as the user of one session.
#[derive(Clone)]
pub(crate) struct Fs {
    client: Client,
    cred: Cred,
    noted: Arc<Noted>,
}

/// Facts that the requests of a session share.
#[derive(Default)]
pub(crate) struct Noted {
    /// Set when the session turns out to be lost.
    pub(crate) lost: AtomicBool,
    /// Directories that names led to. Others may have moved them since: see [`Fs::walk`].
    dirs: Mutex<HashMap<(DirId, EntryName), DirRef>>,
}

/// How far a walk came.
pub(crate) struct Walked {
    /// The entries of the names, in their order; all but the last are directories.
    pub(crate) found: Vec<Entry>,
    /// Why there are fewer entries than names.
    pub(crate) failed: Option<Error>,
}

impl Fs {
    pub(crate) fn new(client: Client, cred: Cred, noted: Arc<Noted>) -> Fs {
        Fs { client, cred, noted }
    }

    /// Takes note of a lost session.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::SessionLost | Error::Closed) = &result {
            self.noted.lost.store(true, Ordering::Relaxed);
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

    /// The directory that a name led to before. Only a guess.
    pub(crate) fn guess(&self, dir: &DirRef, name: &EntryName) -> Option<DirRef> {
        self.noted.dirs.lock().get(&(dir.id, name.clone())).copied()
    }

    /// A bucket in the root of the file system and its staging directory, as far as remembered.
    pub(crate) fn guess_staging(
        &self,
        bucket: &EntryName,
        staging: &EntryName,
    ) -> Option<(DirRef, DirRef)> {
        let bucket = self.guess(&self.client.root().0, bucket)?;
        Some((bucket, self.guess(&bucket, staging)?))
    }

    /// Remembers where a name leads.
    pub(crate) fn remember(&self, dir: &DirRef, name: &EntryName, found: DirRef) {
        let mut dirs = self.noted.dirs.lock();
        if dirs.len() >= REMEMBERED_MAX {
            dirs.clear();
        }
        dirs.insert((dir.id, name.clone()), found);
    }

    /// Looks up names, each in the directory that the name before it leads to.
    ///
    /// All are asked for at the same time where the directories on the way are remembered. An answer
    /// counts only if its directory is the one that the answers before it lead to, so the walk finds
    /// what it would find step by step.
    pub(crate) async fn walk(&self, from: &DirRef, names: &[&EntryName]) -> Walked {
        let mut guessed = vec![*from];
        while guessed.len() < names.len()
            && let Some(dir) = self.guess(&guessed[guessed.len() - 1], names[guessed.len() - 1])
        {
            guessed.push(dir);
        }
        let asked = guessed.iter().zip(names).map(|(dir, name)| self.lookup(dir, name));
        let mut answers = join_all(asked).await.into_iter();
        let (mut dir, mut found) = (*from, Vec::with_capacity(names.len()));
        for (at, name) in names.iter().enumerate() {
            let answer = match answers.next() {
                Some(answer) if guessed[at] == dir => answer,
                Some(_) | None => self.lookup(&dir, name).await,
            };
            let entry = match answer {
                Ok(entry) => entry,
                Err(error) => return Walked { found, failed: Some(error) },
            };
            if at + 1 < names.len() {
                let Some(next) = entry.dir else {
                    return Walked { found, failed: Some(FsError::NotDirectory.into()) };
                };
                if guessed.get(at + 1) != Some(&next) {
                    self.remember(&dir, name, next);
                }
                dir = next;
            }
            found.push(entry);
        }
        Walked { found, failed: None }
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
