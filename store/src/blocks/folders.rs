//! The folders of a local directory: made and stable before the first block goes into one.
//!
//! `object_store` makes missing folders itself and syncs those it made, but a put that finds a
//! folder made by another a moment ago does not wait for that sync: its block would be stable and
//! the way to it not. So folders are made here, and a put waits until its folder is stable.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use super::name;

const WORDS: usize = (1 << u16::BITS) / u64::BITS as usize;

/// Which folders of one directory are known to be stable. Nothing is known at first: what a crash
/// left may be there without being stable.
pub(super) struct Folders {
    /// `blocks` in the directory.
    root: PathBuf,
    stable: Box<[AtomicU64; WORDS]>,
}

impl Folders {
    pub(super) fn new(directory: &Path) -> Self {
        let stable = Box::new([const { AtomicU64::new(0) }; WORDS]);
        Self { root: directory.join("blocks"), stable }
    }

    /// Returns when the folder is there, and stable.
    pub(super) async fn ensure(self: &Arc<Self>, folder: u16) -> io::Result<()> {
        let (word, bit) = (&self.stable[usize::from(folder) / 64], 1 << (folder % 64));
        if word.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        let this = Arc::clone(self);
        off_the_core(move || this.make(folder)).await?;
        word.fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// Removes files of unfinished puts last touched before `before`; returns their number.
    pub(super) async fn sweep(self: &Arc<Self>, before: SystemTime) -> io::Result<u64> {
        let this = Arc::clone(self);
        off_the_core(move || sweep(&this.root, before)).await
    }

    fn make(&self, folder: u16) -> io::Result<()> {
        let [outer, inner] = name::folder_names(folder);
        let outer = self.root.join(outer);
        // Race: another put may be making the same folders; whoever comes second syncs as well.
        fs::create_dir_all(outer.join(inner))?;
        sync_folder(&outer)?;
        sync_folder(&self.root)
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
