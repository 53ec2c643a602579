//! Opening a session, keeping it, and coming back to it.

use base::{Attr, ClusterMap, HashKey, Locality, Seq, SessionId, codec};

use crate::node::{DirRef, FileRef};

codec! {
    /// The first request of every connection. Answer: [`Welcome`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hello {
        /// The token, as text (see [`crate::token`]).
        pub token: String,
        /// Who connects, for people to read: host, process, mount point.
        pub client: String,
        /// The session to go on with. `None` opens a new one.
        pub resume: Option<Resume>,
        /// The client's kernel has checked the permissions of every request (a mount with
        /// `default_permissions`); the server believes it, unless the token binds the session to a user.
        pub kernel_checks: bool,
    }
}

codec! {
    /// A client comes back.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Resume {
        /// To which session.
        pub session: SessionId,
        /// What proves that it is its own.
        pub secret: u64,
        /// The last change that succeeded, by the order of answers; 0 when there was none.
        pub answered: Seq,
        /// [`Welcome::root`], whatever its ticket.
        pub root: DirRef,
        /// [`Welcome::proof`], without which nobody comes back. A server that never saw the session, or has ended its
        /// part of it, opens it anew by this.
        pub proof: u64,
    }
}

codec! {
    /// What a client must know of the file system.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsInfo {
        /// Its name.
        pub name: String,
        /// Its unique id.
        pub uuid: u128,
        /// The key of ids and positions.
        pub hash_key: HashKey,
        /// Which home a new directory gets, where nothing else is said.
        pub locality: Locality,
        /// Contents up to this many bytes rest in the entry.
        pub inline_bytes_max: u32,
    }
}

codec! {
    /// An open session.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Welcome {
        /// The session.
        pub session: SessionId,
        /// What proves it when the client comes back.
        pub secret: u64,
        /// A number of this run of the server. Where it differs from the last one, the client claims its
        /// opens again before anything else.
        pub incarnation: u64,
        /// The session ends when the client was silent for so long, milliseconds.
        pub lease_ms: u64,
        /// The server begins to sync what it has answered after so long at most, milliseconds.
        pub commit_ms: u64,
        /// The file system.
        pub fs: FsInfo,
        /// Which server has which shard.
        pub map: ClusterMap,
        /// The directory that is this session's root.
        pub root: DirRef,
        /// Its attributes.
        pub root_attr: Attr,
        /// Every change is refused with `ReadOnly`.
        pub read_only: bool,
        /// The server believes the credentials and the walks of this session.
        pub trusted: bool,
        /// Changes that the client has answers to are gone: the power of the server's machine failed before they
        /// were stable.
        pub forgot: bool,
        /// The session was opened here with this answer: the server knew none of this number.
        pub opened: bool,
        /// Proves the session, what its token allows and its root, to every server: see [`Resume::proof`].
        pub proof: u64,
        /// The session may reach the store of blocks itself, under addresses that it asks for ([`crate::SignBlocks`]), and how
        /// it is to compress new ones; `None`: servers read and write blocks.
        pub direct: Option<String>,
    }
}

codec! {
    /// A file that was open when the server restarted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClaimedFile {
        /// Which.
        pub file: FileRef,
        /// The number of its latest open.
        pub number: u64,
        /// What [`crate::Opened`] gave as proof that it was opened.
        pub proof: u64,
    }
}

codec! {
    /// These files were open when the server restarted. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Claim {
        /// What was open.
        pub files: Vec<ClaimedFile>,
        /// Nothing more will be claimed.
        pub last: bool,
    }
}

codec! {
    /// The state of the file system, for `statfs(2)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Statfs {
        /// Bytes in all.
        pub bytes: u64,
        /// Bytes free.
        pub bytes_free: u64,
        /// Inodes in use.
        pub files: u64,
        /// Inodes that could still be made.
        pub files_free: u64,
    }
}
