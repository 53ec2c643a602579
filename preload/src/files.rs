//! Virtual descriptors: open files of the region that the kernel does not know.
//!
//! Each has its number reserved by a descriptor that reads and writes nothing, so a call that this
//! library does not see fails and does not do something else. Its position and flags are here. No
//! two numbers share them, because copies are made of descriptors of the mount's.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use crate::{channel, raw, site};

/// Descriptors from this number on are the mount's.
const FILES: usize = 4096;

/// Flags of open(2) that a descriptor keeps.
pub(crate) const KEPT: c_int =
    libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOFOLLOW;

const NONE: u32 = 0;
const VIRTUAL: u32 = 1;

/// An open file, if its number is that of a virtual descriptor.
pub(crate) struct File {
    state: AtomicU32,
    handle: AtomicU64,
    ino: AtomicU64,
    /// Flags of open(2), as far as they are [`KEPT`].
    flags: AtomicI32,
    position: AtomicU64,
    /// Whether it was written to: the region does not end under those who write.
    is_written: AtomicBool,
    /// The thread that uses it; 0: none.
    user: AtomicUsize,
    /// How many threads wait for that.
    waiting: AtomicU32,
}

static TABLE: [File; FILES] = [const {
    File {
        state: AtomicU32::new(NONE),
        handle: AtomicU64::new(0),
        ino: AtomicU64::new(0),
        flags: AtomicI32::new(0),
        position: AtomicU64::new(0),
        is_written: AtomicBool::new(false),
        user: AtomicUsize::new(0),
        waiting: AtomicU32::new(0),
    }
}; FILES];

/// How many virtual descriptors there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The file of a descriptor, if it is virtual, held.
pub(crate) fn get(fd: c_int) -> Option<Held<'static>> {
    slot(fd)?.hold()
}

/// Whether a descriptor is virtual.
pub(crate) fn is_virtual(fd: c_int) -> bool {
    slot(fd).is_some()
}

fn slot(fd: c_int) -> Option<&'static File> {
    if are_none() {
        return None;
    }
    let file = TABLE.get(usize::try_from(fd).ok()?)?;
    let is_virtual = || file.state.load(Ordering::Acquire) == VIRTUAL;
    // A child's first question may find that it has none.
    (is_virtual() && site::enter() && is_virtual()).then_some(file)
}

/// Whether no descriptor is virtual.
pub(crate) fn are_none() -> bool {
    COUNT.load(Ordering::Acquire) == 0
}

/// The numbers of all virtual descriptors.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    let last = if are_none() { 0 } else { FILES };
    (3..last).filter_map(|fd| c_int::try_from(fd).ok()).filter(|fd| is_virtual(*fd))
}

/// Makes a number virtual. `false`: such a number cannot be.
pub(crate) fn put(fd: c_int, handle: u64, ino: u64, flags: c_int) -> bool {
    // Functions of the C library use the first three without calling others.
    let index = usize::try_from(fd).unwrap_or(0);
    let Some(file) = TABLE.get(index).filter(|_| fd > 2) else { return false };
    file.handle.store(handle, Ordering::Relaxed);
    file.ino.store(ino, Ordering::Relaxed);
    file.flags.store(flags & KEPT, Ordering::Relaxed);
    file.position.store(0, Ordering::Relaxed);
    file.is_written.store(false, Ordering::Relaxed);
    if file.state.swap(VIRTUAL, Ordering::Release) == NONE {
        COUNT.fetch_add(1, Ordering::Release);
    }
    true
}

/// A number is virtual no more, and its handle is closed.
pub(crate) fn take(held: &Held<'_>) {
    if held.file.state.swap(NONE, Ordering::AcqRel) == VIRTUAL {
        COUNT.fetch_sub(1, Ordering::Release);
        if held.file.is_written.load(Ordering::Relaxed) {
            channel::close_now(held.handle());
        } else {
            channel::close_later(held.handle());
        }
    }
}

/// Forgets the files of the process of which this one is a copy.
pub(crate) fn forget() {
    for file in &TABLE {
        if file.state.load(Ordering::Relaxed) != NONE {
            file.state.store(NONE, Ordering::Relaxed);
        }
        if file.user.load(Ordering::Relaxed) != 0 {
            file.user.store(0, Ordering::Relaxed);
        }
        if file.waiting.load(Ordering::Relaxed) != 0 {
            file.waiting.store(0, Ordering::Relaxed);
        }
    }
    COUNT.store(0, Ordering::Relaxed);
}

/// A virtual descriptor that no other thread uses, swaps or closes now.
pub(crate) struct Held<'a> {
    file: &'a File,
    /// Whether this is a signal handler in the thread that has it already.
    is_within: bool,
}

impl File {
    /// Waits until no other thread uses it. `None`: it is virtual no more by then.
    fn hold(&self) -> Option<Held<'_>> {
        let me = raw::thread();
        let is_within = self.user.load(Ordering::Relaxed) == me;
        // One that comes again and again lets those go first who wait.
        let must_wait = self.waiting.load(Ordering::Relaxed) > 0 || !self.try_hold(me);
        if !is_within && must_wait {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            loop {
                raw::sched_yield();
                if self.try_hold(me) {
                    break;
                }
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let held = Held { file: self, is_within };
        (self.state.load(Ordering::Acquire) == VIRTUAL).then_some(held)
    }

    fn try_hold(&self, me: usize) -> bool {
        self.user.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// A position that was moved for an operation.
pub(crate) struct Moved {
    pub(crate) from: u64,
    to: u64,
}

impl Moved {
    /// The operation has ended there. Where a signal handler has moved the position, it is right.
    pub(crate) fn to(&self, file: &Held<'_>, end: u64) {
        if file.position() == self.to {
            file.set(end);
        }
    }
}

impl Held<'_> {
    pub(crate) fn handle(&self) -> u64 {
        self.file.handle.load(Ordering::Relaxed)
    }

    pub(crate) fn ino(&self) -> u64 {
        self.file.ino.load(Ordering::Relaxed)
    }

    pub(crate) fn flags(&self) -> c_int {
        self.file.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn reads(&self) -> bool {
        self.flags() & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub(crate) fn writes(&self) -> bool {
        self.flags() & libc::O_ACCMODE != libc::O_RDONLY
    }

    pub(crate) fn appends(&self) -> bool {
        self.flags() & libc::O_APPEND != 0
    }

    /// Bytes are written to it.
    pub(crate) fn is_written(&self) {
        self.file.is_written.store(true, Ordering::Relaxed);
    }

    pub(crate) fn position(&self) -> u64 {
        self.file.position.load(Ordering::Relaxed)
    }

    /// Moves the position by so many bytes for an operation that is about to begin, so that a signal
    /// handler in its middle goes on behind it.
    pub(crate) fn move_by(&self, len: usize) -> Moved {
        let from = self.position();
        let to = from.saturating_add(len as u64);
        self.set(to);
        Moved { from, to }
    }

    pub(crate) fn set(&self, position: u64) {
        self.file.position.store(position, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.is_within {
            self.file.user.store(0, Ordering::Release);
        }
    }
}
