//! The ends of prepared transactions, as a core writes them.

use std::sync::Arc;

use super::{births::table::Births, locks::Prepared};
use crate::{
    changes::Facts,
    follow::{Follower, Write},
};

/// Frees the keys of transactions whose end is written.
pub(crate) struct Ends {
    births: Arc<Births>,
    prepared: Arc<Prepared>,
}

impl Ends {
    pub(crate) fn new(births: Arc<Births>, prepared: Arc<Prepared>) -> Ends {
        Ends { births, prepared }
    }
}

impl Follower for Ends {
    fn written(&mut self, facts: &mut Facts, write: Write) {
        if write.is_halted {
            return;
        }
        for txn in facts.ended.drain(..) {
            self.births.end(txn);
            self.prepared.free(txn);
        }
    }
}
