//! Errors of the file system, in the words of S3.

use base::FsError;
use client::Error;
use http::StatusCode;
use s3s::{S3Error, S3ErrorCode};

/// The error for a request about something that `missing` says is not there.
pub(crate) fn of(error: &Error, missing: S3ErrorCode) -> S3Error {
    let error = match error {
        Error::Fs(error) => *error,
        Error::Refused(_) | Error::TokenExpired => {
            return S3Error::with_message(
                S3ErrorCode::AccessDenied,
                "the file system refuses the token of this access key",
            );
        }
        Error::SessionLost | Error::Silent(..) | Error::Closed => {
            return S3Error::with_message(
                S3ErrorCode::ServiceUnavailable,
                "the session with the file system was lost: try again",
            );
        }
    };
    match error {
        FsError::NotFound | FsError::NotDirectory | FsError::Stale | FsError::Loop => {
            missing.into()
        }
        FsError::Denied | FsError::NotPermitted | FsError::ReadOnly => {
            S3ErrorCode::AccessDenied.into()
        }
        FsError::NoSpace | FsError::QuotaExceeded => custom(
            "InsufficientStorage",
            StatusCode::INSUFFICIENT_STORAGE,
            "no space is left in the file system, or within a quota",
        ),
        FsError::FileTooBig => S3ErrorCode::EntityTooLarge.into(),
        FsError::NameTooLong => S3ErrorCode::KeyTooLongError.into(),
        FsError::TooBig | FsError::Range => S3ErrorCode::MetadataTooLarge.into(),
        FsError::IsDirectory | FsError::Exists | FsError::NotEmpty => conflict(),
        FsError::Busy | FsError::TryAgain | FsError::Interrupted | FsError::TimedOut => {
            S3ErrorCode::SlowDown.into()
        }
        FsError::Invalid => S3ErrorCode::InvalidArgument.into(),
        FsError::Io
        | FsError::NoSuchDevice
        | FsError::BadHandle
        | FsError::CrossDevice
        | FsError::TextBusy
        | FsError::TooManyLinks
        | FsError::NoData
        | FsError::Overflow
        | FsError::NotSupported
        | FsError::Deadlock
        | FsError::NoLocks => {
            S3Error::with_message(S3ErrorCode::InternalError, format!("file system: {error}"))
        }
    }
}

/// The error for a request about an object.
pub(crate) fn of_object(error: &Error) -> S3Error {
    of(error, S3ErrorCode::NoSuchKey)
}

/// A key `a` and keys below `a/` cannot both be there.
pub(crate) fn conflict() -> S3Error {
    custom(
        "KeyConflict",
        StatusCode::CONFLICT,
        "a file and a directory cannot have the same name: another key begins with this one and a \
         slash, or a part of this key before a slash is an object itself",
    )
}

fn custom(code: &str, status: StatusCode, message: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// The error for what this gateway does not do.
pub(crate) fn not_implemented(what: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::NotImplemented, what)
}

/// The error for an argument that cannot be.
pub(crate) fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, why)
}
