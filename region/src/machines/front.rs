//! A front end: the file system of a machine whose region is in the memory of another one.

use std::{mem, sync::Arc};

use base::{
    Access, Attr, ByteRange, Cred, Decode, Encode as _, EntryName, FsError, HashMap, HashSet, Ino,
    LockKind, SetAttr,
};
use bytes::{Bytes, BytesMut};
use client::{Error, FileLock, FileSystem, Handle, Made, New, Result, Unnamed};
use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    sync::{Notify, oneshot, watch},
};
use wire::{
    AllocateMode, DirRef, Entry, FileRef, FrameError, LockFound, NodeRef, ReaddirPage, RenameMode,
    Renamed, SeekTo, Statfs, Stream, XattrMode,
    frame::{take_frame, try_put_frame},
};

use super::message::{self, Answer, Call, EVENT, Leave, Leaving, Named, Wish};
use crate::Progress;

/// A region of another machine. A clone is the same one.
#[derive(Clone)]
pub struct Front(Arc<Shared>);

struct Shared {
    root: Attr,
    state: Mutex<State>,
    /// There is something to send, or nothing any more.
    send: Notify,
    /// The wish of the lead, until it was answered.
    leave: watch::Sender<Option<Leave>>,
}

#[derive(Default)]
struct State {
    /// Frames to be sent.
    out: Vec<u8>,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// Attributes of open files, as their opens found them.
    opened: HashMap<Handle, Attr>,
    /// Owners that may have locks.
    lockers: HashSet<u64>,
    last: u64,
    ended: bool,
}

impl Front {
    /// A front end over a connection that a lead has accepted, and what carries its messages: that
    /// must be polled, and ends when the connection does. `root` has the attributes of the region's
    /// directory.
    pub fn over<S: Stream + 'static>(
        stream: S,
        root: Attr,
    ) -> (Front, impl Future<Output = ()> + Send + use<S>) {
        let state = Mutex::new(State { last: EVENT, ..State::default() });
        let shared = Shared { root, state, send: Notify::new(), leave: watch::Sender::new(None) };
        let front = Front(Arc::new(shared));
        let carried = front.clone();
        let carry = async move {
            let (from, to) = split(stream);
            let (sending, receiving) = (carried.sends(to), carried.receives(from));
            match select(Box::pin(sending), Box::pin(receiving)).await {
                Either::Left(((), _)) | Either::Right(((), _)) => carried.close(),
            }
        };
        (front, carry)
    }

    /// Leaves: operations fail from now on, and the connection ends.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        // Operations that wait hear that there is no answer.
        state.waiting.clear();
        drop(state);
        self.0.send.notify_one();
    }

    /// Waits until the lead wants something of this front end.
    pub async fn wish(&self) -> Wish {
        let mut leave = self.0.leave.subscribe();
        match leave.wait_for(Option::is_some).await.map(|leave| *leave) {
            Ok(Some(leave)) => leave.wish,
            // The lead is asked no more once there is no other half.
            Ok(None) | Err(_) => Wish::Must,
        }
    }

    /// Answers a wish: why this front end stays, or that nothing keeps it. A newer wish stands.
    pub fn answer(&self, wish: Wish, stays: Option<String>) {
        let mut number = None;
        self.0.leave.send_if_modified(|leave| {
            if leave.is_some_and(|leave| leave.wish == wish) {
                number = leave.take().map(|leave| leave.number);
            }
            number.is_some()
        });
        if let Some(number) = number {
            drop(self.send(&Call::Leaving(Leaving { number, stays })));
        }
    }

    /// How far the region is.
    ///
    /// # Errors
    /// When the lead does not answer.
    pub async fn progress(&self) -> Result<Progress> {
        match self.call(Call::Progress).await? {
            Answer::Progress(far) => Ok(far.into()),
            other => Err(unexpected(&other)),
        }
    }

    async fn sends(&self, mut to: WriteHalf<impl Stream>) {
        let mut out = Vec::new();
        loop {
            {
                let mut state = self.0.state.lock();
                mem::swap(&mut out, &mut state.out);
                if state.ended {
                    return;
                }
            }
            if out.is_empty() {
                self.0.send.notified().await;
                continue;
            }
            if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
                return;
            }
            out.clear();
        }
    }

    async fn receives(&self, mut from: ReadHalf<impl Stream>) {
        let mut buffer = BytesMut::with_capacity(super::lead::BUFFER_BYTES);
        loop {
            if let Err(error) = self.all_answered(&mut buffer) {
                tracing::error!(%error, "the lead answers in another language");
                return;
            }
            if !matches!(from.read_buf(&mut buffer).await, Ok(1..)) {
                return;
            }
        }
    }

    /// Hands on all answers that have arrived.
    fn all_answered(&self, buffer: &mut BytesMut) -> std::result::Result<(), FrameError> {
        while let Some(frame) = take_frame(buffer)? {
            let (number, answer) = Decode::from_bytes(&frame)?;
            self.answered(number, answer);
        }
        Ok(())
    }

    fn answered(&self, number: u64, answer: Answer) {
        match answer {
            Answer::Leave(leave) if number == EVENT => {
                self.0.leave.send_replace(Some(leave));
            }
            answer => {
                let waiting = self.0.state.lock().waiting.remove(&number);
                if let Some(waiting) = waiting
                    && let Err(unwanted) = waiting.send(answer)
                {
                    self.give_back(&unwanted);
                }
            }
        }
    }

    /// Closes what was opened for somebody who has not waited for it.
    fn give_back(&self, unwanted: &Answer) {
        let handle = match unwanted {
            Answer::Made(made) => made.handle,
            Answer::Unnamed(unnamed) => Some(unnamed.handle),
            Answer::Opened(opened) => Some(opened.handle),
            _ => None,
        };
        if let Some(handle) = handle {
            drop(self.send(&Call::Release(handle)));
        }
    }

    /// Sends a message; its number, and where the answer arrives.
    fn send(&self, call: &Call) -> Result<(u64, oneshot::Receiver<Answer>)> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.0.state.lock();
        if state.ended {
            return Err(Error::SessionLost);
        }
        state.last += 1;
        let number = state.last;
        let was_empty = state.out.is_empty();
        let fits = try_put_frame(&mut state.out, |out| {
            number.encode(out);
            call.encode(out);
        });
        if !fits {
            return Err(FsError::Invalid.into());
        }
        if !matches!(call, Call::Interrupt(_) | Call::Leaving(_)) {
            state.waiting.insert(number, answer);
        }
        drop(state);
        if was_empty {
            self.0.send.notify_one();
        }
        Ok((number, answered))
    }

    async fn call(&self, call: Call) -> Result<Answer> {
        let (_, answered) = self.send(&call)?;
        drop(call);
        result(answered.await)
    }

    async fn done(&self, call: Call) -> Result<()> {
        match self.call(call).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn attr(&self, call: Call) -> Result<Attr> {
        match self.call(call).await? {
            Answer::Attr(attr) => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }

    async fn bytes(&self, call: Call) -> Result<Bytes> {
        match self.call(call).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    async fn entry(&self, call: Call) -> Result<Entry> {
        match self.call(call).await? {
            Answer::Entry(entry) => Ok(entry),
            other => Err(unexpected(&other)),
        }
    }

    fn is_open(&self, handle: u64, attr: Attr) -> Handle {
        self.0.state.lock().opened.insert(Handle(handle), attr);
        Handle(handle)
    }
}

fn result(answered: std::result::Result<Answer, oneshot::error::RecvError>) -> Result<Answer> {
    match answered {
        Ok(Answer::Failed(error)) => Err(error.into()),
        Ok(answer) => Ok(answer),
        Err(_) => Err(Error::SessionLost),
    }
}

fn unexpected(answer: &Answer) -> Error {
    tracing::error!(?answer, "the lead has answered something else");
    FsError::Io.into()
}

fn named(dir: &DirRef, name: &EntryName) -> Named {
    Named { dir: *dir, name: name.clone() }
}

fn lock(handle: Handle, owner: u64, lock: FileLock) -> message::Lock {
    let FileLock { kind, mode, range, pid } = lock;
    message::Lock { handle: handle.0, owner, kind, mode, range, pid }
}

/// Has the lead give a wait up when whoever waits is gone.
struct Waits<'a> {
    front: &'a Front,
    number: u64,
    is_over: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.front.send(&Call::Interrupt(self.number)));
        }
    }
}

impl FileSystem for Front {
    fn root(&self) -> (DirRef, Attr) {
        (DirRef::ROOT, self.0.root)
    }

    async fn lookup(&self, _: &Cred, dir: &DirRef, name: &EntryName) -> Result<Entry> {
        self.entry(Call::Lookup(named(dir, name))).await
    }

    async fn getattr(&self, _: &Cred, node: &NodeRef) -> Result<Attr> {
        self.attr(Call::Getattr(node.clone())).await
    }

    async fn setattr(&self, _: &Cred, node: &NodeRef, set: SetAttr) -> Result<Attr> {
        self.attr(Call::Setattr(message::Setattr { node: node.clone(), set })).await
    }

    async fn readlink(&self, _: &Cred, file: &FileRef) -> Result<Bytes> {
        self.bytes(Call::Readlink(file.clone())).await
    }

    async fn create(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        new: New,
        exclusive: bool,
        open: bool,
    ) -> Result<Made> {
        let New { kind, mode, rdev } = new;
        let (cred, at) = (cred.clone(), named(dir, name));
        let create = message::Create { cred, at, kind, mode, rdev, exclusive, open };
        match self.call(Call::Create(create)).await? {
            Answer::Made(message::Made { entry, existed, handle }) => {
                let handle = handle.map(|handle| self.is_open(handle, entry.attr));
                Ok(Made { entry, existed, handle })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn tmpfile(
        &self,
        cred: &Cred,
        dir: &DirRef,
        mode: u32,
        linkable: bool,
    ) -> Result<Unnamed> {
        let tmpfile = message::Tmpfile { cred: cred.clone(), dir: *dir, mode, linkable };
        match self.call(Call::Tmpfile(tmpfile)).await? {
            Answer::Unnamed(message::Unnamed { file, attr, handle }) => {
                Ok(Unnamed { file, attr, handle: self.is_open(handle, attr) })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn mkdir(&self, cred: &Cred, dir: &DirRef, name: &EntryName, mode: u32) -> Result<Entry> {
        let mkdir = message::Mkdir { cred: cred.clone(), at: named(dir, name), mode };
        self.entry(Call::Mkdir(mkdir)).await
    }

    async fn symlink(
        &self,
        cred: &Cred,
        dir: &DirRef,
        name: &EntryName,
        target: Bytes,
    ) -> Result<Entry> {
        let symlink = message::Symlink { cred: cred.clone(), at: named(dir, name), target };
        self.entry(Call::Symlink(symlink)).await
    }

    async fn link(
        &self,
        _: &Cred,
        target: &NodeRef,
        dir: &DirRef,
        name: &EntryName,
    ) -> Result<Entry> {
        let link = message::Link { target: target.clone(), at: named(dir, name) };
        self.entry(Call::Link(link)).await
    }

    async fn unlink(&self, _: &Cred, dir: &DirRef, name: &EntryName) -> Result<Attr> {
        self.attr(Call::Unlink(named(dir, name))).await
    }

    async fn rmdir(&self, _: &Cred, dir: &DirRef, name: &EntryName) -> Result<Ino> {
        match self.call(Call::Rmdir(named(dir, name))).await? {
            Answer::Ino(ino) => Ok(ino),
            other => Err(unexpected(&other)),
        }
    }

    async fn rename(
        &self,
        _: &Cred,
        from: (&DirRef, &EntryName),
        to: (&DirRef, &EntryName),
        mode: RenameMode,
    ) -> Result<Renamed> {
        let (from, to) = (named(from.0, from.1), named(to.0, to.1));
        match self.call(Call::Rename(message::Rename { from, to, mode })).await? {
            Answer::Renamed(renamed) => Ok(renamed),
            other => Err(unexpected(&other)),
        }
    }

    async fn readdir(
        &self,
        _: &Cred,
        dir: &DirRef,
        after: u64,
        entries_max: u32,
        plus: bool,
    ) -> Result<ReaddirPage> {
        let readdir = message::Readdir { dir: *dir, after, entries_max, plus };
        match self.call(Call::Readdir(readdir)).await? {
            Answer::Page(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    async fn open(&self, _: &Cred, file: &FileRef, _: Option<Access>) -> Result<Handle> {
        match self.call(Call::Open(file.clone())).await? {
            Answer::Opened(message::Opened { handle, attr }) => Ok(self.is_open(handle, attr)),
            other => Err(unexpected(&other)),
        }
    }

    fn opened_attr(&self, handle: Handle) -> Option<Attr> {
        self.0.state.lock().opened.get(&handle).copied()
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Bytes> {
        self.bytes(Call::Read(message::Read { handle: handle.0, offset, len })).await
    }

    async fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: Bytes,
        clear_set_id: bool,
    ) -> Result<()> {
        let write = message::Write { handle: handle.0, offset, data, clear_set_id };
        self.done(Call::Write(write)).await
    }

    async fn flush(&self, handle: Handle) -> Result<()> {
        self.done(Call::Flush(handle.0)).await
    }

    async fn fsync(&self, handle: Handle) -> Result<()> {
        self.done(Call::Fsync(handle.0)).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.0.state.lock().opened.remove(&handle);
        self.done(Call::Release(handle.0)).await
    }

    async fn lock(&self, handle: Handle, owner: u64, asked: FileLock) -> Result<()> {
        self.0.state.lock().lockers.insert(owner);
        self.done(Call::Lock(lock(handle, owner, asked))).await
    }

    async fn lock_wait(
        &self,
        handle: Handle,
        owner: u64,
        asked: FileLock,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        self.0.state.lock().lockers.insert(owner);
        let (number, mut answered) = self.send(&Call::LockWait(lock(handle, owner, asked)))?;
        let mut waits = Waits { front: self, number, is_over: false };
        let answer = match select(&mut answered, std::pin::pin!(interrupted)).await {
            Either::Left((answer, _)) => answer,
            // The lock may be there by now: the answer says so.
            Either::Right(((), _)) => {
                drop(self.send(&Call::Interrupt(number)));
                answered.await
            }
        };
        waits.is_over = true;
        match result(answer)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn unlock(
        &self,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        range: ByteRange,
    ) -> Result<()> {
        self.done(Call::Unlock(message::Unlock { handle: handle.0, owner, kind, range })).await
    }

    async fn unlock_closed(&self, handle: Handle, owner: u64) -> Result<()> {
        if !self.0.state.lock().lockers.contains(&owner) {
            return Ok(());
        }
        self.done(Call::UnlockClosed(message::Owned { handle: handle.0, owner })).await
    }

    async fn find_lock(
        &self,
        handle: Handle,
        owner: u64,
        asked: FileLock,
    ) -> Result<Option<LockFound>> {
        match self.call(Call::FindLock(lock(handle, owner, asked))).await? {
            Answer::LockFound(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    async fn sync(&self) -> Result<()> {
        self.done(Call::Sync).await
    }

    async fn sync_dir(&self, dir: &DirRef) -> Result<()> {
        self.done(Call::SyncDir(*dir)).await
    }

    async fn xattrs(&self, _: &Cred, node: &NodeRef) -> Result<Vec<(Bytes, Bytes)>> {
        match self.call(Call::Xattrs(node.clone())).await? {
            Answer::Xattrs(xattrs) => Ok(xattrs),
            other => Err(unexpected(&other)),
        }
    }

    async fn setxattr(
        &self,
        _: &Cred,
        node: &NodeRef,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let setxattr = message::Setxattr { node: node.clone(), name, value, mode };
        self.done(Call::Setxattr(setxattr)).await
    }

    async fn removexattr(&self, _: &Cred, node: &NodeRef, name: Bytes) -> Result<()> {
        let removexattr = message::Removexattr { node: node.clone(), name };
        self.done(Call::Removexattr(removexattr)).await
    }

    async fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: AllocateMode,
        clear_set_id: bool,
    ) -> Result<()> {
        let allocate = message::Allocate { handle: handle.0, offset, len, mode, clear_set_id };
        self.done(Call::Allocate(allocate)).await
    }

    async fn seek(&self, handle: Handle, offset: u64, to: SeekTo) -> Result<u64> {
        match self.call(Call::Seek(message::Seek { handle: handle.0, offset, to })).await? {
            Answer::Offset(offset) => Ok(offset),
            other => Err(unexpected(&other)),
        }
    }

    async fn search(&self, ino: Ino) -> Result<NodeRef> {
        match self.call(Call::Search(ino)).await? {
            Answer::Node(node) => Ok(node),
            other => Err(unexpected(&other)),
        }
    }

    async fn statfs(&self) -> Result<Statfs> {
        match self.call(Call::Statfs).await? {
            Answer::Statfs(statfs) => Ok(statfs),
            other => Err(unexpected(&other)),
        }
    }

    async fn info(&self, node: &NodeRef) -> Result<Vec<(String, String)>> {
        match self.call(Call::Info(node.clone())).await? {
            Answer::Info(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }
}
