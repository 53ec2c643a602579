//! The exchange between the coordinator and the other servers: each asks for its lease again and
//! again, and the coordinator tells each what it has announced. One core runs it.
//!
//! Always true: before a server has a lease, it has taken in all that was announced before the
//! lease was given. It has also written what its cores had executed without those events, or under
//! a lease that has ended. Announcements go to a server in order, one message at a time; those that
//! it did not acknowledge are told again.

use std::{sync::atomic::Ordering, time::Duration};

use wire::{Announce, Heartbeat, Life, Reply, Request};

use super::{
    Coordinator, heartbeat,
    link::{Link, Lost},
    watch::Watch,
};
use crate::{
    Core, Problem,
    cluster::{Cluster, lease::take_lease},
    millis::millis,
    record::Record as _,
    server::{Durability, Shared},
    transact::PATIENCE,
};

/// Number of times that a server asks for its lease while it lasts.
const BEATS_A_LEASE: u32 = 4;
/// Pause before a server that could not be told is told again, and before a server without a lease
/// asks the coordinator again.
const AGAIN_PAUSE: Duration = Duration::from_millis(50);

/// Runs for as long as the server does.
pub(crate) async fn run(core: Core) {
    let shared = &core.inner.shared;
    let Some(cluster) = &shared.cluster else { return };
    let tell = async {
        if let Some(coordinator) = &cluster.coordinator {
            let tell = cluster.others().map(|server| {
                tell(shared, coordinator, Link::new(shared, cluster, server), server)
            });
            let call = cluster.others().filter(|_| cluster.options.calls);
            let call = call.map(|server| call_in(shared, cluster, coordinator, server));
            let (tell, call) = (futures::future::join_all(tell), futures::future::join_all(call));
            Box::pin(async { futures::join!(tell, call) }).await;
        }
    };
    tokio::join!(keep_lease(shared, cluster), go_alone(shared, cluster), tell);
}

/// Asks for leases, again and again.
async fn keep_lease(shared: &Shared, cluster: &Cluster) {
    let mut coordinator = Link::new(shared, cluster, 0);
    let mut watch = Watch::default();
    let mut answered = None;
    loop {
        let (asked, version) = (cluster.time(), shared.invalidations.version());
        let is_over = shared.moves.is_over();
        let asking = ask(shared, cluster, &mut coordinator, &mut answered, asked);
        let given = Box::pin(asking).await.unwrap_or_default();
        watch.look(shared, cluster);
        let has_news = cluster.coordinator.as_ref().is_some_and(Coordinator::has_news);
        if is_over && !has_news {
            // The lease would have brought the map of the move.
            shared.halt(Problem::begins_anew("the move of shards is over"));
            return std::future::pending().await;
        }
        // After its list has begun anew, the server says so at once: until then no announcement can
        // be told to it.
        if shared.invalidations.began_anew_since(version) {
            continue;
        }
        let pause = (given / BEATS_A_LEASE).saturating_sub(cluster.time() - asked).max(AGAIN_PAUSE);
        let pause = if has_news { AGAIN_PAUSE } else { pause };
        let _ = tokio::time::timeout(pause, cluster.asks.notified()).await;
    }
}

/// Lets requests that stand on no cached path go on whenever the lease has ended.
///
/// Race: a core may have executed a request under the lease, and write it only now. Later requests
/// must find its effect: a directory that it stood on may have moved since, and the effect counts
/// as done before that move.
async fn go_alone(shared: &Shared, cluster: &Cluster) {
    let mut alone = false;
    loop {
        let left = cluster.lease_left();
        let ended = left.is_zero() && cluster.had_lease();
        if ended && !alone {
            shared.gate.settled().await;
        }
        alone = ended;
        cluster.set_alone(alone);
        tokio::time::sleep(left.max(AGAIN_PAUSE)).await;
    }
}

/// Asks for a lease once, and returns how long the lease is. `answered` is when the request before
/// was asked, if it was answered.
async fn ask(
    shared: &Shared,
    cluster: &Cluster,
    coordinator: &mut Link<'_>,
    answered: &mut Option<Duration>,
    asked: Duration,
) -> Result<Duration, Lost> {
    if shared.may_be_replaced() {
        // To be heard from would keep the process out that has taken its place.
        return Err(Lost);
    }
    let beat = heartbeat_of(shared, cluster);
    let lease = if cluster.coordinates() {
        // The coordinator refuses its own server only when it cannot store.
        heartbeat(shared, (cluster.me, cluster.run), &beat).map_err(|fault| {
            fault.answer(shared);
            Lost
        })?
    } else {
        match coordinator.ask(Request::Heartbeat(beat)).await? {
            Reply::Lease(lease) => lease,
            _ => return Err(Lost),
        }
    };
    cluster.hears_coordinator();
    let given = Duration::from_millis(lease.ms);
    // The coordinator counts from answer to answer, which is within the time counted here.
    if let Some(before) = answered.replace(asked) {
        let since = Duration::from_millis(lease.since_ms);
        cluster.compare_clocks(cluster.time().saturating_sub(before), since, given);
    }
    if let Err(problem) = take_lease(shared, cluster, asked, lease).await {
        shared.halt(problem);
        std::future::pending::<()>().await;
    }
    Ok(given)
}

/// Comes to a server whenever that is not heard of: what it knows of this one may be an address of a
/// machine that is lost. The first message of a connection says where this one is.
async fn call_in(shared: &Shared, cluster: &Cluster, coordinator: &Coordinator, server: u16) {
    let mut link = Link::new(shared, cluster, server);
    loop {
        if !coordinator.hears_of(server) && !shared.may_be_replaced() {
            let _ = link.ask(Request::Ping).await;
            link.close();
        }
        tokio::time::sleep(cluster.options.lease / BEATS_A_LEASE).await;
    }
}

/// Tells a server the events it lacks, whenever there are any.
async fn tell(shared: &Shared, coordinator: &Coordinator, mut link: Link<'_>, server: u16) {
    loop {
        let changed = coordinator.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let Some(announce) = lacks(shared, coordinator, server) else {
            changed.await;
            continue;
        };
        let version = announce.after + announce.dirs.len() as u64;
        let is_call = announce.dirs.is_empty();
        match link.ask(Request::Announce(announce)).await {
            Ok(_) => coordinator.acknowledged(server, version),
            Err(Lost) => {
                if is_call {
                    coordinator.calls_again(server);
                }
                tokio::time::sleep(AGAIN_PAUSE).await;
            }
        }
    }
}

/// The events that a server must be told. A server too far behind for the list gets them with its
/// lease.
fn lacks(shared: &Shared, coordinator: &Coordinator, server: u16) -> Option<Announce> {
    let after = coordinator.has(server);
    let events = shared.invalidations.since(after).filter(|events| !events.reset);
    let dirs = events.map(|events| events.dirs);
    // One without events has the server ask for its lease.
    let dirs = dirs.or_else(|| coordinator.calls(server).then(Vec::new))?;
    Some(Announce { after, dirs })
}

fn heartbeat_of(shared: &Shared, cluster: &Cluster) -> Heartbeat {
    Heartbeat {
        address: shared.options.address.clone(),
        epoch: cluster.map().epoch,
        // The coordinator takes this version for an acknowledgement.
        version: shared.invalidations.settled(),
        requests: shared.counters.requests.load(Ordering::Relaxed),
        settings: shared.settings().to_record(),
        keys: shared.keys.get().ring.version,
        roots: shared.quotas.version(),
        in_doubt: shared.prepared.in_doubt(cluster.me, PATIENCE),
        strict: shared.options.durability == Durability::Strict,
        kept_all: cluster.kept_all(),
        life: life_of(shared, cluster),
    }
}

fn life_of(shared: &Shared, cluster: &Cluster) -> Life {
    let (own, options) = (&cluster.own, &cluster.options);
    let generation = own.generation();
    let position = match generation {
        // Compared with a position that was stable. A directory that was refused has grown since.
        0 => own.refused_at().unwrap_or(shared.position_at_start),
        _ => shared.stable_position.load(Ordering::Acquire),
    };
    let (follows, follows_at) = own.follows();
    Life {
        generation,
        stored: own.stored(),
        place: options.place.process.clone(),
        home: options.place.home.clone(),
        position,
        alone_ms: millis(options.alone),
        replaces: own.word().replaces,
        restored: own.word().restored,
        unchecked: own.is_unchecked(),
        resigns: own.has_resigned(),
        follows,
        follows_at,
    }
}

/// Stops serving for good, and tells the coordinator: the next process of this directory need not
/// wait, wherever it is.
pub(crate) async fn resign(shared: &Shared) {
    let Some(cluster) = &shared.cluster else { return };
    if cluster.coordinates() || !cluster.had_lease() || shared.is_halted() {
        return;
    }
    cluster.own.resign();
    shared.gate.settled().await;
    if let Err(problem) = cluster.store_served(shared) {
        tracing::warn!(reason = problem.reason, "the server's state is not stored at the stop");
        return;
    }
    // A copy that is made from now on is as new as this directory, and every other one is older.
    if let Err(problem) = shared.make_stable() {
        tracing::warn!(reason = problem.reason, "the data are not stable at the stop");
        return;
    }
    let beat = Request::Heartbeat(heartbeat_of(shared, cluster));
    if Link::new(shared, cluster, 0).ask(beat).await.is_err() {
        tracing::debug!("the coordinator does not hear that this server stops");
    }
}
