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

mod held;

use std::{pin::pin, sync::Arc, time::Duration};

use base::{Backoff, ByteRange, Cred, FsError, Ino, LockKind};
use futures::future::{Either, select};
use tokio::time::sleep;
use wire::{Lock, LockCancel, LockFound, LockTest, Reply, Request, Stand};

pub(crate) use self::held::Locks;
use self::held::{Asked, File};
use crate::{Client, FileLock, Handle, Result, done::Failure, error::unexpected, route::Route};

/// Between two attempts to wait no longer, at first and at most.
const CANCEL_PAUSE_FIRST: Duration = Duration::from_millis(20);
const CANCEL_PAUSE_MAX: Duration = Duration::from_secs(1);

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
            let given = answer.and_then(|done| {
                let has = || self.core.has(done.run.server, asked.file.0);
                self.core.locks.given(&asked, done.run, has)
            });
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
        let settled = self.core.locks.settled();
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
