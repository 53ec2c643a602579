//! The experiments of SFS, and what they can be told.

use std::{
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use bench::report::{Goal, TargetRow};
use clap::{ValueEnum, value_parser};

use crate::values;

/// The experiments of SFS (IEICE 2016), with a cluster of processes on this machine.
///
/// They write DIR/NAME.json and DIR/NAME.svg, and print the table of what was aimed at and reached,
/// which is also DIR/reach.jsonl. On a machine with few cores throughput cannot grow with servers:
/// one directory for all clients is compared with one for each.
#[derive(Debug, clap::Args)]
pub(in super::super) struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Only these experiments.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub(super) only: Vec<Experiment>,
    /// Numbers of servers of figure 4; the others have the last of them.
    #[arg(long, default_value = "1,2,4", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=64))]
    pub(super) counts: Vec<u16>,
    /// Numbers of clients of figure 4; the others have the last of them.
    #[arg(long, default_value = "1,2,4,8,16,32", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=1024))]
    pub(super) clients: Vec<u16>,
    /// Creates under way at a time, of each client.
    #[arg(long, default_value = "8", value_name = "N")]
    pub(super) in_flight: NonZeroU16,
    /// Empty files of each measurement of figures 4 and 5.
    #[arg(long, default_value = "60000", value_name = "N")]
    pub(super) files: NonZeroUsize,
    /// Files with contents of each measurement of figure 5.
    #[arg(long, default_value = "10000", value_name = "N")]
    pub(super) contents: NonZeroUsize,
    /// Files at which a partition splits in figures 4 and 5.
    #[arg(long, default_value = "3000", value_name = "N")]
    pub(super) threshold: NonZeroU32,
    /// Measurements of each kind in figures 4 to 6; medians are shown.
    #[arg(long, default_value = "3", value_name = "N")]
    pub(super) rounds: NonZeroUsize,
    /// Names of the directory that grows, in figures 6 and 7.
    #[arg(long, default_value = "200000", value_name = "N")]
    pub(super) grown: NonZeroUsize,
    /// Names at which a partition of that directory splits; the default is that of a new file
    /// system.
    #[arg(long, default_value = "8000", value_name = "N")]
    pub(super) grown_threshold: NonZeroU32,
    /// Rates of figure 6 are of pieces of time of this length.
    #[arg(long, default_value = "250ms", value_name = "TIME", value_parser = values::length)]
    pub(super) bucket: Duration,
    /// Names of the largest model in figure 7, which runs no servers.
    #[arg(long, default_value = "10000000", value_name = "N")]
    pub(super) modelled: NonZeroUsize,
    /// Clients that make the names of that model.
    #[arg(long, default_value = "256", value_name = "N")]
    pub(super) modelled_clients: NonZeroU32,
    /// Where the servers keep their data [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
}

/// Experiments of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Experiment {
    /// Creates by clients and servers, in one directory and in one each.
    Fig4,
    /// Gains by contents kept inline and large memtables.
    Fig5,
    /// Creates while the directory grows, and what splits cost them.
    Fig6,
    /// Requests to the wrong partition.
    Fig7,
}

impl Params {
    /// Servers of those that have one size of cluster.
    pub(super) fn servers(&self) -> u16 {
        self.counts.last().copied().unwrap_or(1)
    }

    /// Clients of those that have one number of them.
    pub(super) fn most_clients(&self) -> u16 {
        self.clients.last().copied().unwrap_or(1)
    }

    /// Returns the number of operations under way at a time with so many clients.
    pub(super) fn under_way(&self, clients: u16) -> usize {
        usize::from(self.in_flight.get()) * usize::from(clients)
    }

    /// A parameter and its value, for the figure.
    pub(super) fn of(&self, names: &[&str]) -> Vec<(String, String)> {
        let value = |name: &str| match name {
            "servers" => self.servers().to_string(),
            "clients" => self.most_clients().to_string(),
            "in-flight" => self.in_flight.to_string(),
            "files" => self.files.to_string(),
            "contents" => self.contents.to_string(),
            "bucket" => humantime::format_duration(self.bucket).to_string(),
            "threshold" => self.threshold.to_string(),
            "rounds" => self.rounds.to_string(),
            "grown" => self.grown.to_string(),
            "grown-threshold" => self.grown_threshold.to_string(),
            "modelled" => self.modelled.to_string(),
            "modelled-clients" => self.modelled_clients.to_string(),
            other => other.to_owned(),
        };
        names.iter().map(|name| ((*name).to_owned(), value(name))).collect()
    }
}

/// A row of the table of targets, of an experiment.
pub(super) fn row(
    target: &str,
    goal: (&str, Goal),
    values: Vec<f64>,
    beside: Option<f64>,
    experiment: &str,
) -> Option<TargetRow> {
    let command = format!("pando bench figures sfs --only {experiment}");
    TargetRow::of(target, goal, values, beside, &command)
}
