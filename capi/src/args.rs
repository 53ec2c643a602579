//! Pointers that C passes: this is the only file that follows pointers, and calls functions of libc.
//!
//! The functions here are safe for the rest of the crate because their arguments come from C as they
//! are, within one call: the header demands that each is null, or valid for what its function says
//! (a text ends with a zero byte, an array has as many elements as the count next to it says), and
//! that nobody else writes to it meanwhile. Null is refused here.

use std::{
    ffi::{CStr, OsStr, c_char, c_int},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    ptr, slice,
};

use crate::error::{Failed, Result};

/// Size of the pieces in which contents are read and written.
pub(crate) const PIECE_BYTES: u32 = 4 << 20;

fn null() -> Failed {
    Failed::new(libc::EFAULT, "a pointer that must not be null is")
}

/// The bytes of a text.
pub(crate) fn bytes<'a>(text: *const c_char) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(null());
    }
    // SAFETY: the text is not null, and C promises that it ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path: bytes, of any encoding.
pub(crate) fn path<'a>(text: *const c_char) -> Result<&'a Path> {
    Ok(Path::new(OsStr::from_bytes(bytes(text)?)))
}

/// A text that must be UTF-8, or null for none.
pub(crate) fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    let text = str::from_utf8(bytes(text)?);
    text.map(Some).map_err(|_| Failed::invalid("a text is not UTF-8"))
}

/// The elements of an array; null is an array of none.
pub(crate) fn array<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null()),
        // SAFETY: the array is not null, and C promises that it has as many elements.
        (false, count) => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// A value that C has filled in.
pub(crate) fn value<T: Copy>(place: *const T) -> Result<T> {
    if place.is_null() {
        return Err(null());
    }
    // SAFETY: the place is not null, and C promises that it holds a value. `T` is a structure of
    // numbers, which may hold any bits.
    Ok(unsafe { place.read() })
}

/// A place that C has for a value: it is not null, and stays until the value is written.
pub(crate) struct Out<T>(*mut T);

// SAFETY: the place is C's, and is written by one thread at a time, whichever it is.
unsafe impl<T> Send for Out<T> {}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub(crate) fn new(place: *mut T) -> Result<Out<T>> {
        if place.is_null() { Err(null()) } else { Ok(Out(place)) }
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: the place is not null, and C promises that it is one for such a value, and that
        // it is there until the call, or the operation of a batch, has ended.
        unsafe { self.0.write(value) }
    }
}

/// A buffer of C's: bytes to read, or room for some. It stays until the call, or the operation of a
/// batch, has ended.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    first: *mut u8,
    len: usize,
}

// SAFETY: the buffer is C's, and is used by one thread at a time, whichever it is.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Room for `len` elements' bytes; null is room for none.
    pub(crate) fn room<T>(first: *mut T, len: usize) -> Result<Buffer> {
        if first.is_null() && len > 0 {
            return Err(null());
        }
        Ok(Buffer { first: first.cast(), len: len.min(isize::MAX.unsigned_abs()) })
    }

    /// Bytes to read.
    pub(crate) fn of<T>(first: *const T, len: usize) -> Result<Buffer> {
        Buffer::room(first.cast_mut(), len)
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Copies bytes to the buffer from `at` on. They must fit.
    pub(crate) fn put(self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "the buffer is large enough");
        if bytes.is_empty() {
            return;
        }
        // SAFETY: as many bytes fit, as was just checked, and C promises that the buffer is there
        // and used by nobody else. `bytes` is memory of ours, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.first.add(at), bytes.len()) }
    }

    /// The bytes.
    pub(crate) fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the buffer is not null, as it has a length, and C promises that it has so many
        // bytes, which nobody changes until the call, or the operation of a batch, has ended.
        unsafe { slice::from_raw_parts(self.first, self.len) }
    }
}

/// Writes elements to an array of C's that has room for them.
pub(crate) fn fill<T: Copy>(first: *mut T, values: impl Iterator<Item = T>, max: usize) -> usize {
    let mut count = 0;
    for value in values.take(max) {
        // SAFETY: the caller has checked for null, and C promises room for `max` elements.
        unsafe { first.add(count).write(value) };
        count += 1;
    }
    count
}

/// Starts a thread, with what `start` does, that gets no signals: those are for the program's own
/// threads.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both are sets of signals of this function; the first is filled before it is read. A
    // failure leaves the mask as it is.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let started = start();
    if blocked == 0 {
        // SAFETY: the call above succeeded, so it has filled `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    started
}

/// A thread in which a connection that was closed by its other end is no signal, until this is
/// dropped. An encrypted connection is written by `writev`, which has no flag against `SIGPIPE`.
pub(crate) struct NoPipeSignal {
    before: libc::sigset_t,
    /// A signal of the program's own waits already.
    pending: bool,
}

fn pipe_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set, which the second changes; both take a set of this
    // function and a valid signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

fn is_pipe_signal_pending() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is this function's; where the call succeeds it has filled it.
    unsafe {
        libc::sigpending(set.as_mut_ptr()) == 0
            && libc::sigismember(set.as_ptr(), libc::SIGPIPE) == 1
    }
}

impl NoPipeSignal {
    pub(crate) fn new() -> Option<NoPipeSignal> {
        let (pending, set) = (is_pipe_signal_pending(), pipe_signal());
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are this function's; where the call succeeds it has filled `before`.
        unsafe {
            let result =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr());
            (result == 0).then(|| NoPipeSignal { before: before.assume_init(), pending })
        }
    }
}

impl Drop for NoPipeSignal {
    fn drop(&mut self) {
        let (set, now) = (pipe_signal(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        if !self.pending && is_pipe_signal_pending() {
            // SAFETY: set and time are this function's; no information about the signal is wanted.
            unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now) };
        }
        // SAFETY: `before` was filled by the call that made this value.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

/// A number that C has as `int` and means as bits.
pub(crate) fn bits(number: c_int) -> u32 {
    number.cast_unsigned()
}

/// A count of bytes that is returned.
pub(crate) fn count(bytes: usize) -> i64 {
    // Buffers are shorter than this.
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
