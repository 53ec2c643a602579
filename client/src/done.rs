//! How a call ended: what came with its success, or why it failed.
//!
//! `call` makes these values and its callers read them. They stand below both, so that a module
//! which only reads an answer does not import the driver of requests.

use base::{Attr, FsError};
use wire::{Grant, LayoutNews, Reply};

use crate::{Error, runs::Run};

/// A success, and what came with it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) reply: Reply,
    /// The version of the server's invalidation list.
    pub(crate) version: u64,
    /// The server's run that answered, and the session there.
    pub(crate) run: Run,
    /// Directories as the request has left them, where the answer says.
    pub(crate) dirs: Vec<Attr>,
    /// A delegation of the directory that the request has made.
    pub(crate) grant: Option<Grant>,
    /// Whether the answer came with what a mount notes: it is not a repeated one.
    pub(crate) is_noted: bool,
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The last word.
    Error(Error),
    /// The access cache was outdated, and has been corrected: resolve the path again.
    StaleCache,
    /// The directory is not what it was: drop it and resolve its path again.
    StaleDir,
    /// The asked partition of a directory does not exist, or no longer has what it was asked for.
    /// Only requests to a partition, not to a name in it, fail so.
    StaleLayout(LayoutNews),
    /// The request stood on a delegation that has ended.
    NotHeld,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::Error(Error::Fs(error))
    }
}

impl Failure {
    /// The error for a caller that came by handle and has no path to resolve again.
    pub(crate) fn by_handle(self) -> Error {
        match self {
            Failure::Error(error) => error,
            Failure::StaleCache | Failure::StaleDir | Failure::StaleLayout(_) => {
                Error::Fs(FsError::Stale)
            }
            // The caller hears the same as if the session that held it were gone.
            Failure::NotHeld => Error::SessionLost,
        }
    }
}
