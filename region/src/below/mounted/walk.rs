//! From the region's directory to a path, and errors of the kernel.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use base::{EntryName, FsError};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::Result;
use crate::Path;

/// How often a walk is begun anew when a rename disturbs it.
const ATTEMPTS_MAX: u32 = 32;
/// The longest path that the kernel takes, without the final NUL.
const PATH_BYTES_MAX: usize = base::limits::PATH_BYTES_MAX;

/// A name in an open directory.
pub(super) struct At<'a> {
    root: &'a OwnedFd,
    /// The directory, unless it is the region's own.
    dir: Option<OwnedFd>,
    /// The name; `None` stands for the region's own directory.
    name: Option<EntryName>,
}

impl At<'_> {
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().unwrap_or(self.root).as_fd()
    }

    pub(super) fn name(&self) -> &[u8] {
        self.name.as_ref().map_or(b".", EntryName::as_bytes)
    }
}

/// Opens the directory above a path.
pub(super) fn parent<'a>(root: &'a OwnedFd, path: &Path) -> Result<At<'a>> {
    let Some((above, name)) = path.split() else {
        return Ok(At { root, dir: None, name: None });
    };
    let dir = match above.depth() {
        0 => None,
        _ => Some(open(root, &above, OFlags::PATH | OFlags::DIRECTORY).map_err(error)?),
    };
    Ok(At { root, dir, name: Some(name) })
}

/// Opens a path beneath `root`. Without `O_NOFOLLOW` a symbolic link at its end is refused as one
/// before it is.
pub(super) fn open(
    root: &OwnedFd,
    path: &Path,
    flags: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    open_with(root, path, flags, Mode::empty())
}

/// Opens a path beneath `root`, with a mode for a file that is made.
pub(super) fn open_with(
    root: &OwnedFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> std::result::Result<OwnedFd, Errno> {
    let mut rest = path.as_bytes();
    let mut dir: Option<OwnedFd> = None;
    // A deep directory has a longer path than one call takes.
    while rest.len() > PATH_BYTES_MAX {
        let slash = rest[..PATH_BYTES_MAX].iter().rposition(|byte| *byte == b'/');
        let slash = slash.expect("names are shorter than that");
        let above = dir.as_ref().unwrap_or(root);
        dir = Some(openat2(above, &rest[..slash], OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &rest[slash + 1..];
    }
    let name = if rest.is_empty() { b"." } else { rest };
    openat2_with(dir.as_ref().unwrap_or(root), name, flags, mode)
}

/// `openat2` beneath `dir`, without symbolic links and other mounts.
pub(super) fn openat2(
    dir: &OwnedFd,
    path: &[u8],
    flags: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    openat2_with(dir, path, flags, Mode::empty())
}

fn openat2_with(
    dir: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> std::result::Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut attempts = 0;
    loop {
        let opened = rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve);
        attempts += 1;
        match opened {
            // Race: a rename or mount anywhere on the machine, in the middle of the walk.
            Err(Errno::AGAIN | Errno::INTR) if attempts < ATTEMPTS_MAX => {}
            opened => return opened,
        }
    }
}

/// The answer that an errno of the kernel is; `Io` for one that no file system here answers.
pub(super) fn error(errno: Errno) -> FsError {
    let raw = errno.raw_os_error();
    if errno == Errno::NOSYS {
        return FsError::NotSupported;
    }
    u8::try_from(raw).ok().and_then(FsError::of_errno).unwrap_or_else(|| {
        tracing::debug!(errno = raw, "an errno below that is answered as EIO");
        FsError::Io
    })
}
