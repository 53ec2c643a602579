//! The calls of the file system that the plugin makes: all by handle, as root.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use base::{Cred, EntryName, FsError, SetAttr};
use bytes::Bytes;
use client::{Client, Error, FileSystem, Result};
use wire::{DirRef, Entry, NodeRef, ReaddirPage, RenameMode, Statfs, Token, XattrMode};

/// Number of entries that a listing asks for at once.
const ENTRIES_MAX: u32 = 4096;

/// The file system, in one session.
#[derive(Clone)]
pub(crate) struct Fs {
    client: Client,
    /// Set when the session turns out to be lost.
    lost: Arc<AtomicBool>,
}

impl Fs {
    pub(crate) fn new(client: Client, lost: Arc<AtomicBool>) -> Fs {
        Fs { client, lost }
    }

    /// Takes note of a lost session.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::SessionLost | Error::Closed) = &result {
            self.lost.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The root of the session.
    pub(crate) fn root(&self) -> DirRef {
        self.client.root().0
    }

    /// The entry, or `None` where nothing has the name.
    pub(crate) async fn find(&self, dir: &DirRef, name: &EntryName) -> Result<Option<Entry>> {
        match self.told(FileSystem::lookup(&self.client, &Cred::ROOT, dir, name).await) {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::Fs(FsError::NotFound)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn mkdir(&self, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        self.told(FileSystem::mkdir(&self.client, &Cred::ROOT, dir, name, mode).await)
    }

    /// Renames an entry within a directory; `Exists` where the new name is taken.
    pub(crate) async fn rename(
        &self,
        dir: &DirRef,
        from: &EntryName,
        to: &EntryName,
    ) -> Result<()> {
        let (from, to, mode) = ((dir, from), (dir, to), RenameMode::NoReplace);
        let renamed = FileSystem::rename(&self.client, &Cred::ROOT, from, to, mode).await;
        self.told(renamed.map(drop))
    }

    /// Removes an empty directory; fine when it is gone.
    pub(crate) async fn rmdir(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
        let removed = FileSystem::rmdir(&self.client, &Cred::ROOT, dir, name).await;
        gone(self.told(removed.map(drop)))
    }

    /// Removes a name that is not a directory's; fine when it is gone.
    pub(crate) async fn unlink(&self, dir: &DirRef, name: &EntryName) -> Result<()> {
        let removed = FileSystem::unlink(&self.client, &Cred::ROOT, dir, name).await;
        gone(self.told(removed.map(drop)))
    }

    pub(crate) async fn setattr(&self, dir: &DirRef, set: SetAttr) -> Result<()> {
        let node = NodeRef::Dir(*dir);
        self.told(FileSystem::setattr(&self.client, &Cred::ROOT, &node, set).await.map(drop))
    }

    /// A page of a listing, after a position.
    pub(crate) async fn page(&self, dir: &DirRef, after: u64) -> Result<ReaddirPage> {
        let cred = Cred::ROOT;
        let page = FileSystem::readdir(&self.client, &cred, dir, after, ENTRIES_MAX, true).await;
        self.told(page)
    }

    /// One extended attribute of a directory, if it is there.
    pub(crate) async fn xattr(&self, dir: &DirRef, name: &str) -> Result<Option<Bytes>> {
        let all = FileSystem::xattrs(&self.client, &Cred::ROOT, &NodeRef::Dir(*dir)).await;
        let all = self.told(all)?;
        Ok(all.into_iter().find(|(found, _)| found == name.as_bytes()).map(|(_, value)| value))
    }

    pub(crate) async fn setxattr(&self, dir: &DirRef, name: &str, value: Vec<u8>) -> Result<()> {
        let (node, name) = (NodeRef::Dir(*dir), Bytes::copy_from_slice(name.as_bytes()));
        let mode = XattrMode::Set;
        let set =
            FileSystem::setxattr(&self.client, &Cred::ROOT, &node, name, value.into(), mode).await;
        self.told(set)
    }

    /// Facts that the server tells of a directory: names and values.
    pub(crate) async fn facts(&self, dir: &DirRef) -> Result<Vec<(String, String)>> {
        self.told(FileSystem::info(&self.client, &NodeRef::Dir(*dir)).await)
    }

    /// Everything answered before is on stable storage.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.told(FileSystem::sync(&self.client).await)
    }

    pub(crate) async fn statfs(&self) -> Result<Statfs> {
        self.told(FileSystem::statfs(&self.client).await)
    }

    /// Has a token signed.
    pub(crate) async fn sign(&self, token: Token) -> Result<String> {
        self.told(self.client.sign_token(token).await)
    }
}

fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Error::Fs(FsError::NotFound)) => Ok(()),
        removed => removed,
    }
}
