//! Errors that the file system itself answers, one variant for each errno we return.

use crate::codec;

codec! {
    /// An answer that is not a success. It has no text and no cause: it is the answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
    pub enum FsError {
        /// `EPERM`
        #[error("operation not permitted")]
        NotPermitted = 1,
        /// `ENOENT`
        #[error("no such file or directory")]
        NotFound = 2,
        /// `EIO`
        #[error("input/output error")]
        Io = 5,
        /// `ENXIO`
        #[error("no such device or address")]
        NoSuchDevice = 6,
        /// `E2BIG`
        #[error("argument list too long")]
        TooBig = 7,
        /// `EBADF`
        #[error("bad file descriptor")]
        BadHandle = 9,
        /// `EAGAIN`
        #[error("resource temporarily unavailable")]
        TryAgain = 11,
        /// `EACCES`
        #[error("permission denied")]
        Denied = 13,
        /// `EBUSY`
        #[error("device or resource busy")]
        Busy = 16,
        /// `EEXIST`
        #[error("file exists")]
        Exists = 17,
        /// `EXDEV`
        #[error("invalid cross-device link")]
        CrossDevice = 18,
        /// `ENOTDIR`
        #[error("not a directory")]
        NotDirectory = 20,
        /// `EISDIR`
        #[error("is a directory")]
        IsDirectory = 21,
        /// `EINVAL`
        #[error("invalid argument")]
        Invalid = 22,
        /// `ETXTBSY`
        #[error("text file busy")]
        TextBusy = 26,
        /// `EFBIG`
        #[error("file too large")]
        FileTooBig = 27,
        /// `ENOSPC`
        #[error("no space left on device")]
        NoSpace = 28,
        /// `EROFS`
        #[error("read-only file system")]
        ReadOnly = 30,
        /// `EMLINK`
        #[error("too many links")]
        TooManyLinks = 31,
        /// `ERANGE`
        #[error("result too large")]
        Range = 34,
        /// `ENAMETOOLONG`
        #[error("file name too long")]
        NameTooLong = 36,
        /// `ENOTEMPTY`
        #[error("directory not empty")]
        NotEmpty = 39,
        /// `ELOOP`
        #[error("too many levels of symbolic links")]
        Loop = 40,
        /// `ENODATA`
        #[error("no data available")]
        NoData = 61,
        /// `EOVERFLOW`
        #[error("value too large for defined data type")]
        Overflow = 75,
        /// `EOPNOTSUPP`
        #[error("operation not supported")]
        NotSupported = 95,
        /// `ESTALE`
        #[error("stale file handle")]
        Stale = 116,
        /// `EDQUOT`
        #[error("disk quota exceeded")]
        QuotaExceeded = 122,
        /// `EDEADLK`
        #[error("resource deadlock avoided")]
        Deadlock = 35,
        /// `ENOLCK`
        #[error("no locks available")]
        NoLocks = 37,
        /// `EINTR`
        #[error("interrupted system call")]
        Interrupted = 4,
        /// `ETIMEDOUT`
        #[error("connection timed out")]
        TimedOut = 110,
    }
}

impl FsError {
    /// The number that `errno` has on Linux (x86-64 and arm64 agree); it is also the tag on the
    /// wire.
    #[must_use]
    pub fn errno(self) -> i32 {
        i32::from(codec::Tagged::tag(&self))
    }

    /// The variant of an `errno`, if a file system answers with it.
    #[must_use]
    pub fn of_errno(errno: u8) -> Option<FsError> {
        codec::Decode::from_bytes(&vec![errno].into()).ok()
    }

    /// The name of its `errno`: `ENOENT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FsError::NotPermitted => "EPERM",
            FsError::NotFound => "ENOENT",
            FsError::Io => "EIO",
            FsError::NoSuchDevice => "ENXIO",
            FsError::TooBig => "E2BIG",
            FsError::BadHandle => "EBADF",
            FsError::TryAgain => "EAGAIN",
            FsError::Denied => "EACCES",
            FsError::Busy => "EBUSY",
            FsError::Exists => "EEXIST",
            FsError::CrossDevice => "EXDEV",
            FsError::NotDirectory => "ENOTDIR",
            FsError::IsDirectory => "EISDIR",
            FsError::Invalid => "EINVAL",
            FsError::TextBusy => "ETXTBSY",
            FsError::FileTooBig => "EFBIG",
            FsError::NoSpace => "ENOSPC",
            FsError::ReadOnly => "EROFS",
            FsError::TooManyLinks => "EMLINK",
            FsError::Range => "ERANGE",
            FsError::NameTooLong => "ENAMETOOLONG",
            FsError::NotEmpty => "ENOTEMPTY",
            FsError::Loop => "ELOOP",
            FsError::NoData => "ENODATA",
            FsError::Overflow => "EOVERFLOW",
            FsError::NotSupported => "EOPNOTSUPP",
            FsError::Stale => "ESTALE",
            FsError::QuotaExceeded => "EDQUOT",
            FsError::Deadlock => "EDEADLK",
            FsError::NoLocks => "ENOLCK",
            FsError::Interrupted => "EINTR",
            FsError::TimedOut => "ETIMEDOUT",
        }
    }
}

/// An error with its causes, in one line.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some errors repeat their cause.
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errno_is_linuxs() {
        assert_eq!(FsError::NotFound.errno(), 2);
        assert_eq!(FsError::Stale.errno(), 116);
        assert_eq!(FsError::NotEmpty.errno(), 39);
        assert_eq!(FsError::of_errno(2), Some(FsError::NotFound));
        assert_eq!(FsError::of_errno(3), None);
        assert_eq!(FsError::NotEmpty.name(), "ENOTEMPTY");
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] FsError);
        #[derive(Debug, thiserror::Error)]
        #[error("it says: {0}")]
        struct Repeats(#[source] FsError);
        assert_eq!(describe(&Outer(FsError::Io)), "outer: input/output error");
        assert_eq!(describe(&Repeats(FsError::Io)), "it says: input/output error");
    }
}
