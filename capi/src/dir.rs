//! Listings of directories.

use std::{
    ffi::{c_char, c_int},
    sync::Arc,
};

use client::ReadDir;
use parking_lot::Mutex;
use wire::ReaddirEntry;

use crate::{
    args::{self, Out},
    error::{Failed, Result, guard, status},
    fs::{Fs, with},
    table::Table,
    types::{pando_dir, pando_dirent, pando_fs, pando_stat, type_bits},
};

static DIRS: Table<pando_dir, Listed> = Table::new(4);

/// Takes the lock of all handles, for a fork.
pub(crate) fn hold() {
    DIRS.hold();
}

/// Gives back what [`hold`] has taken.
pub(crate) fn release() {
    DIRS.release();
}

/// Makes the lock anew, in a child.
pub(crate) fn renew() {
    DIRS.renew();
}

/// A directory that is being listed.
struct Listed {
    fs: Arc<Fs>,
    listing: Mutex<ReadDir>,
}

fn get(dir: *mut pando_dir) -> Result<Arc<Listed>> {
    if dir.is_null() {
        return Err(Failed::new(libc::EFAULT, "the directory is null"));
    }
    let listed = DIRS.get(dir).ok_or_else(closed)?;
    listed.fs.check()?;
    Ok(listed)
}

fn closed() -> Failed {
    Failed::new(libc::EBADF, "this is no open directory, or it was closed")
}

/// Begins to list a directory and puts the listing to `dir`. As opendir(3).
#[unsafe(no_mangle)]
pub extern "C" fn pando_opendir(
    fs: *mut pando_fs,
    path: *const c_char,
    dir: *mut *mut pando_dir,
) -> c_int {
    with(fs, |fs| {
        let place = Out::new(dir)?;
        place.put(std::ptr::null_mut());
        let listing = fs.run(fs.client.read_dir(args::path(path)?))?;
        let listed = Listed { fs: Arc::clone(fs), listing: Mutex::new(listing) };
        let handle = DIRS.insert(Arc::new(listed));
        place.put(handle.ok_or_else(|| Failed::new(libc::EMFILE, "too many directories"))?);
        Ok(())
    })
}

/// Puts the next entry to `entry` and returns 1; 0 at the end. `.` and `..` are not among them.
///
/// What is made or removed meanwhile may be there or not; everything else is there exactly once.
/// Threads that list the same directory get different entries.
#[unsafe(no_mangle)]
pub extern "C" fn pando_readdir(dir: *mut pando_dir, entry: *mut pando_dirent) -> c_int {
    let read = guard(|| {
        let (listed, place) = (get(dir)?, Out::new(entry)?);
        let mut listing = listed.listing.lock();
        let next = match listing.next_arrived() {
            Some(next) => Some(next),
            None => listed.fs.run(listing.next())?,
        };
        drop(listing);
        let Some(next) = next else { return Ok(0) };
        place.put(dirent(&next));
        Ok(1)
    });
    c_int::try_from(read).unwrap_or(-libc::EIO)
}

/// Frees a listing. As closedir(3).
#[unsafe(no_mangle)]
pub extern "C" fn pando_closedir(dir: *mut pando_dir) -> c_int {
    status(|| {
        if dir.is_null() {
            return Err(Failed::new(libc::EFAULT, "the directory is null"));
        }
        let listed = DIRS.remove(dir).ok_or_else(closed)?;
        if let Err(error) = listed.fs.check_process() {
            std::mem::forget(listed);
            return Err(error);
        }
        let fs = Arc::clone(&listed.fs);
        // Race: what a listing has asked for ahead ends in a turn.
        let turn = fs.driver().turns().take();
        drop(listed);
        drop(turn);
        Ok(())
    })
}

fn dirent(entry: &ReaddirEntry) -> pando_dirent {
    let stat = entry.entry.as_ref().map(|entry| pando_stat::from(&entry.attr));
    let mut name = [0; 256];
    // A name has 255 bytes at most, so a zero byte is left.
    for (to, from) in name.iter_mut().take(255).zip(entry.name.as_bytes()) {
        *to = c_char::from_ne_bytes([*from]);
    }
    pando_dirent {
        ino: entry.ino.0,
        r#type: entry.kind.map_or(0, type_bits),
        has_stat: u32::from(stat.is_some()),
        stat: stat.unwrap_or_default(),
        name,
    }
}
