//! What can go wrong for a program, and what to do next.

use base::FsError;

/// The result of every operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not succeed. Waiting for a server that is away is not an error: the client asks
/// again, with the same request number, until it answers or the session is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file system's answer. Nothing happened; asking again gives the same answer.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The session ended (its lease ran out, or the server forgot it). Operations that were under way may have
    /// happened; open a new client.
    #[error("session lost")]
    SessionLost,
    /// The server refuses the token, the protocol, or the request. Nothing happened; asking again will not help.
    #[error("refused by the server: {0}")]
    Refused(String),
    /// The client was closed.
    #[error("client closed")]
    Closed,
}

impl Error {
    /// The errno that a program behind a mount sees.
    #[must_use]
    pub fn as_fs(&self) -> FsError {
        match self {
            Error::Fs(error) => *error,
            Error::SessionLost | Error::Refused(_) | Error::Closed => FsError::Io,
        }
    }
}
