//! The reasons why a server does not start, or stops serving.

use base::{DecodeError, error::describe};

/// The reason why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no file system in the engine.
    #[error("not formatted; run `pando format` first")]
    NotFormatted,
    /// The server belongs to a cluster, and was not told how to reach the others.
    #[error("it belongs to a cluster: serve it with --coordinator or --join")]
    OfACluster,
    /// Old copies were brought back too often.
    #[error("no inode numbers are left for another start with --restored: load a dump")]
    InosSpent,
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
    /// The step that follows.
    pub then: Then,
}

/// The step that follows when a server has stopped serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The process ends.
    Ends,
    /// The process ends, as it should: the server has left the cluster.
    Leaves,
    /// None yet: the server takes part in a move of shards.
    Waits,
    /// The server is opened anew in the same process: shards have moved, or servers have joined.
    BeginsAnew,
}

impl Problem {
    /// A problem other than a full disk.
    pub(crate) fn because(reason: String) -> Problem {
        Problem { reason, full: false, then: Then::Ends }
    }

    /// No problem: the server is to be opened anew.
    pub(crate) fn begins_anew(reason: &str) -> Problem {
        Problem { reason: reason.to_owned(), full: false, then: Then::BeginsAnew }
    }

    /// No problem: the server takes part in a move of shards.
    pub(crate) fn waits(reason: &str) -> Problem {
        Problem { reason: reason.to_owned(), full: false, then: Then::Waits }
    }

    /// No problem: the server has left the cluster.
    pub(crate) fn leaves(server: u16) -> Problem {
        let reason = format!(
            "server {server} has left the cluster: its data directory is not needed any more"
        );
        Problem { reason, full: false, then: Then::Leaves }
    }

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
        Problem { reason: describe(error), full, then: Then::Ends }
    }

    /// An engine failed.
    pub(crate) fn of(error: &store::Error) -> Problem {
        let full = matches!(error, store::Error::Full(_));
        Problem { reason: describe(error), full, then: Then::Ends }
    }
}
