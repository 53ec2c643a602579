//! Open files.
//!
//! The mount hands the file system's own handles to the kernel. Close-to-open: every open asks the
//! file system what the file is like now, and the kernel drops pages and attributes that are older.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Attr, Cred, FileKind, Ino};
use bytes::Bytes;
use client::{FileSystem, Handle, New};
use fuse::{Errno, Header, NodeId, Notice};
use wire::NodeRef;

use super::{Adapter, names::found};
use crate::{
    answer::{Answer, Found, Outcome},
    convert::{self, Failed},
    options::Synchronous,
};

const O_EXCL: u32 = 0o200;
const O_APPEND: u32 = 0o2000;

impl<S: FileSystem> Adapter<S> {
    /// OPEN. `O_TRUNC` comes as a truncation of its own.
    ///
    /// An append goes to the end that the kernel knows, without asking the server first. Where
    /// other clients have moved the end, ESTALE makes the kernel look the path up again, which
    /// tells it the end, and then open again.
    pub(super) async fn open(&self, header: &Header, cred: &Cred, flags: u32) -> Outcome {
        let node = header.node;
        let file = self.nodes.lock().file(node)?;
        let handle = self.fs.open(cred, &file, convert::access(flags)).await?;
        let attr = match self.opened_attr(cred, handle, NodeRef::File(file)).await {
            Ok(attr) => attr,
            Err(error) => {
                self.give_back(handle).await;
                return Err(error.into());
            }
        };
        let cached = self.nodes.lock().opened(node, &attr);
        if cached.outdated && !self.manners.attr.is_zero() {
            self.invalidate_attr(node).await;
        }
        let wrong_end = flags & O_APPEND != 0 && cached.wrong_end;
        if wrong_end && self.nodes.lock().sends_back(node, header.pid) {
            self.give_back(handle).await;
            return Err(Failed(Errno::STALE));
        }
        Ok(Answer::Opened(handle, cached.keep_pages))
    }

    async fn opened_attr(
        &self,
        cred: &Cred,
        handle: Handle,
        file: NodeRef,
    ) -> client::Result<Attr> {
        match self.fs.opened_attr(handle) {
            Some(attr) => Ok(attr),
            None => self.fs.getattr(cred, &file).await,
        }
    }

    /// The kernel would read up to the end that it knows: another client may have moved it.
    async fn invalidate_attr(&self, node: NodeId) {
        self.nodes.lock().disbelieved(node);
        let attributes_only = Notice::InvalInode { node, offset: -1, len: 0 };
        if let Err(errno) = self.notifier.send_all(vec![attributes_only]).await {
            tracing::warn!(%errno, node = node.0, "the kernel keeps attributes that have changed");
        }
    }

    /// Names in a directory were changed beside this mount.
    pub(crate) fn names_changed(&self, dir: Ino) {
        let node = {
            let mut nodes = self.nodes.lock();
            let node = nodes.id(dir);
            nodes.alters(node);
            nodes.disbelieved(node);
            node
        };
        // Listings that are read ahead have its old attributes.
        self.changes.fetch_add(1, Ordering::AcqRel);
        let attributes_only = Notice::InvalInode { node, offset: -1, len: 0 };
        if let Err(errno) = self.notifier.send(&attributes_only) {
            tracing::warn!(%errno, node = node.0, "the kernel keeps attributes that have changed");
        }
    }

    /// A change of the contents has taken the set-id bits of a file. The kernel, which leaves that
    /// to us, asks for new times and a new size then, but believes the mode.
    pub(super) async fn lost_set_id(&self, node: NodeId) {
        let had_any = self.nodes.lock().loses_set_id(node);
        if had_any && !self.manners.attr.is_zero() {
            self.invalidate_attr(node).await;
        }
    }

    /// CREATE, of a name that the kernel did not find.
    ///
    /// Race: another client may have made it since. The kernel takes what CREATE opens for new and
    /// checks no permission, so that is answered with ESTALE: it looks the name up again, finds and
    /// opens it.
    pub(super) async fn create(
        &self,
        cred: &Cred,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Outcome {
        let (dir, name) = self.within(parent, name)?;
        let new = New { kind: FileKind::File, mode, rdev: 0 };
        let exclusive = flags & O_EXCL != 0;
        let create = self.fs.create(cred, &dir, &name, new, exclusive, true);
        let made = self.change([parent], create).await?;
        if made.existed {
            return Err(Failed(Errno::STALE));
        }
        let Some(handle) = made.handle else {
            tracing::error!(%name, "a new file was not opened");
            return Err(Failed(Errno::IO));
        };
        Ok(Answer::Created(found(&dir, &name, &made.entry, Duration::ZERO), handle))
    }

    /// TMPFILE. With `O_EXCL` it can never be given a name; the kernel sees to it too.
    pub(super) async fn tmpfile(
        &self,
        cred: &Cred,
        parent: NodeId,
        mode: u32,
        flags: u32,
    ) -> Outcome {
        let dir = self.nodes.lock().dir(parent)?;
        let made = self.fs.tmpfile(cred, &dir, mode, flags & O_EXCL == 0).await?;
        let (at, attr) = (NodeRef::File(made.file), made.attr);
        let found = Found { at, attr, age: Duration::ZERO };
        Ok(Answer::Created(found, made.handle))
    }

    pub(super) async fn read(&self, fh: fuse::Handle, offset: u64, size: u32) -> Outcome {
        Ok(Answer::Data(self.fs.read(Handle(fh.0), offset, size).await?))
    }

    pub(super) async fn write(
        &self,
        node: NodeId,
        fh: fuse::Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Outcome {
        let size = u32::try_from(data.len()).map_err(|_| Failed(Errno::INVAL))?;
        self.fs.write(Handle(fh.0), offset, data, clear_set_id).await?;
        self.nodes.lock().written(node, offset.saturating_add(size.into()));
        if clear_set_id {
            self.lost_set_id(node).await;
        }
        Ok(Answer::Written(size))
    }

    /// Puts a copy on stable storage where the mount asks for that. The kernel sees to it where it
    /// writes itself.
    pub(super) async fn copied(&self, fh: fuse::Handle, outcome: Outcome) -> Outcome {
        let wanted = match self.manners.synchronous {
            Synchronous::OnDemand | Synchronous::Names => false,
            Synchronous::Everything => true,
        };
        if wanted && outcome.is_ok() {
            self.fs.fsync(Handle(fh.0)).await?;
        }
        outcome
    }

    /// FLUSH: each close. Written data is sent first, so that the next owner of the lock sees it.
    pub(super) async fn flush(&self, fh: fuse::Handle, owner: fuse::LockOwner) -> Outcome {
        let flushed = self.fs.flush(Handle(fh.0)).await;
        let unlocked = self.fs.unlock_closed(Handle(fh.0), owner.0).await;
        self.sent();
        flushed.and(unlocked)?;
        Ok(Answer::Done)
    }

    pub(super) async fn fsync(&self, fh: fuse::Handle) -> Outcome {
        let stable = self.fs.fsync(Handle(fh.0)).await;
        self.sent();
        stable?;
        Ok(Answer::Done)
    }

    /// Notes that written data may have been sent just now.
    pub(super) fn sent(&self) {
        self.sends.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) async fn release(&self, fh: fuse::Handle) -> Outcome {
        let handle = Handle(fh.0);
        self.handles.lock().remove(&handle);
        let released = self.fs.release(handle).await;
        self.sent();
        released?;
        Ok(Answer::Done)
    }

    pub(super) async fn sync_dir(&self, node: NodeId) -> Outcome {
        let dir = self.nodes.lock().dir(node)?;
        self.fs.sync_dir(&dir).await?;
        Ok(Answer::Done)
    }

    pub(super) async fn sync(&self) -> Outcome {
        let stable = self.fs.sync().await;
        self.sent();
        stable?;
        Ok(Answer::Done)
    }
}
