//! One connection, as a core sees it: whose it is, and the replies that wait to be sent.

use std::{
    cell::{Cell, Ref, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
};

use base::{Decode as _, Encode as _, FsError, SessionId};
use bytes::Bytes;
use tokio::sync::Notify;
use wire::{Answer, Binding, IdMapping, ReplyHeader, frame};

use crate::session::Session;

/// Most bytes of replies that a client has not read: with more, the server stops reading from it.
const BUFFERED_BYTES_MAX: usize = 16 << 20;
/// Most bytes of blocks on their way: with more, the server stops reading from the client.
const MOVING_BYTES_MAX: usize = 64 << 20;
/// Most requests of a connection that wait at a time: for locks, for other servers, for stable
/// storage. For one more the answer is to ask again. The connection is still read, as its next
/// request may end the waiting.
pub(crate) const WAITING_MAX: usize = 8192;

/// One connection, as the core sees it.
pub(crate) struct Connection {
    session: RefCell<Option<Arc<Session>>>,
    /// How ids of the session become those of the file system; `None`: they are the same.
    ids: RefCell<Option<Rc<IdMapping>>>,
    /// The session as lines of the audit log name it; empty without a log.
    audited: RefCell<Vec<u8>>,
    /// The server at the other end; `None` for a client.
    peer: Cell<Option<Peer>>,
    /// The number that a dialling server must prove itself with, once.
    challenge: Cell<Option<u128>>,
    pub(super) out: RefCell<Vec<u8>>,
    /// Number of bytes of `out` that may be sent.
    pub(super) ready: Cell<usize>,
    pub(super) wake: Notify,
    pub(super) drained: Notify,
    pub(super) closed: Cell<bool>,
    /// Bytes of blocks that are being put or got for this connection.
    moving: Cell<usize>,
    /// Number of requests of this connection that wait.
    waiting: Cell<usize>,
    origin: Origin,
    core: usize,
}

/// The server at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) server: u16,
    /// Number of its run.
    pub(crate) run: u64,
    /// Generation of its process; 0: it has none yet.
    pub(crate) generation: u64,
}

/// How a connection has come.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// From a client in this process, which stores blocks itself.
    Near,
    /// Over the network, with the address of the other end where that is known, and the
    /// connection's own value where it is encrypted.
    Network(Option<SocketAddr>, Option<Binding>),
}

impl Connection {
    pub(super) fn new(core: usize, origin: Origin) -> Connection {
        Connection {
            session: RefCell::default(),
            ids: RefCell::default(),
            audited: RefCell::default(),
            peer: Cell::new(None),
            challenge: Cell::new(None),
            out: RefCell::default(),
            ready: Cell::new(0),
            wake: Notify::new(),
            drained: Notify::new(),
            closed: Cell::new(false),
            moving: Cell::new(0),
            waiting: Cell::new(0),
            origin,
            core,
        }
    }

    /// The core that the connection stays on.
    pub(crate) fn core(&self) -> usize {
        self.core
    }

    /// Whether the client is in this process, and stores blocks itself.
    pub(crate) fn is_near(&self) -> bool {
        matches!(self.origin, Origin::Near)
    }

    /// The connection's own value; `None`: the connection is not encrypted.
    pub(crate) fn binding(&self) -> Option<Binding> {
        match self.origin {
            Origin::Near => None,
            Origin::Network(_, binding) => binding,
        }
    }

    /// The address of the other end, if it is known.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self.origin {
            Origin::Near => None,
            Origin::Network(address, _) => address,
        }
    }

    /// The session as lines of the audit log name it.
    pub(crate) fn audited(&self) -> Ref<'_, Vec<u8>> {
        self.audited.borrow()
    }

    /// Sets what lines of the audit log say of the session.
    pub(crate) fn is_audited_as(&self, session: Vec<u8>) {
        self.audited.replace(session);
    }

    /// The session that the connection introduced itself with.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.session.borrow().clone()
    }

    /// Whether the connection still belongs to `session`.
    pub(crate) fn is_of(&self, session: Option<&Arc<Session>>) -> bool {
        self.session.borrow().as_ref().map(Arc::as_ptr) == session.map(Arc::as_ptr)
    }

    /// The server at the other end; `None` for a client.
    pub(crate) fn peer(&self) -> Option<u16> {
        self.peer.get().map(|peer| peer.server)
    }

    /// The process of the server at the other end.
    pub(crate) fn run_of_peer(&self) -> Option<Peer> {
        self.peer.get()
    }

    /// Sets the number that the dialling server must prove itself with. An earlier number is void.
    pub(crate) fn challenge(&self, challenge: u128) {
        self.challenge.set(Some(challenge));
    }

    /// Takes the number that the proof must be about, if one was given.
    pub(crate) fn take_challenge(&self) -> Option<u128> {
        self.challenge.take()
    }

    /// Notes that the other end is a server, which has proven itself.
    pub(crate) fn is_of_peer(&self, peer: Peer) {
        self.peer.set(Some(peer));
    }

    pub(super) fn is_introduced(&self) -> bool {
        self.peer.get().is_some() || self.session.borrow().is_some()
    }

    /// Notes that the connection's session was heard of.
    pub(crate) fn heard(&self) {
        if let Some(session) = &*self.session.borrow() {
            session.heard();
        }
    }

    /// The id of the connection's session; 0 before there is one.
    pub(crate) fn session_id(&self) -> SessionId {
        self.session.borrow().as_ref().map_or(SessionId(0), |session| session.id)
    }

    /// How ids of the session become those of the file system; `None`: they are the same.
    pub(crate) fn ids(&self) -> Option<Rc<IdMapping>> {
        self.ids.borrow().clone()
    }

    /// Whether a session with these ids may join the connection. All sessions of one connection
    /// have the same: answers to the one before may still be on their way.
    pub(crate) fn may_join(&self, ids: Option<&IdMapping>) -> bool {
        self.session.borrow().is_none() || self.ids.borrow().as_deref() == ids
    }

    /// Makes the connection belong to `session`, which has these ids, from now on.
    pub(crate) fn join(&self, session: Arc<Session>, ids: Option<IdMapping>) {
        session.count_connection(true);
        self.ids.replace(ids.map(Rc::new));
        if let Some(before) = self.session.replace(Some(session)) {
            before.count_connection(false);
        }
    }

    /// Appends a reply to the buffer; it leaves with [`Connection::send`]. The header's version
    /// must have been read before everything that the answer says: a client believes that nothing
    /// changed up to it.
    ///
    /// Answers to a session whose ids are mapped are mapped here, and nowhere else.
    pub(crate) fn reply(&self, header: ReplyHeader, answer: &Answer) {
        match &*self.ids.borrow() {
            Some(ids) if ids.maps() => {
                let mut shown = answer.clone();
                ids.show(&mut shown);
                self.put(header, |out| shown.encode(out));
            }
            Some(_) | None => self.put(header, |out| answer.encode(out)),
        }
    }

    /// Like [`Connection::reply`], for an answer that is encoded already.
    pub(crate) fn reply_encoded(&self, header: ReplyHeader, answer: &[u8]) {
        if self.ids.borrow().as_ref().is_some_and(|ids| ids.maps()) {
            let answer = Answer::from_bytes(&Bytes::copy_from_slice(answer));
            return self.reply(header, &answer.unwrap_or(Answer::Failed(FsError::Io)));
        }
        self.put(header, |out| out.extend_from_slice(answer));
    }

    /// Appends a reply and sends it.
    pub(crate) fn reply_now(&self, header: ReplyHeader, answer: &Answer) {
        self.reply(header, answer);
        self.send();
    }

    fn put(&self, header: ReplyHeader, fill: impl FnOnce(&mut Vec<u8>)) {
        if self.closed.get() {
            return;
        }
        let mut out = self.out.borrow_mut();
        let put = frame::try_put_frame(&mut out, |out| {
            header.encode(out);
            fill(out);
        });
        if !put {
            tracing::error!(call = header.call, "an answer is too long to send");
            frame::put_frame(&mut out, |out| {
                header.encode(out);
                Answer::Failed(FsError::Io).encode(out);
            });
        }
    }

    /// Number of bytes that are waiting to be sent.
    pub(crate) fn buffered(&self) -> usize {
        self.out.borrow().len()
    }

    /// Notes that a block of so many bytes begins to move. A client that moves too many is not read
    /// from.
    pub(crate) fn begin_block(&self, bytes: usize) {
        self.moving.set(self.moving.get() + bytes);
    }

    /// Notes that a block of so many bytes has moved.
    pub(crate) fn end_block(&self, bytes: usize) {
        self.moving.set(self.moving.get() - bytes);
        self.drained.notify_one();
    }

    /// Whether one more request of this connection may wait.
    pub(crate) fn may_wait(&self) -> bool {
        self.waiting.get() < WAITING_MAX
    }

    /// Counts one more request that waits, until the returned value is dropped.
    pub(crate) fn waits(self: &Rc<Self>) -> Waits {
        self.waiting.set(self.waiting.get() + 1);
        Waits(Rc::clone(self))
    }

    pub(super) fn holds_too_much(&self) -> bool {
        self.buffered() > BUFFERED_BYTES_MAX || self.moving.get() > MOVING_BYTES_MAX
    }

    /// Lets all bytes in the buffer be sent.
    pub(crate) fn send(&self) {
        self.ready.set(self.buffered());
        self.wake.notify_one();
    }

    /// Takes back the replies that were appended from `start` on.
    pub(crate) fn hold(&self, start: usize) -> Vec<u8> {
        let mut out = self.out.borrow_mut();
        let start = start.min(out.len());
        out.split_off(start)
    }

    /// Sends replies that were taken back.
    pub(crate) fn send_held(&self, replies: &[u8]) {
        if !self.closed.get() {
            self.out.borrow_mut().extend_from_slice(replies);
            self.send();
        }
    }

    /// Drops the replies that were appended from `start` on, whose effects were not written, and
    /// closes the connection.
    pub(crate) fn discard(&self, start: usize) {
        self.hold(start);
        self.close();
    }

    /// Whether the connection is closed: nobody hears an answer any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake.notify_one();
        self.drained.notify_one();
    }
}

/// A waiting request of a connection.
pub(crate) struct Waits(Rc<Connection>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.session.get_mut() {
            session.count_connection(false);
        }
    }
}
