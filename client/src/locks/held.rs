//! The table of the locks that this client holds, and of the requests that are not settled.
//!
//! The core keeps it for claims and for what ends with a session. This file never asks a server.

use std::collections::BTreeSet;

use base::{
    ByteRange, HashMap, Ino, LockKind, LockOwner, SessionId,
    locks::{HeldLocks, LockHeld},
};
use parking_lot::Mutex;
use wire::ClaimedLock;

use crate::{
    Error, FileLock, Handle, Result,
    runs::{Run, Runs},
};

/// A family of one file.
pub(super) type File = (Ino, LockKind);

/// All locks of a client.
pub(crate) struct Locks {
    state: Mutex<State>,
}

struct State {
    held: HashMap<File, HeldLocks>,
    /// Through which handles owners have asked for locks, and may have some.
    askers: HashMap<File, Vec<(Handle, u64)>>,
    /// The number of the next request, and of those that are not settled.
    next: u64,
    open: BTreeSet<u64>,
    /// The runs of the servers that were told of what is held.
    runs: Runs,
}

/// A lock request, with its handle and owner.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) handle: Handle,
    pub(super) file: File,
    pub(super) owner: u64,
    pub(super) lock: FileLock,
}

impl Locks {
    pub(crate) fn new(servers: usize) -> Locks {
        let state = State {
            held: HashMap::default(),
            askers: HashMap::default(),
            next: 1,
            open: BTreeSet::new(),
            runs: Runs::new(servers),
        };
        Locks { state: Mutex::new(state) }
    }

    /// A server was met for the first time.
    pub(crate) fn meet(&self, server: u16, incarnation: u64) {
        self.state.lock().runs.meet(server, incarnation);
    }

    /// Returns the locks held of files that a server `has`, to be claimed from this run of it; and
    /// the number below which all requests are settled.
    pub(crate) fn claims(
        &self,
        server: u16,
        incarnation: u64,
        has: impl Fn(Ino) -> bool,
    ) -> (Vec<ClaimedLock>, u64) {
        let mut state = self.state.lock();
        state.runs.meet(server, incarnation);
        let held = state.held.iter().filter(|((ino, _), _)| has(*ino));
        let claimed = held.flat_map(|((ino, kind), locks)| {
            locks.iter().map(|held| ClaimedLock {
                ino: *ino,
                kind: *kind,
                owner: held.owner.owner,
                pid: held.pid,
                range: held.range,
                mode: held.mode,
            })
        });
        (claimed.collect(), state.settled())
    }

    /// The session is gone at a server, and with it all locks of files that the server `has`.
    pub(crate) fn lose(&self, server: u16, incarnation: u64, has: impl Fn(Ino) -> bool) {
        let mut state = self.state.lock();
        state.held.retain(|(ino, _), _| !has(*ino));
        state.askers.retain(|(ino, _), _| !has(*ino));
        state.runs.lose(server, incarnation);
    }

    /// Files that are locked, and through which handles that may have been.
    pub(crate) fn holders(&self) -> Vec<(Ino, Handle)> {
        let state = self.state.lock();
        let held = state.held.iter().filter(|(_, locks)| !locks.is_empty());
        let by = held.filter_map(|(file, _)| Some((file.0, state.askers.get(file)?)));
        by.flat_map(|(ino, askers)| askers.iter().map(move |(handle, _)| (ino, *handle))).collect()
    }

    /// The number of a request that is about to be sent, and what is settled before it.
    pub(super) fn begin(&self, asked: &Asked) -> (u64, u64) {
        let mut state = self.state.lock();
        let gives_up = asked.file.1 == LockKind::Whole;
        if gives_up && let Some(held) = state.held.get_mut(&asked.file) {
            let owner = owner(asked.owner);
            held.retain(|held| held.owner != owner || held.mode == asked.lock.mode);
        }
        state.asks(asked);
        state.number()
    }

    /// A lock was given; `false` when the server has restarted since and does not know of it, or
    /// does not have the file any more.
    pub(super) fn given(&self, asked: &Asked, run: Run, has: impl Fn() -> bool) -> Result<bool> {
        let mut state = self.state.lock();
        if !state.runs.lives(run) {
            return Err(Error::SessionLost);
        }
        if !state.runs.is_told(run) || !has() {
            return Ok(false);
        }
        let FileLock { range, mode, pid, .. } = asked.lock;
        let held = LockHeld { owner: owner(asked.owner), pid, range, mode };
        state.held.entry(asked.file).or_default().take(held);
        state.asks(asked);
        Ok(true)
    }

    /// A request is settled: it is not sent any more, nor waited for.
    pub(super) fn settle(&self, number: u64) {
        self.state.lock().open.remove(&number);
    }

    /// Returns the number below which all requests are settled.
    pub(super) fn settled(&self) -> u64 {
        self.state.lock().settled()
    }

    /// Removes a range that an owner is about to give back, and returns the numbers of the request;
    /// `None` when the owner cannot have a lock there.
    pub(super) fn give_back(&self, file: File, by: u64, range: ByteRange) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let asker = state.askers.get(&file)?.iter().any(|(_, owner)| *owner == by);
        if let Some(held) = state.held.get_mut(&file) {
            held.give_back(owner(by), range);
            if held.is_empty() {
                state.held.remove(&file);
            }
        }
        asker.then(|| state.number())
    }

    /// An owner has nothing of a file any more.
    pub(super) fn forget_owner(&self, file: File, owner: u64) {
        let mut state = self.state.lock();
        state.forget_askers(file, |(_, asker)| asker == owner);
    }

    /// Returns the locks that were asked for through a closed handle and may still be held, as
    /// files and owners.
    pub(super) fn of_handle(&self, ino: Ino, handle: Handle) -> Vec<(File, u64)> {
        let state = self.state.lock();
        let families = [(ino, LockKind::Range), (ino, LockKind::Whole)].into_iter();
        let askers = families.flat_map(|file| {
            state.askers.get(&file).into_iter().flatten().map(move |asker| (file, asker))
        });
        askers
            .filter(|(_, (by, _))| *by == handle)
            .map(|(file, (_, owner))| (file, *owner))
            .collect()
    }
}

impl State {
    fn number(&mut self) -> (u64, u64) {
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        (number, self.settled())
    }

    fn settled(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }

    fn asks(&mut self, asked: &Asked) {
        let askers = self.askers.entry(asked.file).or_default();
        if !askers.contains(&(asked.handle, asked.owner)) {
            askers.push((asked.handle, asked.owner));
        }
    }

    fn forget_askers(&mut self, file: File, which: impl Fn((Handle, u64)) -> bool) {
        if let Some(askers) = self.askers.get_mut(&file) {
            askers.retain(|asker| !which(*asker));
            if askers.is_empty() {
                self.askers.remove(&file);
            }
        }
    }
}

/// Within one client the session says nothing.
fn owner(owner: u64) -> LockOwner {
    LockOwner { session: SessionId(0), owner }
}
