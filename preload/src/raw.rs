//! System calls, made without the functions of the C library, which may be this library's own.

use std::ffi::{c_char, c_int, c_void};

use libc::{iovec, msghdr};
use syscalls::{Errno, Sysno, syscall};

/// The result of a system call: what it returns, or an errno.
pub(crate) type Result<T> = std::result::Result<T, i32>;

fn number(result: std::result::Result<usize, Errno>) -> Result<usize> {
    result.map_err(Errno::into_raw)
}

fn descriptor(result: std::result::Result<usize, Errno>) -> Result<c_int> {
    Ok(c_int::try_from(number(result)?).unwrap_or(c_int::MAX))
}

/// Sets errno.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// A number that no other thread has at this moment.
pub(crate) fn thread() -> usize {
    // SAFETY: the call has no conditions.
    (unsafe { libc::__errno_location() }) as usize
}

pub(crate) fn getpid() -> usize {
    // SAFETY: the call has no conditions.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0)
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: the descriptor is this library's.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

/// close(2) of a descriptor of the program's.
pub(crate) fn close_of(fd: c_int) -> Result<usize> {
    // SAFETY: the program has asked for it.
    number(unsafe { syscall!(Sysno::close, fd) })
}

pub(crate) fn fcntl(fd: c_int, command: c_int, value: usize) -> Result<c_int> {
    // SAFETY: only commands with numbers are used.
    descriptor(unsafe { syscall!(Sysno::fcntl, fd, command, value) })
}

pub(crate) fn dup3(from: c_int, to: c_int, flags: c_int) -> Result<c_int> {
    // SAFETY: `to` is a descriptor that this library may replace.
    descriptor(unsafe { syscall!(Sysno::dup3, from, to, flags) })
}

pub(crate) fn lseek(fd: c_int, offset: u64) {
    // SAFETY: the descriptor is this library's.
    let _ = unsafe { syscall!(Sysno::lseek, fd, offset, libc::SEEK_SET) };
}

/// openat(2); `path` ends with a NUL.
pub(crate) fn open(path: &[u8], flags: c_int) -> Result<c_int> {
    debug_assert!(path.ends_with(&[0]), "a path of C");
    loop {
        // SAFETY: the path ends with a NUL.
        let opened = unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
        match descriptor(opened) {
            Err(libc::EINTR) => {}
            opened => return opened,
        }
    }
}

/// The file system, as a device, and the inode number of what is at a path, without asking the file
/// system anew.
pub(crate) fn identity(dirfd: c_int, path: &[u8]) -> Option<(u64, u64)> {
    debug_assert!(path.ends_with(&[0]), "a path of C");
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let (path, to) = (path.as_ptr(), found.as_mut_ptr());
    // SAFETY: the path ends with a NUL, and the result has its place.
    unsafe { syscall!(Sysno::statx, dirfd, path, flags, libc::STATX_INO, to) }.ok()?;
    // SAFETY: all zeros are one.
    let found = unsafe { found.assume_init() };
    Some((libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// Whether the kernel knows what is at a path, and need not ask for names on it.
///
/// # Safety
///
/// `path` ends with a NUL.
pub(crate) unsafe fn is_cached(dirfd: c_int, path: *const c_char, stays: bool) -> bool {
    // openat2(2): flags, mode and resolve, of which linux/openat2.h has RESOLVE_CACHED.
    const RESOLVE_CACHED: u64 = 0x20;
    let link = if stays { libc::O_NOFOLLOW } else { 0 };
    let flags = libc::O_PATH | libc::O_CLOEXEC | link;
    let how = [u64::from(flags.cast_unsigned()), 0, RESOLVE_CACHED];
    let (at, bytes) = (how.as_ptr(), size_of_val(&how));
    // SAFETY: as of this function, and `how` has this many bytes.
    match descriptor(unsafe { syscall!(Sysno::openat2, dirfd, path, at, bytes) }) {
        Ok(fd) => {
            close(fd);
            true
        }
        Err(_) => false,
    }
}

pub(crate) fn socket() -> Result<c_int> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call has no conditions.
    descriptor(unsafe { syscall!(Sysno::socket, libc::AF_UNIX, kind, 0) })
}

pub(crate) fn connect(fd: c_int, to: &libc::sockaddr_un) -> Result<usize> {
    let len = size_of::<libc::sockaddr_un>();
    // SAFETY: the address is one, and has this size.
    number(unsafe { syscall!(Sysno::connect, fd, std::ptr::from_ref(to), len) })
}

/// sendmsg(2) of all buffers.
pub(crate) fn send(fd: c_int, parts: &mut [iovec]) -> Result<usize> {
    let message = message(parts);
    let to = std::ptr::from_ref(&message);
    // SAFETY: the buffers are the caller's, who has borrowed or owns them.
    number(unsafe { syscall!(Sysno::sendmsg, fd, to, libc::MSG_NOSIGNAL) })
}

/// recvmsg(2) into buffers.
pub(crate) fn receive(fd: c_int, parts: &mut [iovec]) -> Result<usize> {
    let mut message = message(parts);
    let to = std::ptr::from_mut(&mut message);
    // SAFETY: the buffers are the caller's, who may write to them.
    number(unsafe { syscall!(Sysno::recvmsg, fd, to, 0) })
}

fn message(parts: &mut [iovec]) -> msghdr {
    // SAFETY: all zeros are a message with nothing in it.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    message
}

pub(crate) fn sched_yield() {
    // SAFETY: the call has no conditions.
    let _ = unsafe { syscall!(Sysno::sched_yield) };
}

/// umask(2).
pub(crate) fn umask(mask: u32) -> u32 {
    // SAFETY: the call has no conditions.
    let before = unsafe { syscall!(Sysno::umask, mask) };
    before.ok().and_then(|before| u32::try_from(before).ok()).unwrap_or(0o022)
}

/// The user and the group: those that the process has, and those that count.
pub(crate) fn users() -> [usize; 4] {
    // SAFETY: these calls have no conditions.
    unsafe {
        [
            syscall!(Sysno::getuid).unwrap_or(0),
            syscall!(Sysno::geteuid).unwrap_or(1),
            syscall!(Sysno::getgid).unwrap_or(0),
            syscall!(Sysno::getegid).unwrap_or(1),
        ]
    }
}

/// The capabilities that count, the first 32.
pub(crate) fn capabilities() -> u32 {
    // Version 3 of the call, and this thread: linux/capability.h.
    let header: [u32; 2] = [0x2008_0522, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: both have the shape that this version of the call has.
    let got = unsafe { syscall!(Sysno::capget, header.as_ptr(), sets.as_mut_ptr()) };
    if got.is_ok() { sets[0] } else { 0 }
}

/// Whether files may grow as they like.
pub(crate) fn files_may_grow() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let to = std::ptr::from_mut(&mut limit);
    // SAFETY: the result has its place.
    let got = unsafe { syscall!(Sysno::getrlimit, libc::RLIMIT_FSIZE, to) };
    got.is_ok() && limit.rlim_cur == libc::RLIM_INFINITY
}

/// Descriptors that the process may have.
pub(crate) fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let to = std::ptr::from_mut(&mut limit);
    // SAFETY: the result has its place.
    let got = unsafe { syscall!(Sysno::getrlimit, libc::RLIMIT_NOFILE, to) };
    if got.is_ok() { limit.rlim_cur } else { 0 }
}

/// A page that is zero in a child.
pub(crate) fn page_wiped_on_fork() -> Option<*mut c_void> {
    const BYTES: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping replaces none.
    let page = unsafe { syscall!(Sysno::mmap, 0, BYTES, protection, flags, usize::MAX, 0) }.ok()?;
    // SAFETY: the page is ours.
    unsafe { syscall!(Sysno::madvise, page, BYTES, libc::MADV_WIPEONFORK) }.ok()?;
    Some(page as *mut c_void)
}
