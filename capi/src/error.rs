//! Results of calls: a number of at least 0, or a negative errno and a text.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

use base::FsError;
use client::Error;

/// Why a call did not succeed.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) errno: c_int,
    text: Text,
}

#[derive(Debug, Clone)]
enum Text {
    Client(Error),
    Here(&'static str),
    Said(String),
}

pub(crate) type Result<T, E = Failed> = std::result::Result<T, E>;

impl Failed {
    pub(crate) fn new(errno: c_int, text: &'static str) -> Failed {
        Failed { errno, text: Text::Here(text) }
    }

    pub(crate) fn said(errno: c_int, text: String) -> Failed {
        Failed { errno, text: Text::Said(text) }
    }

    pub(crate) fn invalid(text: &'static str) -> Failed {
        Failed::new(libc::EINVAL, text)
    }

    fn to_text(&self) -> String {
        match &self.text {
            Text::Client(error) => error.to_string(),
            Text::Here(text) => (*text).to_owned(),
            Text::Said(text) => text.clone(),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { errno: error.errno(), text: Text::Client(error) }
    }
}

impl From<FsError> for Failed {
    fn from(error: FsError) -> Failed {
        Error::Fs(error).into()
    }
}

/// A thread's last failure, and the texts that C was shown last.
#[derive(Default)]
struct Last {
    failed: Option<Failed>,
    error: CString,
    description: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Runs a call of C's. A panic must not reach C, and is told as `EIO`.
pub(crate) fn guard(call: impl FnOnce() -> Result<i64>) -> i64 {
    let result = catch_unwind(AssertUnwindSafe(call));
    let failed = match result {
        Ok(Ok(count)) => return count,
        Ok(Err(failed)) => failed,
        Err(panic) => Failed::said(libc::EIO, format!("internal error: {}", words(&*panic))),
    };
    let errno = failed.errno;
    // A thread that is ending has no memory of its own any more.
    let _ = LAST.try_with(|last| last.borrow_mut().failed = Some(failed));
    -i64::from(errno)
}

/// Runs a call that counts nothing.
pub(crate) fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    let status = guard(|| call().map(|()| 0));
    c_int::try_from(status).unwrap_or(-libc::EIO)
}

fn words(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("unknown", String::as_str)
}

fn c_text(text: &str) -> CString {
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<_>>();
    CString::new(bytes).unwrap_or_default()
}

/// Text of the last failure in this thread, for people to read; empty when there was none.
///
/// The text stays until this thread calls pando_last_error again, or ends. A call that succeeds
/// leaves it as it is.
#[unsafe(no_mangle)]
pub extern "C" fn pando_last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.error =
            last.failed.as_ref().map(|failed| c_text(&failed.to_text())).unwrap_or_default();
        last.error.as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

/// Describes an errno, negative as functions return it or positive.
///
/// The text stays until this thread calls pando_strerror again, or ends.
#[unsafe(no_mangle)]
pub extern "C" fn pando_strerror(error: c_int) -> *const c_char {
    let errno = error.checked_abs().unwrap_or(0);
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let described = std::io::Error::from_raw_os_error(errno).to_string();
        // Rust adds the number, which the caller has.
        let described = described.split(" (os error").next().unwrap_or_default();
        last.description = c_text(if errno == 0 { "Success" } else { described });
        last.description.as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}
