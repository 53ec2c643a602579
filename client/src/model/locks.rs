//! Locks of files: the table of `base`, and those who wait.

use base::{
    ByteRange, FsError, HashMap, Ino, LockKind, LockOwner, SessionId,
    locks::{LockDenied, LockHeld, LockTable, LockWait, Waiting},
};
use tokio::sync::oneshot;
use wire::LockFound;

use super::State;
use crate::{FileLock, Handle};

/// The locks of all clients.
pub(super) struct Locks {
    table: LockTable,
    waiting: HashMap<LockWait, oneshot::Sender<()>>,
    last: u64,
    /// Owners that have asked for locks through a handle.
    askers: Vec<(Handle, LockKind, LockOwner)>,
}

/// How a request went.
pub(super) enum Turn {
    Now,
    Later(LockWait, oneshot::Receiver<()>),
}

impl Locks {
    pub(super) fn new() -> Locks {
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

    pub(super) fn check(&self) {
        self.table.check();
    }
}

impl State {
    pub(super) fn lock(
        &mut self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<Turn, FsError> {
        let (ino, asked) = self.asked(handle, owner, lock)?;
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
        let wait = LockWait { session: asked.owner.session, number: locks.last };
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
    pub(super) fn cancel_lock(&mut self, wait: LockWait) -> bool {
        let Some(granted) = self.locks.table.cancel(wait) else { return false };
        self.locks.waiting.remove(&wait);
        self.locks.wake(granted);
        true
    }

    pub(super) fn unlock(
        &mut self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<(), FsError> {
        let open = self.opened(handle)?;
        let (ino, owner) = (open.ino, LockOwner { session: SessionId(open.client), owner });
        let range = if kind == LockKind::Whole { ByteRange::ALL } else { range };
        if !range.is_valid() {
            return Err(FsError::Invalid);
        }
        let granted = self.locks.table.give_back((ino, kind), owner, range).map_err(errno)?;
        self.locks.wake(granted);
        Ok(())
    }

    pub(super) fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>, FsError> {
        let (ino, asked) = self.asked(handle, owner, lock)?;
        let found = self.locks.table.conflict((ino, lock.kind), asked);
        Ok(found.map(|found| LockFound {
            range: found.range,
            mode: found.mode,
            pid: if found.owner.session == asked.owner.session { found.pid } else { 0 },
        }))
    }

    /// An owner has closed a descriptor of the file.
    pub(super) fn unlock_closed(&mut self, handle: Handle, owner: u64) -> Result<(), FsError> {
        let open = self.opened(handle)?;
        let owner = LockOwner { session: SessionId(open.client), owner };
        let ino = open.ino;
        self.drop_owner(ino, LockKind::Range, owner)
    }

    /// A handle is closed for good.
    pub(super) fn unlock_released(&mut self, handle: Handle) -> Result<(), FsError> {
        let ino = self.opened(handle)?.ino;
        let askers = self.locks.askers.iter().filter(|(by, ..)| *by == handle);
        let owners: Vec<_> = askers.map(|(_, kind, owner)| (*kind, *owner)).collect();
        owners.into_iter().try_for_each(|(kind, owner)| self.drop_owner(ino, kind, owner))
    }

    fn drop_owner(&mut self, ino: Ino, kind: LockKind, owner: LockOwner) -> Result<(), FsError> {
        let granted =
            self.locks.table.give_back((ino, kind), owner, ByteRange::ALL).map_err(errno)?;
        self.locks.wake(granted);
        let handles = &self.handles;
        self.locks.askers.retain(|(by, of, asker)| {
            (*of, *asker) != (kind, owner) || handles.get(by).is_some_and(|open| open.ino != ino)
        });
        Ok(())
    }

    fn asked(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<(Ino, LockHeld), FsError> {
        let open = self.opened(handle)?;
        let FileLock { kind, mode, range, pid } = lock;
        let range = if kind == LockKind::Whole { ByteRange::ALL } else { range };
        if !range.is_valid() {
            return Err(FsError::Invalid);
        }
        let owner = LockOwner { session: SessionId(open.client), owner };
        Ok((open.ino, LockHeld { owner, pid, range, mode }))
    }
}

fn errno(denied: LockDenied) -> FsError {
    match denied {
        LockDenied::Held => FsError::TryAgain,
        LockDenied::Deadlock => FsError::Deadlock,
        LockDenied::TooMany => FsError::NoLocks,
    }
}
