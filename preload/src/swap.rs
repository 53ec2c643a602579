//! Virtual descriptors become the mount's, where the kernel or another process must know them.

use std::ffi::c_int;

use base::preload::OPEN_PREFIX;

use crate::{
    files::{self, Held},
    raw, site,
};

/// Has the kernel know a descriptor, if it is virtual. Where that fails it stays what it is, and the
/// call that needs it fails.
pub(crate) fn one(fd: c_int) {
    if let Some(file) = files::get(fd) {
        held(fd, &file);
    }
}

/// The same of a descriptor that is held.
pub(crate) fn held(fd: c_int, file: &Held<'_>) {
    let Ok(real) = open_hidden(file.ino(), file.flags()) else { return };
    raw::lseek(real, file.position());
    let is_closed_on_exec =
        raw::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0);
    let flags = if is_closed_on_exec { libc::O_CLOEXEC } else { 0 };
    if raw::dup3(real, fd, flags).is_ok() {
        // The region has the file open for the kernel by now.
        files::take(file);
    }
    raw::close(real);
}

/// Opens a file by its number, through the mount.
pub(crate) fn open_hidden(ino: u64, flags: c_int) -> raw::Result<c_int> {
    let mut path = [0; 4096 + 96];
    let path = hidden(&mut path, ino).ok_or(libc::ENAMETOOLONG)?;
    raw::open(path, flags & files::KEPT | libc::O_CLOEXEC)
}

/// Has the kernel know all descriptors.
pub(crate) fn all() {
    for fd in files::all() {
        one(fd);
    }
}

/// The hidden name of a file in the region's directory, with a NUL.
fn hidden(to: &mut [u8], ino: u64) -> Option<&[u8]> {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = ino;
    loop {
        first -= 1;
        digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut len = 0;
    for part in [site::dir(), b"/", OPEN_PREFIX, site::token(), b"-", &digits[first..], &[0]] {
        to.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    Some(&to[..len])
}
