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
pub(crate) mod balance;
pub(crate) mod generations;
pub(crate) mod graph;
mod leases;
pub(crate) mod link;
pub(crate) mod looks;
pub(crate) mod moves;
mod news;
pub(crate) mod roster;
pub(crate) mod run;
pub(crate) mod state;
mod watch;

use std::{sync::atomic::Ordering, time::Duration};

use base::{ClusterMap, DirId, Epoch, Locality};
use tokio::time::Instant;
use wire::{
    Admission, Announce, CacheEvents, ClusterStatus, Heartbeat, InDoubt, Join, Joined, Lease,
    Retry, Secret, ServerStatus,
};

use self::{
    generations::{Before, Judged},
    leases::Beat,
    news::News,
    roster::Place,
    state::{Coordinator, State, VERSIONS_RESERVED},
};
use crate::{
    Problem,
    bugs::Bug,
    cluster::Cluster,
    error::{Fault, Result},
    invalidation::Invalidations,
    millis::millis,
    record::{Record as _, key},
    server::{Durability, Shared},
};

/// Period in which the positions of servers are stored.
const POSITIONS_PERIOD: Duration = Duration::from_secs(10);

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
    let is_dealt = !state.member.map.servers.is_empty();
    let server = match state.roster.join(cluster.servers, req) {
        Place::Known(server) => server,
        Place::Left(server) => {
            return Err(Fault::Refused(format!(
                "this directory is that of server {server}, which has left the cluster: join with \
                 an empty one"
            )));
        }
        Place::New(server) => {
            state.store_for(shared)?;
            tracing::info!(server, address = req.address, "a server has joined");
            server
        }
        Place::Grows(_) if !is_dealt => {
            state.roster.members.pop();
            return Err(Fault::Refused(format!(
                "the {} servers that the cluster was formatted for have not all served yet",
                cluster.servers
            )));
        }
        Place::Grows(server) if server >= shared.config.shards => {
            state.roster.members.pop();
            let reason = "no numbers are left for servers: there are as many as shards";
            return Err(Fault::Refused(reason.into()));
        }
        Place::Grows(server) if server > cluster.servers => {
            state.roster.members.pop();
            let before = &state.roster.members[usize::from(cluster.servers)];
            return Err(Fault::Refused(format!(
                "server {} at {} has joined and has not served yet: start it first",
                cluster.servers, before.address
            )));
        }
        Place::Grows(server) => {
            state.store_for(shared)?;
            tracing::info!(server, address = req.address, "another server has joined");
            server
        }
    };
    drop(state);
    let config = shared.engine.get(&key::config())?.expect("no server opens without one");
    Ok(Joined { server, config, is_dealt })
}

/// Lets a process serve, or not: judges its generation, and stores the one that it is given.
fn admit(
    shared: &Shared,
    cluster: &Cluster,
    state: &mut State,
    (from, run): (u16, u64),
    req: &Heartbeat,
) -> Result<Admission> {
    if from == cluster.me {
        return Ok(Admission::Admitted(state.roster.generations.of(from)));
    }
    let end = |reason: String| {
        shared.halt(Problem::because(reason.clone()));
        Err(Fault::Refused(reason))
    };
    let (term, follows, at) = (state.term(), req.life.follows, req.life.follows_at);
    if let Some(reason) = generations::another(term, follows, from)
        && !shared.bugs.has(Bug::OtherCoordinatorIgnored)
    {
        return end(reason);
    }
    // A server that has kept to no coordinator since may know more than the old copy.
    let restored = follows.number < state.roster.generations.restored_in();
    if follows.number < term.number && at > shared.position_at_start && !restored {
        return end(generations::lacks(from, at, shared.position_at_start));
    }
    let now = Instant::now();
    let (heard, until) = state.leases.known(from);
    let address = state.roster.members[usize::from(from)].address.clone();
    let before = Before { until, heard, address: &address };
    let known = state.roster.generations.clone();
    let State { roster, waiting, .. } = &mut *state;
    let rest = (now, restored, shared.bugs);
    let judged = roster.generations.judge(waiting, (from, run), &req.life, before, rest);
    match judged {
        Judged::Has(generation) => Ok(Admission::Admitted(generation)),
        Judged::Given(generation) => {
            if !shared.bugs.has(Bug::GenerationNotStored)
                && let Err(fault) = state.store_for(shared)
            {
                state.roster.generations = known;
                return Err(fault);
            }
            cluster.own.knows(from, generation);
            tracing::info!(server = from, generation, "a server has begun");
            Ok(Admission::Admitted(generation))
        }
        Judged::Waits(time) => Ok(Admission::Waits(millis(time).max(1))),
        Judged::Ends(reason) => {
            tracing::warn!(server = from, reason, "a process is refused");
            Ok(Admission::Ended(reason))
        }
        Judged::IsOld(reason) => end(reason),
    }
}

/// Stores that the coordinator's own data are checked, which began with an old copy.
pub(crate) fn store_checked(shared: &Shared) -> std::result::Result<(), Problem> {
    let Some(cluster) = &shared.cluster else { return Ok(()) };
    let Some(coordinator) = &cluster.coordinator else { return Ok(()) };
    let mut state = coordinator.state.lock();
    state.member.last.0.unchecked = false;
    shared.engine.write(state.to_batch()).map_err(|error| Problem::of(&error))?;
    shared.make_stable()
}

/// Answers a process that is not let in.
fn not_admitted(state: &State, req: &Heartbeat, admission: Admission) -> Lease {
    Lease {
        ms: 0,
        map: None,
        events: CacheEvents { version: req.version, reset: false, dirs: Vec::new() },
        settings: None,
        keys: None,
        roots: None,
        admission,
        coordinator: state.term(),
        position: 0,
        generations: Vec::new(),
        since_ms: 0,
    }
}

/// Takes in what a heartbeat says of the process besides. Returns whether it still serves.
fn hear(shared: &Shared, state: &mut State, from: u16, req: &Heartbeat) -> Result<bool> {
    let now = Instant::now();
    if state.roster.generations.beat(from, &req.life) {
        state.leases.end(from, now);
        state.store_for(shared)?;
        tracing::info!(server = from, "a server has stopped");
    }
    if now - state.positions_stored.1 >= POSITIONS_PERIOD {
        let positions = state.roster.generations.positions();
        if positions != state.positions_stored.0 {
            state.positions_stored = (positions, now);
            // Older positions in the roster find older copies only: this need not be stable.
            shared.put(state.to_batch())?;
        }
    }
    Ok(!req.life.resigns)
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
    if state.roster.has_left(from) {
        return Ok(not_admitted(state, req, Admission::Left));
    }
    if from >= cluster.servers {
        return grow(shared, state, from, req);
    }
    state.void_plan_of_others((from, run));
    let admission = admit(shared, cluster, state, (from, run), req)?;
    if !matches!(admission, Admission::Admitted(_)) || !hear(shared, state, from, req)? {
        return Ok(not_admitted(state, req, admission));
    }
    let is_outdated = req.epoch > state.member.map.epoch && !state.member.map.servers.is_empty();
    if is_outdated && req.epoch.moves() != state.member.map.epoch.moves() {
        // Only maps of after the move say whose the shards are.
        let reason = format!(
            "server {from} knows of a move of shards after this copy of the coordinator's directory \
             was made: it cannot be brought back"
        );
        shared.halt(Problem::because(reason.clone()));
        return Err(Fault::Refused(reason));
    }
    if is_outdated {
        // The server had its map from a coordinator that this directory, an older copy, knows
        // nothing of. This map is the one that counts now.
        tracing::warn!(server = from, epoch = req.epoch.0, "a server has a later cluster map");
        state.member.map.epoch = Epoch(req.epoch.0 + 1);
    }
    if state.roster.heard(from, &req.address) || is_outdated {
        let (servers, shards) = (cluster.servers, shared.config.shards);
        let map = state.roster.deal(servers, shards, &state.member.map);
        if let Some(map) = map {
            tracing::info!(epoch = map.epoch.0, servers = ?map.servers, "a new cluster map");
            state.member.map = map;
        }
        state.store_for(shared)?;
        // A map that gives this server other shards comes with its own lease.
        if !cluster.begins_anew_with(&state.member.map) {
            cluster.learn(state.member.map.clone());
        }
    }
    let map = &state.member.map;
    let map = (map.epoch > req.epoch && map.epoch > Epoch(0)).then(|| map.clone());
    let map = state.gives_map(cluster, from, map);
    // A server may ask many times before it has its list; only the first of them begins it anew.
    if req.version == 0 && !req.kept_all && state.leases.is_first_loss(from, run) {
        begin_anew(shared, state)?;
    }
    let events = events_since(&shared.invalidations, req.version);
    let Heartbeat { version, requests, roots, in_doubt, strict, .. } = *req;
    let unchecked = req.life.unchecked;
    let beat = Beat { version, requests, roots, in_doubt, strict, unchecked };
    let (ms, now) = (state.lease_ms(), Instant::now());
    state.leases.beat(from, now, beat, ms > 0);
    let since_ms = millis(state.leases.answers(from, run, now));
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
    let (generations, coordinator) = (state.roster.generations.numbers(), state.term());
    Ok(Lease {
        ms,
        map,
        events,
        settings,
        keys,
        roots,
        admission,
        coordinator,
        position: shared.stable_position.load(Ordering::Acquire),
        generations,
        since_ms,
    })
}

/// Takes in a server that has joined a complete cluster and serves now: it is in the next map, with
/// which all servers begin anew.
fn grow(shared: &Shared, state: &mut State, from: u16, req: &Heartbeat) -> Result<Lease> {
    if !shared.is_halted() && state.roster.heard(from, &req.address) {
        let (servers, shards) = (from + 1, shared.config.shards);
        let map = state.roster.deal(servers, shards, &state.member.map);
        state.member.map = map.unwrap_or_else(|| state.member.map.clone());
        state.member.servers = servers;
        state.store_for(shared)?;
        tracing::info!(servers, "the cluster has one server more");
        state.has_news(shared);
    }
    Err(Fault::Retry(Retry::Busy))
}

impl State {
    /// Calls all servers, which begin anew with the map that was stored.
    fn has_news(&mut self, shared: &Shared) {
        let Ok((cluster, coordinator)) = here(shared) else { return };
        let left = |server: &u16| self.roster.has_left(*server);
        let others = cluster.others().filter(|server| !left(server));
        self.news = Some(News::new(others, Instant::now()));
        coordinator.changed.notify_waiters();
        cluster.asks.notify_one();
    }

    /// The map that a server is given; this one has it when the others do.
    fn gives_map(
        &mut self,
        cluster: &Cluster,
        server: u16,
        map: Option<ClusterMap>,
    ) -> Option<ClusterMap> {
        match &mut self.news {
            Some(news) if server == cluster.me => {
                self.news.take_if(|news| news.is_told(Instant::now())).and(map)
            }
            Some(news) => {
                if map.is_some() && news.is_given_to(server) {
                    cluster.asks.notify_one();
                }
                map
            }
            None => map,
        }
    }
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
    let recently = |server: &u16| state.hears_of(*server, now);
    let members = (0..cluster.servers).filter(|server| !state.roster.has_left(*server));
    let heard = members.filter(recently).count();
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
    let members = (0..).zip(&state.roster.members);
    for (server, member) in members.filter(|(server, _)| !state.roster.has_left(*server)) {
        let Some(standing) = state.leases.standing(server, now) else { continue };
        let has = map.shards.iter().filter(|owner| **owner == server).count();
        if standing.left.is_zero() && !map.servers.is_empty() {
            let why = match standing.silent {
                None => "nothing was heard of it since the coordinator started".to_owned(),
                Some(silent) if silent < cluster.options.lease => {
                    "it asks for one, and may have to wait".to_owned()
                }
                Some(silent) => format!("nothing was heard of it for {} s", silent.as_secs()),
            };
            problems.push(format!("server {server} at {} has no lease: {why}", member.address));
        }
        let strict = shared.options.durability == Durability::Strict;
        if standing.silent.is_some() && standing.strict != strict {
            let durability = |strict| if strict { "strict" } else { "relaxed" };
            let (its, ours) = (durability(standing.strict), durability(strict));
            problems.push(format!(
                "server {server} has --durability {its}, and the coordinator {ours}: start both alike"
            ));
        }
        if standing.unchecked {
            problems.push(unchecked(server));
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
    let is_hybrid = shared.config.locality == Locality::Hybrid;
    Ok(ClusterStatus {
        servers_expected: cluster.members(),
        servers,
        epoch: map.epoch,
        version: shared.invalidations.version(),
        renames,
        problems,
        balance: state.balance.status(is_hybrid, now),
    })
}

/// The problem of a server whose directory is an old copy.
pub(crate) fn unchecked(server: u16) -> String {
    format!(
        "server {server} serves an old copy of its data (--restored), and nothing has checked it \
         since: run `pando fsck --repair`"
    )
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
    ClusterStatus {
        servers_expected: 1,
        servers,
        epoch,
        version,
        renames: 0,
        problems: vec![],
        balance: balance::alone(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
