//! Mounting and unmounting.
//!
//! Root calls mount(2) itself; anyone else asks the setuid helper `fusermount3`, which opens the
//! device, mounts, and passes the descriptor back. Nothing is unmounted by dropping a
//! [`Connection`]: a mount whose last descriptor is closed answers ENOTCONN until it is unmounted.

mod direct;
mod fusermount;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{io::Errno, mount::UnmountFlags};

use crate::channel::Channel;

/// Options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Device that `mount` shows.
    pub fsname: String,
    /// The type is shown as `fuse.SUBTYPE`; empty for plain `fuse`.
    pub subtype: String,
    /// Read-only: the mount allows no changes.
    pub read_only: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// The kernel checks permissions by mode (and ACL, if negotiated).
    pub default_permissions: bool,
    /// Set-user-id bits have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// No file can be executed.
    pub noexec: bool,
    /// Every write asks to be on stable storage (as `O_SYNC`), and `mount` shows `sync`.
    pub synchronous: bool,
    /// `mount` shows `dirsync`; what that means is the file system's to do.
    pub dirsync: bool,
    /// `mount` shows `noatime`; access times are the file system's own.
    pub noatime: bool,
    /// `mount` shows neither `relatime` nor `noatime`.
    pub strictatime: bool,
    /// Options for the kernel's security module, such as `context=LABEL`. Only root's mounts can
    /// have them.
    pub security: Vec<String>,
    /// Largest read, in bytes; the kernel's own limit when `None`.
    pub max_read: Option<u32>,
}

/// A mounted file system that no session serves yet. It can be sent to the thread that will.
#[derive(Debug)]
pub struct Connection {
    pub(crate) channel: Arc<Channel>,
}

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// `/dev/fuse` is not there or not ours to use.
    #[error("cannot open /dev/fuse")]
    OpenDevice(#[source] io::Error),
    /// The mount point is not there.
    #[error("cannot use the mount point path={}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// mount(2) or umount2(2) refused.
    #[error("the kernel refused path={}", path.display())]
    Kernel {
        /// The mount point.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// `fusermount3` could not be started.
    #[error("cannot run fusermount3")]
    NoHelper(#[source] io::Error),
    /// `fusermount3` refused; it says why.
    #[error("fusermount3 failed: {0}")]
    Helper(String),
}

/// Mounts on a directory (or file) that exists.
///
/// # Errors
/// See [`MountError`].
pub fn mount(options: &MountOptions, mountpoint: &Path) -> Result<Connection, MountError> {
    let unusable = |source| MountError::MountPoint { path: mountpoint.to_owned(), source };
    let path = mountpoint.canonicalize().map_err(unusable)?;
    let fd = if rustix::process::geteuid().is_root() {
        direct::mount(options, &path)?
    } else {
        fusermount::mount(options, &path)?
    };
    Ok(Connection { channel: Arc::new(Channel::new(fd)) })
}

/// When to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Now, or not at all (EBUSY) when a file is open there or a process works there.
    WhenIdle,
    /// Take it out of the tree now, and end it when its last user is gone.
    Lazy,
    /// Take it out of the tree now, and have its users lose it: what they wait for fails. Without
    /// root as [`Unmount::Lazy`].
    Force,
}

/// Unmounts. The thread that serves the mount must not wait for this: it may have to answer first.
///
/// # Errors
/// See [`MountError`].
pub fn unmount(mountpoint: &Path, when: Unmount) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return fusermount::unmount(mountpoint, when);
    }
    let flags = match when {
        Unmount::WhenIdle => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    rustix::mount::unmount(mountpoint, flags).map_err(|errno| kernel(mountpoint, errno))
}

fn kernel(path: &Path, errno: Errno) -> MountError {
    MountError::Kernel { path: path.to_owned(), source: errno.into() }
}
