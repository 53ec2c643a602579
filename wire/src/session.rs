//! Opening a session, keeping it, and coming back to it.

use base::{Attr, ClusterMap, HashKey, Locality, Seq, SessionId, codec};

use crate::node::{DirRef, FileRef};

codec! {
    /// The first request of every connection. Answer: [`Welcome`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hello {
        /// The token, as text (see [`crate::token`]).
        pub token: String,
        /// Name of the client, for people to read: host, process, mount point.
        pub client: String,
        /// The session to resume. `None` opens a new one.
        pub resume: Option<Resume>,
        /// The client's kernel has checked the permissions of every request (a mount with
        /// `default_permissions`); the server believes it, unless the token binds the session to a
        /// user.
        pub kernel_checks: bool,
    }
}

codec! {
    /// A client resumes its session.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Resume {
        /// Id of the session.
        pub session: SessionId,
        /// [`Welcome::secret`], which proves that the session is the client's own.
        pub secret: u64,
        /// Number of the last change that succeeded, by the order of answers; 0 when there was
        /// none.
        pub answered: Seq,
        /// [`Welcome::root`], whatever its ticket.
        pub root: DirRef,
        /// [`Welcome::proof`], without which no session resumes. A server that never saw the
        /// session, or has ended its part of it, opens it anew by this.
        pub proof: u64,
    }
}

codec! {
    /// The facts of the file system that a client must know.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsInfo {
        /// Name of the file system.
        pub name: String,
        /// Unique id of the file system.
        pub uuid: u128,
        /// The key under which ids and positions are hashed.
        pub hash_key: HashKey,
        /// Default home of a new directory: its own id or its parent's home.
        pub locality: Locality,
        /// Contents of at most this many bytes are kept with the metadata.
        pub inline_bytes_max: u32,
    }
}

codec! {
    /// An open session.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Welcome {
        /// Id of the session.
        pub session: SessionId,
        /// Secret that proves the session when the client resumes it.
        pub secret: u64,
        /// A number of this run of the server. Where it differs from the last one, the client
        /// claims its opens again before anything else.
        pub incarnation: u64,
        /// Milliseconds of silence after which the server ends the session.
        pub lease_ms: u64,
        /// Milliseconds after an answer within which the server begins to sync the operation.
        pub commit_ms: u64,
        /// The file system.
        pub fs: FsInfo,
        /// The cluster map: which server has which shard.
        pub map: ClusterMap,
        /// Root directory of this session.
        pub root: DirRef,
        /// Attributes of the root directory.
        pub root_attr: Attr,
        /// Whether every change is refused with `ReadOnly`.
        pub read_only: bool,
        /// Whether the server trusts the credentials and the walks of this session.
        pub trusted: bool,
        /// Whether changes that the client has answers to are lost: the power of the server's
        /// machine failed before they were stable.
        pub forgot: bool,
        /// Whether this answer opened the session: the server knew none of this number.
        pub opened: bool,
        /// Ticket that proves the session, its token's rights and its root to every server: see
        /// [`Resume::proof`].
        pub proof: u64,
        /// Compression of new blocks, for a session that may reach the store of blocks itself,
        /// under addresses that it asks for ([`crate::SignBlocks`]); `None`: servers read and write
        /// blocks.
        pub direct: Option<String>,
    }
}

codec! {
    /// A file that was open when the server restarted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClaimedFile {
        /// The file that was open.
        pub file: FileRef,
        /// The client's number of its latest open.
        pub number: u64,
        /// [`crate::Opened::proof`], which proves that the session opened the file.
        pub proof: u64,
    }
}

codec! {
    /// Claims files that were open when the server restarted. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Claim {
        /// The files that were open.
        pub files: Vec<ClaimedFile>,
        /// Whether the client claims nothing more.
        pub last: bool,
    }
}

codec! {
    /// The state of the file system, for `statfs(2)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Statfs {
        /// Total number of bytes.
        pub bytes: u64,
        /// Number of free bytes.
        pub bytes_free: u64,
        /// Inodes in use.
        pub files: u64,
        /// Inodes that could still be made.
        pub files_free: u64,
    }
}
