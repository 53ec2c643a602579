//! A disk whose power can fail: a file system in memory, mounted by FUSE, that forgets on demand
//! what was never synced.
//!
//! The power cut tests run a server on it (`lab/tests/power`). The disk holds every file and
//! directory twice: as programs see it, and as it is on stable storage. fsync(2) and fdatasync(2)
//! of a file make its contents stable, and nothing else; fsync(2) of a directory makes its names
//! stable, and nothing else. A cut throws away the rest, or keeps an arbitrary part of it: some of
//! the pages, and a prefix of a directory's changes. This is less than most file systems promise,
//! so a program that survives here survives there.
//!
//! The disk never makes anything stable that nobody asked for, and never writes a page in part.
//!
//! A missing fsync can be tried without changing the program: [`PowerDisk::lie`] answers an fsync
//! without doing it.

mod content;
mod handler;
mod tree;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use anyhow::Context as _;
use fuse::{MountOptions, Session, Timespec, Unmount};
use parking_lot::Mutex;

use crate::sim::random::SimRandom;
use handler::PowerFs;
use tree::Tree;

/// Unsynced data that a cut leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// No unsynced data.
    Nothing,
    /// About half of the pages, at random, and the first of each directory's changes.
    Some,
    /// Everything of files with this in their name, and nothing of others.
    FilesNamed(&'static str),
}

/// The fsyncs that are answered, but not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// No fsync: the disk is honest.
    None,
    /// Fsyncs of files with this in their name.
    FilesNamed(&'static str),
    /// Fsyncs of files below a directory of this name, and of the directories there.
    Below(&'static str),
    /// Fsyncs of all directories.
    Directories,
}

/// State that the mount and its owner share.
#[derive(Debug)]
pub(crate) struct State {
    tree: Tree,
    lie: Lie,
}

/// A mounted disk. It is unmounted when dropped, and everything on it is gone.
#[derive(Debug)]
pub struct PowerDisk {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    served: Option<JoinHandle<()>>,
}

impl PowerDisk {
    /// Mounts an empty disk at the directory `path`; `now` gives the times of its files.
    ///
    /// # Errors
    /// When the disk cannot be mounted.
    pub fn mount(
        path: &Path,
        now: impl Fn() -> Timespec + Send + 'static,
    ) -> anyhow::Result<PowerDisk> {
        let state = Arc::new(Mutex::new(State { tree: Tree::new(), lie: Lie::None }));
        let options = MountOptions {
            fsname: "power".into(),
            subtype: "power".into(),
            default_permissions: true,
            nosuid: true,
            nodev: true,
            ..MountOptions::default()
        };
        let connection = fuse::mount(&options, path)?;
        let (ready, started) = mpsc::channel();
        let handler = PowerFs::new(Arc::clone(&state), now);
        #[expect(clippy::disallowed_methods, reason = "it is joined when the disk is dropped")]
        let served = std::thread::spawn(move || {
            let ended = serve(connection, &handler, &ready);
            // The thread that mounts the disk has seen why, if it still waits.
            let _ = ready.send(ended);
        });
        let disk = PowerDisk { path: path.to_owned(), state, served: Some(served) };
        started.recv().context("the disk's thread ended")??;
        Ok(disk)
    }

    /// Mount point of the disk.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on, answers these fsyncs without doing them.
    pub fn lie(&self, lie: Lie) {
        self.state.lock().lie = lie;
    }

    /// Whether nothing is unsynced in the files with `part` in their name.
    #[must_use]
    pub fn is_stable(&self, part: &str) -> bool {
        self.state.lock().tree.is_stable(part.as_bytes())
    }

    /// Whether nothing is unsynced in the files below the directory `name`.
    #[must_use]
    pub fn is_stable_below(&self, name: &str) -> bool {
        self.state.lock().tree.is_stable_below(name.as_bytes())
    }

    /// Cuts the power, and switches it on again. Programs that had files open must have ended.
    pub fn cut(&self, left: Left, random: &SimRandom) {
        self.state.lock().tree.cut(left, random);
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        // When a test has failed, a server may still have files open.
        let unmounted = fuse::unmount(&self.path, Unmount::Lazy);
        if let (Ok(()), Some(served)) = (unmounted, self.served.take()) {
            // A panic of that thread has been printed.
            let _ = served.join();
        }
    }
}

/// Serves the mount on a runtime of this thread until it is unmounted.
fn serve(
    connection: fuse::Connection,
    handler: &PowerFs,
    ready: &mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let session = Session::start(connection, &PowerFs::init_options()).await;
        let session = session.map_err(io::Error::other)?;
        // The disk is mounted whether or not its owner still waits.
        let _ = ready.send(Ok(()));
        session.run(handler).await.map(|_| ()).map_err(io::Error::other)
    })
}
