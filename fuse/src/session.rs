//! Reads requests and hands them to the file system.
//!
//! One session serves one descriptor on one single-threaded runtime. Each time the descriptor is
//! ready it reads all there is, up to a budget, and calls the handler for each: no task, no
//! allocation, no lock but the interrupt table's. What takes longer, the handler moves into a task
//! of its own. Several runtimes can serve one mount, each with a session on its own descriptor.
//!
//! Requests that the handler has not answered at once get some turns of the runtime before the next
//! request is read. Work that can be done on this thread is answered then, and its caller goes on
//! while the next request is being served. If all requests were read first and answered together,
//! all of them would wait for each other.
//!
//! The session answers by itself: INIT, INTERRUPT, DESTROY, opcodes it does not know (ENOSYS), and
//! messages that make no sense (EIO).

#[cfg(test)]
mod tests;

use std::{future::poll_fn, io, sync::Arc, task::Poll};

use bytes::Bytes;
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};
use zerocopy::IntoBytes;

use crate::{
    abi::opcode,
    buffer::{Buffer, Pool},
    channel::Channel,
    init::{self, Answer, InitOptions, Negotiated},
    mount::Connection,
    notify::Notifier,
    reply::Reply,
    request::{self, Malformed, Message, Request, Source},
    sys,
    types::{NodeId, Unique},
};

/// The file system behind a mount.
pub trait Handler {
    /// A request came. The reply is sent here, or moved into a task that sends it later; this call
    /// itself must not block.
    fn request(&self, request: Request<'_>, reply: Reply);

    /// Drops so many of the look-ups that the kernel counted for this node.
    fn forget(&self, node: NodeId, lookups: u64);

    /// The file system was unmounted; nothing more will come. Only some mounts send it.
    fn destroy(&self) {}
}

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// Someone aborted the connection (only told apart with `ABORT_ERROR`).
    Aborted,
}

/// Why a session could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Reading or writing `/dev/fuse` failed.
    #[error("cannot use /dev/fuse")]
    Device(#[source] io::Error),
    /// The kernel's protocol is older than 7.31 (Linux 5.4).
    #[error("the kernel's fuse protocol is too old: 7.31 is needed")]
    TooOld,
    /// A request came before INIT.
    #[error("the kernel did not begin with init")]
    NoInit,
    /// The mount was gone before it was ready.
    #[error("unmounted before the session began")]
    Gone,
}

impl From<Errno> for SessionError {
    fn from(errno: Errno) -> Self {
        SessionError::Device(errno.into())
    }
}

/// EPOLLERR is how the kernel says that the mount has gone.
const READY: Interest = Interest::READABLE.add(Interest::ERROR);
/// Requests read before other tasks get their turn.
const BUDGET: usize = 64;
/// Turns for a request that waits: what a file system on this thread takes to answer, and some
/// more.
const TURNS_MAX: u32 = 16;
/// Number of looks for the next request, some 20 µs in all, before the thread sleeps. A process
/// that was just answered asks again soon, and waking a sleeping thread costs both sides.
const LOOKS_MAX: u32 = 20;
/// Room for a request's header and its largest arguments beside a write's data.
const HEAD_MAX: usize = 4096;
/// An xattr's value can be this large, whatever the largest write is.
const BODY_MIN: usize = 128 << 10;

/// One descriptor of a mount, ready to serve.
#[derive(Debug)]
pub struct Session {
    fd: AsyncFd<Arc<Channel>>,
    pool: Arc<Pool>,
    negotiated: Negotiated,
}

/// Result of one read of the device.
enum Next {
    Bytes(usize),
    Again,
    Empty,
    Ended(Ended),
}

impl Session {
    /// Agrees with the kernel on the protocol, and is then ready to serve. On a connection that has
    /// been agreed on already (a clone) it is ready at once, and `options` change nothing.
    ///
    /// # Errors
    /// When the device fails, the kernel is too old, or the mount has gone.
    ///
    /// # Panics
    /// Outside a tokio runtime with IO enabled.
    pub async fn start(
        connection: Connection,
        options: &InitOptions,
    ) -> Result<Self, SessionError> {
        let fd = sys::watch(connection.channel, READY).map_err(SessionError::Device)?;
        let shared = &fd.get_ref().shared;
        let negotiated = match shared.negotiated.get() {
            Some(negotiated) => *negotiated,
            None => {
                let agreed = handshake(&fd, options).await?;
                *shared.negotiated.get_or_init(|| agreed)
            }
        };
        let pool = Pool::new(buffer_size(negotiated.max_write));
        Ok(Session { fd, pool, negotiated })
    }

    /// Returns the result of the negotiation with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Sends notifications to this mount's kernel side.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(self.channel()))
    }

    /// One more descriptor of this mount, for a session on another runtime.
    ///
    /// # Errors
    /// When the device cannot be opened once more or the mount has gone.
    pub fn try_clone_connection(&self) -> io::Result<Connection> {
        Ok(Connection { channel: Arc::new(self.channel().try_clone()?) })
    }

    /// Serves until the file system is unmounted. Replies that are still out stay valid; no process
    /// waits for their answers then.
    ///
    /// # Errors
    /// When the device fails.
    pub async fn run(self, handler: &impl Handler) -> Result<Ended, SessionError> {
        let mut buffer = self.pool.get();
        let (mut budget, mut looks) = (BUDGET, 0);
        loop {
            match next(self.channel(), writable(&mut buffer, &self.pool))? {
                Next::Bytes(len) => {
                    let before = self.in_hand();
                    self.dispatch(&buffer, len, handler);
                    self.give_turns(before).await;
                    looks = 0;
                }
                Next::Again => {}
                Next::Empty if looks < LOOKS_MAX && self.in_hand() == 0 => {
                    looks += 1;
                    std::thread::yield_now();
                    turn().await;
                }
                Next::Empty => {
                    wait(&self.fd).await?;
                    budget = BUDGET;
                }
                Next::Ended(ended) => return Ok(ended),
            }
            budget -= 1;
            if budget == 0 {
                tokio::task::yield_now().await;
                budget = BUDGET;
            }
        }
    }

    fn in_hand(&self) -> usize {
        self.channel().shared.interrupts.in_hand()
    }

    /// Lets other tasks run until no more than `before` requests are in hand, or for long enough.
    async fn give_turns(&self, before: usize) {
        for _ in 0..TURNS_MAX {
            if self.in_hand() <= before {
                return;
            }
            turn().await;
        }
    }

    fn channel(&self) -> &Arc<Channel> {
        self.fd.get_ref()
    }

    fn dispatch(&self, buffer: &Arc<Buffer>, len: usize, handler: &impl Handler) {
        let bytes = &buffer[..len];
        let message = request::decode(bytes, Source::Buffer { buffer, len });
        match message {
            Ok(Message::Request(request)) => {
                let header = &request.header;
                let reply = Reply::new(self.channel(), header.unique, header.opcode);
                handler.request(request, reply);
            }
            Ok(Message::Forget(forgets)) => {
                forgets.for_each(|(node, lookups)| handler.forget(node, lookups));
            }
            Ok(Message::Interrupt { interrupted }) => self.interrupt(bytes, interrupted),
            Ok(Message::Destroy) => {
                handler.destroy();
                self.refuse(bytes, None);
            }
            Ok(Message::NotifyReply) => {}
            Ok(Message::Init(_)) => self.refuse(bytes, Some(Errno::IO)),
            Ok(Message::Unknown) => self.refuse(bytes, Some(Errno::NOSYS)),
            Err(Malformed) => {
                tracing::error!(len, "malformed request from the kernel");
                self.refuse(bytes, Some(Errno::IO));
            }
        }
    }

    /// An INTERRUPT is only answered when its request is not in hand: EAGAIN asks the kernel to
    /// send it again, should the request still wait on this descriptor.
    fn interrupt(&self, bytes: &[u8], interrupted: Unique) {
        if !self.channel().shared.interrupts.interrupt(interrupted) {
            self.refuse(bytes, Some(Errno::AGAIN));
        }
    }

    /// Answers without the file system.
    fn refuse(&self, bytes: &[u8], errno: Option<Errno>) {
        let Ok((head, _)) = request::header(bytes) else { return };
        let error = errno.map_or(0, |errno| -errno.raw_os_error());
        match self.channel().write(head.unique, error, &[]) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let op = opcode::name(head.opcode);
                tracing::error!(op, %errno, "the kernel refused an answer");
            }
        }
    }
}

/// Returns the session's buffer if no handler kept it, otherwise a fresh one in its place.
fn writable<'a>(buffer: &'a mut Arc<Buffer>, pool: &Arc<Pool>) -> &'a mut [u8] {
    if Arc::get_mut(buffer).is_none() {
        *buffer = pool.get();
    }
    Arc::get_mut(buffer).expect("a buffer fresh from the pool has one owner").bytes_mut()
}

/// Lets every task run that is ready now; the network and timers are looked at as often as ever.
async fn turn() {
    let mut given = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for readiness that came after the last read said "empty".
async fn wait(fd: &AsyncFd<Arc<Channel>>) -> Result<(), SessionError> {
    fd.ready(READY).await.map_err(SessionError::Device)?.clear_ready();
    Ok(())
}

fn next(channel: &Channel, buffer: &mut [u8]) -> Result<Next, SessionError> {
    match channel.read(buffer) {
        Ok(len) => Ok(Next::Bytes(len)),
        Err(Errno::AGAIN) => Ok(Next::Empty),
        // ENOENT: the request was taken back while it was being copied.
        Err(Errno::INTR | Errno::NOENT) => Ok(Next::Again),
        Err(Errno::NODEV) => Ok(Next::Ended(Ended::Unmounted)),
        // Also said of a request that was being read while the file system was unmounted: only the
        // next read tells the two apart.
        Err(Errno::CONNABORTED) => match channel.read(buffer) {
            Err(Errno::NODEV) => Ok(Next::Ended(Ended::Unmounted)),
            Ok(_) | Err(_) => Ok(Next::Ended(Ended::Aborted)),
        },
        Err(errno) => Err(errno.into()),
    }
}

fn buffer_size(max_write: u32) -> usize {
    HEAD_MAX + usize::try_from(max_write).expect("at most 1 MiB").max(BODY_MIN)
}

/// Answers INIT, twice if the kernel speaks a newer major version.
async fn handshake(
    fd: &AsyncFd<Arc<Channel>>,
    options: &InitOptions,
) -> Result<Negotiated, SessionError> {
    let channel = fd.get_ref();
    let mut buffer = vec![0; buffer_size(options.max_write)];
    let nothing = Bytes::new();
    loop {
        let len = match next(channel, &mut buffer)? {
            Next::Bytes(len) => len,
            Next::Again => continue,
            Next::Empty => {
                wait(fd).await?;
                continue;
            }
            Next::Ended(_) => return Err(SessionError::Gone),
        };
        let (head, _) = request::header(&buffer[..len]).map_err(|_| SessionError::NoInit)?;
        let Ok(Message::Init(offer)) = request::decode(&buffer[..len], Source::Owned(&nothing))
        else {
            return Err(SessionError::NoInit);
        };
        match init::negotiate(&offer, options) {
            Answer::Agreed(agreed, out) => {
                channel.write(head.unique, 0, &[out.as_bytes()])?;
                return Ok(agreed);
            }
            Answer::AskAgain(out) => channel.write(head.unique, 0, &[out.as_bytes()])?,
            Answer::TooOld => {
                channel.write(head.unique, -Errno::PROTO.raw_os_error(), &[])?;
                return Err(SessionError::TooOld);
            }
        }
    }
}
