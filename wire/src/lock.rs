//! Requests about locks.
//!
//! The server of a file's name holds its locks in memory. A client numbers its lock requests, and tells with
//! each below which number all are settled: what arrives later with such a number is an echo of a broken
//! connection, and does nothing. A request that was not heard to be answered is asked again, under the same
//! number; to be executed twice does not change what it does.

use base::{ByteRange, Ino, LockKind, LockMode, codec};

codec! {
    /// Take, change or give back a lock of a file that the session has open. Answer: nothing, once it is done; or
    /// `TryAgain`, `Deadlock`, `NoLocks`, `Interrupted`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Lock {
        /// The file.
        pub ino: Ino,
        /// The family.
        pub kind: LockKind,
        /// The client's number for whose lock it is.
        pub owner: u64,
        /// The process that asks; 0 when it is not known.
        pub pid: u32,
        /// Which bytes; all for a whole file.
        pub range: ByteRange,
        /// `None` gives back.
        pub mode: Option<LockMode>,
        /// To be answered when the lock is there.
        pub wait: bool,
        /// The client's number for this request.
        pub number: u64,
        /// All requests with lower numbers are settled.
        pub settled: u64,
    }
}

codec! {
    /// Is anything in the way of this lock? Answer: `Lock`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockTest {
        /// The file.
        pub ino: Ino,
        /// The family.
        pub kind: LockKind,
        /// Who would ask.
        pub owner: u64,
        /// Which bytes.
        pub range: ByteRange,
        /// The mode.
        pub mode: LockMode,
    }
}

codec! {
    /// A lock that is in the way.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockFound {
        /// What it covers.
        pub range: ByteRange,
        /// Its mode.
        pub mode: LockMode,
        /// The process that holds it; 0 where that is one of another client.
        pub pid: u32,
    }
}

codec! {
    /// Wait no longer: the request of this number is answered `Interrupted`, if it still waits. Answer: nothing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockCancel {
        /// The request.
        pub number: u64,
        /// See [`Lock::settled`].
        pub settled: u64,
    }
}

codec! {
    /// A lock that was held when the server restarted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClaimedLock {
        /// The file, claimed before.
        pub ino: Ino,
        /// The family.
        pub kind: LockKind,
        /// Whose it is.
        pub owner: u64,
        /// The process that asked for it.
        pub pid: u32,
        /// What it covers.
        pub range: ByteRange,
        /// Its mode.
        pub mode: LockMode,
    }
}

codec! {
    /// These locks were held when the server restarted; sent before the last [`crate::Claim`]. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockClaim {
        /// What was held.
        pub locks: Vec<ClaimedLock>,
        /// See [`Lock::settled`].
        pub settled: u64,
    }
}
