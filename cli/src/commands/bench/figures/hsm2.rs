//! `pando bench figures hsm2`: hybrid placement beside hashing and subtrees.
//!
//! Each experiment is a file of `hsm2/`; what they have in common is `trees`.

mod moves;
mod operations;
mod over_time;
mod scan;
mod trees;

use std::{
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use bench::report::{Goal, TargetRow};
use clap::{ValueEnum, value_parser};
use futures::future::FutureExt as _;

use super::outcome::{Asked, Outcome};

/// Time-out of an experiment. One that takes longer waits for something that will not come.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The experiments of HSM² (NPC 2019), with a cluster of processes on this machine.
///
/// They write DIR/NAME.json and DIR/NAME.svg, and print the table of what was aimed at and reached,
/// which is also DIR/reach.jsonl. The baselines are settings of the same program: each directory
/// hashed, and top directories dealt out with all that is below them.
#[derive(Debug, clap::Args)]
pub(super) struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only these experiments.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Experiment>,
    /// Numbers of servers of figure 4; the scan has the last of them.
    #[arg(long, default_value = "1,2,3,4,5", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=64))]
    counts: Vec<u16>,
    /// Operations of each kind in figure 4.
    #[arg(long, default_value = "500", value_name = "N")]
    samples: NonZeroUsize,
    /// Directories of each tree that is scanned.
    #[arg(long, default_value = "10000", value_name = "N")]
    directories: NonZeroU32,
    /// Files of each tree that is scanned.
    #[arg(long, default_value = "1200000", value_name = "N")]
    files: NonZeroU32,
    /// Clients that scan.
    #[arg(long, default_value = "100", value_name = "N")]
    clients: NonZeroU16,
    /// Directories that each client scans.
    #[arg(long, default_value = "1000", value_name = "N")]
    scanned: NonZeroUsize,
    /// Stats of files, which top directories get by Zipf's law.
    #[arg(long, default_value = "100000", value_name = "N")]
    stats: NonZeroUsize,
    /// Changes of the load in figure 9.
    #[arg(long, default_value = "4", value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    changes: u32,
    /// Seconds of figure 9 that pass in one.
    #[arg(long, default_value = "20", value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    speed: u32,
    /// Minutes of figure 9 between two changes of the load.
    #[arg(long, default_value = "30", value_name = "N", value_parser = value_parser!(u32).range(1..=600))]
    minutes: u32,
    /// Where the servers keep their data [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Experiments of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Latency of create, mkdir, stat and readdir by servers.
    Fig4,
    /// A scan of a tree, with the balance of entries and requests (figures 5, 6 and 8).
    Fig8,
    /// The balance over time under a load that moves.
    Fig9,
}

impl Experiment {
    async fn run(self, params: &Params) -> anyhow::Result<Outcome> {
        match self {
            Experiment::Fig4 => operations::run(params).await,
            Experiment::Fig8 => scan::run(params).await,
            Experiment::Fig9 => over_time::run(params).await,
        }
    }
}

impl Params {
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked::of(&self.out, &self.only, TIMEOUT, |of| of.run(self).boxed_local())
    }

    fn servers(&self) -> u16 {
        self.counts.last().copied().unwrap_or(1)
    }
}

/// A row of the table of targets, of an experiment.
fn row(target: &str, goal: (&str, Goal), value: f64, experiment: &str) -> Option<TargetRow> {
    let command = format!("pando bench figures hsm2 --only {experiment}");
    TargetRow::of(target, goal, vec![value], None, &command)
}
