//! The system calls on `/dev/fuse` that no safe wrapper covers, and its opening; the scheduling
//! policy of a thread.
//!
//! This file and [`ring`] are the only ones of this crate with `unsafe` in them.

#![expect(
    unsafe_code,
    reason = "one ioctl, one registration and the policy of a thread have no safe wrapper"
)]

pub(crate) mod ring;

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    ioctl,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::channel::Channel;

/// `_IOR(229, 0, uint32_t)`: binds a fresh `/dev/fuse` descriptor to the connection of another.
const FUSE_DEV_IOC_CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// Opens `/dev/fuse`, not yet part of any connection.
pub(crate) fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// Makes `fresh` a descriptor of the connection that `existing` belongs to.
pub(crate) fn clone_device(fresh: &OwnedFd, existing: &OwnedFd) -> Result<(), Errno> {
    let existing = existing.as_raw_fd().cast_unsigned();
    // SAFETY: the ioctl reads one u32 through the pointer that `Setter` passes, which points to
    // `existing` for the length of the call; it writes nothing. `_IOR` is the kernel's own
    // misnomer.
    unsafe { ioctl::ioctl(fresh, ioctl::Setter::<FUSE_DEV_IOC_CLONE, u32>::new(existing)) }
}

/// Registers a descriptor with the current runtime.
pub(crate) fn watch(channel: Arc<Channel>, ready: Interest) -> io::Result<AsyncFd<Arc<Channel>>> {
    // SAFETY: a channel owns its descriptor and never changes or closes it while it lives, and the
    // `AsyncFd` keeps the channel alive; so the descriptor stays open and the same throughout.
    unsafe { AsyncFd::register_with_interest(channel, ready) }.map_err(io::Error::from)
}

/// Scheduling policy of a thread (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// `SCHED_OTHER`.
    Normal,
    /// `SCHED_IDLE`: whatever else the CPU has to do goes first.
    Idle,
}

/// Gives this thread a scheduling policy.
pub(crate) fn set_policy(policy: Policy) -> io::Result<()> {
    let policy = match policy {
        Policy::Normal => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the call only reads `priority`, which outlives it.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
