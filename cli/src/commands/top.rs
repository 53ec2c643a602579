//! `pando top`: what a server is asked for right now, by operation, client and directory.
//!
//! On a terminal it is a page that is drawn again and again; elsewhere a text for each interval, or JSON, a
//! line for each. Rates of operations are the difference of two moments; those of clients and directories are
//! the server's own estimates of the last seconds.

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use client::Client;
use serde::Serialize;
use wire::Load;

use crate::{
    connect::{self, Servers, TokenArgs},
    observed::{self, Operation, micros},
    output,
    signals::Stop,
    terminal::Screen,
};

/// Show what a server is asked for, until q or Ctrl-C. Needs the administrator's token.
///
/// Rates are of the latest interval; those of clients and directories are estimates of the last 5 to 10 seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Show one interval, and end.
    #[arg(long)]
    once: bool,
    /// Print JSON, a line for each interval.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(50)..=Duration::from_secs(3600);
    if allowed.contains(&time) {
        Ok(time)
    } else {
        Err("it must be between 50ms and 1h".to_owned())
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0, args.token.read()?, "pando top");
    let on_terminal = !args.json && !args.once && std::io::stdout().is_terminal();
    connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let client = connect::connect(config).await?;
        // An error of the first question goes to the terminal as it was found.
        let first = connect::for_administrators(client.server_load().await)?;
        let mut screen = if on_terminal { Some(Screen::take()?) } else { None };
        let shown =
            watch(&client, first, &args.interval, args.once, args.json, &mut screen, &mut stop);
        let shown = shown.await;
        drop(screen);
        client.close().await?;
        shown
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Shows interval after interval until somebody ends it.
async fn watch(
    client: &Client,
    mut before: Load,
    interval: &Duration,
    once: bool,
    json: bool,
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
            () = tokio::time::sleep(*interval) => {}
            () = stop.asked() => return Ok(()),
            () = quit => return Ok(()),
        }
        let now = client.server_load().await?;
        let view = View::between(&before, &now);
        match screen {
            Some(screen) => screen.draw(&view.to_text())?,
            None if json => output::print(&serde_json::to_string(&view)?)?,
            None => output::print(&(view.to_text() + if once { "" } else { "\n" }))?,
        }
        if once {
            return Ok(());
        }
        before = now;
    }
}

#[derive(Serialize)]
struct View {
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
    fn between(before: &Load, now: &Load) -> View {
        let micros = now.at_us.saturating_sub(before.at_us);
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
        let mut text = format!(
            "{:.0} operations/s, {:.1} a group, {} connections, {} open files, {} queued, {} wait for a sync\n\n",
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
                let name =
                    if busy.name.is_empty() { format!("({})", busy.id) } else { busy.name.clone() };
                vec![format!("{:.1}", busy.per_second), name]
            };
            let rows: Vec<_> = busy.iter().take(10).map(row).collect();
            text += "\n";
            text += &output::table(&["PER SECOND", head], &rows);
        }
        text
    }
}
