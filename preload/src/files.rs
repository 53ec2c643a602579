//! Virtual descriptors: open files of the region that the kernel does not know.
//!
//! Each has its number reserved by a descriptor that reads and writes nothing, so a call that this
//! library does not see fails and does not do something else. Its position and flags are here. No
//! two numbers share them, because copies are made of descriptors of the mount's.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use crate::{channel, raw, site};

/// Descriptors from this number on are the mount's.
const FILES: usize = 4096;

const NONE: u32 = 0;
const VIRTUAL: u32 = 1;

/// An open file, if its number is that of a virtual descriptor.
pub(crate) struct File {
    state: AtomicU32,
    handle: AtomicU64,
    ino: AtomicU64,
    /// Flags of open(2): the access mode, O_APPEND and O_NONBLOCK.
    flags: AtomicI32,
    position: AtomicU64,
    /// The thread that moves the position; 0: none.
    mover: AtomicUsize,
}

static TABLE: [File; FILES] = [const {
    File {
        state: AtomicU32::new(NONE),
        handle: AtomicU64::new(0),
        ino: AtomicU64::new(0),
        flags: AtomicI32::new(0),
        position: AtomicU64::new(0),
        mover: AtomicUsize::new(0),
    }
}; FILES];

/// How many virtual descriptors there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The file of a descriptor, if it is virtual.
pub(crate) fn get(fd: c_int) -> Option<&'static File> {
    if COUNT.load(Ordering::Acquire) == 0 {
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
    let last = if COUNT.load(Ordering::Acquire) == 0 { 0 } else { FILES };
    (3..last).filter_map(|fd| c_int::try_from(fd).ok()).filter(|fd| get(*fd).is_some())
}

/// Makes a number virtual. `false`: such a number cannot be.
pub(crate) fn put(fd: c_int, handle: u64, ino: u64, flags: c_int) -> bool {
    // Functions of the C library use the first three without calling others.
    let index = usize::try_from(fd).unwrap_or(0);
    let Some(file) = TABLE.get(index).filter(|_| fd > 2) else { return false };
    file.handle.store(handle, Ordering::Relaxed);
    file.ino.store(ino, Ordering::Relaxed);
    let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK;
    file.flags.store(flags & kept, Ordering::Relaxed);
    file.position.store(0, Ordering::Relaxed);
    file.mover.store(0, Ordering::Relaxed);
    if file.state.swap(VIRTUAL, Ordering::Release) == NONE {
        COUNT.fetch_add(1, Ordering::Release);
    }
    true
}

/// A number is virtual no more. `false`: it was not.
pub(crate) fn take(file: &File) -> bool {
    let was = file.state.swap(NONE, Ordering::AcqRel) == VIRTUAL;
    if was {
        COUNT.fetch_sub(1, Ordering::Release);
        channel::close_later(file.handle());
    }
    was
}

/// Forgets the files of the process of which this one is a copy.
pub(crate) fn forget() {
    for file in &TABLE {
        if file.state.load(Ordering::Relaxed) != NONE {
            file.state.store(NONE, Ordering::Relaxed);
        }
    }
    COUNT.store(0, Ordering::Relaxed);
}

/// A file whose position no other thread moves now.
pub(crate) struct Moving<'a> {
    file: &'a File,
    /// Whether this is a signal handler in the thread that does so already.
    is_within: bool,
}

impl File {
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Ordering::Relaxed)
    }

    pub(crate) fn ino(&self) -> u64 {
        self.ino.load(Ordering::Relaxed)
    }

    pub(crate) fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
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

    /// Waits until no other thread moves the position.
    pub(crate) fn hold(&self) -> Moving<'_> {
        let me = raw::thread();
        loop {
            let free = self.mover.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
            match free {
                Ok(_) => return Moving { file: self, is_within: false },
                Err(mover) if mover == me => return Moving { file: self, is_within: true },
                Err(_) => raw::sched_yield(),
            }
        }
    }
}

impl Moving<'_> {
    pub(crate) fn position(&self) -> u64 {
        self.file.position.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, position: u64) {
        self.file.position.store(position, Ordering::Relaxed);
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if !self.is_within {
            self.file.mover.store(0, Ordering::Release);
        }
    }
}
