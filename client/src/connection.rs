//! One connection: bytes in, bytes out, in bulk.
//!
//! The session's task runs it. Each time it wakes it takes everything that has arrived, hands all
//! answers to their calls at once, and writes everything that callers have gathered with one write.
//! Before it writes it lets every other ready task run once, so that their requests share the
//! write.
//!
//! The task never decides what an answer means, and it ends when the stream fails, the server is
//! silent for a whole lease, or the channel asks for another connection.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _},
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use wire::{Answer, FrameError, ReplyHeader, Request, Stream, frame::take_frame};

use crate::channel::{BYE, Channel, NOBODY, Order};

const READ_BYTES: usize = 64 << 10;
/// Ticks of silence, each a third of a lease, after which the server is gone.
const SILENT_TICKS_MAX: u32 = 3;
/// Pause between two looks for answers, where another server may take this one's place.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Looks without an answer after which the server is gone. It is asked at the second.
const SILENT_LOOKS_MAX: u32 = 5;
/// A buffer that has grown beyond this is given back once it is written.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The client was closed.
    #[error("closed")]
    Closed,
    /// The channel wants another one.
    #[error("the server has no session here")]
    Reopen,
    /// The stream failed or ended.
    #[error("connection lost")]
    Stream(#[from] io::Error),
    /// The server sent something else than answers.
    #[error("connection broken")]
    Frame(#[from] FrameError),
    /// The server was silent for a whole lease.
    #[error("server is silent")]
    Silent,
}

/// A connection whose session is open.
pub(crate) struct Connection<'a> {
    channel: &'a Channel,
    stream: Box<dyn Stream>,
    inbox: BytesMut,
    outbox: Vec<u8>,
    written: usize,
    /// Everybody else had their turn since there was something to send.
    gathered: bool,
    closing: bool,
    lease: Duration,
    /// When the first ping was sent that is not answered.
    pinged: Option<Instant>,
    tick: Interval,
    sent: bool,
    heard: bool,
    silent_ticks: u32,
    /// Looks whether the server is silent while calls wait, where another one may take its place.
    look: Option<Interval>,
    silent_looks: u32,
    replies: Vec<(ReplyHeader, Answer)>,
    wakers: Vec<Waker>,
}

fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

impl<'a> Connection<'a> {
    /// A connection that was opened and attached; `inbox` holds what was read beyond that. One that
    /// hurries ends when the server is silent for seconds while calls wait.
    pub(crate) fn new(
        channel: &'a Channel,
        stream: Box<dyn Stream>,
        inbox: BytesMut,
        lease: Duration,
        hurries: bool,
    ) -> Connection<'a> {
        let tick = every((lease / SILENT_TICKS_MAX).max(Duration::from_millis(1)));
        Connection {
            channel,
            stream,
            inbox,
            outbox: Vec::new(),
            written: 0,
            gathered: false,
            closing: false,
            lease,
            pinged: None,
            tick,
            sent: false,
            heard: false,
            silent_ticks: 0,
            look: hurries.then(|| every(LOOK_PERIOD)),
            silent_looks: 0,
            replies: Vec::new(),
            wakers: Vec::new(),
        }
    }

    /// Runs until it ends; `orphans` is called when calls may have lost their callers.
    pub(crate) async fn run(&mut self, mut orphans: impl FnMut()) -> Ended {
        poll_fn(|cx| {
            orphans();
            match self.poll(cx) {
                Ok(()) => Poll::Pending,
                Err(ended) => Poll::Ready(ended),
            }
        })
        .await
    }

    /// Does everything that can be done now.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        self.read(cx)?;
        while self.tick.poll_tick(cx).is_ready() {
            self.beat()?;
        }
        while self.look.as_mut().is_some_and(|look| look.poll_tick(cx).is_ready()) {
            self.look()?;
        }
        self.write(cx)
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        loop {
            self.inbox.reserve(READ_BYTES);
            let read = pin!(self.stream.read_buf(&mut self.inbox)).poll(cx);
            match read {
                Poll::Ready(Ok(0) | Err(_)) if self.closing => return Err(Ended::Closed),
                Poll::Ready(Ok(0)) => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => return Ok(()),
            }
            self.heard = true;
            self.silent_looks = 0;
            while let Some(frame) = take_frame(&mut self.inbox)? {
                let (header, answer) = ReplyHeader::take(&frame)?;
                if header.call == BYE {
                    return Err(Ended::Closed);
                }
                if header.call == NOBODY {
                    // Such a server keeps nothing for us any more, and another one may.
                    if matches!(answer, Answer::Halted) {
                        return Err(Ended::Reopen);
                    }
                    if let Some(asked) = self.pinged.take() {
                        self.channel.extend_lease(asked, self.lease);
                    }
                }
                self.replies.push((header, answer));
            }
            self.channel.deliver(&mut self.replies, &mut self.wakers);
        }
    }

    /// A third of a lease has passed.
    fn beat(&mut self) -> Result<(), Ended> {
        if self.closing {
            return Err(Ended::Closed);
        }
        self.silent_ticks = if self.heard { 0 } else { self.silent_ticks + 1 };
        if self.silent_ticks >= SILENT_TICKS_MAX {
            return Err(Ended::Silent);
        }
        // Other answers do not tell when the server has last heard of this client.
        if !self.sent || !self.heard || self.pinged.is_none() {
            self.pinged.get_or_insert_with(Instant::now);
            self.channel.put_unheard(NOBODY, &Request::Ping);
        }
        self.sent = false;
        self.heard = false;
        Ok(())
    }

    /// Asks a server that leaves calls without an answer whether it is there.
    fn look(&mut self) -> Result<(), Ended> {
        if self.closing || !self.channel.has_sent() {
            self.silent_looks = 0;
            return Ok(());
        }
        self.silent_looks += 1;
        if self.silent_looks > SILENT_LOOKS_MAX {
            return Err(Ended::Silent);
        }
        if self.silent_looks == 2 {
            self.pinged.get_or_insert_with(Instant::now);
            self.channel.put_unheard(NOBODY, &Request::Ping);
        }
        Ok(())
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        loop {
            if self.written == self.outbox.len() {
                self.clear_outbox();
                if self.closing || !self.channel.watch_out(cx) {
                    self.gathered = false;
                    let flushed = Pin::new(&mut self.stream).poll_flush(cx);
                    return if let Poll::Ready(Err(error)) = flushed {
                        Err(error.into())
                    } else {
                        Ok(())
                    };
                }
                if !self.gathered {
                    self.gathered = true;
                    cx.waker().wake_by_ref();
                    return Ok(());
                }
                self.gathered = false;
                self.take_out(cx)?;
            }
            match self.write_some(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn take_out(&mut self, cx: &Context<'_>) -> Result<(), Ended> {
        if self.channel.closing() {
            self.channel.put_unheard(BYE, &Request::Bye);
            self.closing = true;
        }
        match self.channel.take_out(&mut self.outbox, cx) {
            Order::Send | Order::Close => Ok(()),
            Order::Reopen => Err(Ended::Reopen),
        }
    }

    fn write_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outbox.len() {
            let rest = &self.outbox[self.written..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.sent = true;
        }
        Poll::Ready(Ok(()))
    }

    fn clear_outbox(&mut self) {
        self.written = 0;
        self.outbox.clear();
        if self.outbox.capacity() > BUFFER_BYTES_KEPT {
            self.outbox = Vec::new();
        }
    }
}
