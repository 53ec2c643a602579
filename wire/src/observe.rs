//! Statistics for administrators: where time goes, which sessions ask for what, which files are
//! open. These requests need a token for the whole tree that is not read-only or bound to a user.

use base::{ByteRange, DirId, Ino, LockKind, LockMode, SessionId, Time, codec};

codec! {
    /// All counts of a server, since its start.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Load {
        /// Microseconds since the server started, when this was read.
        pub at_us: u64,
        /// Kinds of operations that were asked for at least once.
        pub operations: Vec<Operation>,
        /// Named distributions of other things, such as `group_requests`.
        pub distributions: Vec<(String, Distribution)>,
        /// Named values of this moment, such as `sync_waiters`.
        pub gauges: Vec<(String, u64)>,
        /// Named counters, such as `received_bytes`.
        pub counters: Vec<(String, u64)>,
        /// Sessions with the most recent operations, the busiest first.
        pub busy_sessions: Vec<BusySession>,
        /// Directories with the most recent operations, the busiest first.
        pub busy_directories: Vec<BusyDirectory>,
    }
}

codec! {
    /// One kind of operation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Operation {
        /// Name of the kind, such as `create`.
        pub name: String,
        /// Number of operations by outcome: `done`, `retry`, `halted`, `refused`, `repeated`, or
        /// the name of an errno, such as `ENOENT`. Errnos that never came are not listed.
        pub outcomes: Vec<(String, u64)>,
        /// Nanoseconds from a request's arrival to its answer.
        pub latency: Distribution,
        /// Nanoseconds spent in each stage: `queue`, `execute`, `write`, `sync`, `wait`.
        pub stages: Vec<(String, u64)>,
    }
}

codec! {
    /// A histogram. Bucket `i` counts values that are at most `unit * 2^i` and in no earlier
    /// bucket; the last bucket counts all larger ones.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Distribution {
        /// Upper bound of the first bucket.
        pub unit: u64,
        /// Number of values in each bucket.
        pub buckets: Vec<u64>,
        /// Sum of all values.
        pub sum: u64,
    }
}

codec! {
    /// A session and its rate of operations, estimated from samples.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BusySession {
        /// Id of the session.
        pub session: SessionId,
        /// Name of the client, as the client gave it; empty when the session has ended.
        pub client: String,
        /// Thousandths of an operation per second.
        pub milli_rate: u64,
    }
}

codec! {
    /// A directory and its rate of operations, estimated from samples.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BusyDirectory {
        /// Id of the directory.
        pub dir: DirId,
        /// Path of the directory; empty when it is gone.
        pub path: String,
        /// Thousandths of an operation per second.
        pub milli_rate: u64,
    }
}

codec! {
    /// Asks for the slow operations, oldest first. Answer: [`SlowLog`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SlowQuery {
        /// New threshold, in microseconds, from which operations are kept; `None`: unchanged.
        pub threshold_us: Option<u64>,
        /// Return only operations after this number.
        pub after: u64,
    }
}

codec! {
    /// The log of slow operations.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SlowLog {
        /// Threshold, in microseconds, from which operations are kept.
        pub threshold_us: u64,
        /// Microseconds since the server started, when this was read.
        pub at_us: u64,
        /// Number of slow operations since the start; only the latest are kept.
        pub total: u64,
        /// The operations that are kept.
        pub operations: Vec<SlowOperation>,
    }
}

codec! {
    /// A slow operation, and where its time went.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SlowOperation {
        /// Number of the operation among the slow ones, from 1 on.
        pub number: u64,
        /// Kind of the operation, such as `create`.
        pub name: String,
        /// Outcome of the operation, such as `done`.
        pub outcome: String,
        /// Microseconds from the server's start to the answer.
        pub at_us: u64,
        /// Number of requests in the operation's group.
        pub group_requests: u64,
        /// Name of the client, as the client gave it; empty when the session has ended.
        pub client: String,
        /// Path of the request's directory; empty when there is none, or it is gone.
        pub directory: String,
        /// Nanoseconds spent in each stage: `queue`, `execute`, `write`, `sync`, `wait`.
        pub stages: Vec<(String, u64)>,
    }
}

codec! {
    /// A session, for administrators.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionDetail {
        /// Id of the session.
        pub session: SessionId,
        /// Name of the client, as the client gave it.
        pub client: String,
        /// Milliseconds since the server last heard of the session.
        pub idle_ms: u64,
        /// Number of files that the session has open.
        pub open_files: u64,
        /// Number of locks that the session holds.
        pub locks_held: u64,
        /// Number of locks that the session waits for.
        pub locks_waiting: u64,
        /// The subtree that its token is for; `None` when the client has not come back since a
        /// restart.
        pub path: Option<String>,
        /// The user that its token is bound to.
        pub uid: Option<u32>,
        /// Whether its token allows reading only.
        pub read_only: bool,
        /// The token of the latest Hello; `None` as for `path`.
        pub token: Option<TokenShown>,
    }
}

codec! {
    /// Marks of a token: what tells it from others, without its rights.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct TokenShown {
        /// Number of the token; 0: the token cannot be revoked.
        pub id: u64,
        /// Number of the key that has signed the token.
        pub key: u32,
        /// Time at which the token expires; `None`: never.
        pub expires: Option<Time>,
    }
}

codec! {
    /// Asks for open files. Answer: [`OpenPage`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OpensQuery {
        /// Only inodes with a larger number.
        pub after: Ino,
        /// Return only files that this session has open.
        pub session: Option<SessionId>,
        /// Approximate maximum number of files.
        pub max: u32,
    }
}

codec! {
    /// Open files in the order of their inodes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OpenPage {
        /// The files; the last inode is complete.
        pub files: Vec<OpenFile>,
        /// Whether there are no more files.
        pub end: bool,
    }
}

codec! {
    /// A file that a session has open.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OpenFile {
        /// Inode number of the file.
        pub ino: Ino,
        /// Session that has the file open.
        pub session: SessionId,
        /// Whether the file is open for reading.
        pub read: bool,
        /// Whether the file is open for writing.
        pub write: bool,
        /// Path of the file; empty when it is not known, or gone.
        pub path: String,
    }
}

codec! {
    /// Asks for locks that are held or waited for. Answer: [`LockPage`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LocksQuery {
        /// Only inodes with a larger number.
        pub after: Ino,
        /// Return only locks of this session.
        pub session: Option<SessionId>,
        /// Return only locks of this file.
        pub ino: Option<Ino>,
        /// Approximate maximum number of locks.
        pub max: u32,
    }
}

codec! {
    /// Locks in the order of their inodes; of one file first those that are held, then those that
    /// are waited for in the order of asking.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockPage {
        /// The locks; the last inode is complete.
        pub locks: Vec<LockEntry>,
        /// Whether there are no more locks.
        pub end: bool,
    }
}

codec! {
    /// A lock that is held or waited for.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockEntry {
        /// Inode number of the file.
        pub ino: Ino,
        /// Path of the file; empty when it is not known, or gone.
        pub path: String,
        /// Family of the lock.
        pub kind: LockKind,
        /// The bytes that the lock covers.
        pub range: ByteRange,
        /// Mode of the lock.
        pub mode: LockMode,
        /// Session of the lock's owner.
        pub session: SessionId,
        /// The client's number for the owner.
        pub owner: u64,
        /// Id of the process that asked for the lock, on the client's machine; 0 when it is not
        /// known.
        pub pid: u32,
        /// Microseconds for which the owner has waited; `None` when the lock is held.
        pub waiting_us: Option<u64>,
    }
}

codec! {
    /// Ends a session: the server closes its files, frees its locks, and answers its next request
    /// with `NoSession`. Answer: nothing; `NotFound` when there is no such session.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Evict {
        /// Id of the session.
        pub session: SessionId,
    }
}
