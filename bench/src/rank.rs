//! One rank: its part of every phase, in step with the others.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::{sync::Barrier, time::Instant};

use crate::{Error, Phase, Plan, Target, target::renamed};

/// How often a rank lists its directory.
const LISTINGS: usize = 10;

/// Where ranks wait for each other.
pub struct Meeting {
    barrier: Barrier,
    failed: AtomicBool,
}

impl Meeting {
    /// A place for so many ranks.
    #[must_use]
    pub fn new(ranks: usize) -> Meeting {
        Meeting { barrier: Barrier::new(ranks), failed: AtomicBool::new(false) }
    }

    async fn all_arrive(&self) {
        self.barrier.wait().await;
    }
}

/// What one rank measured of one phase in one iteration.
#[derive(Debug, Clone)]
pub struct Timing {
    /// The phase.
    pub phase: Phase,
    /// When it began.
    pub start: Instant,
    /// When it had ended.
    pub end: Instant,
    /// Operations done.
    pub operations: u64,
    /// How long each call took.
    pub latencies: Vec<Duration>,
}

/// One rank of a run.
pub struct Rank<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Which rank this is, from 0.
    pub number: usize,
    /// The same for all ranks.
    pub meeting: &'a Meeting,
    /// Where to do it.
    pub target: Target,
}

impl Rank<'_> {
    /// Runs all iterations; what each phase took, in the order of [`Phase::ALL`] within an iteration.
    ///
    /// Every rank of the plan must be run at the same time, or none returns.
    ///
    /// # Errors
    /// The operation that failed here, or [`Error::Other`] when one failed elsewhere.
    pub async fn run(&self) -> Result<Vec<Vec<Timing>>, Error> {
        let mut iterations = Vec::new();
        let mut result = self.in_step(self.make_root()).await.map(|_| ());
        for _ in 0..self.plan.iterations {
            let mut timings = Vec::new();
            let made = self.in_step(self.make_directory()).await;
            result = result.and(made.map(|_| ()));
            for phase in Phase::needed(&self.plan.phases) {
                match self.in_step(self.time(phase)).await {
                    Ok(timing) if self.plan.phases.contains(&phase) => timings.push(timing),
                    Ok(_) => {}
                    Err(error) => result = result.and(Err(error)),
                }
            }
            let removed = self.in_step(self.remove_directory()).await;
            result = result.and(removed.map(|_| ()));
            iterations.push(timings);
        }
        let removed = self.in_step(self.remove_root()).await;
        result.and(removed.map(|_| ())).map(|()| iterations)
    }

    /// Waits for all ranks, works, and waits for all again; so all ranks meet equally often, failed or not.
    async fn in_step<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.meeting.all_arrive().await;
        let failed = self.meeting.failed.load(Ordering::Relaxed);
        let result = if failed { Err(Error::Other) } else { work.await };
        if result.is_err() {
            self.meeting.failed.store(true, Ordering::Relaxed);
        }
        self.meeting.all_arrive().await;
        result
    }

    async fn make_root(&self) -> Result<(), Error> {
        if self.number == 0 { self.target.mkdir(&self.plan.folder).await } else { Ok(()) }
    }

    async fn remove_root(&self) -> Result<(), Error> {
        if self.number == 0 { self.target.rmdir(&self.plan.folder).await } else { Ok(()) }
    }

    fn has_directory(&self) -> bool {
        self.number == 0 || !self.plan.shared
    }

    async fn make_directory(&self) -> Result<(), Error> {
        if !self.has_directory() {
            return Ok(());
        }
        self.target.mkdir(&self.plan.directory(self.number)).await
    }

    async fn remove_directory(&self) -> Result<(), Error> {
        if !self.has_directory() {
            return Ok(());
        }
        self.target.rmdir(&self.plan.directory(self.number)).await
    }

    async fn time(&self, phase: Phase) -> Result<Timing, Error> {
        let paths = self.paths(phase);
        let mut operations = 0;
        let mut latencies = Vec::with_capacity(paths.len());
        let start = Instant::now();
        let mut calls = stream::iter(paths.iter().map(|path| async move {
            let start = Instant::now();
            let done = self.target.run(phase, path).await?;
            Ok::<_, Error>((done, start.elapsed()))
        }))
        .buffer_unordered(self.plan.in_flight);
        while let Some((done, latency)) = calls.try_next().await? {
            operations += done;
            latencies.push(latency);
        }
        Ok(Timing { phase, start, end: Instant::now(), operations, latencies })
    }

    /// What this rank works on in a phase.
    fn paths(&self, phase: Phase) -> Vec<String> {
        // What another rank made is in no cache of this one.
        let other = (self.number + 1) % self.plan.ranks;
        let was_renamed = self.plan.phases.contains(&Phase::FileRename);
        let all = |rank: usize, kind: &str| -> Vec<String> {
            let directory = self.plan.directory(rank);
            (0..self.plan.files).map(|file| format!("{directory}/{kind}.{rank}.{file}")).collect()
        };
        match phase {
            Phase::DirCreate | Phase::DirRemove => all(self.number, "dir"),
            Phase::DirStat => all(other, "dir"),
            Phase::FileCreate | Phase::FileRename => all(self.number, "file"),
            Phase::FileStat | Phase::FileOpen => all(other, "file"),
            Phase::Readdir => vec![self.plan.directory(self.number); LISTINGS],
            Phase::FileRemove if was_renamed => {
                all(self.number, "file").iter().map(|path| renamed(path)).collect()
            }
            Phase::FileRemove => all(self.number, "file"),
        }
    }
}
