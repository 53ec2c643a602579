//! The ways in which an operation can fail, or must wait.

pub(crate) use base::error::describe;
use base::{DecodeError, FsError};
use wire::Retry;

use crate::wait::Wait;

/// The result of an operation's step.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// The reason why an operation did not succeed. None of its effects are kept.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The file system's own answer; the application sees its errno.
    Answer(FsError),
    /// Ask again, where and when the reason says.
    Retry(Retry),
    /// The request itself is not allowed; the text says why.
    Refused(String),
    /// Something is in the way: run the operation again when the wait is over.
    Wait(Wait),
    /// The operation needs records of other servers: `transact` reads them and runs it from then
    /// on.
    Remote,
    /// This server can no longer vouch for its data and stops serving.
    Halt(Problem),
}

impl From<FsError> for Fault {
    fn from(error: FsError) -> Fault {
        Fault::Answer(error)
    }
}

impl From<store::Error> for Fault {
    fn from(error: store::Error) -> Fault {
        match error {
            // A block of the store cannot be read: this file is broken, everything else works.
            store::Error::Corrupt(reason) => {
                tracing::error!(reason, "the store is damaged; run `pando fsck`");
                Fault::Answer(FsError::Io)
            }
            error @ (store::Error::Io(_)
            | store::Error::Full(_)
            | store::Error::InUse(_)
            | store::Error::Version { .. }
            | store::Error::Unordered) => Fault::Halt(Problem::of(&error)),
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Fault {
        tracing::error!(%error, "a record is damaged; run `pando fsck`");
        Fault::Answer(FsError::Io)
    }
}

/// The reason why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no file system in the engine.
    #[error("not formatted; run `pando format` first")]
    NotFormatted,
    /// The server belongs to a cluster, and was not told how to reach the others.
    #[error("it belongs to a cluster: serve it with --coordinator or --join")]
    OfACluster,
    /// A record that everything depends on cannot be read.
    #[error("a system record is damaged")]
    Damaged(#[from] DecodeError),
    /// The engine failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A block cannot be read.
    #[error(transparent)]
    Blocks(#[from] store::BlocksError),
}

/// The reason why a server stopped serving.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("server halted: {reason}")]
pub struct Problem {
    /// The cause, in words.
    pub reason: String,
    /// Whether the only problem is a full disk: a restarted server goes on where this one was, once
    /// there is room.
    pub full: bool,
}

impl Problem {
    /// Blocks could not be made stable.
    pub(crate) fn of_blocks(error: &store::BlocksError) -> Problem {
        let full = match error {
            store::BlocksError::Full(_) => true,
            store::BlocksError::Io(error) => error.kind() == std::io::ErrorKind::StorageFull,
            store::BlocksError::Missing { .. }
            | store::BlocksError::Corrupt { .. }
            | store::BlocksError::Exists { .. }
            | store::BlocksError::Bounds { .. }
            | store::BlocksError::Refused(_)
            | store::BlocksError::Config { .. }
            | store::BlocksError::Store(_) => false,
        };
        Problem { reason: describe(error), full }
    }

    /// An engine failed.
    pub(crate) fn of(error: &store::Error) -> Problem {
        Problem { reason: describe(error), full: matches!(error, store::Error::Full(_)) }
    }
}
