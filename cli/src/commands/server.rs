//! `pando server`: the servers of a file system, and which shards each of them has.

mod by_load;

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use client::{Client, Moved};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use wire::BalanceMode;

use self::by_load::ByLoad;
use super::cluster::Cluster;
use crate::{
    connect::{self, Servers, TokenArgs},
    output,
};

/// The progress of a copy.
const COPIED: &str = "copied {pos} records in {elapsed}";

/// List the servers of a file system, and move shards between them.
///
/// A server joins with `pando serve --join`, also when the file system has all the servers that it
/// was made for; `pando server balance` gives the new one its share.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Balance(Balance),
    Drain(Drain),
    Remove(Remove),
}

/// List the servers. Needs the administrator's token, as all of these do.
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    place: Place,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Give all servers equally many shards, or equally much to do.
///
/// Records are copied while everything goes on. Then changes wait for a moment, and servers that
/// lose or get shards begin anew. Programs see a pause of some tenths of a second and no error. If
/// this command or a server ends meanwhile, the shards stay where they were.
#[derive(Debug, clap::Args)]
struct Balance {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    by_load: ByLoad,
    /// Have server 0, which leads the others, look at the load every minute: not at all, or to say
    /// in `pando server list` which shards should move, or to move them. Nothing moves by this
    /// command then. Unless it was said, server 0 moves shards of file systems with hybrid
    /// placement, and says so of others.
    #[arg(long, value_enum, value_name = "MODE", conflicts_with_all = ["by_load", "dry_run"])]
    mode: Option<Mode>,
    #[command(flatten)]
    how: How,
}

/// Modes of the coordinator (`wire::BalanceMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Off,
    Advise,
    On,
}

/// Move all shards away from servers, to the others.
///
/// The servers stay members of the cluster and must go on running, and get no shards by load;
/// `pando server balance` without options gives them shards again. `pando server remove` takes one
/// out of the cluster.
#[derive(Debug, clap::Args)]
struct Drain {
    #[command(flatten)]
    place: Place,
    /// Numbers of the servers (see `pando server list`).
    #[arg(value_name = "N", required = true)]
    servers: Vec<u16>,
    #[command(flatten)]
    how: How,
}

/// Take a server out of the cluster: its process ends, and its data directory is not needed any more.
///
/// Shards move to the other servers first, as with `pando server drain`. Then it stays for the time
/// of a client's lease, as clients may still ask it for answers that were lost. Programs see a pause
/// of some tenths of a second and no error. If this command is interrupted, or a server ends
/// meanwhile, the server has left or is a member still: call it again. Server 0 leads the others and
/// cannot be removed.
#[derive(Debug, clap::Args)]
struct Remove {
    #[command(flatten)]
    place: Place,
    /// Number of the server (see `pando server list`).
    #[arg(value_name = "N")]
    number: u16,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct How {
    /// Say what would move, and move nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Place {
    /// A server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
}

impl Place {
    /// Does something as an administrator.
    fn on<T>(
        self,
        purpose: &str,
        work: impl AsyncFnOnce(&Client) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        connect::on(self.server, &self.token, purpose, work)
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List(list) => list.run(),
        Command::Balance(balance) => balance.run(),
        Command::Drain(drain) => drain.run(),
        Command::Remove(remove) => remove.run(),
    }?;
    Ok(ExitCode::SUCCESS)
}

impl List {
    fn run(self) -> anyhow::Result<()> {
        let cluster = self.place.on("pando server list", async |client| {
            connect::for_administrators(client.cluster().await).map(Cluster::from)
        })?;
        if self.json {
            return output::print_json(&cluster);
        }
        output::print(cluster.to_text().trim_end())
    }
}

impl Balance {
    fn run(self) -> anyhow::Result<()> {
        const PURPOSE: &str = "pando server balance";
        if let Some(mode) = self.mode {
            let told = match mode {
                Mode::Off => BalanceMode::Off,
                Mode::Advise => BalanceMode::Advise,
                Mode::On => BalanceMode::On,
            };
            return self.place.on(PURPOSE, async |client| {
                client.set_balance_mode(told).await.context("the mode stays what it was")
            });
        }
        if self.by_load.is_asked() {
            let how = (self.how.dry_run, self.how.json);
            return self.place.on(PURPOSE, async |client| self.by_load.run(client, how).await);
        }
        move_shards(self.place, &[], &self.how, PURPOSE)
    }
}

impl Remove {
    fn run(self) -> anyhow::Result<()> {
        let Remove { place, number: server, how } = self;
        let report = place.on("pando server remove", async |client| {
            anyhow::ensure!(server != 0, "server 0 leads the others and cannot be removed");
            let moved = drain(client, &[server], &how).await?;
            if how.dry_run {
                return Ok(Report::of(&moved, &how));
            }
            let bar = bar("server {msg} leaves in {pos} s, when no client can ask it any more");
            bar.set_message(server.to_string());
            let tell = |left: Duration| bar.set_position(left.as_secs() + 1);
            let left = client.let_leave(server, &tell).await;
            bar.finish_and_clear();
            left.with_context(|| format!("server {server} may be a member still"))?;
            Ok(Report { left: Some(server), ..Report::of(&moved, &how) })
        })?;
        report.print(&how)
    }
}

impl Drain {
    fn run(self) -> anyhow::Result<()> {
        move_shards(self.place, &self.servers, &self.how, "pando server drain")
    }
}

/// Shards that have moved, or would, from one server to another.
#[derive(Serialize)]
struct Between {
    from: u16,
    to: u16,
    shards: usize,
}

#[derive(Serialize)]
struct Report {
    moved: bool,
    between: Vec<Between>,
    records: u64,
    waited_ms: u128,
    /// Number of the server that has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u16>,
}

fn move_shards(place: Place, leave: &[u16], how: &How, purpose: &str) -> anyhow::Result<()> {
    let moved = place.on(purpose, async |client| drain(client, leave, how).await)?;
    Report::of(&moved, how).print(how)
}

/// Moves shards so that the servers in `leave` have none, or says which would.
async fn drain(client: &Client, leave: &[u16], how: &How) -> anyhow::Result<Moved> {
    if how.dry_run {
        let moves = client.plan_moves(leave).await.context("cannot say what would move")?;
        return Ok(Moved { moves, records: 0, waited: Duration::ZERO });
    }
    let bar = bar(COPIED);
    let moved = client.move_shards_and_tell(leave, &|records| bar.set_position(records)).await;
    bar.finish_and_clear();
    moved.context("the shards stay where they were")
}

fn bar(template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(0).with_style(style.expect("the template is well-formed"))
}

impl Report {
    fn of(moved: &Moved, how: &How) -> Report {
        let mut pairs: Vec<(u16, u16)> = moved.moves.iter().map(|it| (it.from, it.to)).collect();
        pairs.sort_unstable();
        let between = pairs.chunk_by(|a, b| a == b);
        let between = between.map(|of| Between { from: of[0].0, to: of[0].1, shards: of.len() });
        Report {
            moved: !how.dry_run,
            between: between.collect(),
            records: moved.records,
            waited_ms: moved.waited.as_millis(),
            left: None,
        }
    }

    fn print(&self, how: &How) -> anyhow::Result<()> {
        if how.json {
            return output::print_json(self);
        }
        output::print(&self.to_text())
    }

    fn to_text(&self) -> String {
        let left = self.left.map(|server| format!("server {server} has left the cluster"));
        if self.between.is_empty() {
            return left.unwrap_or_else(|| "nothing has to move".to_owned());
        }
        let verb = if self.moved { "moved" } else { "would move" };
        let each = self.between.iter().map(|Between { from, to, shards }| {
            format!("{verb} {shards} shards from server {from} to server {to}\n")
        });
        let mut text: String = each.collect();
        if self.moved {
            text += &format!(
                "{} records; changes waited for {:.1} s\n",
                self.records,
                self.waited_ms as f64 / 1000.0
            );
        }
        text += &left.unwrap_or_default();
        text.trim_end().to_owned()
    }
}
