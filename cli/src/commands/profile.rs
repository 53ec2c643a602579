//! `pando profile`: which operations are slow, and where their time goes.

use std::{cmp::Reverse, process::ExitCode, time::Duration};

use client::Client;
use serde::Serialize;
use wire::{Load, SlowLog};

use super::everywhere::{self, Found};
use crate::{
    connect::{self, Servers, TokenArgs},
    observed::{self, Operation, micros},
    output,
};

/// The stages of an operation, in order.
const STAGES: [&str; 5] = ["queue", "execute", "write", "sync", "wait"];

/// The columns of slow operations.
const SLOW_HEADS: [&str; 12] = [
    "AGO",
    "OPERATION",
    "OUTCOME",
    "TOOK",
    "QUEUE",
    "EXECUTE",
    "WRITE",
    "SYNC",
    "WAIT",
    "GROUP",
    "DIRECTORY",
    "CLIENT",
];

/// Show where operations spend their time, and the latest slow ones. Needs the administrator's
/// token.
///
/// Stages: `queue` waits for other requests, `execute` runs the operation, `write` writes its group
/// to the store, `sync` waits for stable storage, `wait` waits for blocks or locks. Each server
/// keeps its latest 512 slow operations.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server, or any of several: all are asked.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// Ask only this server, by its number in `pando status`.
    #[arg(long = "server", value_name = "N")]
    only: Option<u16>,
    /// From now on, until a server is restarted, operations that take this long count as slow [at
    /// first: 100ms].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    threshold: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Profile {
    /// Servers that were asked and have answered, of so many.
    servers: Vec<u16>,
    servers_of: usize,
    threshold_us: u64,
    /// Slow operations since the start.
    slow_total: u64,
    #[serde(skip)]
    threshold_is_new: bool,
    operations: Vec<Operation>,
    slow: Vec<Slow>,
}

#[derive(Serialize)]
struct Slow {
    server: u16,
    name: String,
    outcome: String,
    seconds_ago: f64,
    total_us: f64,
    stages_us: serde_json::Map<String, serde_json::Value>,
    group_requests: u64,
    directory: String,
    client: String,
    #[serde(skip)]
    stages: Vec<(String, u64)>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando profile");
    let threshold = args.threshold.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    let (profile, found) = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let asked = ask(&client, args.only, threshold).await;
        connect::close(&client, asked).await
    })?;
    if args.json {
        output::print_json(&profile)?;
    } else {
        output::print(&profile.to_text())?;
    }
    found.complete("its operations are not counted")?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the servers; returns their profiles, and the servers that have not answered.
async fn ask(
    client: &Client,
    only: Option<u16>,
    threshold: Option<u64>,
) -> anyhow::Result<(Profile, Found<(Load, SlowLog)>)> {
    let found = everywhere::ask_some(client, only, |server| async move {
        let load = server.answer(client.load_of(server.number)).await?;
        let log = server.answer(client.slow(server.number, threshold, 0)).await?;
        Ok(vec![(load, log)])
    });
    let found = found.await?;
    let all: Vec<_> = found.rows().collect();
    let loads: Vec<&Load> = all.iter().map(|(_, (load, _))| load).collect();
    let load = observed::together(&loads);
    let mut slow: Vec<Slow> =
        all.iter().flat_map(|(server, (_, log))| slow_of(*server, log)).collect();
    slow.sort_by(|one, other| other.seconds_ago.total_cmp(&one.seconds_ago));
    let mut operations: Vec<_> = load.operations.iter().map(Operation::from).collect();
    operations.sort_by_key(|operation| Reverse(stage_sum(operation)));
    let profile = Profile {
        servers: all.iter().map(|(server, _)| *server).collect(),
        servers_of: client.members().len(),
        threshold_us: all.iter().map(|(_, (_, log))| log.threshold_us).min().unwrap_or(0),
        threshold_is_new: threshold.is_some(),
        slow_total: all.iter().map(|(_, (_, log))| log.total).sum(),
        operations,
        slow,
    };
    Ok((profile, found))
}

/// The slow operations of a server, oldest first.
fn slow_of(server: u16, log: &SlowLog) -> impl Iterator<Item = Slow> {
    log.operations.iter().cloned().map(move |slow| Slow {
        server,
        seconds_ago: observed::ratio(log.at_us.saturating_sub(slow.at_us), 1_000_000),
        total_us: observed::ratio(slow.stages.iter().map(|(_, nanos)| nanos).sum(), 1000),
        stages_us: observed::map(
            slow.stages.iter().map(|(name, nanos)| (name.clone(), nanos / 1000)),
        ),
        stages: slow.stages,
        name: slow.name,
        outcome: slow.outcome,
        group_requests: slow.group_requests,
        directory: slow.directory,
        client: slow.client,
    })
}

fn stage(operation: &Operation, name: &str) -> u64 {
    operation.stages_us.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

fn stage_sum(operation: &Operation) -> u64 {
    STAGES.iter().map(|name| stage(operation, name)).sum()
}

impl Profile {
    fn to_text(&self) -> String {
        let several = self.servers_of > 1;
        let row = |operation: &Operation| {
            let total = stage_sum(operation);
            let mut row = vec![
                operation.name.clone(),
                operation.count.to_string(),
                micros(operation.mean_us),
                micros(operation.p99_us),
            ];
            let part = |name| observed::ratio(100 * stage(operation, name), total);
            row.extend(STAGES.map(|name| format!("{:.0}%", part(name))));
            row
        };
        let heads =
            ["OPERATION", "COUNT", "MEAN", "P99", "QUEUE", "EXECUTE", "WRITE", "SYNC", "WAIT"];
        let operations =
            output::table(&heads, &self.operations.iter().map(row).collect::<Vec<_>>());
        let row = |slow: &Slow| {
            let server = several.then(|| slow.server.to_string());
            let mut row: Vec<String> = server.into_iter().collect();
            row.extend([
                format!("{:.1} s", slow.seconds_ago),
                slow.name.clone(),
                slow.outcome.clone(),
                micros(slow.total_us),
            ]);
            row.extend(slow.stages.iter().map(|(_, nanos)| micros(observed::ratio(*nanos, 1000))));
            row.extend([
                slow.group_requests.to_string(),
                slow.directory.clone(),
                slow.client.clone(),
            ]);
            row
        };
        let first = several.then_some("SERVER");
        let heads: Vec<_> = first.into_iter().chain(SLOW_HEADS).collect();
        let slow = output::table(&heads, &self.slow.iter().map(row).collect::<Vec<_>>());
        let (total, long) = (self.slow_total, micros(observed::ratio(self.threshold_us, 1)));
        let slow_ones = if self.threshold_is_new {
            format!(
                "from now on operations that take {long} or longer are slow; {total} were before"
            )
        } else {
            format!(
                "{total} operations were slow since the start: slow is what took {long} or longer"
            )
        };
        let servers = observed::servers(&self.servers, self.servers_of);
        format!("{servers}{operations}\n{slow_ones}; the latest:\n{slow}")
    }
}
