//! A whole file system in one process: servers, clients, their network, their clock and their
//! disks, all from one seed.
//!
//! Tests and `lab sim` call it. [`run`] draws a [`plan::Plan`] from the seed, starts servers and
//! workloads, injects faults (`faults`) until the workloads are done, and then checks what
//! docs/DESIGN.md promises in "Always true" (`check`). Nothing in it waits for real time, opens a
//! socket or touches a file.
//!
//! * `network`, `pipe`: connections that delay, fragment, break, and deliver late.
//! * `disk`, `server`: processes that die at any moment, and the state that survives them.
//! * `ship`, `machines`: journals, and machines that are lost and replaced.
//! * `world`: the clients and servers that a workload is given. `work`: the workloads.
//! * `play`: worlds of tests that inject their faults themselves. `planted`: the bugs that worlds
//!   must find.
//! * `trace`: the record of all events. One seed has one history, and the same hash every time.

mod body;
pub mod clock;
pub mod disk;
pub mod dumped;
pub mod faults;
pub mod jail;
mod machines;
pub mod network;
mod pipe;
pub mod plan;
pub mod planted;
pub mod play;
pub mod random;
pub mod server;
mod ship;
pub mod show;
pub mod trace;
pub mod work;
pub mod world;

use std::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::Context as _;
use meta::Bug;
use parking_lot::Mutex;
use tokio::{
    runtime::Builder,
    task::{LocalSet, spawn_local},
    time::timeout,
};

use self::{
    plan::{About, Plan, Quotas},
    trace::Trace,
    world::{Counts, World},
};
use crate::check;

/// Time limit of each phase, in the time of its world. A workload that takes longer hangs.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// How to run a world.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The bug planted in the servers.
    pub bug: Option<Bug>,
    /// Whether to print every event.
    pub print: bool,
    /// Inject no faults: a failure that stays has another cause.
    pub calm: bool,
    /// Number of servers. If `None`, the seed decides.
    pub servers: Option<u16>,
    /// The subject of the workloads.
    pub about: About,
    /// Servers may have several cores, and be away for longer than a lease. See [`Plan::wide`].
    pub wide: bool,
    /// The disks of servers are nearly full now and then. See [`Plan::full`].
    pub full: bool,
}

/// The report of a world without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Counts of the events.
    pub counts: Counts,
    /// The hash of all events.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Duration in milliseconds, in the world's own time.
    pub ms: u64,
}

/// The report of a world that broke a promise.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Number of servers.
    pub servers: u16,
    /// The subject of the workloads.
    pub about: About,
    /// Whether the plan was made [`Plan::wide`].
    pub wide: bool,
    /// Whether the plan was made [`Plan::full`].
    pub full: bool,
    /// All problems, as text.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, servers, about, wide, full, what } = self;
        let about = about.option();
        let wide = if *wide { " --wide" } else { "" };
        let full = if *full { " --full" } else { "" };
        let replay = format!(
            "cargo run -p lab -- sim --servers {servers}{about}{wide}{full} --seed {seed} --trace"
        );
        write!(f, "seed {seed}: {what}\nreplay: {replay}")
    }
}

impl std::error::Error for Failure {}

/// Runs the world of a seed.
///
/// # Errors
/// When a promise was broken.
pub fn run(seed: u64, options: Options) -> Result<Report, Failure> {
    let servers = options.servers.unwrap_or_else(|| Plan::servers_of(seed));
    let plan = Plan::draw_about(options.about, seed, servers);
    let plan = if options.wide { plan.wide() } else { plan };
    run_plan(if options.full { plan.full() } else { plan }, options)
}

/// Runs the worlds of many seeds, on two threads. Returns the sums of their counts, and the
/// failures.
#[must_use]
pub fn run_many(seeds: Range<u64>, options: Options) -> (Counts, Vec<Failure>) {
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new((Counts::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let ended = run(seed, options);
            let mut sum = sum.lock();
            match ended {
                Ok(report) => sum.0.add(&report.counts),
                Err(failure) => sum.1.push(failure),
            }
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(work);
        work();
    });
    sum.into_inner()
}

/// Runs a world by its plan.
///
/// # Errors
/// As for [`run`].
pub fn run_plan(plan: Plan, options: Options) -> Result<Report, Failure> {
    let (seed, servers, about) = (plan.seed, plan.servers, plan.about);
    let trace = Trace::new(options.print);
    let (ended, mut problems) = trace::hear(&trace, || in_a_runtime(plan, options, &trace));
    let ended = ended.unwrap_or_else(|| Err(anyhow::anyhow!("the world itself panicked")));
    let (counts, ms) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            problems.insert(0, format!("{error:#}"));
            (Counts::default(), 0)
        }
    };
    if !problems.is_empty() {
        return Err(Failure {
            seed,
            servers,
            about,
            wide: options.wide,
            full: options.full,
            what: problems.join("\n  and "),
        });
    }
    let (hash, events) = trace.hash();
    Ok(Report { counts, hash, events, ms })
}

fn in_a_runtime(plan: Plan, options: Options, trace: &Trace) -> anyhow::Result<(Counts, u64)> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let local = LocalSet::new();
    let ended = runtime.block_on(local.run_until(live(plan, options, trace)));
    drop(local);
    drop(runtime);
    ended
}

/// Runs a world from its first server to its final check.
async fn live(plan: Plan, options: Options, trace: &Trace) -> anyhow::Result<(Counts, u64)> {
    trace.say(format_args!("{plan:?}"));
    client::bugs::plant(match options.bug {
        Some(Bug::LateLookupTaken) => Some(client::bugs::Bug::LateLookupTaken),
        Some(Bug::OpenNotTold) => Some(client::bugs::Bug::OpenNotTold),
        Some(Bug::PresenceIgnored) => Some(client::bugs::Bug::PresenceIgnored),
        Some(_) | None => None,
    });
    let world = World::new(plan, options.bug, trace)?;
    timeout(TIME_MAX, world.form()).await.context("the cluster does not form")??;
    if world.plan().trash {
        timeout(TIME_MAX, check::trash::keep(&world, "1")).await.context("the trash hangs")??;
    }
    if world.plan().quotas == Quotas::Before {
        timeout(TIME_MAX, check::quota::run(world.clone())).await.context("a quota hangs")??;
    }
    let works =
        timeout(TIME_MAX, Box::pin(work::set_up(&world))).await.context("set up hangs")??;
    for host in world.hosts() {
        host.settle()?;
    }
    let standing_by = world.clone();
    let standing_by = spawn_local(async move {
        if let Err(error) = standing_by.stand_by().await {
            standing_by.trace().problem(format!("standing by: {error:#}"));
        }
    });
    let faults = spawn_local(faults::run(world.clone()));
    let counts = match world.plan().quotas {
        Quotas::None | Quotas::Before => None,
        Quotas::Meanwhile | Quotas::Again => Some(spawn_local(check::quota::run(world.clone()))),
    };
    if options.calm {
        faults.abort();
    }
    let running = works.into_iter().map(|work| {
        let trace = trace.clone();
        async move {
            let (name, work) = (work.name, work.run);
            let ended = work.await.with_context(|| name.to_owned());
            if let Err(error) = &ended {
                trace.say(format_args!("failed: {error:#}"));
            }
            ended
        }
    });
    let running: Vec<_> = running.map(spawn_local).collect();
    let mut ended = Vec::new();
    let all = async {
        for work in running {
            ended.push(work.await.context("a workload panicked")?);
        }
        if let Some(counts) = counts {
            ended.push(counts.await.context("it panicked")?.context("quotas"));
        }
        anyhow::Ok(())
    };
    let in_time = timeout(TIME_MAX, all).await;
    faults.abort();
    if faults.is_finished() && !options.calm {
        faults.await.context("faults")??;
    }
    world.recover().await?;
    standing_by.abort();
    in_time.context("a workload hangs")??;
    ended.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    timeout(TIME_MAX, check::run(&world)).await.context("a check hangs")??;
    Ok((world.counts(), trace.ms()))
}
