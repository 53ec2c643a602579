//! Calls on descriptors that are the kernel's to answer: a virtual one is swapped before.

use std::ffi::{c_char, c_int, c_uint, c_void};

use base::preload::{Ask, Kind};
use libc::{off_t, size_t, ssize_t};

use crate::{
    calls::open::LARGE,
    channel, files,
    next::{calls, calls_after},
    place::{self, returned},
    raw, site, swap,
};

/// Shares an extent between files: linux/fs.h.
const FICLONE: usize = 0x4004_9409;
/// The same, of a part.
const FICLONERANGE: usize = 0x4020_940d;

/// The program is about to have a copy of a descriptor under this number.
fn replace(from: c_int, to: c_int) {
    if from == to {
        return;
    }
    if let Some(file) = files::get(to) {
        // Else the number stays what it is.
        if raw::fcntl(from, libc::F_GETFD, 0).is_ok() {
            files::take(&file);
        }
        return;
    }
    if let Ok(number) = u32::try_from(to)
        && site::is_on()
        && channel::is_ours(to)
        && site::enter()
    {
        channel::give(number, number);
    }
}

/// fcntl(2); `None`: the kernel's to answer.
fn fcntl_here(fd: c_int, command: c_int) -> Option<c_int> {
    let file = files::get(fd)?;
    match command {
        libc::F_GETFL => return Some(file.flags() | LARGE),
        // The number's own descriptor has these.
        libc::F_GETFD | libc::F_SETFD => {}
        _ => swap::held(fd, &file),
    }
    None
}

calls! { next:

    fn dup2(from: c_int, to: c_int) -> c_int {
        swap::one(from);
        replace(from, to);
        next(from, to)
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        swap::one(from);
        replace(from, to);
        next(from, to, flags)
    }

    fn fcntl(fd: c_int, command: c_int, value: *mut c_void) -> c_int {
        fcntl_here(fd, command).unwrap_or_else(|| next(fd, command, value))
    }

    fn fcntl64(fd: c_int, command: c_int, value: *mut c_void) -> c_int {
        fcntl_here(fd, command).unwrap_or_else(|| next(fd, command, value))
    }

    fn ioctl(fd: c_int, request: usize, value: *mut c_void) -> c_int {
        if files::is_virtual(fd) {
            match request {
                // Programs ask every file whether it is a terminal, or can share extents.
                0x5401 | 0x5413 => return returned(Err(libc::ENOTTY)),
                FICLONE | FICLONERANGE => return returned(Err(libc::EOPNOTSUPP)),
                _ => swap::one(fd),
            }
        }
        if request == FICLONE
            && let Ok(from) = c_int::try_from(value.addr())
        {
            swap::one(from);
        }
        next(fd, request, value)
    }

    fn isatty(fd: c_int) -> c_int {
        if files::is_virtual(fd) {
            raw::set_errno(libc::ENOTTY);
            return 0;
        }
        next(fd)
    }

    fn tcgetattr(fd: c_int, to: *mut libc::termios) -> c_int {
        if files::is_virtual(fd) {
            return returned(Err(libc::ENOTTY));
        }
        next(fd, to)
    }

    fn inotify_add_watch(watcher: c_int, path: *const c_char, mask: u32) -> c_int {
        unsafe { watched(libc::AT_FDCWD, path) };
        next(watcher, path, mask)
    }

    fn fanotify_mark(
        watcher: c_int,
        flags: c_uint,
        mask: u64,
        dirfd: c_int,
        path: *const c_char,
    ) -> c_int {
        unsafe { watched(dirfd, path) };
        next(watcher, flags, mask, dirfd, path)
    }

    fn mmap(
        at: *mut c_void,
        len: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        from: off_t,
    ) -> *mut c_void {
        swap::one(fd);
        next(at, len, protection, flags, fd, from)
    }

    fn mmap64(
        at: *mut c_void,
        len: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        from: off_t,
    ) -> *mut c_void {
        swap::one(fd);
        next(at, len, protection, flags, fd, from)
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        // The C library's streams call the kernel by themselves.
        swap::one(fd);
        if files::is_virtual(fd) {
            raw::set_errno(libc::EMFILE);
            return std::ptr::null_mut();
        }
        next(fd, mode)
    }

    fn sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
        swap::one(to);
        swap::one(from);
        next(to, from, at, len)
    }

    fn sendfile64(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
        swap::one(to);
        swap::one(from);
        next(to, from, at, len)
    }

    fn copy_file_range(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t {
        if files::is_virtual(from) || files::is_virtual(to) {
            // The answer between two file systems: the program reads and writes then, which is faster.
            return returned(Err(libc::EXDEV));
        }
        next(from, from_at, to, to_at, len, flags)
    }

    fn splice(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t {
        swap::one(from);
        swap::one(to);
        next(from, from_at, to, to_at, len, flags)
    }

    fn posix_fadvise(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        if files::is_virtual(fd) { 0 } else { next(fd, at, len, advice) }
    }

    fn posix_fadvise64(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        if files::is_virtual(fd) { 0 } else { next(fd, at, len, advice) }
    }

    fn linkat(
        from_dir: c_int,
        from: *const c_char,
        to_dir: c_int,
        to: *const c_char,
        flags: c_int,
    ) -> c_int {
        if flags & libc::AT_EMPTY_PATH != 0 {
            swap::one(from_dir);
        } else if flags & libc::AT_SYMLINK_FOLLOW != 0 {
            // The path may be one of /proc/self/fd.
            swap::all();
        }
        next(from_dir, from, to_dir, to, flags)
    }

    fn poll(asked: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        unsafe { polled(asked, count) };
        next(asked, count, timeout)
    }

    fn ppoll(
        asked: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        unsafe { polled(asked, count) };
        next(asked, count, timeout, mask)
    }

    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
        swap::one(fd);
        next(epoll, operation, fd, event)
    }
}

calls_after! { swap::one:
    fn dup(fd: c_int) -> c_int;
    fn ttyname(fd: c_int) -> *mut c_char;
    fn ttyname_r(fd: c_int, to: *mut c_char, len: size_t) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int;
    fn lockf64(fd: c_int, command: c_int, len: off_t) -> c_int;
    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;
    fn preadv(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t) -> ssize_t;
    fn preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t) -> ssize_t;
    fn preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t) -> ssize_t;
    fn pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t) -> ssize_t;
    fn pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn readahead(fd: c_int, at: off_t, len: size_t) -> ssize_t;
    fn fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    fn fallocate64(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    fn posix_fallocate(fd: c_int, at: off_t, len: off_t) -> c_int;
    fn posix_fallocate64(fd: c_int, at: off_t, len: off_t) -> c_int;
    fn sync_file_range(fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int;
    fn syncfs(fd: c_int) -> c_int;
    fn fstatfs(fd: c_int, to: *mut libc::statfs) -> c_int;
    fn fstatfs64(fd: c_int, to: *mut libc::statfs64) -> c_int;
    fn fstatvfs(fd: c_int, to: *mut libc::statvfs) -> c_int;
    fn fstatvfs64(fd: c_int, to: *mut libc::statvfs64) -> c_int;
    fn fpathconf(fd: c_int, name: c_int) -> libc::c_long;
    fn fgetxattr(fd: c_int, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t;
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    fn flistxattr(fd: c_int, to: *mut c_char, len: size_t) -> ssize_t;
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int;
}

/// Somebody is about to watch a path: the kernel sees all changes of its region from now on.
unsafe fn watched(dirfd: c_int, path: *const c_char) {
    // SAFETY: as of this function.
    if unsafe { place::is_in(dirfd, path) } {
        swap::all();
        // Without an answer there is no region.
        let _ = channel::ask_of(&Ask::new(Kind::Watch), &[]);
    }
}

/// Swaps what is polled.
unsafe fn polled(asked: *const libc::pollfd, count: libc::nfds_t) {
    if files::are_none() {
        return;
    }
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program has given so many.
        swap::one(unsafe { (*asked.add(index)).fd });
    }
}
