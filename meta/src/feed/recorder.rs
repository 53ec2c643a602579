//! The follower that writes the changes of a group into the feed.

use std::{mem, sync::Arc};

use base::Clock;

use super::{Feed, close_of};
use crate::{
    changes::{Changes, Facts},
    follow::{Follower, Write},
    record::{Record as _, key},
};

/// Numbers the changes of a core's groups, and has them written.
pub(crate) struct Recorder {
    feed: Arc<Feed>,
    clock: Arc<dyn Clock>,
    core: usize,
    /// Whether the group that is being written has changes in the feed.
    has_numbered: bool,
    encoded: Vec<u8>,
}

impl Recorder {
    pub(crate) fn new(feed: Arc<Feed>, clock: Arc<dyn Clock>, core: usize) -> Recorder {
        Recorder { feed, clock, core, has_numbered: false, encoded: Vec::new() }
    }

    /// Adds the closes of files that sessions have written and which end with the sessions.
    fn add_ends(&self, facts: &mut Facts) {
        for session in &facts.forgotten {
            let ended = self.feed.ended(*session).into_iter();
            let closes = ended.filter_map(|(ino, named)| close_of(ino, named, self.clock.now()));
            facts.events.extend(closes);
        }
    }
}

impl Follower for Recorder {
    fn writing(&mut self, changes: &mut Changes) {
        if !changes.facts.forgotten.is_empty() && self.feed.is_on() {
            self.add_ends(&mut changes.facts);
        }
        let events = mem::take(&mut changes.facts.events);
        if events.is_empty() {
            return;
        }
        self.has_numbered = true;
        let first = self.feed.number(self.core, events.len());
        for (position, event) in (first..).zip(events) {
            self.encoded.clear();
            event.encode_record(&mut self.encoded);
            changes.put(key::feed_event(position), &self.encoded);
        }
    }

    fn written(&mut self, _facts: &mut Facts, write: Write) {
        // If nobody knows whether it is written, the server has stopped.
        if mem::take(&mut self.has_numbered) && write.is_done {
            self.feed.written(self.core);
        }
    }
}
