//! Names: looking them up, making, moving and removing them.

use std::time::Duration;

use base::{Cred, EntryName, FileKind, FsError, Ino, acl::with_umask};
use bytes::Bytes;
use client::{FileSystem, New};
use fuse::{Errno, NodeId};
use wire::{DirRef, Entry, NodeRef, RenameMode};

use super::Adapter;
use crate::{
    answer::{Answer, Found, Outcome},
    convert::{self, Failed},
};

impl<S: FileSystem> Adapter<S> {
    /// LOOKUP. A name that is not there is an error, which the kernel does not cache.
    ///
    /// In a directory that is gone no name is there. ESTALE would end a mkdir, mknod, symlink or
    /// link: Linux walks the path of these again when the call itself is stale, and not when the
    /// look-up before it is (`filename_create`).
    pub(super) async fn lookup(&self, cred: &Cred, parent: NodeId, name: &[u8]) -> Outcome {
        if matches!(name, b"." | b"..") {
            self.fs.serves_handles().await;
            return match name {
                b"." => self.node_again(cred, parent).await,
                _ => self.parent_again(cred, parent).await,
            };
        }
        let (dir, name) = self.within(parent, name)?;
        match self.fs.lookup(cred, &dir, &name).await {
            Ok(entry) => Ok(answer(&dir, &name, entry)),
            Err(client::Error::Fs(FsError::Stale)) => Err(Failed(Errno::NOENT)),
            Err(error) => Err(error.into()),
        }
    }

    /// LOOKUP of `.`, asked of a file handle whose node the kernel has forgotten; it may be any
    /// kind of node.
    async fn node_again(&self, cred: &Cred, node: NodeId) -> Outcome {
        let at = self.recalled(node).await?;
        let attr = self.fs.getattr(cred, &at).await?;
        Ok(Answer::Entry(Found { at, attr, age: Duration::ZERO }))
    }

    /// LOOKUP of `..`, to find the way from such a directory to the root.
    async fn parent_again(&self, cred: &Cred, node: NodeId) -> Outcome {
        let dir = match self.recalled(node).await? {
            NodeRef::Dir(dir) => dir,
            NodeRef::File(_) => return Err(Failed(Errno::NOTDIR)),
        };
        let listed = self.fs.readdir(cred, &dir, 0, 1, false).await?;
        let parent = self.nodes.lock().id(listed.parent_ino);
        self.node_again(cred, parent).await
    }

    /// Returns the reference to a node of a file handle. A node that this mount does not remember
    /// may be of an earlier mount.
    async fn recalled(&self, node: NodeId) -> Result<NodeRef, Failed> {
        let (remembered, ino) = {
            let nodes = self.nodes.lock();
            (nodes.remembered(node), nodes.ino(node))
        };
        match remembered {
            Some(at) => Ok(at),
            None => Ok(self.fs.search(ino).await?),
        }
    }

    pub(super) async fn symlink(
        &self,
        cred: &Cred,
        parent: NodeId,
        name: &[u8],
        target: Bytes,
    ) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let entry = self.change([parent], self.fs.symlink(cred, &dir, &name, target)).await?;
        Ok(answer(&dir, &name, entry))
    }

    pub(super) async fn mknod(
        &self,
        cred: &Cred,
        parent: NodeId,
        name: &[u8],
        (mode, umask): (u32, u32),
        rdev: u32,
    ) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let kind = FileKind::from_mode(mode).ok_or(Failed(Errno::INVAL))?;
        let new = New { kind, mode: with_umask(mode, umask), rdev };
        let create = self.fs.create(cred, &dir, &name, new, true, false);
        let made = self.change([parent], create).await?;
        Ok(answer(&dir, &name, made.entry))
    }

    pub(super) async fn mkdir(
        &self,
        cred: &Cred,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let entry = self.change([parent], self.fs.mkdir(cred, &dir, &name, mode)).await?;
        Ok(answer(&dir, &name, entry))
    }

    pub(super) async fn link(
        &self,
        cred: &Cred,
        target: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let target = self.nodes.lock().get(target)?;
        let entry = self.change([parent], self.fs.link(cred, &target, &dir, &name)).await?;
        Ok(answer(&dir, &name, entry))
    }

    pub(super) async fn unlink(&self, cred: &Cred, parent: NodeId, name: &[u8]) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let left = self.change([parent], self.fs.unlink(cred, &dir, &name)).await?;
        if left.nlink == 0 {
            self.nodes.lock().removed(left.ino, Some(left));
        }
        Ok(Answer::Done)
    }

    pub(super) async fn rmdir(&self, cred: &Cred, parent: NodeId, name: &[u8]) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let ino = self.change([parent], self.fs.rmdir(cred, &dir, &name)).await?;
        self.nodes.lock().removed(ino, None);
        Ok(Answer::Done)
    }

    /// RENAME2. What was moved is known by its new name from then on. Of two that change places the
    /// answer tells one; the other is looked up.
    pub(super) async fn rename(
        &self,
        cred: &Cred,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Outcome {
        let mode = convert::rename_mode(flags)?;
        let (from_dir, from_name) = self.within(from.0, from.1)?;
        let (to_dir, to_name) = self.within(to.0, to.1)?;
        let (old, new) = ((&from_dir, &from_name), (&to_dir, &to_name));
        let rename = self.fs.rename(cred, old, new, mode);
        let renamed = match from.0 == to.0 {
            true => self.change([from.0], rename).await?,
            false => self.change([from.0, to.0], rename).await?,
        };
        self.moved(renamed.moved, &to_dir, &to_name);
        if let Some(replaced) = renamed.replaced_dir {
            // A process with its working directory there may still ask for its attributes.
            self.nodes.lock().removed(replaced, None);
        }
        if mode == RenameMode::Exchange
            && let Ok(other) = self.fs.lookup(cred, &from_dir, &from_name).await
        {
            self.moved(other.attr.ino, &from_dir, &from_name);
        }
        Ok(Answer::Done)
    }

    /// A rename has moved an inode, whose `ctime` is another one then.
    fn moved(&self, ino: Ino, dir: &DirRef, name: &EntryName) {
        let mut nodes = self.nodes.lock();
        nodes.stands_at(ino, dir, name);
        let id = nodes.id(ino);
        nodes.alters(id);
    }

    pub(super) fn within(
        &self,
        parent: NodeId,
        name: &[u8],
    ) -> Result<(DirRef, EntryName), Failed> {
        let dir = self.nodes.lock().dir(parent)?;
        Ok((dir, EntryName::new(name)?))
    }
}

fn answer(dir: &DirRef, name: &EntryName, entry: Entry) -> Answer {
    Answer::Entry(found(dir, name, &entry, Duration::ZERO))
}

/// Returns what the kernel is told of an entry that has come some time ago.
pub(super) fn found(dir: &DirRef, name: &EntryName, entry: &Entry, age: Duration) -> Found {
    Found { at: entry.node(dir, name), attr: entry.attr, age }
}
