//! A local directory of blocks, beyond what `object_store` does with it: making it stable, and sweeping it.
//!
//! Puts sync nothing by themselves: one `syncfs` makes everything stable that was put before it, files and
//! folders alike, however many they are. An error that the kernel met while writing back is told by the next sync,
//! because the directory is open for as long as this lives.
//!
//! On a FUSE file system `syncfs` succeeds and does nothing (Linux hands it to virtiofs only), so there each
//! file is synced by itself, and then the folders on the way to it.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use parking_lot::Mutex;

/// `FUSE_SUPER_MAGIC` of statfs(2).
const FUSE: i64 = 0x6573_5546;

/// The directory.
pub(super) struct Directory {
    directory: PathBuf,
    handle: fs::File,
    changes: Changes,
}

/// What no sync has covered.
enum Changes {
    /// Something was put.
    Some(AtomicBool),
    /// These files, below the directory.
    Files(Mutex<BTreeSet<PathBuf>>),
}

impl Directory {
    /// What a crash left may be there without being stable, so the first sync is never in vain.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let handle = fs::File::open(directory)?;
        let changes = if rustix::fs::fstatfs(&handle)?.f_type == FUSE {
            Changes::Files(Mutex::default())
        } else {
            Changes::Some(AtomicBool::new(true))
        };
        Ok(Self { directory: directory.to_owned(), handle, changes })
    }

    /// A put of this file has returned, or an earlier one may not have been synced.
    pub(super) fn changed(&self, file: &str) {
        match &self.changes {
            Changes::Some(changed) => changed.store(true, Ordering::Release),
            Changes::Files(files) => {
                files.lock().insert(PathBuf::from(file));
            }
        }
    }

    /// Makes everything stable that was put before.
    pub(super) fn sync(&self) -> io::Result<()> {
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
                // It was deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?.sync_all()?,
            }
            folders.extend(file.ancestors().skip(1));
        }
        // The deepest first, so that no name leads to what is not there.
        folders.iter().rev().try_for_each(|folder| sync_folder(&self.directory.join(folder)))
    }

    /// Removes files of unfinished puts last touched before `before`; returns their number.
    pub(super) async fn sweep(self: &Arc<Self>, before: SystemTime) -> io::Result<u64> {
        let root = self.directory.join("blocks");
        off_the_core(move || sweep(&root, before)).await
    }
}

/// Makes the entries of a folder stable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// Runs what waits for a disk where it holds up no core; right here when there is no runtime.
async fn off_the_core<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.map_err(io::Error::other)?,
        Err(_) => work(),
    }
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

/// Whether `object_store` was still writing this file: the name of a block, `#` and a number.
fn is_unfinished(name: &std::ffi::OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.split_once('#'));
    parts.is_some_and(|(block, number)| {
        block.len() == 32 && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}
