//! An inode with the place where it rests, as it was found. Never stored.

use base::ShardId;

use super::{Inode, Location};

/// The place where an inode rests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the entry of its only name, on this shard.
    Entry(Location, ShardId),
    /// In its slot on the shard of birth.
    Slot,
}

/// An inode and the place where it rests.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) place: Place,
    pub(crate) inode: Inode,
}

impl Place {
    /// The name under which an inode is embedded.
    pub(crate) fn location(&self) -> Option<&Location> {
        match self {
            Place::Entry(at, _) => Some(at),
            Place::Slot => None,
        }
    }
}
