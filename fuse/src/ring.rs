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
    request::Malformed,
    sys::{
        self,
        ring::{Completion, EntryMemory, Rings},
    },
    types::Unique,
};

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
    #[error("cannot read the number of CPUs path={POSSIBLE_CPUS}")]
    Cpus(#[source] io::Error),
    /// There is no memory for entries.
    #[error("no memory for the entries of io_uring")]
    Memory(#[source] io::Error),
    /// The kernel refused an entry.
    #[error("the kernel refuses the entries of io_uring")]
    Register(#[source] io::Error),
}

/// Whether the kernel offers FUSE over io_uring to a mount that begins.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// Entries of a queue at the beginning.
const ENTRIES_MIN: u32 = 8;
/// Entries of a queue at most.
const ENTRIES_MAX: u32 = 4096;
/// Entries that a queue gets in one go at most.
const STEP_MAX: u32 = 64;
/// A queue with fewer free entries gets more.
const FREE_MIN: u32 = 4;
/// The kernel's limit of completions; each entry may have one.
const COMPLETIONS_MAX: u32 = 1 << 16;
/// Payloads of all queues together, at the beginning, in bytes.
const PAYLOADS_MAX: u64 = 64 << 20;
/// The smallest payload, which holds every xattr, and the smallest largest write.
const PAYLOAD_MIN: u32 = 128 << 10;
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

/// Place of an entry in the table, and its queue.
#[derive(Debug)]
struct RingEntry {
    memory: EntryMemory,
    id: u32,
    queue: u16,
    /// The kernel has taken it.
    registered: bool,
}

/// One queue of the kernel's.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// Number of entries that were made for it.
    entries: u32,
    /// Number of entries that no request has.
    free: u32,
    /// No more can be registered.
    full: bool,
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

/// The serving thread's side of all queues.
#[derive(Debug)]
pub(crate) struct Ring {
    rings: AsyncFd<Rings>,
    channel: Arc<Channel>,
    answers: Arc<Answers>,
    /// Armed entries, by their ids.
    table: Vec<Option<RingEntry>>,
    armed: usize,
    queues: Vec<Queue>,
    entries_max: u32,
    /// Entries to be registered.
    fresh: Vec<RingEntry>,
    /// Requests that were found before someone asked for them.
    found: VecDeque<Taken>,
    /// A list without contents, in place of the one being committed.
    spare: Vec<(RingEntry, Unique)>,
    max_write: u32,
    payload_bytes: usize,
    refused: Option<Errno>,
}

impl Ring {
    /// Makes the ring and the memory of the first entries, before the kernel is told that there
    /// will be one: from then on it holds back all requests until each queue has an entry.
    pub(crate) fn new(channel: &Arc<Channel>, max_write: u32) -> Result<Ring, IoUringError> {
        let cpus = possible_cpus().map_err(IoUringError::Cpus)?;
        let entries_max = ENTRIES_MAX.min(COMPLETIONS_MAX / u32::from(cpus));
        let refused = |errno: Errno| IoUringError::Refused(errno.into());
        let rings = Rings::new(entries_max * u32::from(cpus)).map_err(refused)?;
        let rings = sys::ring::watch(rings).map_err(IoUringError::Refused)?;
        let max_write = affordable(max_write, cpus);
        let mut ring = Ring {
            rings,
            channel: Arc::clone(channel),
            answers: Arc::default(),
            table: Vec::new(),
            armed: 0,
            queues: vec![Queue::default(); usize::from(cpus)],
            entries_max,
            fresh: Vec::new(),
            found: VecDeque::new(),
            spare: Vec::new(),
            max_write,
            payload_bytes: payload_bytes(max_write),
            refused: None,
        };
        for queue in 0..cpus {
            ring.grow(queue, ENTRIES_MIN.min(entries_max))
                .map_err(|errno| IoUringError::Memory(errno.into()))?;
        }
        Ok(ring)
    }

    /// The largest write, in bytes, whose memory is not too much.
    pub(crate) fn max_write(&self) -> u32 {
        self.max_write
    }

    /// The largest number of pages of a request that fit into a payload.
    pub(crate) fn max_pages(&self) -> u16 {
        let pages = self.payload_bytes / rustix::param::page_size();
        u16::try_from(pages).unwrap_or(u16::MAX)
    }

    /// Registers the first entries, when the kernel has been told that there is a ring.
    ///
    /// Each queue gets one before any gets more. A refusal before all have one makes the kernel use
    /// `/dev/fuse`; later ones change nothing.
    pub(crate) fn register(&mut self) -> Result<(), IoUringError> {
        let failed = |errno: Errno| IoUringError::Register(errno.into());
        let mut rest = mem::take(&mut self.fresh);
        let mut seen = vec![false; self.queues.len()];
        let first =
            |entry: &mut RingEntry| !mem::replace(&mut seen[usize::from(entry.queue)], true);
        self.fresh = rest.extract_if(.., first).collect();
        self.submit().map_err(failed)?;
        self.look().map_err(failed)?;
        if self.rings.get_ref().unsubmitted() > 0 {
            return Err(failed(Errno::AGAIN));
        }
        if let Some(errno) = self.refused {
            return Err(failed(errno));
        }
        self.fresh = rest;
        self.submit().map_err(failed)?;
        Ok(())
    }

    /// Makes more entries for a queue, which the next [`Ring::submit`] registers.
    fn grow(&mut self, queue: u16, entries: u32) -> Result<(), Errno> {
        for memory in EntryMemory::map(entries, self.payload_bytes)? {
            let id = u32::try_from(self.table.len()).expect("there are 65,536 entries at most");
            self.table.push(None);
            self.fresh.push(RingEntry { memory, id, queue, registered: false });
        }
        let queue = &mut self.queues[usize::from(queue)];
        queue.entries += entries;
        Ok(())
    }

    /// Passes answers and new entries to the kernel, in one call where they fit. False when there
    /// are none.
    pub(crate) fn submit(&mut self) -> Result<bool, Errno> {
        let mut commits = mem::take(&mut self.spare);
        mem::swap(&mut commits, &mut self.answers.pending.lock().commits);
        for (entry, unique) in commits.drain(..) {
            let cmd =
                abi::UringCmdReq { commit_id: unique.0, qid: entry.queue, ..Default::default() };
            self.arm(entry, abi::IO_URING_CMD_COMMIT_AND_FETCH, cmd, 0)?;
        }
        self.spare = commits;
        for mut entry in mem::take(&mut self.fresh) {
            let cmd = abi::UringCmdReq { qid: entry.queue, ..Default::default() };
            let iovecs = entry.memory.iovecs();
            self.arm(entry, abi::IO_URING_CMD_REGISTER, cmd, iovecs)?;
        }
        let any = self.rings.get_ref().unsubmitted() > 0;
        if any {
            self.rings.get_mut().enter()?;
        }
        Ok(any)
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
        self.queues[usize::from(entry.queue)].free += 1;
        self.armed += 1;
        let at = usize::try_from(entry.id).expect("an index");
        self.table[at] = Some(entry);
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
        let at = usize::try_from(completion.user_data).map_err(|_| Errno::IO)?;
        let entry = self.table.get_mut(at).and_then(Option::take);
        let Some(mut entry) = entry else {
            tracing::error!(entry = at, "the kernel gave back what it did not have");
            return Err(Errno::IO);
        };
        self.armed -= 1;
        let number = entry.queue;
        let queue = &mut self.queues[usize::from(number)];
        queue.free -= 1;
        if completion.result < 0 {
            let errno = Errno::from_raw_os_error(-completion.result);
            return self.lost(&entry, errno).map(|()| None);
        }
        entry.registered = true;
        if queue.free < FREE_MIN && !queue.full {
            let room = self.entries_max.saturating_sub(queue.entries);
            let step = queue.entries.min(STEP_MAX).min(room);
            let grown = if step == 0 { Err(Errno::NOSPC) } else { self.grow(number, step) };
            if let Err(errno) = grown {
                self.limit(number, errno);
            }
        }
        let unique = Unique(entry.memory.header().ring_ent_in_out.commit_id);
        Ok(Some(Taken { entry, unique, answers: Arc::clone(&self.answers) }))
    }

    /// The kernel gave an entry back without a request.
    fn lost(&mut self, entry: &RingEntry, errno: Errno) -> Result<(), Errno> {
        match errno {
            // The mount has gone, as reading `/dev/fuse` will tell.
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NOENT | Errno::CANCELED => Ok(()),
            _ if !entry.registered => {
                self.refused = Some(errno);
                self.limit(entry.queue, errno);
                Ok(())
            }
            // The request is not answered, and never can be.
            _ => Err(errno),
        }
    }

    fn limit(&mut self, number: u16, errno: Errno) {
        let queue = &mut self.queues[usize::from(number)];
        queue.full = true;
        let entries = queue.entries;
        tracing::warn!(cpu = number, entries, %errno, "a queue of io_uring gets no more entries");
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
            && self.fresh.is_empty()
            && self.found.is_empty()
            && self.rings.get_ref().unsubmitted() == 0;
        pending.parked
    }

    /// Takes back the entries of a mount that has gone, which the kernel gives back soon; looks
    /// often, and lets other tasks run.
    pub(crate) async fn gather(&mut self, turn: impl AsyncFn()) {
        for _ in 0..LAST_LOOKS_MAX {
            if self.look().is_err() || self.armed == 0 {
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
        if self.armed > 0 {
            // The mount is still there. The kernel may write to these until it has seen that the
            // ring is closed, so their memory stays mapped.
            tracing::debug!(entries = self.armed, "entries of io_uring are still the kernel's");
            self.table.drain(..).flatten().for_each(mem::forget);
        }
    }
}

/// Number of CPUs that there can be, which is the number of the kernel's queues.
fn possible_cpus() -> io::Result<u16> {
    let list = std::fs::read_to_string(POSSIBLE_CPUS)?;
    cpus(&list).ok_or_else(|| io::Error::other(format!("no list of CPUs: {list}")))
}

/// Counts the CPUs in a list such as `0-3,6`.
fn cpus(list: &str) -> Option<u16> {
    let mut count = 0_u16;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// The largest write, up to `max_write`, with which the first payloads of so many CPUs are not too
/// much memory.
fn affordable(max_write: u32, cpus: u16) -> u32 {
    let each = PAYLOADS_MAX / (u64::from(cpus) * u64::from(ENTRIES_MIN));
    let each = u32::try_from(each).unwrap_or(u32::MAX) & !4095;
    max_write.min(each.max(PAYLOAD_MIN))
}

/// Length of a payload: whole pages, for the largest write and the largest xattr.
fn payload_bytes(max_write: u32) -> usize {
    let bytes = usize::try_from(max_write.max(PAYLOAD_MIN)).expect("at most 1 MiB");
    bytes.next_multiple_of(rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(cpus("0\n"), Some(1));
        assert_eq!(cpus("0-1\n"), Some(2));
        assert_eq!(cpus("0-3,6,8-9\n"), Some(7));
        for wrong in ["", "a", "3-1", "0-65535,0-65535", "0-"] {
            assert_eq!(cpus(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_largest_write_shrinks_where_cpus_are_many_and_never_below_128_kib() {
        assert_eq!(affordable(1 << 20, 1), 1 << 20);
        assert_eq!(affordable(1 << 20, 8), 1 << 20);
        assert_eq!(affordable(1 << 20, 16), 512 << 10);
        assert_eq!(affordable(1 << 20, 24), 348_160);
        assert_eq!(affordable(1 << 20, 1024), 128 << 10);
        assert_eq!(affordable(4096, 1024), 4096);
        assert_eq!(payload_bytes(4096), 128 << 10);
        assert_eq!(payload_bytes(1 << 20), 1 << 20);
    }
}
