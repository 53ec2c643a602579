//! Counters of the server, and measured durations.
//!
//! Each core counts for itself ([`CoreCounts`]): one writer, relaxed loads and stores, no locked
//! instruction. The clock is read once when requests arrive, once after each is executed, and once
//! after the group is written; a request's stages are the differences. Everything is recorded when
//! the answer leaves. Readers (`ops::observe`, the status page) add the cores up.
//!
//! Never: this module decides nothing, and no operation waits for it.
//! Always true: the stages of an operation add up to its latency.

mod core;
mod count;
mod kind;
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
    kind::name_of,
    parked::Parked,
    phases::{Laps, Part},
    slow::Slow,
    snapshot::{busy, load, named},
};

/// Bound on the tags of requests in the protocol, which tell the kinds apart.
pub(crate) const KINDS: usize = 128;

/// Operations that take at least this many microseconds are kept, unless an administrator sets
/// another bound.
const SLOW_US: u64 = 100_000;

/// Nanoseconds since the server started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    /// Nanoseconds after `earlier`; 0 when `self` is not later.
    pub(crate) fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Verdict {
    /// The request was done.
    #[default]
    Done,
    /// The request failed with the file system's own answer, an errno.
    Failed(FsError),
    /// The request must be asked again.
    Retry,
    /// The server has stopped serving.
    Halted,
    /// The request is not allowed.
    Refused,
    /// The request was done before, and got its stored answer.
    Repeated,
}

impl Verdict {
    /// Names of the verdicts that are no errno, by index.
    pub(crate) const NAMES: [&str; 5] = ["done", "retry", "halted", "refused", "repeated"];

    /// The verdict of an answer.
    pub(crate) fn of(answer: &Answer) -> Verdict {
        match answer {
            Answer::Done(_) | Answer::Noted(_) => Verdict::Done,
            Answer::Failed(error) => Verdict::Failed(*error),
            Answer::Retry(_) => Verdict::Retry,
            Answer::Halted => Verdict::Halted,
            Answer::Refused(_) => Verdict::Refused,
        }
    }

    /// Name of the verdict: one of [`Verdict::NAMES`], or an errno's name.
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

/// How the time of an operation was spent, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stages {
    /// Waiting for other requests: those before it, and those of its group after it.
    pub(crate) queue: u64,
    /// Execution, waits for locks of other cores included.
    pub(crate) execute: u64,
    /// Writing its group to the engine.
    pub(crate) write: u64,
    /// Waiting for stable storage.
    pub(crate) sync: u64,
    /// Waiting for something else beside the groups: blocks, a lock.
    pub(crate) wait: u64,
}

impl Stages {
    /// Names in the order of [`Stages::values`].
    pub(crate) const NAMES: [&str; 5] = ["queue", "execute", "write", "sync", "wait"];

    pub(crate) fn values(&self) -> [u64; 5] {
        [self.queue, self.execute, self.write, self.sync, self.wait]
    }

    pub(crate) fn total(&self) -> u64 {
        self.values().iter().sum()
    }
}

/// The directory that an operation is about: its id and its home.
pub(crate) type Subject = (DirId, DirId);

/// A request that was executed, until its answer leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note {
    pub(crate) kind: u8,
    pub(crate) verdict: Verdict,
    pub(crate) session: SessionId,
    /// The client's number for the request, on its connection.
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
    /// Time for which the moving names of each handoff were frozen.
    pub(crate) frozen: Histogram,
    pub(crate) slow: Slow,
    /// Operations that take at least this many nanoseconds are kept.
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

    /// The counts of one core. A core beyond the announced number shares the last one's.
    pub(crate) fn core(&self, index: usize) -> &CoreCounts {
        &self.cores[index.min(self.cores.len() - 1)]
    }

    /// Nanoseconds for which the busiest core has been executing the requests that it took up at
    /// once.
    pub(crate) fn busiest(&self) -> u64 {
        let since = self.cores.iter().map(|core| core.busy_since.get()).filter(|at| *at > 0).min();
        since.map_or(0, |since| self.now().since(Nanos(since)))
    }

    /// Bound in microseconds: operations that take at least as long are kept.
    pub(crate) fn slower_than_us(&self) -> u64 {
        self.slow_nanos() / 1000
    }

    fn slow_nanos(&self) -> u64 {
        self.slow_nanos.load(Ordering::Relaxed)
    }

    /// Sets the bound in microseconds from which on operations are kept.
    pub(crate) fn keep_slower_than(&self, us: u64) {
        self.slow_nanos.store(us.saturating_mul(1000), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
