//! `pando profile`: which operations are slow, and where their time goes.

use std::{process::ExitCode, time::Duration};

use serde::Serialize;

use crate::{
    connect::{self, Servers, TokenArgs},
    observed::{self, Operation, micros},
    output,
};

/// The stages of an operation, in order.
const STAGES: [&str; 5] = ["queue", "execute", "write", "sync", "wait"];

/// Show where the time of operations goes, and the latest slow ones. Needs the administrator's token.
///
/// The stages: `queue` waits for other requests, `execute` is the operation, `write` is the write of its group to
/// the store, `sync` waits for stable storage, `wait` for blocks or locks. The slow ones are the latest 512.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// From now on, until the server is restarted, operations that take so long are slow [at first: 100ms].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    threshold: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Profile {
    threshold_us: u64,
    /// Slow operations since the start.
    slow_total: u64,
    operations: Vec<Operation>,
    slow: Vec<Slow>,
}

#[derive(Serialize)]
struct Slow {
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
    let config = connect::config(args.server.0, args.token.read()?, "pando profile");
    let threshold = args.threshold.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    let profile = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let load = connect::for_administrators(client.server_load().await)?;
        let log = client.slow(threshold, 0).await?;
        client.close().await?;
        anyhow::Ok(profile(&load, log))
    })?;
    if args.json {
        output::print_json(&profile)?;
    } else {
        output::print(&profile.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn profile(load: &wire::Load, log: wire::SlowLog) -> Profile {
    let slow = |slow: wire::SlowOperation| Slow {
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
    };
    let mut operations: Vec<_> = load.operations.iter().map(Operation::from).collect();
    operations.sort_by_key(|operation| std::cmp::Reverse(stage_sum(operation)));
    Profile {
        threshold_us: log.threshold_us,
        slow_total: log.total,
        operations,
        slow: log.operations.into_iter().map(slow).collect(),
    }
}

fn stage(operation: &Operation, name: &str) -> u64 {
    operation.stages_us.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

fn stage_sum(operation: &Operation) -> u64 {
    STAGES.iter().map(|name| stage(operation, name)).sum()
}

impl Profile {
    fn to_text(&self) -> String {
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
            let mut row = vec![
                format!("{:.1} s", slow.seconds_ago),
                slow.name.clone(),
                slow.outcome.clone(),
                micros(slow.total_us),
            ];
            row.extend(slow.stages.iter().map(|(_, nanos)| micros(observed::ratio(*nanos, 1000))));
            row.extend([
                slow.group_requests.to_string(),
                slow.directory.clone(),
                slow.client.clone(),
            ]);
            row
        };
        let heads = [
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
        let slow = output::table(&heads, &self.slow.iter().map(row).collect::<Vec<_>>());
        format!(
            "{operations}\n{} operations took {} or longer since the server started; the latest:\n{slow}",
            self.slow_total,
            micros(observed::ratio(self.threshold_us, 1)),
        )
    }
}
