//! What is measured: the native client, or any directory through system calls.

use std::{
    fs::{self, OpenOptions},
    io,
    path::PathBuf,
};

use client::Client;

use crate::Phase;

/// A file system to run on.
#[derive(Clone)]
pub enum Target {
    /// A server, by the native client.
    Client(Client),
    /// A directory of this machine, by system calls: they block the rank's thread.
    Directory(PathBuf),
}

/// An operation failed, so there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's answer.
    #[error("{phase} of {path} failed")]
    Client {
        /// What was done.
        phase: &'static str,
        /// To what.
        path: String,
        /// Why it failed.
        #[source]
        source: client::Error,
    },
    /// The kernel's answer.
    #[error("{phase} of {path} failed")]
    Directory {
        /// What was done.
        phase: &'static str,
        /// To what.
        path: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Another rank has failed.
    #[error("another rank failed")]
    Other,
}

impl Target {
    /// Makes a directory that the run needs.
    pub(crate) async fn mkdir(&self, path: &str) -> Result<(), Error> {
        self.run(Phase::DirCreate, path).await.map(|_| ())
    }

    /// Removes a directory of the run.
    pub(crate) async fn rmdir(&self, path: &str) -> Result<(), Error> {
        self.run(Phase::DirRemove, path).await.map(|_| ())
    }

    /// One operation; how many things it did.
    pub(crate) async fn run(&self, phase: Phase, path: &str) -> Result<u64, Error> {
        let failed = |path: &str| (phase.name(), path.to_owned());
        match self {
            // Boxed: the futures of the client are large, and moving them would be timed too.
            Target::Client(client) => {
                Box::pin(by_client(client, phase, path)).await.map_err(|source| {
                    let (phase, path) = failed(path);
                    Error::Client { phase, path, source }
                })
            }
            Target::Directory(root) => by_system_calls(root, phase, path).map_err(|source| {
                let (phase, path) = failed(path);
                Error::Directory { phase, path, source }
            }),
        }
    }
}

/// The name that [`Phase::FileRename`] gives.
pub(crate) fn renamed(path: &str) -> String {
    format!("{path}.renamed")
}

async fn by_client(client: &Client, phase: Phase, path: &str) -> client::Result<u64> {
    let path = format!("/{path}");
    match phase {
        Phase::DirCreate => client.mkdir(&path, 0o755).await.map(|_| 1),
        Phase::DirStat | Phase::FileStat => client.lstat(&path).await.map(|_| 1),
        Phase::DirRemove => client.rmdir(&path).await.map(|()| 1),
        Phase::FileCreate => {
            let options = client::OpenOptions::writing().create_new(0o644);
            client.open_with(&path, options).await?.close().await.map(|()| 1)
        }
        Phase::FileOpen => client.open(&path).await?.close().await.map(|()| 1),
        Phase::FileRename => client.rename(&path, renamed(&path)).await.map(|()| 1),
        Phase::Readdir => {
            let mut entries = 0;
            let mut listing = client.read_dir(&path).await?;
            while listing.next().await?.is_some() {
                entries += 1;
            }
            Ok(entries)
        }
        Phase::FileRemove => client.unlink(&path).await.map(|()| 1),
    }
}

fn by_system_calls(root: &std::path::Path, phase: Phase, path: &str) -> io::Result<u64> {
    let path = root.join(path);
    match phase {
        Phase::DirCreate => fs::create_dir(path).map(|()| 1),
        Phase::DirStat | Phase::FileStat => fs::symlink_metadata(path).map(|_| 1),
        Phase::DirRemove => fs::remove_dir(path).map(|()| 1),
        Phase::FileCreate => OpenOptions::new().write(true).create_new(true).open(path).map(|_| 1),
        Phase::FileOpen => fs::File::open(path).map(|_| 1),
        Phase::FileRename => {
            let mut to = path.clone().into_os_string();
            to.push(".renamed");
            fs::rename(path, to).map(|()| 1)
        }
        Phase::Readdir => {
            fs::read_dir(path)?.try_fold(0, |entries, entry| entry.map(|_| entries + 1))
        }
        Phase::FileRemove => fs::remove_file(path).map(|()| 1),
    }
}
