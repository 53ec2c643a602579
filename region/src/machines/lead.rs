//! The lead: it answers the front ends of other machines from the region in its memory.

use std::{collections::BTreeMap, mem, pin::pin, sync::Arc, time::Duration};

use base::{
    Decode as _, DecodeError, Encode as _, FsError, HashMap, HashSet, SessionId,
    limits::FRAME_BYTES_MAX,
};
use bytes::{Bytes, BytesMut};
use client::{FileLock, FileSystem, Handle, New};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Either, select},
    stream::FuturesUnordered,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    sync::{Notify, oneshot},
};
use wire::{
    FrameError, Stream,
    frame::{take_frame, try_put_frame},
};

use super::message::{self, Answer, Call, EVENT, Leave, Leaving, Wish};
use crate::Region;

/// Bytes that are read at once, where so many have come.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Bytes of answers that a front end has not taken, with which no more of its calls are read.
pub(super) const UNTAKEN_MAX: usize = 2 * FRAME_BYTES_MAX;

/// The front ends of a region. A clone is the same.
#[derive(Clone)]
pub struct Lead(Arc<Shared>);

struct Shared {
    region: Region,
    state: Mutex<State>,
    /// A machine has left, or has answered.
    changed: Notify,
}

#[derive(Default)]
struct State {
    machines: BTreeMap<SessionId, Machine>,
    /// Number of the last machine.
    last: u64,
    /// Number of the last question about leaving.
    asked: u64,
    /// Whether no more machines may join.
    ends: bool,
}

/// A front end as its lead knows it.
struct Machine {
    name: String,
    outbox: Arc<Outbox>,
    /// The answer to the last question: why it stays, if it does.
    said: Option<Option<String>>,
}

/// Frames for a front end.
#[derive(Default)]
pub(super) struct Outbox {
    frames: Mutex<Vec<u8>>,
    /// There are some.
    filled: Notify,
    /// All were taken.
    emptied: Notify,
}

/// The place of a front end that may be served.
pub struct Joined {
    lead: Lead,
    session: SessionId,
    outbox: Arc<Outbox>,
}

impl Lead {
    /// The lead of a region that is in this process.
    #[must_use]
    pub fn new(region: Region) -> Lead {
        region.is_shared();
        Lead(Arc::new(Shared { region, state: Mutex::default(), changed: Notify::new() }))
    }

    /// Lets a machine in, which has proven that it may come; `None` where no more may.
    #[must_use]
    pub fn join(&self, name: String) -> Option<Joined> {
        let mut state = self.0.state.lock();
        if state.ends {
            return None;
        }
        // Numbers of their own: this machine's programs are session 0.
        state.last += 1;
        let (session, outbox) = (SessionId(state.last), Arc::<Outbox>::default());
        let machine = Machine { name, outbox: Arc::clone(&outbox), said: None };
        state.machines.insert(session, machine);
        Some(Joined { lead: self.clone(), session, outbox })
    }

    /// Lets no more machines join, as the region ends, or lets them again.
    pub fn ends(&self, ends: bool) {
        self.0.state.lock().ends = ends;
    }

    /// Whether no more machines may join.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.0.state.lock().ends
    }

    /// The names of the machines that have joined.
    #[must_use]
    pub fn machines(&self) -> Vec<String> {
        self.0.state.lock().machines.values().map(|machine| machine.name.clone()).collect()
    }

    /// Tells all other machines what is wanted of them. Returns when all have left, or have answered,
    /// or time is up.
    ///
    /// # Errors
    /// Why machines stay, by machine.
    pub async fn ask(&self, wish: Wish, within: Duration) -> Result<(), Vec<String>> {
        {
            let mut state = self.0.state.lock();
            state.asked += 1;
            let leave = Leave { number: state.asked, wish };
            for machine in state.machines.values_mut() {
                machine.said = None;
                machine.outbox.put(EVENT, &Answer::Leave(leave));
            }
        }
        let answered = async {
            loop {
                let mut changed = pin!(self.0.changed.notified());
                changed.as_mut().enable();
                if self.0.state.lock().machines.values().all(|machine| machine.said.is_some()) {
                    return;
                }
                changed.await;
            }
        };
        drop(tokio::time::timeout(within, answered).await);
        let state = self.0.state.lock();
        let stays = |machine: &Machine| {
            let why = match &machine.said {
                Some(None) => return None,
                Some(Some(why)) => why,
                None => "it does not answer",
            };
            Some(format!("{}: {why}", machine.name))
        };
        let reasons: Vec<_> = state.machines.values().filter_map(stays).collect();
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }
}

impl Outbox {
    fn put(&self, number: u64, answer: &Answer) {
        let mut frames = self.frames.lock();
        let fill = |out: &mut Vec<u8>, answer: &Answer| {
            number.encode(out);
            answer.encode(out);
        };
        if !try_put_frame(&mut frames, |out| fill(out, answer)) {
            let fits =
                try_put_frame(&mut frames, |out| fill(out, &Answer::Failed(FsError::TooBig)));
            debug_assert!(fits, "an error is short");
        }
        drop(frames);
        self.filled.notify_one();
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes() >= UNTAKEN_MAX
    }

    /// Bytes that are there to be taken.
    pub(super) fn bytes(&self) -> usize {
        self.frames.lock().len()
    }

    async fn send(&self, mut to: WriteHalf<impl Stream>) {
        let mut out = Vec::new();
        loop {
            mem::swap(&mut out, &mut self.frames.lock());
            if out.is_empty() {
                self.filled.notified().await;
                continue;
            }
            self.emptied.notify_one();
            if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
                return;
            }
            out.clear();
        }
    }
}

impl Joined {
    #[cfg(test)]
    pub(super) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }

    /// Answers the front end until its connection ends; then what it had open and locked is free.
    ///
    /// Must be polled to its end: an operation that is under way is not given up halfway.
    pub async fn serve(self, stream: impl Stream + 'static) {
        let (from, to) = split(stream);
        let region = self.lead.0.region.of(self.session);
        let session = Arc::new(Session { region, handles: Mutex::default() });
        let mut work = Work::default();
        {
            let receiving = Box::pin(self.receive(from, &session, &mut work));
            match select(Box::pin(self.outbox.send(to)), receiving).await {
                Either::Left(((), _)) => {}
                Either::Right((Ok(()), _)) => {}
                Either::Right((Err(error), _)) => {
                    tracing::warn!(%error, "a front end speaks another language");
                }
            }
        }
        // Waits for locks there are in vain.
        work.waits.clear();
        while work.under_way.next().await.is_some() {}
        let handles = mem::take(&mut *session.handles.lock());
        for handle in handles {
            // A region that answers no more keeps nothing open for others.
            drop(session.region.release(handle).await);
        }
    }

    async fn receive(
        &self,
        mut from: ReadHalf<impl Stream>,
        session: &Arc<Session>,
        work: &mut Work,
    ) -> Result<(), FrameError> {
        let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
        loop {
            while let Some(frame) = take_frame(&mut buffer)? {
                self.called(&frame, session, work)?;
            }
            if self.outbox.is_full() {
                // Others must not wait for what this one does not take: its operations go on.
                let emptied = pin!(self.outbox.emptied.notified());
                let answered = match select(emptied, pin!(work.next())).await {
                    Either::Left(_) => None,
                    Either::Right((answered, _)) => answered,
                };
                self.answered(answered, work);
                continue;
            }
            let read = pin!(from.read_buf(&mut buffer));
            let answered = match select(read, pin!(work.next())).await {
                Either::Left((Ok(1..), _)) => None,
                Either::Left((Ok(0) | Err(_), _)) => return Ok(()),
                Either::Right((answered, _)) => answered,
            };
            self.answered(answered, work);
        }
    }

    /// Sends an answer, and all others that are there.
    fn answered(&self, mut answered: Option<(u64, Answer)>, work: &mut Work) {
        while let Some((number, answer)) = answered {
            work.waits.remove(&number);
            self.outbox.put(number, &answer);
            answered = work.under_way.next().now_or_never().flatten();
        }
    }

    fn called(
        &self,
        frame: &Bytes,
        session: &Arc<Session>,
        work: &mut Work,
    ) -> Result<(), DecodeError> {
        let (number, call) = <(u64, Call)>::from_bytes(frame)?;
        let (wait, interrupted) = oneshot::channel();
        match call {
            Call::Interrupt(number) => {
                work.waits.remove(&number);
                return Ok(());
            }
            Call::Leaving(Leaving { number, stays }) => {
                let mut state = self.lead.0.state.lock();
                if number == state.asked
                    && let Some(machine) = state.machines.get_mut(&self.session)
                {
                    machine.said = Some(stays);
                }
                drop(state);
                self.lead.0.changed.notify_waiters();
                return Ok(());
            }
            Call::LockWait(_) => {
                work.waits.insert(number, wait);
            }
            _ => {}
        }
        let session = Arc::clone(session);
        let mut answering: BoxFuture<'static, (u64, Answer)> =
            Box::pin(async move { (number, session.answer(call, interrupted).await) });
        // Most are answered from memory, at once.
        match answering.as_mut().now_or_never() {
            Some((number, answer)) => {
                work.waits.remove(&number);
                self.outbox.put(number, &answer);
            }
            None => work.under_way.push(answering),
        }
        Ok(())
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.lead.0.state.lock().machines.remove(&self.session);
        self.lead.0.changed.notify_waiters();
    }
}

/// Operations of a front end that are not answered yet.
#[derive(Default)]
struct Work {
    under_way: FuturesUnordered<BoxFuture<'static, (u64, Answer)>>,
    /// Waits for locks among them; each ends when its sender is dropped.
    waits: HashMap<u64, oneshot::Sender<()>>,
}

impl Work {
    /// The next answer; waits for ever where nothing is under way.
    async fn next(&mut self) -> Option<(u64, Answer)> {
        if self.under_way.is_empty() {
            futures::future::pending::<()>().await;
        }
        self.under_way.next().await
    }
}

/// The region as a front end sees it.
struct Session {
    region: Region,
    /// Files that it has opened: it may use no others.
    handles: Mutex<HashSet<Handle>>,
}

impl Session {
    async fn answer(&self, call: Call, interrupted: oneshot::Receiver<()>) -> Answer {
        match self.result(call, interrupted).await {
            Ok(answer) => answer,
            Err(error) => Answer::Failed(error.as_fs()),
        }
    }

    fn handle(&self, handle: u64) -> client::Result<Handle> {
        let handle = Handle(handle);
        let is_own = self.handles.lock().contains(&handle);
        if is_own { Ok(handle) } else { Err(FsError::BadHandle.into()) }
    }

    fn opened(&self, handle: Handle) -> u64 {
        self.handles.lock().insert(handle);
        handle.0
    }

    async fn result(
        &self,
        call: Call,
        interrupted: oneshot::Receiver<()>,
    ) -> client::Result<Answer> {
        let region = &self.region;
        // Permissions are those of the kernel of the front end.
        let cred = &base::Cred::ROOT;
        let done = |()| Answer::Done;
        Ok(match call {
            Call::Lookup(at) => Answer::Entry(region.lookup(cred, &at.dir, &at.name).await?),
            Call::Getattr(node) => Answer::Attr(region.getattr(cred, &node).await?),
            Call::Setattr(asked) => {
                Answer::Attr(region.setattr(cred, &asked.node, asked.set).await?)
            }
            Call::Readlink(file) => Answer::Bytes(region.readlink(cred, &file).await?),
            Call::Create(asked) => {
                let message::Create { cred, at, kind, mode, rdev, exclusive, open } = asked;
                let new = New { kind, mode, rdev };
                let made = region.create(&cred, &at.dir, &at.name, new, exclusive, open).await?;
                let handle = made.handle.map(|handle| self.opened(handle));
                Answer::Made(message::Made { entry: made.entry, existed: made.existed, handle })
            }
            Call::Tmpfile(message::Tmpfile { cred, dir, mode, linkable }) => {
                let made = region.tmpfile(&cred, &dir, mode, linkable).await?;
                let handle = self.opened(made.handle);
                Answer::Unnamed(message::Unnamed { file: made.file, attr: made.attr, handle })
            }
            Call::Mkdir(message::Mkdir { cred, at, mode }) => {
                Answer::Entry(region.mkdir(&cred, &at.dir, &at.name, mode).await?)
            }
            Call::Symlink(message::Symlink { cred, at, target }) => {
                Answer::Entry(region.symlink(&cred, &at.dir, &at.name, target).await?)
            }
            Call::Link(message::Link { target, at }) => {
                Answer::Entry(region.link(cred, &target, &at.dir, &at.name).await?)
            }
            Call::Unlink(at) => Answer::Attr(region.unlink(cred, &at.dir, &at.name).await?),
            Call::Rmdir(at) => Answer::Ino(region.rmdir(cred, &at.dir, &at.name).await?),
            Call::Rename(message::Rename { from, to, mode }) => {
                let (from, to) = ((&from.dir, &from.name), (&to.dir, &to.name));
                Answer::Renamed(region.rename(cred, from, to, mode).await?)
            }
            Call::Readdir(message::Readdir { dir, after, entries_max, plus }) => {
                Answer::Page(region.readdir(cred, &dir, after, entries_max, plus).await?)
            }
            Call::Open(file) => {
                let handle = region.open(cred, &file, None).await?;
                let handle = Handle(self.opened(handle));
                let attr = region.opened_attr(handle).ok_or(FsError::Stale)?;
                Answer::Opened(message::Opened { handle: handle.0, attr })
            }
            Call::Read(message::Read { handle, offset, len }) => {
                let len = len.min(READ_MAX);
                Answer::Bytes(region.read(self.handle(handle)?, offset, len).await?)
            }
            Call::Write(message::Write { handle, offset, data, clear_set_id }) => {
                region.write(self.handle(handle)?, offset, data, clear_set_id).await.map(done)?
            }
            Call::Flush(handle) => region.flush(self.handle(handle)?).await.map(done)?,
            Call::Fsync(handle) => region.fsync(self.handle(handle)?).await.map(done)?,
            Call::Release(handle) => {
                let handle = self.handle(handle)?;
                self.handles.lock().remove(&handle);
                region.release(handle).await.map(done)?
            }
            Call::Lock(asked) => {
                let (handle, lock) = (self.handle(asked.handle)?, lock(asked));
                FileSystem::lock(region, handle, asked.owner, lock).await.map(done)?
            }
            Call::LockWait(asked) => {
                let (handle, lock) = (self.handle(asked.handle)?, lock(asked));
                let interrupted = interrupted.map(drop);
                region.lock_wait(handle, asked.owner, lock, interrupted).await.map(done)?
            }
            Call::Unlock(message::Unlock { handle, owner, kind, range }) => {
                region.unlock(self.handle(handle)?, owner, kind, range).await.map(done)?
            }
            Call::UnlockClosed(message::Owned { handle, owner }) => {
                region.unlock_closed(self.handle(handle)?, owner).await.map(done)?
            }
            Call::FindLock(asked) => {
                let (handle, lock) = (self.handle(asked.handle)?, lock(asked));
                Answer::LockFound(region.find_lock(handle, asked.owner, lock).await?)
            }
            Call::Sync => region.sync().await.map(done)?,
            Call::SyncDir(dir) => region.sync_dir(&dir).await.map(done)?,
            Call::Xattrs(node) => Answer::Xattrs(region.xattrs(cred, &node).await?),
            Call::Setxattr(message::Setxattr { node, name, value, mode }) => {
                region.setxattr(cred, &node, name, value, mode).await.map(done)?
            }
            Call::Removexattr(message::Removexattr { node, name }) => {
                region.removexattr(cred, &node, name).await.map(done)?
            }
            Call::Allocate(message::Allocate { handle, offset, len, mode, clear_set_id }) => {
                let handle = self.handle(handle)?;
                region.allocate(handle, offset, len, mode, clear_set_id).await.map(done)?
            }
            Call::Seek(message::Seek { handle, offset, to }) => {
                Answer::Offset(region.seek(self.handle(handle)?, offset, to).await?)
            }
            Call::Search(ino) => Answer::Node(region.search(ino).await?),
            Call::Statfs => Answer::Statfs(region.statfs().await?),
            Call::Info(node) => Answer::Info(region.info(&node).await?),
            Call::Progress => Answer::Progress(region.progress().into()),
            // Both need no answer.
            Call::Interrupt(_) | Call::Leaving(_) => Answer::Done,
        })
    }
}

/// Most bytes of one read.
const READ_MAX: u32 = 4 << 20;

fn lock(asked: message::Lock) -> FileLock {
    let message::Lock { kind, mode, range, pid, .. } = asked;
    FileLock { kind, mode, range, pid }
}
