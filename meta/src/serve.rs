//! Connections: bytes to requests, replies to bytes.
//!
//! A connection stays on the core that accepted it. Its reader takes all bytes that have arrived,
//! decodes every whole frame and hands the requests to the core. Its writer sends all answers that
//! are ready with one write.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use base::{
    Decode as _, DecodeError, Encode as _, FsError, Reader, SessionId, limits::FRAME_BYTES_MAX,
};
use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::Notify,
    time::Instant,
};
use wire::{Answer, FrameError, ReplyHeader, Request, RequestHeader, frame};

use crate::{
    Core,
    core::Work,
    driver::{self, Incoming},
    observe::{CoreCounts, Parked},
    quota::allowance::Heard,
    server::Counters,
    session::Session,
};

/// Most bytes of replies that a client has not read: with more, the server stops reading from it.
const BUFFERED_BYTES_MAX: usize = 16 << 20;
/// Most bytes of blocks on their way: with more, the server stops reading from the client.
const MOVING_BYTES_MAX: usize = 64 << 20;
/// Most requests of a connection that wait at a time: for locks, for other servers, for stable
/// storage. For one more the answer is to ask again. The connection is still read, as its next
/// request may end the waiting.
pub(crate) const WAITING_MAX: usize = 8192;
/// Most bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// A buffer that has grown beyond this many bytes is given back once it is sent.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
/// Bytes of the read buffer of an idle connection.
const READ_BYTES_MIN: usize = 4 << 10;
/// Time within which a connection must introduce itself, however many bytes it sends meanwhile.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest message before the connection has introduced itself.
const HELLO_BYTES_MAX: usize = 64 << 10;
/// Time within which a frame that has begun must be complete.
const FRAME_TIMEOUT: Duration = Duration::from_secs(120);

/// One connection, as the core sees it.
pub(crate) struct Connection {
    session: RefCell<Option<Arc<Session>>>,
    /// The server at the other end; `None` for a client.
    peer: Cell<Option<(u16, u64)>>,
    /// The number that a dialling server must prove itself with, once.
    challenge: Cell<Option<u128>>,
    out: RefCell<Vec<u8>>,
    /// Number of bytes of `out` that may be sent.
    ready: Cell<usize>,
    wake: Notify,
    drained: Notify,
    closed: Cell<bool>,
    /// Bytes of blocks that are being put or got for this connection.
    moving: Cell<usize>,
    /// Number of requests of this connection that wait.
    waiting: Cell<usize>,
    /// Whether the client is in this process, and stores blocks itself.
    near: bool,
    core: usize,
}

impl Connection {
    fn new(core: usize, near: bool) -> Connection {
        Connection {
            session: RefCell::default(),
            peer: Cell::new(None),
            challenge: Cell::new(None),
            out: RefCell::default(),
            ready: Cell::new(0),
            wake: Notify::new(),
            drained: Notify::new(),
            closed: Cell::new(false),
            moving: Cell::new(0),
            waiting: Cell::new(0),
            near,
            core,
        }
    }

    /// The core that the connection stays on.
    pub(crate) fn core(&self) -> usize {
        self.core
    }

    /// Whether the client is in this process, and stores blocks itself.
    pub(crate) fn is_near(&self) -> bool {
        self.near
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
        self.peer.get().map(|(server, _)| server)
    }

    /// The server at the other end and the number of its run.
    pub(crate) fn run_of_peer(&self) -> Option<(u16, u64)> {
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
    pub(crate) fn is_of_peer(&self, server: u16, run: u64) {
        self.peer.set(Some((server, run)));
    }

    fn is_introduced(&self) -> bool {
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

    /// Makes the connection belong to `session` from now on.
    pub(crate) fn join(&self, session: Arc<Session>) {
        session.count_connection(true);
        if let Some(before) = self.session.replace(Some(session)) {
            before.count_connection(false);
        }
    }

    /// Appends a reply to the buffer; it leaves with [`Connection::send`]. The header's version
    /// must have been read before everything that the answer says: a client believes that nothing
    /// changed up to it.
    pub(crate) fn reply(&self, header: ReplyHeader, answer: &Answer) {
        self.put(header, |out| answer.encode(out));
    }

    /// Like [`Connection::reply`], for an answer that is encoded already.
    pub(crate) fn reply_encoded(&self, header: ReplyHeader, answer: &[u8]) {
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

    fn holds_too_much(&self) -> bool {
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

    fn close(&self) {
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

impl Core {
    /// Serves a connection until it ends. The future stays on this core.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        self.serve_it(stream, false).await;
    }

    /// Like [`Core::serve`], for a client in this process that reaches the store of blocks itself.
    pub async fn serve_near(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        self.serve_it(stream, true).await;
    }

    async fn serve_it(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, near: bool) {
        Counters::add(&self.inner.shared.counters.connections);
        let counts = self.inner.counts();
        counts.connections.add(1);
        let connection = Rc::new(Connection::new(self.inner.index(), near));
        let (read, write) = tokio::io::split(stream);
        tokio::select! {
            biased;
            result = self.read_requests(read, &connection) => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection refused");
                }
            }
            () = write_replies(write, &connection, counts) => {}
        }
        connection.close();
        counts.connections.subtract(1);
    }

    async fn read_requests(
        &self,
        mut read: impl AsyncRead + Unpin,
        connection: &Rc<Connection>,
    ) -> Result<(), FrameError> {
        let mut buffer = BytesMut::with_capacity(READ_BYTES_MIN);
        let mut room = READ_BYTES_MIN;
        let counts = self.inner.counts();
        let mut deadline = Instant::now() + HELLO_TIMEOUT;
        let opening = async {
            while !frame::take_opening(&mut buffer)? {
                if !fill(&mut read, &mut buffer, &mut room, counts).await {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        match tokio::time::timeout_at(deadline, opening).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => return Ok(()),
            Ok(Err(FrameError::Version(version))) => {
                // The refusal has the form of version 1, which every client can read.
                let text = FrameError::Version(version).to_string();
                let header = ReplyHeader { call: 0, cache_version: 0 };
                connection.reply_now(header, &Answer::Refused(text));
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Err(FrameError::Version(version));
            }
            Ok(Err(error)) => return Err(error),
        }
        let mut in_frame = false;
        loop {
            let arrived = self.inner.shared.observed.now();
            let introduced = connection.is_introduced();
            let bytes_max = if introduced { FRAME_BYTES_MAX } else { HELLO_BYTES_MAX };
            while let Some(bytes) = frame::take_frame_within(&mut buffer, bytes_max)? {
                in_frame = false;
                let mut reader = Reader::new(&bytes);
                let header = RequestHeader::decode(&mut reader)?;
                let request = Request::decode(&mut reader)?;
                if !reader.is_empty() {
                    return Err(DecodeError::Trailing.into());
                }
                let connection = connection.clone();
                let (parked, heard) = (Parked::default(), Cell::new(Heard::Nothing));
                self.inner.push(Work::Request(Incoming {
                    connection,
                    header,
                    request,
                    arrived,
                    parked,
                    heard,
                    waits: None,
                    waited_since: Cell::default(),
                }));
            }
            while connection.holds_too_much() && !connection.closed.get() {
                connection.drained.notified().await;
            }
            let partial = !buffer.is_empty();
            if introduced && partial && !in_frame {
                deadline = Instant::now() + FRAME_TIMEOUT;
            }
            in_frame = introduced && partial;
            let filling = fill(&mut read, &mut buffer, &mut room, counts);
            let filled = if introduced && !in_frame {
                filling.await
            } else {
                match tokio::time::timeout_at(deadline, filling).await {
                    Ok(filled) => filled,
                    // The Hello may have been read, and executed since.
                    Err(_) if !introduced && connection.is_introduced() => true,
                    Err(_) => {
                        tracing::debug!(introduced, "a connection took too long to send a message");
                        false
                    }
                }
            };
            if !filled {
                return Ok(());
            }
        }
    }
}

/// Reads the bytes that have arrived. Returns `false` at the end of the stream. A connection that
/// fills its `room` gets more the next time.
async fn fill(
    read: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    room: &mut usize,
    counts: &CoreCounts,
) -> bool {
    buffer.reserve(*room);
    let spare = buffer.capacity() - buffer.len();
    let bytes = read.read_buf(buffer).await.unwrap_or_default();
    if bytes >= spare {
        *room = READ_BYTES;
    } else if bytes < READ_BYTES_MIN {
        *room = READ_BYTES_MIN;
    }
    counts.received_bytes.add(u64::try_from(bytes).unwrap_or(u64::MAX));
    bytes > 0
}

async fn write_replies(
    mut write: impl AsyncWrite + Unpin,
    connection: &Connection,
    counts: &CoreCounts,
) {
    let mut sending = Vec::new();
    loop {
        let ready = connection.ready.replace(0);
        if ready == 0 {
            if connection.closed.get() {
                return;
            }
            connection.wake.notified().await;
            continue;
        }
        {
            let mut out = connection.out.borrow_mut();
            if ready >= out.len() {
                std::mem::swap(&mut *out, &mut sending);
            } else {
                sending.extend(out.drain(..ready));
            }
        }
        if write.write_all(&sending).await.is_err() {
            return;
        }
        counts.sent_bytes.add(u64::try_from(sending.len()).unwrap_or(u64::MAX));
        sending.clear();
        sending.shrink_to(BUFFER_BYTES_KEPT);
        connection.drained.notify_one();
    }
}

/// Ends sessions that were silent for longer than their lease, and those whose token has expired.
///
/// A server that was stopped for a while could hear nobody. A core that is held up, usually by its
/// disk, does not hear its clients. In both cases all sessions get another lease to be heard again.
pub(crate) async fn watch_leases(core: Core) {
    let shared = &core.inner.shared;
    let lease = shared.options.lease;
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(lease / 4).await;
        let away = std::mem::replace(&mut looked, Instant::now()).elapsed();
        if away > lease / 2 {
            tracing::warn!(?away, "the server was stopped for a while");
            shared.sessions.lock().values().for_each(|session| session.begin_lease());
            continue;
        }
        // A server of a cluster lets no session in before its first lease.
        let lets_nobody_in = shared.cluster.is_some() && shared.invalidations.version() == 0;
        if lets_nobody_in || Duration::from_nanos(shared.observed.busiest()) > lease / 4 {
            shared.sessions.lock().values().for_each(|session| session.begin_lease());
            continue;
        }
        let mut expired: Vec<_> = {
            let now = shared.clock.now();
            let sessions = shared.sessions.lock();
            sessions
                .values()
                .filter(|session| session.idle() > lease || session.has_expired(now))
                .map(|session| session.id)
                .collect()
        };
        expired.sort_unstable();
        for session in expired {
            core.step(move |txn| driver::expire_session(txn, session)).await;
        }
    }
}
