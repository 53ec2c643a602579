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
//! Where io_uring is in use ([`crate::ring`]) requests come from there, and `/dev/fuse` is read when it
//! is ready: the kernel sends FORGET and INTERRUPT there. The session that has agreed with the
//! kernel serves the ring; sessions on clones of the connection only read their descriptors.
//!
//! The session answers by itself: INIT, INTERRUPT, DESTROY, opcodes it does not know (ENOSYS), and
//! messages that make no sense (EIO).

mod over_ring;
#[cfg(test)]
mod tests;

use std::{future::poll_fn, io, sync::Arc, task::Poll};

use bytes::Bytes;
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};
use zerocopy::IntoBytes;

use crate::{
    abi::{self, opcode},
    buffer::{Buffer, Pool},
    channel::Channel,
    init::{self, Answer, Capabilities, InitOptions, IoUring, Negotiated, Transport},
    mount::Connection,
    notify::Notifier,
    reply::Reply,
    request::{self, Malformed, Message, Request, Source},
    ring::{IoUringError, Ring, Taken},
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
    /// [`IoUring::On`] was asked for.
    #[error("cannot use io_uring for the mount")]
    IoUring(#[source] IoUringError),
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
    ring: Option<Ring>,
    without_ring: Option<IoUringError>,
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
    /// With io_uring the session must run on the thread that starts it: the kernel takes back what
    /// was given to it by a thread that has ended.
    ///
    /// # Errors
    /// When the device fails, the kernel is too old or lacks what must be there, or the mount has
    /// gone.
    ///
    /// # Panics
    /// Outside a tokio runtime with IO enabled.
    pub async fn start(
        connection: Connection,
        options: &InitOptions,
    ) -> Result<Self, SessionError> {
        let fd = sys::watch(connection.channel, READY).map_err(SessionError::Device)?;
        let shared = &fd.get_ref().shared;
        let (negotiated, ring, without_ring) = match shared.negotiated.get() {
            Some(negotiated) => (*negotiated, None, None),
            None => {
                let agreed = handshake(&fd, options).await?;
                let negotiated = *shared.negotiated.get_or_init(|| agreed.negotiated);
                (negotiated, agreed.ring, agreed.without_ring)
            }
        };
        let pool = Pool::new(buffer_size(negotiated.max_write));
        Ok(Session { fd, pool, negotiated, ring, without_ring })
    }

    /// Returns the result of the negotiation with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Why requests come over `/dev/fuse` although [`IoUring::Auto`] was asked for.
    pub fn without_io_uring(&self) -> Option<&IoUringError> {
        self.without_ring.as_ref()
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
    pub async fn run(mut self, handler: &impl Handler) -> Result<Ended, SessionError> {
        match self.ring.take() {
            Some(ring) => self.over_ring(ring, handler).await,
            None => self.over_device(handler).await,
        }
    }

    async fn over_device(&self, handler: &impl Handler) -> Result<Ended, SessionError> {
        let mut buffer = self.pool.get();
        let (mut budget, mut looks) = (BUDGET, 0);
        loop {
            match next(self.channel(), writable(&mut buffer, &self.pool))? {
                Next::Bytes(len) => {
                    let before = self.in_hand();
                    self.dispatch(&buffer, len, None, handler);
                    self.give_turns(before, || Ok(())).await?;
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
    /// Calls `each` after every turn.
    async fn give_turns(
        &self,
        before: usize,
        mut each: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for _ in 0..TURNS_MAX {
            if self.in_hand() <= before {
                break;
            }
            turn().await;
            each()?;
        }
        Ok(())
    }

    fn channel(&self) -> &Arc<Channel> {
        self.fd.get_ref()
    }

    /// Handles the message at the beginning of the buffer. One that came over io_uring has taken an
    /// entry.
    fn dispatch(
        &self,
        buffer: &Arc<Buffer>,
        len: usize,
        taken: Option<Taken>,
        handler: &impl Handler,
    ) {
        let bytes = &buffer[..len];
        let message = request::decode(bytes, Source::Buffer { buffer, len });
        match message {
            Ok(Message::Request(request)) => {
                let header = &request.header;
                let reply = Reply::new(self.channel(), header.unique, header.opcode, taken);
                handler.request(request, reply);
            }
            Ok(Message::Forget(forgets)) => {
                forgets.for_each(|(node, lookups)| handler.forget(node, lookups));
                self.give_back(taken);
            }
            Ok(Message::Interrupt { interrupted }) => {
                self.interrupt(bytes, interrupted);
                self.give_back(taken);
            }
            Ok(Message::Destroy) => {
                handler.destroy();
                self.refuse(bytes, taken, None);
            }
            Ok(Message::NotifyReply) => self.give_back(taken),
            Ok(Message::Init(_)) => self.refuse(bytes, taken, Some(Errno::IO)),
            Ok(Message::Unknown) => self.refuse(bytes, taken, Some(Errno::NOSYS)),
            Err(Malformed) => {
                tracing::error!(len, "malformed request from the kernel");
                self.refuse(bytes, taken, Some(Errno::IO));
            }
        }
    }

    /// An INTERRUPT is only answered when its request is not in hand: EAGAIN asks the kernel to
    /// send it again, should the request still wait on this descriptor. Requests over io_uring wait
    /// on none, and the kernel would not find them.
    fn interrupt(&self, bytes: &[u8], interrupted: Unique) {
        let found = self.channel().shared.interrupts.interrupt(interrupted);
        if !found && self.negotiated.transport() == Transport::Device {
            self.refuse(bytes, None, Some(Errno::AGAIN));
        }
    }

    /// Gives back the entry of a message that has no answer. The kernel sends none of these over
    /// io_uring.
    fn give_back(&self, taken: Option<Taken>) {
        if let Some(taken) = taken {
            let _ = taken.answer(0, &[]);
        }
    }

    /// Answers without the file system.
    fn refuse(&self, bytes: &[u8], taken: Option<Taken>, errno: Option<Errno>) {
        let Ok((head, _)) = request::header(bytes) else { return };
        let error = errno.map_or(0, |errno| -errno.raw_os_error());
        let sent = match taken {
            Some(taken) => taken.answer(error, &[]),
            None => self.channel().write(head.unique, error, &[]),
        };
        match sent {
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

/// Result of the handshake.
struct Agreed {
    negotiated: Negotiated,
    ring: Option<Ring>,
    without_ring: Option<IoUringError>,
}

/// Answers INIT, twice if the kernel speaks a newer major version.
async fn handshake(
    fd: &AsyncFd<Arc<Channel>>,
    options: &InitOptions,
) -> Result<Agreed, SessionError> {
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
        let mut wish = *options;
        wish.capabilities.remove(Capabilities::OVER_IO_URING);
        let (ring, mut without_ring) = ring(channel, &offer, options)?;
        if let Some(ring) = &ring {
            wish.capabilities.insert(Capabilities::OVER_IO_URING);
            wish.max_write = ring.max_write();
        }
        match init::negotiate(&offer, &wish) {
            Answer::Agreed(mut negotiated, mut out) => {
                if let Some(ring) = &ring {
                    out.max_pages = ring.max_pages();
                }
                channel.write(head.unique, 0, &[out.as_bytes()])?;
                let ring = match registered(ring) {
                    Ok(ring) => ring,
                    Err(error) if options.io_uring == IoUring::Auto => {
                        negotiated.capabilities.remove(Capabilities::OVER_IO_URING);
                        without_ring = Some(error);
                        None
                    }
                    Err(error) => return Err(SessionError::IoUring(error)),
                };
                return Ok(Agreed { negotiated, ring, without_ring });
            }
            Answer::AskAgain(out) => channel.write(head.unique, 0, &[out.as_bytes()])?,
            Answer::TooOld => {
                channel.write(head.unique, -Errno::PROTO.raw_os_error(), &[])?;
                return Err(SessionError::TooOld);
            }
        }
    }
}

/// The ring that the options ask for, or why there is none.
fn ring(
    channel: &Arc<Channel>,
    offer: &abi::InitIn,
    options: &InitOptions,
) -> Result<(Option<Ring>, Option<IoUringError>), SessionError> {
    if options.io_uring == IoUring::Off {
        return Ok((None, None));
    }
    let made = if init::offered(offer).contains(Capabilities::OVER_IO_URING) {
        Ring::new(channel, options.max_write)
    } else {
        Err(IoUringError::NotOffered)
    };
    match made {
        Ok(ring) => Ok((Some(ring), None)),
        Err(error) if options.io_uring == IoUring::Auto => Ok((None, Some(error))),
        Err(error) => Err(SessionError::IoUring(error)),
    }
}

/// Registers the entries of a ring. The kernel uses `/dev/fuse` where it refuses them.
fn registered(ring: Option<Ring>) -> Result<Option<Ring>, IoUringError> {
    let Some(mut ring) = ring else { return Ok(None) };
    ring.register()?;
    Ok(Some(ring))
}
