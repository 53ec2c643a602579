//! One worker: every step, for its ranks.
//!
//! A worker is a thread with a runtime, or a process. It has one rank or several; several share its
//! connections. Each rank has `in_flight` lanes; a lane does one operation after the other and
//! takes the next one that no lane of the rank has begun.

use std::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::stream::{FuturesUnordered, StreamExt as _};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Phase, Plan, Step, Target, Work,
    clock::{monotonic, thread_cpu},
    target::{Operand, renamed},
};

/// Number of times that a rank lists its directory.
const LISTINGS: usize = 10;

/// Measurements of one worker in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Begin, by [`monotonic`].
    pub start: Duration,
    /// End, by [`monotonic`].
    pub end: Duration,
    /// CPU time of the worker's thread.
    pub cpu: Duration,
    /// Operations done.
    pub operations: u64,
    /// Duration of each call, in nanoseconds.
    pub latencies: Vec<u64>,
}

/// Does steps for some of the ranks.
pub struct Worker<'a> {
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Ranks of this worker, from 0.
    pub ranks: Vec<usize>,
    /// Where to do it.
    pub target: Target,
    /// Set when the run must end before it is done.
    pub stop: &'a AtomicBool,
}

impl Worker<'_> {
    /// Does one step; what it took, which is nothing for steps that no phase is made of.
    ///
    /// # Errors
    /// The operation that failed, or [`Error::Interrupted`]. All operations that were begun have
    /// ended.
    pub async fn step(&self, step: &Step) -> Result<Timing, Error> {
        match step.work {
            Work::MakeFolder => self.once(self.target.mkdir(&self.plan.folder)).await?,
            Work::RemoveFolder => self.once(self.target.rmdir(&self.plan.folder)).await?,
            Work::Clear => self.once(self.target.clear(&self.plan.folder)).await?,
            Work::MakeDirectories => {
                for rank in self.with_directories() {
                    for directory in self.plan.directories(rank) {
                        self.target.mkdir(&directory).await?;
                    }
                }
            }
            Work::RemoveDirectories => {
                for rank in self.with_directories() {
                    for directory in self.plan.directories(rank).iter().rev() {
                        self.target.rmdir(directory).await?;
                    }
                }
            }
            Work::Phase(phase) => return self.time(phase, step.files).await,
        }
        Ok(Timing::default())
    }

    /// Does work that only one of all workers does.
    async fn once(&self, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        if self.ranks.contains(&0) { work.await } else { Ok(()) }
    }

    /// The ranks that have directories to make.
    fn with_directories(&self) -> impl Iterator<Item = usize> {
        self.ranks.iter().copied().filter(|rank| *rank == 0 || !self.plan.shared)
    }

    async fn time(&self, phase: Phase, files: usize) -> Result<Timing, Error> {
        let ranks: Vec<_> =
            self.ranks.iter().map(|rank| Lanes::new(self.operands(phase, *rank, files))).collect();
        let mut lanes = FuturesUnordered::new();
        for work in &ranks {
            for _ in 0..self.plan.in_flight {
                lanes.push(Box::pin(work.lane(self, phase)));
            }
        }
        let (start, cpu) = (monotonic(), thread_cpu());
        let mut result = Ok(());
        while let Some(ended) = lanes.next().await {
            result = result.and(ended);
            if result.is_err() {
                ranks.iter().for_each(Lanes::end);
            }
        }
        let (cpu, end) = (thread_cpu().saturating_sub(cpu), monotonic());
        drop(lanes);
        result?;
        let mut timing = Timing { start, end, cpu, ..Timing::default() };
        for rank in ranks {
            timing.operations += rank.operations.get();
            timing.latencies.append(&mut rank.latencies.into_inner());
        }
        Ok(timing)
    }

    /// Returns the operands of `rank` in a phase.
    fn operands(&self, phase: Phase, rank: usize, files: usize) -> Vec<Operand> {
        let of_other = matches!(phase, Phase::DirStat | Phase::FileStat | Phase::FileOpen);
        let all = |rank: usize| -> Vec<String> {
            let directory = self.plan.directory(rank);
            let kind = phase.kind();
            (0..files).map(|file| format!("{directory}/{kind}.{rank}.{file}")).collect()
        };
        let paths = match phase {
            Phase::DirCreate
            | Phase::DirRename
            | Phase::DirRemove
            | Phase::FileCreate
            | Phase::FileRename
            | Phase::FileRemove => all(rank),
            Phase::DirStat | Phase::FileStat | Phase::FileOpen => all((rank + 1) % self.plan.ranks),
            Phase::Readdir => vec![self.plan.directory(rank); LISTINGS],
        };
        let was_renamed = phase != Phase::Readdir && self.plan.renamed_before(phase);
        let operand = |(at, path): (usize, String)| {
            let path = if was_renamed { renamed(&path) } else { path };
            // A client that has made something may know it: with several, another one looks at it.
            self.target.operand(at + usize::from(of_other), &path)
        };
        paths.into_iter().enumerate().map(operand).collect()
    }
}

/// The work of one rank in one phase.
struct Lanes {
    operands: Vec<Operand>,
    next: Cell<usize>,
    operations: Cell<u64>,
    latencies: RefCell<Vec<u64>>,
}

impl Lanes {
    fn new(operands: Vec<Operand>) -> Lanes {
        let latencies = RefCell::new(Vec::with_capacity(operands.len()));
        Lanes { operands, next: Cell::new(0), operations: Cell::new(0), latencies }
    }

    /// Makes sure that no further operation begins.
    fn end(&self) {
        self.next.set(self.operands.len());
    }

    async fn lane(&self, worker: &Worker<'_>, phase: Phase) -> Result<(), Error> {
        while let Some(operand) = self.operands.get(self.next.get()) {
            if worker.stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            self.next.set(self.next.get() + 1);
            let start = monotonic();
            let done = worker.target.run(phase, operand).await?;
            let latency = monotonic().saturating_sub(start).as_nanos();
            self.operations.set(self.operations.get() + done);
            self.latencies.borrow_mut().push(u64::try_from(latency).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}
