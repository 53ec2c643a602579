//! Clusters in memory in which servers die at one step, and start again.
//!
//! A step is an action that outlives a server or that others rely on
//! ([`Steps`](lab::sim::disk::Steps)).

use std::{
    fmt::Debug,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use base::{Locality, placement::shard_of};
use client::Client;
use lab::{
    check::planted::{self, Pin},
    sim::{
        network::Place,
        plan::{Aim, Plan, Weather},
        play::in_world,
        server::Host,
        world::World,
    },
};
use meta::{Bug, Durability};
use parking_lot::Mutex;
use tokio::time::timeout;
use wire::{DirRef, NodeRef};

/// A multiple of each number of servers, so that neighbours among partitions are on different
/// servers.
pub(crate) const SHARDS: u16 = 12;

/// The plan of a world without faults of its own, and without partitions.
pub(crate) fn plan(servers: u16, durability: Durability) -> Plan {
    Plan {
        durability,
        shards: SHARDS,
        locality: Locality::Directory,
        lease: Duration::from_secs(4),
        server_lease: Duration::from_secs(1),
        commit_interval: Duration::from_millis(50),
        inline_bytes_max: 4096,
        weather: Weather { delay_ms_max: 2, stall_one_in: u64::MAX, pieces: false },
        // Syncs take time, so a power cut takes changes that wait for the disk.
        disk_ms_max: if durability == Durability::Strict { 4 } else { 0 },
        split_threshold: u64::MAX,
        divides: false,
        aim: Aim::Nothing,
        ..Plan::draw(1, servers)
    }
}

/// A new directory whose names are on this one of so many servers.
pub(crate) async fn dir_on(
    client: &Client,
    server: u16,
    servers: u16,
) -> anyhow::Result<(String, DirRef)> {
    for number in 0..1000 {
        let path = format!("/on-{server}-{number}");
        client.mkdir(&path, 0o755).await?;
        if let NodeRef::Dir(dir) = client.resolve(&path).await?
            && shard_of(dir.home, 0, SHARDS).0 % servers == server
        {
            return Ok((path, dir));
        }
    }
    bail!("no directory is on server {server}")
}

/// Runs a world, which lasts for `longest` at most.
pub(crate) fn run<T>(
    plan: Plan,
    bug: Option<Bug>,
    longest: Duration,
    play: impl AsyncFnOnce(World) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    in_world(plan, bug, longest, play)
}

/// Two machines do not reach each other for some time.
pub(crate) fn part(world: &World, one: Place, other: Place, time: Duration) {
    world.network().wall(one, other, time);
    world.network().wall(other, one, time);
}

/// A function that plays the world of a seed, with a planted bug or without.
pub(crate) type Story = fn(u64, Option<Bug>) -> anyhow::Result<()>;

/// Number of worlds that are played of a story.
const WORLDS: u64 = 12;

/// Plays a story in many worlds without a bug. `PANDO_WORLDS=10000` says in how many.
pub(crate) fn goes_well(story: Story) {
    let count = std::env::var("PANDO_WORLDS").map(|count| count.parse().unwrap());
    let seeds: Vec<u64> = (0..count.unwrap_or(WORLDS)).collect();
    let failures = failures(&seeds, |seed| story(*seed, None).map(|()| 0));
    assert!(failures.is_empty(), "seeds: {failures:#?}");
}

/// Plants a bug, which the world of a seed must show.
pub(crate) fn finds(story: Story, bug: Bug, seed: u64, word: &str) {
    let pin = Pin { seed: Some(seed), word, seeds: 0..WORLDS };
    let found = planted::find(&pin, |seed, planted| story(seed, planted.then_some(bug)));
    println!("{bug:?}: {}", found.unwrap_or_else(|missed| panic!("{missed}")));
}

/// Waits until `victims` are at the step at which they die, and starts them again one after the
/// other. With `power` they lose all that they have not synced.
pub(crate) async fn crash(
    world: &World,
    victims: &[usize],
    power: bool,
    step: u64,
    patience: Duration,
) -> anyhow::Result<()> {
    let hosts: Vec<&Host> = victims.iter().map(|server| &world.hosts()[*server]).collect();
    let dead = async {
        while hosts.iter().any(|host| host.is_alive()) {
            world.wait(Duration::from_millis(1)).await;
        }
    };
    timeout(patience, dead).await.context("the step is not reached")?;
    for host in &hosts {
        host.crash(power);
    }
    let pauses = [0, 300, 1500].map(Duration::from_millis);
    let mut again = hosts.clone();
    if step.is_multiple_of(2) {
        again.reverse();
    }
    for (pause, host) in pauses.iter().cycle().skip(usize::try_from(step % 3)?).zip(again) {
        world.wait(*pause).await;
        host.start()?;
    }
    Ok(())
}

/// Runs all crashes, on two threads; returns the failures.
pub(crate) fn failures<C: Debug + Sync>(
    all: &[C],
    run: impl Fn(&C) -> anyhow::Result<u64> + Sync,
) -> Vec<String> {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(crash) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = run(crash) {
                failures.lock().push(format!("{crash:?}: {error:#}"));
            }
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(work);
        work();
    });
    failures.into_inner()
}
