//! One direction of a connection, and the end of a connection that a program holds.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    disk::Process,
    network::Network,
    plan::Weather,
    random::SimRandom,
    show::Show,
    trace::{Trace, hash_of},
};

/// Bytes in flight at which a writer waits.
const WINDOW_BYTES: usize = 512 << 10;

/// Bytes in flight in one direction.
pub(super) struct Pipe {
    number: u64,
    /// Pieces with their arrival times, which never decrease.
    sent: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    last: Instant,
    /// Whether the stream ends after the pieces sent.
    ended: bool,
    /// Whether the reader is told that the connection was lost.
    lost: bool,
    /// Whether the writer is told that the reader is gone.
    unread: bool,
    /// Whether everything written vanishes and nothing arrives.
    silent: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    show: Show,
}

impl Pipe {
    pub(super) fn new(number: u64) -> Arc<Mutex<Pipe>> {
        Arc::new(Mutex::new(Pipe {
            number,
            sent: VecDeque::new(),
            bytes: 0,
            last: Instant::now(),
            ended: false,
            lost: false,
            unread: false,
            silent: false,
            reader: None,
            writer: None,
            show: Show::new(number.is_multiple_of(2)),
        }))
    }

    /// Whether the stream has ended or was lost.
    pub(super) fn is_over(&self) -> bool {
        self.lost || self.ended
    }

    /// Tells both sides that the connection is lost, and drops the bytes in flight.
    pub(super) fn lose(&mut self) {
        self.sent.clear();
        self.bytes = 0;
        self.lost = true;
        self.unread = true;
        self.wake();
    }

    /// Tells the writer that the connection is lost. The bytes that it wrote arrive `late`, and
    /// then the stream ends.
    pub(super) fn linger(&mut self, late: Duration) {
        self.sent.iter_mut().for_each(|(due, _)| *due += late);
        self.last += late;
        self.ended = true;
        self.unread = true;
        self.wake();
    }

    /// Delays all bytes in flight, and those still to be written, until `until` at least.
    pub(super) fn hold(&mut self, until: Instant) {
        self.sent.iter_mut().for_each(|(due, _)| *due = (*due).max(until));
        self.last = self.last.max(until);
    }

    /// Drops all bytes, now and in the future. With `closed` the reader sees the end of the stream.
    pub(super) fn fall_silent(&mut self, closed: bool) {
        self.silent = true;
        self.ended |= closed;
        self.sent.clear();
        self.bytes = 0;
        self.wake();
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

/// One end of a connection.
pub struct End {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    /// The process that holds this end, if it can die.
    process: Option<Arc<Process>>,
    timer: Pin<Box<Sleep>>,
    weather: Weather,
    random: SimRandom,
    trace: Trace,
    /// Whether faults are aimed at the messages sent.
    watched: bool,
    /// Whether both ends are servers: each write between them is a step.
    of_servers: bool,
}

impl End {
    pub(super) fn new(
        network: &Network,
        incoming: Arc<Mutex<Pipe>>,
        outgoing: Arc<Mutex<Pipe>>,
        process: Option<Arc<Process>>,
        of_servers: bool,
    ) -> End {
        End {
            incoming,
            outgoing,
            process,
            timer: Box::pin(sleep_until(Instant::now())),
            weather: network.weather,
            watched: network.watched,
            of_servers,
            random: network.random.clone(),
            trace: network.trace.clone(),
        }
    }

    fn is_dead(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.is_alive())
    }

    /// Number of the `len` bytes that go in one piece.
    fn piece(&self, len: usize) -> usize {
        if self.weather.pieces && len > 1 && self.random.one_in(6) {
            1 + self.random.index(len)
        } else {
            len
        }
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_dead() {
            return Poll::Pending;
        }
        let incoming = Arc::clone(&self.incoming);
        let mut pipe = incoming.lock();
        loop {
            if pipe.lost {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let Some((due, bytes)) = pipe.sent.front_mut() else {
                if pipe.ended {
                    return Poll::Ready(Ok(()));
                }
                pipe.reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if *due <= Instant::now() {
                let len = self.piece(bytes.len().min(buf.remaining()));
                let piece = bytes.split_to(len);
                if bytes.is_empty() {
                    pipe.sent.pop_front();
                }
                pipe.bytes -= len;
                self.trace.note("arrive", &[pipe.number, len as u64, hash_of(&piece)]);
                buf.put_slice(&piece);
                if let Some(writer) = pipe.writer.take() {
                    writer.wake();
                }
                return Poll::Ready(Ok(()));
            }
            let due = *due;
            pipe.reader = Some(cx.waker().clone());
            self.timer.as_mut().reset(due);
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_dead() {
            return Poll::Ready(Ok(buf.len()));
        }
        let mut pipe = self.outgoing.lock();
        if pipe.unread {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if pipe.silent {
            return Poll::Ready(Ok(buf.len()));
        }
        if pipe.bytes >= WINDOW_BYTES {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = self.piece(buf.len().min(WINDOW_BYTES));
        let due = pipe.last.max(Instant::now() + self.weather.delay(&self.random));
        pipe.last = due;
        if self.trace.prints() || self.watched {
            let number = pipe.number;
            let messages = pipe.show.sent(&self.trace, number, &buf[..len]);
            if let Some(process) = &self.process {
                process.has_sent(&messages);
            }
        }
        pipe.sent.push_back((due, buf.copy_to_bytes(len)));
        pipe.bytes += len;
        if let Some(process) = self.process.as_ref().filter(|_| self.of_servers) {
            process.step();
        }
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.outgoing.lock();
        pipe.ended = true;
        pipe.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        {
            let mut outgoing = self.outgoing.lock();
            // A machine that is gone does not close its connections.
            outgoing.ended |= !outgoing.silent;
            outgoing.wake();
        }
        let mut incoming = self.incoming.lock();
        incoming.unread = true;
        incoming.wake();
    }
}
