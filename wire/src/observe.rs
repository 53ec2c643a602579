//! What administrators look at: where time goes, who asks for what, what is open. They need a token for the whole
//! tree that is not read-only or bound to a user.

use base::{ByteRange, DirId, Ino, LockKind, LockMode, SessionId, codec};

codec! {
    /// Everything a server counts, since its start.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Load {
        /// Microseconds since the server started, when this was read.
        pub at_us: u64,
        /// The operations that were asked for at least once.
        pub operations: Vec<Operation>,
        /// Named distributions of other things, such as `group_requests`.
        pub distributions: Vec<(String, Distribution)>,
        /// Named values of this moment, such as `sync_waiters`.
        pub gauges: Vec<(String, u64)>,
        /// Named counters, such as `received_bytes`.
        pub counters: Vec<(String, u64)>,
        /// Sessions that asked for the most lately, the busiest first.
        pub busy_sessions: Vec<BusySession>,
        /// Directories that were asked for the most lately, the busiest first.
        pub busy_directories: Vec<BusyDirectory>,
    }
}

codec! {
    /// One kind of operation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Operation {
        /// Its name, such as `create`.
        pub name: String,
        /// How often each outcome came: `done`, `retry`, `halted`, `refused`, `repeated`, or the
        /// name of an errno, as `ENOENT`, of which those are there that came.
        pub outcomes: Vec<(String, u64)>,
        /// From its arrival to its answer, in nanoseconds.
        pub latency: Distribution,
        /// Nanoseconds that went into each stage: `queue`, `execute`, `write`, `sync`, `wait`.
        pub stages: Vec<(String, u64)>,
    }
}

codec! {
    /// How values are distributed. Bucket `i` counts those that are at most `unit * 2^i` and in no earlier one; the
    /// last bucket counts all larger ones.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Distribution {
        /// The bound of the first bucket.
        pub unit: u64,
        /// How many values are in each bucket.
        pub buckets: Vec<u64>,
        /// Their sum.
        pub sum: u64,
    }
}

codec! {
    /// A session and how much it asks for, estimated from samples.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BusySession {
        /// The session.
        pub session: SessionId,
        /// Who it is, as it said itself; empty when it has ended.
        pub client: String,
        /// Thousandths of an operation per second.
        pub milli_rate: u64,
    }
}

codec! {
    /// A directory and how often it is asked for, estimated from samples.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BusyDirectory {
        /// The directory.
        pub dir: DirId,
        /// Its path; empty when it is gone.
        pub path: String,
        /// Thousandths of an operation per second.
        pub milli_rate: u64,
    }
}

codec! {
    /// The slow operations, oldest first. Answer: [`SlowLog`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SlowQuery {
        /// Operations that take so many microseconds are kept from now on; `None`: as it was.
        pub threshold_us: Option<u64>,
        /// Only those after this number.
        pub after: u64,
    }
}

codec! {
    /// Operations that took long.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SlowLog {
        /// Operations that take so many microseconds are kept.
        pub threshold_us: u64,
        /// Microseconds since the server started, when this was read.
        pub at_us: u64,
        /// How many there were since the start; only the latest are kept.
        pub total: u64,
        /// Those that are kept.
        pub operations: Vec<SlowOperation>,
    }
}

codec! {
    /// An operation that took long, and where the time went.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SlowOperation {
        /// Its number among the slow ones, from 1 on.
        pub number: u64,
        /// Its kind, such as `create`.
        pub name: String,
        /// How it ended, such as `done`.
        pub outcome: String,
        /// Microseconds since the server started, when it was answered.
        pub at_us: u64,
        /// How many requests were in its group.
        pub group_requests: u64,
        /// Who asked, as it said itself; empty when the session has ended.
        pub client: String,
        /// The path of the directory it was about; empty when there is none, or it is gone.
        pub directory: String,
        /// Nanoseconds that went into each stage: `queue`, `execute`, `write`, `sync`, `wait`.
        pub stages: Vec<(String, u64)>,
    }
}

codec! {
    /// A session, for administrators.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionDetail {
        /// Its id.
        pub session: SessionId,
        /// Who it is, as it said itself.
        pub client: String,
        /// Milliseconds since it was last heard of.
        pub idle_ms: u64,
        /// How many files it has open.
        pub open_files: u64,
        /// How many locks it holds.
        pub locks_held: u64,
        /// How many locks it waits for.
        pub locks_waiting: u64,
        /// The subtree that its token is for; `None` when the client has not come back since a restart.
        pub path: Option<String>,
        /// The user that its token is bound to.
        pub uid: Option<u32>,
        /// Its token allows reading only.
        pub read_only: bool,
    }
}

codec! {
    /// What is open. Answer: [`OpenPage`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OpensQuery {
        /// Only inodes with a larger number.
        pub after: Ino,
        /// Only what this session has open.
        pub session: Option<SessionId>,
        /// No more than about so many.
        pub max: u32,
    }
}

codec! {
    /// Open files in the order of their inodes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OpenPage {
        /// The files; all of the last inode are there.
        pub files: Vec<OpenFile>,
        /// There are no more.
        pub end: bool,
    }
}

codec! {
    /// A file that a session has open.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OpenFile {
        /// The file.
        pub ino: Ino,
        /// Who has it open.
        pub session: SessionId,
        /// For reading.
        pub read: bool,
        /// For writing.
        pub write: bool,
        /// Where it is; empty when it is not known, or gone.
        pub path: String,
    }
}

codec! {
    /// Locks that are held or waited for. Answer: [`LockPage`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LocksQuery {
        /// Only inodes with a larger number.
        pub after: Ino,
        /// Only those of this session.
        pub session: Option<SessionId>,
        /// Only those of this file.
        pub ino: Option<Ino>,
        /// No more than about so many.
        pub max: u32,
    }
}

codec! {
    /// Locks in the order of their inodes; of one file first those that are held, then those that are waited for in
    /// the order of asking.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockPage {
        /// The locks; all of the last inode are there.
        pub locks: Vec<LockEntry>,
        /// There are no more.
        pub end: bool,
    }
}

codec! {
    /// A lock that is held or waited for.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockEntry {
        /// The file.
        pub ino: Ino,
        /// Where it is; empty when it is not known, or gone.
        pub path: String,
        /// The family.
        pub kind: LockKind,
        /// What it covers.
        pub range: ByteRange,
        /// Its mode.
        pub mode: LockMode,
        /// The session of its owner.
        pub session: SessionId,
        /// The client's number for the owner.
        pub owner: u64,
        /// The process that asked for it, on the client's machine; 0 when it is not known.
        pub pid: u32,
        /// For how many microseconds it is waited for; `None` when it is held.
        pub waiting_us: Option<u64>,
    }
}

codec! {
    /// End a session: what it had open is closed, its locks are free, its next request is told that it has none.
    /// Answer: nothing; `NotFound` when there is no such session.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Evict {
        /// The session.
        pub session: SessionId,
    }
}
