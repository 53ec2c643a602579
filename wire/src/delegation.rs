//! Delegations: directories that one session looks at and changes without asking first.
//!
//! A mount that makes a directory may be granted it with the answer; one that works in a directory
//! that exists may ask for it ([`Delegate`]). From then on it answers its
//! programs itself and sends the changes a moment later: many in one request ([`Apply`]), or each as
//! the request that it would be otherwise, which stands on the delegation ([`Held`]). A request of
//! anybody else for the directory waits until the server has recalled it.

use base::{Attr, Cred, DirId, EntryName, Ino, Time, codec};
use bytes::Bytes;

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
        /// Whether the client wants a delegation of the directory that the request makes, or is
        /// about.
        pub wants: bool,
    }
}

impl Held {
    /// A wish for a delegation, by a request that stands on none.
    pub const WISH: Held = Held { dir: None, at: None, ino: None, wants: true };
}

codec! {
    /// A delegation of the directory that was made, or asked for.
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
    /// Asks for a delegation of a directory that exists, and for its names. Answer: a
    /// [`DelegatedPage`]. The first one comes with a [`Grant`], or without one and without names if
    /// the directory has too many. Nothing when the session does not get the directory.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Delegate {
        /// The directory.
        pub dir: DirRef,
        /// Position after which names are wanted; 0: the request asks for the delegation, too. The
        /// requests for further names stand on it.
        pub after: u64,
        /// How many names the directory may have to be worth it.
        pub names_max: u32,
    }
}

codec! {
    /// Names of a directory that the session holds, in the order of their positions.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DelegatedPage {
        /// Attributes of the directory.
        pub attr: Attr,
        /// Inode number of the directory above.
        pub parent_ino: Ino,
        /// Whether the directory is somewhere else than where it was made.
        pub is_moved: bool,
        /// Whether the directory has no extended attributes.
        pub is_plain: bool,
        /// The names.
        pub names: Vec<DelegatedName>,
        /// Position up to which these are all names; `None`: up to the end.
        pub reach: Option<u64>,
    }
}

codec! {
    /// A name of a directory that the session holds.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DelegatedName {
        /// The name.
        pub name: EntryName,
        /// The file or directory that has it.
        pub entry: DelegatedEntry,
    }
}

codec! {
    /// A file or directory that has a name in a directory that the session holds.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum DelegatedEntry {
        /// A file, or another node that is no directory, whose inode is with the name.
        File(DelegatedFile) = 1,
        /// A directory.
        Dir(DirRef) = 2,
        /// A file whose inode is elsewhere, as it has, or had, several names.
        Link(Ino) = 3,
    }
}

codec! {
    /// A file whose inode is with its name.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DelegatedFile {
        /// Attributes of the file.
        pub attr: Attr,
        /// Target of a symbolic link.
        pub target: Option<Bytes>,
        /// Whether the file has no extended attributes.
        pub is_plain: bool,
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
