//! Locks of a file system in one process: the table of `base`, and those who wait.
//!
//! The model has one, and a region; they say which file and which session a handle is of.

use base::{
    ByteRange, FsError, HashMap, Ino, LockKind, LockOwner,
    locks::{LockDenied, LockHeld, LockTable, LockWait, Waiting},
};
use tokio::sync::oneshot;
use wire::LockFound;

use crate::{FileLock, Handle};

/// The locks of all sessions.
#[derive(Debug)]
pub struct LocalLocks {
    table: LockTable,
    waiting: HashMap<LockWait, oneshot::Sender<()>>,
    last: u64,
    /// Owners that have asked for locks through a handle.
    askers: Vec<(Handle, Ino, LockKind, LockOwner)>,
}

/// How a request went.
#[derive(Debug)]
pub enum LockTurn {
    /// The lock is there.
    Now,
    /// The receiver hears when it is.
    Later(LockWait, oneshot::Receiver<()>),
}

impl Default for LocalLocks {
    fn default() -> LocalLocks {
        let table = LockTable::new(base::limits::LOCKS_A_SESSION_MAX);
        LocalLocks { table, waiting: HashMap::default(), last: 0, askers: Vec::new() }
    }
}

impl LocalLocks {
    /// Takes a lock through a handle, or waits for it if `wait`.
    ///
    /// # Errors
    /// `TryAgain` where another owner has it and nobody is to wait, `Deadlock`, `NoLocks`, and
    /// `Invalid` for a range that is none.
    pub fn lock(
        &mut self,
        (handle, ino): (Handle, Ino),
        owner: LockOwner,
        lock: FileLock,
        wait: bool,
    ) -> Result<LockTurn, FsError> {
        let asked = held(owner, lock)?;
        let file = (ino, lock.kind);
        let asker = (handle, ino, lock.kind, owner);
        if !self.askers.contains(&asker) {
            self.askers.push(asker);
        }
        let granted = self.table.give_up_mode(file, asked);
        self.wake(granted);
        if !wait {
            let granted = self.table.take(file, asked).map_err(errno)?;
            self.wake(granted);
            return Ok(LockTurn::Now);
        }
        self.last += 1;
        let wait = LockWait { session: owner.session, number: self.last };
        let (turn, granted) = self.table.take_or_wait(file, asked, wait).map_err(errno)?;
        self.wake(granted);
        match turn {
            Waiting::Granted => Ok(LockTurn::Now),
            Waiting::Queued => {
                let (sender, receiver) = oneshot::channel();
                self.waiting.insert(wait, sender);
                Ok(LockTurn::Later(wait, receiver))
            }
        }
    }

    /// Waits no longer; `false` when the lock is there already.
    pub fn cancel(&mut self, wait: LockWait) -> bool {
        let Some(granted) = self.table.cancel(wait) else { return false };
        self.waiting.remove(&wait);
        self.wake(granted);
        true
    }

    /// Gives back what an owner has of a range.
    ///
    /// # Errors
    /// As [`LocalLocks::lock`].
    pub fn unlock(
        &mut self,
        ino: Ino,
        owner: LockOwner,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<(), FsError> {
        let granted = self.table.give_back((ino, kind), owner, valid(kind, range)?);
        self.wake(granted.map_err(errno)?);
        Ok(())
    }

    /// Returns a lock that conflicts with this one, if there is one.
    ///
    /// # Errors
    /// `Invalid` for a range that is none.
    pub fn find(
        &self,
        ino: Ino,
        owner: LockOwner,
        lock: FileLock,
    ) -> Result<Option<LockFound>, FsError> {
        let found = self.table.conflict((ino, lock.kind), held(owner, lock)?);
        Ok(found.map(|found| LockFound {
            range: found.range,
            mode: found.mode,
            pid: if found.owner.session == owner.session { found.pid } else { 0 },
        }))
    }

    /// An owner has closed a descriptor of the file: its ranges are free.
    ///
    /// # Errors
    /// `NoLocks` where the table is full.
    pub fn closed(&mut self, ino: Ino, owner: LockOwner) -> Result<(), FsError> {
        self.drop_owner(ino, LockKind::Range, owner)
    }

    /// A handle is closed for good: so is what was locked through it, for whomever.
    ///
    /// # Errors
    /// As [`LocalLocks::closed`].
    pub fn released(&mut self, handle: Handle, ino: Ino) -> Result<(), FsError> {
        let askers = self.askers.iter().filter(|(by, ..)| *by == handle);
        let owners: Vec<_> = askers.map(|(.., kind, owner)| (*kind, *owner)).collect();
        owners.into_iter().try_for_each(|(kind, owner)| self.drop_owner(ino, kind, owner))
    }

    /// Checks what is always true of the table.
    ///
    /// # Panics
    /// When something is not so.
    pub fn check(&self) {
        self.table.check();
    }

    fn drop_owner(&mut self, ino: Ino, kind: LockKind, owner: LockOwner) -> Result<(), FsError> {
        let granted = self.table.give_back((ino, kind), owner, ByteRange::ALL).map_err(errno)?;
        self.wake(granted);
        self.askers.retain(|(_, at, of, asker)| (*at, *of, *asker) != (ino, kind, owner));
        Ok(())
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

/// A range as the family of the lock has it.
fn valid(kind: LockKind, range: ByteRange) -> Result<ByteRange, FsError> {
    let range = if kind == LockKind::Whole { ByteRange::ALL } else { range };
    if range.is_valid() { Ok(range) } else { Err(FsError::Invalid) }
}

fn held(owner: LockOwner, lock: FileLock) -> Result<LockHeld, FsError> {
    let FileLock { kind, mode, range, pid } = lock;
    Ok(LockHeld { owner, pid, range: valid(kind, range)?, mode })
}

fn errno(denied: LockDenied) -> FsError {
    match denied {
        LockDenied::Held => FsError::TryAgain,
        LockDenied::Deadlock => FsError::Deadlock,
        LockDenied::TooMany => FsError::NoLocks,
    }
}
