//! Ends connections and requests whose client does nothing for too long.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

/// Time for the head of the first request of a connection.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a client takes nothing of an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which nothing of a body comes.
const BODY_TIMEOUT: Duration = Duration::from_secs(65);

fn late(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// A connection.
pub(crate) struct Connection {
    socket: TcpStream,
    /// Until the first request has come.
    first: Option<Pin<Box<Sleep>>>,
    begun: Arc<AtomicBool>,
    /// While the client takes nothing.
    writing: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// A connection that has begun when `begun` is set.
    pub(crate) fn new(socket: TcpStream, begun: Arc<AtomicBool>) -> Connection {
        Connection { socket, first: Some(Box::pin(sleep(FIRST_TIMEOUT))), begun, writing: None }
    }

    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let writing = self.writing.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(writing.as_mut().poll(context));
        Poll::Ready(Err(late("the client takes nothing of its answer")))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(context, buf);
        if self.begun.load(Ordering::Relaxed) {
            self.first = None;
        }
        if read.is_pending()
            && let Some(first) = &mut self.first
        {
            ready!(first.as_mut().poll(context));
            if !self.begun.load(Ordering::Relaxed) {
                return Poll::Ready(Err(late("no request came")));
            }
            self.first = None;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, buf);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, bufs);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// The body of a request.
pub(crate) struct Patient {
    body: Incoming,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(crate) fn new(body: Incoming) -> Patient {
        Patient { body, waiting: None }
    }
}

impl Body for Patient {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Some(Err(late("nothing came of the body").into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
