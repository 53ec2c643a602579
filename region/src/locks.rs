//! Locks of files: the table of `base`, and those who wait.
//!
//! They are the region's alone: nobody outside sees them, and the file system below does not.

use std::pin::pin;

use base::{
    ByteRange, FsError, HashMap, Ino, LockKind, LockOwner, SessionId,
    locks::{LockDenied, LockHeld, LockTable, LockWait, Waiting},
};
use client::{FileLock, Handle};
use futures::{
    channel::oneshot,
    future::{Either, select},
};
use wire::LockFound;

use crate::{
    Region,
    table::{Result, Table},
};

/// Everything that asks for locks comes from this node.
const SESSION: SessionId = SessionId(0);

pub(crate) struct Locks {
    table: LockTable,
    waiting: HashMap<LockWait, oneshot::Sender<()>>,
    last: u64,
    /// Owners that have asked for locks through a handle.
    askers: Vec<(Handle, LockKind, LockOwner)>,
}

/// How a request went.
pub(crate) enum Turn {
    Now,
    Later(LockWait, oneshot::Receiver<()>),
}

impl Locks {
    pub(crate) fn new() -> Locks {
        let table = LockTable::new(base::limits::LOCKS_A_SESSION_MAX);
        Locks { table, waiting: HashMap::default(), last: 0, askers: Vec::new() }
    }

    fn wake(&mut self, granted: Vec<LockWait>) {
        for wait in granted {
            if let Some(waiting) = self.waiting.remove(&wait) {
                // The waiting caller may have gone; then it gives up the lock.
                let _ = waiting.send(());
            }
        }
    }
}

impl Region {
    pub(crate) async fn wait_for_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> client::Result<()> {
        let (wait, told) = match self.run(|table| table.lock(handle, owner, lock, true)).await? {
            Turn::Now => return Ok(()),
            Turn::Later(wait, told) => (wait, told),
        };
        match select(told, pin!(interrupted)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) if self.lock().cancel_lock(wait) => Err(FsError::Interrupted.into()),
            Either::Right(_) => Ok(()),
        }
    }
}

impl Table {
    pub(crate) fn lock(
        &mut self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<Turn> {
        let ino = self.opened(handle)?;
        let asked = held(owner, lock)?;
        let file = (ino, lock.kind);
        let locks = &mut self.locks;
        let asker = (handle, lock.kind, asked.owner);
        if !locks.askers.contains(&asker) {
            locks.askers.push(asker);
        }
        let granted = locks.table.give_up_mode(file, asked);
        locks.wake(granted);
        if !wait {
            let granted = locks.table.take(file, asked).map_err(errno)?;
            locks.wake(granted);
            return Ok(Turn::Now);
        }
        locks.last += 1;
        let wait = LockWait { session: SESSION, number: locks.last };
        let (turn, granted) = locks.table.take_or_wait(file, asked, wait).map_err(errno)?;
        locks.wake(granted);
        match turn {
            Waiting::Granted => Ok(Turn::Now),
            Waiting::Queued => {
                let (sender, receiver) = oneshot::channel();
                locks.waiting.insert(wait, sender);
                Ok(Turn::Later(wait, receiver))
            }
        }
    }

    /// Waits no longer; `false` when the lock is there already.
    fn cancel_lock(&mut self, wait: LockWait) -> bool {
        let Some(granted) = self.locks.table.cancel(wait) else { return false };
        self.locks.waiting.remove(&wait);
        self.locks.wake(granted);
        true
    }

    pub(crate) fn unlock(
        &mut self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        let ino = self.opened(handle)?;
        let range = if kind == LockKind::Whole { ByteRange::ALL } else { range };
        if !range.is_valid() {
            return Err(FsError::Invalid.into());
        }
        let owner = LockOwner { session: SESSION, owner };
        let granted = self.locks.table.give_back((ino, kind), owner, range).map_err(errno)?;
        self.locks.wake(granted);
        Ok(())
    }

    pub(crate) fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        let ino = self.opened(handle)?;
        let found = self.locks.table.conflict((ino, lock.kind), held(owner, lock)?);
        let found =
            found.map(|found| LockFound { range: found.range, mode: found.mode, pid: found.pid });
        Ok(found)
    }

    /// An owner has closed a descriptor of the file.
    pub(crate) fn unlock_closed(&mut self, handle: Handle, owner: u64) -> Result<()> {
        let ino = self.opened(handle)?;
        self.drop_owner(ino, LockKind::Range, LockOwner { session: SESSION, owner });
        Ok(())
    }

    /// A handle is closed for good.
    pub(crate) fn unlock_released(&mut self, handle: Handle, ino: Ino) {
        let askers = self.locks.askers.iter().filter(|(by, ..)| *by == handle);
        let owners: Vec<_> = askers.map(|(_, kind, owner)| (*kind, *owner)).collect();
        for (kind, owner) in owners {
            self.drop_owner(ino, kind, owner);
        }
        self.locks.askers.retain(|(by, ..)| *by != handle);
    }

    fn drop_owner(&mut self, ino: Ino, kind: LockKind, owner: LockOwner) {
        if let Ok(granted) = self.locks.table.give_back((ino, kind), owner, ByteRange::ALL) {
            self.locks.wake(granted);
        }
        let handles = &self.handles;
        self.locks.askers.retain(|(by, of, asker)| {
            (*of, *asker) != (kind, owner) || handles.get(by).is_some_and(|open| *open != ino)
        });
    }
}

fn held(owner: u64, lock: FileLock) -> Result<LockHeld> {
    let FileLock { kind, mode, range, pid } = lock;
    let range = if kind == LockKind::Whole { ByteRange::ALL } else { range };
    if !range.is_valid() {
        return Err(FsError::Invalid.into());
    }
    Ok(LockHeld { owner: LockOwner { session: SESSION, owner }, pid, range, mode })
}

fn errno(denied: LockDenied) -> FsError {
    match denied {
        LockDenied::Held => FsError::TryAgain,
        LockDenied::Deadlock => FsError::Deadlock,
        LockDenied::TooMany => FsError::NoLocks,
    }
}
