//! Locks of files. They are the region's alone: nobody outside sees them, and the file system below
//! does not.

use std::pin::pin;

use base::{ByteRange, FsError, Ino, LockKind, LockOwner};
use client::{FileLock, Handle, LockTurn};
use futures::future::{Either, select};
use wire::LockFound;

use crate::{
    Region,
    table::{Result, Table},
};

impl Region {
    pub(crate) async fn wait_for_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> client::Result<()> {
        let owner = self.owner(owner);
        let (wait, told) = match self.run(|table| table.lock(handle, owner, lock, true)).await? {
            LockTurn::Now => return Ok(()),
            LockTurn::Later(wait, told) => (wait, told),
        };
        match select(told, pin!(interrupted)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) if self.lock().locks.cancel(wait) => Err(FsError::Interrupted.into()),
            Either::Right(_) => Ok(()),
        }
    }
}

impl Table {
    pub(crate) fn lock(
        &mut self,
        handle: Handle,
        owner: LockOwner,
        lock: FileLock,
        wait: bool,
    ) -> Result<LockTurn> {
        let ino = self.opened(handle)?;
        Ok(self.locks.lock((handle, ino), owner, lock, wait)?)
    }

    pub(crate) fn unlock(
        &mut self,
        handle: Handle,
        owner: LockOwner,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        let ino = self.opened(handle)?;
        Ok(self.locks.unlock(ino, owner, kind, range)?)
    }

    pub(crate) fn find_lock(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        let ino = self.opened(handle)?;
        Ok(self.locks.find(ino, owner, lock)?)
    }

    /// An owner has closed a descriptor of the file.
    pub(crate) fn unlock_closed(&mut self, handle: Handle, owner: LockOwner) -> Result<()> {
        let ino = self.opened(handle)?;
        Ok(self.locks.closed(ino, owner)?)
    }

    /// A handle is closed for good.
    pub(crate) fn unlock_released(&mut self, handle: Handle, ino: Ino) -> Result<()> {
        Ok(self.locks.released(handle, ino)?)
    }
}
