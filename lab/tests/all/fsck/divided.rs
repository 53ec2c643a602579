//! Directories in several partitions.

use std::{ops::ControlFlow, time::Duration};

use base::placement::shard_of;
use client::{Client, FileSystem as _};
use store::Engine as _;
use wire::{DirRef, XattrMode};

use super::{Cluster, Record, dir, elsewhere, findings, on_a_cluster, repair};

/// Like [`on_a_cluster`], with a directory `/wide` in three partitions, each on another server,
/// with twelve names and a thirteenth for a directory. None of them is lost.
fn on_a_divided_cluster(test: impl AsyncFn(&Cluster, &Client, &DirRef)) {
    for spread in ["extendible", "subsets"] {
        on_a_cluster(async |cluster, client| {
            client.mkdir("/wide", 0o755).await.unwrap();
            for (name, value) in [("pando.spread", spread), ("pando.large_dir", "3")] {
                client.set_xattr("/wide", name, value.as_bytes(), XattrMode::Set).await.unwrap();
            }
            for number in 0..12 {
                client.write(format!("/wide/{number}"), b"contents").await.unwrap();
            }
            client.mkdir("/wide/dir", 0o755).await.unwrap();
            client.sync().await.unwrap();
            cluster.world.wait(Duration::from_secs(5)).await;
            assert_eq!(findings(&cluster.world, client).await, [""; 0]);
            let wide = dir(client, &client.root().0, "wide").await;
            test(cluster, client, &wide).await;
            let repaired = repair(&cluster.world, client).await;
            assert!(repaired.iter().all(|line| line.starts_with("repaired: ")), "{repaired:#?}");
            assert_eq!(client.stat("/wide").await.unwrap().size, 13);
            for number in 0..12 {
                let contents = client.read(format!("/wide/{number}")).await.unwrap();
                assert_eq!(contents[..], b"contents"[..], "{number}");
            }
            assert_eq!(client.stat("/wide/dir").await.unwrap().nlink, 2);
            // The harness needs something to repair.
            let (lost, _) = elsewhere(cluster, client).await;
            cluster.delete(&cluster.of_dir(b'D', &lost).remove(0).0);
        });
    }
}

impl Cluster {
    /// The record of a partition.
    fn share(&self, dir: &DirRef, partition: u16) -> Record {
        let shard = shard_of(dir.home, partition, self.shards).0;
        let id = dir.id.0.to_be_bytes();
        let key = [&shard.to_be_bytes()[..], b"D", &id, &partition.to_be_bytes(), &[0]].concat();
        let value = self.get(self.host(shard), &key).unwrap();
        (key, value)
    }
}

#[test]
fn a_partition_that_is_gone_from_its_server_is_made_again() {
    on_a_divided_cluster(async |cluster, client, wide| {
        cluster.delete(&cluster.share(wide, 1).0);
        let found = findings(&cluster.world, client).await;
        let line = format!("partition 1 of directory {} is not there", wide.id);
        assert!(found.iter().any(|found| found.contains(&line)), "{found:#?}");
    });
}

#[test]
fn a_master_that_is_gone_from_its_server_is_made_of_a_partition_on_another() {
    on_a_divided_cluster(async |cluster, client, wide| {
        cluster.delete(&cluster.share(wide, 0).0);
        cluster.finds(client, "is there, but its directory is not").await;
    });
}

#[test]
fn a_name_in_the_partition_of_another_server_goes_to_its_own() {
    for name in ["0", "dir"] {
        on_a_divided_cluster(async |cluster, client, wide| {
            let end = [name.as_bytes(), &[0, 0]].concat();
            let shards =
                [0, 1, 2].map(|partition| shard_of(wide.home, partition, cluster.shards).0);
            let here = |shard: u16| {
                let prefix = [&shard.to_be_bytes()[..], b"N", &wide.id.0.to_be_bytes()].concat();
                let mut found = None;
                let mut take = |key: &[u8], value: &[u8]| {
                    if key.starts_with(&prefix) && key.ends_with(&end) {
                        found = Some((key.to_vec(), value.to_vec()));
                    }
                    ControlFlow::Continue(())
                };
                let engine = cluster.world.hosts()[cluster.host(shard)].engine();
                engine.scan(&[], &[u8::MAX; 8], &mut take).unwrap();
                found
            };
            let (key, value) = shards.into_iter().find_map(here).unwrap();
            let other = shards.iter().find(|shard| key[..2] != shard.to_be_bytes()).unwrap();
            cluster.delete(&key);
            cluster.put(&[&other.to_be_bytes()[..], &key[2..]].concat(), &value);
            cluster.finds(client, "but belongs to partition").await;
        });
    }
}
