//! Locks of files: what this client holds, and asking for more.
//!
//! `handles` and `file` call it. The server decides; the client remembers what it was given, to
//! claim it from a server that has restarted, and which owner has anything to give back, so that a
//! close without locks asks nobody. It never gives a lock to anybody by itself, also not between
//! two of its own owners.
//!
//! Locks order contents: what was written is sent before a lock is given back, and what is known of
//! the contents is forgotten when one was taken. So who holds a lock reads what the one before
//! wrote.
//!
//! A request that is answered by a run of the server that has ended since is asked again: its lock
//! was not among the claims. Numbers: see [`wire::lock`].

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use base::{
    Backoff, ByteRange, Cred, FsError, HashMap, Ino, LockKind, LockOwner, SessionId,
    locks::{HeldLocks, LockHeld},
};
use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::time::sleep;
use wire::{ClaimedLock, Lock, LockCancel, LockFound, LockTest, Reply, Request, Stand};

use crate::{
    Client, Error, FileLock, Handle, Result,
    done::Failure,
    error::unexpected,
    route::Route,
    runs::{Run, Runs},
};

/// Between two attempts to wait no longer, at first and at most.
const CANCEL_PAUSE_FIRST: Duration = Duration::from_millis(20);
const CANCEL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A family of one file.
type File = (Ino, LockKind);

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
struct Asked {
    handle: Handle,
    file: File,
    owner: u64,
    lock: FileLock,
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
    fn begin(&self, asked: &Asked) -> (u64, u64) {
        let mut state = self.state.lock();
        let gives_up = asked.file.1 == LockKind::Whole;
        if gives_up && let Some(held) = state.held.get_mut(&asked.file) {
            let owner = owner(asked.owner);
            held.retain(|held| held.owner != owner || held.mode == asked.lock.mode);
        }
        state.asks(asked);
        state.number()
    }

    /// A lock was given; `false` when the server has restarted since and does not know of it.
    fn given(&self, asked: &Asked, run: Run) -> Result<bool> {
        let mut state = self.state.lock();
        if !state.runs.lives(run) {
            return Err(Error::SessionLost);
        }
        if !state.runs.is_told(run) {
            return Ok(false);
        }
        let FileLock { range, mode, pid, .. } = asked.lock;
        let held = LockHeld { owner: owner(asked.owner), pid, range, mode };
        state.held.entry(asked.file).or_default().take(held);
        state.asks(asked);
        Ok(true)
    }

    /// A request is settled: it is not sent any more, nor waited for.
    fn settle(&self, number: u64) {
        self.state.lock().open.remove(&number);
    }

    /// Removes a range that an owner is about to give back, and returns the numbers of the request;
    /// `None` when the owner cannot have a lock there.
    fn give_back(&self, file: File, by: u64, range: ByteRange) -> Option<(u64, u64)> {
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
    fn forget_owner(&self, file: File, owner: u64) {
        let mut state = self.state.lock();
        state.forget_askers(file, |(_, asker)| asker == owner);
    }

    /// Returns the locks that were asked for through a closed handle and may still be held, as
    /// files and owners.
    fn of_handle(&self, ino: Ino, handle: Handle) -> Vec<(File, u64)> {
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

/// A request that is under way. Dropped before it is settled, it gives up what it asked for.
struct Asking<'a> {
    client: &'a Client,
    asked: Asked,
    number: u64,
    settled: bool,
}

impl Asking<'_> {
    fn settle(mut self) {
        self.settled = true;
        self.client.core.locks.settle(self.number);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let client = self.client.clone();
        let (asked, number) = (self.asked, self.number);
        client.core.locks.settle(number);
        let core = Arc::clone(&client.core);
        core.spawn(async move {
            client.cancel(asked.file.0, number).await;
            let gone = client.give_back(asked.file, asked.owner, asked.lock.range).await;
            if let Err(error) = gone {
                tracing::debug!(%error, "a lock that nobody waits for was not given back");
            }
        });
    }
}

impl Client {
    /// Takes a lock; waits for it unless `interrupted` is `None`.
    pub(crate) async fn take_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
        interrupted: Option<impl Future<Output = ()>>,
    ) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        open.state.lock().check()?;
        let range = if lock.kind == LockKind::Whole { ByteRange::ALL } else { lock.range };
        if !range.is_valid() {
            return Err(FsError::Invalid.into());
        }
        let lock = FileLock { range, ..lock };
        let asked = Asked { handle, file: (open.state.ino, lock.kind), owner, lock };
        let wait = interrupted.is_some();
        let mut interrupted = pin!(async {
            match interrupted {
                Some(interrupted) => interrupted.await,
                None => std::future::pending().await,
            }
        });
        loop {
            let (number, settled) = self.core.locks.begin(&asked);
            let asking = Asking { client: self, asked, number, settled: false };
            let request = Request::Lock(Lock {
                ino: asked.file.0,
                kind: lock.kind,
                owner,
                pid: lock.pid,
                range,
                mode: Some(lock.mode),
                wait,
                number,
                settled,
            });
            let cred = Cred::default();
            let call = pin!(self.core.call(&cred, route(asked.file.0), request, Stand::NONE));
            let answer = match select(call, interrupted.as_mut()).await {
                Either::Left((answer, _)) => answer,
                Either::Right(((), call)) => {
                    let cancelling = pin!(self.cancel_until_answered(asked.file.0, number));
                    match select(call, cancelling).await {
                        Either::Left((answer, _)) => answer,
                        Either::Right((never, _)) => match never {},
                    }
                }
            };
            let answer = answer.map_err(Failure::by_handle);
            let given = answer.and_then(|done| self.core.locks.given(&asked, done.run));
            asking.settle();
            if given? {
                // Others may have written while they held it.
                open.state.lock().forget_contents();
                return Ok(());
            }
        }
    }

    /// Gives back what an owner has of a range, once all that was written before is sent.
    pub(crate) async fn give_back_lock(
        &self,
        handle: Handle,
        kind: LockKind,
        owner: u64,
        range: ByteRange,
    ) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        open.state.lock().check()?;
        let range = if kind == LockKind::Whole { ByteRange::ALL } else { range };
        if !range.is_valid() {
            return Err(FsError::Invalid.into());
        }
        self.flush_state(&open.state).await;
        self.give_back((open.state.ino, kind), owner, range).await
    }

    /// An owner has closed a descriptor of the file: it keeps no ranges of it.
    pub(crate) async fn give_back_ranges(&self, handle: Handle, owner: u64) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        let file = (open.state.ino, LockKind::Range);
        let gone = self.give_back(file, owner, ByteRange::ALL).await;
        self.core.locks.forget_owner(file, owner);
        gone
    }

    /// A handle is being closed for good: what was locked through it is given back.
    pub(crate) async fn give_back_all(&self, handle: Handle) -> Result<()> {
        let open = self.core.files.handle(handle)?;
        for (file, owner) in self.core.locks.of_handle(open.state.ino, handle) {
            self.flush_state(&open.state).await;
            let gone = self.give_back(file, owner, ByteRange::ALL).await;
            self.core.locks.forget_owner(file, owner);
            gone?;
        }
        Ok(())
    }

    /// Whether closing a handle has locks to give back.
    pub(crate) fn has_locks(&self, ino: Ino, handle: Handle) -> bool {
        !self.core.locks.of_handle(ino, handle).is_empty()
    }

    /// Returns a lock that conflicts with this one, if there is one.
    pub(crate) async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        lock: FileLock,
    ) -> Result<Option<LockFound>> {
        let open = self.core.files.handle(handle)?;
        open.state.lock().check()?;
        let FileLock { kind, mode, range, .. } = lock;
        let request = LockTest { ino: open.state.ino, kind, owner, range, mode };
        match self
            .core
            .ask(&Cred::default(), route(open.state.ino), Request::LockTest(request))
            .await?
            .reply
        {
            Reply::Lock(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }

    /// Race: it is not held here any more before the server is asked, so that a claim cannot bring
    /// it back.
    async fn give_back(&self, file: File, owner: u64, range: ByteRange) -> Result<()> {
        let Some((number, settled)) = self.core.locks.give_back(file, owner, range) else {
            return Ok(());
        };
        let (ino, kind) = file;
        let request = Request::Lock(Lock {
            ino,
            kind,
            owner,
            pid: 0,
            range,
            mode: None,
            wait: false,
            number,
            settled,
        });
        let answer = self.core.ask(&Cred::default(), route(ino), request).await;
        self.core.locks.settle(number);
        answer.map(drop)
    }

    async fn cancel(&self, ino: Ino, number: u64) {
        let settled = self.core.locks.state.lock().settled();
        let request = Request::LockCancel(LockCancel { number, settled });
        if let Err(error) = self.core.ask(&Cred::default(), route(ino), request).await {
            tracing::debug!(%error, "waiting for a lock was not cancelled");
        }
    }

    /// The request may reach the server after a cancel that was sent on another connection; then
    /// once more.
    async fn cancel_until_answered(&self, ino: Ino, number: u64) -> std::convert::Infallible {
        let mut pauses = Backoff::new(CANCEL_PAUSE_FIRST, CANCEL_PAUSE_MAX);
        loop {
            self.cancel(ino, number).await;
            sleep(pauses.draw(self.core.config.random.as_ref())).await;
        }
    }
}

/// Locks are with the shard where the file was born, wherever its name is.
fn route(ino: Ino) -> Route {
    Route::Shard(ino.shard())
}
