//! Errors of an engine, told apart by what the caller should do about them.

use std::{io, path::PathBuf};

/// The result of an engine's method.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk refused; the state after a failed write is unknown until the engine is reopened.
    #[error("storage i/o failed")]
    Io(#[source] io::Error),
    /// There is no room left on the device. As after `Io`, a failed write may or may not be there.
    #[error("storage is full")]
    Full(#[source] io::Error),
    /// Stored bytes are not what was written. A person should look.
    #[error("storage is corrupt reason={0}")]
    Corrupt(String),
    /// Another process, or another engine of this process, has the directory open.
    #[error("storage is in use by another process path={}", .0.display())]
    InUse(PathBuf),
    /// The directory was written by another version of this program, or by another program.
    #[error("storage has another version found={found:?} known={known:?}")]
    Version {
        /// Version that the directory names; empty when it names none.
        found: String,
        /// Version that this program writes and reads.
        known: &'static str,
    },
    /// The keys of a run were not strictly ascending; nothing was added.
    #[error("keys of an ingested run are not ascending")]
    Unordered,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full(error),
            // We tell apart only those kinds of the standard library on which we act.
            _ => Error::Io(error),
        }
    }
}
