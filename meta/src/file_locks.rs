//! Locks of files (flock, fcntl): their holders, the requests that wait, and the answers to these.
//!
//! Locks are held in memory by the server of the files' names, and are gone with it. After a
//! restart the earlier sessions claim their locks again. Until all have, or their leases have
//! ended, no lock is given to anybody (`ops::lock`). A lock lives as long as its session has the
//! file open.
//!
//! A client asks again under the same number when the connection of a waiting request breaks. The
//! request keeps its place, and the latest connection under that number gets the answer. A number
//! below what its session has settled is an echo.

mod let_in;

use std::time::Duration;

use base::{
    ByteRange, FsError, HashMap, Ino, LockKind, LockOwner, SessionId,
    limits::LOCKS_A_SESSION_MAX,
    locks::{LockDenied, LockHeld, LockTable, LockWait, Waiting},
};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use wire::{ClaimedLock, Distribution, Lock, LockFound, LockTest};

use crate::{
    changes::Facts,
    follow::{Follower, Write},
    observe::Histogram,
};

pub(crate) use let_in::{LetIn, Told};

/// The locks of all cores.
pub(crate) struct FileLocks {
    state: Mutex<State>,
}

struct State {
    table: LockTable,
    waiting: HashMap<LockWait, Waiter>,
    /// For each session the lowest number that is not settled.
    settled: HashMap<SessionId, u64>,
    counts: Counts,
}

/// A request that waits.
struct Waiter {
    since: Instant,
    /// Channel to the latest request under this number.
    told: oneshot::Sender<Told>,
}

/// Counters of locks.
#[derive(Default)]
struct Counts {
    granted: u64,
    refused: u64,
    /// Waiting times of requests that got a lock in the end.
    waits: Histogram,
}

/// A lock that is held or waited for.
pub(crate) struct Shown {
    pub(crate) file: (Ino, LockKind),
    pub(crate) lock: LockHeld,
    /// How long the lock has been waited for; `None` if it is held.
    pub(crate) waiting: Option<Duration>,
}

/// Tells requests that have their lock, when the group that let them in is written.
pub(crate) struct Teller;

impl Follower for Teller {
    fn answered(&mut self, facts: &mut Facts, write: Write) {
        if !write.is_halted {
            std::mem::take(&mut facts.let_in).tell();
        }
    }
}

/// Why a lock request is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The answer to the client.
    Denied(FsError),
    /// The session has settled this number.
    Echo,
}

/// Result of a request that may wait.
pub(crate) enum Turn {
    /// The lock is granted.
    Now,
    /// The lock will be granted when the receiver is told.
    Later(oneshot::Receiver<Told>),
}

impl Default for FileLocks {
    fn default() -> FileLocks {
        let state = State {
            table: LockTable::new(LOCKS_A_SESSION_MAX),
            waiting: HashMap::default(),
            settled: HashMap::default(),
            counts: Counts::default(),
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
        if req.mode.is_some() {
            state.counts.granted += u64::from(result.is_ok());
            state.counts.refused += u64::from(matches!(result, Err(Refusal::Denied(_))));
        }
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
                    Waiting::Granted => {
                        state.counts.granted += 1;
                        Turn::Now
                    }
                    Waiting::Queued => {
                        let (sender, receiver) = oneshot::channel();
                        let before = state.waiting.remove(&wait);
                        let since =
                            before.as_ref().map_or_else(Instant::now, |before| before.since);
                        state.waiting.insert(wait, Waiter { since, told: sender });
                        if let Some(before) = before {
                            let _ = before.told.send(Told::AskedAgain);
                        }
                        Turn::Later(receiver)
                    }
                })
            }
            Err(denied) => {
                state.counts.refused += 1;
                Err(refusal(denied))
            }
        };
        (result, state.let_in(granted))
    }

    /// Returns a lock that conflicts with the one asked for.
    pub(crate) fn find(&self, session: SessionId, req: &LockTest) -> Option<LockFound> {
        let LockTest { ino, kind, owner, range, mode } = *req;
        let owner = LockOwner { session, owner };
        let asked = LockHeld { owner, pid: 0, range, mode };
        let found = self.state.lock().table.conflict((ino, kind), asked)?;
        let pid = if found.owner.session == session { found.pid } else { 0 };
        Some(LockFound { range: found.range, mode: found.mode, pid })
    }

    /// Ends the wait of a request.
    pub(crate) fn cancel(&self, session: SessionId, number: u64, settled: u64) -> LetIn {
        let mut state = self.state.lock();
        state.settle(session, settled);
        let wait = LockWait { session, number };
        let Some(granted) = state.table.cancel(wait) else { return LetIn::default() };
        if let Some(waiter) = state.waiting.remove(&wait) {
            let _ = waiter.told.send(Told::Cancelled);
        }
        state.let_in(granted)
    }

    /// Takes a lock that a session held before the restart.
    pub(crate) fn claim(&self, session: SessionId, claimed: &ClaimedLock) -> Result<(), FsError> {
        let ClaimedLock { ino, kind, owner, pid, range, mode } = *claimed;
        if !range.is_valid() {
            return Err(FsError::Invalid);
        }
        let owner = LockOwner { session, owner };
        let taken = self.state.lock().table.take((ino, kind), LockHeld { owner, pid, range, mode });
        taken.map(drop).map_err(errno)
    }

    /// Settles numbers with a claim: no request from before the restart will come any more.
    pub(crate) fn settle(&self, session: SessionId, settled: u64) {
        self.state.lock().settle(session, settled);
    }

    /// Gives back the locks of a file that a session has closed.
    pub(crate) fn close(&self, session: SessionId, ino: Ino) -> LetIn {
        let mut state = self.state.lock();
        let granted = state.table.close(session, ino);
        state.let_in(granted)
    }

    /// Gives back the locks of a session that has ended. Its waiting requests are dropped
    /// unanswered.
    pub(crate) fn end_session(&self, session: SessionId) -> LetIn {
        let mut state = self.state.lock();
        let granted = state.table.end_session(session);
        state.settled.remove(&session);
        state.waiting.retain(|wait, _| wait.session != session);
        state.let_in(granted)
    }

    /// Numbers of locked files, of locks, and of requests that wait.
    pub(crate) fn totals(&self) -> (usize, usize, usize) {
        self.state.lock().table.totals()
    }

    /// Numbers of locks granted and refused since the start.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.counts.granted, state.counts.refused)
    }

    /// Waiting times of granted locks, in nanoseconds.
    pub(crate) fn waits(&self) -> Distribution {
        let mut waits = Distribution::default();
        self.state.lock().counts.waits.add_to(&mut waits);
        waits
    }

    /// Number of locks that each session holds and waits for.
    pub(crate) fn by_session(&self) -> HashMap<SessionId, (u64, u64)> {
        let state = self.state.lock();
        let mut found: HashMap<SessionId, (u64, u64)> = HashMap::default();
        for (ino, kind) in state.table.files() {
            for (lock, wait) in state.table.of_file(ino, kind) {
                let (held, waiting) = found.entry(lock.owner.session).or_default();
                *(if wait.is_some() { waiting } else { held }) += 1;
            }
        }
        found
    }

    /// Locks of inodes after `after`, whole inodes, about `max` of them, and whether these are the
    /// last.
    pub(crate) fn list(
        &self,
        after: Ino,
        session: Option<SessionId>,
        ino: Option<Ino>,
        max: usize,
    ) -> (Vec<Shown>, bool) {
        let state = self.state.lock();
        let now = Instant::now();
        let of_it = |file: &(Ino, LockKind)| file.0 > after && ino.is_none_or(|ino| ino == file.0);
        let mut files: Vec<_> = state.table.files().filter(of_it).collect();
        files.sort_unstable();
        let mut found: Vec<Shown> = Vec::new();
        for file in files {
            let full = found.len() >= max;
            if full && found.last().is_some_and(|last| last.file.0 != file.0) {
                return (found, false);
            }
            for (lock, wait) in state.table.of_file(file.0, file.1) {
                if session.is_none_or(|session| session == lock.owner.session) {
                    let since = |wait| state.waiting.get(&wait).map_or(now, |waiter| waiter.since);
                    let waiting = wait.map(|wait| now.saturating_duration_since(since(wait)));
                    found.push(Shown { file, lock, waiting });
                }
            }
        }
        (found, true)
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
        let mut told = Vec::new();
        for waiter in granted.into_iter().filter_map(|wait| self.waiting.remove(&wait)) {
            self.counts.granted += 1;
            let waited = waiter.since.elapsed().as_nanos();
            self.counts.waits.record(u64::try_from(waited).unwrap_or(u64::MAX));
            told.push(waiter.told);
        }
        LetIn(told)
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
