//! The ends of prepared transactions, as a core writes them.

use std::sync::Arc;

use super::{early_mkdirs::table::EarlyMkdirs, locks::Prepared};
use crate::{
    changes::Facts,
    follow::{Follower, Write},
};

/// Frees the keys of transactions whose end is written.
pub(crate) struct Ends {
    early_mkdirs: Arc<EarlyMkdirs>,
    prepared: Arc<Prepared>,
}

impl Ends {
    pub(crate) fn new(early_mkdirs: Arc<EarlyMkdirs>, prepared: Arc<Prepared>) -> Ends {
        Ends { early_mkdirs, prepared }
    }
}

impl Follower for Ends {
    fn written(&mut self, facts: &mut Facts, write: Write) {
        if write.is_halted {
            return;
        }
        for txn in facts.ended.drain(..) {
            self.early_mkdirs.end(txn);
            self.prepared.free(txn);
        }
    }
}
