//! FUSE over io_uring: requests come and answers go by memory that the kernel shares with us.
//!
//! The kernel has a queue for each CPU that there can be. A request goes into the queue of its
//! caller's CPU and takes an *entry* of that queue: memory for one request and its answer. Our side
//! registers entries, finds requests in the completion queue, and answers with a command that
//! commits the answer and offers the entry again. One thread and one io_uring serve all queues. The
//! session uses this where [`InitOptions::io_uring`](crate::InitOptions) asks for it and the kernel
//! has it; FORGET, INTERRUPT and notifications stay on `/dev/fuse`.
//!
//! Life of an entry: registered, *armed* (the kernel may write to it), taken with a request, and
//! armed again by the commit of its answer. Only its owner touches its memory: the table of armed
//! entries, a [`Taken`], or the list of answers to be committed.
//!
//! A request in hand keeps its entry, for as long as it waits for a lock or for a server, and a
//! queue without a free entry holds up its CPU: also the unlock for which all wait. So a queue that
//! has few free entries gets more.
//!
//! Always true:
//! - Commands are passed to the kernel by the serving thread only, because the kernel works for
//!   them on the thread that passed them, and takes back those of a thread that ends. An answer
//!   from elsewhere is listed, and the serving thread woken.
//! - Memory is unmapped only once the kernel has given the entry back.

mod cpus;
mod entries;
pub(crate) mod message;

use std::{
    collections::VecDeque,
    io, mem,
    os::fd::AsRawFd,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use rustix::{io::Errno, io_uring::IoringOp};
use tokio::{io::unix::AsyncFd, sync::Notify};

use crate::{
    abi,
    channel::Channel,
    init::Threads,
    request::Malformed,
    sys::{
        self,
        ring::{Completion, Rings},
    },
    types::Unique,
};
use entries::{Entries, RingEntry};

/// Why a mount cannot use io_uring.
#[derive(Debug, thiserror::Error)]
pub enum IoUringError {
    /// The module parameter is off, or the kernel is older than Linux 6.14.
    #[error(
        "the kernel does not offer FUSE over io_uring: it is older than Linux 6.14, or \
         /sys/module/fuse/parameters/enable_uring is N"
    )]
    NotOffered,
    /// No io_uring could be made: `kernel.io_uring_disabled`, a filter of system calls, a limit.
    #[error("the kernel refuses io_uring")]
    Refused(#[source] io::Error),
    /// The number of CPUs is not to be found.
    #[error("cannot read the number of CPUs path={}", cpus::POSSIBLE)]
    Cpus(#[source] io::Error),
    /// There is no memory for entries.
    #[error("no memory for the entries of io_uring")]
    Memory(#[source] io::Error),
    /// The kernel refused an entry.
    #[error("the kernel refuses the entries of io_uring")]
    Register(#[source] io::Error),
    /// An entry could not be given to the kernel, which waits for it.
    #[error("the kernel does not get the entries of io_uring")]
    Start(#[source] io::Error),
}

impl IoUringError {
    /// Whether the kernel sends requests to `/dev/fuse` then: it does once it has refused an entry
    /// itself.
    pub(crate) fn lets_device(&self) -> bool {
        match self {
            IoUringError::NotOffered | IoUringError::Register(_) => true,
            IoUringError::Refused(_)
            | IoUringError::Cpus(_)
            | IoUringError::Memory(_)
            | IoUringError::Start(_) => false,
        }
    }
}

/// Whether the kernel offers FUSE over io_uring to a mount that begins.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
/// Looks for the entries that the kernel gives back when the mount ends.
const LAST_LOOKS_MAX: u32 = 10_000;

/// Has the kernel offer FUSE over io_uring to all mounts from now on, if it does not; only root may.
/// To be called before [`mount`](crate::mount). Returns whether that was changed.
///
/// # Errors
/// When the kernel has no such parameter, or it cannot be set.
pub fn enable_io_uring() -> io::Result<bool> {
    // Opening the device loads the module, which has the parameter.
    drop(sys::open_device()?);
    if std::fs::read_to_string(ENABLE_URING)?.trim() == "Y" {
        return Ok(false);
    }
    std::fs::write(ENABLE_URING, "Y")?;
    Ok(true)
}

/// Answers that the serving thread has to pass to the kernel.
#[derive(Debug, Default)]
struct Pending {
    commits: Vec<(RingEntry, Unique)>,
    /// The serving thread sleeps, or is about to.
    parked: bool,
}

/// Answers on their way to the serving thread, from whichever thread gives them.
#[derive(Debug, Default)]
struct Answers {
    pending: Mutex<Pending>,
    given: Notify,
}

/// An entry with a request that must be answered.
#[derive(Debug)]
pub(crate) struct Taken {
    entry: RingEntry,
    unique: Unique,
    answers: Arc<Answers>,
}

impl Taken {
    /// Copies the request as read(2) of `/dev/fuse` would give it, and returns its length.
    pub(crate) fn message(&self, into: &mut [u8]) -> Result<usize, Malformed> {
        let memory = &self.entry.memory;
        message::assemble(&memory.header(), memory.payload_bytes(), into, |payload| {
            memory.read_payload(payload);
        })
    }

    /// Answers (`error` is 0 or a negative errno). An answer that is too large becomes EIO.
    pub(crate) fn answer(mut self, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let fits = payload <= self.entry.memory.payload_bytes();
        if fits {
            let mut at = 0;
            for part in parts {
                self.entry.memory.write_payload(at, part);
                at += part.len();
            }
            self.commit(error, payload);
            Ok(())
        } else {
            self.commit(-Errno::IO.raw_os_error(), 0);
            Err(Errno::TOOBIG)
        }
    }

    fn commit(mut self, error: i32, payload: usize) {
        let payload = u32::try_from(payload).expect("a payload is far below 4 GiB");
        let head = u32::try_from(size_of::<abi::OutHeader>()).expect("16 bytes");
        let header = abi::OutHeader { len: head + payload, error, unique: self.unique.0 };
        self.entry.memory.write_header(header, payload);
        let mut pending = self.answers.pending.lock();
        pending.commits.push((self.entry, self.unique));
        let wake = mem::take(&mut pending.parked);
        drop(pending);
        if wake {
            self.answers.given.notify_one();
        }
    }
}

/// Reason for which a [`Ring::wait`] has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// There may be requests or answers.
    Ring,
    /// `/dev/fuse` has something to read, or has ended.
    Device,
}

/// The queues of a connection, dealt to threads, before the kernel is told that there will be any:
/// from then on it holds back all requests until each queue has an entry.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Queues that no other thread serves, for the one that agrees with the kernel.
    pub(crate) rest: Option<Prepared>,
    /// The queue of a CPU each, with its number.
    pub(crate) each: Vec<(u16, Prepared)>,
    /// The largest write, in bytes, whose memory is not too much.
    pub(crate) max_write: u32,
    /// The largest number of pages of a request that fit into a payload.
    pub(crate) max_pages: u16,
}

impl Queues {
    /// All queues for one thread; or each for a thread of its own, where this thread may run on its
    /// CPU.
    pub(crate) fn prepare(
        channel: &Arc<Channel>,
        max_write: u32,
        threads: Threads,
    ) -> Result<Queues, IoUringError> {
        let count = cpus::possible().map_err(IoUringError::Cpus)?;
        let max_write = entries::affordable(max_write, count);
        let own = match threads {
            Threads::One => Vec::new(),
            Threads::EachCpu => cpus::own(count),
        };
        let rest: Vec<u16> = (0..count).filter(|cpu| !own.contains(cpu)).collect();
        let prepare = |served: &[u16]| Prepared::new(channel, served, count, max_write);
        let each = own
            .iter()
            .map(|cpu| Ok((*cpu, prepare(&[*cpu])?)))
            .collect::<Result<Vec<_>, IoUringError>>()?;
        let rest = if rest.is_empty() { None } else { Some(prepare(&rest)?) };
        let any = rest.as_ref().or(each.first().map(|(_, prepared)| prepared));
        let max_pages = any.map_or(0, |prepared| prepared.entries.max_pages());
        Ok(Queues { rest, each, max_write, max_pages })
    }
}

/// A ring and the memory of the first entries of some queues, which no thread serves yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    rings: Rings,
    channel: Arc<Channel>,
    entries: Entries,
}

impl Prepared {
    fn new(
        channel: &Arc<Channel>,
        served: &[u16],
        cpus: u16,
        max_write: u32,
    ) -> Result<Prepared, IoUringError> {
        let entries = Entries::new(served, cpus, max_write)?;
        let refused = |errno: Errno| IoUringError::Refused(errno.into());
        let rings = Rings::new(entries.most()).map_err(refused)?;
        Ok(Prepared { rings, channel: Arc::clone(channel), entries })
    }

    /// Registers the first entries, when the kernel has been told that there is a ring. This thread
    /// serves it from now on.
    ///
    /// Each queue gets one before any gets more. A refusal before all have one makes the kernel use
    /// `/dev/fuse`; later ones change nothing.
    pub(crate) fn start(self) -> Result<Ring, IoUringError> {
        let failed = |errno: Errno| IoUringError::Start(errno.into());
        let rings = sys::ring::watch(self.rings).map_err(IoUringError::Start)?;
        let mut ring = Ring {
            rings,
            channel: self.channel,
            answers: Arc::default(),
            entries: self.entries,
            found: VecDeque::new(),
            spare: Vec::new(),
            refused: None,
            gone: false,
        };
        let first = ring.entries.first_of_each();
        let rest = mem::replace(&mut ring.entries.fresh, first);
        ring.submit().map_err(failed)?;
        ring.look().map_err(failed)?;
        if ring.rings.get_ref().unsubmitted() > 0 {
            return Err(failed(Errno::AGAIN));
        }
        match ring.refused {
            // A rule of the machine's, before the file system was asked.
            Some(errno @ (Errno::ACCESS | Errno::PERM)) => return Err(failed(errno)),
            Some(errno) => return Err(IoUringError::Register(errno.into())),
            None => {}
        }
        ring.entries.fresh = rest;
        ring.submit().map_err(failed)?;
        Ok(ring)
    }
}

/// The serving thread's side of its queues.
#[derive(Debug)]
pub(crate) struct Ring {
    rings: AsyncFd<Rings>,
    channel: Arc<Channel>,
    answers: Arc<Answers>,
    entries: Entries,
    /// Requests that were found before someone asked for them.
    found: VecDeque<Taken>,
    /// A list without contents, in place of the one being committed.
    spare: Vec<(RingEntry, Unique)>,
    refused: Option<Errno>,
    /// The kernel has said that the mount is gone.
    gone: bool,
}

impl Ring {
    /// Passes answers and new entries to the kernel, in one call where they fit. False when there
    /// are none.
    pub(crate) fn submit(&mut self) -> Result<bool, Errno> {
        self.gather_commands()?;
        let any = self.rings.get_ref().unsubmitted() > 0;
        if any {
            self.rings.get_mut().enter()?;
        }
        Ok(any)
    }

    /// The same, and blocks this thread until the kernel has something for it: in one call, which
    /// sleeps before the process that was answered runs on this CPU. For when no request is in hand.
    pub(crate) fn submit_and_wait(&mut self) -> Result<(), Errno> {
        self.gather_commands()?;
        self.rings.get_mut().enter_and_wait()
    }

    /// Puts answers and new entries into the submission queue.
    fn gather_commands(&mut self) -> Result<(), Errno> {
        let mut commits = mem::take(&mut self.spare);
        mem::swap(&mut commits, &mut self.answers.pending.lock().commits);
        for (entry, unique) in commits.drain(..) {
            let cmd =
                abi::UringCmdReq { commit_id: unique.0, qid: entry.queue, ..Default::default() };
            self.arm(entry, abi::IO_URING_CMD_COMMIT_AND_FETCH, cmd, 0)?;
        }
        self.spare = commits;
        for mut entry in mem::take(&mut self.entries.fresh) {
            let cmd = abi::UringCmdReq { qid: entry.queue, ..Default::default() };
            let iovecs = entry.memory.iovecs();
            self.arm(entry, abi::IO_URING_CMD_REGISTER, cmd, iovecs)?;
        }
        Ok(())
    }

    /// Queues the command that gives an entry to the kernel.
    fn arm(
        &mut self,
        entry: RingEntry,
        cmd_op: u32,
        cmd: abi::UringCmdReq,
        iovecs: u64,
    ) -> Result<(), Errno> {
        let sqe = abi::UringSqe {
            opcode: sys::ring::opcode(IoringOp::UringCmd),
            fd: self.channel.as_raw_fd(),
            cmd_op,
            addr: iovecs,
            len: if iovecs == 0 { 0 } else { sys::ring::IOVECS },
            user_data: u64::from(entry.id),
            cmd,
            ..Default::default()
        };
        while !self.rings.get_mut().push(&sqe) {
            self.rings.get_mut().enter()?;
        }
        self.entries.arm(entry);
        Ok(())
    }

    /// Takes the next request, if one is there: a look into memory.
    pub(crate) fn next(&mut self) -> Result<Option<Taken>, Errno> {
        if self.found.is_empty() { self.take() } else { Ok(self.found.pop_front()) }
    }

    /// Finds the requests that are there.
    fn look(&mut self) -> Result<(), Errno> {
        while let Some(taken) = self.take()? {
            self.found.push_back(taken);
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Taken>, Errno> {
        while let Some(completion) = self.rings.get_mut().pop() {
            if let Some(taken) = self.completed(completion)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// An entry came back, with a request or because the kernel does not want it any more.
    fn completed(&mut self, completion: Completion) -> Result<Option<Taken>, Errno> {
        let Some(mut entry) = self.entries.take(completion.user_data) else {
            let entry = completion.user_data;
            tracing::error!(entry, "the kernel gave back what it did not have");
            return Err(Errno::IO);
        };
        if completion.result < 0 {
            let errno = Errno::from_raw_os_error(-completion.result);
            return self.lost(&entry, errno).map(|()| None);
        }
        entry.registered = true;
        self.entries.keep_some_free(entry.queue);
        let unique = Unique(entry.memory.header().ring_ent_in_out.commit_id);
        Ok(Some(Taken { entry, unique, answers: Arc::clone(&self.answers) }))
    }

    /// The kernel gave an entry back without a request.
    fn lost(&mut self, entry: &RingEntry, errno: Errno) -> Result<(), Errno> {
        match errno {
            // The mount has gone, as reading `/dev/fuse` will tell.
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NOENT | Errno::CANCELED => {
                self.gone = true;
                Ok(())
            }
            _ if !entry.registered => {
                self.refused = Some(errno);
                self.entries.limit(entry.queue, errno);
                Ok(())
            }
            // The request is not answered, and never can be.
            _ => Err(errno),
        }
    }

    /// Whether the mount is gone and the kernel has given back all it had.
    pub(crate) fn is_over(&self) -> bool {
        self.gone && self.entries.armed() == 0
    }

    /// Waits for requests, answers, or `device`. Each is looked at by the caller afterwards.
    pub(crate) async fn wait(
        &mut self,
        device: impl Future<Output = io::Result<()>>,
    ) -> io::Result<Woken> {
        if !self.park() {
            return Ok(Woken::Ring);
        }
        let woken = {
            let (rings, answers) = (&self.rings, &self.answers);
            let mut device = pin!(device);
            let mut ready = pin!(rings.readable());
            let mut given = pin!(answers.given.notified());
            std::future::poll_fn(|cx: &mut Context<'_>| {
                if let Poll::Ready(done) = device.as_mut().poll(cx) {
                    return Poll::Ready(done.map(|()| Woken::Device));
                }
                if let Poll::Ready(ready) = ready.as_mut().poll(cx) {
                    return Poll::Ready(ready.map(|mut guard| {
                        guard.clear_ready();
                        Woken::Ring
                    }));
                }
                given.as_mut().poll(cx).map(|()| Ok(Woken::Ring))
            })
            .await
        };
        self.answers.pending.lock().parked = false;
        woken
    }

    /// Says that the serving thread will sleep. False when there is something to do first.
    fn park(&self) -> bool {
        let mut pending = self.answers.pending.lock();
        pending.parked = pending.commits.is_empty()
            && self.entries.fresh.is_empty()
            && self.found.is_empty()
            && self.rings.get_ref().unsubmitted() == 0;
        pending.parked
    }

    /// Takes back the entries of a mount that has gone, which the kernel gives back soon; looks
    /// often, and lets other tasks run.
    pub(crate) async fn take_back(&mut self, turn: impl AsyncFn()) {
        for _ in 0..LAST_LOOKS_MAX {
            if self.look().is_err() || self.entries.armed() == 0 {
                break;
            }
            std::thread::yield_now();
            turn().await;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = self.look();
        if self.entries.armed() > 0 {
            // The mount is still there. The kernel may write to these until it has seen that the
            // ring is closed, so their memory stays mapped.
            tracing::debug!(
                entries = self.entries.armed(),
                "entries of io_uring are still the kernel's"
            );
            self.entries.drain_armed().for_each(mem::forget);
        }
    }
}
