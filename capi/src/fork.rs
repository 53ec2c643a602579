//! Forks: a child of fork(2) finds all locks of the tables free.
//!
//! The child has none of the parent's threads. A lock that one of them held would be held for ever,
//! so a thread that forks takes the tables' locks first, and gives them back in both processes. What
//! else a session consists of is not touched in the child: calls compare process ids before.

use std::sync::Once;

use crate::{batch, dir, file, fs, options};

static ONCE: Once = Once::new();

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

/// Has forks take the locks of all tables from now on.
pub(crate) fn prepare() {
    ONCE.call_once(|| {
        // SAFETY: both functions may run in any thread that forks; they take and give back locks
        // that no thread keeps while it forks, and call nothing of the program's. Without memory
        // for it forks are as they were.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    });
}
