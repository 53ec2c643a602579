//! The experiments of InfiniFS, and what they can be told.

use std::{
    num::{NonZeroU16, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use bench::report::{Goal, TargetRow};
use clap::{ValueEnum, value_parser};

use crate::{output, values};

/// The experiments of InfiniFS (FAST 2022), with a cluster of processes on this machine.
///
/// They write DIR/NAME.json and DIR/NAME.svg, and print the table of what was aimed at and reached,
/// which is also DIR/reach.jsonl. On a machine with few cores throughput cannot grow with servers:
/// what it is made of is shown, and what follows when each server has a core of its own.
#[derive(Debug, clap::Args)]
pub(super) struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Only these experiments.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub(super) only: Vec<Experiment>,
    /// Servers of the experiments that have one size of cluster.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = value_parser!(u16).range(2..=64))]
    pub(super) servers: u16,
    /// Numbers of servers of those that grow the cluster, of at most 64.
    #[arg(long, default_value = "1,2,4,8,16,32", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=64))]
    pub(super) counts: Vec<u16>,
    /// Operations of each measurement with many under way.
    #[arg(long, default_value = "12000", value_name = "N")]
    pub(super) operations: NonZeroUsize,
    /// Operations of each measurement with one under way.
    #[arg(long, default_value = "200", value_name = "N")]
    pub(super) samples: NonZeroUsize,
    /// Under way at a time, for each server.
    #[arg(long, default_value = "16", value_name = "N")]
    pub(super) in_flight: NonZeroU16,
    /// Files of the growing tree at its end. With twenty million and more its metadata is larger
    /// than what servers keep of it.
    #[arg(long, default_value = "200000", value_name = "N")]
    pub(super) files: NonZeroUsize,
    /// Memtable of the servers of the growing tree.
    #[arg(long, default_value = "1MiB", value_name = "SIZE", value_parser = values::size)]
    pub(super) memtable: u64,
    /// Longest time for which that tree grows: then the experiment ends with the files it has.
    #[arg(long, default_value = "3m", value_name = "TIME", value_parser = values::length)]
    pub(super) growth_limit: Duration,
    /// Clients of the experiment with many.
    #[arg(long, default_value = "32", value_name = "N")]
    pub(super) clients: NonZeroU16,
    /// Leases that lazy invalidation is compared with.
    #[arg(long, default_value = "1s,5s,10s", value_name = "TIME,...", value_delimiter = ',',
          value_parser = values::length)]
    pub(super) leases: Vec<Duration>,
    /// Sizes of the caches in that experiment, in percent of what all directories take.
    #[arg(long, default_value = "0,10,25,50,100", value_name = "PERCENT,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(0..=100))]
    pub(super) caches: Vec<u16>,
    /// Numbers of clients of the experiment with renames beside them, of at most 1000.
    #[arg(long, default_value = "8,64,512", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=1000))]
    pub(super) crowds: Vec<u16>,
    /// Of so many operations one is the rename of a directory, where it is shown what invalidations
    /// cost.
    #[arg(long, default_value = "10000", value_name = "N")]
    pub(super) rename_every: NonZeroUsize,
    /// Depths of cold stats.
    #[arg(long, default_value = "2,5,10,15,20", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(2..=200))]
    pub(super) depths: Vec<u16>,
    /// Directories above the files of figures 10 and 11; mispredictions have 24, as is said.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = value_parser!(u16).range(1..=200))]
    pub(super) depth: u16,
    /// The round trip that is added to the network of measurements of latency.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = values::rtt)]
    pub(super) rtt: Duration,
    /// How long each measurement lasts that is of a time and not of a number of operations.
    #[arg(
        long, default_value_t = 3, value_name = "SECONDS",
        value_parser = value_parser!(u64).range(1..=3600)
    )]
    pub(super) seconds: u64,
    /// Where the servers keep their data [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
}

/// Experiments of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Experiment {
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

impl Params {
    /// A parameter and its value, for the figure.
    pub(super) fn of(&self, names: &[&str]) -> Vec<(String, String)> {
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
    pub(super) fn under_way(&self, servers: u16) -> usize {
        usize::from(self.in_flight.get()) * usize::from(servers)
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
    let command = format!("pando bench figures infinifs --only {experiment}");
    TargetRow::of(target, goal, values, beside, &command)
}
