//! The directory of the latest hour, as found in the store: where to look first.
//!
//! A server of several keeps this for its own trash. All of it can be read again.

use base::{DirId, EntryName};
use parking_lot::Mutex;

/// The latest hour that was found.
#[derive(Default)]
pub(crate) struct Latest(Mutex<Option<Hour>>);

/// A directory of an hour.
#[derive(Clone)]
pub(super) struct Hour {
    pub(super) trash: DirId,
    pub(super) name: EntryName,
    /// The directory that it is in.
    pub(super) above: DirId,
    pub(super) id: DirId,
    pub(super) home: DirId,
}

impl Latest {
    /// The directory of the hour of this name, if it is known.
    pub(super) fn get(&self, trash: DirId, name: &EntryName) -> Option<Hour> {
        let known = self.0.lock().clone();
        known.filter(|known| known.trash == trash && known.name == *name)
    }

    pub(super) fn set(&self, hour: Hour) {
        *self.0.lock() = Some(hour);
    }
}
