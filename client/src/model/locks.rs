//! Locks of files: which file and which owner a handle stands for.

use base::{ByteRange, FsError, Ino, LockKind, LockOwner, SessionId, locks::LockWait};
use wire::LockFound;

use super::State;
use crate::{FileLock, Handle, LockTurn};

impl State {
    pub(super) fn lock(
        &mut self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<LockTurn, FsError> {
        let (ino, owner) = self.asker(handle, owner)?;
        self.locks.lock((handle, ino), owner, lock, wait)
    }

    /// Waits no longer; `false` when the lock is there already.
    pub(super) fn cancel_lock(&mut self, wait: LockWait) -> bool {
        self.locks.cancel(wait)
    }

    pub(super) fn unlock(
        &mut self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<(), FsError> {
        let (ino, owner) = self.asker(handle, owner)?;
        self.locks.unlock(ino, owner, kind, range)
    }

    pub(super) fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>, FsError> {
        let (ino, owner) = self.asker(handle, owner)?;
        self.locks.find(ino, owner, lock)
    }

    /// An owner has closed a descriptor of the file.
    pub(super) fn unlock_closed(&mut self, handle: Handle, owner: u64) -> Result<(), FsError> {
        let (ino, owner) = self.asker(handle, owner)?;
        self.locks.closed(ino, owner)
    }

    /// A handle is closed for good.
    pub(super) fn unlock_released(&mut self, handle: Handle) -> Result<(), FsError> {
        let ino = self.opened(handle)?.ino;
        self.locks.released(handle, ino)
    }

    fn asker(&self, handle: Handle, owner: u64) -> Result<(Ino, LockOwner), FsError> {
        let open = self.opened(handle)?;
        Ok((open.ino, LockOwner { session: SessionId(open.client), owner }))
    }
}
