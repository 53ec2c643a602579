//! `libpando`: the native client for programs in C, and for whatever calls C.
//!
//! Each function of `include/pando.h`, which is made from these sources, is one call of the crate
//! `client`. Calls wait in the thread that makes them (`driver`); a batch has many operations under
//! way at the same time (`batch`). Handles are numbers that are looked up (`table`), so a closed one
//! is an error and not a crash. Pointers of C are followed in `args` alone.
//!
//! Invariant: nothing unwinds into C, and no call returns anything but a number of at least 0 or a
//! negative errno ([`error`]).

#![expect(
    unsafe_code,
    reason = "functions are exported by their names, and pointers of C are followed in `args`"
)]
#![expect(unreachable_pub, reason = "the header has what is public in each module")]

mod args;
mod batch;
mod connect;
mod dir;
mod driver;
mod error;
mod file;
mod fork;
mod fs;
mod lock;
mod options;
mod paths;
mod table;
mod types;
mod xattr;

use std::ffi::{c_char, c_int};

/// Version of this header: calls of later versions of the library mean the same as long as the first
/// number does not change.
pub const PANDO_VERSION_MAJOR: c_int = 0;
/// See PANDO_VERSION_MAJOR.
pub const PANDO_VERSION_MINOR: c_int = 1;

/// Version of the library that is linked, for people to read.
#[unsafe(no_mangle)]
pub extern "C" fn pando_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
