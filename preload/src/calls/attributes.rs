//! chmod, chown, times and truncate.

use std::ffi::{c_char, c_int};

use base::{
    Time,
    preload::{Ask, Kind, flag},
};
use libc::{gid_t, mode_t, off_t, timespec, timeval, uid_t};

use crate::{
    files,
    next::calls,
    place::{ask_file, place, returned},
    swap,
};

/// Sets attributes of a path; `None`: ask the mount.
unsafe fn set_path(dirfd: c_int, path: *const c_char, flags: c_int, ask: Ask) -> Option<c_int> {
    if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
        return None;
    }
    // SAFETY: as of this function.
    let place = unsafe { place(dirfd, path) }?;
    let mut ask = ask;
    if flags != 0 {
        ask.flags |= flag::NO_FOLLOW;
    }
    Some(returned(place.ask(ask)?.map(|_| 0)))
}

/// Sets attributes of a virtual descriptor; `None`: ask the mount.
fn set_file(fd: c_int, ask: Ask) -> Option<c_int> {
    let file = files::get(fd)?;
    let mut ask = ask;
    ask.flags |= flag::HANDLE;
    let done = ask_file(file.handle(), ask, &[], &mut []);
    if done.is_none() {
        swap::held(fd, &file);
    }
    Some(returned(done?.map(|_| 0)))
}

fn mode(mode: mode_t) -> Ask {
    let mut ask = Ask::new(Kind::Set);
    (ask.flags, ask.mode) = (flag::MODE, mode & 0o7777);
    ask
}

fn owner(uid: uid_t, gid: gid_t) -> Ask {
    let mut ask = Ask::new(Kind::Set);
    if uid != uid_t::MAX {
        (ask.flags, ask.uid) = (ask.flags | flag::UID, uid);
    }
    if gid != gid_t::MAX {
        (ask.flags, ask.gid) = (ask.flags | flag::GID, gid);
    }
    ask
}

/// New times; `None` where they are not ones.
fn times(atime: timespec, mtime: timespec) -> Option<Ask> {
    let mut ask = Ask::new(Kind::Set);
    let one = |time: timespec, at: u16, now: u16| match time.tv_nsec {
        libc::UTIME_OMIT => Some((0, Time { sec: 0, nsec: 0 })),
        libc::UTIME_NOW => Some((now, Time { sec: 0, nsec: 0 })),
        nsec => {
            let nsec = u32::try_from(nsec).ok().filter(|nsec| *nsec < 1_000_000_000)?;
            Some((at, Time { sec: time.tv_sec, nsec }))
        }
    };
    let (access, modification);
    (access, ask.atime) = one(atime, flag::ATIME, flag::ATIME_NOW)?;
    (modification, ask.mtime) = one(mtime, flag::MTIME, flag::MTIME_NOW)?;
    ask.flags = access | modification;
    Some(ask)
}

const NOW: timespec = timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };

unsafe fn times_of_timespec(at: *const timespec) -> Option<Ask> {
    if at.is_null() {
        return times(NOW, NOW);
    }
    // SAFETY: the program has given two.
    let (atime, mtime) = unsafe { (*at, *at.add(1)) };
    times(atime, mtime)
}

unsafe fn times_of_timeval(at: *const timeval) -> Option<Ask> {
    if at.is_null() {
        return times(NOW, NOW);
    }
    let time = |at: timeval| {
        let nsec = (0..1_000_000).contains(&at.tv_usec).then(|| at.tv_usec * 1000)?;
        Some(timespec { tv_sec: at.tv_sec, tv_nsec: nsec })
    };
    // SAFETY: the program has given two.
    let (atime, mtime) = unsafe { (*at, *at.add(1)) };
    times(time(atime)?, time(mtime)?)
}

unsafe fn times_of_utimbuf(at: *const libc::utimbuf) -> Option<Ask> {
    if at.is_null() {
        return times(NOW, NOW);
    }
    // SAFETY: the program has given it.
    let at = unsafe { *at };
    let time = |sec| timespec { tv_sec: sec, tv_nsec: 0 };
    times(time(at.actime), time(at.modtime))
}

fn size(size: off_t) -> Option<Ask> {
    let mut ask = Ask::new(Kind::Set);
    (ask.flags, ask.offset) = (flag::SIZE, u64::try_from(size).ok()?);
    Some(ask)
}

/// Whether a file with this mode can be opened by its user, as a swap would.
fn can_be_opened(mode: mode_t) -> bool {
    mode & 0o600 == 0o600
}

calls! { next:
    fn chmod(path: *const c_char, to: mode_t) -> c_int {
        if !can_be_opened(to) {
            swap::all();
        }
        unsafe { set_path(libc::AT_FDCWD, path, 0, mode(to)) }.unwrap_or_else(|| next(path, to))
    }

    fn fchmodat(dirfd: c_int, path: *const c_char, to: mode_t, flags: c_int) -> c_int {
        if !can_be_opened(to) {
            swap::all();
        }
        unsafe { set_path(dirfd, path, flags, mode(to)) }
            .unwrap_or_else(|| next(dirfd, path, to, flags))
    }

    fn fchmod(fd: c_int, to: mode_t) -> c_int {
        if !can_be_opened(to) {
            swap::one(fd);
        }
        set_file(fd, mode(to)).unwrap_or_else(|| next(fd, to))
    }

    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        unsafe { set_path(libc::AT_FDCWD, path, 0, owner(uid, gid)) }
            .unwrap_or_else(|| next(path, uid, gid))
    }

    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        unsafe { set_path(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW, owner(uid, gid)) }
            .unwrap_or_else(|| next(path, uid, gid))
    }

    fn fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        if flags & libc::AT_EMPTY_PATH != 0 {
            swap::one(dirfd);
        }
        unsafe { set_path(dirfd, path, flags, owner(uid, gid)) }
            .unwrap_or_else(|| next(dirfd, path, uid, gid, flags))
    }

    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        set_file(fd, owner(uid, gid)).unwrap_or_else(|| next(fd, uid, gid))
    }

    fn utimensat(
        dirfd: c_int,
        path: *const c_char,
        at: *const timespec,
        flags: c_int,
    ) -> c_int {
        let done = unsafe { times_of_timespec(at) }.and_then(|ask| {
            if path.is_null() { set_file(dirfd, ask) } else {
                unsafe { set_path(dirfd, path, flags, ask) }
            }
        });
        done.unwrap_or_else(|| {
            swap::one(dirfd);
            next(dirfd, path, at, flags)
        })
    }

    fn futimens(fd: c_int, at: *const timespec) -> c_int {
        let done = unsafe { times_of_timespec(at) }.and_then(|ask| set_file(fd, ask));
        done.unwrap_or_else(|| {
            swap::one(fd);
            next(fd, at)
        })
    }

    fn utimes(path: *const c_char, at: *const timeval) -> c_int {
        let set = |ask| unsafe { set_path(libc::AT_FDCWD, path, 0, ask) };
        unsafe { times_of_timeval(at) }.and_then(set).unwrap_or_else(|| next(path, at))
    }

    fn lutimes(path: *const c_char, at: *const timeval) -> c_int {
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        let set = |ask| unsafe { set_path(libc::AT_FDCWD, path, flags, ask) };
        unsafe { times_of_timeval(at) }.and_then(set).unwrap_or_else(|| next(path, at))
    }

    fn futimes(fd: c_int, at: *const timeval) -> c_int {
        let done = unsafe { times_of_timeval(at) }.and_then(|ask| set_file(fd, ask));
        done.unwrap_or_else(|| {
            swap::one(fd);
            next(fd, at)
        })
    }

    fn utime(path: *const c_char, at: *const libc::utimbuf) -> c_int {
        let set = |ask| unsafe { set_path(libc::AT_FDCWD, path, 0, ask) };
        unsafe { times_of_utimbuf(at) }.and_then(set).unwrap_or_else(|| next(path, at))
    }

    fn truncate(path: *const c_char, to: off_t) -> c_int {
        let set = |ask| unsafe { set_path(libc::AT_FDCWD, path, 0, ask) };
        size(to).and_then(set).unwrap_or_else(|| next(path, to))
    }

    fn truncate64(path: *const c_char, to: off_t) -> c_int {
        let set = |ask| unsafe { set_path(libc::AT_FDCWD, path, 0, ask) };
        size(to).and_then(set).unwrap_or_else(|| next(path, to))
    }
}
