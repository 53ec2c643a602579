//! `pando server balance --by-load`: shards of servers that have most to do move to others.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use client::{
    Client,
    balance::{Balancer, Because, Goal, Plan, ShardLoad, Step},
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{COPIED, bar};
use crate::output;

/// Requests a second of all servers together below which nothing moves.
const REQUESTS_A_SECOND_MIN: u64 = 50;

#[derive(Debug, clap::Args)]
pub(super) struct ByLoad {
    /// Compare servers by the requests that they answer, instead of by their shards.
    ///
    /// Shards move when one server has had more than 1.10 of the mean at three looks in a row, at
    /// most a fifth of all in an hour. A server that was drained gets shards again.
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
    /// Numbers of servers that have left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<u16>,
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
            let Some(now) = self.or_later(loads(client).await)? else {
                balancer.misses();
                continue;
            };
            let (servers, news) = (now.0, since(&before.1, &now.1));
            before = now;
            let Some(since) = news else {
                balancer.misses();
                continue;
            };
            let members = client.members();
            let left: Vec<u16> = (0..servers).filter(|it| !members.contains(it)).collect();
            let plan = balancer.look(began.elapsed(), &since, (servers, &left));
            let looked = self.looked(&since, (usize::from(servers), left), &plan);
            if json {
                output::print(&serde_json::to_string(&looked)?)?;
            } else {
                output::print(&looked.to_text(dry_run))?;
            }
            if !plan.steps.is_empty() && !dry_run {
                // Where it is not known whether they have moved, they may have.
                balancer.has_moved(began.elapsed(), &plan.steps);
                self.or_later(take(client, &plan.steps).await)?;
                // Servers that begin anew count anew.
                before = self.or_later(loads(client).await)?.unwrap_or(before);
            }
            if !self.follow && plan.because != Because::Waits {
                return Ok(());
            }
        }
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

    fn looked(
        &self,
        loads: &[ShardLoad],
        (servers, left): (usize, Vec<u16>),
        plan: &Plan,
    ) -> Looked {
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
            left,
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

async fn loads(client: &Client) -> anyhow::Result<(u16, Vec<ShardLoad>)> {
    client.shard_loads().await.context("cannot ask for the load of shards")
}

/// The requests since an earlier look; `None` if a server has begun anew meanwhile, and counts from
/// 0, or a shard has moved.
fn since(before: &[ShardLoad], now: &[ShardLoad]) -> Option<Vec<ShardLoad>> {
    let known: BTreeMap<_, _> =
        before.iter().map(|load| ((load.shard, load.server), load.requests)).collect();
    let news = |load: &ShardLoad| {
        let before = known.get(&(load.shard, load.server))?;
        Some(ShardLoad { requests: load.requests.checked_sub(*before)?, ..*load })
    };
    now.iter().map(news).collect()
}

async fn take(client: &Client, steps: &[Step]) -> anyhow::Result<()> {
    let moves: Vec<_> = steps.iter().map(|step| step.shard).collect();
    let bar = bar(COPIED);
    let moved = client.move_these_shards(&moves, &|records| bar.set_position(records)).await;
    bar.finish_and_clear();
    moved.context("the shards stay where they were").map(drop)
}

impl Looked {
    fn to_text(&self, dry_run: bool) -> String {
        let of = (0..).zip(&self.requests_per_s).filter(|(server, _)| !self.left.contains(server));
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
    fn requests_are_those_since_the_last_look_unless_a_server_has_begun_anew() {
        let load = |shard, server, requests| ShardLoad { shard: ShardId(shard), server, requests };
        let before = [load(1, 0, 100), load(2, 1, 500)];
        let now = [load(1, 0, 130), load(2, 1, 500)];
        assert_eq!(since(&before, &now), Some(vec![load(1, 0, 30), load(2, 1, 0)]));
        assert_eq!(since(&before, &[load(1, 0, 130), load(2, 1, 20)]), None);
        assert_eq!(since(&before, &[load(1, 1, 130), load(2, 1, 600)]), None);
    }
}
