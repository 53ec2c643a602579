//! `pando bench`: time operations.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use bench::{Meeting, Phase, Plan, Rank, Summary, Target, Timing};
use clap::Subcommand;
use serde::Serialize;

use crate::{
    connect::{self, Place, TokenArgs},
    failure::usage,
    output,
};

/// Time operations of a file system.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Md(Md),
}

/// Time metadata operations, phase by phase as mdtest does.
///
/// Each rank is a thread with its own client. All ranks begin a phase together. What is stat-ed and opened was
/// made by another rank. Everything is done in a new folder, which is removed at the end.
#[derive(Debug, clap::Args)]
struct Md {
    /// A server (HOST:PORT), by the native client, or a directory, by system calls.
    target: String,
    #[command(flatten)]
    token: TokenArgs,
    /// How many ranks.
    #[arg(long, default_value = "4", value_name = "N")]
    ranks: NonZeroUsize,
    /// Files and directories of each rank.
    #[arg(long, default_value = "2000", value_name = "N")]
    files: NonZeroUsize,
    /// Let all ranks work in one directory, rather than one each.
    #[arg(long)]
    shared: bool,
    /// Which phases to report: dir_create, dir_stat, dir_remove, file_create, file_stat, file_open, file_rename,
    /// readdir (counts entries; its latency is that of a whole listing), file_remove [default: all].
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = phase)]
    phases: Vec<Phase>,
    /// Operations that each rank has under way at a time; system calls are made one by one.
    #[arg(long, default_value = "1", value_name = "N")]
    in_flight: NonZeroUsize,
    /// How often to run all phases; the median is reported.
    #[arg(long, default_value = "1", value_name = "N")]
    iterations: NonZeroUsize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn phase(text: &str) -> Result<Phase, String> {
    let named = Phase::ALL.into_iter().find(|phase| phase.name() == text);
    named.ok_or_else(|| format!("no phase is called {text}"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Md(md) => md.run(),
    }
}

/// Where each rank goes.
enum Goal {
    Servers { servers: Vec<String>, token: String },
    Directory(PathBuf),
}

impl Md {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let goal = match connect::place(&self.target)? {
            Place::Servers(servers) => Goal::Servers { servers, token: self.token.read()? },
            Place::Directory(_) if self.in_flight.get() > 1 => {
                return Err(usage(
                    "--in-flight is for servers; with a directory, take more --ranks",
                ));
            }
            Place::Directory(directory) => Goal::Directory(directory),
        };
        let summaries = bench::summarize(&run_ranks(&goal, &self.plan())?);
        if self.json {
            output::print_json(&summaries.iter().map(Row::from).collect::<Vec<_>>())?;
        } else {
            output::print(&table(&summaries))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self) -> Plan {
        let phases = if self.phases.is_empty() { Phase::ALL.to_vec() } else { self.phases.clone() };
        let unique = u32::from_le_bytes(crate::system::secret());
        Plan {
            ranks: self.ranks.get(),
            files: self.files.get(),
            shared: self.shared,
            phases,
            in_flight: self.in_flight.get(),
            iterations: self.iterations.get(),
            folder: format!("pando-bench.{unique:08x}"),
        }
    }
}

/// Runs every rank in a thread of its own.
fn run_ranks(goal: &Goal, plan: &Plan) -> anyhow::Result<Vec<Vec<Vec<Timing>>>> {
    let meeting = Meeting::new(plan.ranks);
    let (ready, readies) = channel();
    thread::scope(|scope| {
        let (mut threads, mut gos) = (Vec::new(), Vec::new());
        for number in 0..plan.ranks {
            let (go, gone) = channel();
            gos.push(go);
            let (meeting, ready) = (&meeting, ready.clone());
            let work = move || run_rank(goal, plan, number, meeting, &ready, &gone);
            let thread = thread::Builder::new().name(format!("rank-{number}"));
            threads.push(thread.spawn_scoped(scope, work).context("cannot start a thread")?);
        }
        // Ranks meet; so none begins unless all can. Dropping `gos` sends them home.
        for _ in 0..plan.ranks {
            readies.recv().context("a rank ended early")??;
        }
        for go in &gos {
            go.send(()).context("a rank ended early")?;
        }
        let results = threads.into_iter().map(|thread| thread.join());
        let results: Vec<anyhow::Result<_>> = results
            .map(|result| result.unwrap_or_else(|_| Err(anyhow!("a rank panicked"))))
            .collect();
        // The rank where it began says more than those that were ended by it.
        let (mut timings, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(timing) => timings.push(timing),
                Err(error) => errors.push(error),
            }
        }
        errors.sort_by_key(|error| matches!(error.downcast_ref(), Some(bench::Error::Other)));
        errors.into_iter().next().map_or(Ok(timings), Err)
    })
}

fn run_rank(
    goal: &Goal,
    plan: &Plan,
    number: usize,
    meeting: &Meeting,
    ready: &Sender<anyhow::Result<()>>,
    go: &Receiver<()>,
) -> anyhow::Result<Vec<Vec<Timing>>> {
    let runtime = connect::runtime()?;
    runtime.block_on(async {
        let client = match goal {
            Goal::Directory(_) => None,
            Goal::Servers { servers, token } => {
                let purpose = format!("pando bench, rank {number}");
                let config = connect::config(servers.clone(), token.clone(), &purpose);
                match connect::connect(config).await {
                    Ok(client) => Some(client),
                    Err(error) => {
                        // The main thread reports it.
                        let _ = ready.send(Err(error));
                        return Err(anyhow!("not connected"));
                    }
                }
            }
        };
        let target = match (goal, &client) {
            (Goal::Servers { .. }, Some(client)) => Target::Client(client.clone()),
            (Goal::Servers { .. }, None) => return Err(anyhow!("not connected")),
            (Goal::Directory(directory), _) => Target::Directory(directory.clone()),
        };
        ready.send(Ok(())).context("nobody waits")?;
        go.recv().context("another rank could not begin")?;
        let timings = Box::pin(Rank { plan, number, meeting, target }.run()).await?;
        if let Some(client) = client {
            client.close().await?;
        }
        Ok(timings)
    })
}

#[derive(Serialize)]
struct Row {
    phase: &'static str,
    operations: u64,
    per_second: f64,
    per_second_min: f64,
    per_second_max: f64,
    p50_us: f64,
    p99_us: f64,
}

impl From<&Summary> for Row {
    fn from(summary: &Summary) -> Row {
        Row {
            phase: summary.phase.name(),
            operations: summary.operations,
            per_second: summary.per_second.round(),
            per_second_min: summary.per_second_min.round(),
            per_second_max: summary.per_second_max.round(),
            p50_us: micros(summary.p50),
            p99_us: micros(summary.p99),
        }
    }
}

fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

fn table(summaries: &[Summary]) -> String {
    let mut text = format!(
        "{:12}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
        "phase", "ops/s", "min", "max", "p50 µs", "p99 µs"
    );
    for row in summaries.iter().map(Row::from) {
        text += &format!(
            "{:12}{:>12.0}{:>12.0}{:>12.0}{:>12.1}{:>12.1}\n",
            row.phase,
            row.per_second,
            row.per_second_min,
            row.per_second_max,
            row.p50_us,
            row.p99_us
        );
    }
    text
}
