//! Attributes of directories that came with answers to changes of names in them.
//!
//! `call` notes them, and the mount takes them when its change has ended
//! ([`FileSystem::changed_dir`](crate::FileSystem::changed_dir)). Only the mount knows what it has
//! told its kernel meanwhile, so it decides whether they are still worth anything.

use base::{Attr, HashMap, Ino};
use parking_lot::Mutex;

/// The most directories that are kept. A mount takes each at once; no other client is told any.
const DIRS_MAX: usize = 1024;

/// Directories as the latest answered changes left them.
#[derive(Default)]
pub(crate) struct ChangedDirs(Mutex<HashMap<Ino, Attr>>);

impl ChangedDirs {
    /// Notes what came with an answer.
    pub(crate) fn note(&self, dirs: Vec<Attr>) {
        let mut known = self.0.lock();
        if known.len() >= DIRS_MAX {
            known.clear();
        }
        known.extend(dirs.into_iter().map(|attr| (attr.ino, attr)));
    }

    /// Takes what is known of a directory.
    pub(crate) fn take(&self, dir: Ino) -> Option<Attr> {
        self.0.lock().remove(&dir)
    }
}
