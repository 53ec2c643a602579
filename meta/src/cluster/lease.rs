//! How a server takes in a lease.

use std::time::Duration;

use base::ClusterMap;
use store::Batch;
use wire::{Admission, Lease};

use super::{Cluster, member::Member};
use crate::{
    bugs::Bug,
    keys::ring::KeyRing,
    problem::Problem,
    record::{Record as _, Settings, key},
    server::Shared,
};

/// Takes in a lease that was asked for at `asked`: first the missing events of the invalidation
/// list and a newer map, which is stable before it counts, and then the time.
///
/// Race: while this server had no lease, others may have gone on without it. So before it may serve
/// again it writes what its cores had executed but not written, and what they had checked without
/// the events that the lease brings.
pub(crate) async fn take_lease(
    shared: &Shared,
    cluster: &Cluster,
    asked: Duration,
    lease: Lease,
) -> Result<(), Problem> {
    if !is_admitted(shared, cluster, &lease)? {
        return Ok(());
    }
    let failed = |error: store::Error| Problem::of(&error);
    let Lease { ms, map, events, settings, keys, roots, .. } = lease;
    // First of all: with the first lease of a start clients are let in again.
    match keys.map(|keys| KeyRing::from_record(&keys.0)) {
        None => {}
        Some(Ok(_)) if shared.bugs.has(Bug::RingNotTaken) => {}
        Some(Ok(ring)) => {
            let mut batch = Batch::default();
            batch.put(&key::key_ring(), &ring.to_record());
            shared.put(batch).map_err(failed)?;
            tracing::info!(newest = ring.newest, revoked = ring.revoked.len(), "another key ring");
            shared.keys.set(ring);
        }
        Some(Err(error)) => {
            tracing::error!(%error, "the coordinator's key ring cannot be read");
            return Ok(());
        }
    }
    let after = events.version.saturating_sub(events.dirs.len() as u64);
    if events.reset {
        shared.invalidations.begin_anew(events.version, &events.dirs);
    } else if !shared.invalidations.take_in(after, &events.dirs) {
        // The events do not follow on the list, so this lease does not answer the last request:
        // ignore it.
        return Ok(());
    }
    if let Some(map) = map.as_ref().filter(|map| cluster.begins_anew_with(map)) {
        return Err(begin_anew(shared, cluster, map)?);
    }
    // The coordinator has stored its own.
    if map.is_some_and(|map| cluster.learn(map)) && !cluster.coordinates() {
        let mut batch = Batch::default();
        batch.put(&key::member(), &cluster.to_member().to_record());
        shared.engine.write(batch).map_err(failed)?;
        // The blocks that the log names must be stable too: a power cut that takes one cuts the log
        // there.
        shared.make_stable()?;
    }
    match settings.map(|settings| Settings::from_record(&settings)) {
        None => {}
        Some(Ok(settings)) => {
            let mut batch = Batch::default();
            batch.put(&key::settings(), &settings.to_record());
            shared.put(batch).map_err(failed)?;
            shared.set_settings(settings);
            tracing::info!(?settings, "the settings of the file system have changed");
        }
        Some(Err(error)) => tracing::error!(%error, "the coordinator has other settings"),
    }
    if let Some(Err(error)) = roots.map(|roots| shared.quotas.learn(&roots)) {
        tracing::error!(%error, "the coordinator has other quotas");
    }
    if !cluster.has_lease() {
        shared.gate.settled().await;
    }
    shared.settle_events().await;
    if ms > 0 {
        cluster.extend_lease(asked + Duration::from_millis(ms));
    }
    Ok(())
}

/// Stores a map by which this server has other shards, or the servers are others: the next start
/// finds all that belongs to it.
fn begin_anew(shared: &Shared, cluster: &Cluster, map: &ClusterMap) -> Result<Problem, Problem> {
    // The coordinator has stored it.
    if !cluster.coordinates() {
        let member = Member { map: map.clone(), ..cluster.to_member() };
        let member = Member { servers: member.count(), ..member };
        let mut batch = Batch::default();
        batch.put(&key::member(), &member.to_record());
        shared.engine.write(batch).map_err(|error| Problem::of(&error))?;
        shared.make_stable()?;
    }
    Ok(Problem::begins_anew("shards have moved, or a server has joined or left"))
}

/// Takes in what a lease says of generations: whether this process may use it.
fn is_admitted(shared: &Shared, cluster: &Cluster, lease: &Lease) -> Result<bool, Problem> {
    let own = &cluster.own;
    let (keeps, follows_anew) = own.keeps_to(lease.coordinator, lease.position);
    if !keeps {
        let (here, there) = (own.follows().0.number, lease.coordinator.number);
        tracing::warn!(here, there, "another coordinator answers than the one that counts");
        return Ok(false);
    }
    let generation = match &lease.admission {
        Admission::Admitted(generation) => *generation,
        Admission::Waits(ms) => {
            let time = Duration::from_millis(*ms);
            if own.must_wait(time) {
                tracing::warn!(
                    ?time,
                    "the process that served this directory before may still serve: waiting until \
                     its lease has ended for certain, and in another place for the time `alone` \
                     too. If its machine is off, `pando serve --replace` waits for the lease only"
                );
            }
            return Ok(false);
        }
        Admission::Ended(reason) => {
            if own.is_refused(shared.position_at_start) {
                cluster.store_served(shared)?;
                shared.make_stable()?;
            }
            return Err(Problem::because(reason.clone()));
        }
        Admission::Left => return Err(Problem::leaves(cluster.me)),
    };
    if own.takes(generation) | follows_anew {
        cluster.store_served(shared)?;
        // The coordinator is told that the directory has the generation: no older copy gets one.
        shared.make_stable()?;
        own.is_stored();
    } else if own.should_keep_follows() {
        // An older position finds older copies only: this need not be stable.
        cluster.store_served(shared)?;
    }
    for (server, generation) in (0..).zip(&lease.generations) {
        own.knows(server, *generation);
    }
    match own.is_outdated(own.known(cluster.me)) {
        Some(problem) => Err(problem),
        None => Ok(true),
    }
}

impl Cluster {
    /// Has the data directory know what is known of this process. The coordinator stores that with
    /// its own state.
    pub(crate) fn store_served(&self, shared: &Shared) -> Result<(), Problem> {
        if self.coordinates() {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put(&key::member(), &self.to_member().to_record());
        shared.put(batch).map_err(|error| Problem::of(&error))
    }
}
