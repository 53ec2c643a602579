//! Connections: bytes to requests, replies to bytes.
//!
//! A connection stays on the core that accepted it. Its reader takes all bytes that have arrived,
//! decodes every whole frame and hands the requests to the core. Its writer sends all answers that
//! are ready with one write.

pub(crate) mod connection;

use std::{cell::Cell, net::SocketAddr, rc::Rc, time::Duration};

use base::{Decode as _, DecodeError, Reader, limits::FRAME_BYTES_MAX};
use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::Instant,
};
use wire::{Answer, Binding, FrameError, ReplyHeader, Request, RequestHeader, frame};

use crate::{
    Core,
    core::Work,
    incoming::Incoming,
    observe::{CoreCounts, Parked},
    quota::grant::GrantState,
    server::Counters,
    txn::sessions,
};
use connection::{Connection, Origin};

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

impl Core {
    /// Serves a connection until it ends. The future stays on this core.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        self.serve_it(stream, Origin::Network(None, None)).await;
    }

    /// Like [`Core::serve`], for the client at `address`; only the two ends of an encrypted
    /// connection know `binding`.
    pub async fn serve_bound(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        address: Option<SocketAddr>,
        binding: Option<Binding>,
    ) {
        self.serve_it(stream, Origin::Network(address, binding)).await;
    }

    /// Like [`Core::serve`], for a client in this process that reaches the store of blocks itself.
    pub async fn serve_near(&self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        self.serve_it(stream, Origin::Near).await;
    }

    async fn serve_it(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        origin: Origin,
    ) {
        Counters::add(&self.inner.shared.counters.connections);
        let counts = self.inner.counts();
        counts.connections.add(1);
        let connection = Rc::new(Connection::new(self.inner.index(), origin));
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
                let (parked, grant_state) = (Parked::default(), Cell::new(GrantState::Nothing));
                self.inner.push(Work::Request(Incoming {
                    connection,
                    header,
                    request,
                    arrived,
                    parked,
                    grant_state,
                    waits: None,
                    waited_since: Cell::default(),
                    brought: Cell::default(),
                    asked_as: None,
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
        let written = async {
            write.write_all(&sending).await?;
            // A stream that encrypts may hold back what the network did not take at once.
            write.flush().await
        };
        if written.await.is_err() {
            return;
        }
        counts.sent_bytes.add(u64::try_from(sending.len()).unwrap_or(u64::MAX));
        sending.clear();
        sending.shrink_to(BUFFER_BYTES_KEPT);
        connection.drained.notify_one();
    }
}

/// Ends sessions that were silent for longer than their lease, and those whose token has expired,
/// was revoked, or is of a retired key.
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
        // One that another may have replaced hears nobody.
        let lets_nobody_in = shared.may_be_replaced()
            || shared.cluster.is_some() && shared.invalidations.version() == 0;
        if lets_nobody_in || Duration::from_nanos(shared.observed.busiest()) > lease / 4 {
            shared.sessions.lock().values().for_each(|session| session.begin_lease());
            continue;
        }
        let mut expired: Vec<_> = {
            let now = shared.clock.now();
            let sessions = shared.sessions.lock();
            sessions
                .values()
                .filter(|session| {
                    session.idle() > lease || session.token_ended(now, &shared.keys).is_some()
                })
                .map(|session| session.id)
                .collect()
        };
        expired.sort_unstable();
        for session in expired {
            core.step(move |txn| sessions::expire_session(txn, session)).await;
        }
    }
}
