//! `pando top`: what servers are asked for right now, by operation, client and directory.
//!
//! On a terminal it is a page that is drawn again and again; elsewhere a text for each interval, or
//! JSON, a line for each. Rates of operations are the difference of two moments; those of clients
//! and directories are the server's own estimates of the last seconds.

use std::{
    cell::Cell, collections::BTreeMap, io::IsTerminal as _, process::ExitCode, time::Duration,
};

use client::Client;
use futures::future::join_all;
use serde::Serialize;
use tokio::time::timeout;
use wire::Load;

use super::everywhere;
use crate::{
    connect::{self, Servers, TokenArgs},
    observed::{self, Operation, micros},
    output,
    signals::Stop,
    terminal::Screen,
};

/// Time-out after which a silent server among several is left out.
const PATIENCE: Duration = Duration::from_secs(2);
/// The session of what servers ask each other for.
const OTHER_SERVERS: &str = "0";

/// Show the load of servers, until q or Ctrl-C. Needs the administrator's token.
///
/// The loads of several servers are added up, without those that do not answer; the first line says
/// which are included. Rates cover the latest interval; rates of clients and directories are
/// estimates of the last 5 to 10 seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server, or any of several.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// Show only this server, by its number in `pando status`.
    #[arg(long = "server", value_name = "N")]
    only: Option<u16>,
    /// Time between two readings.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Show one interval and exit.
    #[arg(long)]
    once: bool,
    /// Print JSON, a line for each interval.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(50)..=Duration::from_secs(3600);
    if allowed.contains(&time) { Ok(time) } else { Err("must be between 50ms and 1h".to_owned()) }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando top");
    let on_terminal = !args.json && !args.once && std::io::stdout().is_terminal();
    connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let client = connect::connect(config).await?;
        // An error of the first question goes to the terminal as it was found.
        let watched = async {
            let servers = Watched::new(&client, args.only)?;
            let first = servers.ask().await?;
            let mut screen = if on_terminal { Some(Screen::take()?) } else { None };
            watch(&servers, first, &args, &mut screen, &mut stop).await
        };
        let watched = watched.await;
        // A server that is away is not waited for.
        let _ = timeout(PATIENCE, client.close()).await;
        watched
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The servers that are asked.
struct Watched<'a> {
    client: &'a Client,
    numbers: Vec<u16>,
    /// Whether the servers were asked before.
    asked: Cell<bool>,
}

/// Load of each server, by the server's number.
type Loads = BTreeMap<u16, Load>;

impl Watched<'_> {
    fn new(client: &Client, only: Option<u16>) -> anyhow::Result<Watched<'_>> {
        let numbers = everywhere::numbers(client, only)?;
        Ok(Watched { client, numbers, asked: Cell::new(false) })
    }

    /// Asks those that are there. The only one is waited for.
    async fn ask(&self) -> anyhow::Result<Loads> {
        if let [only] = self.numbers[..] {
            let load = connect::for_administrators(self.client.load_of(only).await)?;
            return Ok(Loads::from([(only, load)]));
        }
        // A request to a server that is away waits in the client: the server is not asked again
        // before it is back. Connections are only made when something is asked.
        let asked_before = self.asked.replace(true);
        let away = if asked_before { self.client.servers_away() } else { Vec::new() };
        let client = self.client;
        let members = client.members();
        let there = self.numbers.iter().filter(|number| members.contains(number));
        let there = there.filter(|number| !away.contains(number));
        let asked = there.map(|number| async move {
            (*number, timeout(PATIENCE, client.load_of(*number)).await)
        });
        let mut loads = Loads::new();
        for (number, answer) in join_all(asked).await {
            // One may have left meanwhile.
            if let Ok(answer) = answer
                && (answer.is_ok() || client.members().contains(&number))
            {
                loads.insert(number, connect::for_administrators(answer)?);
            }
        }
        Ok(loads)
    }
}

/// Shows interval after interval until the user ends it.
async fn watch(
    servers: &Watched<'_>,
    mut before: Loads,
    args: &Args,
    screen: &mut Option<Screen>,
    stop: &mut Stop,
) -> anyhow::Result<()> {
    loop {
        let quit = async {
            match screen.as_mut() {
                Some(screen) => screen.quit().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            () = stop.asked() => return Ok(()),
            () = quit => return Ok(()),
        }
        let now = servers.ask().await?;
        let view = View::between(&before, &now, servers.client.members().len());
        match screen {
            Some(screen) => screen.draw(&view.to_text())?,
            None if args.json => output::print(&serde_json::to_string(&view)?)?,
            None => output::print(&(view.to_text() + if args.once { "" } else { "\n" }))?,
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

#[derive(Serialize)]
struct View {
    /// Servers that have answered, of so many.
    servers: Vec<u16>,
    servers_of: usize,
    seconds: f64,
    operations_per_second: f64,
    operations: Vec<Rate>,
    clients: Vec<Busy>,
    directories: Vec<Busy>,
    group_requests_mean: f64,
    gauges: serde_json::Map<String, serde_json::Value>,
    received_bytes_per_second: f64,
    sent_bytes_per_second: f64,
}

#[derive(Serialize)]
struct Rate {
    per_second: f64,
    failed_per_second: f64,
    #[serde(flatten)]
    operation: Operation,
}

#[derive(Serialize)]
struct Busy {
    name: String,
    id: String,
    per_second: f64,
}

impl View {
    fn between(before: &Loads, now: &Loads, servers_of: usize) -> View {
        // One that was restarted, or is back, has no rates until the next interval.
        let both = now.iter().filter_map(|(number, now)| {
            let before = before.get(number).filter(|before| before.at_us < now.at_us)?;
            Some((*number, (before, now)))
        });
        let (servers, pairs): (Vec<u16>, Vec<(&Load, &Load)>) = both.unzip();
        let intervals = pairs.iter().map(|(before, now)| now.at_us - before.at_us);
        let micros = intervals.max().unwrap_or(0);
        let (before, now): (Vec<&Load>, Vec<&Load>) = pairs.into_iter().unzip();
        let (before, now) = (&observed::together(&before), &observed::together(&now));
        let per_second = |count: u64| observed::ratio(count, micros) * 1e6;
        let earlier = |name: &str| before.operations.iter().find(|found| found.name == name);
        let passed = |operation: &wire::Operation| {
            let operation = observed::between(earlier(&operation.name), operation)?;
            let operation = Operation::from(&operation);
            let (per_second, failed) = (per_second(operation.count), per_second(operation.failed));
            Some(Rate { per_second, failed_per_second: failed, operation })
        };
        let mut operations: Vec<Rate> = now.operations.iter().filter_map(passed).collect();
        operations.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
        let counter = |load: &Load, name: &str| {
            load.counters.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value)
        };
        let bytes = |name| per_second(counter(now, name).saturating_sub(counter(before, name)));
        let groups = now.distributions.iter().find(|(name, _)| name == "group_requests");
        View {
            servers,
            servers_of,
            seconds: observed::ratio(micros, 1_000_000),
            operations_per_second: operations.iter().map(|rate| rate.per_second).sum(),
            operations,
            clients: now
                .busy_sessions
                .iter()
                .map(|busy| Busy {
                    name: busy.client.clone(),
                    id: busy.session.to_string(),
                    per_second: observed::ratio(busy.milli_rate, 1000),
                })
                .collect(),
            directories: now
                .busy_directories
                .iter()
                .map(|busy| Busy {
                    name: busy.path.clone(),
                    id: busy.dir.to_string(),
                    per_second: observed::ratio(busy.milli_rate, 1000),
                })
                .collect(),
            group_requests_mean: groups.map_or(0.0, |(_, groups)| observed::mean(groups)),
            gauges: observed::map(now.gauges.clone()),
            received_bytes_per_second: bytes("received_bytes"),
            sent_bytes_per_second: bytes("sent_bytes"),
        }
    }

    fn to_text(&self) -> String {
        let gauge =
            |name: &str| self.gauges.get(name).map_or_else(String::new, ToString::to_string);
        let mut text = observed::servers(&self.servers, self.servers_of);
        text += &format!(
            "{:.0} operations/s, {:.1} a group, {} connections, {} open files, {} queued, {} wait \
             for a sync\n\n",
            self.operations_per_second,
            self.group_requests_mean,
            gauge("connections"),
            gauge("open_inodes"),
            gauge("queued_requests"),
            gauge("sync_waiters"),
        );
        let row = |rate: &Rate| {
            vec![
                rate.operation.name.clone(),
                format!("{:.1}", rate.per_second),
                format!("{:.1}", rate.failed_per_second),
                micros(rate.operation.mean_us),
                micros(rate.operation.p50_us),
                micros(rate.operation.p99_us),
            ]
        };
        let heads = ["OPERATION", "PER SECOND", "FAILED", "MEAN", "P50", "P99"];
        text += &output::table(&heads, &self.operations.iter().map(row).collect::<Vec<_>>());
        for (head, busy) in [("CLIENT", &self.clients), ("DIRECTORY", &self.directories)] {
            let row = |busy: &Busy| {
                let name = match busy.name.as_str() {
                    "" if busy.id == OTHER_SERVERS => "(other servers)".to_owned(),
                    "" => format!("({}, which is gone)", busy.id),
                    name => name.to_owned(),
                };
                vec![format!("{:.1}", busy.per_second), name]
            };
            let rows: Vec<_> = busy.iter().take(10).map(row).collect();
            text += "\n";
            text += &output::table(&["PER SECOND", head], &rows);
        }
        text
    }
}
