//! Names: mkdir, unlink, symlink, readlink. Renames, links and rmdir are the mount's: the file system
//! below makes them at once, which takes longer than asking.

use std::ffi::{c_char, c_int};

use base::preload::{Ask, Kind};
use libc::{mode_t, size_t, ssize_t};

use crate::{
    next::calls,
    place::{place, returned},
    site,
};

/// Bytes of a link's target.
const TARGET_MAX: usize = 4096;

unsafe fn mkdir_here(dirfd: c_int, path: *const c_char, mode: mode_t) -> Option<c_int> {
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    let mut ask = Ask::new(Kind::Mkdir);
    ask.mode = mode & !site::umask();
    Some(returned(place.ask(ask)?.map(|_| 0)))
}

unsafe fn unlink_here(dirfd: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    if flags != 0 {
        return None;
    }
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    Some(returned(place.ask(Ask::new(Kind::Unlink))?.map(|_| 0)))
}

unsafe fn symlink_here(target: *const c_char, dirfd: c_int, path: *const c_char) -> Option<c_int> {
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    // SAFETY: as of this function.
    let target = unsafe { std::ffi::CStr::from_ptr(target) }.to_bytes();
    if target.len() >= TARGET_MAX {
        return None;
    }
    let mut ask = Ask::new(Kind::Symlink);
    ask.mode = 0o777;
    Some(returned(place.ask_for(ask, target, &mut [])?.map(|_| 0)))
}

unsafe fn readlink_here(
    dirfd: c_int,
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
) -> Option<ssize_t> {
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    if len == 0 {
        return None;
    }
    let mut target = [0; TARGET_MAX];
    let read = place.ask_for(Ask::new(Kind::Readlink), &[], &mut target)?;
    let told = read.map(|(_, read)| {
        let told = read.min(len);
        // SAFETY: the program has given so many bytes to be written to.
        unsafe { std::ptr::copy_nonoverlapping(target.as_ptr().cast(), to, told) };
        told.cast_signed()
    });
    Some(returned(told))
}

calls! { next:
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        unsafe { mkdir_here(libc::AT_FDCWD, path, mode) }.unwrap_or_else(|| next(path, mode))
    }

    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        unsafe { mkdir_here(dirfd, path, mode) }.unwrap_or_else(|| next(dirfd, path, mode))
    }

    fn unlink(path: *const c_char) -> c_int {
        unsafe { unlink_here(libc::AT_FDCWD, path, 0) }.unwrap_or_else(|| next(path))
    }

    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        unsafe { unlink_here(dirfd, path, flags) }.unwrap_or_else(|| next(dirfd, path, flags))
    }

    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        unsafe { symlink_here(target, libc::AT_FDCWD, path) }
            .unwrap_or_else(|| next(target, path))
    }

    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        unsafe { symlink_here(target, dirfd, path) }
            .unwrap_or_else(|| next(target, dirfd, path))
    }

    fn readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        unsafe { readlink_here(libc::AT_FDCWD, path, to, len) }
            .unwrap_or_else(|| next(path, to, len))
    }

    fn readlinkat(dirfd: c_int, path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        unsafe { readlink_here(dirfd, path, to, len) }
            .unwrap_or_else(|| next(dirfd, path, to, len))
    }

    fn __readlink_chk(path: *const c_char, to: *mut c_char, len: size_t, max: size_t) -> ssize_t {
        if len > max {
            return next(path, to, len, max);
        }
        unsafe { readlink_here(libc::AT_FDCWD, path, to, len) }
            .unwrap_or_else(|| next(path, to, len, max))
    }

    fn __readlinkat_chk(
        dirfd: c_int,
        path: *const c_char,
        to: *mut c_char,
        len: size_t,
        max: size_t,
    ) -> ssize_t {
        if len > max {
            return next(dirfd, path, to, len, max);
        }
        unsafe { readlink_here(dirfd, path, to, len) }
            .unwrap_or_else(|| next(dirfd, path, to, len, max))
    }

    fn umask(mask: mode_t) -> mode_t {
        let before = next(mask);
        if site::is_on() && site::enter() {
            site::set_umask(mask);
        }
        before
    }
}
