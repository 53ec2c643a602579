//! The Linux kernel's FUSE protocol, versions 7.31 to 7.45, on a non-blocking `/dev/fuse`, or over
//! io_uring where the kernel has that and [`InitOptions::io_uring`] asks for it.
//!
//! For programs that serve a file system from a single-threaded runtime: [`mount`] gives a
//! [`Connection`], [`Session::start`] agrees with the kernel, and [`Session::run`] reads requests
//! and calls a [`Handler`]. The handler answers inline or later, from a task. Requests are decoded
//! without copies, answers are one writev(2), interrupts of system calls reach the tasks that serve
//! them, and [`Notifier`] tells the kernel what to forget.
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! use fuse::{MountOptions, NullFs, Session, Timespec};
//!
//! let connection = fuse::mount(&MountOptions::default(), Path::new("/mnt"))?;
//! let session = Session::start(connection, &NullFs::init_options()).await?;
//! session.run(&NullFs::new(Duration::from_secs(1), Timespec::default)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate knows nothing of any file system but [`NullFs`], which it is tested with. It never
//! reads a clock, and keeps no state of nodes or handles: ids are the handler's.
//!
//! Always true: each request is answered exactly once, by the handler or, when it drops the
//! [`Reply`], by us with EIO.

#![warn(missing_docs)]

mod abi;
mod buffer;
mod channel;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod init;
mod interrupt;
mod mount;
mod notify;
mod null;
pub mod pages;
mod reply;
mod request;
mod ring;
mod session;
mod sys;
mod types;

pub use rustix::io::Errno;

pub use crate::{
    init::{Capabilities, InitOptions, IoUring, Negotiated, Threads, Transport},
    mount::{Connection, MountError, MountOptions, Unmount, mount, unmount},
    notify::{Notice, Notifier},
    null::NullFs,
    reply::{DirPage, DirPlusPage, Reply},
    request::{
        Extensions, Header, Op, OwnedRequest, Request, SecurityContext, SecurityContexts, SetAttr,
        SetTime, SupplementaryGroups,
    },
    ring::{IoUringError, enable_io_uring},
    session::{Ended, Handler, Session, SessionError, Worker},
    types::{
        Attr, Entry, FileLock, Handle, LockKind, LockOwner, LockType, NodeId, OpenFlags, StatFs,
        StatxExtra, Timespec, Unique,
    },
};
