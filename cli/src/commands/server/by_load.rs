//! `pando server balance --by-load`: shards of servers that have most to do move to others.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use client::{
    Client,
    balance::{Balancer, Because, Goal, Plan, ShardLoad, Step},
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::bar;
use crate::output;

/// Requests a second of all servers together below which nothing moves.
const REQUESTS_A_SECOND_MIN: u64 = 50;

#[derive(Debug, clap::Args)]
pub(super) struct ByLoad {
    /// Compare servers by the requests that they answer, instead of by their shards.
    ///
    /// Shards move when one server has had more than 1.10 of the mean at three looks in a row, at
    /// most a fifth of all in an hour.
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
    largest_of_mean: f64,
    moves: Vec<Move>,
    because: &'static str,
}

#[derive(Serialize)]
struct Move {
    shard: u16,
    from: u16,
    to: u16,
    requests_per_s: f64,
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
        let requests_min = REQUESTS_A_SECOND_MIN * self.look;
        let mut balancer = Balancer::new(Goal { requests_min, ..Goal::default() });
        let began = Instant::now();
        let mut before = loads(client).await?;
        loop {
            sleep(Duration::from_secs(self.look)).await;
            let now = loads(client).await?;
            let servers = client.cluster().await?.servers.len();
            let since = since(&before, &now);
            before = now;
            let of = (u16::try_from(servers)?, &[][..]);
            let plan = balancer.look(began.elapsed(), &since, of);
            let looked = self.looked(&since, servers, &plan);
            if json {
                output::print(&serde_json::to_string(&looked)?)?;
            } else {
                output::print(&looked.to_text(dry_run))?;
            }
            if !plan.steps.is_empty() && !dry_run {
                take(client, &plan.steps).await?;
                balancer.has_moved(began.elapsed(), &plan.steps);
                // Servers that begin anew count anew.
                before = loads(client).await?;
            }
            if !self.follow && plan.because != Because::Waits {
                return Ok(());
            }
        }
    }

    fn looked(&self, loads: &[ShardLoad], servers: usize, plan: &Plan) -> Looked {
        let per_s = |requests: u64| requests as f64 / self.look as f64;
        let mut of = vec![0; servers];
        for load in loads {
            if let Some(of) = of.get_mut(usize::from(load.server)) {
                *of += load.requests;
            }
        }
        let moves = plan.steps.iter().map(|step| Move {
            shard: step.shard.shard.0,
            from: step.shard.from,
            to: step.shard.to,
            requests_per_s: per_s(step.requests),
            largest_of_mean: step.largest,
        });
        Looked {
            requests_per_s: of.into_iter().map(per_s).collect(),
            largest_of_mean: plan.largest,
            moves: moves.collect(),
            because: match plan.because {
                Because::Even => "all servers have about equally much to do",
                Because::Waits => "one server has too much to do: looking on before shards move",
                Because::Idle => "there are too few requests to compare servers",
                Because::NoStep => "no move of one shard makes it better",
                Because::Hour => "enough shards have moved within an hour",
            },
        }
    }
}

async fn loads(client: &Client) -> anyhow::Result<Vec<ShardLoad>> {
    client.shard_loads().await.context("cannot ask for the load of shards")
}

/// The requests since an earlier look.
fn since(before: &[ShardLoad], now: &[ShardLoad]) -> Vec<ShardLoad> {
    let known: BTreeMap<_, _> =
        before.iter().map(|load| ((load.shard, load.server), load.requests)).collect();
    let news = |load: &ShardLoad| {
        let before = known.get(&(load.shard, load.server)).copied().unwrap_or(0);
        // A server that has begun anew counts from 0.
        let requests = load.requests.checked_sub(before).unwrap_or(load.requests);
        ShardLoad { requests, ..*load }
    };
    now.iter().map(news).collect()
}

async fn take(client: &Client, steps: &[Step]) -> anyhow::Result<()> {
    let moves: Vec<_> = steps.iter().map(|step| step.shard).collect();
    let bar = bar();
    let moved = client.move_these_shards(&moves, &|records| bar.set_position(records)).await;
    bar.finish_and_clear();
    moved.context("the shards stay where they were").map(drop)
}

impl Looked {
    fn to_text(&self, dry_run: bool) -> String {
        let of = self.requests_per_s.iter().enumerate();
        let of = of.map(|(server, per_s)| format!("server {server} {per_s:.0}/s"));
        let of: Vec<String> = of.collect();
        let mut text =
            format!("{}; largest {:.2} of the mean\n", of.join(", "), self.largest_of_mean);
        let verb = if dry_run { "would move" } else { "moving" };
        for Move { shard, from, to, requests_per_s, largest_of_mean } in &self.moves {
            text += &format!(
                "{verb} shard {shard}, {requests_per_s:.0}/s, from server {from} to server {to}: \
                 largest {largest_of_mean:.2}\n"
            );
        }
        text + self.because
    }
}

#[cfg(test)]
mod tests {
    use base::ShardId;

    use super::*;

    #[test]
    fn requests_are_those_since_the_last_look_also_where_a_server_has_begun_anew() {
        let load = |shard, server, requests| ShardLoad { shard: ShardId(shard), server, requests };
        let before = [load(1, 0, 100), load(2, 1, 500), load(3, 0, 10)];
        let now = [load(1, 0, 130), load(2, 1, 20), load(3, 1, 7)];
        assert_eq!(since(&before, &now), [load(1, 0, 30), load(2, 1, 20), load(3, 1, 7)]);
    }
}
