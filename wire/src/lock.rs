//! Requests about locks.
//!
//! The server of a file's name holds its locks in memory. A client numbers its lock requests, and
//! tells with each below which number all are settled: what arrives later with such a number is an
//! echo of a broken connection, and does nothing. A request that was not heard to be answered is
//! asked again, under the same number; to be executed twice does not change what it does.

use base::{ByteRange, Ino, LockKind, LockMode, codec};

codec! {
    /// Take, change or give back a lock of a file that the session has open. Answer: nothing, once
    /// it is done; or `TryAgain`, `Deadlock`, `NoLocks`, `Interrupted`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Lock {
        /// The file.
        pub ino: Ino,
        /// Family of the lock.
        pub kind: LockKind,
        /// The client's number for the owner of the lock.
        pub owner: u64,
        /// Id of the process that asks; 0 when it is not known.
        pub pid: u32,
        /// The bytes to lock; all of them for a whole file.
        pub range: ByteRange,
        /// Mode of the lock; `None` gives it back.
        pub mode: Option<LockMode>,
        /// Whether the answer waits until the lock is granted.
        pub wait: bool,
        /// The client's number for this request.
        pub number: u64,
        /// All requests with lower numbers are settled.
        pub settled: u64,
    }
}

codec! {
    /// Asks for a lock that conflicts with this one. Answer: `Lock`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockTest {
        /// The file.
        pub ino: Ino,
        /// Family of the lock.
        pub kind: LockKind,
        /// The client's number for the owner that would ask.
        pub owner: u64,
        /// The bytes to lock.
        pub range: ByteRange,
        /// Mode of the lock.
        pub mode: LockMode,
    }
}

codec! {
    /// A lock that conflicts with a tested one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockFound {
        /// The bytes that the lock covers.
        pub range: ByteRange,
        /// Mode of the lock.
        pub mode: LockMode,
        /// Id of the process that holds the lock; 0 when another client has the lock.
        pub pid: u32,
    }
}

codec! {
    /// Stops waiting for a lock: the request of this number is answered `Interrupted`, if it still
    /// waits. Answer: nothing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockCancel {
        /// Number of the lock request.
        pub number: u64,
        /// See [`Lock::settled`].
        pub settled: u64,
    }
}

codec! {
    /// A lock that was held when the server restarted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClaimedLock {
        /// Inode number of the file, whose open the client has claimed before.
        pub ino: Ino,
        /// Family of the lock.
        pub kind: LockKind,
        /// The client's number for the owner of the lock.
        pub owner: u64,
        /// Id of the process that asked for the lock.
        pub pid: u32,
        /// The bytes that the lock covers.
        pub range: ByteRange,
        /// Mode of the lock.
        pub mode: LockMode,
    }
}

codec! {
    /// Claims locks that were held when the server restarted; sent before the last
    /// [`crate::Claim`]. Answer: nothing.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockClaim {
        /// The locks that the client held.
        pub locks: Vec<ClaimedLock>,
        /// See [`Lock::settled`].
        pub settled: u64,
    }
}
