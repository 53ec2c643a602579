//! Answered changes that may not be on stable storage, and the handles that report their loss after
//! a power cut of the server.
//!
//! Only a caller that asks for stable storage waits for it. So changes that were answered since the
//! last sync may be lost when the server's power fails. The server says so in its welcome
//! ([`wire::Welcome::forgot`]). Then every handle that may be concerned fails once: its file was
//! opened, or changed by this client, since the last sync that succeeded. `fsync` of the file
//! reports the loss, and so does `close` of a handle that allows writes; for all else, such as new
//! names, the next `sync` does. A `close` on a mount may be of a copy of the descriptor, so it
//! leaves the loss for the next `fsync` to report.
//!
//! The client never tries to find out which changes exactly are lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use base::{Access, FsError, Ino};

use super::{Files, OpenFile};
use crate::{Error, Result};

/// Losses that no `sync` has reported.
#[derive(Debug, Default)]
pub(super) struct Stability {
    /// Something is gone, and no `sync` has reported it.
    forgotten: AtomicBool,
}

impl Files {
    /// A server has lost what was not stable: what is known of open files that it `has` may be too
    /// much. What was done up to this count of [`Files::stamp`] is stable.
    pub(crate) fn forget_unstable(&self, upto: u64, has: impl Fn(Ino) -> bool) {
        self.stability.forgotten.store(true, Ordering::Release);
        let table = self.table.lock();
        for open in table.handles.values().filter(|open| has(open.state.ino)) {
            let changed_at = open.state.lock().changed_at;
            if changed_at.max(open.opened_at) > upto {
                open.forgotten.store(true, Ordering::Release);
            }
        }
        let states = table.files.values().filter(|state| has(state.ino));
        let states: Vec<_> = states.map(Arc::clone).collect();
        drop(table);
        states.iter().for_each(|state| state.lock().forget_contents());
    }

    /// Something is gone that was answered and that no handle can report.
    pub(crate) fn note_loss(&self) {
        self.stability.forgotten.store(true, Ordering::Release);
    }

    /// Reports what is gone of anything, once.
    pub(crate) fn report_forgotten(&self) -> Result<()> {
        report(&self.stability.forgotten)
    }
}

impl OpenFile {
    /// Reports what is gone of this file, once.
    pub(crate) fn report_forgotten(&self) -> Result<()> {
        report(&self.forgotten)
    }

    /// Reports a loss as [`OpenFile::report_forgotten`] does, if the handle allows writes.
    pub(super) fn report_forgotten_to_writer(&self) -> Result<()> {
        if self.may.includes(Access::WRITE) { self.report_forgotten() } else { Ok(()) }
    }

    /// Says what [`OpenFile::report_forgotten_to_writer`] would, and leaves it to be reported.
    pub(super) fn show_forgotten_to_writer(&self) -> Result<()> {
        let forgotten = self.may.includes(Access::WRITE) && self.forgotten.load(Ordering::Acquire);
        if forgotten { Err(Error::Fs(FsError::Io)) } else { Ok(()) }
    }
}

fn report(forgotten: &AtomicBool) -> Result<()> {
    if forgotten.swap(false, Ordering::AcqRel) { Err(Error::Fs(FsError::Io)) } else { Ok(()) }
}
