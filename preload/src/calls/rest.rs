//! Calls after which the kernel may decide otherwise than for the region's user: this library rests
//! from then on.

use std::ffi::{c_char, c_int, c_void};

use libc::{gid_t, uid_t};

use crate::{
    next::{calls, calls_after},
    raw, site, swap,
};

/// The kernel gets to know all descriptors, and all calls.
pub(crate) fn rest() {
    if site::is_on() && site::enter() {
        site::open_no_more();
        swap::all();
        // Of another thread that has just opened one.
        raw::sched_yield();
        swap::all();
        site::rest();
    }
}

calls! { next:

    fn prlimit(
        pid: libc::pid_t,
        resource: c_int,
        limit: *const libc::rlimit,
        before: *mut libc::rlimit,
    ) -> c_int {
        if !limit.is_null() {
            limited(resource);
        }
        next(pid, resource, limit, before)
    }

    fn prlimit64(
        pid: libc::pid_t,
        resource: c_int,
        limit: *const libc::rlimit64,
        before: *mut libc::rlimit64,
    ) -> c_int {
        if !limit.is_null() {
            limited(resource);
        }
        next(pid, resource, limit, before)
    }
}

calls_after! { changed:
    fn setuid(uid: uid_t) -> c_int;
    fn setgid(gid: gid_t) -> c_int;
    fn seteuid(uid: uid_t) -> c_int;
    fn setegid(gid: gid_t) -> c_int;
    fn setreuid(uid: uid_t, counts: uid_t) -> c_int;
    fn setregid(gid: gid_t, counts: gid_t) -> c_int;
    fn setresuid(uid: uid_t, counts: uid_t, saved: uid_t) -> c_int;
    fn setresgid(gid: gid_t, counts: gid_t, saved: gid_t) -> c_int;
    fn setfsuid(uid: uid_t) -> c_int;
    fn setfsgid(gid: gid_t) -> c_int;
    fn capset(header: *mut c_void, data: *const c_void) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
}

calls_after! { limited:
    fn setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int;
    fn setrlimit64(resource: c_int, limit: *const libc::rlimit64) -> c_int;
}

/// The process is about to have other rights, or to see other files.
fn changed<T>(_: T) {
    rest();
}

/// Files may be bounded in size from now on, which the kernel sees to.
fn limited(resource: c_int) {
    if resource == libc::RLIMIT_FSIZE as c_int {
        rest();
    }
}
