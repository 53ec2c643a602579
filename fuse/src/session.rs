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

mod desk;
mod over_ring;
mod policy;
#[cfg(test)]
mod tests;
mod workers;

use std::{io, pin::pin, sync::Arc};

use bytes::Bytes;
use futures::future::{Either, select};
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};
use zerocopy::IntoBytes;

use crate::{
    abi,
    buffer::Pool,
    channel::Channel,
    init::{self, Answer, Capabilities, InitOptions, IoUring, Negotiated},
    mount::Connection,
    notify::Notifier,
    reply::Reply,
    request::{self, Message, Request, Source},
    ring::{IoUringError, Prepared, Queues, Ring},
    sys,
    types::NodeId,
};
use desk::{Desk, turn, writable};
use workers::Workers;

pub use workers::Worker;

/// The file system behind a mount.
pub trait Handler {
    /// A request came. The reply is sent here, or moved into a task that sends it later; this call
    /// itself must not block.
    fn request(&self, request: Request<'_>, reply: Reply);

    /// Drops so many of the look-ups that the kernel counted for this node.
    fn forget(&self, node: NodeId, lookups: u64);

    /// The file system was unmounted; nothing more will come. Only some mounts send it.
    fn destroy(&self) {}

    /// Whether no task of this thread goes on with a request that was answered already: while that
    /// is so and no request is in hand, the thread may sleep until the kernel has one.
    fn is_idle(&self) -> bool {
        true
    }
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
    /// A thread that takes requests cannot be started, or has ended.
    #[error("cannot serve the mount on each CPU")]
    Thread(#[source] io::Error),
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
    desk: Desk,
    ring: Option<Ring>,
    workers: Workers,
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
        let agreed = match shared.negotiated.get() {
            Some(negotiated) => Agreed {
                negotiated: *negotiated,
                ring: None,
                workers: Workers::default(),
                without_ring: None,
            },
            None => {
                let agreed = handshake(&fd, options).await?;
                let negotiated = *shared.negotiated.get_or_init(|| agreed.negotiated);
                Agreed { negotiated, ..agreed }
            }
        };
        let Agreed { negotiated, ring, workers, without_ring } = agreed;
        let pool = Pool::new(buffer_size(negotiated.max_write));
        let desk = Desk::new(fd.get_ref(), &pool, negotiated);
        Ok(Session { fd, desk, ring, workers, without_ring })
    }

    /// Returns the result of the negotiation with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.desk.negotiated
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

    /// Serves until the file system is unmounted, and until its workers have ended. Replies that are
    /// still out stay valid; no process waits for their answers then.
    ///
    /// # Errors
    /// When the device fails, or a worker.
    ///
    /// # Panics
    /// When the session agreed on workers that were not started: the kernel would wait for them.
    pub async fn run(mut self, handler: &impl Handler) -> Result<Ended, SessionError> {
        assert!(self.workers.are_started(), "the workers of a session are started before it runs");
        let (ring, mut ends) = (self.ring.take(), self.workers.ends());
        let own = async {
            match ring {
                Some(ring) => self.desk.over_ring(ring, Some(&self.fd), None, handler).await,
                None => self.over_device(handler).await,
            }
        };
        // One that has failed leaves a queue to nobody, so the mount ends with it.
        let ended = match select(pin!(own), pin!(ends.failed())).await {
            Either::Left((ended, _)) => ended?,
            Either::Right((error, _)) => return Err(error),
        };
        ends.all().await?;
        Ok(ended)
    }

    async fn over_device(&self, handler: &impl Handler) -> Result<Ended, SessionError> {
        let mut buffer = self.desk.pool.get();
        let (mut budget, mut looks) = (BUDGET, 0);
        // Where others take the requests, nobody waits for what is read here.
        let looks_max = if self.workers.are_any() { 0 } else { LOOKS_MAX };
        loop {
            match next(self.channel(), writable(&mut buffer, &self.desk.pool))? {
                Next::Bytes(len) => {
                    let before = self.desk.in_hand();
                    self.desk.dispatch(&buffer, len, None, handler);
                    self.desk.give_turns(before, || Ok(())).await?;
                    looks = 0;
                }
                Next::Again => {}
                Next::Empty if looks < looks_max && self.desk.in_hand() == 0 => {
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

    fn channel(&self) -> &Arc<Channel> {
        &self.desk.channel
    }
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
    workers: Workers,
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
        let (queues, mut without_ring) = queues(channel, &offer, options)?;
        if let Some(queues) = &queues {
            wish.capabilities.insert(Capabilities::OVER_IO_URING);
            wish.max_write = queues.max_write;
        }
        match init::negotiate(&offer, &wish) {
            Answer::Agreed(mut negotiated, mut out) => {
                if let Some(queues) = &queues {
                    out.max_pages = queues.max_pages;
                }
                channel.write(head.unique, 0, &[out.as_bytes()])?;
                let (mut ring, mut workers) = (None, Workers::default());
                if let Some(Queues { rest, each, .. }) = queues {
                    match rest.map(Prepared::start).transpose() {
                        Ok(started) => {
                            ring = started;
                            workers = Workers::new(each, options.io_uring);
                        }
                        Err(error) if options.io_uring == IoUring::Auto && error.lets_device() => {
                            negotiated.capabilities.remove(Capabilities::OVER_IO_URING);
                            without_ring = Some(error);
                        }
                        Err(error) => return Err(SessionError::IoUring(error)),
                    }
                }
                return Ok(Agreed { negotiated, ring, workers, without_ring });
            }
            Answer::AskAgain(out) => channel.write(head.unique, 0, &[out.as_bytes()])?,
            Answer::TooOld => {
                channel.write(head.unique, -Errno::PROTO.raw_os_error(), &[])?;
                return Err(SessionError::TooOld);
            }
        }
    }
}

/// The queues that the options ask for, or why there are none.
fn queues(
    channel: &Arc<Channel>,
    offer: &abi::InitIn,
    options: &InitOptions,
) -> Result<(Option<Queues>, Option<IoUringError>), SessionError> {
    if options.io_uring == IoUring::Off {
        return Ok((None, None));
    }
    let made = if init::offered(offer).contains(Capabilities::OVER_IO_URING) {
        Queues::prepare(channel, options.max_write, options.threads)
    } else {
        Err(IoUringError::NotOffered)
    };
    match made {
        Ok(queues) => Ok((Some(queues), None)),
        Err(error) if options.io_uring == IoUring::Auto => Ok((None, Some(error))),
        Err(error) => Err(SessionError::IoUring(error)),
    }
}
