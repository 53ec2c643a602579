//! The sums that a core stores with its groups: what it has charged to each root itself.

use std::{mem, sync::Arc};

use super::Quotas;
use crate::{
    changes::{Changes, Facts},
    follow::{Follower, Write},
};

/// Stores the charges of a core's groups.
pub(crate) struct Sums {
    quotas: Arc<Quotas>,
    core: usize,
}

impl Sums {
    pub(crate) fn new(quotas: Arc<Quotas>, core: usize) -> Sums {
        Sums { quotas, core }
    }
}

impl Follower for Sums {
    fn writing(&mut self, changes: &mut Changes) {
        let (charged, batch) = changes.charged();
        self.quotas.store(self.core, charged, batch);
    }

    fn written(&mut self, facts: &mut Facts, write: Write) {
        if !write.is_halted && mem::take(&mut facts.roots) {
            self.quotas.changed();
        }
    }
}
