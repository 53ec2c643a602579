//! Moves of shards from one server to others.
//!
//! The client of an administrator leads ([`wire::moves`]). All servers pause as for a dump, so that
//! nothing that concerns several servers is half done (`dump::pause`). The servers that shards
//! leave stop: they execute nothing more, and everything is stable. Those that get the shards pull
//! the records as they are stored. Then the coordinator stores the next map, which is the commit
//! (`coordinator::moves`), and each server begins anew with that map: a start finds in the store
//! all that it must know, and clients come back as after any restart. So nothing that is in memory
//! moves.
//!
//! Always true: the coordinator's map alone says whose a shard is, and no server serves a shard
//! that was another's when it began. When the coordinator stores the map, those that get shards have
//! them on stable storage, and those that had them execute nothing. Records of a shard that is not
//! a server's are never looked at there, and go when the coordinator was heard ([`arrival`]).
//!
//! Paper: SFS §3.7 (servers join and leave), HSM² §3.3 (subtrees migrate).

pub(crate) mod ahead;
pub(crate) mod arrival;
mod give;
mod leave;
pub(crate) mod loads;
mod measure;
pub(crate) mod plan;
pub(crate) mod state;
mod take;

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;
use wire::{MoveStage, MoveStep, Reply, Request, Retry};

pub(crate) use self::give::{block, pull};
use crate::{
    Problem,
    bugs::Bug,
    coordinator,
    error::{Fault, Result},
    record::key,
    server::Shared,
};

/// Time after which a server that has stopped begins anew when nobody tells it to any more.
const STOPPED_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks whether there is a lease.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Whether a server that has stopped for a move answers a request all the same.
pub(crate) fn is_answered(shared: &Shared, request: &Request) -> bool {
    let is_of_move = matches!(
        request,
        Request::Move(_)
            | Request::ShardPull(_)
            | Request::ShardBlock(_)
            | Request::PeerHello(_)
            | Request::Heartbeat(_)
            | Request::Ping
    );
    is_of_move && shared.moves.is_stopped()
}

/// Takes a step of a move.
pub(crate) async fn step(shared: &Shared, step: MoveStep) -> Result<Reply> {
    let MoveStep { plan, stage } = step;
    if shared.cluster.is_none() {
        return Err(Fault::Refused("this file system has one server".into()));
    }
    match stage {
        MoveStage::Plan(leave) => coordinator::moves::plan(shared, plan, &leave).map(Reply::Plan),
        MoveStage::Adopt(moves) => coordinator::moves::adopt(shared, plan, moves).map(Reply::Plan),
        MoveStage::Loads => measure::loads(shared).await.map(Reply::Loads),
        MoveStage::Mode(mode) => coordinator::looks::set(shared, mode).map(|()| Reply::Nothing),
        MoveStage::Looked(look) => coordinator::looks::saw(shared, look).map(|()| Reply::Nothing),
        MoveStage::Leave(server) => leave::may(shared, plan, server).map(Reply::Job),
        MoveStage::Charges(server) => leave::charges(shared, plan, server).await.map(Reply::Job),
        MoveStage::Stop => stop(shared, plan).await.map(|()| Reply::Nothing),
        MoveStage::Ahead(from) => take::ahead(shared, plan, &from).await.map(Reply::Job),
        MoveStage::Copied => {
            shared.moves.is_led_on(plan);
            Ok(Reply::Job(shared.moves.records.load(Ordering::Relaxed)))
        }
        MoveStage::Busy => {
            let is_busy = shared.moves.is_part()
                || shared.dumps.is_making()
                || shared.pauses.are_any()
                || shared.jobs.are_checking();
            Ok(Reply::Job(u64::from(is_busy)))
        }
        MoveStage::Take(from) => take::once(shared, plan, &from).await.map(Reply::Job),
        MoveStage::Commit => coordinator::moves::commit(shared, plan).map(|()| Reply::Nothing),
        MoveStage::Over => {
            if shared.moves.is_stopped_for(plan) {
                shared.moves.is_led_no_more();
                // With the map that the coordinator has now.
                if let Some(cluster) = &shared.cluster {
                    cluster.asks.notify_one();
                }
            }
            Ok(Reply::Nothing)
        }
    }
}

/// Executes nothing more: what is stored is what the servers that get shards pull.
async fn stop(shared: &Shared, plan: u64) -> Result<()> {
    match shared.moves.is_led(plan) {
        Some(true) => return Ok(()),
        Some(false) => return Err(Fault::Retry(Retry::Busy)),
        None => {}
    }
    if !shared.cluster.as_ref().is_some_and(crate::cluster::Cluster::has_lease) {
        return Err(Fault::Retry(Retry::Busy));
    }
    shared.pauses.held_until(plan)?;
    let mut batch = store::Batch::default();
    batch.put(&key::elsewhere(), &[]);
    shared.put(batch).map_err(|error| Fault::Halt(Problem::of(&error)))?;
    shared.moves.stops(plan);
    if shared.bugs.has(Bug::ServesWhileMoving) {
        shared.pauses.end(plan);
        shared.moves.has_stopped();
        return Ok(());
    }
    shared.halt(Problem::waits("shards move, or a server leaves"));
    shared.gate.settled().await;
    shared.make_stable().map_err(Fault::Halt)?;
    // All changes have waited until the server had stopped.
    shared.pauses.held_until(plan)?;
    shared.moves.has_stopped();
    Ok(())
}

/// Begins anew when nobody leads the move any more. The coordinator knows whether it was completed.
pub(crate) async fn watch(shared: &Shared) {
    loop {
        let Some(told) = shared.moves.told() else { return };
        let until = told + STOPPED_MAX;
        if Instant::now() >= until {
            tracing::warn!("nobody leads the move any more");
            return shared.halt(Problem::begins_anew("a move was given up"));
        }
        tokio::time::sleep_until(until).await;
    }
}

/// Returns when this server knows whose its shards are: at once, unless some may have moved since it
/// heard of the coordinator. Work in the background on a shard that is another server's could remove
/// blocks that are in use there.
pub(crate) async fn until_owner(shared: &Shared) {
    let Some(cluster) = &shared.cluster else { return };
    while matches!(shared.engine.get(&key::elsewhere()), Ok(Some(_))) && !cluster.has_lease() {
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

/// Removes records of shards that are other servers', once the coordinator has said whose they are.
pub(crate) async fn sweep(shared: &Shared) {
    until_owner(shared).await;
    match arrival::sweep(shared).await {
        Ok(()) => shared.moves.is_swept(),
        Err(fault) => {
            fault.answer(shared);
        }
    }
}
