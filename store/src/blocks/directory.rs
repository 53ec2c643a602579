//! A local directory of blocks: puts, reads, syncs and sweeps beyond those of `object_store`.
//!
//! A put makes the file under its name and writes it there, where `object_store` would make another
//! one, link it and remove the first name: a small block costs half as much. A put that a crash cuts
//! short leaves a part of a block. Nobody has named that block, and its checksums are wrong.
//!
//! Puts sync nothing by themselves: one `syncfs` makes everything stable that was put before it,
//! files and folders alike, however many they are. The next sync reports an error that the kernel
//! met while writing back, because the directory is open for as long as this lives.
//!
//! On a FUSE file system `syncfs` succeeds and does nothing (Linux hands it to virtiofs only).
//! There each file is synced by itself, and then the folders above it.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, IoSlice, Write as _},
    num::NonZeroU64,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use bytes::Bytes;
use object_store::PutPayload;
use parking_lot::{Condvar, Mutex};
use rustix::{
    buffer::spare_capacity,
    fs::{Advice, fadvise},
    io::{Errno, pread},
};

use crate::stable::sync_folder;

/// `FUSE_SUPER_MAGIC` of statfs(2).
const FUSE: i64 = 0x6573_5546;

/// A local directory of blocks.
pub(super) struct Directory {
    directory: PathBuf,
    handle: fs::File,
    changes: Changes,
    /// Held while a sync is under way, which may cover files put by a later caller: that one must
    /// wait for its end.
    syncing: Mutex<()>,
    /// Held while a file is made. The kernel makes one at a time in a folder, and threads that wait
    /// for that spin.
    making: Mutex<()>,
    /// Files that are being written: a second put of one waits until it can be compared.
    writing: Mutex<BTreeSet<PathBuf>>,
    written: Condvar,
}

/// The files that no sync has covered.
enum Changes {
    /// Whether any file was put: one `syncfs` covers them all.
    Some(AtomicBool),
    /// The paths of these files, relative to the directory.
    Files(Mutex<BTreeSet<PathBuf>>),
}

impl Directory {
    /// Opens the directory. A crash may have left files that are not stable, so the first sync is
    /// never in vain.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let handle = fs::File::open(directory)?;
        let changes = if rustix::fs::fstatfs(&handle)?.f_type == FUSE {
            Changes::Files(Mutex::default())
        } else {
            Changes::Some(AtomicBool::new(true))
        };
        let (directory, syncing, making) =
            (directory.to_owned(), Mutex::default(), Mutex::default());
        let (writing, written) = (Mutex::default(), Condvar::new());
        Ok(Self { directory, handle, changes, syncing, making, writing, written })
    }

    /// Notes that a put of this file has returned, or that an earlier one may not have been synced.
    pub(super) fn changed(&self, file: &str) {
        match &self.changes {
            Changes::Some(changed) => changed.store(true, Ordering::Release),
            Changes::Files(files) => {
                files.lock().insert(PathBuf::from(file));
            }
        }
    }

    /// Makes all files stable that were put before.
    pub(super) fn sync(&self) -> io::Result<()> {
        let _syncing = self.syncing.lock();
        match &self.changes {
            Changes::Some(changed) => {
                if changed.swap(false, Ordering::AcqRel) {
                    let synced = rustix::fs::syncfs(&self.handle);
                    synced.inspect_err(|_| changed.store(true, Ordering::Release))?;
                }
                Ok(())
            }
            Changes::Files(files) => {
                let taken = std::mem::take(&mut *files.lock());
                self.sync_each(&taken).inspect_err(|_| files.lock().extend(taken))
            }
        }
    }

    fn sync_each(&self, files: &BTreeSet<PathBuf>) -> io::Result<()> {
        let mut folders = BTreeSet::new();
        for file in files {
            match fs::File::open(self.directory.join(file)) {
                // The file was deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?.sync_all()?,
            }
            folders.extend(file.ancestors().skip(1));
        }
        // The deepest folder first, so that no name leads to a folder that is not there.
        folders.iter().rev().try_for_each(|folder| sync_folder(&self.directory.join(folder)))
    }

    /// Stores a file, unless there is one of this name.
    pub(super) async fn put(
        self: &Arc<Self>,
        file: &str,
        object: PutPayload,
    ) -> Result<(), object_store::Error> {
        let (this, path) = (Arc::clone(self), self.directory.join(file));
        let put = off_the_core(move || this.put_now(&path, &object)).await;
        let path = file.to_owned();
        put.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                object_store::Error::AlreadyExists { path, source: error.into() }
            }
            io::ErrorKind::PermissionDenied => {
                object_store::Error::PermissionDenied { path, source: error.into() }
            }
            _ => object_store::Error::Generic { store: "local directory", source: error.into() },
        })
    }

    fn put_now(&self, path: &Path, object: &PutPayload) -> io::Result<()> {
        {
            let mut writing = self.writing.lock();
            while !writing.insert(path.to_owned()) {
                self.written.wait(&mut writing);
            }
        }
        let put = self.put_alone(path, object);
        self.writing.lock().remove(path);
        self.written.notify_all();
        put
    }

    fn put_alone(&self, path: &Path, object: &PutPayload) -> io::Result<()> {
        let make = || {
            let _making = self.making.lock();
            fs::File::create_new(path)
        };
        let mut file = match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(&self.directory))?;
                make()?
            }
            made => made?,
        };
        let parts: Vec<&[u8]> = object.iter().map(Bytes::as_ref).collect();
        write_all(&mut file, &parts).inspect_err(|_| {
            // A part of a block is no use; should it stay, the block gets another number.
            let _ = fs::remove_file(path);
        })
    }

    /// Reads the bytes of a file in `range`; fewer when the file ends before.
    pub(super) async fn read(&self, file: &str, range: Range<u64>) -> io::Result<Bytes> {
        let path = self.directory.join(file);
        off_the_core(move || read(&path, &range)).await
    }

    /// Removes files of unfinished puts last touched before `before`; returns their number.
    pub(super) async fn sweep(self: &Arc<Self>, before: SystemTime) -> io::Result<u64> {
        let root = self.directory.join("blocks");
        off_the_core(move || sweep(&root, before)).await
    }
}

/// Runs what waits for a disk where it holds up no core; right here when there is no runtime.
pub(super) async fn off_the_core<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.map_err(io::Error::other)?,
        Err(_) => work(),
    }
}

fn write_all(file: &mut fs::File, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        match file.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The kernel is told of the whole range first: it then asks the disk for all of it at once, where
/// a read by itself asks step by step.
fn read(path: &Path, range: &Range<u64>) -> io::Result<Bytes> {
    let file = fs::File::open(path)?;
    let len = range.end - range.start;
    // Advice is no more than that.
    let _ = fadvise(&file, range.start, NonZeroU64::new(len), Advice::WillNeed);
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = range.start + bytes.len() as u64;
        match pread(&file, spare_capacity(&mut bytes), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    bytes.truncate(len);
    Ok(bytes.into())
}

fn sweep(folder: &Path, before: SystemTime) -> io::Result<u64> {
    let mut removed = 0;
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            removed += sweep(&entry.path(), before)?;
        } else if is_unfinished(&entry.file_name()) && entry.metadata()?.modified()? < before {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether `object_store`, which made files here before, was still writing this one: the name of an
/// object, `#` and a number.
fn is_unfinished(name: &std::ffi::OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.split_once('#'));
    parts.is_some_and(|(block, number)| {
        block.strip_suffix(super::name::PACKED).unwrap_or(block).len() == 32
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn a_sync_waits_for_one_that_may_cover_what_it_is_about() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::new(folder.path()).unwrap();
        // A sync is under way and has taken note of all changes.
        let under_way = directory.syncing.lock();
        if let Changes::Some(changed) = &directory.changes {
            changed.store(false, Ordering::Release);
        }
        let (say, ended) = mpsc::channel();
        thread::scope(|threads| {
            threads.spawn(|| say.send(directory.sync()).unwrap());
            let waits = ended.recv_timeout(Duration::from_millis(100));
            assert_eq!(waits.err(), Some(mpsc::RecvTimeoutError::Timeout));
            drop(under_way);
            ended.recv().unwrap().unwrap();
        });
    }
}
