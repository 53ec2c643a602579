//! `pando bench figures pacon`: jobs in regions over a file system that takes its time.
//!
//! Clients are threads of this process, which call the region as a mount does: of the machine that has
//! the region, with no network between, or of others, with a connection on the loopback.

mod clients;
mod elsewhere;
mod jobs;
mod link;
mod many;
mod one;
mod slowed;

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use bench::report::{Goal, TargetRow};
use clap::ValueEnum;
use futures::future::FutureExt as _;

use super::outcome::{Asked, Outcome};
use crate::values;

/// Time-out of an experiment. One that takes longer waits for something that will not come.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The experiments of Pacon (IPDPS 2020) that one machine can show.
///
/// They write DIR/NAME.json and DIR/NAME.svg, and print the table of what was aimed at and reached,
/// which is also DIR/reach.jsonl. The file system below is in memory and makes one call at a time,
/// each in --delay. Clients are threads of this process, without a network.
#[derive(Debug, clap::Args)]
pub(super) struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only these experiments.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Experiment>,
    /// Operations of each measurement.
    #[arg(long, default_value = "10000", value_name = "N")]
    operations: NonZeroUsize,
    /// Clients, each with one operation under way; figure 11 has the numbers of --counts.
    #[arg(long, default_value = "32", value_name = "N", value_parser = clients)]
    clients: usize,
    /// Numbers of clients of figure 11.
    #[arg(long, default_value = "1,2,4,8,16,32,64", value_name = "N,...", value_delimiter = ',',
          value_parser = clients)]
    counts: Vec<usize>,
    /// Other machines in figure 11, which share the clients; each is a thread with a connection.
    #[arg(long, default_value = "8", value_name = "N", value_parser = clients)]
    machines: usize,
    /// Numbers of jobs at once in figure 8, which share the clients.
    #[arg(long, default_value = "1,2,4,8", value_name = "N,...", value_delimiter = ',',
          value_parser = clients)]
    jobs: Vec<usize>,
    /// Time that each call to the file system below takes.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = values::length)]
    delay: Duration,
    /// Measurements of each kind, in turns.
    #[arg(long, default_value = "3", value_name = "N")]
    rounds: NonZeroUsize,
    /// Where the server keeps its data [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

fn clients(text: &str) -> Result<usize, String> {
    let number = text.parse().map_err(|error: std::num::ParseIntError| error.to_string())?;
    if (1..=256).contains(&number) { Ok(number) } else { Err("must be 1 to 256".to_owned()) }
}

/// Experiments of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// One application: mkdir, create and stat.
    Fig7,
    /// Several applications at once.
    Fig8,
    /// One client, over a network, beside memcached.
    Fig10,
    /// Creates by the number of clients.
    Fig11,
}

impl Experiment {
    async fn run(self, params: &Params) -> anyhow::Result<Outcome> {
        match self {
            Experiment::Fig7 => one::run(params).await,
            Experiment::Fig8 => many::jobs(params).await,
            Experiment::Fig10 => link::run(params).await,
            Experiment::Fig11 => many::clients(params).await,
        }
    }
}

impl Params {
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked::of(&self.out, &self.only, TIMEOUT, |of| of.run(self).boxed_local())
    }

    fn shown(&self) -> Vec<(String, String)> {
        [
            ("--operations", self.operations.to_string()),
            ("--clients", self.clients.to_string()),
            ("--counts", format!("{:?}", self.counts)),
            ("--machines", self.machines.to_string()),
            ("--jobs", format!("{:?}", self.jobs)),
            ("--delay", humantime::format_duration(self.delay).to_string()),
            ("--rounds", self.rounds.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
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
    let command = format!("pando bench figures pacon --only {experiment}");
    TargetRow::of(target, goal, values, beside, &command)
}
