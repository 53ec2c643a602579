//! A local directory of blocks, beyond what `object_store` does with it: making it stable, and sweeping it.
//!
//! Puts sync nothing by themselves: one `syncfs` makes everything stable that was put before it, files and
//! folders alike, however many they are. An error that the kernel met while writing back is told by the next sync,
//! because the directory is open for as long as this lives.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

/// The directory.
pub(super) struct Directory {
    /// `blocks` in the directory.
    root: PathBuf,
    handle: fs::File,
    /// Something was put that no sync has covered.
    changed: AtomicBool,
}

impl Directory {
    /// What a crash left may be there without being stable, so the first sync is never in vain.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let handle = fs::File::open(directory)?;
        Ok(Self { root: directory.join("blocks"), handle, changed: AtomicBool::new(true) })
    }

    /// A put has returned.
    pub(super) fn changed(&self) {
        self.changed.store(true, Ordering::Release);
    }

    /// Makes everything stable that was put before.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.changed.swap(false, Ordering::AcqRel) {
            rustix::fs::syncfs(&self.handle).inspect_err(|_| self.changed())?;
        }
        Ok(())
    }

    /// Removes files of unfinished puts last touched before `before`; returns their number.
    pub(super) async fn sweep(self: &Arc<Self>, before: SystemTime) -> io::Result<u64> {
        let this = Arc::clone(self);
        off_the_core(move || sweep(&this.root, before)).await
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
