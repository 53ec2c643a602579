//! The coordinator's part of a move of shards: the plan, and the commit.
//!
//! Always true: a plan is kept in memory only, and is void as soon as a server that it is of comes
//! with another process; this is decided under the same lock as the commit. So a process that
//! served after the copy was made, or lost it, is never overruled by an older plan.

use wire::{Retry, ShardMove};

use super::{State, here};
use crate::{
    cluster::Cluster,
    error::{Fault, Result},
    moves::plan::{self, Plan},
    server::Shared,
};

impl State {
    /// Notes that a process of a server asks for a lease.
    pub(super) fn void_plan_of_others(&mut self, (server, run): (u16, u64)) {
        let Some(plan) = &self.plan else { return };
        let is_other = plan.runs.iter().any(|(of, known)| *of == server && *known != run);
        if is_other {
            tracing::info!(server, "a server has begun anew: the shards stay where they are");
            self.plan = None;
        }
    }
}

/// Decides which shards move, so that the servers in `leave` have none.
pub(crate) fn plan(shared: &Shared, number: u64, leave: &[u16]) -> Result<Vec<ShardMove>> {
    let (cluster, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    let map = state.member.map.clone();
    if map.servers.is_empty() {
        return Err(Fault::Retry(Retry::Busy));
    }
    let known = |server: &u16| usize::from(*server) < map.servers.len();
    if let Some(server) = leave.iter().find(|server| !known(server)) {
        return Err(Fault::Refused(format!("there is no server {server}")));
    }
    if (0..).zip(&map.servers).all(|(server, _)| leave.contains(&server)) {
        return Err(Fault::Refused("no server would be left that has the shards".into()));
    }
    let moves = plan::plan(&map, leave);
    keep(cluster, &mut state, number, moves)
}

/// Takes over a plan that somebody else has made.
pub(crate) fn adopt(
    shared: &Shared,
    number: u64,
    mut moves: Vec<ShardMove>,
) -> Result<Vec<ShardMove>> {
    let (cluster, coordinator) = here(shared)?;
    // Lists of shards ascend everywhere.
    moves.sort_unstable_by_key(|it| it.shard);
    let mut state = coordinator.state.lock();
    plan::is_possible(&state.member.map, &moves).map_err(Fault::Refused)?;
    keep(cluster, &mut state, number, moves)
}

/// Keeps a plan, if all servers that it is of are there.
fn keep(
    cluster: &Cluster,
    state: &mut State,
    number: u64,
    moves: Vec<ShardMove>,
) -> Result<Vec<ShardMove>> {
    // A server both gives and gets only where somebody has moved shards by hand.
    let gives = |server: u16| moves.iter().any(|it| it.from == server);
    if let Some(both) = moves.iter().find(|it| gives(it.to)) {
        return Err(Fault::Refused(format!("server {} would both give and get shards", both.to)));
    }
    let mut part: Vec<u16> = moves.iter().flat_map(|it| [it.from, it.to]).collect();
    part.sort_unstable();
    part.dedup();
    let now = tokio::time::Instant::now();
    let mut runs = Vec::with_capacity(part.len());
    for server in part {
        let run =
            if server == cluster.me { Some(cluster.run) } else { state.leases.run_of(server) };
        let has_lease = state.leases.standing(server, now).is_some_and(|it| !it.left.is_zero());
        match run.filter(|_| has_lease) {
            Some(run) => runs.push((server, run)),
            None => return Err(Fault::Refused(format!("server {server} is away"))),
        }
    }
    if number == wire::moves::NO_PLAN {
        return Ok(moves);
    }
    state.plan = (!moves.is_empty()).then(|| Plan { number, moves: moves.clone(), runs });
    Ok(moves)
}

/// Gives the shards of a plan to those that have taken them. It is on stable storage when this
/// returns.
pub(crate) fn commit(shared: &Shared, number: u64) -> Result<()> {
    let (_, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    let state = &mut *state;
    let void = || Fault::Refused("the move is void: a server has begun anew".into());
    if state.committed == Some(number) {
        return Ok(());
    }
    let plan = state.plan.take_if(|plan| plan.number == number).ok_or_else(void)?;
    let map = plan::moved(&state.member.map, &plan.moves).ok_or_else(void)?;
    tracing::info!(epoch = map.epoch.0, shards = plan.moves.len(), "shards have moved");
    state.member.map = map;
    state.store_for(shared)?;
    state.committed = Some(number);
    state.has_news(shared);
    Ok(())
}
