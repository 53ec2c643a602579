//! The ids of a token: as whom its sessions act, and which owners they are shown.
//!
//! A token may squash: requests of the superuser, or of everybody, act as the anonymous user. It
//! may map: the ids of its clients, *outside*, stand for others in the file system, *inside*. A
//! server applies both to the messages of a session where they come in and go out, and nowhere
//! else: operations and records know ids of the inside only.
//!
//! Messages are mapped in `messages`.

mod messages;

use base::{Cred, codec};

/// The anonymous user and group, unless a token names others: `nobody` and `nogroup`.
pub const ANONYMOUS: u32 = 65534;

codec! {
    /// The callers that act as the anonymous user.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Squash {
        /// None of them.
        Nobody = 0,
        /// The superuser: nobody acts as user 0, and nobody has group 0.
        Root = 1,
        /// All callers; supplementary groups are dropped.
        All = 2,
    }
}

codec! {
    /// Ids outside that stand for as many inside, in a row.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct IdRange {
        /// The first id outside.
        pub outside: u32,
        /// The first id inside.
        pub inside: u32,
        /// Number of ids, at least 1.
        pub count: u32,
    }
}

codec! {
    /// How the ids of a token's clients become those of the file system. Of several ranges that
    /// have an id the first one counts.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct IdMapping {
        /// The callers that act as the anonymous user.
        pub squash: Squash,
        /// The anonymous user, inside; and the owner that is shown where a map has no other.
        pub anonymous_uid: u32,
        /// The anonymous group, likewise.
        pub anonymous_gid: u32,
        /// The map of users; empty: all stand for themselves.
        pub uids: Vec<IdRange>,
        /// The map of groups; empty: all stand for themselves.
        pub gids: Vec<IdRange>,
    }
}

impl IdRange {
    fn inside(&self, id: u32) -> Option<u32> {
        let at = id.checked_sub(self.outside).filter(|at| *at < self.count)?;
        self.inside.checked_add(at)
    }

    fn outside(&self, id: u32) -> Option<u32> {
        let at = id.checked_sub(self.inside).filter(|at| *at < self.count)?;
        self.outside.checked_add(at)
    }
}

/// The id inside for one outside; `None`: no range has it.
fn inside(map: &[IdRange], id: u32) -> Option<u32> {
    if map.is_empty() { Some(id) } else { map.iter().find_map(|range| range.inside(id)) }
}

/// The id outside for one inside; `None`: no range has it.
fn outside(map: &[IdRange], id: u32) -> Option<u32> {
    if map.is_empty() { Some(id) } else { map.iter().find_map(|range| range.outside(id)) }
}

impl IdMapping {
    /// Whether any ids are mapped. Otherwise owners are shown as they are.
    #[must_use]
    pub fn maps(&self) -> bool {
        !self.uids.is_empty() || !self.gids.is_empty()
    }

    /// The identity inside that a request with these credentials acts as.
    #[must_use]
    pub fn acting(&self, cred: &Cred) -> Cred {
        if self.squash == Squash::All {
            let (uid, gid) = (self.anonymous_uid, self.anonymous_gid);
            return Cred { uid, gid, groups: Vec::new() };
        }
        let gid = |gid| self.acting_id(&self.gids, gid, self.anonymous_gid);
        Cred {
            uid: self.acting_id(&self.uids, cred.uid, self.anonymous_uid),
            gid: gid(cred.gid),
            groups: cred.groups.iter().map(|group| gid(*group)).collect(),
        }
    }

    fn acting_id(&self, map: &[IdRange], id: u32, anonymous: u32) -> u32 {
        let squashes = |id: u32| id == 0 && self.squash == Squash::Root;
        let id = Some(id).filter(|id| !squashes(*id)).and_then(|id| inside(map, id));
        id.filter(|id| !squashes(*id)).unwrap_or(anonymous)
    }
}
