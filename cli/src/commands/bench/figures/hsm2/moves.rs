//! Shards that move by load, as the coordinator would have them moved, at the time of an experiment.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use base::ShardId;
use client::{
    Client,
    balance::{Balancer, Goal, Plan, ShardLoad},
};
use tokio::time::sleep;

/// Looks at loads, and moves until nothing is to move, at most.
const TURNS: usize = 12;
/// Pause after a look that has let servers write out what they store, until it is counted.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// A planner at work, with the time that it is told.
pub(super) struct Mover {
    balancer: Balancer,
    before: BTreeMap<ShardId, ShardLoad>,
    /// Number of shards that have moved.
    pub(super) moved: usize,
}

impl Mover {
    pub(super) fn new(goal: Goal) -> Mover {
        Mover { balancer: Balancer::new(goal), before: BTreeMap::new(), moved: 0 }
    }

    /// The shards with the requests since the last call; of a server that has begun anew since, all
    /// that it counts.
    pub(super) async fn loads(&mut self, client: &Client) -> anyhow::Result<Vec<ShardLoad>> {
        let (_, now) = client.shard_loads().await.context("the load of shards is not known")?;
        let now_by_shard: BTreeMap<_, _> = now.iter().map(|load| (load.shard, *load)).collect();
        let before = std::mem::replace(&mut self.before, now_by_shard);
        let since = |load: ShardLoad| {
            let known = before.get(&load.shard).filter(|known| known.server == load.server);
            let known = known.map_or(0, |known| known.requests);
            ShardLoad {
                requests: load.requests.checked_sub(known).unwrap_or(load.requests),
                ..load
            }
        };
        Ok(now.into_iter().map(since).collect())
    }

    /// Plans by these loads, and has the shards moved.
    pub(super) async fn act(
        &mut self,
        client: &Client,
        now: Duration,
        loads: &[ShardLoad],
    ) -> anyhow::Result<Plan> {
        let plan = self.balancer.look(now, loads, (client.servers(), &[]));
        if !plan.steps.is_empty() {
            let moves: Vec<_> = plan.steps.iter().map(|step| step.shard).collect();
            client.move_these_shards(&moves, &|_| ()).await.context("shards do not move")?;
            self.balancer.has_moved(now, &plan.steps);
            self.moved += moves.len();
        }
        Ok(plan)
    }
}

/// Moves shards under a load, which `ask` makes once, until no server has too much, or none can move
/// any more. Returns how many have moved.
pub(super) async fn even_out(
    client: &Client,
    ask: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let goal = Goal {
        begins_above: 1.04,
        ends_at: 1.02,
        looks: 1,
        an_hour: 1e9,
        rest: Duration::ZERO,
        requests_min: 1,
        bytes_min: 1,
    };
    let mut mover = Mover::new(goal);
    mover.loads(client).await?;
    sleep(WRITTEN_WITHIN).await;
    for turn in 0..TURNS {
        mover.loads(client).await?;
        ask().await?;
        let loads = mover.loads(client).await?;
        let now = Duration::from_secs(3600 * u64::try_from(turn).unwrap_or(0));
        if mover.act(client, now, &loads).await?.steps.is_empty() {
            break;
        }
    }
    Ok(mover.moved)
}
