//! A whole run: every phase of every iteration, and the end.

use std::time::Duration;

use crate::{Error, Phase, Plan, Step, Timing, Work};

/// All workers of a run.
#[expect(async_fn_in_trait, reason = "what implements it stays on one thread")]
pub trait Crew {
    /// Has every worker do a step, all at the same time; returns when all have ended it.
    ///
    /// # Errors
    /// What failed at one of them.
    async fn step(&mut self, step: Step) -> Result<Vec<Timing>, Error>;
}

/// Resources that the file system under test has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of the server; `None` when it is not known.
    pub server_cpu: Option<Duration>,
    /// Requests that the server has served, without those of the meter; `None` when it is not
    /// known.
    pub requests: Option<u64>,
    /// CPU time of the client beside that of the workers, such as a mount's process.
    pub client_cpu: Option<Duration>,
}

/// Reads what the file system under test has used.
#[expect(async_fn_in_trait, reason = "what implements it stays on one thread")]
pub trait Meter {
    /// Reads the resources used so far.
    async fn read(&mut self) -> Usage;
}

/// Measurements of one phase in one iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The phase.
    pub phase: Phase,
    /// Operations of all ranks.
    pub operations: u64,
    /// From the first begin to the last end.
    pub elapsed: Duration,
    /// Duration of each call, in nanoseconds, sorted.
    pub latencies: Vec<u64>,
    /// CPU time of the workers, and of the client's other processes where it is known.
    pub client_cpu: Duration,
    /// CPU time of the server, where it is known.
    pub server_cpu: Option<Duration>,
    /// Requests that the server served meanwhile, where it is known.
    pub requests: Option<u64>,
}

/// Runs a plan; what was measured, phase by phase and iteration by iteration.
///
/// # Errors
/// What failed first. What the run had made is removed then, unless that fails too.
pub async fn run(
    plan: &Plan,
    crew: &mut impl Crew,
    meter: &mut impl Meter,
) -> Result<Vec<Measured>, Error> {
    // Files that exist already are not ours, and stay.
    crew.step(Step { work: Work::MakeFolder, files: 0 }).await?;
    let done = iterations(plan, crew, meter).await;
    if done.is_err() {
        // The first error is the one to tell.
        let _ = crew.step(Step { work: Work::Clear, files: 0 }).await;
    }
    done
}

async fn iterations(
    plan: &Plan,
    crew: &mut impl Crew,
    meter: &mut impl Meter,
) -> Result<Vec<Measured>, Error> {
    phases(plan, plan.warm_up_files(), crew, meter).await?;
    let mut all = Vec::new();
    for _ in 0..plan.iterations {
        all.extend(phases(plan, plan.files, crew, meter).await?);
    }
    crew.step(Step { work: Work::RemoveFolder, files: 0 }).await?;
    all.retain(|measured| plan.phases.contains(&measured.phase));
    Ok(all)
}

/// Runs all phases once.
async fn phases(
    plan: &Plan,
    files: usize,
    crew: &mut impl Crew,
    meter: &mut impl Meter,
) -> Result<Vec<Measured>, Error> {
    let mut all = Vec::new();
    crew.step(Step { work: Work::MakeDirectories, files }).await?;
    for phase in Phase::needed(&plan.phases) {
        let before = meter.read().await;
        let timings = crew.step(Step { work: Work::Phase(phase), files }).await?;
        let after = meter.read().await;
        all.push(measured(phase, timings, &before, &after));
    }
    crew.step(Step { work: Work::RemoveDirectories, files }).await?;
    Ok(all)
}

fn measured(phase: Phase, timings: Vec<Timing>, before: &Usage, after: &Usage) -> Measured {
    let start = timings.iter().map(|timing| timing.start).min().unwrap_or_default();
    let end = timings.iter().map(|timing| timing.end).max().unwrap_or_default();
    let workers: Duration = timings.iter().map(|timing| timing.cpu).sum();
    let operations = timings.iter().map(|timing| timing.operations).sum();
    let mut latencies: Vec<_> = timings.into_iter().flat_map(|timing| timing.latencies).collect();
    latencies.sort_unstable();
    let used =
        |before: Option<Duration>, after: Option<Duration>| Some(after?.saturating_sub(before?));
    Measured {
        phase,
        operations,
        elapsed: end.saturating_sub(start),
        latencies,
        client_cpu: workers + used(before.client_cpu, after.client_cpu).unwrap_or_default(),
        server_cpu: used(before.server_cpu, after.server_cpu),
        requests: before.requests.zip(after.requests).map(|(b, a)| a.saturating_sub(b)),
    }
}
