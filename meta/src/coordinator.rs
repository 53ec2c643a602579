//! The coordinator: the owner of shard 0, which decides for all servers of a cluster.
//!
//! The coordinator has the cluster map and gives leases. It gives the versions of the invalidation
//! log and tells every server what is in it. It knows which renames of directories may go on
//! together. `driver` hands it the requests of servers and administrators; initiators of renames
//! and permission changes of directories call [`announce`]. The decisions are pure, in the files
//! below; here are the lock around them and their IO. State that must outlive a restart is stable
//! before anybody sees it. That waits for a sync, and happens when servers join or move, and once
//! in many thousand versions.
//!
//! Always true: an announced event is in the list of every server that may serve, and what any of
//! them had checked without it is written. Versions are never given twice.

pub(crate) mod ancestry_hints;
pub(crate) mod graph;
mod leases;
mod link;
pub(crate) mod roster;
pub(crate) mod run;
pub(crate) mod state;
mod watch;

use std::sync::atomic::Ordering;

use base::{DirId, Epoch};
use tokio::time::Instant;
use wire::{
    Announce, CacheEvents, ClusterStatus, Heartbeat, InDoubt, Join, Joined, Lease, Retry, Secret,
    ServerStatus,
};

use self::{
    leases::Beat,
    roster::Place,
    state::{Coordinator, State, VERSIONS_RESERVED},
};
use crate::{
    bugs::Bug,
    cluster::Cluster,
    error::{Fault, Result},
    invalidation::Invalidations,
    millis::millis,
    record::{Record as _, key},
    server::{Durability, Shared},
};

impl State {
    /// Makes the state stable, and with it the blocks that the log names before it: after a power
    /// cut that took one of them, the log would be cut there.
    fn store_for(&self, shared: &Shared) -> Result<()> {
        shared.engine.write(self.to_batch())?;
        shared.make_stable().map_err(Fault::Halt)
    }

    /// Reserves versions so that all up to `version` may be given.
    fn reserve(&mut self, shared: &Shared, version: u64) -> Result<()> {
        let before = self.roster.versions_end;
        if version >= before {
            self.roster.versions_end = version + VERSIONS_RESERVED;
            if let Err(fault) = self.store_for(shared) {
                self.roster.versions_end = before;
                return Err(fault);
            }
        }
        Ok(())
    }
}

/// Returns the coordinator's part of this server.
fn here(shared: &Shared) -> Result<(&Cluster, &Coordinator)> {
    let Some(cluster) = &shared.cluster else {
        return Err(Fault::Refused("this file system was formatted for one server".into()));
    };
    match &cluster.coordinator {
        Some(coordinator) => Ok((cluster, coordinator)),
        None => Err(Fault::Retry(Retry::Coordinate)),
    }
}

/// Lets a server join the cluster, or find its number again.
pub(crate) fn join(shared: &Shared, req: &Join) -> Result<Joined> {
    let (cluster, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    let server = match state.roster.join(cluster.servers, req) {
        Place::Known(server) => server,
        Place::New(server) => {
            state.store_for(shared)?;
            tracing::info!(server, address = req.address, "a server has joined");
            server
        }
        Place::Full => {
            return Err(Fault::Refused(format!(
                "the cluster has all of the {} servers that it was formatted for",
                cluster.servers
            )));
        }
    };
    drop(state);
    let config = shared.engine.get(&key::config())?.expect("no server opens without one");
    Ok(Joined { server, config })
}

/// Answers the heartbeat of a server with its lease.
pub(crate) fn heartbeat(
    shared: &Shared,
    (from, run): (u16, u64),
    req: &Heartbeat,
) -> Result<Lease> {
    let (cluster, coordinator) = here(shared)?;
    let mut state = coordinator.state.lock();
    if usize::from(from) >= state.roster.members.len() {
        return Err(Fault::Refused(format!("no server has joined as number {from}")));
    }
    let state = &mut *state;
    if state.roster.heard(from, &req.address) {
        let (servers, shards) = (cluster.servers, shared.config.shards);
        let map = state.roster.deal(servers, shards, &state.member.map);
        if let Some(map) = map {
            tracing::info!(epoch = map.epoch.0, servers = ?map.servers, "a new cluster map");
            state.member.map = map;
        }
        state.store_for(shared)?;
        cluster.learn(state.member.map.clone());
    }
    let map = &state.member.map;
    let map = (map.epoch > req.epoch && map.epoch > Epoch(0)).then(|| map.clone());
    // A server may ask many times before it has its list; only the first of them begins it anew.
    if req.version == 0 && !req.kept_all && state.leases.is_first_loss(from, run) {
        begin_anew(shared, state)?;
    }
    let events = events_since(&shared.invalidations, req.version);
    let Heartbeat { version, requests, roots, in_doubt, strict, .. } = *req;
    let (ms, beat) = (state.lease_ms(), Beat { version, requests, roots, in_doubt, strict });
    state.leases.beat(from, Instant::now(), beat, ms > 0);
    coordinator.changed.notify_waiters();
    // Race: the settings of this server may have changed since it asked.
    let present = shared.settings().to_record();
    let settings = (from != cluster.me && present != req.settings).then_some(present);
    let ring = shared.keys.get();
    let differs = from != cluster.me && ring.ring.version != req.keys;
    let is_behind = differs && ring.ring.is_older_than(req.keys);
    if is_behind && state.rings_behind.due().is_some() {
        tracing::error!(
            server = from,
            "this server's key ring is older than another's: its data are those of an old copy, by \
             which revoked tokens would be good again; revoke them, or retire their key, once more"
        );
    }
    let keys = (differs && !is_behind).then(|| Secret(ring.ring.to_record()));
    let roots = shared.quotas.news(req.roots).filter(|_| from != cluster.me);
    Ok(Lease { ms, map, events, settings, keys, roots })
}

/// Begins the invalidation list anew, because a server has lost something that it had answered. The
/// loss has no event, so nothing that was cached before counts any more: here at once, and
/// everywhere with the next heartbeat.
fn begin_anew(shared: &Shared, state: &mut State) -> Result<()> {
    let version = shared.invalidations.version() + 1;
    state.reserve(shared, version)?;
    shared.invalidations.begin_anew(version, &[]);
    Ok(())
}

/// The events that a server at `version` must take in. A server that was restarted, at version 0,
/// gets the whole list, so that clients it told before need not drop their caches.
fn events_since(log: &Invalidations, version: u64) -> CacheEvents {
    if version == 0 {
        return log.all();
    }
    let now = log.version();
    match log.since(version) {
        None => CacheEvents { version: now, reset: false, dirs: Vec::new() },
        Some(events) if events.reset => log.all(),
        Some(events) => events,
    }
}

/// Gives the next versions of the log to `dirs`, and returns the last of them. By then every server
/// has them in its list and has written what it had checked without them, or may not serve before
/// it has. Records prepared for the change stay prepared until the caller has committed.
///
/// # Errors
/// When this server is not the coordinator, or cannot store that the versions are used.
pub(crate) async fn announce(shared: &Shared, dirs: &[DirId]) -> Result<u64> {
    let (cluster, coordinator) = here(shared)?;
    let (version, ends) = {
        let mut state = coordinator.state.lock();
        let version = shared.invalidations.version() + dirs.len() as u64;
        state.reserve(shared, version)?;
        shared.invalidations.add(dirs);
        (version, state.leases.ends())
    };
    coordinator.changed.notify_waiters();
    if shared.bugs.has(Bug::AnnounceNotAwaited) {
        return Ok(version);
    }
    let own = async {
        let settled = shared.settle_events().await;
        coordinator.acknowledged(cluster.me, settled);
        std::future::pending::<()>().await;
    };
    let all = async {
        loop {
            let changed = coordinator.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let wait = coordinator.state.lock().leases.wait_until(version, &ends, Instant::now());
            let Some(until) = wait else { return };
            // After `until` fewer servers are waited for.
            let _ = tokio::time::timeout_at(until, changed).await;
        }
    };
    tokio::select! {
        biased;
        () = own => unreachable!("it does not end"),
        () = all => Ok(version),
    }
}

/// Takes in events that the coordinator announces; `Busy` when earlier events are missing here.
pub(crate) fn take_in(shared: &Shared, from: u16, req: &Announce) -> Result<()> {
    if from != 0 {
        return Err(Fault::Refused("only the coordinator announces".into()));
    }
    if shared.bugs.has(Bug::VersionWithoutEvent) {
        let nothing = vec![DirId(u128::MAX); req.dirs.len()];
        shared.invalidations.take_in(req.after, &nothing);
    }
    if shared.invalidations.take_in(req.after, &req.dirs) {
        Ok(())
    } else {
        Err(Fault::Retry(Retry::Busy))
    }
}

/// Number of servers that were heard of within a lease; `None` on a server that is not the
/// coordinator.
pub(crate) fn heard(shared: &Shared) -> Option<u16> {
    let Some(cluster) = &shared.cluster else { return Some(1) };
    let state = cluster.coordinator.as_ref()?.state.lock();
    let now = Instant::now();
    let recently = |server: &u16| {
        let standing = state.leases.standing(*server, now);
        standing.and_then(|standing| standing.silent).is_some_and(|silent| silent < state.lease())
    };
    let heard = (0..cluster.servers).filter(recently).count();
    Some(u16::try_from(heard).expect("no more than there are"))
}

/// The status of the cluster, for administrators; the only server of a file system reports itself.
pub(crate) fn status(shared: &Shared) -> Result<ClusterStatus> {
    if shared.cluster.is_none() {
        return Ok(alone(shared));
    }
    let (cluster, coordinator) = here(shared)?;
    let renames = coordinator.graph().len() as u64;
    let state = coordinator.state.lock();
    let (map, now) = (&state.member.map, Instant::now());
    let mut problems: Vec<_> = state.roster.missing(cluster.servers).into_iter().collect();
    let mut servers = Vec::new();
    for (server, member) in (0..).zip(&state.roster.members) {
        let Some(standing) = state.leases.standing(server, now) else { continue };
        let has = map.shards.iter().filter(|owner| **owner == server).count();
        if standing.left.is_zero() && !map.servers.is_empty() {
            let silent = standing.silent.map_or_else(
                || "nothing was heard of it since the coordinator started".to_owned(),
                |silent| format!("nothing was heard of it for {} s", silent.as_secs()),
            );
            problems.push(format!("server {server} at {} has no lease: {silent}", member.address));
        }
        let strict = shared.options.durability == Durability::Strict;
        if standing.silent.is_some() && standing.strict != strict {
            let durability = |strict| if strict { "strict" } else { "relaxed" };
            let (its, ours) = (durability(standing.strict), durability(strict));
            problems.push(format!(
                "server {server} has --durability {its}, and the coordinator {ours}: start both alike"
            ));
        }
        if let Some(InDoubt { count, oldest_ms, server: waited_for }) = standing.in_doubt {
            problems.push(format!(
                "transactions in doubt on server {server}: {count}, the oldest for {} s; \
                 waiting for server {waited_for}",
                oldest_ms / 1000
            ));
        }
        servers.push(ServerStatus {
            server,
            address: member.address.clone(),
            shards: u16::try_from(has).expect("no more than there are"),
            lease_ms: if map.servers.is_empty() { 0 } else { millis(standing.left) },
            version: standing.version,
            requests: standing.requests,
            in_doubt: standing.in_doubt,
        });
    }
    Ok(ClusterStatus {
        servers_expected: cluster.servers,
        servers,
        epoch: map.epoch,
        version: shared.invalidations.version(),
        renames,
        problems,
    })
}

fn alone(shared: &Shared) -> ClusterStatus {
    let version = shared.invalidations.version();
    let server = ServerStatus {
        server: 0,
        address: shared.options.address.clone(),
        shards: shared.config.shards,
        lease_ms: 0,
        version,
        requests: shared.counters.requests.load(Ordering::Relaxed),
        in_doubt: None,
    };
    let (servers, epoch) = (vec![server], shared.alone.epoch);
    ClusterStatus { servers_expected: 1, servers, epoch, version, renames: 0, problems: vec![] }
}

#[cfg(test)]
pub(crate) mod tests;
