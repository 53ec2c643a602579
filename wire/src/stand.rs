//! What a request stands on: the cached directories of the path that led to it (InfiniFS §3.4, lazy invalidation).

use base::{DirId, codec};
use smallvec::SmallVec;

/// The directories that a path went through, by [`way_mark`].
pub type Way = SmallVec<[u32; 8]>;

codec! {
    /// What a request stands on that its client has cached.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Stand {
        /// The version of the invalidation list since which nothing was heard of what is cached; 0 where nothing is, and by
        /// handle.
        pub version: u64,
        /// The directories that the path went through: only what happened to these since `version` makes the request stale.
        /// Empty: whatever happened does.
        pub way: Way,
    }
}

impl Stand {
    /// Nothing that is cached.
    pub const NONE: Stand = Stand { version: 0, way: Way::new_const() };

    /// Stands on what was cached since `version` as well.
    pub fn is_since(&mut self, version: u64) {
        self.version = match (self.version, version) {
            (0, other) | (other, 0) => other,
            (one, other) => one.min(other),
        };
    }

    /// Stands on what `other` stands on as well.
    pub fn add(&mut self, other: &Stand) {
        self.is_since(other.version);
        self.way.extend_from_slice(&other.way);
    }

    /// Whether the request stands on nothing that is cached.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.version == 0
    }
}

/// A directory on the way of a path: the low 28 bits of its id, which take four bytes. Another one may have the same, so that
/// a way is taken to have changed that has not.
#[must_use]
pub fn way_mark(dir: DirId) -> u32 {
    u32::try_from(dir.0 & 0xfff_ffff).expect("28 bits")
}
