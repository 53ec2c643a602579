//! The follower that tells the lines of a group when it is written.

use std::sync::Arc;

use super::AuditQueue;
use crate::{
    changes::Facts,
    follow::{Follower, Write},
};

/// Tells the lines of each group when it is written.
pub(crate) struct Teller {
    queue: Arc<AuditQueue>,
    core: usize,
}

impl Teller {
    pub(crate) fn new(queue: Arc<AuditQueue>, core: usize) -> Teller {
        Teller { queue, core }
    }
}

impl Follower for Teller {
    fn answered(&mut self, facts: &mut Facts, write: Write) {
        // Of a server that stops nobody knows what is written.
        if !write.is_halted {
            self.queue.push(self.core, &facts.audit);
        }
        facts.audit.clear();
    }
}
