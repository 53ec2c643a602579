//! Hints on how directories of several partitions are divided: where a search begins.
//!
//! A transaction that needs a share of another server begins at the partition that is named here
//! (`txn::shares`). The table holds hints only, is bounded, and is lost at a restart: a search that
//! begins at a wrong partition finds the right one. While no hint is known, asking costs one look
//! at a number.

use std::sync::atomic::{AtomicUsize, Ordering};

use base::{DirId, Ino, Layout};
use parking_lot::Mutex;

use crate::recent::Recent;

/// Number of directories that are remembered; the oldest is forgotten.
const DIRS_MAX: usize = 1024;

/// Layouts of directories, as hints.
pub(crate) struct Layouts {
    count: AtomicUsize,
    known: Mutex<Recent<(DirId, Ino), Layout>>,
}

impl Default for Layouts {
    fn default() -> Layouts {
        Layouts { count: AtomicUsize::new(0), known: Mutex::new(Recent::new(DIRS_MAX)) }
    }
}

impl Layouts {
    /// Notes how a directory is divided.
    pub(crate) fn learn(&self, dir: DirId, ino: Ino, layout: &Layout) {
        let mut known = self.known.lock();
        if let Some(ours) = known.get_mut(&(dir, ino)) {
            ours.learn(layout);
            return;
        }
        known.insert((dir, ino), layout.clone());
        self.count.store(known.len(), Ordering::Relaxed);
    }

    /// The partition that has the names at a position, as far as is known.
    pub(crate) fn partition(&self, dir: DirId, ino: Ino, pos: impl FnOnce() -> u64) -> u16 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let known = self.known.lock();
        known.get(&(dir, ino)).map_or(0, |layout| layout.partition(pos()))
    }
}

#[cfg(test)]
mod tests {
    use base::Splits;

    use super::*;

    #[test]
    fn what_was_learnt_first_is_forgotten_first() {
        let layouts = Layouts::default();
        let two = Layout::Extendible(Splits::started(1, 2));
        let last = base::layout::POS_MAX;
        assert_eq!(layouts.partition(DirId(0), Ino(0), || unreachable!()), 0);
        for dir in 0..=DIRS_MAX as u128 {
            layouts.learn(DirId(dir), Ino(7), &two);
        }
        assert_eq!(layouts.partition(DirId(0), Ino(7), || last), 0);
        assert_eq!(layouts.partition(DirId(1), Ino(7), || last), 1);
        assert_eq!(layouts.partition(DirId(1), Ino(8), || last), 0, "it is another directory");
        let four = Layout::Extendible(Splits::started(1, 4));
        layouts.learn(DirId(1), Ino(7), &four);
        assert_eq!(layouts.partition(DirId(1), Ino(7), || last), 3);
    }
}
