//! Locks of open files. They are the open file's, whichever thread took them, and end with it.

use std::ffi::c_int;

use base::{ByteRange, LockMode};

use crate::{
    args::Out,
    error::{Failed, Result, status},
    file::Open,
    types::{pando_file, pando_lock},
};

/// No lock: unlock.
pub const PANDO_LOCK_NONE: c_int = 0;
/// A lock that others may have, too; for a range, the file must be open for reading.
pub const PANDO_LOCK_SHARED: c_int = 1;
/// A lock of one; for a range, the file must be open for writing.
pub const PANDO_LOCK_EXCLUSIVE: c_int = 2;

/// `None`: unlock.
fn mode(mode: c_int) -> Result<Option<LockMode>> {
    match mode {
        PANDO_LOCK_NONE => Ok(None),
        PANDO_LOCK_SHARED => Ok(Some(LockMode::Shared)),
        PANDO_LOCK_EXCLUSIVE => Ok(Some(LockMode::Exclusive)),
        _ => Err(Failed::invalid("no such mode of a lock")),
    }
}

fn range(start: u64, len: u64) -> Result<ByteRange> {
    let last = match len {
        0 => Some(ByteRange::END),
        len => start.checked_add(len - 1),
    };
    let range = last.map(|last| ByteRange { first: start, last });
    range.filter(|range| range.is_valid()).ok_or_else(|| Failed::invalid("no such range"))
}

/// Locks the whole file, changes the mode of its lock, or unlocks it, as flock(2): `mode` is
/// PANDO_LOCK_SHARED, PANDO_LOCK_EXCLUSIVE or PANDO_LOCK_NONE. With `wait` 0, -EAGAIN when another
/// has the lock; otherwise the call waits. Whoever gets the lock sees what the one before wrote.
#[unsafe(no_mangle)]
pub extern "C" fn pando_flock(file: *mut pando_file, mode: c_int, wait: c_int) -> c_int {
    status(|| {
        let (open, mode) = (Open::get(file)?, self::mode(mode)?);
        open.fs().run_long(async {
            match mode {
                None => open.file()?.unlock().await,
                Some(mode) if wait == 0 => open.file()?.try_lock(mode).await,
                Some(mode) => open.file()?.lock(mode).await,
            }
        })
    })
}

/// Locks or unlocks `len` bytes from `start` on (0: all behind it), as fcntl(2) with F_OFD_SETLK,
/// or with `wait` as F_OFD_SETLKW: -EAGAIN when another has a lock, -EDEADLK when the lock would
/// wait for itself.
#[unsafe(no_mangle)]
pub extern "C" fn pando_lock_range(
    file: *mut pando_file,
    mode: c_int,
    start: u64,
    len: u64,
    wait: c_int,
) -> c_int {
    status(|| {
        let (open, mode, bytes) = (Open::get(file)?, self::mode(mode)?, range(start, len)?);
        open.fs().run_long(async {
            match mode {
                None => open.file()?.unlock_range(bytes).await,
                Some(mode) if wait == 0 => open.file()?.try_lock_range(bytes, mode).await,
                Some(mode) => open.file()?.lock_range(bytes, mode).await,
            }
        })
    })
}

/// Finds a lock that conflicts with the one in `lock`, and puts it there; its mode is
/// PANDO_LOCK_NONE when there is none. As fcntl(2) with F_OFD_GETLK.
#[unsafe(no_mangle)]
pub extern "C" fn pando_get_lock(file: *mut pando_file, lock: *mut pando_lock) -> c_int {
    status(|| {
        let (open, place) = (Open::get(file)?, Out::new(lock)?);
        let asked = crate::args::value(lock)?;
        let mode = mode(asked.mode)?.ok_or_else(|| Failed::invalid("no lock is asked about"))?;
        let range = range(asked.start, asked.len)?;
        let found = open.fs().run(async { open.file()?.get_lock(range, mode).await })?;
        place.put(found.map_or(pando_lock { mode: PANDO_LOCK_NONE, ..asked }, |found| {
            let ByteRange { first, last } = found.range;
            let len = if last == ByteRange::END { 0 } else { last - first + 1 };
            let mode = match found.mode {
                LockMode::Shared => PANDO_LOCK_SHARED,
                LockMode::Exclusive => PANDO_LOCK_EXCLUSIVE,
            };
            pando_lock { start: first, len, pid: found.pid, mode }
        }));
        Ok(())
    })
}
