//! `pando server balance --by-load`: shards of servers that have most to do move to others.

use std::time::Duration;

use client::{
    Client,
    balance::{Because, ShardLoad},
};
use serde::Serialize;
use tokio::time::sleep;

use super::{COPIED, bar};
use crate::{
    balancing::{self, Seen, Watcher},
    output,
};

#[derive(Debug, clap::Args)]
pub(super) struct ByLoad {
    /// Compare servers by the requests that they answer and by what they store, instead of by their
    /// shards.
    ///
    /// Shards move when one server has had more than 1.10 of the mean at three looks in a row, at
    /// most a fifth of all in an hour. A server that was drained gets none.
    #[arg(long)]
    by_load: bool,
    /// Pause between two looks at the load.
    #[arg(long, requires = "by_load", default_value_t = 20, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    look: u64,
    /// Go on looking, and moving, until interrupted.
    #[arg(long, requires = "by_load")]
    follow: bool,
}

/// The outcome of one look.
#[derive(Serialize)]
struct Looked {
    /// Requests a second of each server.
    requests_per_s: Vec<f64>,
    /// Bytes of records of each server.
    stored_bytes: Vec<u64>,
    /// Numbers of servers that have left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<u16>,
    /// Absent where there are too few requests to compare servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_of_mean: Option<f64>,
    /// Absent where too little is stored to compare servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_of_mean: Option<f64>,
    moves: Vec<Move>,
    because: &'static str,
}

#[derive(Serialize)]
struct Move {
    shard: u16,
    from: u16,
    to: u16,
    requests_per_s: f64,
    stored_bytes: u64,
    largest_of_mean: f64,
}

impl ByLoad {
    pub(super) fn is_asked(&self) -> bool {
        self.by_load
    }

    /// Looks until there is nothing to do, or for ever.
    pub(super) async fn run(
        &self,
        client: &Client,
        (dry_run, json): (bool, bool),
    ) -> anyhow::Result<()> {
        let period = Duration::from_secs(self.look);
        let mut watcher = Watcher::new(period);
        // The second look is the first with anything to compare with.
        self.look(client, &mut watcher).await?;
        loop {
            sleep(period).await;
            let Some(seen) = self.or_later(self.look(client, &mut watcher).await)?.flatten() else {
                continue;
            };
            let looked = self.looked(&seen);
            if json {
                output::print(&serde_json::to_string(&looked)?)?;
            } else {
                output::print(&looked.to_text(dry_run))?;
            }
            let plan = &seen.plan;
            if !plan.steps.is_empty() && !dry_run {
                let bar = bar(COPIED);
                let tell = |records| bar.set_position(records);
                let taken = watcher.take(client, &plan.steps, &tell).await;
                bar.finish_and_clear();
                self.or_later(taken)?;
                self.or_later(self.look(client, &mut watcher).await)?;
            }
            if !self.follow && plan.because != Because::Waits {
                return Ok(());
            }
        }
    }

    async fn look(&self, client: &Client, watcher: &mut Watcher) -> anyhow::Result<Option<Seen>> {
        let drained = client.cluster().await?.balance.drained;
        watcher.look(client, &drained).await
    }

    /// With `--follow` an error, as while a server is away, is logged, and the next look comes.
    fn or_later<T>(&self, done: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.follow => {
                tracing::warn!(error = format!("{error:#}"), "looking again later");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn looked(&self, Seen { servers, left, loads, plan }: &Seen) -> Looked {
        let per_s = |requests: u64| requests as f64 / self.look as f64;
        let of_servers = |amount: fn(&ShardLoad) -> u64| {
            let mut of = vec![0; usize::from(*servers)];
            for load in loads {
                if let Some(of) = of.get_mut(usize::from(load.server)) {
                    *of += amount(load);
                }
            }
            of
        };
        let moves = plan.steps.iter().map(|step| Move {
            shard: step.shard.shard.0,
            from: step.shard.from,
            to: step.shard.to,
            requests_per_s: per_s(step.requests),
            stored_bytes: step.bytes,
            largest_of_mean: step.largest.of_all(),
        });
        Looked {
            requests_per_s: of_servers(|load| load.requests).into_iter().map(per_s).collect(),
            stored_bytes: of_servers(|load| load.bytes),
            left: left.clone(),
            requests_of_mean: plan.largest.requests,
            stored_of_mean: plan.largest.bytes,
            moves: moves.collect(),
            because: balancing::words(plan.because),
        }
    }
}

impl Looked {
    fn to_text(&self, dry_run: bool) -> String {
        let of = (0..).zip(self.requests_per_s.iter().zip(&self.stored_bytes));
        let of = of.filter(|(server, _)| !self.left.contains(server));
        let of: Vec<String> = of
            .map(|(server, (per_s, stored))| {
                format!("server {server} {per_s:.0}/s {}", output::bytes(*stored))
            })
            .collect();
        let shares = balancing::shares(self.requests_of_mean, self.stored_of_mean);
        let mut text = format!("{}{shares}\n", of.join(", "));
        let verb = if dry_run { "would move" } else { "moving" };
        for Move { shard, from, to, requests_per_s, stored_bytes, largest_of_mean } in &self.moves {
            text += &format!(
                "{verb} shard {shard}, {requests_per_s:.0}/s {}, from server {from} to server \
                 {to}: largest {largest_of_mean:.2}\n",
                output::bytes(*stored_bytes)
            );
        }
        text + self.because
    }
}
