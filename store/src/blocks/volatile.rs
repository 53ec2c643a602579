//! Blocks in memory that a power cut takes unless they were synced: a simulation's local directory.
//!
//! [`Blocks::volatile`] makes such a store, and its owner cuts the power with
//! [`Blocks::power_cut`]. A delete is final.
//!
//! Always true: what a sync has covered is never lost. Each block that is not in `unsynced` was
//! covered by one, or has survived a power cut.

use std::{collections::BTreeSet, sync::Arc};

use futures::FutureExt as _;
use object_store::{ObjectStoreExt as _, memory::InMemory, path::Path};
use parking_lot::Mutex;

use super::Blocks;

/// Names of the blocks that no sync has covered.
#[derive(Default)]
pub(super) struct Volatile {
    unsynced: Mutex<BTreeSet<Path>>,
}

impl Volatile {
    /// Notes that a put has made a block.
    pub(super) fn has_put(&self, path: &Path) {
        self.unsynced.lock().insert(path.clone());
    }

    /// Notes that a block was deleted.
    pub(super) fn has_deleted(&self, path: &Path) {
        self.unsynced.lock().remove(path);
    }

    /// Makes every block stable.
    pub(super) fn sync(&self) {
        self.unsynced.lock().clear();
    }
}

impl Blocks {
    /// Blocks in memory that are stable only after a sync, for simulations; needs no runtime.
    #[must_use]
    pub fn volatile() -> Self {
        let volatile = Some(Arc::new(Volatile::default()));
        Self { volatile, ..Self::over(Arc::new(InMemory::new()), "") }
    }

    /// Returns the number of blocks that no sync has covered; 0 for other stores than
    /// [`Blocks::volatile`].
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.volatile.as_ref().map_or(0, |volatile| volatile.unsynced.lock().len())
    }

    /// Cuts the power. For each block that was not synced, `left` gets the length of its object in
    /// bytes and returns how many are left; with 0 the block is gone. The rest is stable from then
    /// on. Returns the number of blocks that are not whole any more; 0 for other stores than
    /// [`Blocks::volatile`].
    ///
    /// # Panics
    /// Never: memory answers at once, and what was put is there.
    pub fn power_cut(&self, mut left: impl FnMut(usize) -> usize) -> usize {
        let Some(volatile) = &self.volatile else { return 0 };
        let unsynced = std::mem::take(&mut *volatile.unsynced.lock());
        let mut lost = 0;
        for path in &unsynced {
            let object = async { self.objects.get(path).await?.bytes().await };
            let object = object.now_or_never().expect("memory does not wait");
            let object = object.expect("what was deleted is not in the list");
            let kept = left(object.len()).min(object.len());
            if kept == object.len() {
                continue;
            }
            lost += 1;
            let change = async {
                match kept {
                    0 => self.objects.delete(path).await,
                    _ => self.objects.put(path, object.slice(..kept).into()).await.map(drop),
                }
            };
            let changed = change.now_or_never().expect("memory does not wait");
            changed.expect("memory takes everything");
        }
        lost
    }
}
