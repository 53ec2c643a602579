//! A check of a cluster finds what is wrong between its servers, and names it.
//!
//! Each test begins with a sound cluster, on which nothing is found.
#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

use std::{ops::ControlFlow, time::Duration};

use base::{Cred, Encode as _, placement::shard_of};
use client::{Client, FileSystem as _};
use lab::sim::{plan::Plan, trace::Trace, world::World};
use store::{Batch, Engine as _};
use tokio::task::LocalSet;
use wire::DirRef;

const SERVERS: u16 = 3;
/// Bytes of an `N` key before the directory.
const KIND: usize = 2;

struct Cluster {
    world: World,
    shards: u16,
}

type Record = (Vec<u8>, Vec<u8>);

/// Runs a test on a tree over three servers: `/d0` to `/d5`, `/p/q/r`, where `q` was born as `/q`, and `/file`, linked into each of
/// `/d0` to `/d5`.
fn on_a_cluster(test: impl AsyncFnOnce(&Cluster, &Client)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let plan = Plan::draw(1, SERVERS);
        let shards = plan.shards;
        let world = World::new(plan, None, &Trace::new(false)).unwrap();
        world.form().await.unwrap();
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
        assert_eq!(findings(&world, client).await, [""; 0]);
        test(&Cluster { world: world.clone(), shards }, client).await;
        assert_ne!(findings(&world, client).await, [""; 0]);
    });
}

/// What a check says.
async fn findings(world: &World, client: &Client) -> Vec<String> {
    let mut check = client.fsck_start_everywhere().await.unwrap();
    loop {
        let progress = check.poll(client, false).await.unwrap();
        if progress.done {
            return progress.findings;
        }
        world.wait(Duration::from_millis(50)).await;
    }
}

impl Cluster {
    fn host(&self, shard: u16) -> usize {
        usize::from(shard % SERVERS)
    }

    /// The records of a kind on a shard of a directory.
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
        // What it remembers of that goes with it.
        host.kill();
        host.start().unwrap();
    }

    fn delete(&self, key: &[u8]) {
        self.change(|batch| batch.delete(key), key);
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.change(|batch| batch.put(key, value), key);
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

/// A directory of the root that another server has, and its name.
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

#[test]
fn a_directory_without_contents_on_another_server_is_found() {
    on_a_cluster(async |cluster, client| {
        let (lost, name) = elsewhere(cluster, client).await;
        let (key, _) = cluster.of_dir(b'D', &lost).remove(0);
        cluster.delete(&key);
        cluster.finds(client, &format!("/{name} has no content record")).await;
    });
}

#[test]
fn a_directory_without_its_entry_on_another_server_is_found() {
    on_a_cluster(async |cluster, client| {
        let (_, name) = elsewhere(cluster, client).await;
        let (key, _) = cluster.entry(&client.root().0, &name);
        cluster.delete(&key);
        cluster.finds(client, &format!("/{name} is not there, but its contents are")).await;
    });
}

#[test]
fn a_directory_that_is_entered_twice_is_found() {
    on_a_cluster(async |cluster, client| {
        let (_, name) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&client.root().0, &name);
        let end = key.len() - name.len() - 2;
        cluster.put(&[&key[..end], b"twice\0\0"].concat(), &value);
        cluster.finds(client, "/twice is the directory that is at ").await;
    });
}

#[test]
fn an_inode_whose_names_are_on_other_servers_counts_them() {
    on_a_cluster(async |cluster, client| {
        let (dir, _) = elsewhere(cluster, client).await;
        let (key, _) = cluster.entry(&dir, "link");
        cluster.delete(&key);
        cluster.finds(client, "counts 7 names, but all servers together have 6").await;
    });
}

#[test]
fn a_record_of_a_shard_that_another_server_has_is_found() {
    on_a_cluster(async |cluster, client| {
        let (dir, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.of_dir(b'D', &dir).remove(0);
        let here = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        let other = &cluster.world.hosts()[(here + 1) % usize::from(SERVERS)];
        let mut batch = Batch::default();
        batch.put(&key, &value);
        other.engine().write(batch).unwrap();
        cluster.finds(client, "a record of a shard that another server has").await;
    });
}

#[test]
fn a_loop_that_nothing_leads_to_is_found() {
    on_a_cluster(async |cluster, client| {
        let p = dir(client, &client.root().0, "p").await;
        let q = dir(client, &p, "q").await;
        let r = dir(client, &q, "r").await;
        // `q` is in `r`, which is in `q`.
        let (key, entry) = cluster.entry(&p, "q");
        let shard = shard_of(r.home, 0, cluster.shards).0.to_be_bytes();
        let rest = &key[KIND + 1 + 16..];
        cluster.delete(&key);
        cluster.put(&[&shard[..], b"N", &r.id.0.to_be_bytes(), rest].concat(), &entry);
        let (key, content) = cluster.of_dir(b'D', &q).remove(0);
        let pointer = |dir: &DirRef| {
            let mut bytes = Vec::new();
            (dir.id, dir.ino).encode(&mut bytes);
            dir.home.encode(&mut bytes);
            bytes
        };
        let (from, to) = (pointer(&p), pointer(&r));
        let at = content.windows(from.len()).position(|bytes| bytes == from).unwrap();
        let content = [&content[..at], &to, &content[at + from.len()..]].concat();
        cluster.put(&key, &content);
        cluster.finds(client, &format!("directory {} is in a loop", q.id)).await;
    });
}
