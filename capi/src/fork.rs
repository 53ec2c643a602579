//! Forks: a child of fork(2) finds all locks of the tables free.
//!
//! The child has none of the parent's threads. A lock that one of them held would be held for ever,
//! so a thread that forks takes the tables' locks first. The parent gives them back; the child makes
//! them anew, as the threads that wait for one are not there to be given it. What else a session
//! consists of is not touched in the child: calls compare [`FORKS`] before.

use std::sync::{OnceLock, atomic::Ordering};

use crate::{
    batch, dir,
    error::{Failed, Result},
    file, fs, options,
    table::FORKS,
};

/// Result of asking to be told of forks.
static TOLD: OnceLock<i32> = OnceLock::new();

extern "C" fn before() {
    for hold in [options::hold, fs::hold, file::hold, dir::hold, batch::hold] {
        hold();
    }
}

extern "C" fn after() {
    for release in [options::release, fs::release, file::release, dir::release, batch::release] {
        release();
    }
}

extern "C" fn after_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for renew in [options::renew, fs::renew, file::renew, dir::renew, batch::renew] {
        renew();
    }
}

/// Has forks take the locks of all tables, and count, from now on.
pub(crate) fn prepare() -> Result<()> {
    let told = *TOLD.get_or_init(|| {
        // SAFETY: the functions may run in any thread that forks; they take and give back locks that
        // no thread keeps while it forks, and call nothing of the program's.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) }
    });
    if told == 0 { Ok(()) } else { Err(Failed::new(told, "no memory to be told of forks")) }
}
