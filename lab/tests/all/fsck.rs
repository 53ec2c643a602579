//! A check of a cluster finds what is wrong between its servers, names it, and repairs it.
//!
//! Each test begins with a sound cluster, on which nothing is found, and ends with one, except for
//! those about damage that is not repaired.

mod blocks;
mod damage;
mod differences;
mod divided;
mod transactions;

use std::{ops::ControlFlow, time::Duration};

use base::{Cred, placement::shard_of};
use client::{Client, FileSystem as _, Fsck, Result};
use lab::{
    check,
    sim::{plan::Plan, play::test_in, world::World},
};
use store::{Batch, Engine as _};
use wire::DirRef;

const SERVERS: u16 = 3;
/// Number of bytes of an `N` key before its kind.
const KIND: usize = 2;

struct Cluster {
    world: World,
    shards: u16,
}

type Record = (Vec<u8>, Vec<u8>);

/// Runs a test on a tree over three servers: `/d0` to `/d5`, `/p/q/r`, where `q` was born as `/q`,
/// and `/file`, linked into each of `/d0` to `/d5`.
fn on_a_cluster(test: impl AsyncFnOnce(&Cluster, &Client)) {
    with_cluster(async |cluster, client| {
        test(cluster, client).await;
        let found = findings(&cluster.world, client).await;
        assert_ne!(found, [""; 0]);
        let repaired = repair(&cluster.world, client).await;
        let (repaired, wrong): (Vec<_>, Vec<_>) =
            repaired.into_iter().partition(|line| line.starts_with("repaired: "));
        assert_eq!(wrong, [""; 0], "after {repaired:#?} of {found:#?}");
        assert_ne!(repaired, [""; 0]);
        assert_eq!(findings(&cluster.world, client).await, [""; 0]);
        assert_eq!(repair(&cluster.world, client).await, [""; 0]);
    });
}

/// Like [`on_a_cluster`], for damage that is not repaired.
fn with_cluster(test: impl AsyncFnOnce(&Cluster, &Client)) {
    in_world(plan(1), test);
}

/// A world in which damaged directories do not divide themselves.
fn plan(seed: u64) -> Plan {
    Plan { split_threshold: u64::MAX, ..Plan::draw(seed, SERVERS) }
}

fn in_world(plan: Plan, test: impl AsyncFnOnce(&Cluster, &Client)) {
    let shards = plan.shards;
    test_in(plan, async |world| {
        let machine = world.connect("plants").await.unwrap();
        let client = &machine.client;
        client.write("/file", b"contents").await.unwrap();
        for dir in 0..6 {
            client.mkdir(format!("/d{dir}"), 0o755).await.unwrap();
            client.link("/file", format!("/d{dir}/link")).await.unwrap();
        }
        client.mkdir("/p", 0o755).await.unwrap();
        client.mkdir("/q", 0o755).await.unwrap();
        client.rename("/q", "/p/q").await.unwrap();
        client.mkdir("/p/q/r", 0o755).await.unwrap();
        client.sync().await.unwrap();
        world.wait(Duration::from_secs(5)).await;
        assert_eq!(findings(world, client).await, [""; 0]);
        test(&Cluster { world: world.clone(), shards }, client).await;
    });
}

/// Findings of a check.
async fn findings(world: &World, client: &Client) -> Vec<String> {
    followed(world, client, client.fsck_start_everywhere(false).await.unwrap()).await
}

/// Findings and repairs of a check that repairs.
async fn repair(world: &World, client: &Client) -> Vec<String> {
    followed(world, client, client.repair_start_everywhere(false, false).await.unwrap()).await
}

async fn followed(world: &World, client: &Client, check: Fsck) -> Vec<String> {
    check::follow(world, client, check).await.unwrap().findings
}

/// Like [`repair`], where another may be running.
async fn try_repair(world: &World, client: &Client) -> Result<Vec<String>> {
    let check = client.repair_start_everywhere(false, false).await?;
    Ok(check::follow(world, client, check).await?.findings)
}

impl Cluster {
    fn host(&self, shard: u16) -> usize {
        usize::from(shard % SERVERS)
    }

    /// Records of a kind of a directory, on its shard.
    fn of_dir(&self, kind: u8, dir: &DirRef) -> Vec<Record> {
        let shard = shard_of(dir.home, 0, self.shards).0;
        let prefix = [&shard.to_be_bytes()[..], &[kind], &dir.id.0.to_be_bytes()].concat();
        let (mut found, mut end) = (Vec::new(), prefix.clone());
        end.extend([u8::MAX; 8]);
        let mut take = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        self.world.hosts()[self.host(shard)].engine().scan(&prefix, &end, &mut take).unwrap();
        found
    }

    /// The entry of a name.
    fn entry(&self, dir: &DirRef, name: &str) -> Record {
        let end = [name.as_bytes(), &[0, 0]].concat();
        let mut all = self.of_dir(b'N', dir).into_iter();
        all.find(|(key, _)| key.ends_with(&end)).unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Batch), key: &[u8]) {
        let shard = u16::from_be_bytes([key[0], key[1]]);
        let host = &self.world.hosts()[self.host(shard)];
        let mut batch = Batch::default();
        change(&mut batch);
        host.engine().write(batch).unwrap();
        host.engine().sync().unwrap();
        // The restart drops what the server remembers of the record.
        host.kill();
        host.start().unwrap();
    }

    fn delete(&self, key: &[u8]) {
        self.change(|batch| batch.delete(key), key);
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.change(|batch| batch.put(key, value), key);
    }

    /// Writes a record without the server's knowledge, while it runs.
    fn slip(&self, host: usize, key: &[u8], value: &[u8]) {
        let mut batch = Batch::default();
        batch.put(key, value);
        self.world.hosts()[host].engine().write(batch).unwrap();
    }

    fn get(&self, host: usize, key: &[u8]) -> Option<Vec<u8>> {
        Some(self.world.hosts()[host].engine().get(key).unwrap()?.to_vec())
    }

    /// Checks that damage stays, and that `what` is reported of it.
    async fn stays(&self, client: &Client, what: &str) {
        for _ in 0..2 {
            let found = repair(&self.world, client).await;
            assert!(found.iter().any(|line| line.contains(what)), "{what}: {found:#?}");
            assert!(!found.iter().any(|line| line.starts_with("repaired: ")), "{found:#?}");
        }
    }

    async fn finds(&self, client: &Client, what: &str) {
        let found = findings(&self.world, client).await;
        assert!(found.iter().any(|line| line.contains(what)), "{what}: {found:#?}");
    }
}

async fn dir(client: &Client, from: &DirRef, name: &str) -> DirRef {
    let name = base::EntryName::new(name.as_bytes()).unwrap();
    client.lookup(&Cred::ROOT, from, &name).await.unwrap().dir.unwrap()
}

/// A directory in the root that another server has, and its name.
async fn elsewhere(cluster: &Cluster, client: &Client) -> (DirRef, String) {
    let root = client.root().0;
    let host = |dir: &DirRef| cluster.host(shard_of(dir.home, 0, cluster.shards).0);
    for number in 0..6 {
        let name = format!("d{number}");
        let found = dir(client, &root, &name).await;
        if host(&found) != host(&root) {
            return (found, name);
        }
    }
    panic!("all directories are on one server");
}
