//! io_uring: its system calls, the two rings that the kernel shares with us, and the memory of
//! entries, which it reads and writes by their addresses.
//!
//! [`crate::ring`] is the only caller. Invariant: an [`EntryMemory`] has one owner. The kernel uses
//! the memory between a command that names it and the completion of that command, and its owner at
//! all other times.

#![expect(unsafe_code, reason = "memory that is shared with the kernel is used by its address")]

use std::{
    ffi::c_void,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::{
    io::Errno,
    io_uring::{
        IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringFeatureFlags, IoringOp,
        IoringSetupFlags, io_uring_enter, io_uring_params, io_uring_setup,
    },
    mm::{Advice, MapFlags, ProtFlags},
};
use tokio::io::{Interest, unix::AsyncFd};
use zerocopy::{FromZeros, IntoBytes};

use crate::abi;

/// Commands that fit into the submission queue at a time; more are passed in several calls.
const SUBMISSIONS: u32 = 64;

/// Memory mapped for as long as this value lives.
#[derive(Debug)]
struct Map {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: a map is an address and a length. What may be done at the address, and by which thread,
// is for the types below to say.
unsafe impl Send for Map {}
// SAFETY: as above; a shared reference gives nothing but the address.
unsafe impl Sync for Map {}

impl Map {
    /// Memory that exists once it is touched, in small pages: the first byte of a payload must not
    /// bring a huge page along.
    fn anonymous(len: usize) -> Result<Map, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so nothing that is mapped is changed.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        let map = Map::new(start, len)?;
        // SAFETY: the advice changes the size of pages, never their contents. A kernel without huge
        // pages refuses it, and needs none.
        let _ = unsafe { rustix::mm::madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(map)
    }

    /// Memory of a ring.
    fn of_ring(fd: &OwnedFd, offset: u64, len: usize) -> Result<Map, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so nothing that is mapped is changed.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, fd, offset) }?;
        Map::new(start, len)
    }

    fn new(start: *mut c_void, len: usize) -> Result<Map, Errno> {
        Ok(Map { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len })
    }

    /// Address of a value of type `T` at this offset.
    ///
    /// # Panics
    /// When the value would reach beyond the map or is not aligned.
    fn at<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>()).expect("offsets are small");
        assert!(end <= self.len && offset.is_multiple_of(align_of::<T>()), "outside the map");
        // SAFETY: the offset is within the map, as was just asserted.
        unsafe { self.start.as_ptr().byte_add(offset) }.cast()
    }

    /// An atomic number at this offset.
    fn atomic(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: `at` has checked bounds and alignment, the map lives as long as the reference,
        // and both sides use these numbers as atomics only.
        unsafe { AtomicU32::from_ptr(self.at(index(offset))) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this value alone owns the map, and all references into it borrow this value.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

/// Widens an offset or a number of the kernel.
fn index(number: u32) -> usize {
    usize::try_from(number).expect("a usize has 32 bits at least")
}

/// End of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Number that the command carried.
    pub(crate) user_data: u64,
    /// Zero, or a negative errno.
    pub(crate) result: i32,
}

/// One entry of the completion queue, as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cqe {
    user_data: u64,
    res: i32,
    flags: u32,
}

/// Where the numbers and queues of a ring are, and how many commands and completions they hold.
#[derive(Debug)]
struct Places {
    sq_head: u32,
    sq_tail: u32,
    sq_entries: u32,
    cq_head: u32,
    cq_tail: u32,
    cq_entries: u32,
    cqes: usize,
}

/// An io_uring: its descriptor, its submission queue and its completion queue.
#[derive(Debug)]
pub(crate) struct Rings {
    fd: OwnedFd,
    rings: Map,
    sqes: Map,
    places: Places,
    /// Number of commands that were put into the submission queue since the beginning.
    pushed: u32,
    /// Number of completions that were taken since the beginning.
    popped: u32,
}

impl Rings {
    /// A ring whose completion queue holds so many completions at least, which has shown that it
    /// works.
    pub(crate) fn new(completions: u32) -> Result<Rings, Errno> {
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::SQE128
            | IoringSetupFlags::CQSIZE
            | IoringSetupFlags::NO_SQARRAY
            | IoringSetupFlags::COOP_TASKRUN
            | IoringSetupFlags::SUBMIT_ALL;
        params.cq_entries = completions;
        // SAFETY: no descriptor is passed in `params`.
        let fd = unsafe { io_uring_setup(SUBMISSIONS, &mut params) }?;
        if !params.features.contains(IoringFeatureFlags::SINGLE_MMAP) {
            return Err(Errno::NOSYS);
        }
        let places = Places {
            sq_head: params.sq_off.head,
            sq_tail: params.sq_off.tail,
            sq_entries: params.sq_entries,
            cq_head: params.cq_off.head,
            cq_tail: params.cq_off.tail,
            cq_entries: params.cq_entries,
            cqes: index(params.cq_off.cqes),
        };
        let len = places.cqes + index(places.cq_entries) * size_of::<Cqe>();
        let rings = Map::of_ring(&fd, IORING_OFF_SQ_RING, len)?;
        let sqes = index(params.sq_entries) * size_of::<abi::UringSqe>();
        let sqes = Map::of_ring(&fd, IORING_OFF_SQES, sqes)?;
        let mut made = Rings { fd, rings, sqes, places, pushed: 0, popped: 0 };
        made.prove()?;
        Ok(made)
    }

    /// A filter of system calls may allow to make a ring and forbid to use it.
    fn prove(&mut self) -> Result<(), Errno> {
        let nothing = abi::UringSqe { opcode: opcode(IoringOp::Nop), ..Default::default() };
        self.push(&nothing);
        self.enter()?;
        self.pop().map(|_| ()).ok_or(Errno::NOSYS)
    }

    /// Puts a command into the submission queue. False when the queue is full.
    pub(crate) fn push(&mut self, sqe: &abi::UringSqe) -> bool {
        if self.unsubmitted() == self.places.sq_entries {
            return false;
        }
        let slot = index(self.pushed & (self.places.sq_entries - 1)) * size_of::<abi::UringSqe>();
        // SAFETY: the slot is within the map and free: the kernel has read all but the last
        // `sq_entries` commands, and the one that is `sq_entries` behind is among those.
        unsafe { self.sqes.at::<abi::UringSqe>(slot).write(*sqe) };
        self.pushed = self.pushed.wrapping_add(1);
        self.rings.atomic(self.places.sq_tail).store(self.pushed, Ordering::Release);
        true
    }

    /// Number of commands that the kernel has not read yet.
    pub(crate) fn unsubmitted(&self) -> u32 {
        let head = self.rings.atomic(self.places.sq_head).load(Ordering::Acquire);
        self.pushed.wrapping_sub(head)
    }

    /// Passes the commands in the submission queue to the kernel. When it is short of memory some
    /// may be left, for the next call.
    ///
    /// The kernel works for a command on the thread that passes it, so that must be the thread that
    /// serves, and one that lives on.
    pub(crate) fn enter(&mut self) -> Result<(), Errno> {
        self.enter_for(0, IoringEnterFlags::empty())
    }

    /// Like [`enter`](Self::enter), and waits until a completion is there. A signal ends the wait,
    /// too.
    pub(crate) fn enter_and_wait(&mut self) -> Result<(), Errno> {
        self.enter_for(1, IoringEnterFlags::GETEVENTS)
    }

    fn enter_for(&mut self, completions: u32, flags: IoringEnterFlags) -> Result<(), Errno> {
        let count = self.unsubmitted();
        // SAFETY: a command names entries' memory only, which is mapped until the kernel has given
        // the entry back (see `crate::ring::Ring`).
        match unsafe { io_uring_enter(&self.fd, count, completions, flags) } {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes the next completion, without a system call.
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let tail = self.rings.atomic(self.places.cq_tail).load(Ordering::Acquire);
        if tail == self.popped {
            return None;
        }
        let slot = index(self.popped & (self.places.cq_entries - 1)) * size_of::<Cqe>();
        // SAFETY: the slot is within the map, and the kernel has written it before it moved the
        // tail, and does not write it again before the head has moved.
        let cqe = unsafe { self.rings.at::<Cqe>(self.places.cqes + slot).read() };
        self.popped = self.popped.wrapping_add(1);
        self.rings.atomic(self.places.cq_head).store(self.popped, Ordering::Release);
        Some(Completion { user_data: cqe.user_data, result: cqe.res })
    }
}

impl AsRawFd for Rings {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Registers a ring with the current runtime: readable is a ring with completions.
pub(crate) fn watch(rings: Rings) -> io::Result<AsyncFd<Rings>> {
    // SAFETY: the rings own their descriptor, and never change or close it while they live.
    unsafe { AsyncFd::register_with_interest(rings, Interest::READABLE) }.map_err(io::Error::from)
}

/// Operation code, as a command has it.
pub(crate) fn opcode(op: IoringOp) -> u8 {
    op as u8
}

/// Room of one entry for its header and the two addresses with which it is registered.
const HEAD_BYTES: usize = 512;
const IOVECS_AT: usize = size_of::<abi::UringReqHeader>();

/// `struct iovec`.
#[repr(C)]
struct Iovec {
    base: *mut c_void,
    len: usize,
}

/// Number of addresses with which an entry is registered.
pub(crate) const IOVECS: u32 = 2;
const _: () = assert!(IOVECS_AT.is_multiple_of(align_of::<Iovec>()));
const _: () = assert!(IOVECS_AT + 2 * size_of::<Iovec>() <= HEAD_BYTES);

/// Memory of several entries.
#[derive(Debug)]
struct Memory {
    heads: Map,
    payloads: Map,
    payload_bytes: usize,
}

/// Memory of one entry: its header, and a payload for names and contents.
#[derive(Debug)]
pub(crate) struct EntryMemory {
    memory: Arc<Memory>,
    number: u32,
}

impl EntryMemory {
    /// Maps memory for so many entries. Payloads are `payload_bytes` long, a multiple of a page.
    pub(crate) fn map(entries: u32, payload_bytes: usize) -> Result<Vec<EntryMemory>, Errno> {
        let len = |each: usize| index(entries).checked_mul(each).ok_or(Errno::NOMEM);
        let memory = Arc::new(Memory {
            heads: Map::anonymous(len(HEAD_BYTES)?)?,
            payloads: Map::anonymous(len(payload_bytes)?)?,
            payload_bytes,
        });
        let entry = |number| EntryMemory { memory: Arc::clone(&memory), number };
        Ok((0..entries).map(entry).collect())
    }

    /// Address of the [`IOVECS`] addresses with which this memory is registered.
    pub(crate) fn iovecs(&mut self) -> u64 {
        let base = index(self.number) * self.memory.payload_bytes;
        let header = self.head::<abi::UringReqHeader>(0).cast();
        let vectors = [
            Iovec { base: header, len: size_of::<abi::UringReqHeader>() },
            Iovec {
                base: self.memory.payloads.at::<u8>(base).cast(),
                len: self.memory.payload_bytes,
            },
        ];
        let at = self.head::<[Iovec; 2]>(IOVECS_AT);
        // SAFETY: `head` has checked the place, and the entry has one owner, us.
        unsafe { at.write(vectors) };
        u64::try_from(at.addr()).expect("an address has 64 bits at most")
    }

    /// Length of the payload.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.memory.payload_bytes
    }

    /// Returns a copy of the header.
    pub(crate) fn header(&self) -> abi::UringReqHeader {
        let mut header = abi::UringReqHeader::new_zeroed();
        let from = self.head::<u8>(0);
        let into = header.as_mut_bytes();
        // SAFETY: the header is within the map, the copy is a value of our own, and the entry is
        // ours, so nothing writes to it.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        header
    }

    /// Copies the beginning of the payload.
    ///
    /// # Panics
    /// When the payload is shorter.
    pub(crate) fn read_payload(&self, into: &mut [u8]) {
        let from = self.payload(0, into.len());
        // SAFETY: `payload` has checked the range, `into` is a slice of our own, and the entry is
        // ours, so nothing writes to it.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Writes to the payload, at an offset.
    ///
    /// # Panics
    /// When the bytes would reach beyond the payload.
    pub(crate) fn write_payload(&mut self, offset: usize, bytes: &[u8]) {
        let into = self.payload(offset, bytes.len());
        // SAFETY: `payload` has checked the range, `bytes` is no part of it because entries lend
        // out no slices, and the entry is ours.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    }

    /// Writes the header of an answer.
    pub(crate) fn write_header(&mut self, header: abi::OutHeader, payload_bytes: u32) {
        let size_at = std::mem::offset_of!(abi::UringReqHeader, ring_ent_in_out)
            + std::mem::offset_of!(abi::UringEntInOut, payload_sz);
        // SAFETY: `head` has checked both places, and the entry is ours.
        unsafe {
            self.head::<abi::OutHeader>(0).write(header);
            self.head::<u32>(size_at).write(payload_bytes);
        }
    }

    fn head<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= HEAD_BYTES, "outside the entry");
        self.memory.heads.at(index(self.number) * HEAD_BYTES + offset)
    }

    fn payload(&self, offset: usize, len: usize) -> *mut u8 {
        let all = self.memory.payload_bytes;
        assert!(offset <= all && len <= all - offset, "outside the payload");
        let from = index(self.number) * all + offset;
        // SAFETY: the offset is within the map or, where `len` is 0, at its end.
        unsafe { self.memory.payloads.start.as_ptr().cast::<u8>().add(from) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_bytes_apart() {
        let mut entries = EntryMemory::map(3, 8192).unwrap();
        for (number, entry) in (1..).zip(&mut entries) {
            entry.write_payload(0, &[number; 8192]);
            let unique = u64::from(number);
            entry.write_header(abi::OutHeader { len: 16, error: 0, unique }, 8192);
            assert_ne!(entry.iovecs(), 0);
        }
        for (number, entry) in (1..).zip(&entries) {
            let mut payload = [0; 8192];
            entry.read_payload(&mut payload);
            assert_eq!(payload, [number; 8192]);
            let header = entry.header();
            assert_eq!(header.in_out[1], u64::from(number));
            assert_eq!(header.ring_ent_in_out.payload_sz, 8192);
        }
    }

    #[test]
    #[should_panic(expected = "outside the payload")]
    fn a_payload_has_an_end() {
        let mut entries = EntryMemory::map(2, 8192).unwrap();
        entries[0].write_payload(8190, &[1; 3]);
    }

    #[test]
    fn a_ring_takes_more_commands_than_fit_into_its_queue() {
        let mut rings = match Rings::new(1024) {
            Ok(rings) => rings,
            Err(errno) => panic!("this machine has no io_uring: {errno}"),
        };
        let mut sqe = abi::UringSqe { opcode: opcode(IoringOp::Nop), ..Default::default() };
        for user_data in 0..300 {
            sqe.user_data = user_data;
            if !rings.push(&sqe) {
                rings.enter().unwrap();
                assert!(rings.push(&sqe));
            }
        }
        rings.enter().unwrap();
        let mut seen: Vec<_> = std::iter::from_fn(|| rings.pop()).collect();
        seen.sort_by_key(|completion| completion.user_data);
        let expected = (0..300).map(|user_data| Completion { user_data, result: 0 });
        assert_eq!(seen, expected.collect::<Vec<_>>());
    }
}
