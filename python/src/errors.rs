//! Errors as Python's `OSError`, which chooses the subclass by the errno.

use std::path::Path;

use client::Error;
use pyo3::{PyErr, Python, exceptions::PyOSError, types::PyAnyMethods as _};

/// The error of an operation on `path`.
pub(crate) fn os_error(py: Python<'_>, error: &Error, path: Option<&Path>) -> PyErr {
    let errno = error.errno();
    let said = match error {
        Error::Fs(_) => strerror(py, errno),
        Error::SessionLost
        | Error::Refused(_)
        | Error::TokenExpired
        | Error::Silent(..)
        | Error::Closed => error.to_string(),
    };
    match path {
        Some(path) => PyOSError::new_err((errno, said, path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno, said)),
    }
}

fn strerror(py: Python<'_>, errno: i32) -> String {
    let said = py.import("os").and_then(|os| os.call_method1("strerror", (errno,)));
    said.and_then(|said| said.extract()).unwrap_or_else(|_| format!("error {errno}"))
}

/// `EBADF`: the file or the session is closed, or is the one of a parent process.
pub(crate) fn bad_handle(py: Python<'_>) -> PyErr {
    os_error(py, &Error::Fs(base::FsError::BadHandle), None)
}
