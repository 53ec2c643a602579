//! What the server counts, and how long things take.
//!
//! Each core counts for itself ([`CoreCounts`]): one writer, relaxed loads and stores, no locked instruction. The
//! clock is read once when requests arrive, once after each is executed, and once after the group is written; a
//! request's stages are the differences. Everything is recorded when the answer leaves. Readers
//! (`ops::observe`, the status page) add the cores up.
//!
//! Never: it decides nothing, and no operation waits for it.
//! Always true: the stages of an operation add up to its latency.

mod core;
mod count;
mod parked;
mod phases;
mod sketch;
mod slow;
mod snapshot;
mod trace;

use std::sync::atomic::{AtomicU64, Ordering};

use base::{DirId, FsError, SessionId};
use tokio::time::Instant;
use wire::Answer;

pub(crate) use self::{
    core::{CoreCounts, Waiting, Written},
    count::{Count, Histogram},
    parked::Parked,
    phases::{Laps, Part},
    slow::Slow,
    snapshot::{busy, load, name_of, named},
};

/// Kinds of requests are told apart by their tag in the protocol; all are below this.
pub(crate) const KINDS: usize = 128;

/// Operations that take so long are kept, unless an administrator says otherwise: microseconds.
const SLOW_US: u64 = 100_000;

/// Nanoseconds since the server started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    /// How long after `earlier`; 0 when it is not.
    pub(crate) fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Verdict {
    /// It was done.
    #[default]
    Done,
    /// The file system's own answer, an errno.
    Failed(FsError),
    /// It must be asked again.
    Retry,
    /// The server has stopped serving.
    Halted,
    /// The request is not allowed.
    Refused,
    /// It was done before, and got its stored answer.
    Repeated,
}

impl Verdict {
    /// Those that are no errno, by index.
    pub(crate) const NAMES: [&str; 5] = ["done", "retry", "halted", "refused", "repeated"];

    /// What an answer says.
    pub(crate) fn of(answer: &Answer) -> Verdict {
        match answer {
            Answer::Done(_) => Verdict::Done,
            Answer::Failed(error) => Verdict::Failed(*error),
            Answer::Retry(_) => Verdict::Retry,
            Answer::Halted => Verdict::Halted,
            Answer::Refused(_) => Verdict::Refused,
        }
    }

    /// What it is called: one of [`Verdict::NAMES`], or an errno's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Failed(error) => error.name(),
            Verdict::Done => Verdict::NAMES[0],
            Verdict::Retry => Verdict::NAMES[1],
            Verdict::Halted => Verdict::NAMES[2],
            Verdict::Refused => Verdict::NAMES[3],
            Verdict::Repeated => Verdict::NAMES[4],
        }
    }
}

/// Where the time of an operation went, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stages {
    /// It waited for others: those before it, and those of its group after it.
    pub(crate) queue: u64,
    /// It was executed, waits for locks of other cores included.
    pub(crate) execute: u64,
    /// Its group was written to the engine.
    pub(crate) write: u64,
    /// It waited for stable storage.
    pub(crate) sync: u64,
    /// It waited for something else beside the groups: blocks, a lock.
    pub(crate) wait: u64,
}

impl Stages {
    /// In the order of [`Stages::values`].
    pub(crate) const NAMES: [&str; 5] = ["queue", "execute", "write", "sync", "wait"];

    pub(crate) fn values(&self) -> [u64; 5] {
        [self.queue, self.execute, self.write, self.sync, self.wait]
    }

    pub(crate) fn total(&self) -> u64 {
        self.values().iter().sum()
    }
}

/// What an operation is about: a directory, by its id and its home.
pub(crate) type Subject = (DirId, DirId);

/// A request that was executed, until its answer leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note {
    pub(crate) kind: u8,
    pub(crate) verdict: Verdict,
    pub(crate) session: SessionId,
    /// The client's number for it, on its connection.
    pub(crate) call: u64,
    pub(crate) subject: Option<Subject>,
    pub(crate) arrived: Nanos,
    pub(crate) begun: Nanos,
    pub(crate) ended: Nanos,
}

/// Counts of the whole server.
pub(crate) struct Observed {
    started: Instant,
    cores: Vec<CoreCounts>,
    /// Durations of the engine's syncs.
    pub(crate) syncs: Histogram,
    /// For how long the moving names of each handoff were frozen.
    pub(crate) frozen: Histogram,
    pub(crate) slow: Slow,
    /// Operations that take so many nanoseconds are kept.
    slow_nanos: AtomicU64,
}

impl Observed {
    pub(crate) fn new(started: Instant, cores: usize) -> Observed {
        Observed {
            started,
            cores: (0..cores.max(1)).map(CoreCounts::new).collect(),
            syncs: Histogram::default(),
            frozen: Histogram::default(),
            slow: Slow::default(),
            slow_nanos: AtomicU64::new(SLOW_US * 1000),
        }
    }

    /// The clock of all counts.
    pub(crate) fn now(&self) -> Nanos {
        let passed = Instant::now().saturating_duration_since(self.started);
        Nanos(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The counts of one core. A core beyond those that were announced shares the last one's.
    pub(crate) fn core(&self, index: usize) -> &CoreCounts {
        &self.cores[index.min(self.cores.len() - 1)]
    }

    /// For how long the busiest core has been busy with what it found at once, in nanoseconds.
    pub(crate) fn busiest(&self) -> u64 {
        let since = self.cores.iter().map(|core| core.busy_since.get()).filter(|at| *at > 0).min();
        since.map_or(0, |since| self.now().since(Nanos(since)))
    }

    /// Operations that take so many microseconds are kept.
    pub(crate) fn slower_than_us(&self) -> u64 {
        self.slow_nanos() / 1000
    }

    fn slow_nanos(&self) -> u64 {
        self.slow_nanos.load(Ordering::Relaxed)
    }

    /// Keeps operations that take so many microseconds from now on.
    pub(crate) fn keep_slower_than(&self, us: u64) {
        self.slow_nanos.store(us.saturating_mul(1000), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
