//! The cached directories of the path that led to a request (InfiniFS §3.4, lazy invalidation).

use base::{DirId, codec};
use smallvec::SmallVec;

/// The directories that a path went through, by [`way_mark`].
pub type Way = SmallVec<[u32; 8]>;

codec! {
    /// The part of its client's cache that a request stands on.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Stand {
        /// Version of the invalidation list since which the cached directories are unchanged; 0 for
        /// requests that stand on no cache, and for requests by handle.
        pub version: u64,
        /// Marks of the directories that the path went through: only events of these since
        /// `version` make the request stale. Empty: any event does.
        pub way: Way,
    }
}

impl Clone for Stand {
    /// Copies the marks at once, which `SmallVec::clone` does one by one: each request by path has
    /// a clone.
    fn clone(&self) -> Stand {
        Stand { version: self.version, way: Way::from_slice(&self.way) }
    }
}

impl Stand {
    /// A stand on no cached directory.
    pub const NONE: Stand = Stand { version: 0, way: Way::new_const() };

    /// Adds cached directories of version `version` to the stand.
    pub fn is_since(&mut self, version: u64) {
        self.version = match (self.version, version) {
            (0, other) | (other, 0) => other,
            (one, other) => one.min(other),
        };
    }

    /// Adds the stand `other` to this one.
    pub fn add(&mut self, other: &Stand) {
        self.is_since(other.version);
        self.way.extend_from_slice(&other.way);
    }

    /// Whether the request stands on no cached directory.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.version == 0
    }
}

/// Mark of a directory on a path: the low 28 bits of its id, which take four bytes. Two directories
/// may share a mark; then a path counts as changed that has not.
#[must_use]
pub fn way_mark(dir: DirId) -> u32 {
    u32::try_from(dir.0 & 0xfff_ffff).expect("28 bits")
}
