//! Target of the measurements: the native client, or any directory through system calls.

use std::{
    ffi::CString,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use base::FsError;
use client::Client;
use futures::future::BoxFuture;
use rustix::{
    fs::{Dir, Mode, OFlags},
    io::Errno,
};

use crate::Phase;

/// A file system to run on.
#[derive(Clone)]
pub enum Target {
    /// A server, by native clients, each with a connection of its own.
    Clients(Vec<Client>),
    /// A directory of this machine, by system calls: they block the worker's thread.
    Directory(PathBuf),
}

/// An operation failed, so there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's answer.
    #[error("{what} of {path} failed")]
    Client {
        /// Operation that failed.
        what: &'static str,
        /// To what.
        path: String,
        /// Why it failed.
        #[source]
        source: client::Error,
    },
    /// The kernel's answer.
    #[error("{what} of {path} failed")]
    Directory {
        /// Operation that failed.
        what: &'static str,
        /// To what.
        path: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A worker of another process failed, in its words.
    #[error("{0}")]
    Worker(String),
    /// The run was told to end.
    #[error("interrupted")]
    Interrupted,
}

/// One operation's paths, as it takes them: what is done to make them is not timed.
pub(crate) enum Operand {
    Client { client: usize, path: String, to: String },
    Directory { path: CString, to: CString },
}

/// The name that a rename gives.
pub(crate) fn renamed(path: &str) -> String {
    format!("{path}.renamed")
}

impl Target {
    /// The operand for `path`, below the root, over one of the connections: they are taken in turn.
    pub(crate) fn operand(&self, connection: usize, path: &str) -> Operand {
        let to = renamed(path);
        match self {
            Target::Clients(clients) => Operand::Client {
                client: connection % clients.len(),
                path: format!("/{path}"),
                to: format!("/{to}"),
            },
            Target::Directory(root) => {
                Operand::Directory { path: c_path(&root.join(path)), to: c_path(&root.join(to)) }
            }
        }
    }

    /// Makes a directory that the run needs.
    pub(crate) async fn mkdir(&self, path: &str) -> Result<(), Error> {
        self.run(Phase::DirCreate, &self.operand(0, path)).await.map(|_| ())
    }

    /// Removes a directory of the run.
    pub(crate) async fn rmdir(&self, path: &str) -> Result<(), Error> {
        self.run(Phase::DirRemove, &self.operand(0, path)).await.map(|_| ())
    }

    /// One operation; how many things it did.
    pub(crate) async fn run(&self, phase: Phase, operand: &Operand) -> Result<u64, Error> {
        match (self, operand) {
            (Target::Clients(clients), Operand::Client { client, path, to }) => {
                let done = by_client(&clients[*client], phase, path, to).await;
                done.map_err(|source| Error::Client {
                    what: phase.name(),
                    path: path.clone(),
                    source,
                })
            }
            (Target::Directory(_), Operand::Directory { path, to }) => {
                by_system_calls(phase, path, to).map_err(|errno| Error::Directory {
                    what: phase.name(),
                    path: path.to_string_lossy().into_owned(),
                    source: errno.into(),
                })
            }
            (Target::Clients(_), Operand::Directory { .. })
            | (Target::Directory(_), Operand::Client { .. }) => {
                unreachable!("operands are made by the target they are for")
            }
        }
    }

    /// Removes a directory with all that is in it; it need not be there.
    pub(crate) async fn clear(&self, path: &str) -> Result<(), Error> {
        match self {
            Target::Clients(clients) => {
                let path = format!("/{path}");
                let cleared = clear_by_client(&clients[0], path.clone()).await;
                cleared.map_err(|source| Error::Client { what: "removing", path, source })
            }
            Target::Directory(root) => match std::fs::remove_dir_all(root.join(path)) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(Error::Directory { what: "removing", path: path.to_owned(), source })
                }
                Ok(()) | Err(_) => Ok(()),
            },
        }
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("the root came through the kernel")
}

async fn by_client(client: &Client, phase: Phase, path: &str, to: &str) -> client::Result<u64> {
    match phase {
        Phase::DirCreate => client.mkdir(path, 0o755).await.map(|_| 1),
        Phase::DirStat | Phase::FileStat => client.lstat(path).await.map(|_| 1),
        Phase::DirRename | Phase::FileRename => client.rename(path, to).await.map(|()| 1),
        Phase::DirRemove => client.rmdir(path).await.map(|()| 1),
        Phase::FileCreate => {
            let options = client::OpenOptions::writing().create_new(0o644);
            client.open_with(path, options).await?.close().await.map(|()| 1)
        }
        Phase::FileOpen => client.open(path).await?.close().await.map(|()| 1),
        Phase::Readdir => {
            let mut entries = 0;
            let mut listing = client.read_dir(path).await?;
            while listing.next().await?.is_some() {
                entries += 1;
            }
            Ok(entries)
        }
        Phase::FileRemove => client.unlink(path).await.map(|()| 1),
    }
}

fn clear_by_client(client: &Client, path: String) -> BoxFuture<'_, client::Result<()>> {
    Box::pin(async move {
        let mut listing = match client.read_dir(&path).await {
            Err(client::Error::Fs(FsError::NotFound)) => return Ok(()),
            listing => listing?,
        };
        while let Some(entry) = listing.next().await? {
            let below = format!("{path}/{}", String::from_utf8_lossy(entry.name.as_bytes()));
            if entry.is_dir() {
                clear_by_client(client, below).await?;
            } else {
                client.unlink(&below).await?;
            }
        }
        client.rmdir(&path).await
    })
}

fn by_system_calls(phase: Phase, path: &CString, to: &CString) -> Result<u64, Errno> {
    let file = Mode::from_raw_mode(0o644);
    match phase {
        Phase::DirCreate => rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).map(|()| 1),
        // std would use statx(2), which asks for more than other tools are measured with.
        Phase::DirStat | Phase::FileStat => rustix::fs::lstat(path).map(|_| 1),
        Phase::DirRename | Phase::FileRename => rustix::fs::rename(path, to).map(|()| 1),
        Phase::DirRemove => rustix::fs::rmdir(path).map(|()| 1),
        Phase::FileCreate => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, file).map(|_| 1)
        }
        Phase::FileOpen => {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, file).map(|_| 1)
        }
        Phase::Readdir => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let mut dir = Dir::new(rustix::fs::open(path, flags, file)?)?;
            dir.try_fold(0, |entries, entry| {
                let of_the_directory = matches!(entry?.file_name().to_bytes(), b"." | b"..");
                Ok(entries + u64::from(!of_the_directory))
            })
        }
        Phase::FileRemove => rustix::fs::unlink(path).map(|()| 1),
    }
}
