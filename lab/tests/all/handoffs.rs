//! Names move from one partition to another, though a server goes away meanwhile.

use std::{cell::Cell, ops::ControlFlow, time::Duration};

use base::placement::shard_of;
use client::Client;
use lab::sim::{
    plan::{Plan, Weather},
    play::test_in,
    server::Host,
    world::{Machine, World},
};
use store::Engine as _;
use tokio::time::timeout;
use wire::{DirRef, NodeRef, XattrMode};

const SERVERS: u16 = 3;
const SHARDS: u16 = 16;
/// The longest that names are frozen: the limit of a server, and some for its own work.
const FROZEN_MAX: Duration = Duration::from_millis(260);

/// Runs a test in a world in which nothing goes wrong by itself, and a partition with
/// `split_threshold` entries splits.
fn in_a_world(seed: u64, split_threshold: u64, test: impl AsyncFn(&World, &Machine)) {
    let long = Duration::from_secs(1000);
    let plan = Plan {
        shards: SHARDS,
        lease: long,
        server_lease: long,
        split_threshold,
        weather: Weather { delay_ms_max: 2, stall_one_in: u64::MAX, pieces: false },
        ..Plan::draw(seed, SERVERS)
    };
    test_in(plan, async |world| {
        let maker = world.connect("maker").await.unwrap();
        test(world, &maker).await;
        maker.close().await.unwrap();
    });
}

async fn dir(client: &Client, path: &str) -> DirRef {
    let NodeRef::Dir(dir) = client.resolve(path).await.unwrap() else { panic!("a directory") };
    dir
}

/// The server of a partition of a directory.
fn server_of(dir: &DirRef, partition: u16) -> u16 {
    shard_of(dir.home, partition, SHARDS).0 % SERVERS
}

#[test]
fn names_do_not_stay_frozen_while_the_target_is_away() {
    let (longest, waited) = (Cell::new(Duration::ZERO), Cell::new(Duration::ZERO));
    // The names of each seed have another order, so other writes meet frozen ones.
    for (seed, ms) in (1..=3).flat_map(|seed| (0..100).map(move |ms| (seed, ms))) {
        in_a_world(seed, 20, async |world, maker| {
            let client = &maker.client;
            // The directory splits over two servers.
            let mut path = String::new();
            let (mut source, mut target) = (0, 0);
            for number in 0.. {
                path = format!("/d{number}");
                client.mkdir(&path, 0o755).await.unwrap();
                let dir = dir(client, &path).await;
                (source, target) = (server_of(&dir, 0), server_of(&dir, 1));
                if source != target {
                    break;
                }
            }
            for number in 0..25 {
                client.write(format!("{path}/{number}"), b"").await.unwrap();
            }
            while world.counts().handoffs_begun == 0 {
                world.wait(Duration::from_millis(1)).await;
            }
            world.wait(Duration::from_millis(ms)).await;
            let [source, target] =
                [source, target].map(|server| &world.hosts()[usize::from(server)]);
            target.stop(true);
            // Some of these names are frozen, if any are.
            let more = async {
                for number in 25..40 {
                    client.write(format!("{path}/{number}"), b"").await.unwrap();
                }
            };
            // The writes end, or hang if their names have moved to the stopped target.
            let _ = timeout(Duration::from_secs(9), more).await;
            world.wait(Duration::from_secs(1)).await;
            let frozen = source.time_of("handoff_frozen_nanos");
            assert!(frozen <= FROZEN_MAX, "{frozen:?} when it stopped after {ms} ms");
            longest.set(frozen.max(longest.get()));
            let waits = source.time_of("handoff_wait_nanos");
            assert!(waits <= frozen, "one request at a time waits no longer than names are frozen");
            waited.set(waits.max(waited.get()));
            target.stop(false);
            let split = async {
                while world.counts().handoffs_done == 0 {
                    world.wait(Duration::from_millis(100)).await;
                }
            };
            timeout(Duration::from_secs(60), split).await.expect("it splits later");
        });
    }
    for (what, longest) in [("hit frozen names", longest), ("let a request wait", waited)] {
        let longest = longest.get();
        assert!(longest > Duration::from_millis(200), "no stop {what}: {longest:?}");
    }
}

#[test]
fn a_step_of_subsets_goes_on_after_a_restart() {
    in_a_world(1, u64::MAX, async |world, maker| {
        let client = &maker.client;
        client.mkdir("/d", 0o755).await.unwrap();
        let set = async |name: &str, value: &str| {
            client.set_xattr("/d", name, value.as_bytes(), XattrMode::Set).await.unwrap();
        };
        set("pando.spread", "subsets").await;
        for number in 0..90 {
            client.write(format!("/d/{number}"), b"").await.unwrap();
        }
        set("pando.split_threshold", "20").await;
        client.write("/d/one more", b"").await.unwrap();
        // Two more subsets get names from the first, and from the second, after that had got its
        // own.
        while world.counts().handoffs_done < 2 {
            world.wait(Duration::from_millis(1)).await;
        }
        assert!(world.counts().handoffs_done < 1 + 4, "the step is done");
        // Partitions that are too large remind the master, for as long as they know that they are.
        world.hosts().iter().for_each(Host::kill);
        world.hosts().iter().for_each(|host| host.start().unwrap());
        // No client writes any more.
        let settled = async {
            loop {
                let lines = client.info("/d").await.unwrap();
                if lines.contains(&("partitions".to_owned(), "5".to_owned())) {
                    return;
                }
                world.wait(Duration::from_millis(100)).await;
            }
        };
        let ended = timeout(Duration::from_secs(120), settled).await;
        assert!(ended.is_ok(), "{:?}", client.info("/d").await);
    });
}

/// How many partitions of all directories get names now.
fn receiving(world: &World) -> usize {
    let mut found = 0;
    for host in world.hosts() {
        let scanned = host.engine().scan(&[], &[u8::MAX; 16], &mut |key, value| {
            // After the version of the record, its tag.
            found += usize::from(key[2] == b'H' && value.get(1) == Some(&1));
            ControlFlow::Continue(())
        });
        scanned.unwrap();
    }
    found
}

#[test]
fn subsets_come_from_several_sources_at_a_time() {
    in_a_world(1, u64::MAX, async |world, maker| {
        let client = &maker.client;
        client.mkdir("/d", 0o755).await.unwrap();
        let set = async |name: &str, value: &str| {
            client.set_xattr("/d", name, value.as_bytes(), XattrMode::Set).await.unwrap();
        };
        set("pando.spread", "subsets").await;
        for number in 0..130 {
            client.write(format!("/d/{number}"), b"").await.unwrap();
        }
        set("pando.split_threshold", "8").await;
        client.write("/d/one more", b"").await.unwrap();
        // Steps to 2, 4, 8 and 16 subsets. One more each time would be 120 handoffs.
        let handoffs = 1 + 2 * 2 + 4 * 4 + 8 * 8;
        let (mut most, mut waited_ms) = (0, 0);
        let come = async {
            while world.counts().handoffs_done < handoffs {
                world.wait(Duration::from_millis(1)).await;
                most = most.max(receiving(world));
                waited_ms += 1;
            }
        };
        let ended = timeout(Duration::from_secs(120), come).await;
        assert!(ended.is_ok(), "{} handoffs", world.counts().handoffs_done);
        world.wait(Duration::from_secs(2)).await;
        let counts = world.counts();
        let (begun, done) = (counts.handoffs_begun, counts.handoffs_done);
        println!("{done} handoffs of {begun}, {most} at a time, in {waited_ms} ms of the world");
        assert_eq!(done, handoffs);
        assert!(most > usize::from(SERVERS), "{most} at a time");
        let lines = client.info("/d").await.unwrap();
        assert!(lines.contains(&("partitions".to_owned(), "16".to_owned())), "{lines:?}");
    });
}
