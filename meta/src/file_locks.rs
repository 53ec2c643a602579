//! Locks of files (flock, fcntl): who holds them, who waits, and who is told.
//!
//! Held in memory by the server of the files' names, and gone with it; the sessions that were there before a
//! restart claim theirs again, and until all have, or their leases have ended, no lock is given to anybody
//! (`ops::lock`). A lock lives as long as its session has the file open.
//!
//! A request that waits is asked again when its connection breaks, under the same number: it keeps its place,
//! and everyone who asks under that number is told. A number below what its session has settled is an echo.

use base::{
    ByteRange, FsError, HashMap, Ino, LockKind, LockOwner, SessionId,
    limits::LOCKS_A_SESSION_MAX,
    locks::{LockDenied, LockHeld, LockTable, LockWait, Waiting},
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use wire::{ClaimedLock, Lock, LockFound, LockTest};

/// The locks of all cores.
pub(crate) struct FileLocks {
    state: Mutex<State>,
}

struct State {
    table: LockTable,
    waiting: HashMap<LockWait, Vec<oneshot::Sender<Told>>>,
    /// For each session: lower numbers are settled.
    settled: HashMap<SessionId, u64>,
}

/// How waiting ended.
type Told = Result<(), FsError>;

/// Those who need not wait any more. They are told when the group is written that let them in.
#[derive(Default)]
pub(crate) struct LetIn(Vec<oneshot::Sender<Told>>);

impl LetIn {
    /// Tells them.
    pub(crate) fn tell(self) {
        for waiting in self.0 {
            // Who asked may have gone.
            let _ = waiting.send(Ok(()));
        }
    }

    /// These as well.
    pub(crate) fn extend(&mut self, others: LetIn) {
        self.0.extend(others.0);
    }
}

/// Why a lock request is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The answer.
    Denied(FsError),
    /// Its session has settled it.
    Echo,
}

/// How a request went that may wait.
pub(crate) enum Turn {
    /// The lock is there.
    Now,
    /// It will be, when this is told.
    Later(oneshot::Receiver<Told>),
}

impl Default for FileLocks {
    fn default() -> FileLocks {
        let state = State {
            table: LockTable::new(LOCKS_A_SESSION_MAX),
            waiting: HashMap::default(),
            settled: HashMap::default(),
        };
        FileLocks { state: Mutex::new(state) }
    }
}

impl FileLocks {
    /// Takes, changes or gives back a lock, without waiting.
    pub(crate) fn set(&self, session: SessionId, req: &Lock) -> (Result<(), Refusal>, LetIn) {
        let mut state = self.state.lock();
        let mut granted = Vec::new();
        let result = match state.admit(session, req.number, req.settled) {
            Err(refusal) => Err(refusal),
            Ok(()) => state.set(session, req, &mut granted).map_err(refusal),
        };
        (result, state.let_in(granted))
    }

    /// Takes a lock, or queues for it.
    pub(crate) fn wait(&self, session: SessionId, req: &Lock) -> (Result<Turn, Refusal>, LetIn) {
        let mut state = self.state.lock();
        if let Err(refusal) = state.admit(session, req.number, req.settled) {
            return (Err(refusal), LetIn::default());
        }
        let Some(asked) = held(session, req) else {
            return (Err(Refusal::Denied(FsError::Invalid)), LetIn::default());
        };
        let (file, wait) = ((req.ino, req.kind), LockWait { session, number: req.number });
        let mut granted = state.table.give_up_mode(file, asked);
        let result = match state.table.take_or_wait(file, asked, wait) {
            Ok((turn, others)) => {
                granted.extend(others);
                Ok(match turn {
                    Waiting::Granted => Turn::Now,
                    Waiting::Queued => {
                        let (sender, receiver) = oneshot::channel();
                        state.waiting.entry(wait).or_default().push(sender);
                        Turn::Later(receiver)
                    }
                })
            }
            Err(denied) => Err(refusal(denied)),
        };
        (result, state.let_in(granted))
    }

    /// What is in the way of a lock.
    pub(crate) fn find(&self, session: SessionId, req: &LockTest) -> Option<LockFound> {
        let LockTest { ino, kind, owner, range, mode } = *req;
        let owner = LockOwner { session, owner };
        let asked = LockHeld { owner, pid: 0, range, mode };
        let found = self.state.lock().table.conflict((ino, kind), asked)?;
        let pid = if found.owner.session == session { found.pid } else { 0 };
        Some(LockFound { range: found.range, mode: found.mode, pid })
    }

    /// A request need not wait any more.
    pub(crate) fn cancel(&self, session: SessionId, number: u64, settled: u64) -> LetIn {
        let mut state = self.state.lock();
        state.settle(session, settled);
        let wait = LockWait { session, number };
        let Some(granted) = state.table.cancel(wait) else { return LetIn::default() };
        for waiting in state.waiting.remove(&wait).into_iter().flatten() {
            let _ = waiting.send(Err(FsError::Interrupted));
        }
        state.let_in(granted)
    }

    /// A session held this lock before the restart.
    pub(crate) fn claim(&self, session: SessionId, claimed: &ClaimedLock) -> Result<(), FsError> {
        let ClaimedLock { ino, kind, owner, pid, range, mode } = *claimed;
        if !range.is_valid() {
            return Err(FsError::Invalid);
        }
        let owner = LockOwner { session, owner };
        let taken = self.state.lock().table.take((ino, kind), LockHeld { owner, pid, range, mode });
        taken.map(drop).map_err(errno)
    }

    /// What a session settles with a claim: none of the requests of before its restart will come any more.
    pub(crate) fn settle(&self, session: SessionId, settled: u64) {
        self.state.lock().settle(session, settled);
    }

    /// A session has closed a file.
    pub(crate) fn close(&self, session: SessionId, ino: Ino) -> LetIn {
        let mut state = self.state.lock();
        let granted = state.table.close(session, ino);
        state.let_in(granted)
    }

    /// A session has ended. Its own requests that wait are dropped unanswered.
    pub(crate) fn end_session(&self, session: SessionId) -> LetIn {
        let mut state = self.state.lock();
        let granted = state.table.end_session(session);
        state.settled.remove(&session);
        state.waiting.retain(|wait, _| wait.session != session);
        state.let_in(granted)
    }

    /// Files that are locked, locks, and requests that wait.
    pub(crate) fn totals(&self) -> (usize, usize, usize) {
        self.state.lock().table.totals()
    }
}

impl State {
    fn admit(&mut self, session: SessionId, number: u64, settled: u64) -> Result<(), Refusal> {
        self.settle(session, settled);
        let settled = self.settled.get(&session).copied().unwrap_or_default();
        if number < settled { Err(Refusal::Echo) } else { Ok(()) }
    }

    fn settle(&mut self, session: SessionId, settled: u64) {
        let known = self.settled.entry(session).or_default();
        *known = settled.max(*known);
    }

    fn set(
        &mut self,
        session: SessionId,
        req: &Lock,
        granted: &mut Vec<LockWait>,
    ) -> Result<(), LockDenied> {
        let file = (req.ino, req.kind);
        let others = match held(session, req) {
            Some(asked) => {
                granted.extend(self.table.give_up_mode(file, asked));
                self.table.take(file, asked)?
            }
            None => {
                let owner = LockOwner { session, owner: req.owner };
                self.table.give_back(file, owner, req.range)?
            }
        };
        granted.extend(others);
        Ok(())
    }

    fn let_in(&mut self, granted: Vec<LockWait>) -> LetIn {
        let waiting = granted.into_iter().filter_map(|wait| self.waiting.remove(&wait));
        LetIn(waiting.flatten().collect())
    }
}

/// The lock that is asked for; `None` when one is given back.
fn held(session: SessionId, req: &Lock) -> Option<LockHeld> {
    let owner = LockOwner { session, owner: req.owner };
    let range = if req.kind == LockKind::Whole { ByteRange::ALL } else { req.range };
    req.mode.map(|mode| LockHeld { owner, pid: req.pid, range, mode })
}

fn refusal(denied: LockDenied) -> Refusal {
    Refusal::Denied(errno(denied))
}

fn errno(denied: LockDenied) -> FsError {
    match denied {
        LockDenied::Held => FsError::TryAgain,
        LockDenied::Deadlock => FsError::Deadlock,
        LockDenied::TooMany => FsError::NoLocks,
    }
}
