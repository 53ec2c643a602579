//! stat(2), statx(2) and access(2).

use std::ffi::{c_char, c_int, c_uint};

use base::{
    Time,
    preload::{Ask, Kind, Stat, flag},
};

use crate::{
    files,
    next::calls,
    place::{Done, ask_file, place, returned},
    raw, site, swap,
};

/// The preferred size of an IO, as the mount tells it.
const BLOCK_BYTES: i64 = 4096;
/// Attributes that a message tells.
const KNOWN: c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
/// Version of `struct stat` in old programs.
const STAT_VERSION: c_int = 1;

/// The attributes of a path, or of a descriptor with an empty one; `None`: ask the mount.
unsafe fn found(dirfd: c_int, path: *const c_char, flags: c_int) -> Option<Result<Stat, i32>> {
    const SIMPLE: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT;
    if flags & !SIMPLE != 0 || path.is_null() {
        return None;
    }
    let mut ask = Ask::new(Kind::Stat);
    // SAFETY: the path ends with a NUL.
    let is_empty = unsafe { *path } == 0;
    let done: Done = if is_empty && flags & libc::AT_EMPTY_PATH != 0 {
        return of_file(dirfd);
    } else {
        // SAFETY: as of this function.
        let place = unsafe { place(dirfd, path) }?;
        // SAFETY: the path ends with a NUL.
        if unsafe { raw::is_cached(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW != 0) } {
            return None;
        }
        let stays = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
        ask.flags = if stays { flag::NO_FOLLOW } else { 0 };
        place.ask(ask)?
    };
    Some(done.map(|(answer, _)| answer.stat))
}

/// The attributes of a virtual descriptor; `None`: ask the mount.
fn of_file(fd: c_int) -> Option<Result<Stat, i32>> {
    let file = files::get(fd)?;
    let mut ask = Ask::new(Kind::Stat);
    ask.flags = flag::HANDLE;
    let done = ask_file(file.handle(), ask, &[], &mut []);
    if done.is_none() {
        swap::held(fd, &file);
    }
    Some(done?.map(|(answer, _)| answer.stat))
}

/// Tells attributes as a function of C does.
unsafe fn tell(found: Result<Stat, i32>, to: *mut libc::stat) -> c_int {
    let tell = |found: Stat| {
        // SAFETY: all zeros are one.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_dev = site::device();
        stat.st_ino = found.ino;
        stat.st_nlink = found.nlink.into();
        stat.st_mode = found.mode;
        (stat.st_uid, stat.st_gid) = (found.uid, found.gid);
        stat.st_rdev = found.rdev.into();
        stat.st_size = found.size.cast_signed();
        stat.st_blksize = BLOCK_BYTES;
        stat.st_blocks = found.blocks.cast_signed();
        (stat.st_atime, stat.st_atime_nsec) = (found.atime.sec, found.atime.nsec.into());
        (stat.st_mtime, stat.st_mtime_nsec) = (found.mtime.sec, found.mtime.nsec.into());
        (stat.st_ctime, stat.st_ctime_nsec) = (found.ctime.sec, found.ctime.nsec.into());
        // SAFETY: the program has given the place.
        unsafe { *to = stat };
        0
    };
    returned(found.map(tell))
}

/// The same for statx(2).
unsafe fn tell_more(found: Result<Stat, i32>, to: *mut libc::statx) -> c_int {
    let time = |time: Time| {
        // SAFETY: all zeros are one.
        let mut shown: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (shown.tv_sec, shown.tv_nsec) = (time.sec, time.nsec);
        shown
    };
    let tell = |found: Stat| {
        // SAFETY: all zeros are one.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        // Times of birth are not shown, as by the mount.
        stat.stx_mask = libc::STATX_BASIC_STATS;
        stat.stx_blksize = u32::try_from(BLOCK_BYTES).unwrap_or(0);
        stat.stx_nlink = found.nlink;
        (stat.stx_uid, stat.stx_gid) = (found.uid, found.gid);
        stat.stx_mode = u16::try_from(found.mode).unwrap_or(0);
        (stat.stx_ino, stat.stx_size, stat.stx_blocks) = (found.ino, found.size, found.blocks);
        stat.stx_atime = time(found.atime);
        stat.stx_mtime = time(found.mtime);
        stat.stx_ctime = time(found.ctime);
        stat.stx_rdev_major = libc::major(found.rdev.into());
        stat.stx_rdev_minor = libc::minor(found.rdev.into());
        stat.stx_dev_major = libc::major(site::device());
        stat.stx_dev_minor = libc::minor(site::device());
        // SAFETY: the program has given the place.
        unsafe { *to = stat };
        0
    };
    returned(found.map(tell))
}

/// access(2); `None`: ask the mount.
unsafe fn access_here(
    dirfd: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> Option<c_int> {
    // The user who counts is the one whom the process has, or the library rests.
    let known = libc::R_OK | libc::W_OK | libc::X_OK;
    if flags & !libc::AT_EACCESS != 0 || mode & !known != 0 {
        return None;
    }
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    let mut ask = Ask::new(Kind::Access);
    ask.mode = u32::try_from(mode).ok()?;
    Some(returned(place.ask(ask)?.map(|_| 0)))
}

/// Tells what was found here, or asks the next function.
macro_rules! stat_or {
    ($found:expr, $to:ident, $next:expr) => {
        match $found {
            Some(found) => unsafe { tell(found, $to) },
            None => $next,
        }
    };
}

/// Functions of old programs, which say what `struct stat` is like.
macro_rules! versioned {
    ($(fn $name:ident($arg:ident: $of:ty) found $found:expr;)*) => {
        calls! { next:
            $(
                fn $name(version: c_int, $arg: $of, to: *mut libc::stat) -> c_int {
                    if version != STAT_VERSION {
                        return next(version, $arg, to);
                    }
                    stat_or!($found, to, next(version, $arg, to))
                }
            )*
        }
    };
}

versioned! {
    fn __xstat(path: *const c_char) found unsafe { found(libc::AT_FDCWD, path, 0) };
    fn __xstat64(path: *const c_char) found unsafe { found(libc::AT_FDCWD, path, 0) };
    fn __lxstat(path: *const c_char) found unsafe {
        found(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
    };
    fn __lxstat64(path: *const c_char) found unsafe {
        found(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
    };
    fn __fxstat(fd: c_int) found of_file(fd);
    fn __fxstat64(fd: c_int) found of_file(fd);
}

calls! { next:
    fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_or!(unsafe { found(libc::AT_FDCWD, path, 0) }, to, next(path, to))
    }

    fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_or!(unsafe { found(libc::AT_FDCWD, path, 0) }, to, next(path, to))
    }

    fn lstat(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_or!(unsafe { found(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW) }, to, next(path, to))
    }

    fn lstat64(path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_or!(unsafe { found(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW) }, to, next(path, to))
    }

    fn fstatat(dirfd: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        stat_or!(unsafe { found(dirfd, path, flags) }, to, next(dirfd, path, to, flags))
    }

    fn fstatat64(dirfd: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        stat_or!(unsafe { found(dirfd, path, flags) }, to, next(dirfd, path, to, flags))
    }

    fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
        stat_or!(of_file(fd), to, next(fd, to))
    }

    fn fstat64(fd: c_int, to: *mut libc::stat) -> c_int {
        stat_or!(of_file(fd), to, next(fd, to))
    }

    fn __fxstatat(
        version: c_int,
        dirfd: c_int,
        path: *const c_char,
        to: *mut libc::stat,
        flags: c_int,
    ) -> c_int {
        if version != STAT_VERSION {
            return next(version, dirfd, path, to, flags);
        }
        stat_or!(unsafe { found(dirfd, path, flags) }, to, next(version, dirfd, path, to, flags))
    }

    fn __fxstatat64(
        version: c_int,
        dirfd: c_int,
        path: *const c_char,
        to: *mut libc::stat,
        flags: c_int,
    ) -> c_int {
        if version != STAT_VERSION {
            return next(version, dirfd, path, to, flags);
        }
        stat_or!(unsafe { found(dirfd, path, flags) }, to, next(version, dirfd, path, to, flags))
    }

    fn statx(
        dirfd: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        to: *mut libc::statx,
    ) -> c_int {
        // How new the attributes must be makes no difference here: they are the newest.
        let simple = flags & !libc::AT_STATX_SYNC_TYPE;
        let known = mask & !KNOWN == 0;
        match known.then(|| unsafe { found(dirfd, path, simple) }).flatten() {
            Some(found) => unsafe { tell_more(found, to) },
            None => {
                if path.is_null() || unsafe { *path } == 0 {
                    swap::one(dirfd);
                }
                next(dirfd, path, flags, mask, to)
            }
        }
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        unsafe { access_here(libc::AT_FDCWD, path, mode, 0) }.unwrap_or_else(|| next(path, mode))
    }

    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        unsafe { access_here(dirfd, path, mode, flags) }
            .unwrap_or_else(|| next(dirfd, path, mode, flags))
    }
}
