//! Delegations: directories that one session looks at and changes without asking first.
//!
//! A mount that makes a directory may be granted it with the answer. From then on it answers its
//! programs itself and sends the changes a moment later, each as the request that it would be
//! otherwise, which stands on the delegation ([`Held`]). A request of anybody else for the directory
//! waits until the server has recalled it.

use base::{DirId, Ino, Time, codec};

codec! {
    /// The delegation that a request stands on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Held {
        /// The directory that the session holds; `None`: the request only asks for a delegation.
        pub dir: Option<DirId>,
        /// Time at which the client has made the change, by the server's clock as the client knows
        /// it; `None`: now.
        pub at: Option<Time>,
        /// Inode number of the file that the request makes, one of those that the session was
        /// given; `None`: the server draws one.
        pub ino: Option<Ino>,
        /// Whether the client wants a delegation of the directory that the request makes.
        pub wants: bool,
    }
}

impl Held {
    /// A wish for a delegation, by a request that stands on none.
    pub const WISH: Held = Held { dir: None, at: None, ino: None, wants: true };
}

codec! {
    /// A delegation of the directory that was made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Grant {
        /// Inode numbers for files in the directory.
        pub inos: InoRange,
        /// The server's clock.
        pub now: Time,
        /// Milliseconds for which the server keeps a delegation of a session that it does not hear
        /// of.
        pub lease_ms: u32,
    }
}

codec! {
    /// Inode numbers that a session was given.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InoRange {
        /// The first number.
        pub first: Ino,
        /// How many there are, in a row.
        pub count: u16,
    }
}

codec! {
    /// Gives directories back. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Return {
        /// The directories. Those that the session does not hold are passed over.
        pub dirs: Vec<DirId>,
    }
}

codec! {
    /// Asks for inode numbers for a directory that the session holds. Answer: [`InoRange`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReserveInos {
        /// The directory.
        pub dir: DirId,
        /// Shard of the numbers.
        pub shard: base::ShardId,
        /// How many numbers are wanted; the server gives at most 1,024.
        pub count: u16,
    }
}

codec! {
    /// The directories that the session is to give back.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Recalled {
        /// The directories. None: nobody asks for any, and the client asks again.
        pub dirs: Vec<DirId>,
        /// Directories that were taken from the session; what it has not sent is lost. The server
        /// says so until they are given back, too.
        pub revoked: Vec<DirId>,
        /// The server's clock.
        pub now: Time,
    }
}
