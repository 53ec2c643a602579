//! Ids of directories that were removed, until that is stable.
//!
//! A directory may be made again under its old id, and its entry be stable at another server before
//! the removal is stable here. If this server then lost the removal, two directories would have the
//! id. So who asks for such an id is answered when the removal is stable.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base::HashMap;
use parking_lot::Mutex;

use super::table::EarlyMkdirs;
use crate::{
    changes::{Changes, Facts},
    follow::{Follower, Write},
    record::Key,
};

/// Keys of content records whose removal is not stable.
#[derive(Default)]
pub(crate) struct Freed {
    /// Each with whether its removal is written.
    keys: Mutex<HashMap<Key, bool>>,
    any: AtomicBool,
}

impl Freed {
    /// Whether the removal of a content record is not stable yet.
    pub(super) fn has(&self, content: &[u8]) -> bool {
        self.any.load(Ordering::Acquire) && self.keys.lock().contains_key(content)
    }

    fn writing(&self, keys: &[Key]) {
        let mut all = self.keys.lock();
        all.extend(keys.iter().map(|key| (key.clone(), false)));
        self.any.store(true, Ordering::Release);
    }

    fn written(&self, keys: &[Key]) {
        let mut all = self.keys.lock();
        for key in keys {
            all.insert(key.clone(), true);
        }
    }

    /// The removals that a sync makes stable which begins after this call.
    pub(crate) fn written_now(&self) -> Vec<Key> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let keys = self.keys.lock();
        keys.iter().filter(|(_, is_written)| **is_written).map(|(key, _)| key.clone()).collect()
    }

    /// Notes that removals are stable.
    pub(crate) fn are_stable(&self, keys: &[Key]) {
        if keys.is_empty() {
            return;
        }
        let mut all = self.keys.lock();
        for key in keys {
            all.remove(key);
        }
        self.any.store(!all.is_empty(), Ordering::Release);
    }
}

/// Notes the removals of a core.
pub(crate) struct Noting {
    early_mkdirs: Arc<EarlyMkdirs>,
    keys: Vec<Key>,
}

impl Noting {
    pub(crate) fn new(early_mkdirs: Arc<EarlyMkdirs>) -> Noting {
        Noting { early_mkdirs, keys: Vec::new() }
    }
}

impl Follower for Noting {
    fn writing(&mut self, changes: &mut Changes) {
        self.keys = mem::take(&mut changes.facts.freed);
        if !self.keys.is_empty() {
            self.early_mkdirs.freed.writing(&self.keys);
        }
    }

    fn written(&mut self, _facts: &mut Facts, _write: Write) {
        if !self.keys.is_empty() {
            self.early_mkdirs.freed.written(&mem::take(&mut self.keys));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_not_stable_before_a_sync_that_began_after_it() {
        let freed = Freed::default();
        let keys = [Key::from_slice(b"one")];
        assert!(!freed.has(b"one"));
        freed.writing(&keys);
        assert!(freed.has(b"one"));
        assert!(freed.written_now().is_empty(), "the write may be under way");
        freed.written(&keys);
        let stable = freed.written_now();
        // Another one is removed meanwhile.
        let again = [Key::from_slice(b"two")];
        freed.writing(&again);
        freed.are_stable(&stable);
        assert!(!freed.has(b"one") && freed.has(b"two"));
        freed.written(&again);
        freed.are_stable(&freed.written_now());
        assert!(!freed.has(b"two"));
    }
}
