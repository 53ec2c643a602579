//! A server as one of several: the shards it owns, the owners of the others, and whether it may
//! serve now.
//!
//! The coordinator decides all of it (`coordinator`); this server has a copy. A file system of one
//! server has none of this, and never looks.

pub(crate) mod generation;
pub(crate) mod lease;
pub(crate) mod member;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{ClusterMap, ShardId};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use parking_lot::RwLock;
use sha2::Sha256;
use store::Engine;
use tokio::{sync::Notify, time::Instant};
use wire::{Binding, Dial, PeerHello};

use self::{
    generation::Own,
    member::{LastServed, Member},
};
use crate::{
    OpenError,
    coordinator::state::Coordinator,
    millis::millis,
    record::{Record as _, key},
};

/// How a server reaches the others.
#[derive(Clone)]
pub struct ClusterOptions {
    /// The network.
    pub dial: Arc<dyn Dial>,
    /// Addresses where the coordinator may be, tried in turn with the one in the map. Empty when
    /// none was given, or this server is the coordinator.
    pub coordinators: Vec<String>,
    /// Length of a lease: a server serves for so long after it last asked for one.
    pub lease: Duration,
    /// How long a server whose lease has ended still serves requests that stand on no cached path.
    pub alone: Duration,
    /// The clock of leases: the time since some start. It goes on while the machine sleeps.
    pub awake_or_not: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Whether all that this server had answered when it last ended is still there: its machine has
    /// not been restarted since.
    pub kept_all: bool,
    /// The place of this process.
    pub place: Place,
    /// The operator's word on the data directory.
    pub word: Word,
    /// Whether this server may be in another place than the others know, and no copy of its
    /// directory is served elsewhere: it says where it is, and as the coordinator it calls those
    /// that it does not hear of.
    pub calls: bool,
}

/// The place of a process: the lock on its data directory lets no other process have the same.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Name of the machine's boot and of the data directory; empty: unknown.
    pub process: Bytes,
    /// Name of the machine and of the data directory on it; empty: unknown.
    pub home: Bytes,
}

/// The operator's word on a data directory, for one start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Word {
    /// The machine that served the directory before is off.
    pub replaces: bool,
    /// The directory is an old copy, and the only one left.
    pub restored: bool,
}

/// One of several servers.
pub(crate) struct Cluster {
    /// Number of this server in the map.
    pub(crate) me: u16,
    /// Number of servers that the complete cluster has had.
    pub(crate) servers: u16,
    /// Random number of this run of the server.
    pub(crate) run: u64,
    pub(crate) options: ClusterOptions,
    map: RwLock<Arc<ClusterMap>>,
    /// Where a coordinator has said that it is, that came to this server.
    called_from: RwLock<Option<String>>,
    /// End of the lease, in milliseconds of [`Cluster::time`].
    lease_ends: AtomicU64,
    /// Start of the server, in milliseconds of [`Cluster::time`].
    opened: u64,
    /// When the coordinator last answered, in milliseconds of [`Cluster::time`]; 0 if it never did.
    heard: AtomicU64,
    /// Whether the server goes on without a lease: it has ended, and all that was executed under it
    /// is written.
    alone: AtomicBool,
    /// Notified when this server is to ask for its lease at once.
    pub(crate) asks: Notify,
    transactions: AtomicU64,
    challenges: AtomicU64,
    member: u64,
    /// The generation of this process, and those that are known of others.
    pub(crate) own: Own,
    /// The coordinator's part, on the first server only.
    pub(crate) coordinator: Option<Coordinator>,
}

impl Cluster {
    /// Reads the cluster as this server knew it when it stopped. Also returns the version at which
    /// the server's invalidation list begins.
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
            let (coordinator, version) =
                Coordinator::open(engine, &member, times, (run, options.word.restored), now)?;
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
        let own = Own::new(member, run, options.word, coordinator.as_ref().map(Coordinator::term));
        Cluster {
            me: member.server,
            servers: member.count(),
            run,
            opened: millis((options.awake_or_not)()),
            heard: AtomicU64::new(0),
            options,
            map: RwLock::new(Arc::new(member.map.clone())),
            called_from: RwLock::default(),
            lease_ends: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            asks: Notify::new(),
            transactions: AtomicU64::new(0),
            challenges: AtomicU64::new(0),
            member: member.member,
            own,
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

    /// Takes in a map; returns `false` when it is no newer.
    pub(crate) fn learn(&self, map: ClusterMap) -> bool {
        let mut known = self.map.write();
        let newer = map.epoch > known.epoch;
        if newer {
            *known = Arc::new(map);
        }
        newer
    }

    /// Whether this server must begin anew with a map: by it the server has other shards, or there
    /// are more servers, or fewer.
    pub(crate) fn begins_anew_with(&self, map: &ClusterMap) -> bool {
        let known = self.map();
        let is_first = known.servers.is_empty();
        let is_mine = |shards: &ClusterMap, at: usize| shards.shards.get(at) == Some(&self.me);
        let differs = |at| is_mine(&known, at) != is_mine(map, at);
        let grows = map.servers.len() > usize::from(self.servers);
        let shrinks = (0..self.servers).any(|it| map.has_left(it) && !known.has_left(it));
        let others = grows || shrinks;
        map.epoch > known.epoch && (others || !is_first && (0..map.shards.len()).any(differs))
    }

    /// The other servers that are in the cluster.
    pub(crate) fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let (me, map) = (self.me, self.map());
        (0..self.servers).filter(move |server| *server != me && !map.has_left(*server))
    }

    /// Number of servers that are in the complete cluster.
    pub(crate) fn members(&self) -> u16 {
        1 + u16::try_from(self.others().count()).expect("no more than there were")
    }

    /// The record that outlives a restart, with the newest map.
    fn to_member(&self) -> Member {
        let map = (*self.map()).clone();
        let last = LastServed(self.own.to_served());
        Member { server: self.me, servers: self.servers, member: self.member, map, last }
    }

    /// The address of a server: from the map, or before there is one from the options.
    pub(crate) fn address(&self, server: u16) -> Option<String> {
        let known = self.map().address(server).map(str::to_owned);
        known.or_else(|| self.places(server).into_iter().next())
    }

    /// Addresses where a server may be: for the coordinator those in the options and the one from
    /// which it has called, and the one in the map. Any of them may be out of date.
    pub(crate) fn places(&self, server: u16) -> Vec<String> {
        let is_coordinator = server == 0;
        let told = if is_coordinator { &self.options.coordinators[..] } else { &[] };
        let called_from = self.called_from.read().clone().filter(|_| is_coordinator);
        let mut places = told.to_vec();
        for place in called_from.into_iter().chain(self.map().address(server).map(str::to_owned)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Notes where the coordinator says that it is, and asks it for a lease at once if this server
    /// did not know of that place. A server that has a lease knows where to ask.
    pub(crate) fn is_called_from(&self, address: &str) {
        if !address.is_empty()
            && !self.has_lease()
            && !self.places(0).iter().any(|place| place == address)
        {
            *self.called_from.write() = Some(address.to_owned());
            self.asks.notify_one();
        }
    }

    /// Number of the server that owns the shard of a key. What servers have for themselves is asked
    /// of the coordinator only, which has all sessions.
    pub(crate) fn server_of_key(&self, key: &[u8]) -> Option<u16> {
        match key::shard_of(key) {
            ShardId::SERVER => Some(0),
            shard => shard.server().or_else(|| self.map.read().server_of(shard)),
        }
    }

    /// Whether this server owns `shard`. What belongs to the server itself it has.
    pub(crate) fn owns(&self, shard: ShardId) -> bool {
        let is_own = shard == ShardId::SERVER || shard == ShardId::of_server(self.me);
        is_own || self.map.read().server_of(shard) == Some(self.me)
    }

    /// Whether this server has the record under a key.
    pub(crate) fn owns_key(&self, key: &[u8]) -> bool {
        self.owns(key::shard_of(key))
    }

    /// Whether this server is the coordinator: the first is, whatever shards it has.
    pub(crate) fn coordinates(&self) -> bool {
        self.me == 0
    }

    /// The present time on the clock of leases.
    pub(crate) fn time(&self) -> Duration {
        (self.options.awake_or_not)()
    }

    /// Notes that the lease lasts until `ends` at least.
    fn extend_lease(&self, ends: Duration) {
        self.lease_ends.fetch_max(millis(ends), Ordering::AcqRel);
    }

    /// Ends the lease if the clock of leases has missed time: a virtual machine was suspended, and
    /// does not count that. The coordinator's clock has counted `there` between two of its answers,
    /// and this one `here` around them.
    pub(crate) fn compare_clocks(&self, here: Duration, there: Duration, lease: Duration) {
        // Clocks run equally fast but for an eighth.
        if there.saturating_sub(here + here / 8) > lease / 8 && self.has_lease() {
            tracing::warn!(
                ?here,
                ?there,
                "this machine's clock has missed time, as in a suspension: the lease has ended"
            );
            self.end_lease();
        }
    }

    /// Ends the lease now.
    fn end_lease(&self) {
        self.lease_ends.fetch_min(millis(self.time()), Ordering::AcqRel);
    }

    /// Whether the lease has not ended.
    pub(crate) fn has_lease(&self) -> bool {
        millis(self.time()) < self.lease_ends.load(Ordering::Acquire) && !self.own.has_resigned()
    }

    /// Time until the lease ends.
    pub(crate) fn lease_left(&self) -> Duration {
        let ends = Duration::from_millis(self.lease_ends.load(Ordering::Acquire));
        ends.saturating_sub(self.time())
    }

    /// How long there has been no lease: since it ended, or since the start. `None` while there is
    /// one.
    pub(crate) fn without_lease(&self) -> Option<Duration> {
        let (now, ends) = (millis(self.time()), self.lease_ends.load(Ordering::Acquire));
        (now >= ends).then(|| Duration::from_millis(now.saturating_sub(ends.max(self.opened))))
    }

    /// How long the server still serves without a lease; zero while it has one, or when it may no
    /// longer.
    pub(crate) fn alone_left(&self) -> Duration {
        if self.has_lease() || !self.serves_alone() {
            return Duration::ZERO;
        }
        let ends = Duration::from_millis(self.lease_ends.load(Ordering::Acquire));
        (ends + self.options.alone).saturating_sub(self.time())
    }

    /// Notes that the coordinator has answered.
    pub(crate) fn hears_coordinator(&self) {
        self.heard.store(millis(self.time()).max(1), Ordering::Release);
    }

    /// Whether the coordinator has answered within the time of a lease, by this server's own
    /// options.
    pub(crate) fn coordinator_answers(&self) -> bool {
        let heard = self.heard.load(Ordering::Acquire);
        heard > 0 && millis(self.time()).saturating_sub(heard) < millis(self.options.lease)
    }

    /// Whether requests that stand on no cached path may be served, although the lease has ended.
    ///
    /// A lease is needed for what clients have cached: others may change it while this server
    /// cannot hear of that. A request that names directories and files by their ids needs only that
    /// no other server owns them; and a silent server keeps what it owns. The limit is for what a
    /// coordinator decides about sessions and settings.
    pub(crate) fn serves_alone(&self) -> bool {
        let ends =
            self.lease_ends.load(Ordering::Acquire).saturating_add(millis(self.options.alone));
        self.alone.load(Ordering::Acquire) && millis(self.time()) < ends && !self.own.has_resigned()
    }

    /// Whether the server must not serve anybody any more: its lease has ended, and so has the time
    /// for which it goes on without one. What the coordinator has decided since about tokens is not
    /// known here.
    pub(crate) fn is_cut_off(&self) -> bool {
        let ends = self.lease_ends.load(Ordering::Acquire);
        let alone = millis(self.options.alone);
        ends > 0 && (self.own.has_resigned() || millis(self.time()) > ends.saturating_add(alone))
    }

    /// Sets whether the server goes on without a lease.
    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    /// Whether there was a lease in this run.
    pub(crate) fn had_lease(&self) -> bool {
        self.lease_ends.load(Ordering::Acquire) > 0
    }

    /// The first message of this server, at `address`, to another, without a proof: it asks for a
    /// challenge.
    pub(crate) fn hello(&self, to: u16, address: &str) -> PeerHello {
        let (generation, knows) = (self.own.generation(), self.own.known(to));
        let (from, run) = (self.me, self.run);
        let address = if self.options.calls { address.to_owned() } else { String::new() };
        PeerHello { from, run, generation, knows, address, proof: Bytes::new() }
    }

    /// The next challenge for a server that connects. No two are the same, neither in this run nor,
    /// as `random` is drawn anew, in any other.
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

/// A connection from one server to another, as its proof names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit {
    /// The id of the file system.
    pub(crate) uuid: u128,
    /// Number of the server that is visited.
    pub(crate) to: u16,
    /// The challenge of the visited server, which it gives to this connection only.
    pub(crate) challenge: u128,
    /// The value that only the two ends of the connection know, if it is encrypted.
    pub(crate) binding: Option<Binding>,
}

impl Visit {
    fn mac(self, signing_key: &[u8], hello: &PeerHello) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(signing_key).expect("HMAC takes keys of any length");
        mac.update(&hello.proven(self.uuid, self.to, self.challenge));
        if let Some(binding) = self.binding {
            mac.update(&binding);
        }
        mac
    }

    /// Adds the proof that the sender is a server of this file system.
    pub(crate) fn prove(self, signing_key: &[u8], hello: PeerHello) -> PeerHello {
        let proof = self.mac(signing_key, &hello).finalize().into_bytes();
        PeerHello { proof: Bytes::copy_from_slice(&proof), ..hello }
    }

    /// Whether the proof was made by a server of this file system, for this connection.
    pub(crate) fn is_proven(self, signing_key: &[u8], hello: &PeerHello) -> bool {
        self.mac(signing_key, hello).verify_slice(&hello.proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_key_of_the_file_system_comes_as_a_server() {
        let visit = Visit { uuid: 7, to: 1, challenge: 5, binding: Some([4; 32]) };
        let said = visit.prove(
            b"key",
            PeerHello {
                from: 2,
                run: 99,
                generation: 3,
                knows: 4,
                address: "c:1".to_owned(),
                proof: Bytes::new(),
            },
        );
        assert!(visit.is_proven(b"key", &said));
        assert!(!visit.is_proven(b"other", &said));
        assert!(!Visit { uuid: 8, ..visit }.is_proven(b"key", &said));
        assert!(!Visit { to: 0, ..visit }.is_proven(b"key", &said));
        assert!(!Visit { challenge: 6, ..visit }.is_proven(b"key", &said));
        assert!(!Visit { binding: Some([5; 32]), ..visit }.is_proven(b"key", &said));
        assert!(!Visit { binding: None, ..visit }.is_proven(b"key", &said));
        assert!(!visit.is_proven(b"key", &PeerHello { generation: 4, ..said.clone() }));
        assert!(!visit.is_proven(b"key", &PeerHello { knows: 5, ..said.clone() }));
        let elsewhere = "c:2".to_owned();
        assert!(!visit.is_proven(b"key", &PeerHello { address: elsewhere, ..said.clone() }));
        assert!(!visit.is_proven(b"key", &PeerHello { from: 1, ..said }));
    }
}
