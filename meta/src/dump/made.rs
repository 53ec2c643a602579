//! The dump that is being made, in memory.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

use base::{HashSet, Ino};
use parking_lot::Mutex;
use store::Snapshot;
use tokio::time::Instant;
use wire::DumpStarted;

use crate::record::Key;

/// A dump that nobody asks about for this long is dropped.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// The dump that is being made.
#[derive(Default)]
pub(crate) struct Dumps {
    pub(super) current: Mutex<Option<Dump>>,
}

pub(super) struct Dump {
    pub(super) started: DumpStarted,
    pub(super) heard: Instant,
    /// Whether the blocks that the dump names are stable.
    pub(super) stable: bool,
    pub(super) source: Arc<Source>,
}

/// One moment of the file system.
pub(super) struct Source {
    pub(super) snapshot: Mutex<Box<dyn Snapshot>>,
    /// Key ranges of a server of several, ascending; `None` for a single server.
    pub(super) own: Option<Vec<Range<Key>>>,
    /// Inodes that are not part of the tree any more. The first page looks for them, as the pause
    /// should be short.
    pub(super) left_out: OnceLock<HashSet<Ino>>,
}

impl Dumps {
    /// Whether a dump is being made, so that blocks must stay.
    pub(crate) fn is_making(&self) -> bool {
        self.current.lock().is_some()
    }

    /// Whether a dump other than `number` is being made.
    pub(super) fn is_making_other(&self, number: u64) -> bool {
        self.current.lock().as_ref().is_some_and(|dump| dump.started.dump != number)
    }

    /// Whether this dump is over. A dump that nobody has asked about for too long is dropped.
    pub(super) fn is_over(&self, number: u64) -> bool {
        let mut current = self.current.lock();
        let Some(dump) = current.as_ref().filter(|dump| dump.started.dump == number) else {
            return true;
        };
        let over = dump.heard.elapsed() >= PATIENCE;
        if over {
            *current = None;
        }
        over
    }

    pub(super) fn end(&self, number: u64) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|dump| dump.started.dump == number) {
            *current = None;
        }
    }
}
