//! How a server is to serve: what its process tells it when it is opened.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{cluster::ClusterOptions, handoff::source::Scan, room::FreeBytes};

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When it is visible and survives a crash of the server; it is on stable storage after `fsync`, `sync`
    /// or the commit interval.
    Relaxed,
    /// When it is on stable storage.
    Strict,
}

/// Where work that blocks is done.
#[derive(Clone)]
pub enum Offload {
    /// On threads of the runtime, so that a core never waits for a disk.
    Threads,
    /// Where it is called: in a simulation nothing blocks.
    Inline,
    /// As [`Offload::Inline`], so long after it was begun, and so long before it has ended.
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
                // Others go on meanwhile, as they do beside a thread.
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
                    // The runtime is shutting down: whoever waits is dropped with it.
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }
}

/// Total and free bytes of the place where blocks and metadata are.
pub type Space = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// What the server's process uses of its machine.
pub type Process = Arc<dyn Fn() -> wire::ProcessStatus + Send + Sync>;

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address that clients are told.
    pub address: String,
    /// How many cores will be run. More than one makes the lock table real.
    pub cores: usize,
    /// When operations are answered.
    pub durability: Durability,
    /// Answered operations are on stable storage after so long at most.
    pub commit_interval: Duration,
    /// A session ends when nothing was heard of it for so long.
    pub lease: Duration,
    /// Where blocking work is done.
    pub offload: Offload,
    /// Space of the file system.
    pub space: Space,
    /// What the server's process uses of its machine.
    pub process: Process,
    /// How much the server lets itself be given.
    pub limits: Limits,
    /// How it reaches the others, where the file system has several servers.
    pub cluster: Option<ClusterOptions>,
}

impl ServerOptions {
    /// For tests and simulations: one core that never leaves its thread, relaxed, alone, with a disk that is never full.
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
        }
    }
}

/// How much a server lets itself be given.
#[derive(Clone)]
pub struct Limits {
    /// Free bytes of the disks that its data is on.
    pub free: FreeBytes,
    /// So many of them are kept free: below it writes are refused. 0: nothing is, until the disk refuses.
    pub reserve: u64,
    /// More sessions than this are not opened; clients wait until others end.
    pub sessions_max: usize,
    /// A session has no more bytes than this in blocks that it has stored and not named; above it, it waits.
    pub unnamed_bytes_max: u64,
    /// More sessions than this are not opened with one token, but for administrators'.
    pub sessions_a_token_max: usize,
    /// A partition of a directory with so many entries splits, on a file system of several servers.
    pub split_threshold: u64,
    /// Partitions that split are frozen first, and all of one is read then: to compare with, in benchmarks.
    pub split_by_locked_scan: bool,
    /// Names that are about to move to another partition cannot be changed for so long at most, besides the time that
    /// a commit takes; and for so long before that transactions over several servers are kept off.
    pub frozen_max: Duration,
    /// Counts and times of a directory, and its listing, wait so long for a transaction whose outcome is open, and are
    /// told without it then. A second less what an answer takes.
    pub doubt_max: Duration,
}

impl Limits {
    /// When what is stored is copied to another partition.
    pub(crate) fn scan(&self) -> Scan {
        if self.split_by_locked_scan { Scan::Locked } else { Scan::Open }
    }
}

impl Default for Limits {
    /// No reserve, and more sessions than anybody has.
    fn default() -> Limits {
        Limits {
            free: Arc::new(|| u64::MAX),
            reserve: 0,
            sessions_max: 1 << 16,
            unnamed_bytes_max: 1 << 30,
            sessions_a_token_max: 1 << 14,
            split_threshold: 8000,
            split_by_locked_scan: false,
            frozen_max: Duration::from_millis(250),
            doubt_max: Duration::from_millis(700),
        }
    }
}
