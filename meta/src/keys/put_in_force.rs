//! The follower that puts a changed key ring into force.

use std::sync::Arc;

use super::Keys;
use crate::{
    changes::Facts,
    follow::{Follower, Write},
};

/// Puts a key ring into force that a core has written.
pub(crate) struct PutInForce {
    keys: Arc<Keys>,
}

impl PutInForce {
    pub(crate) fn new(keys: Arc<Keys>) -> PutInForce {
        PutInForce { keys }
    }
}

impl Follower for PutInForce {
    fn written(&mut self, facts: &mut Facts, write: Write) {
        if !write.is_halted
            && let Some(ring) = facts.keys.take()
        {
            self.keys.set(*ring);
        }
    }
}
