//! Closed files that are kept: what is known of them stays, so the client opens them again without
//! asking.
//!
//! Only files of directories that this client holds are kept: nobody else changes them meanwhile.
//! The server has heard that they are closed. Those that are opened again are *unopened* for the
//! server, until it has to know (`Client::open_there`): before something is written or locked,
//! before the file loses or changes a name, and before its directory is given back.

use std::sync::Arc;

use base::{HashMap, Ino};

use super::{Files, Table, state::FileState};

/// Most memory that kept files take, roughly.
const BYTES_MAX: u64 = 64 << 20;
/// Roughly what one of them takes, with its name, besides contents.
const FILE_BYTES: u64 = 1024;

/// Inode numbers of the kept files, with the memory that each takes.
#[derive(Default)]
pub(super) struct Kept {
    files: HashMap<Ino, u64>,
    bytes: u64,
}

impl Kept {
    /// Keeps a file, if there is room: those that were kept before are not pushed out, so that a
    /// walk through many files finds the first ones again.
    fn keep(&mut self, ino: Ino, contents: u64) -> bool {
        self.remove(ino);
        let bytes = FILE_BYTES + contents;
        let has_room = self.bytes + bytes <= BYTES_MAX;
        if has_room {
            self.files.insert(ino, bytes);
            self.bytes += bytes;
        }
        has_room
    }

    /// Forgets which files are kept, but for those that are `wanted`.
    pub(super) fn retain(&mut self, wanted: impl Fn(Ino) -> bool) {
        self.files.retain(|ino, _| wanted(*ino));
        self.bytes = self.files.values().sum();
    }

    /// A file is open again, or forgotten.
    pub(super) fn remove(&mut self, ino: Ino) {
        self.bytes -= self.files.remove(&ino).unwrap_or(0);
    }
}

impl Table {
    /// The last handle of a file is closed, and the server knows or is about to be told: keeps what is
    /// known of the file, or forgets it.
    pub(super) fn keep_or_forget(&mut self, state: &FileState) {
        self.linked.remove(&state.ino);
        let mut inner = state.lock();
        let is_good = inner.held.is_some() && !inner.doubtful && !inner.lost;
        if is_good && self.kept.keep(state.ino, inner.map.memory_bytes()) {
            inner.be_unopened();
        } else {
            drop(inner);
            self.files.remove(&state.ino);
            self.kept.remove(state.ino);
        }
    }
}

impl Files {
    /// Whether this client has a file open and the server does not know.
    pub(crate) fn is_unopened(&self, ino: Ino) -> bool {
        self.unopened(ino).is_some()
    }

    /// A file could not be opened at the server: its handles are lost, and what was not sent.
    pub(crate) fn lose_one(&self, state: &Arc<FileState>) {
        let mut table = self.table.lock();
        if table.files.get(&state.ino).is_some_and(|known| Arc::ptr_eq(known, state)) {
            table.files.remove(&state.ino);
            table.kept.remove(state.ino);
        }
        drop(table);
        self.budget.give_back(state.lock().lose());
        state.flushed.notify_waiters();
    }

    /// The file, if this client has it open and the server does not know.
    pub(crate) fn unopened(&self, ino: Ino) -> Option<Arc<FileState>> {
        self.state(ino).filter(|state| {
            let inner = state.lock();
            inner.is_unopened && inner.opens > 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_while_there_is_room() {
        let mut kept = Kept::default();
        let half = BYTES_MAX / 2 - FILE_BYTES;
        assert!(kept.keep(Ino(1), half) && kept.keep(Ino(1), half));
        assert!(kept.keep(Ino(2), half));
        assert!(!kept.keep(Ino(3), 0), "there is no room");
        kept.remove(Ino(1));
        kept.remove(Ino(1));
        assert!(kept.keep(Ino(3), half) && !kept.keep(Ino(1), 0));
    }
}
