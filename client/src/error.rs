//! Errors that a program sees, and what to do next.

use base::FsError;
use wire::TokenError;

/// The result of every operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not succeed. Waiting for a server that is away is not an error: the client
/// asks again, with the same request number, until it answers or the session is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file system's answer. Nothing happened; asking again gives the same answer.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The session ended (its lease ran out, or the server forgot it). Operations that were under
    /// way may have happened; open a new client.
    #[error("session lost")]
    SessionLost,
    /// The server refuses the token, the protocol, or the request. Nothing happened; asking again
    /// will not help.
    #[error("refused by the server: {0}")]
    Refused(String),
    /// The token has ended. Nothing happened; open a new client with a new token.
    #[error("refused by the server: token expired")]
    TokenExpired,
    /// A server does not answer: its number, and its address. Only what needs all servers, and ends
    /// without one of them, says so.
    #[error("server {0} at {1} does not answer")]
    Silent(u16, String),
    /// The client was closed.
    #[error("client closed")]
    Closed,
}

/// `EKEYEXPIRED` of Linux, which no file system operation answers with.
const KEY_EXPIRED: i32 = 127;

impl Error {
    /// Returns the error for a server's refusal with this reason.
    pub(crate) fn refused(reason: String) -> Error {
        if reason == TokenError::Expired.to_string() {
            Error::TokenExpired
        } else {
            Error::Refused(reason)
        }
    }

    /// The errno that a program behind a mount sees: `EKEYEXPIRED` once the token has ended, and
    /// `EACCES` where the server refuses the client for another reason.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Error::Fs(error) => error.errno(),
            Error::TokenExpired => KEY_EXPIRED,
            Error::Refused(_) => FsError::Denied.errno(),
            Error::SessionLost | Error::Silent(..) | Error::Closed => FsError::Io.errno(),
        }
    }

    /// Returns the error as [`Error::errno`] does, where only answers of a file system will do.
    #[must_use]
    pub fn as_fs(&self) -> FsError {
        match self {
            Error::Fs(error) => *error,
            Error::TokenExpired | Error::Refused(_) => FsError::Denied,
            Error::SessionLost | Error::Silent(..) | Error::Closed => FsError::Io,
        }
    }
}

/// The server answered with a reply that is none to the request.
pub(crate) fn unexpected() -> Error {
    tracing::error!("the server answered with a reply of another kind");
    Error::Fs(FsError::Io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_has_ended_is_told_apart() {
        let ended = Error::refused(TokenError::Expired.to_string());
        assert_eq!((ended.errno(), ended.as_fs()), (127, FsError::Denied));
        assert_eq!(Error::refused("no".to_owned()).errno(), 13);
        assert_eq!(Error::SessionLost.errno(), 5);
    }
}
