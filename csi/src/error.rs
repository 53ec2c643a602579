//! Errors of the file system, as answers of gRPC.
//!
//! The code decides what Kubernetes does next: UNAVAILABLE and ABORTED are asked again, all others
//! are told to the user first.

use base::FsError;
use client::Error;
use tonic::Status;

/// The result of every call.
pub(crate) type Answer<T> = Result<T, Status>;

/// The answer for an error of the file system, while `doing`.
pub(crate) fn status(doing: &str, error: &Error) -> Status {
    let text = format!("cannot {doing}: {error}");
    match error {
        Error::Fs(error) => of_fs(*error, text),
        Error::SessionLost | Error::Silent(..) | Error::Closed => Status::unavailable(text),
        Error::Refused(_) | Error::TokenExpired => Status::unauthenticated(text),
    }
}

fn of_fs(error: FsError, text: String) -> Status {
    match error {
        FsError::NotFound | FsError::Stale => Status::not_found(text),
        FsError::Exists => Status::already_exists(text),
        FsError::NotPermitted | FsError::Denied | FsError::ReadOnly => {
            Status::permission_denied(text)
        }
        FsError::NoSpace | FsError::QuotaExceeded | FsError::TooManyLinks => {
            Status::resource_exhausted(text)
        }
        FsError::Busy
        | FsError::TryAgain
        | FsError::NotEmpty
        | FsError::Interrupted
        | FsError::TimedOut => Status::aborted(text),
        FsError::Invalid | FsError::NameTooLong | FsError::Range | FsError::TooBig => {
            Status::invalid_argument(text)
        }
        FsError::NotDirectory | FsError::IsDirectory | FsError::Loop | FsError::NotSupported => {
            Status::failed_precondition(text)
        }
        FsError::Io
        | FsError::NoSuchDevice
        | FsError::BadHandle
        | FsError::CrossDevice
        | FsError::TextBusy
        | FsError::FileTooBig
        | FsError::NoData
        | FsError::Overflow
        | FsError::Deadlock
        | FsError::NoLocks => Status::internal(text),
    }
}

/// A field that must be given and is not.
pub(crate) fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

/// The value of a field that must be given.
pub(crate) fn given<'a>(field: &str, value: &'a str) -> Answer<&'a str> {
    if value.is_empty() { Err(missing(field)) } else { Ok(value) }
}
