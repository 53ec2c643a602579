//! Followers: mechanisms that are told of each group that a core writes.
//!
//! `core` tells them in the order of their list ([`followers`](crate::followers)), and knows none
//! of them. Each core has followers of its own. A follower takes the facts that concern it out of
//! the group's, acts at once, and waits for nothing.

use crate::changes::{Changes, Facts};

/// A mechanism that is told of each commit group.
///
/// Cost: three calls for each group, and none for a group without changes and facts.
pub(crate) trait Follower {
    /// The group is about to be written. Records that the follower adds are written with it.
    fn writing(&mut self, _changes: &mut Changes) {}

    /// The write has ended. The group still has its locks, and nobody was answered.
    fn written(&mut self, _facts: &mut Facts, _write: Write) {}

    /// The answers of the group may be asked for again. The group is about to free its locks.
    fn answered(&mut self, _facts: &mut Facts, _write: Write) {}
}

/// How a write has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    /// Whether the batch is in the engine.
    pub(crate) is_done: bool,
    /// Whether the server has stopped serving: its memory must not show what the engine may lack.
    pub(crate) is_halted: bool,
}

/// The followers of one core, in the order in which they are told.
pub(crate) type Followers = Vec<Box<dyn Follower>>;
