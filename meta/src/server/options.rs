//! Options of a server, which its process sets when it opens the server.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    audit::AuditQueue, cluster::ClusterOptions, handoff::source::Scan, placing::homes::HomeLimits,
    space_guard::FreeBytes,
};

/// The moment at which an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When its effects are visible and survive a crash of the server. They are on stable storage
    /// after `fsync`, `sync` or the commit interval.
    Relaxed,
    /// When its effects are on stable storage.
    Strict,
}

/// The place where blocking work is done.
#[derive(Clone)]
pub enum Offload {
    /// On threads of the runtime, so that a core never waits for a disk.
    Threads,
    /// In the calling task: in a simulation nothing blocks.
    Inline,
    /// Like [`Offload::Inline`], with a pause before the work and one after it.
    Timed(Arc<dyn Fn() -> (Duration, Duration) + Send + Sync>),
}

impl Offload {
    /// Runs `work` and returns what it returned.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match self {
            Offload::Inline => {
                // Other tasks go on meanwhile, as they do beside a thread.
                tokio::task::yield_now().await;
                work()
            }
            Offload::Timed(times) => {
                tokio::task::yield_now().await;
                let (before, after) = times();
                sleep(before).await;
                let done = work();
                sleep(after).await;
                done
            }
            Offload::Threads => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is shutting down: the waiting task is dropped with it.
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }
}

/// Total and free bytes of the disk that holds blocks and metadata.
pub type Space = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// Resources that the server's process uses of its machine.
pub type Process = Arc<dyn Fn() -> wire::ProcessStatus + Send + Sync>;

/// Work of the server's process beside the server, which it reports on.
pub trait Beside: Send + Sync {
    /// The fault of the work, if any, for `pando status`.
    fn problem(&self) -> Option<String>;
    /// Named figures, for metrics.
    fn gauges(&self) -> Vec<(&'static str, u64)>;
}

/// The journal of a server, which its process keeps.
pub trait Journal: Beside {
    /// Whether this process may serve: no other one can have taken the journal over.
    fn may_serve(&self) -> bool;
}

/// Backups of a server, which its process makes.
pub trait Backup: Beside {
    /// Blocks that must stay although nothing names them any more.
    fn hold(&self) -> Hold;
}

/// The audit log of a server, which its process writes.
pub trait Audit: Beside {
    /// The queue from which the process takes the lines.
    fn queue(&self) -> &Arc<AuditQueue>;
}

/// Blocks that nothing names any more and that must stay all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// None: blocks are deleted at once.
    Nothing,
    /// All: another file system may name them, or bases that are not known yet.
    Everything,
    /// All that a base of a backup may name.
    Bases {
        /// Number of the newest base whose copy was begun.
        begun: u64,
        /// Number of the oldest base that is kept; 0 while that is not known.
        oldest: u64,
    },
}

/// Options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address that clients are told.
    pub address: String,
    /// Number of cores that will be run. More than one makes the lock table real.
    pub cores: usize,
    /// The moment at which operations are answered.
    pub durability: Durability,
    /// Longest time until an answered operation is on stable storage.
    pub commit_interval: Duration,
    /// Silence after which a session ends.
    pub lease: Duration,
    /// The place where blocking work is done.
    pub offload: Offload,
    /// Total and free bytes of the file system's disk.
    pub space: Space,
    /// Resources that the server's process uses of its machine.
    pub process: Process,
    /// Bounds on sessions, memory, disk and waits.
    pub limits: Limits,
    /// How the server reaches the others; `None` for the only server of a file system.
    pub cluster: Option<ClusterOptions>,
    /// Backups; `None`: there are none.
    pub backup: Option<Arc<dyn Backup>>,
    /// The journal; `None`: there is none.
    pub journal: Option<Arc<dyn Journal>>,
    /// The audit log; `None`: there is none.
    pub audit: Option<Arc<dyn Audit>>,
}

impl ServerOptions {
    /// Options for tests and simulations: one core that never leaves its thread, relaxed, alone,
    /// with a disk that is never full.
    #[must_use]
    pub fn simulated(address: &str) -> ServerOptions {
        ServerOptions {
            address: address.to_owned(),
            cores: 1,
            durability: Durability::Relaxed,
            commit_interval: Duration::from_millis(20),
            lease: Duration::from_secs(60),
            offload: Offload::Inline,
            space: Arc::new(|| (1 << 40, 1 << 39)),
            process: Arc::new(wire::ProcessStatus::default),
            limits: Limits::default(),
            cluster: None,
            backup: None,
            journal: None,
            audit: None,
        }
    }

    /// Blocks that must stay although nothing names them any more.
    pub(crate) fn hold(&self) -> Hold {
        self.backup.as_ref().map_or(Hold::Nothing, |backup| backup.hold())
    }
}

/// Bounds on sessions, memory, disk and waits of a server.
#[derive(Clone)]
pub struct Limits {
    /// Free bytes of the disks that hold its data.
    pub free: FreeBytes,
    /// Bytes kept free: below, writes are refused. 0: writes are refused only by the disk.
    pub reserve: u64,
    /// Most sessions at a time; more clients wait until others end.
    pub sessions_max: usize,
    /// Most bytes that a session has in blocks stored but not named by a file; above, its puts
    /// wait.
    pub unnamed_bytes_max: u64,
    /// Most sessions opened with one token, unless it is an administrator's.
    pub sessions_a_token_max: usize,
    /// Number of entries at which a partition of a directory splits, on a file system of several
    /// servers.
    pub split_threshold: u64,
    /// Sizes from which directories that are made in a home have homes of their own, in a file
    /// system with hybrid placement.
    pub home: HomeLimits,
    /// Whether partitions are frozen before they are read for a split, all at once: to compare
    /// with, in benchmarks.
    pub split_by_locked_scan: bool,
    /// Longest time for which names that are about to move to another partition cannot be changed,
    /// besides the time of a commit. For as long before that, transactions over several servers are
    /// kept off.
    pub frozen_max: Duration,
    /// Most changes that the change feed keeps, some 60 bytes each.
    pub feed_events_max: u64,
    /// Longest wait of a directory's counts and times, or its listing, for a transaction whose
    /// outcome is open; they are told without it then. A second less the time of an answer.
    pub doubt_max: Duration,
    /// Memory of the process.
    pub memory: MemoryBudget,
}

/// The most memory of a server's process, in bytes: of all together, and of the parts that grow
/// with what is stored. The server keeps the bound of the record cache, and tells the others, which
/// its engine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// The whole process.
    pub process: u64,
    /// Records in front of the engine.
    pub record_cache: u64,
    /// Blocks that the engine caches, with indexes and filters of its tables.
    pub block_cache: u64,
    /// Memtables of the engine, all together.
    pub memtables: u64,
}

impl MemoryBudget {
    /// Memory that the parts leave for everything else.
    #[must_use]
    pub fn rest(&self) -> u64 {
        self.process.saturating_sub(self.record_cache + self.block_cache + self.memtables)
    }
}

impl Default for MemoryBudget {
    /// Little, for tests and simulations.
    fn default() -> MemoryBudget {
        MemoryBudget {
            process: 256 << 20,
            record_cache: 24 << 20,
            block_cache: 64 << 20,
            memtables: 96 << 20,
        }
    }
}

impl Limits {
    /// The way in which names that move to another partition are read.
    pub(crate) fn scan(&self) -> Scan {
        if self.split_by_locked_scan { Scan::Locked } else { Scan::Open }
    }
}

impl Default for Limits {
    /// No reserve, and more sessions than any file system has.
    fn default() -> Limits {
        Limits {
            free: Arc::new(|| u64::MAX),
            reserve: 0,
            sessions_max: 1 << 16,
            unnamed_bytes_max: 1 << 30,
            sessions_a_token_max: 1 << 14,
            split_threshold: 8000,
            home: HomeLimits::DEFAULT,
            split_by_locked_scan: false,
            frozen_max: Duration::from_millis(250),
            feed_events_max: 1_000_000,
            doubt_max: Duration::from_millis(700),
            memory: MemoryBudget::default(),
        }
    }
}
