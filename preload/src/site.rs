//! The region that this process is in, and whether this library may work in it.
//!
//! `PANDO_REGION` has it: the number of its mount as a device, those of its namespaces of mounts and
//! users, its token, its socket, and its directory. The library rests in processes for which the
//! kernel would decide otherwise than for the region's user: with another user, without root's
//! capabilities, in other namespaces, or where the directory leads elsewhere.

use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int},
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use base::{Ino, preload::TOKEN_BYTES};

use crate::{channel, files, raw};

/// The variable that says where the region is.
const VARIABLE: &[u8] = b"PANDO_REGION=";
/// Bytes of a path with its NUL.
const PATH_BYTES: usize = 4096;
/// Root must be able to do this to be above permissions: CAP_CHOWN, CAP_DAC_OVERRIDE,
/// CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_FSETID.
const OF_ROOT: u32 = 0b1_1111;

struct Site {
    dir: [u8; PATH_BYTES],
    dir_len: usize,
    socket: libc::sockaddr_un,
    device: u64,
    /// Numbers of the namespaces of mounts and users.
    namespaces: (u64, u64),
    token: [u8; TOKEN_BYTES],
}

struct Place(UnsafeCell<Site>);

// SAFETY: written before the library is on, and read after.
unsafe impl Sync for Place {}

static SITE: Place = Place(UnsafeCell::new(Site {
    dir: [0; PATH_BYTES],
    dir_len: 0,
    socket: libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] },
    device: 0,
    namespaces: (0, 0),
    token: [0; TOKEN_BYTES],
}));

/// Values of the word by which a process knows that the state is its own.
const WIPED: u32 = 0;
const MINE: u32 = 1;
const TAKEN_OVER: u32 = 2;

/// Whether this process uses the region by the library.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Whether files may be opened by messages.
static OPENS: AtomicBool = AtomicBool::new(true);
/// The process that this state is of.
static PROCESS: AtomicUsize = AtomicUsize::new(0);
/// A word that is 0 in a child that has this state as a copy.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// A number by which the region knows this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);
static UMASK: AtomicU32 = AtomicU32::new(0o022);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

extern "C" fn begin(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    if find(environment).is_some() {
        IS_ON.store(true, Ordering::Release);
    }
}

/// Finds the region, if this process may use it by the library.
fn find(environment: *const *const c_char) -> Option<()> {
    let value = variable(environment)?;
    let mut parts = value.splitn(6, |byte| *byte == b':');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (device, mounts, users) = (number()?, number()?, number()?);
    let (token, socket, dir) = (parts.next()?, parts.next()?, parts.next()?);
    // SAFETY: no other thread runs yet that knows of it.
    let site = unsafe { &mut *SITE.0.get() };
    if dir.len() >= PATH_BYTES || socket.len() >= site.socket.sun_path.len() || dir.len() < 2 {
        return None;
    }
    site.token = *token.first_chunk().filter(|_| token.len() == TOKEN_BYTES)?;
    site.dir[..dir.len()].copy_from_slice(dir);
    (site.dir_len, site.device, site.namespaces) = (dir.len(), device, (mounts, users));
    site.socket.sun_family = u16::try_from(libc::AF_UNIX).ok()?;
    for (to, byte) in site.socket.sun_path.iter_mut().zip(socket) {
        *to = *byte as c_char;
    }
    let [user, counts, group, group_counts] = raw::users();
    let is_plain = user == counts && group == group_counts;
    let is_whole = user != 0 || raw::capabilities() & OF_ROOT == OF_ROOT;
    if !is_plain || !is_whole || !raw::files_may_grow() {
        return None;
    }
    if !is_at(site) {
        return None;
    }
    let word = raw::page_wiped_on_fork()?.cast::<AtomicU32>();
    WORD.store(word, Ordering::Relaxed);
    let mask = raw::umask(0o077);
    raw::umask(mask);
    UMASK.store(mask, Ordering::Relaxed);
    NUMBER.store(random(), Ordering::Relaxed);
    is_mine();
    Some(())
}

/// Whether this process sees the region at its directory, in the namespaces that its programs have.
fn is_at(site: &Site) -> bool {
    let namespace = |path: &[u8]| raw::identity(libc::AT_FDCWD, path).map(|(_, ino)| ino);
    let dir = &site.dir[..=site.dir_len];
    namespace(b"/proc/self/ns/mnt\0") == Some(site.namespaces.0)
        && namespace(b"/proc/self/ns/user\0") == Some(site.namespaces.1)
        && raw::identity(libc::AT_FDCWD, dir) == Some((site.device, Ino::ROOT.0))
}

/// The bytes that the kernel gives each program, by which two programs of one process differ.
fn random() -> u64 {
    // SAFETY: the call has no conditions.
    let at = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u8; 8];
    // SAFETY: the kernel has put 16 bytes there.
    if at.is_null() { 0 } else { u64::from_le_bytes(unsafe { *at }) }
}

fn variable(environment: *const *const c_char) -> Option<&'static [u8]> {
    let mut at = environment;
    loop {
        // SAFETY: the environment ends with a null, which is met before its end is passed.
        let line = unsafe { *at };
        if line.is_null() {
            return None;
        }
        // SAFETY: each line ends with a NUL.
        let line = unsafe { CStr::from_ptr(line) }.to_bytes();
        if let Some(value) = line.strip_prefix(VARIABLE) {
            return Some(value);
        }
        // SAFETY: this was not the end.
        at = unsafe { at.add(1) };
    }
}

/// The state is this process's.
fn is_mine() {
    PROCESS.store(raw::getpid(), Ordering::Relaxed);
    // SAFETY: set before the library is on, to a page that stays.
    unsafe { &*WORD.load(Ordering::Relaxed) }.store(MINE, Ordering::Release);
}

/// Whether the library is on at all.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Whether this process may use the state: in a child of vfork it is the parent's.
pub(crate) fn enter() -> bool {
    if !is_on() {
        return false;
    }
    // SAFETY: set before the library is on, to a page that stays.
    let word = unsafe { &*WORD.load(Ordering::Relaxed) };
    if word.load(Ordering::Acquire) == WIPED {
        // A child. Its other threads, if it has some by now, use the mount meanwhile.
        let first = word.compare_exchange(WIPED, TAKEN_OVER, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            return false;
        }
        channel::forget();
        files::forget();
        is_mine();
        // One that was made in another namespace is no program of the region.
        // SAFETY: written before the library was on.
        if !is_at(unsafe { &*SITE.0.get() }) {
            rest();
        }
        return is_on();
    }
    word.load(Ordering::Acquire) == MINE && PROCESS.load(Ordering::Relaxed) == raw::getpid()
}

/// Whether files may be opened by messages: not where the library is about to rest.
pub(crate) fn opens() -> bool {
    OPENS.load(Ordering::Acquire)
}

/// Has no more files be opened by messages.
pub(crate) fn open_no_more() {
    OPENS.store(false, Ordering::Release);
}

/// Has the library rest from now on.
pub(crate) fn rest() {
    IS_ON.store(false, Ordering::Release);
}

/// The region's directory.
pub(crate) fn dir() -> &'static [u8] {
    // SAFETY: written before the library was on.
    let site = unsafe { &*SITE.0.get() };
    &site.dir[..site.dir_len]
}

/// Number of the mount, as a device.
pub(crate) fn device() -> u64 {
    // SAFETY: written before the library was on.
    unsafe { &*SITE.0.get() }.device
}

/// By this the region knows its programs.
pub(crate) fn token() -> &'static [u8] {
    // SAFETY: written before the library was on.
    &unsafe { &*SITE.0.get() }.token
}

/// The address of the region's process.
pub(crate) fn socket() -> &'static libc::sockaddr_un {
    // SAFETY: written before the library was on.
    &unsafe { &*SITE.0.get() }.socket
}

/// A number by which the region knows this process.
pub(crate) fn number() -> u64 {
    NUMBER.load(Ordering::Relaxed)
}

/// The permission bits that new files do not get.
pub(crate) fn umask() -> u32 {
    UMASK.load(Ordering::Relaxed)
}

pub(crate) fn set_umask(mask: u32) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}
