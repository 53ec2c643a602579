//! Delegations: directories that one session looks at and changes without asking first.
//!
//! A mount that makes a directory may be granted it with the answer. From then on it answers its
//! programs itself and sends the changes a moment later: many in one request ([`Apply`]), or each as
//! the request that it would be otherwise, which stands on the delegation ([`Held`]). A request of
//! anybody else for the directory waits until the server has recalled it.

use base::{Attr, Cred, DirId, Ino, Time, codec};

use crate::{Create, DirRef, NodeRef, Setattr, Unlink, Write, Written};

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

codec! {
    /// Does several changes in a directory that the session holds, in their order, each as a
    /// transaction of its own; all that are done are one write. The server stops at the first that
    /// it cannot do at once: nothing has happened of that one, nor of those behind it. Answer:
    /// [`Applied`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Apply {
        /// The directory, which the request stands on, too.
        pub dir: DirRef,
        /// The changes, at most [`HELD_CHANGES_MAX`](base::limits::HELD_CHANGES_MAX).
        pub changes: Vec<HeldChange>,
    }
}

codec! {
    /// One change in a directory that the session holds.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HeldChange {
        /// The user who makes the change.
        pub cred: Cred,
        /// Time of the change, see [`Held::at`].
        pub at: Time,
        /// Inode number of the file that is made, see [`Held::ino`].
        pub ino: Option<Ino>,
        /// The change.
        pub request: HeldRequest,
    }
}

codec! {
    /// The requests that may be one change of several.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum HeldRequest {
        /// Make a file that is not there yet, and perhaps open it.
        Create(Create) = 1,
        /// Write to a file; no blocks come along.
        Write(Write) = 2,
        /// Change attributes of a file, but no size.
        Setattr(Setattr) = 3,
        /// Remove a file.
        Unlink(Unlink) = 4,
    }
}

impl HeldRequest {
    /// The directory that the change is about.
    #[must_use]
    pub fn dir(&self) -> &DirRef {
        match self {
            HeldRequest::Create(req) => &req.dir,
            HeldRequest::Write(req) => &req.file.dir,
            HeldRequest::Setattr(Setattr { node: NodeRef::File(file), .. }) => &file.dir,
            HeldRequest::Setattr(Setattr { node: NodeRef::Dir(dir), .. }) => dir,
            HeldRequest::Unlink(req) => &req.dir,
        }
    }
}

codec! {
    /// The answers to the changes that were done, from the first on.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Applied {
        /// One for each; fewer than changes where the server has stopped.
        pub done: Vec<HeldReply>,
    }
}

codec! {
    /// A file that was made, as one change of several: no more than its maker does not know, as
    /// these answers are stored.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HeldMade {
        /// Attributes of the file.
        pub attr: Attr,
        /// Proof of the open, if it was to be opened: as of [`Opened`](crate::Opened).
        pub proof: Option<u64>,
    }
}

codec! {
    /// The answer to one change of several.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum HeldReply {
        /// To a `Create`.
        Made(HeldMade) = 1,
        /// To a `Write`.
        Written(Written) = 2,
        /// To a `Setattr` or an `Unlink`: the file's attributes.
        Attr(Attr) = 3,
    }
}
