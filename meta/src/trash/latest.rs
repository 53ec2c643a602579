//! Finds in the store of a server's trash: the directory of the latest hour, and servers'
//! directories that have come here with their shards.
//!
//! A server of several keeps this for its own trash. All of it can be read again.

use base::{DirId, EntryName};
use parking_lot::Mutex;

/// The latest hour that was found, and directories that have moved here.
#[derive(Default)]
pub(crate) struct Latest {
    hour: Mutex<Option<Hour>>,
    moved: Mutex<Option<Moved>>,
}

/// Directories that have moved here, each with its home, and the trash that they are in.
struct Moved {
    trash: DirId,
    found: Vec<(DirId, DirId)>,
}

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
        let known = self.hour.lock().clone();
        known.filter(|known| known.trash == trash && known.name == *name)
    }

    /// Directories that have moved here; they are looked for once in the life of a process, as no
    /// shard comes to one that serves.
    pub(super) fn moved<E>(
        &self,
        trash: DirId,
        find: impl FnOnce() -> Result<Vec<(DirId, DirId)>, E>,
    ) -> Result<Vec<(DirId, DirId)>, E> {
        let mut moved = self.moved.lock();
        match &*moved {
            Some(known) if known.trash == trash => Ok(known.found.clone()),
            _ => Ok(moved.insert(Moved { trash, found: find()? }).found.clone()),
        }
    }

    pub(super) fn set(&self, hour: Hour) {
        *self.hour.lock() = Some(hour);
    }
}
