//! `pando server`: the servers of a file system, and which shards each of them has.

mod by_load;

use std::{io::IsTerminal as _, process::ExitCode};

use anyhow::Context as _;
use clap::Subcommand;
use client::{Client, Moved};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use self::by_load::ByLoad;
use super::cluster::Cluster;
use crate::{
    connect::{self, Servers, TokenArgs},
    output,
};

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
    #[command(flatten)]
    how: How,
}

/// Move all shards away from servers, to the others.
///
/// The servers stay members of the cluster and must go on running; `pando server balance` gives
/// them shards again.
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
        if self.by_load.is_asked() {
            let how = (self.how.dry_run, self.how.json);
            return self.place.on(PURPOSE, async |client| self.by_load.run(client, how).await);
        }
        move_shards(self.place, &[], &self.how, PURPOSE)
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
}

fn move_shards(place: Place, leave: &[u16], how: &How, purpose: &str) -> anyhow::Result<()> {
    let moved = place.on(purpose, async |client| {
        if how.dry_run {
            let moves = client.plan_moves(leave).await.context("cannot say what would move")?;
            return Ok(Moved { moves, records: 0, waited: std::time::Duration::ZERO });
        }
        let bar = bar();
        let moved = client.move_shards_and_tell(leave, &|records| bar.set_position(records)).await;
        bar.finish_and_clear();
        moved.context("the shards stay where they were")
    })?;
    let mut pairs: Vec<(u16, u16)> = moved.moves.iter().map(|it| (it.from, it.to)).collect();
    pairs.sort_unstable();
    let between = pairs.chunk_by(|a, b| a == b);
    let between = between.map(|of| Between { from: of[0].0, to: of[0].1, shards: of.len() });
    let report = Report {
        moved: !how.dry_run,
        between: between.collect(),
        records: moved.records,
        waited_ms: moved.waited.as_millis(),
    };
    if how.json {
        return output::print_json(&report);
    }
    output::print(&report.to_text())
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("copied {pos} records in {elapsed}");
    ProgressBar::new(0).with_style(style.expect("the template is well-formed"))
}

impl Report {
    fn to_text(&self) -> String {
        if self.between.is_empty() {
            return "nothing has to move".to_owned();
        }
        let verb = if self.moved { "moved" } else { "would move" };
        let each = self.between.iter().map(|Between { from, to, shards }| {
            format!("{verb} {shards} shards from server {from} to server {to}\n")
        });
        let mut text: String = each.collect();
        if self.moved {
            text += &format!(
                "{} records; changes waited for {:.1} s",
                self.records,
                self.waited_ms as f64 / 1000.0
            );
        }
        text.trim_end().to_owned()
    }
}
