//! A server as one of several: which shards it owns, who has the others, and whether it may serve
//! now.
//!
//! The coordinator decides all of it (`coordinator`); what is known here is a copy. A file system
//! of one server has none of this, and never looks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{ClusterMap, ShardId, codec};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use parking_lot::RwLock;
use sha2::Sha256;
use store::{Batch, Engine};
use tokio::time::Instant;
use wire::{Dial, Lease, PeerHello};

use crate::{
    OpenError, Problem,
    coordinator::{Coordinator, millis},
    record::{Record, Settings, key},
    server::Shared,
    unsynced,
};

/// How a server reaches the others.
#[derive(Clone)]
pub struct ClusterOptions {
    /// The network.
    pub dial: Arc<dyn Dial>,
    /// Where the coordinator may be, tried in turn with where the map says; empty: nobody said, or
    /// this server is it.
    pub coordinators: Vec<String>,
    /// A server serves for so long after it has last asked for its lease.
    pub lease: Duration,
    /// A server whose lease has ended serves requests that stand on no cached path for so long.
    pub alone: Duration,
    /// What leases are measured with: a time since some start that goes on while the machine
    /// sleeps.
    pub awake_or_not: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// All that this server had answered when it last ended is still there: its machine has not
    /// been started anew since.
    pub kept_all: bool,
}

codec! {
    /// What a server knows of the cluster that it belongs to, as it was when it stopped.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Member {
        /// Its number in the map.
        pub server: u16,
        /// How many servers the cluster has when it is complete.
        pub servers: u16,
        /// The number it drew for itself.
        pub member: u64,
        /// The newest map; without servers until the cluster was complete.
        pub map: ClusterMap,
    }
}

impl Record for Member {}

/// One of several servers.
pub(crate) struct Cluster {
    /// Its number in the map.
    pub(crate) me: u16,
    /// How many servers there are when the cluster is complete.
    pub(crate) servers: u16,
    /// Of this run.
    pub(crate) run: u64,
    pub(crate) options: ClusterOptions,
    map: RwLock<Arc<ClusterMap>>,
    /// When the lease ends, milliseconds as [`Cluster::time`] counts.
    lease_ends: AtomicU64,
    /// When the server started, milliseconds as [`Cluster::time`] counts.
    opened: u64,
    /// When the coordinator was last heard of, likewise; 0: not yet.
    heard: AtomicU64,
    /// The lease has ended, and all that was executed under it is written.
    alone: AtomicBool,
    transactions: AtomicU64,
    challenges: AtomicU64,
    member: u64,
    /// What the first server has beside it.
    pub(crate) coordinator: Option<Coordinator>,
}

impl Cluster {
    /// The cluster as this server knew it when it stopped, and the version at which its
    /// invalidation list begins.
    pub(crate) fn open(
        engine: &dyn Engine,
        run: u64,
        options: Option<&ClusterOptions>,
    ) -> Result<Option<(Cluster, u64)>, OpenError> {
        let Some(member) = engine.get(&key::member())? else { return Ok(None) };
        let member = Member::from_record(&member)?;
        let options = options.ok_or(OpenError::OfACluster)?.clone();
        let (coordinator, version) = if member.server == 0 {
            let now = Instant::now();
            let times = (options.lease, options.alone);
            let (coordinator, version) = Coordinator::open(engine, &member, times, now)?;
            (Some(coordinator), version)
        } else {
            (None, 0)
        };
        Ok(Some((Cluster::new(&member, run, options, coordinator), version)))
    }

    fn new(
        member: &Member,
        run: u64,
        options: ClusterOptions,
        coordinator: Option<Coordinator>,
    ) -> Cluster {
        Cluster {
            me: member.server,
            servers: member.servers,
            run,
            opened: millis((options.awake_or_not)()),
            heard: AtomicU64::new(0),
            options,
            map: RwLock::new(Arc::new(member.map.clone())),
            lease_ends: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
            challenges: AtomicU64::new(0),
            member: member.member,
            coordinator,
        }
    }

    /// Whether all that this server had answered in earlier runs is still there.
    pub(crate) fn kept_all(&self) -> bool {
        self.options.kept_all
    }

    /// The newest map.
    pub(crate) fn map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.read())
    }

    /// Takes in a map; `false` when it is no newer.
    pub(crate) fn learn(&self, map: ClusterMap) -> bool {
        let mut known = self.map.write();
        let newer = map.epoch > known.epoch;
        if newer {
            *known = Arc::new(map);
        }
        newer
    }

    /// What of it outlives a restart, with the newest map.
    fn to_member(&self) -> Member {
        let map = (*self.map()).clone();
        Member { server: self.me, servers: self.servers, member: self.member, map }
    }

    /// Where a server is reached: where the map says; while there is none, where somebody said.
    pub(crate) fn address(&self, server: u16) -> Option<String> {
        let known = self.map().servers.get(usize::from(server)).cloned();
        known.or_else(|| self.places(server).into_iter().next())
    }

    /// Where a server may be: the coordinator where this one was told, and all where the map says,
    /// as any of these may be out of date.
    pub(crate) fn places(&self, server: u16) -> Vec<String> {
        let told = if server == 0 { &self.options.coordinators[..] } else { &[] };
        let map = self.map();
        let known = map.servers.get(usize::from(server)).filter(|known| !told.contains(known));
        told.iter().chain(known).cloned().collect()
    }

    /// Who has the shard of a key.
    pub(crate) fn server_of_key(&self, key: &[u8]) -> Option<u16> {
        self.map.read().server_of(key::shard_of(key))
    }

    /// Whether this server has `shard`.
    pub(crate) fn owns(&self, shard: ShardId) -> bool {
        self.map.read().server_of(shard) == Some(self.me)
    }

    /// Whether this server has the shard of a key.
    pub(crate) fn owns_key(&self, key: &[u8]) -> bool {
        key::is_the_servers(key) || self.owns(key::shard_of(key))
    }

    /// Whether this server is the coordinator: shard 0 is dealt to the first.
    pub(crate) fn coordinates(&self) -> bool {
        self.me == 0
    }

    /// The time by which leases end.
    pub(crate) fn time(&self) -> Duration {
        (self.options.awake_or_not)()
    }

    /// The lease lasts until `ends` at least.
    fn extend_lease(&self, ends: Duration) {
        self.lease_ends.fetch_max(millis(ends), Ordering::AcqRel);
    }

    /// Whether the lease has not ended.
    pub(crate) fn has_lease(&self) -> bool {
        millis(self.time()) < self.lease_ends.load(Ordering::Acquire)
    }

    /// For how long the lease lasts.
    pub(crate) fn lease_left(&self) -> Duration {
        let ends = Duration::from_millis(self.lease_ends.load(Ordering::Acquire));
        ends.saturating_sub(self.time())
    }

    /// For how long there has been no lease: since it ended, or since the start. `None`: there is
    /// one.
    pub(crate) fn without_lease(&self) -> Option<Duration> {
        let (now, ends) = (millis(self.time()), self.lease_ends.load(Ordering::Acquire));
        (now >= ends).then(|| Duration::from_millis(now.saturating_sub(ends.max(self.opened))))
    }

    /// For how long the server still serves without a lease; zero while it has one, or no longer
    /// may.
    pub(crate) fn alone_left(&self) -> Duration {
        if self.has_lease() || !self.serves_alone() {
            return Duration::ZERO;
        }
        let ends = Duration::from_millis(self.lease_ends.load(Ordering::Acquire));
        (ends + self.options.alone).saturating_sub(self.time())
    }

    /// The coordinator has answered.
    pub(crate) fn hears_coordinator(&self) {
        self.heard.store(millis(self.time()).max(1), Ordering::Release);
    }

    /// Whether the coordinator has answered within a lease, as far as this server knows how long
    /// one is.
    pub(crate) fn coordinator_answers(&self) -> bool {
        let heard = self.heard.load(Ordering::Acquire);
        heard > 0 && millis(self.time()).saturating_sub(heard) < millis(self.options.lease)
    }

    /// Whether requests that stand on no cached path may be served, although the lease has ended.
    ///
    /// A lease is needed for what clients have cached: others may change it when this server cannot
    /// hear of that. Who names directories and files by their ids needs only that nobody else has
    /// them, and nobody can take them from a server that is silent. The limit is for what a
    /// coordinator decides about sessions and settings.
    pub(crate) fn serves_alone(&self) -> bool {
        let ends =
            self.lease_ends.load(Ordering::Acquire).saturating_add(millis(self.options.alone));
        self.alone.load(Ordering::Acquire) && millis(self.time()) < ends
    }

    /// Says whether the server goes on without a lease.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    /// Whether there was a lease in this run.
    pub(crate) fn had_lease(&self) -> bool {
        self.lease_ends.load(Ordering::Acquire) > 0
    }

    /// What this server says first when it comes to another: it asks what to prove.
    pub(crate) fn hello(&self) -> PeerHello {
        PeerHello { from: self.me, run: self.run, proof: Bytes::new() }
    }

    /// What somebody who comes has to prove himself with: no two are the same, neither of this run
    /// nor, as `random` is drawn anew, of any other.
    pub(crate) fn next_challenge(&self, random: u64) -> u128 {
        let number = self.challenges.fetch_add(1, Ordering::Relaxed);
        u128::from(random) << 64 | u128::from(number)
    }

    /// A number for a transaction that this server initiates.
    pub(crate) fn next_txn(&self) -> wire::TxnId {
        let number = self.transactions.fetch_add(1, Ordering::Relaxed) + 1;
        wire::TxnId { server: self.me, run: self.run, number }
    }
}

/// Takes in a lease that was asked for at `asked`: first what the invalidation list lacks and a
/// newer map, which is stable before it counts, and then the time.
///
/// Race: while this server had no lease others may have gone on without it. What its cores had
/// executed before, and not written, is there before anybody may look; so is what they had checked
/// without the events that the lease brings.
pub(crate) async fn take_lease(
    shared: &Shared,
    cluster: &Cluster,
    asked: Duration,
    lease: Lease,
) -> Result<(), Problem> {
    let failed = |error: store::Error| Problem::of(&error);
    let Lease { ms, map, events, settings, roots } = lease;
    let after = events.version.saturating_sub(events.dirs.len() as u64);
    if events.reset {
        shared.invalidations.begin_anew(events.version, &events.dirs);
    } else if !shared.invalidations.take_in(after, &events.dirs) {
        // It is no answer to what was asked, and nothing to stand on.
        return Ok(());
    }
    if map.is_some_and(|map| cluster.learn(map)) {
        let mut batch = Batch::default();
        batch.put(&key::member(), &cluster.to_member().to_record());
        shared.engine.write(batch).map_err(failed)?;
        // With the blocks that the log names before it, or a power cut may take it with them.
        unsynced::sync(shared)?;
    }
    match settings.map(|settings| Settings::from_record(&settings)) {
        None => {}
        Some(Ok(settings)) => {
            let mut batch = Batch::default();
            batch.put(&key::settings(), &settings.to_record());
            shared.sync.writing();
            shared.engine.write(batch).map_err(failed)?;
            shared.sync.written();
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

/// Who came to whom, on which connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit {
    /// The file system.
    pub(crate) uuid: u128,
    /// The server that is visited.
    pub(crate) to: u16,
    /// What it has answered, which no other connection is answered.
    pub(crate) challenge: u128,
}

impl Visit {
    fn mac(self, signing_key: &[u8], hello: &PeerHello) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(signing_key).expect("HMAC takes keys of any length");
        mac.update(&hello.proven(self.uuid, self.to, self.challenge));
        mac
    }

    /// What a server says to prove that it is one.
    pub(crate) fn prove(self, signing_key: &[u8], hello: PeerHello) -> PeerHello {
        let proof = self.mac(signing_key, &hello).finalize().into_bytes();
        PeerHello { proof: Bytes::copy_from_slice(&proof), ..hello }
    }

    /// Whether it was a server of this file system that said so, here and now.
    pub(crate) fn is_proven(self, signing_key: &[u8], hello: &PeerHello) -> bool {
        self.mac(signing_key, hello).verify_slice(&hello.proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_key_of_the_file_system_comes_as_a_server() {
        let visit = Visit { uuid: 7, to: 1, challenge: 5 };
        let said = visit.prove(b"key", PeerHello { from: 2, run: 99, proof: Bytes::new() });
        assert!(visit.is_proven(b"key", &said));
        assert!(!visit.is_proven(b"other", &said));
        assert!(!Visit { uuid: 8, ..visit }.is_proven(b"key", &said));
        assert!(!Visit { to: 0, ..visit }.is_proven(b"key", &said));
        assert!(!Visit { challenge: 6, ..visit }.is_proven(b"key", &said));
        assert!(!visit.is_proven(b"key", &PeerHello { from: 1, ..said }));
    }
}
