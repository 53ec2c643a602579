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
mod note;
mod parked;
mod phases;
mod sketch;
mod slow;
mod snapshot;
mod trace;

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

pub(crate) use self::{
    core::{CoreCounts, Waiting, Written},
    count::{Count, Histogram},
    kind::name_of,
    note::{KINDS, Nanos, Note, Stages, Subject, Verdict},
    parked::Parked,
    phases::{Laps, Part},
    slow::Slow,
    snapshot::{busy, load, named},
};

/// Operations that take at least this many microseconds are kept, unless an administrator sets
/// another bound.
const SLOW_US: u64 = 100_000;

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
