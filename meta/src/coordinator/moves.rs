//! The coordinator's part of a move of shards, and of a server that leaves: the plan, and the commit.
//!
//! Always true: a plan is kept in memory only, and is void as soon as a server that it is of comes
//! with another process; this is decided under the same lock as the commit. So a process that
//! served after the copy was made, or lost it, is never overruled by an older plan.

use std::collections::BTreeMap;

use base::ClusterMap;
use store::Batch;
use tokio::time::Instant;
use wire::{Retry, ShardMove};

use super::{State, here};
use crate::{
    Problem,
    bugs::Bug,
    cluster::Cluster,
    error::{Fault, Result},
    moves::plan::{self, Change, Leave, Plan},
    record::{
        QuotaId, Record as _, Usage,
        key::{self, UsagePart},
    },
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
    leave.iter().try_for_each(|server| is_member(&map, *server))?;
    if map.members().all(|server| leave.contains(&server)) {
        return Err(Fault::Refused("no server would be left that has the shards".into()));
    }
    let leave = &state.balance.with_drained(leave, map.members());
    let moves = plan::plan(&map, leave);
    if moves.is_empty() && number != wire::moves::NO_PLAN && state.balance.drains(leave) {
        state.store_for(shared)?;
    }
    keep(cluster, &mut state, number, (moves, Some(leave.to_vec())))
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
    keep(cluster, &mut state, number, (moves, None))
}

/// Decides that a server leaves, which has no shards.
pub(crate) fn leave(shared: &Shared, number: u64, server: u16) -> Result<()> {
    let (cluster, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    if server == cluster.me {
        return Err(Fault::Refused("the server that leads the others cannot leave".into()));
    }
    is_member(&state.member.map, server)?;
    if plan::without(&state.member.map, server).is_none() {
        return Err(has_shards(server));
    }
    let runs = runs_of(cluster, &state, vec![cluster.me, server])?;
    if number != wire::moves::NO_PLAN {
        let change = Change::Leave(Leave { server, charges: None });
        state.plan = Some(Plan { number, change, runs, drains: None });
    }
    Ok(())
}

/// Notes what a server that leaves has charged to quotas.
pub(crate) fn take_charges(
    shared: &Shared,
    (number, server): (u64, u16),
    charges: BTreeMap<QuotaId, Usage>,
) -> Result<()> {
    let (_, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    let plan = state.plan.as_mut().filter(|plan| plan.number == number).ok_or_else(void)?;
    match &mut plan.change {
        Change::Leave(leave) if leave.server == server => leave.charges = Some(charges),
        Change::Leave(_) | Change::Shards(_) => return Err(void()),
    }
    Ok(())
}

/// Keeps a plan of shards that move, if all servers that it is of are there.
fn keep(
    cluster: &Cluster,
    state: &mut State,
    number: u64,
    (moves, drains): (Vec<ShardMove>, Option<Vec<u16>>),
) -> Result<Vec<ShardMove>> {
    // A server both gives and gets only where somebody has moved shards by hand.
    let gives = |server: u16| moves.iter().any(|it| it.from == server);
    if let Some(both) = moves.iter().find(|it| gives(it.to)) {
        return Err(Fault::Refused(format!("server {} would both give and get shards", both.to)));
    }
    let mut part: Vec<u16> = moves.iter().flat_map(|it| [it.from, it.to]).collect();
    part.sort_unstable();
    part.dedup();
    let runs = runs_of(cluster, state, part)?;
    if number != wire::moves::NO_PLAN {
        let kept = || Plan { number, change: Change::Shards(moves.clone()), runs, drains };
        state.plan = (!moves.is_empty()).then(kept);
    }
    Ok(moves)
}

/// The processes of servers, each of which is there.
fn runs_of(cluster: &Cluster, state: &State, part: Vec<u16>) -> Result<Vec<(u16, u64)>> {
    let now = Instant::now();
    let run_of = |server: u16| {
        let run =
            if server == cluster.me { Some(cluster.run) } else { state.leases.run_of(server) };
        let has_lease = state.leases.standing(server, now).is_some_and(|it| !it.left.is_zero());
        let away = || Fault::Refused(format!("server {server} is away"));
        run.filter(|_| has_lease).map(|run| (server, run)).ok_or_else(away)
    };
    part.into_iter().map(run_of).collect()
}

/// Stores the map of after a plan: shards are those' that have taken them, or a server has left. It
/// is on stable storage when this returns.
pub(crate) fn commit(shared: &Shared, number: u64) -> Result<()> {
    let (_, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    let state = &mut *state;
    if state.committed == Some(number) {
        return Ok(());
    }
    let plan = state.plan.take_if(|plan| plan.number == number).ok_or_else(void)?;
    match plan.change {
        Change::Shards(moves) => {
            let map = plan::moved(&state.member.map, &moves).ok_or_else(void)?;
            tracing::info!(epoch = map.epoch.0, shards = moves.len(), "shards have moved");
            state.member.map = map;
            if let Some(leave) = plan.drains {
                state.balance.drains(&leave);
            }
            state.store_for(shared)?;
        }
        Change::Leave(leave) => state.lets_leave(shared, leave)?,
    }
    state.committed = Some(number);
    state.has_news(shared);
    Ok(())
}

impl State {
    /// Stores that a server has left, and as this server's what it had charged to quotas. This
    /// server has stopped, so nothing is charged meanwhile, and reads it when it begins anew.
    fn lets_leave(&mut self, shared: &Shared, leave: Leave) -> Result<()> {
        let Leave { server, charges } = leave;
        let map = plan::without(&self.member.map, server).ok_or_else(void)?;
        let charges = charges.ok_or_else(void)?;
        let failed = |error: store::Error| Fault::Halt(Problem::of(&error));
        let mut batch = Batch::default();
        for (root, charged) in charges.iter().filter(|_| !shared.bugs.has(Bug::ChargesLeftBehind)) {
            let at = key::usage(*root, UsagePart::Core(0));
            let known = shared.engine.get(&at).map_err(failed)?;
            let known = known.map(|known| Usage::from_record(&known)).transpose()?;
            batch.put(&at, &known.unwrap_or_default().plus(*charged).to_record());
        }
        let (epoch, before) = (map.epoch.0, (self.member.clone(), self.roster.clone()));
        self.member.map = map;
        self.roster.leaves(server);
        batch.append(&self.to_batch());
        let stored = shared.put(batch).map_err(failed);
        if let Err(fault) = stored.and_then(|()| shared.make_stable().map_err(Fault::Halt)) {
            // Told of what may not be stored, the process of that server would end.
            (self.member, self.roster) = before;
            return Err(fault);
        }
        self.leases.leaves(server, Instant::now());
        tracing::info!(epoch, server, "a server has left the cluster");
        Ok(())
    }
}

fn is_member(map: &ClusterMap, server: u16) -> Result<()> {
    if map.has_left(server) {
        return Err(Fault::Refused(format!("server {server} has left already")));
    }
    let there_is_none = || Fault::Refused(format!("there is no server {server}"));
    map.address(server).map(drop).ok_or_else(there_is_none)
}

/// The refusal of a server that has shards.
pub(crate) fn has_shards(server: u16) -> Fault {
    Fault::Refused(format!("server {server} has shards: drain it first"))
}

fn void() -> Fault {
    Fault::Refused("the plan is void: a server has begun anew".into())
}
