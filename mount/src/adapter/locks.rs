//! Locks: flock and fcntl, between all who use the file system.
//!
//! The kernel keeps none of them itself. Each request names the owner: a process for fcntl, an open
//! file for flock and for fcntl's OFD locks. What a process has locked ends with any close of the
//! file by it (FLUSH), what an open file has with its last (RELEASE).
//!
//! A signal ends waiting, and only that: the kernel restarts the call if the program wants it so.

use std::sync::Arc;

use base::{ByteRange, Cred};
use client::{FileLock, FileSystem, Handle};
use fuse::{Errno, Header, LockKind, LockOwner, LockType, NodeId, Notice, Unique};
use tokio::sync::Notify;
use wire::NodeRef;

use super::Adapter;
use crate::{
    answer::{Answer, Outcome},
    convert::Failed,
};

impl<S: FileSystem> Adapter<S> {
    /// SETLK and SETLKW.
    pub(super) async fn setlk(
        &self,
        header: &Header,
        cred: &Cred,
        fh: fuse::Handle,
        asked: (LockKind, fuse::FileLock, LockOwner),
        wait: bool,
    ) -> Outcome {
        let (kind, lock, owner) = asked;
        let (handle, kind) = (Handle(fh.0), family(kind));
        let Some(mode) = mode(lock.kind) else {
            let unlocked = self.fs.unlock(handle, owner.0, kind, range(&lock)).await;
            self.sent();
            unlocked?;
            return Ok(Answer::Done);
        };
        let lock = FileLock { kind, mode, range: range(&lock), pid: lock.pid };
        if wait {
            let interrupted = Arc::new(Notify::new());
            self.waits.lock().insert(header.unique, Arc::clone(&interrupted));
            let taken = self.fs.lock_wait(handle, owner.0, lock, interrupted.notified()).await;
            self.waits.lock().remove(&header.unique);
            taken?;
        } else {
            self.fs.lock(handle, owner.0, lock).await?;
        }
        self.after_lock(cred, header.node).await;
        Ok(Answer::Done)
    }

    /// GETLK.
    pub(super) async fn getlk(
        &self,
        fh: fuse::Handle,
        (kind, lock, owner): (LockKind, fuse::FileLock, LockOwner),
    ) -> Outcome {
        let none = fuse::FileLock { kind: LockType::Unlock, ..lock };
        let Some(mode) = mode(lock.kind) else { return Err(Failed(Errno::INVAL)) };
        let asked = FileLock { kind: family(kind), mode, range: range(&lock), pid: lock.pid };
        let found = self.fs.find_lock(Handle(fh.0), owner.0, asked).await?;
        Ok(Answer::Lock(found.map_or(none, |found| fuse::FileLock {
            start: found.range.first,
            end: found.range.last,
            kind: match found.mode {
                base::LockMode::Shared => LockType::Read,
                base::LockMode::Exclusive => LockType::Write,
            },
            pid: found.pid,
        })))
    }

    /// Whether a request waits for a lock, and ends when it is interrupted.
    pub(crate) fn waits_for_lock(&self, request: Unique) -> bool {
        self.waits.lock().contains_key(&request)
    }

    /// The program that waits for a lock has got a signal.
    pub(crate) fn interrupt(&self, request: Unique) {
        if let Some(interrupted) = self.waits.lock().get(&request) {
            interrupted.notify_one();
        }
    }

    /// A new owner of a lock sees the writes of the owner before it: pages and attributes of other
    /// contents are dropped.
    async fn after_lock(&self, cred: &Cred, node: NodeId) {
        let Ok(at) = self.nodes.lock().get(node) else { return };
        let NodeRef::File(_) = at else { return };
        let Ok(attr) = self.fs.getattr(cred, &at).await else { return };
        let cached = self.nodes.lock().opened(node, &attr);
        if cached.keep_pages && !cached.outdated {
            return;
        }
        self.nodes.lock().disbelieved(node);
        let everything = Notice::InvalInode { node, offset: 0, len: 0 };
        match self.notifier.send_all(vec![everything]).await {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => tracing::warn!(%errno, node = node.0, "the kernel keeps old pages"),
        }
    }
}

fn family(kind: LockKind) -> base::LockKind {
    match kind {
        LockKind::Posix => base::LockKind::Range,
        LockKind::Flock => base::LockKind::Whole,
    }
}

/// `None` gives back.
fn mode(kind: LockType) -> Option<base::LockMode> {
    match kind {
        LockType::Read => Some(base::LockMode::Shared),
        LockType::Write => Some(base::LockMode::Exclusive),
        LockType::Unlock => None,
    }
}

fn range(lock: &fuse::FileLock) -> ByteRange {
    ByteRange { first: lock.start, last: lock.end.min(ByteRange::END) }
}
