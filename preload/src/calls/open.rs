//! open(2) and close(2).

use std::ffi::{c_char, c_int};

use base::preload::{Ask, Kind, flag};
use libc::mode_t;

use crate::{
    channel, files,
    next::calls,
    place::{place, returned},
    raw, site, swap,
};

/// Flags with which a file may be opened by a message.
const SIMPLE: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | LARGE;

/// `O_LARGEFILE` as the kernel has it; the C library says 0 where it always holds.
pub(super) const LARGE: c_int = 0o100_000;

/// Opens a file by a message; `None`: the mount is to be asked.
unsafe fn open_here(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> Option<c_int> {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => flag::READ,
        libc::O_WRONLY => flag::WRITE,
        libc::O_RDWR => flag::READ | flag::WRITE,
        _ => return None,
    };
    let is_simple = flags & !SIMPLE == 0;
    if !is_simple || !site::opens() || flags & libc::O_TRUNC != 0 && access == flag::READ {
        return None;
    }
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    let mut ask = Ask::new(Kind::Open);
    let bits = [
        (libc::O_CREAT, flag::CREATE),
        (libc::O_EXCL, flag::EXCLUSIVE),
        (libc::O_TRUNC, flag::TRUNCATE),
    ];
    let asked = bits.into_iter().filter(|(bit, _)| flags & bit != 0);
    ask.flags = asked.fold(access, |all, (_, bit)| all | bit);
    ask.mode = mode & !site::umask();
    // First, so that nothing was made or cut where there is none.
    let fd = channel::placeholder(flags & libc::O_CLOEXEC == 0).ok()?;
    let answer = match place.ask(ask) {
        Some(Ok((answer, _))) => answer,
        asked => {
            raw::close(fd);
            return asked.map(|asked| returned(asked.map(|_| -1)));
        }
    };
    if files::put(fd, answer.value, answer.stat.ino, flags) {
        return Some(fd);
    }
    // The file is there by now, and cut: the mount is to open it as it is.
    let opened = open_by_mount(fd, answer.stat.ino, flags);
    channel::close_later(answer.value);
    Some(returned(opened))
}

/// Opens a file of the region by the mount, in the place of a descriptor.
fn open_by_mount(fd: c_int, ino: u64, flags: c_int) -> Result<c_int, i32> {
    let done = swap::open_hidden(ino, flags).and_then(|real| {
        let moved = raw::dup3(real, fd, flags & libc::O_CLOEXEC);
        raw::close(real);
        moved
    });
    if done.is_err() {
        raw::close(fd);
    }
    done
}

calls! { next:
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        unsafe { open_here(libc::AT_FDCWD, path, flags, mode) }
            .unwrap_or_else(|| next(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        unsafe { open_here(libc::AT_FDCWD, path, flags, mode) }
            .unwrap_or_else(|| next(path, flags, mode))
    }

    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        unsafe { open_here(dirfd, path, flags, mode) }
            .unwrap_or_else(|| next(dirfd, path, flags, mode))
    }

    fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        unsafe { open_here(dirfd, path, flags, mode) }
            .unwrap_or_else(|| next(dirfd, path, flags, mode))
    }

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        unsafe { open_here(libc::AT_FDCWD, path, flags, 0) }.unwrap_or_else(|| next(path, flags))
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        unsafe { open_here(libc::AT_FDCWD, path, flags, 0) }.unwrap_or_else(|| next(path, flags))
    }

    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        unsafe { open_here(dirfd, path, flags, 0) }.unwrap_or_else(|| next(dirfd, path, flags))
    }

    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        unsafe { open_here(dirfd, path, flags, 0) }.unwrap_or_else(|| next(dirfd, path, flags))
    }

    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        unsafe { open_here(libc::AT_FDCWD, path, flags, mode) }
            .unwrap_or_else(|| next(path, mode))
    }

    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        unsafe { open_here(libc::AT_FDCWD, path, flags, mode) }
            .unwrap_or_else(|| next(path, mode))
    }

    fn close(fd: c_int) -> c_int {
        if let Some(file) = files::get(fd) {
            // First: the number may have another meaning as soon as it is free.
            files::take(&file);
            return returned(raw::close_of(fd).map(|_| 0));
        }
        if site::is_on() && channel::is_ours(fd) && site::enter() {
            return returned(Err(libc::EBADF));
        }
        next(fd)
    }

    fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
        close_all(first, last, flags);
        next(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        close_all(u32::try_from(first).unwrap_or(0), u32::MAX, 0);
        next(first)
    }
}

/// All descriptors of this range will be closed.
fn close_all(first: u32, last: u32, flags: c_int) {
    let only_on_exec = flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() != 0;
    if only_on_exec || !site::is_on() || !site::enter() {
        return;
    }
    for fd in files::all().filter(|fd| (first..=last).contains(&fd.cast_unsigned())) {
        if let Some(file) = files::get(fd) {
            files::take(&file);
        }
    }
    if channel::are_in(first, last) {
        // The region closes what a process has open when its last connection is gone.
        swap::all();
    }
    channel::give(first, last);
}
