//! `pando bench figures`: the experiments of papers, on clusters of our own, as data and drawings.
//!
//! Each experiment is a file of `figures/`; it starts the servers that it needs (`site`), measures
//! (`load`), and gives a [`Figure`] and rows of the table of targets. One that fails leaves the
//! others as they are; the command then fails at its end. Servers end with the experiment that
//! started them, whatever the end.

mod cold;
mod duplex;
mod factors;
mod growth;
mod invalidation;
mod latency;
mod leases;
mod load;
mod mispredictions;
mod mix;
mod placement;
mod rates;
mod reads;
mod record;
mod renames;
pub(super) mod scale;
mod scaling;
mod sfs;
mod site;
mod storm;

use std::{
    num::{NonZeroU16, NonZeroUsize},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::bail;
use bench::{
    figure::Figure,
    report::{self, Goal, Line, TargetRow},
};
use clap::{Subcommand, ValueEnum, value_parser};
use futures::future::{FutureExt as _, LocalBoxFuture};

use crate::{commands::serve, connect, output, signals::Stop};

/// Time-out of an experiment, in units of [`Params::seconds`]. One that takes longer waits for
/// something that will not come.
const TIMEOUT_SECONDS: u64 = 150;

/// Repeat the experiments of a paper on this machine, and draw them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    Infinifs(Params),
    DuplexBalance(duplex::Params),
    Reads(reads::Params),
    Sfs(sfs::Params),
}

/// The experiments of InfiniFS (FAST 2022), with a cluster of processes on this machine.
///
/// They write DIR/NAME.json and DIR/NAME.svg, and print the table of what was aimed at and reached,
/// which is also DIR/reach.jsonl. On a machine with few cores throughput cannot grow with servers:
/// what it is made of is shown, and what follows when each server has a core of its own.
#[derive(Debug, clap::Args)]
struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only these experiments.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Experiment>,
    /// Servers of the experiments that have one size of cluster.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = value_parser!(u16).range(2..=64))]
    servers: u16,
    /// Numbers of servers of those that grow the cluster, of at most 64.
    #[arg(long, default_value = "1,2,4,8,16,32", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=64))]
    counts: Vec<u16>,
    /// Operations of each measurement with many under way.
    #[arg(long, default_value = "12000", value_name = "N")]
    operations: NonZeroUsize,
    /// Operations of each measurement with one under way.
    #[arg(long, default_value = "200", value_name = "N")]
    samples: NonZeroUsize,
    /// Under way at a time, for each server.
    #[arg(long, default_value = "16", value_name = "N")]
    in_flight: NonZeroU16,
    /// Files of the growing tree at its end. With twenty million and more its metadata is larger
    /// than what servers keep of it.
    #[arg(long, default_value = "200000", value_name = "N")]
    files: NonZeroUsize,
    /// Memtable of the servers of the growing tree.
    #[arg(long, default_value = "1MiB", value_name = "SIZE", value_parser = serve::size)]
    memtable: u64,
    /// Longest time for which that tree grows: then the experiment ends with the files it has.
    #[arg(long, default_value = "3m", value_name = "TIME", value_parser = length)]
    growth_limit: Duration,
    /// Clients of the experiment with many.
    #[arg(long, default_value = "32", value_name = "N")]
    clients: NonZeroU16,
    /// Leases that lazy invalidation is compared with.
    #[arg(long, default_value = "1s,5s,10s", value_name = "TIME,...", value_delimiter = ',',
          value_parser = length)]
    leases: Vec<Duration>,
    /// Sizes of the caches in that experiment, in percent of what all directories take.
    #[arg(long, default_value = "0,10,25,50,100", value_name = "PERCENT,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(0..=100))]
    caches: Vec<u16>,
    /// Numbers of clients of the experiment with renames beside them, of at most 1000.
    #[arg(long, default_value = "8,64,512", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=1000))]
    crowds: Vec<u16>,
    /// Of so many operations one is the rename of a directory, where it is shown what invalidations
    /// cost.
    #[arg(long, default_value = "10000", value_name = "N")]
    rename_every: NonZeroUsize,
    /// Depths of cold stats.
    #[arg(long, default_value = "2,5,10,15,20", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(2..=200))]
    depths: Vec<u16>,
    /// Directories above the files of figures 10 and 11; mispredictions have 24, as is said.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = value_parser!(u16).range(1..=200))]
    depth: u16,
    /// The round trip that is added to the network of measurements of latency.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = rtt)]
    rtt: Duration,
    /// How long each measurement lasts that is of a time and not of a number of operations.
    #[arg(
        long, default_value_t = 3, value_name = "SECONDS",
        value_parser = value_parser!(u64).range(1..=3600)
    )]
    seconds: u64,
    /// Where the servers keep their data [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// A round trip; for clap.
pub(crate) fn rtt(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time > Duration::from_secs(1) { Err("it is more than 1s".to_owned()) } else { Ok(time) }
}

/// A length of time that is not nothing; for clap.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("it is no time".to_owned()) } else { Ok(time) }
}

/// Experiments of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Requests, server CPU and balance while servers are added.
    Fig9,
    /// Latency of each operation.
    Fig10,
    /// Gains by speculation, cache and decoupling.
    Fig11,
    /// Creates and stats while the tree grows.
    Fig12,
    /// Lazy invalidation beside leases.
    Fig13,
    /// Renames of files and directories.
    Fig14,
    /// Mispredicted directories.
    Fig15,
    /// Round trips of a cold stat.
    Cold,
    /// Cost of invalidations.
    Invalidation,
    /// Stats beside a storm of renames.
    Storm,
    /// mkdir and renames beside creates.
    Rates,
    /// The operations of table 1.
    Mix,
    /// Entries of a large tree over servers, by the placement alone.
    Balance,
}

/// Results of an experiment.
struct Outcome {
    figure: Figure,
    reach: Vec<TargetRow>,
}

/// Experiments of a paper, by their names, with how long they may take; each is done when it is
/// awaited.
type Experiments<'a> = Vec<(String, Duration, LocalBoxFuture<'a, anyhow::Result<Outcome>>)>;

/// Experiments to run for a paper.
struct Asked<'a> {
    out: &'a Path,
    experiments: Experiments<'a>,
}

impl Experiment {
    async fn run(self, params: &Params) -> anyhow::Result<Outcome> {
        match self {
            Experiment::Fig9 => scaling::run(params).await,
            Experiment::Fig10 => latency::run(params).await,
            Experiment::Fig11 => factors::run(params).await,
            Experiment::Fig12 => growth::run(params).await,
            Experiment::Fig13 => leases::run(params).await,
            Experiment::Fig14 => renames::run(params).await,
            Experiment::Fig15 => mispredictions::run(params).await,
            Experiment::Cold => cold::run(params).await,
            Experiment::Invalidation => invalidation::run(params).await,
            Experiment::Storm => storm::run(params).await,
            Experiment::Rates => rates::run(params).await,
            Experiment::Mix => mix::run(params).await,
            Experiment::Balance => Ok(placement::run()),
        }
    }

    /// Time-out of an experiment: one that takes longer waits for something that will not come.
    fn limit(self, params: &Params) -> Duration {
        let usual = Duration::from_secs(TIMEOUT_SECONDS * params.seconds);
        match self {
            Experiment::Fig12 => usual + params.growth_limit * 2,
            Experiment::Fig13 => {
                let of_a_size: Duration = params.leases.iter().map(|lease| *lease * 3).sum();
                usual + of_a_size * u32::try_from(params.caches.len()).unwrap_or(u32::MAX)
            }
            Experiment::Fig9
            | Experiment::Fig10
            | Experiment::Fig11
            | Experiment::Fig14
            | Experiment::Fig15
            | Experiment::Cold
            | Experiment::Invalidation
            | Experiment::Storm
            | Experiment::Rates
            | Experiment::Mix
            | Experiment::Balance => usual,
        }
    }
}

/// Returns the experiments of `only`, or all there are, with their names.
fn chosen<E: ValueEnum + Copy>(only: &[E]) -> impl Iterator<Item = (String, E)> {
    let chosen = if only.is_empty() { E::value_variants() } else { only };
    let name = |of: E| of.to_possible_value().map(|value| value.get_name().to_owned());
    chosen.iter().map(move |of| (name(*of).unwrap_or_default(), *of))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let asked = match &args.paper {
        Paper::Infinifs(params) => params.asked(),
        Paper::DuplexBalance(params) => return duplex::run(params),
        Paper::Reads(params) => return reads::run(params),
        Paper::Sfs(params) => params.asked(),
    };
    record::make_folder(asked.out)?;
    connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        tokio::select! {
            ended = Box::pin(run_all(asked)) => ended,
            () = stop.asked() => bail!("interrupted"),
        }
    })
}

async fn run_all(asked: Asked<'_>) -> anyhow::Result<ExitCode> {
    let Asked { out, experiments } = asked;
    let (mut reach, mut failed) = (Vec::new(), Vec::new());
    for (name, limit, experiment) in experiments {
        let start = bench::monotonic();
        let ended = tokio::time::timeout(limit, experiment).await;
        let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
        match ended.unwrap_or_else(|_| bail!("it had not ended after {} s", limit.as_secs())) {
            Ok(outcome) => {
                record::write(out, &name, &outcome, seconds)?;
                output::print(&format!("{}\n(took {seconds:.1} s)\n", outcome.figure.text()))?;
                reach.extend(outcome.reach.into_iter().map(Line::Target));
            }
            Err(error) => {
                output::print(&format!("{name}: FAILED after {seconds:.1} s: {error:#}\n"))?;
                failed.push(format!("{name} ({error:#})"));
            }
        }
    }
    record::write_reach(out, &reach)?;
    output::print(&report::targets(&reach))?;
    if !failed.is_empty() {
        bail!("these failed: {}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a figure that another command of `bench` has measured since `start`, and the lines that
/// it was made of.
pub(super) fn keep(
    out: &Path,
    start: Duration,
    figure: Figure,
    (file, lines): (&str, &str),
) -> anyhow::Result<()> {
    record::make_folder(out)?;
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
    record::write_file(out, file, lines)?;
    let name = figure.name.clone();
    record::write(out, &name, &Outcome { figure, reach: Vec::new() }, seconds)
}

/// Writes and prints what the only experiment of a command found, which began at `start`.
fn single(out: &Path, start: Duration, outcome: Outcome) -> anyhow::Result<ExitCode> {
    record::make_folder(out)?;
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
    record::write(out, &outcome.figure.name, &outcome, seconds)?;
    let Outcome { figure, reach } = outcome;
    let reach: Vec<_> = reach.into_iter().map(Line::Target).collect();
    record::write_reach(out, &reach)?;
    output::print(&format!("{}\n{}", figure.text(), report::targets(&reach)))?;
    Ok(ExitCode::SUCCESS)
}

impl Params {
    fn asked(&self) -> Asked<'_> {
        let experiments =
            chosen(&self.only).map(|(name, of)| (name, of.limit(self), of.run(self).boxed_local()));
        Asked { out: &self.out, experiments: experiments.collect() }
    }

    /// A parameter and its value, for the figure.
    fn of(&self, names: &[&str]) -> Vec<(String, String)> {
        let value = |name: &str| match name {
            "servers" => self.servers.to_string(),
            "operations" => self.operations.to_string(),
            "samples" => self.samples.to_string(),
            "in-flight" => self.in_flight.to_string(),
            "files" => self.files.to_string(),
            "clients" => self.clients.to_string(),
            "memtable" => output::bytes(self.memtable),
            "growth-limit" => humantime::format_duration(self.growth_limit).to_string(),
            "caches" => format!("{:?}", self.caches),
            "rename-every" => self.rename_every.to_string(),
            "crowds" => format!("{:?}", self.crowds),
            "depth" => self.depth.to_string(),
            "rtt" => humantime::format_duration(self.rtt).to_string(),
            "seconds" => self.seconds.to_string(),
            other => other.to_owned(),
        };
        names.iter().map(|name| (format!("--{name}"), value(name))).collect()
    }

    /// Under way at a time over `servers`.
    fn under_way(&self, servers: u16) -> usize {
        usize::from(self.in_flight.get()) * usize::from(servers)
    }
}

/// A row of the table of targets, of an experiment.
fn row(
    target: &str,
    goal: (&str, Goal),
    values: Vec<f64>,
    beside: Option<f64>,
    experiment: &str,
) -> Option<TargetRow> {
    let command = format!("pando bench figures infinifs --only {experiment}");
    TargetRow::of(target, goal, values, beside, &command)
}
