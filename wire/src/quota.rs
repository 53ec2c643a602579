//! Quotas of several servers.
//!
//! Records below a directory come to count for another accounting root: the coordinator walks the
//! tree, and asks the servers that have the records of each directory to change them. Every request
//! may be repeated: a server skips records that it has changed already.
//!
//! Each server charges a root up to its grant. A server that needs more asks the coordinator, which
//! has the others give back what they do not use before it answers that there is none.

use base::{Ino, Layout, codec};
use bytes::Bytes;

use crate::DirRef;

codec! {
    /// Counts records for another accounting root. Answer: [`Counted`], when the change is on
    /// stable storage.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Count {
        /// The root for which the records count now; 0 for none.
        pub from: Ino,
        /// The root for which they count afterwards.
        pub to: Ino,
        /// The records to change.
        pub what: CountWhat,
    }
}

codec! {
    /// The records that a [`Count`] changes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum CountWhat {
        /// One partition of a directory, without its entries.
        Share(CountShare) = 1,
        /// Some of the names in a partition whose share is counted already.
        Names(CountNames) = 2,
        /// Inodes in their slots, to which names lead.
        Slots(Vec<Ino>) = 3,
    }
}

codec! {
    /// A partition of a directory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CountShare {
        /// The directory.
        pub dir: DirRef,
        /// Number of the partition.
        pub partition: u16,
    }
}

codec! {
    /// Some of the names in a partition.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CountNames {
        /// The partition that has the names.
        pub share: CountShare,
        /// First key to count; empty: from the first name.
        pub from: Bytes,
    }
}

codec! {
    /// Progress of a [`Count`].
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Counted {
        /// How the directory is divided, as its share knows; `None`: it is not there, or counts for
        /// another root.
        pub layout: Option<Layout>,
        /// Whether `layout` is `None` because the directory is an accounting root itself.
        pub is_root: bool,
        /// Directories found among the names.
        pub dirs: Vec<DirRef>,
        /// Inodes found in slots of other servers.
        pub slots: Vec<Ino>,
        /// First key of the next part; `None` at the end.
        pub next: Option<Bytes>,
    }
}

codec! {
    /// Bytes and inodes, used or allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Amounts {
        /// Number of bytes; `i64::MAX`: no limit.
        pub bytes: i64,
        /// Number of inodes; `i64::MAX`: no limit. A server's use is below 0 where it has released
        /// what others have charged.
        pub entries: i64,
    }
}

codec! {
    /// Asks a server what it has charged to each account. Answer: [`AccountUse`] of the next ones,
    /// in order; empty at the end. Whoever does not administer is told of the accounts of the user
    /// and the groups for whom the request is made, and of no directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Accounts {
        /// The account after which to begin, see [`base::Account`]; 0: from the first one.
        pub after: Ino,
    }
}

codec! {
    /// An account as one server has it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AccountUse {
        /// The account, see [`base::Account`].
        pub account: Ino,
        /// The use that this server has charged to it.
        pub used: Amounts,
        /// The limits; `None` where it has none, or the server has not heard of them.
        pub limits: Option<AccountLimits>,
        /// Path of a directory, as the coordinator knows it; empty for others.
        pub path: String,
    }
}

codec! {
    /// The limits of an account.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AccountLimits {
        /// Most bytes; `u64::MAX` for no limit, `None` where nothing was set.
        pub bytes_max: Option<u64>,
        /// Most inodes; likewise.
        pub entries_max: Option<u64>,
        /// Whether they hold. If not, what there is is being counted.
        pub hold: bool,
    }
}

codec! {
    /// Asks the coordinator for a grant below an accounting root. Answer: [`Room`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AskRoom {
        /// Inode number of the root.
        pub root: Ino,
        /// The round in which this server last reported its use; 0: in none.
        pub round: u64,
        /// Amounts that the server uses now.
        pub used: Amounts,
        /// Amounts that the server needs besides.
        pub more: Amounts,
    }
}

codec! {
    /// The coordinator's answer to [`AskRoom`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Room {
        /// The server may use these amounts.
        Allowed(Allowed) = 1,
        /// The quota is used up.
        Full = 2,
        /// The coordinator cannot know: some server has not yet reported its use.
        Unknown = 3,
    }
}

codec! {
    /// The amounts that a server may use.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Allowed {
        /// Round of this grant: it holds for a server that last reported its use in this round.
        pub round: u64,
        /// Amounts that the server may use in all.
        pub amounts: Amounts,
    }
}

codec! {
    /// Takes back the unused part of a grant. Answer: [`Gave`], when what was released is on stable
    /// storage.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GiveRoom {
        /// Inode number of the root.
        pub root: Ino,
        /// Number of the new round; grants of earlier rounds end.
        pub round: u64,
    }
}

codec! {
    /// The amounts that a server uses, which are its grant from now on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Gave {
        /// Version of the accounting roots that the server has.
        pub roots: u64,
        /// Amounts that the server uses, by those roots.
        pub used: Amounts,
    }
}
