//! `pando bench md`: metadata operations, phase by phase.

use std::{num::NonZeroUsize, path::Path, process::ExitCode};

use bench::{Measured, Phase, Plan, Row, Summary};

use super::{
    crew::Workers,
    meter::{Gauge, MountProcess},
};
use crate::{
    connect::{self, Credentials, Place, TokenArgs},
    failure::usage,
    mounts, output,
    signals::Stop,
};

/// Time metadata operations, phase by phase as mdtest does.
///
/// All ranks begin a phase together. What is stat-ed and opened was made by another rank.
/// Everything is done in a new folder, which is removed at the end, also of a run that fails or is
/// interrupted. A shorter run before the first one warms up and is not counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A server (HOST:PORT), by the native client with a thread for each rank, or a directory, by
    /// system calls with a process for each rank.
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
    /// How many directories to put above the one that is worked in.
    #[arg(long, default_value = "0", value_name = "N")]
    depth: usize,
    /// Phases to report: dir_create, dir_stat, dir_rename, dir_remove, file_create,
    /// file_stat, file_open, file_rename, file_remove, readdir (counts entries; its latency is that
    /// of a whole listing) [default: all].
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = phase)]
    phases: Vec<Phase>,
    /// Operations that each rank has under way at a time; system calls are made one by one.
    #[arg(long, default_value = "1", value_name = "N")]
    in_flight: NonZeroUsize,
    /// Connections to the server in all, dealt to the ranks; with fewer than ranks, ranks share
    /// them, and a thread [default: one for each rank].
    #[arg(long, value_name = "N")]
    connections: Option<NonZeroUsize>,
    /// How often to run all phases; medians are printed.
    #[arg(long, default_value = "3", value_name = "N")]
    iterations: NonZeroUsize,
    /// Print a JSON object for each phase of each iteration, a line each.
    #[arg(long)]
    json: bool,
}

fn phase(text: &str) -> Result<Phase, String> {
    let named = Phase::ALL.into_iter().find(|phase| phase.name() == text);
    named.ok_or_else(|| format!("no phase is called {text}"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let place = connect::place(&args.target)?;
    args.check(&place)?;
    let measured = match &place {
        Place::Servers(servers) => {
            on_servers(servers, &args.token.read()?, args.plan(), args.connections())
        }
        Place::Directory(directory) => on_directory(directory, &args.token, args.plan()),
    }?;
    if args.json {
        output::print(&json_lines(&measured)?)?;
    } else {
        output::print(&table(&bench::summarize(&measured)))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn check(&self, place: &Place) -> anyhow::Result<()> {
        match place {
            Place::Directory(_) if self.in_flight.get() > 1 || self.connections.is_some() => {
                Err(usage(
                    "--in-flight and --connections are for servers; with a directory, take more --ranks",
                ))
            }
            Place::Servers(_) if self.connections() > self.ranks.get() * self.in_flight.get() => {
                Err(usage("with more --connections than operations under way, some are of no use"))
            }
            Place::Directory(_) | Place::Servers(_) => Ok(()),
        }
    }

    fn connections(&self) -> usize {
        self.connections.unwrap_or(self.ranks).get()
    }

    fn plan(&self) -> Plan {
        let phases = if self.phases.is_empty() { Phase::ALL.to_vec() } else { self.phases.clone() };
        let unique = u32::from_le_bytes(crate::system::secret());
        Plan {
            ranks: self.ranks.get(),
            files: self.files.get(),
            shared: self.shared,
            depth: self.depth,
            phases,
            in_flight: self.in_flight.get(),
            iterations: self.iterations.get(),
            folder: format!("pando-bench.{unique:08x}"),
        }
    }
}

/// Measures servers through native clients.
pub(crate) fn on_servers(
    servers: &[String],
    credentials: &Credentials,
    plan: Plan,
    connections: usize,
) -> anyhow::Result<Vec<Measured>> {
    connect::runtime()?.block_on(async {
        let stop = Stop::listen()?;
        let mut gauge = Gauge::new(Some(control(servers, credentials).await?), None).await;
        let mut crew = Workers::threads(&plan, servers, credentials, connections, stop).await?;
        let measured = Box::pin(bench::run(&plan, &mut crew, &mut gauge)).await;
        crew.end()?;
        gauge.close().await?;
        Ok(measured?)
    })
}

/// Measures a directory, wherever it is, through system calls.
pub(crate) fn on_directory(
    directory: &Path,
    token: &TokenArgs,
    plan: Plan,
) -> anyhow::Result<Vec<Measured>> {
    connect::runtime()?.block_on(async {
        let stop = Stop::listen()?;
        let mount = mounts::holding(directory)?;
        let process = mount.as_ref().and_then(MountProcess::of);
        // Without a token the run is as good; only the server's part is unknown then.
        let control = match (mount.as_ref().and_then(mounts::Mount::servers), token.read()) {
            (Some(servers), Ok(credentials)) => Some(control(&servers, &credentials).await?),
            (Some(_), Err(_)) | (None, _) => None,
        };
        let mut gauge = Gauge::new(control, process).await;
        let mut crew = Workers::processes(&plan, directory, stop)?;
        let measured = Box::pin(bench::run(&plan, &mut crew, &mut gauge)).await;
        crew.end()?;
        gauge.close().await?;
        Ok(measured?)
    })
}

async fn control(servers: &[String], credentials: &Credentials) -> anyhow::Result<client::Client> {
    let config = connect::config(servers.to_vec(), credentials.clone(), "pando bench");
    connect::connect(config).await
}

/// An object for each phase of each iteration.
pub(crate) fn json_lines(measured: &[Measured]) -> anyhow::Result<String> {
    let lines = measured.iter().map(|one| Ok(serde_json::to_string(&Row::from(one))? + "\n"));
    lines.collect()
}

pub(crate) fn table(summaries: &[Summary]) -> String {
    let mut text = format!(
        "{:12}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>11}{:>11}{:>9}\n",
        "phase",
        "ops/s",
        "min",
        "max",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "client µs",
        "server µs",
        "requests"
    );
    let known = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
    };
    for row in summaries {
        text += &format!(
            "{:12}{:>10.0}{:>10.0}{:>10.0}{:>10.1}{:>10.1}{:>10.1}{:>11.2}{:>11}{:>9}\n",
            row.phase,
            row.per_second,
            row.per_second_min,
            row.per_second_max,
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.client_cpu_us,
            known(row.server_cpu_us, 2),
            known(row.requests, 3),
        );
    }
    text + "client and server: CPU time for an operation; requests: to the server, for an operation\n"
}
