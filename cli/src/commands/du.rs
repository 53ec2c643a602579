//! `pando du`: how much a tree holds.

use std::{
    fs::{self, Metadata},
    io::{self, IsTerminal as _},
    num::NonZeroUsize,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use base::HashSet;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

use super::info;
use crate::output;

/// `st_blocks` counts these, whatever the file system.
const BLOCK_BYTES: u64 = 512;
/// Unless told otherwise: the walk waits for a server more than it computes.
const THREADS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not 0");

/// Count the bytes, files and directories of a tree.
///
/// A file with several names in the tree is counted once. Other file systems mounted below are left
/// out.
///
/// For a directory with a quota, the server's own count is printed at once, without a walk:
/// allocated bytes, and inodes of all kinds. That count has a file in the directory where the file
/// was created.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file or directory, on a mount.
    path: PathBuf,
    /// Number of directories to list at the same time.
    #[arg(long, default_value_t = THREADS, value_name = "N")]
    threads: NonZeroUsize,
    /// Walk the tree even if the server has a count.
    #[arg(long)]
    walk: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Counts of the server.
#[derive(Debug, Serialize)]
struct Counted {
    bytes_allocated: u64,
    entries: u64,
}

/// Counts of the walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Usage {
    /// Sizes of files and symbolic links, holes included.
    bytes: u64,
    /// Bytes that take room.
    bytes_allocated: u64,
    /// Regular files.
    files: u64,
    directories: u64,
    /// Symbolic links, devices, sockets and pipes.
    others: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(counted) = counted(&args.path).filter(|_| !args.walk) {
        if args.json {
            output::print_json(&counted)?;
        } else {
            output::print(&output::rows(&[
                ("allocated", output::bytes(counted.bytes_allocated)),
                ("entries", counted.entries.to_string()),
            ]))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let bar = bar();
    let usage = measure(&args.path, args.threads, &bar)?;
    bar.finish_and_clear();
    if args.json {
        output::print_json(&usage)?;
    } else {
        output::print(&output::rows(&[
            ("bytes", format!("{} ({})", usage.bytes, output::bytes(usage.bytes))),
            ("allocated", output::bytes(usage.bytes_allocated)),
            ("files", usage.files.to_string()),
            ("directories", usage.directories.to_string()),
            ("others", usage.others.to_string()),
        ]))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the server's counts, if it has counted everything.
fn counted(path: &Path) -> Option<Counted> {
    let facts = info::facts(path).ok()?;
    let number = |name: &str| facts.get(name)?.as_str()?.parse().ok();
    let active = facts.get("quota.state")?.as_str()? == "active";
    let counted =
        Counted { bytes_allocated: number("used.bytes")?, entries: number("used.entries")? };
    active.then_some(counted)
}

fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{spinner} {msg}").expect("the template is well-formed");
    let bar = ProgressBar::new_spinner().with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// State that the threads of a walk share.
struct Walk<'a> {
    device: u64,
    bar: &'a ProgressBar,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Directories that are not listed yet.
    waiting: Vec<PathBuf>,
    /// Directories that are being listed.
    busy: usize,
    usage: Usage,
    /// Files with several names that were counted.
    linked: HashSet<u64>,
    failed: Option<anyhow::Error>,
}

fn measure(path: &Path, threads: NonZeroUsize, bar: &ProgressBar) -> anyhow::Result<Usage> {
    let found = fs::symlink_metadata(path).with_context(|| format!("{}", path.display()))?;
    let mut state = State::default();
    if state.count(&found) {
        state.waiting.push(path.to_owned());
    }
    let walk = Walk { device: found.dev(), bar, state: Mutex::new(state), changed: Condvar::new() };
    thread::scope(|scope| {
        for number in 0..threads.get() {
            let thread = thread::Builder::new().name(format!("du-{number}"));
            if thread.spawn_scoped(scope, || walk.work()).is_err() && number == 0 {
                bail!("cannot start a thread");
            }
        }
        Ok(())
    })?;
    let state = walk.state.into_inner();
    state.failed.map_or(Ok(state.usage), Err)
}

impl Walk<'_> {
    /// Lists directories until there are none left.
    fn work(&self) {
        while let Some(dir) = self.take() {
            let listed = self.list(&dir);
            let mut state = self.state.lock();
            state.busy -= 1;
            match listed.with_context(|| format!("{}", dir.display())) {
                Ok(found) => state.add(found),
                // The first error is reported; the others find nothing more to do.
                Err(error) => {
                    state.failed.get_or_insert(error);
                }
            }
            let Usage { files, directories, bytes, .. } = state.usage;
            self.changed.notify_all();
            drop(state);
            let bytes = output::bytes(bytes);
            self.bar.set_message(format!("{files} files, {directories} directories, {bytes}"));
        }
    }

    fn take(&self) -> Option<PathBuf> {
        let mut state = self.state.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(dir) = state.waiting.pop() {
                state.busy += 1;
                return Some(dir);
            }
            if state.busy == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
        let mut found = Vec::new();
        let entries = match fs::read_dir(dir) {
            // Removed since it was found: there is nothing to count.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.dev() == self.device => found.push((path, metadata)),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(found)
    }
}

impl State {
    fn add(&mut self, found: Vec<(PathBuf, Metadata)>) {
        for (path, metadata) in found {
            if self.count(&metadata) {
                self.waiting.push(path);
            }
        }
    }

    /// Counts one thing; `true` when it is a directory.
    fn count(&mut self, found: &Metadata) -> bool {
        if found.is_dir() {
            self.usage.directories += 1;
            return true;
        }
        if found.nlink() > 1 && !self.linked.insert(found.ino()) {
            return false;
        }
        self.usage.bytes += found.len();
        self.usage.bytes_allocated += found.blocks() * BLOCK_BYTES;
        if found.is_file() {
            self.usage.files += 1;
        } else {
            self.usage.others += 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_is_counted_once() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("a/b/c")).unwrap();
        fs::write(path("a/file"), [0; 1000]).unwrap();
        fs::hard_link(path("a/file"), path("a/b/again")).unwrap();
        fs::write(path("a/b/other"), [0; 10]).unwrap();
        std::os::unix::fs::symlink("target", path("a/b/c/link")).unwrap();
        let usage = measure(root.path(), THREADS, &ProgressBar::hidden()).unwrap();
        let Usage { bytes, files, directories, others, .. } = usage;
        assert_eq!((bytes, files, directories, others), (1016, 2, 4, 1));
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(measure(&root.path().join("none"), THREADS, &ProgressBar::hidden()).is_err());
    }
}
