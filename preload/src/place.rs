//! Whether a path leads into the region, and from which of its directories.
//!
//! A path from the root does if it begins with the region's. One from a directory does if that is
//! the region's by its device: it is named by its inode number, so it is the same one whatever was
//! renamed above it meanwhile. Links to the region from elsewhere lead to the mount.

use std::ffi::{CStr, c_char, c_int};

use base::{
    Ino,
    preload::{ASK_MOUNT, Answer, Ask, Kind},
};
use libc::iovec;

use crate::{
    channel::{self, part},
    raw, site, swap,
};

/// Bytes of a path that the region is asked about.
const PATH_BYTES_MAX: usize = 4000;

/// A place in the region.
pub(crate) struct Place<'a> {
    /// The directory from which the path leads on.
    at: u64,
    path: &'a [u8],
}

/// The result of a call that the region has executed: an answer with its bytes, or an errno.
pub(crate) type Done = Result<(Answer, usize), i32>;

/// The place of a path in the region; `None`: it is elsewhere, or the mount must see to it.
///
/// # Safety
///
/// `path` is null, or ends with a NUL.
pub(crate) unsafe fn place<'a>(dirfd: c_int, path: *const c_char) -> Option<Place<'a>> {
    if !site::is_on() || path.is_null() {
        return None;
    }
    // SAFETY: as of this function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let (at, path) = if path.first() == Some(&b'/') {
        let Some(rest) = path.strip_prefix(site::dir()).and_then(|rest| rest.strip_prefix(b"/"))
        else {
            if path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/") {
                // Descriptors have names there.
                swap::all();
            }
            return None;
        };
        (Ino::ROOT.0, rest)
    } else {
        let (device, ino) = raw::identity(dirfd, &[0])?;
        (device == site::device()).then_some((ino, path))?
    };
    let is_plain = !path.is_empty() && path.len() <= PATH_BYTES_MAX && !path.ends_with(b"/");
    let goes_up = || path.split(|byte| *byte == b'/').any(|name| name == b"..");
    (is_plain && !goes_up() && site::enter()).then_some(Place { at, path })
}

/// Whether a path is of the region, or of its directory.
///
/// # Safety
///
/// The same as of [`place`].
pub(crate) unsafe fn is_in(dirfd: c_int, path: *const c_char) -> bool {
    if !site::is_on() || path.is_null() {
        return false;
    }
    // SAFETY: as of this function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    raw::identity(dirfd, path).is_some_and(|(device, _)| device == site::device()) && site::enter()
}

impl Place<'_> {
    /// Asks the region; `None`: the mount is to be asked.
    pub(crate) fn ask(&self, ask: Ask) -> Option<Done> {
        self.ask_for(ask, &[], &mut [])
    }

    /// The same with more bytes after the path, and bytes in the answer.
    pub(crate) fn ask_for(&self, mut ask: Ask, more: &[u8], to: &mut [u8]) -> Option<Done> {
        ask.at = self.at;
        if ask.kind == Kind::Symlink {
            ask.len = u32::try_from(self.path.len()).unwrap_or(0);
        }
        done(channel::ask(&ask, &[part(self.path), part(more)], to))
    }
}

/// Asks the region about an open file; `None`: the mount is to be asked.
pub(crate) fn ask_file(handle: u64, mut ask: Ask, body: &[iovec], to: &mut [u8]) -> Option<Done> {
    ask.at = handle;
    match channel::ask(&ask, body, to) {
        // Open files have gone with their region.
        Err(channel::Lost::Gone) => Some(Err(libc::EIO)),
        answered => done(answered),
    }
}

fn done(answered: Result<(Answer, usize), channel::Lost>) -> Option<Done> {
    match answered {
        Ok((Answer { status: ASK_MOUNT, .. }, _)) | Err(channel::Lost::Gone) => None,
        Err(channel::Lost::Fault) => Some(Err(libc::EFAULT)),
        Ok((answer @ Answer { status: 0, .. }, len)) => Some(Ok((answer, len))),
        Ok((Answer { status, .. }, _)) => Some(Err(status)),
    }
}

/// The result of a function of C: a number, or -1 with errno.
pub(crate) fn returned<T: From<i8>>(done: Result<T, i32>) -> T {
    done.unwrap_or_else(|errno| {
        raw::set_errno(errno);
        T::from(-1)
    })
}
