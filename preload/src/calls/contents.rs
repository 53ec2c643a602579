//! Contents of open files.

use std::ffi::{c_int, c_void};

use base::preload::{Ask, BODY_MAX, Kind, flag};
use libc::{iovec, off_t, size_t, ssize_t};

use crate::{
    channel::{PARTS_MAX, part},
    files::{self, Held},
    next::calls,
    place::{ask_file, returned},
    swap,
};

/// Bytes that a call moves: more are moved by the next one.
fn clamped(len: usize) -> usize {
    len.min(BODY_MAX)
}

/// Reads at a position; `None`: the mount is to be asked.
unsafe fn read_at(
    file: &Held<'_>,
    to: *mut c_void,
    len: usize,
    at: u64,
) -> Option<Result<usize, i32>> {
    if !file.reads() {
        return Some(Err(libc::EBADF));
    }
    if len == 0 {
        return Some(Ok(0));
    }
    let len = clamped(len);
    // SAFETY: the program has given so many bytes to be written to.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), len) };
    let mut ask = Ask::new(Kind::Read);
    (ask.offset, ask.len) = (at, u32::try_from(len).unwrap_or(0));
    let done = ask_file(file.handle(), ask, &[], to)?;
    Some(done.map(|(_, len)| len))
}

/// Reads on; `None`: the mount is to be asked.
unsafe fn read_on(file: &Held<'_>, to: *mut c_void, len: usize) -> Option<ssize_t> {
    let moved = file.move_by(clamped(len));
    // SAFETY: as of this function.
    let read = unsafe { read_at(file, to, len, moved.from) };
    let len = read.and_then(Result::ok).unwrap_or(0);
    moved.to(file, moved.from + len as u64);
    Some(returned(read?.map(usize::cast_signed)))
}

/// Writes at a position; the end of what was written. `None`: the mount is to be asked.
fn write_at(file: &Held<'_>, parts: &[iovec], at: u64) -> Option<Result<u64, i32>> {
    if !file.writes() {
        return Some(Err(libc::EBADF));
    }
    let len: usize = parts.iter().map(|part| part.iov_len).sum();
    if len == 0 {
        return Some(Ok(at));
    }
    if len > BODY_MAX || parts.len() > PARTS_MAX {
        return None;
    }
    file.is_written();
    let mut ask = Ask::new(Kind::Write);
    ask.offset = at;
    ask.flags = if file.appends() { flag::APPEND } else { 0 };
    let done = ask_file(file.handle(), ask, parts, &mut [])?;
    Some(done.map(|(answer, _)| answer.value))
}

/// Writes on; `None`: the mount is to be asked.
fn write_on(file: &Held<'_>, parts: &[iovec]) -> Option<ssize_t> {
    let len: usize = parts.iter().map(|part| part.iov_len).sum();
    let moved = file.move_by(len);
    let written = write_at(file, parts, moved.from);
    moved.to(
        file,
        match written {
            Some(Ok(end)) if len > 0 => end,
            _ => moved.from,
        },
    );
    Some(returned(written?.map(|_| len.cast_signed())))
}

/// A buffer of the program's.
unsafe fn buffer<'a>(from: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the program has given so many bytes to be read.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }
}

fn position(at: off_t) -> Result<u64, i32> {
    u64::try_from(at).map_err(|_| libc::EINVAL)
}

/// pread; `None`: the mount is to be asked.
unsafe fn pread_here(fd: c_int, to: *mut c_void, len: usize, at: off_t) -> Option<ssize_t> {
    let file = files::get(fd)?;
    let read = match position(at) {
        // SAFETY: as of this function.
        Ok(at) => unsafe { read_at(&file, to, len, at) },
        Err(errno) => Some(Err(errno)),
    };
    if read.is_none() {
        swap::held(fd, &file);
    }
    Some(returned(read?.map(usize::cast_signed)))
}

/// pwrite; `None`: the mount is to be asked.
unsafe fn pwrite_here(fd: c_int, from: *const c_void, len: usize, at: off_t) -> Option<ssize_t> {
    let file = files::get(fd)?;
    let written = match position(at) {
        // SAFETY: as of this function.
        Ok(at) => write_at(&file, &[part(unsafe { buffer(from, len) })], at),
        Err(errno) => Some(Err(errno)),
    };
    if written.is_none() {
        swap::held(fd, &file);
    }
    Some(returned(written?.map(|_| len.cast_signed())))
}

unsafe fn read_here(fd: c_int, to: *mut c_void, len: usize) -> Option<ssize_t> {
    let file = files::get(fd)?;
    // SAFETY: as of this function.
    let read = unsafe { read_on(&file, to, len) };
    if read.is_none() {
        swap::held(fd, &file);
    }
    read
}

fn write_here(fd: c_int, parts: &[iovec]) -> Option<ssize_t> {
    let file = files::get(fd)?;
    let written = write_on(&file, parts);
    if written.is_none() {
        swap::held(fd, &file);
    }
    written
}

/// The buffers of a program, if they are few.
unsafe fn buffers<'a>(parts: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=PARTS_MAX).contains(count))?;
    // SAFETY: the program has given so many.
    Some(unsafe { std::slice::from_raw_parts(parts, count) })
}

/// lseek; `None`: the mount is to be asked.
fn seek_here(fd: c_int, offset: off_t, whence: c_int) -> Option<off_t> {
    let file = files::get(fd)?;
    let from = match whence {
        libc::SEEK_SET => Some(0),
        libc::SEEK_CUR => Some(file.position()),
        libc::SEEK_END => {
            let mut ask = Ask::new(Kind::Stat);
            ask.flags = flag::HANDLE;
            match ask_file(file.handle(), ask, &[], &mut []) {
                Some(Ok((answer, _))) => Some(answer.stat.size),
                Some(Err(errno)) => return Some(returned(Err(errno))),
                None => None,
            }
        }
        _ => None,
    };
    let Some(from) = from else {
        swap::held(fd, &file);
        return None;
    };
    let to = i64::try_from(from).ok().and_then(|from| from.checked_add(offset));
    let to = to.and_then(|to| u64::try_from(to).ok());
    if let Some(to) = to {
        file.set(to);
    }
    Some(returned(to.map(u64::cast_signed).ok_or(libc::EINVAL)))
}

/// ftruncate; `None`: the mount is to be asked.
fn cut_here(fd: c_int, size: off_t) -> Option<c_int> {
    let file = files::get(fd)?;
    let size = match position(size) {
        Ok(size) if file.writes() => size,
        Ok(_) | Err(_) => return Some(returned(Err(libc::EINVAL))),
    };
    let mut ask = Ask::new(Kind::Set);
    (ask.flags, ask.offset) = (flag::HANDLE | flag::SIZE, size);
    let done = ask_file(file.handle(), ask, &[], &mut []);
    if done.is_none() {
        swap::held(fd, &file);
    }
    Some(returned(done?.map(|_| 0)))
}

/// fsync; `None`: the mount is to be asked.
fn sync_here(fd: c_int) -> Option<c_int> {
    let file = files::get(fd)?;
    let done = ask_file(file.handle(), Ask::new(Kind::Sync), &[], &mut []);
    if done.is_none() {
        swap::held(fd, &file);
    }
    Some(returned(done?.map(|_| 0)))
}

calls! { next:
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        unsafe { read_here(fd, to, len) }.unwrap_or_else(|| next(fd, to, len))
    }

    fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, max: size_t) -> ssize_t {
        if len > max {
            return next(fd, to, len, max);
        }
        unsafe { read_here(fd, to, len) }.unwrap_or_else(|| next(fd, to, len, max))
    }

    fn pread(fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        unsafe { pread_here(fd, to, len, at) }.unwrap_or_else(|| next(fd, to, len, at))
    }

    fn pread64(fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        unsafe { pread_here(fd, to, len, at) }.unwrap_or_else(|| next(fd, to, len, at))
    }

    fn __pread_chk(fd: c_int, to: *mut c_void, len: size_t, at: off_t, max: size_t) -> ssize_t {
        if len > max {
            return next(fd, to, len, at, max);
        }
        unsafe { pread_here(fd, to, len, at) }.unwrap_or_else(|| next(fd, to, len, at, max))
    }

    fn __pread64_chk(fd: c_int, to: *mut c_void, len: size_t, at: off_t, max: size_t) -> ssize_t {
        if len > max {
            return next(fd, to, len, at, max);
        }
        unsafe { pread_here(fd, to, len, at) }.unwrap_or_else(|| next(fd, to, len, at, max))
    }

    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        write_here(fd, &[iovec { iov_base: from.cast_mut(), iov_len: len }])
            .unwrap_or_else(|| next(fd, from, len))
    }

    fn pwrite(fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t {
        unsafe { pwrite_here(fd, from, len, at) }.unwrap_or_else(|| next(fd, from, len, at))
    }

    fn pwrite64(fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t {
        unsafe { pwrite_here(fd, from, len, at) }.unwrap_or_else(|| next(fd, from, len, at))
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let written = files::is_virtual(fd).then(|| unsafe { buffers(parts, count) });
        let written = written.and_then(|parts| match parts {
            Some(parts) => write_here(fd, parts),
            None => {
                swap::one(fd);
                None
            }
        });
        written.unwrap_or_else(|| next(fd, parts, count))
    }

    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        seek_here(fd, offset, whence).unwrap_or_else(|| next(fd, offset, whence))
    }

    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        seek_here(fd, offset, whence).unwrap_or_else(|| next(fd, offset, whence))
    }

    fn ftruncate(fd: c_int, size: off_t) -> c_int {
        cut_here(fd, size).unwrap_or_else(|| next(fd, size))
    }

    fn ftruncate64(fd: c_int, size: off_t) -> c_int {
        cut_here(fd, size).unwrap_or_else(|| next(fd, size))
    }

    fn fsync(fd: c_int) -> c_int {
        sync_here(fd).unwrap_or_else(|| next(fd))
    }

    fn fdatasync(fd: c_int) -> c_int {
        sync_here(fd).unwrap_or_else(|| next(fd))
    }
}
