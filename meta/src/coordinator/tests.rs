//! The coordinator by itself: a server on an engine in memory, asked directly.

pub(crate) mod several;

use std::{
    io,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use base::{Clock, Locality, Random, Time};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use store::{Blocks, MemoryEngine};
use wire::{Dial, Dialled, Life, Request, Term};

use super::*;
use crate::keys::ring::KeyRing;
use crate::{ClusterOptions, FormatOptions, OpenError, Place, Server, ServerOptions, Word, format};

const LEASE: Duration = Duration::from_secs(8);

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time { sec: 1_000_000, nsec: 0 }
    }
}

impl Random for Still {
    fn next(&self) -> u64 {
        // No two runs of a server have the same number.
        static COUNT: AtomicU64 = AtomicU64::new(0x1234_5678_9abc_def0);
        COUNT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A network in which no address answers.
struct Nowhere;

impl Dial for Nowhere {
    fn dial<'a>(&'a self, _address: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

fn formatted(servers: u16) -> Arc<MemoryEngine> {
    let engine = Arc::new(MemoryEngine::default());
    let options = FormatOptions {
        name: "test".into(),
        shards: 5,
        lanes: 16,
        servers,
        locality: Locality::Directory,
        inline_bytes_max: 4096,
        blocks: "memory".into(),
        signing_key: b"key".to_vec(),
    };
    format(engine.as_ref(), &options, &Still, &Still).unwrap();
    engine
}

fn open(engine: &Arc<MemoryEngine>, cluster: bool) -> std::result::Result<Server, OpenError> {
    let cluster = cluster.then(member_options);
    open_with(engine, ServerOptions { cluster, ..ServerOptions::simulated("a:1") })
}

/// The options of a server that reaches no other, and has no time without a lease.
fn member_options() -> ClusterOptions {
    ClusterOptions {
        dial: Arc::new(Nowhere),
        coordinators: Vec::new(),
        lease: LEASE,
        alone: Duration::ZERO,
        awake_or_not: time(),
        kept_all: true,
        place: place("a:1"),
        word: Word::default(),
        calls: false,
    }
}

/// The time of the test.
fn time() -> Arc<dyn Fn() -> Duration + Send + Sync> {
    let start = Instant::now();
    Arc::new(move || start.elapsed())
}

fn open_with(
    engine: &Arc<MemoryEngine>,
    options: ServerOptions,
) -> std::result::Result<Server, OpenError> {
    Server::open(engine.clone(), Blocks::memory(), options, Arc::new(Still), Arc::new(Still))
}

fn beat(address: &str, version: u64) -> Heartbeat {
    let settings = Bytes::new();
    Heartbeat {
        address: address.into(),
        epoch: Epoch(0),
        version,
        requests: 0,
        settings,
        keys: 0,
        roots: 0,
        in_doubt: None,
        strict: false,
        kept_all: true,
        life: life("b"),
    }
}

/// The place of the processes of a server.
pub(crate) fn place(name: &str) -> Place {
    Place { process: format!("boot {name}").into(), home: format!("home {name}").into() }
}

/// A process that asks for its first lease.
pub(crate) fn life(name: &str) -> Life {
    let Place { process: place, home } = place(name);
    Life {
        generation: 0,
        stored: 0,
        place,
        home,
        position: u64::MAX,
        alone_ms: 0,
        replaces: false,
        restored: false,
        unchecked: false,
        resigns: false,
        follows: Term::default(),
        follows_at: 0,
    }
}

/// A cluster of two that is complete, and the version of its log.
fn complete() -> (Arc<MemoryEngine>, Server, u64) {
    let engine = formatted(2);
    let server = open(&engine, true).unwrap();
    join(&server.shared, &Join { address: "b:1".into(), member: 2 }).unwrap();
    heartbeat(&server.shared, (0, 1), &beat("a:1", 0)).unwrap();
    let lease = heartbeat(&server.shared, (1, 1), &beat("b:1", 0)).unwrap();
    (engine, server, lease.events.version)
}

fn refused<T>(result: Result<T>) -> String {
    match result {
        Err(Fault::Refused(why)) => why,
        Ok(_) => panic!("it was not refused"),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_system_of_one_server_has_no_coordinator() {
    let engine = formatted(1);
    let server = open(&engine, true).unwrap();
    let asked = join(&server.shared, &Join { address: "b:1".into(), member: 2 });
    assert!(refused(asked).contains("one server"));
    let told = status(&server.shared).unwrap();
    assert_eq!((told.servers_expected, told.servers[0].shards), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn a_server_of_a_cluster_is_not_opened_as_the_only_one() {
    assert!(matches!(open(&formatted(2), false), Err(OpenError::OfACluster)));
}

#[tokio::test(start_paused = true)]
async fn nobody_has_a_lease_until_all_have_joined_and_serve() {
    let engine = formatted(2);
    let server = open(&engine, true).unwrap();
    let lease = heartbeat(&server.shared, (0, 1), &beat("a:1", 0)).unwrap();
    assert_eq!((lease.ms, lease.map), (0, None));
    let told = status(&server.shared).unwrap();
    assert!(told.problems[0].contains("1 of 2 servers have not joined"), "{:?}", told.problems);

    let asked = Join { address: "b:1".into(), member: 2 };
    assert_eq!(join(&server.shared, &asked).unwrap().server, 1);
    assert_eq!(join(&server.shared, &asked).unwrap().server, 1);
    let third = Join { address: "c:1".into(), member: 3 };
    assert!(refused(join(&server.shared, &third)).contains("have not all served yet"));
    assert_eq!(heartbeat(&server.shared, (0, 1), &beat("a:1", 0)).unwrap().ms, 0);

    let lease = heartbeat(&server.shared, (1, 1), &beat("b:2", 0)).unwrap();
    let map = lease.map.unwrap();
    assert_eq!((lease.ms, lease.events.reset), (8000, true));
    assert_eq!(map.servers, ["a:1", "b:2"]);
    assert_eq!(map.shards, [0, 1, 0, 1, 0]);
    assert_eq!(heartbeat(&server.shared, (0, 1), &beat("a:1", 0)).unwrap().ms, 8000);
    let told = status(&server.shared).unwrap();
    assert_eq!((told.servers[0].shards, told.servers[1].shards), (3, 2));
    assert!(told.problems.is_empty(), "{:?}", told.problems);
    heartbeat(&server.shared, (1, 1), &Heartbeat { strict: true, ..beat("b:2", 0) }).unwrap();
    let told = status(&server.shared).unwrap();
    let said = "server 1 has --durability strict, and the coordinator relaxed: start both alike";
    assert_eq!(told.problems, [said]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_lost_something_begins_the_list_anew_once_in_each_run() {
    let (_engine, server, before) = complete();
    let list = &server.shared.invalidations;
    let lost = Heartbeat { kept_all: false, ..beat("b:1", 0) };
    for (run, version) in [(2, before + 1), (2, before + 1), (3, before + 2)] {
        let events = heartbeat(&server.shared, (1, run), &lost).unwrap().events;
        assert_eq!((events.version, events.reset, events.dirs.len()), (version, true, 0));
        assert_eq!(list.version(), version);
    }
    // A server behind that point gets the later events, too.
    list.add(&[DirId(7)]);
    let events = heartbeat(&server.shared, (1, 3), &beat("b:1", before)).unwrap().events;
    assert_eq!((events.version, events.reset, events.dirs), (before + 3, true, vec![DirId(7)]));
}

#[tokio::test(start_paused = true)]
async fn what_was_told_outlives_a_power_cut() {
    let (engine, server, version) = complete();
    heartbeat(&server.shared, (1, 1), &beat("elsewhere:1", version)).unwrap();
    drop(server);
    engine.power_cut(0);
    let server = open(&engine, true).unwrap();
    let map = server.shared.map();
    assert_eq!((map.epoch, &map.servers[1][..]), (Epoch(2), "elsewhere:1"));
    assert_eq!(join(&server.shared, &Join { address: "b:1".into(), member: 2 }).unwrap().server, 1);
}

#[tokio::test(start_paused = true)]
async fn settings_that_have_changed_come_with_the_next_lease() {
    let (_engine, server, version) = complete();
    let has = |settings: Bytes| Heartbeat { settings, ..beat("b:1", version) };
    let old = server.shared.settings();
    let lease = heartbeat(&server.shared, (1, 1), &has(old.to_record())).unwrap();
    assert_eq!(lease.settings, None);
    let new = crate::record::Settings { inline_bytes_max: 7, ..old };
    server.shared.set_settings(new);
    let lease = heartbeat(&server.shared, (1, 1), &has(old.to_record())).unwrap();
    assert_eq!(lease.settings, Some(new.to_record()));

    // The server that gets it has it from then on, also when it starts again.
    server.shared.set_settings(old);
    let cluster = server.shared.cluster.as_ref().unwrap();
    crate::cluster::lease::take_lease(&server.shared, cluster, cluster.time(), lease)
        .await
        .unwrap();
    assert_eq!(server.shared.settings(), new);
    let stored = server.shared.engine.get(&key::settings()).unwrap();
    assert_eq!(stored, Some(new.to_record()));
}

#[tokio::test(start_paused = true)]
async fn a_key_ring_that_has_changed_comes_with_the_next_lease_and_stays() {
    let (engine, server, version) = complete();
    let has = |keys| Heartbeat { keys, ..beat("b:1", version) };
    let lease = heartbeat(&server.shared, (1, 1), &has(0)).unwrap();
    assert_eq!(lease.keys, None);
    let mut ring = KeyRing { version: 7, ..KeyRing::default() };
    ring.rotate(0, Secret(Bytes::from_static(&[3; 32])), Time { sec: 1, nsec: 0 }).unwrap();
    server.shared.keys.set(ring.clone());
    assert_eq!(heartbeat(&server.shared, (1, 1), &has(7)).unwrap().keys, None);
    let lease = heartbeat(&server.shared, (1, 1), &has(0)).unwrap();
    assert!(format!("{lease:?}").contains("keys: Some(Secret)"), "no log shows a secret");
    let newer = heartbeat(&server.shared, (1, 1), &has(1 << 40)).unwrap();
    assert_eq!(newer.keys, None, "the ring of an old copy is not spread");

    // The server that gets it has it from then on, also when it starts again.
    server.shared.keys.set(KeyRing::default());
    let cluster = server.shared.cluster.as_ref().unwrap();
    crate::cluster::lease::take_lease(&server.shared, cluster, cluster.time(), lease)
        .await
        .unwrap();
    assert_eq!(server.shared.keys.get().ring, ring);
    drop(server);
    let server = open(&engine, true).unwrap();
    assert_eq!((&server.shared.keys.get().ring, server.newest_key().0), (&ring, 1));
}

#[tokio::test(start_paused = true)]
async fn an_announcement_waits_for_the_list_of_every_server() {
    let (_engine, server, version) = complete();
    let announced = announce(&server.shared, &[DirId(700), DirId(701)]);
    tokio::pin!(announced);
    assert!(announced.as_mut().now_or_never().is_none());
    // The events that a lease brings do not count yet: the server did not have them when it asked.
    let lease = heartbeat(&server.shared, (1, 1), &beat("b:1", version)).unwrap();
    assert_eq!(lease.events.dirs, [DirId(700), DirId(701)]);
    assert!(announced.as_mut().now_or_never().is_none());
    heartbeat(&server.shared, (1, 1), &beat("b:1", version + 2)).unwrap();
    assert_eq!(announced.await.unwrap(), version + 2);
}

#[tokio::test(start_paused = true)]
async fn an_announcement_waits_for_the_lease_of_a_server_that_is_gone() {
    let (_engine, server, _) = complete();
    let began = Instant::now();
    announce(&server.shared, &[DirId(700)]).await.unwrap();
    assert_eq!(began.elapsed(), LEASE + LEASE / 8);
    // Then no server is left to wait for.
    announce(&server.shared, &[DirId(701)]).await.unwrap();
    assert_eq!(began.elapsed(), LEASE + LEASE / 8);
    assert!(status(&server.shared).unwrap().problems[0].contains("has no lease"));
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_was_restarted_waits_for_leases_it_knows_nothing_of() {
    let (engine, server, version) = complete();
    drop(server);
    let server = open(&engine, true).unwrap();
    let began = Instant::now();
    let now = announce(&server.shared, &[DirId(700)]).await.unwrap();
    assert!(now > version + 1, "no version is given twice");
    assert_eq!(began.elapsed(), LEASE + LEASE / 8);
    let lease = heartbeat(&server.shared, (1, 1), &beat("b:1", version)).unwrap();
    assert_eq!((lease.events.version, lease.events.reset), (now, true));
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_while_the_machine_sleeps() {
    let slept = Arc::new(AtomicU64::new(0));
    let (clock, awake) = (slept.clone(), time());
    let awake_or_not =
        Arc::new(move || awake() + Duration::from_secs(clock.load(Ordering::Relaxed)));
    let cluster = ClusterOptions { awake_or_not, ..member_options() };
    let options = ServerOptions { cluster: Some(cluster), ..ServerOptions::simulated("a:1") };
    let server = open_with(&formatted(2), options).unwrap();
    let cluster = server.shared.cluster.as_ref().unwrap();
    let events = events_since(&server.shared.invalidations, server.shared.invalidations.version());
    let lease = Lease {
        ms: 8000,
        map: None,
        events,
        settings: None,
        keys: None,
        roots: None,
        admission: Admission::Admitted(1),
        coordinator: cluster.own.follows().0,
        position: 0,
        generations: vec![1],
        since_ms: 0,
    };
    crate::cluster::lease::take_lease(&server.shared, cluster, cluster.time(), lease)
        .await
        .unwrap();
    assert!(cluster.has_lease());
    slept.store(7, Ordering::Relaxed);
    assert!(cluster.has_lease());
    slept.store(8, Ordering::Relaxed);
    assert!(!cluster.has_lease());
}

#[tokio::test(start_paused = true)]
async fn versions_go_on_beyond_those_that_were_reserved() {
    let (engine, server, version) = complete();
    let dirs = vec![DirId(700); 40_000];
    for _ in 0..3 {
        announce(&server.shared, &dirs).await.unwrap();
    }
    assert_eq!(server.shared.invalidations.version(), version + 120_000);
    drop(server);
    engine.power_cut(0);
    let server = open(&engine, true).unwrap();
    assert!(server.shared.invalidations.version() > version + 120_000);
}
