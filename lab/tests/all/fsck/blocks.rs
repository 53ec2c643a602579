//! Blocks that nothing names.

use std::{ops::ControlFlow, time::Duration};

use base::{BlockId, SessionId};
use client::{Client, FileSystem as _};
use futures::StreamExt as _;
use lab::check;
use store::Engine as _;

use super::{Cluster, KIND, SERVERS, dir, findings, followed, with_cluster};

/// Puts blocks into the store of `server`, of a session that does not exist.
async fn leave_blocks(cluster: &Cluster, server: usize, count: u64) {
    let host = &cluster.world.hosts()[server];
    for number in 0..count {
        let block = BlockId::new(SessionId(0xdead), number);
        host.blocks().put(block, vec![1; 100].into()).await.unwrap();
    }
}

async fn blocks_at(cluster: &Cluster, server: usize) -> u64 {
    cluster.world.hosts()[server].blocks().list().count().await.try_into().unwrap()
}

/// Runs a check that removes blocks. Returns its findings, the number of blocks that nothing named,
/// and the number removed.
async fn collect(cluster: &Cluster, client: &Client) -> (Vec<String>, u64, u64) {
    let check = client.fsck_start_everywhere(true).await.unwrap();
    let progress = check::follow(&cluster.world, client, check).await.unwrap();
    let count = |name: &str| progress.counts.iter().find(|(other, _)| other == name).unwrap().1;
    let (unreferenced, removed) = (count("blocks_unreferenced"), count("blocks_removed"));
    (progress.findings, unreferenced, removed)
}

#[test]
fn each_server_removes_the_blocks_that_nothing_names_and_no_others() {
    with_cluster(async |cluster, client| {
        // Files of all servers move to directories of other servers.
        let contents = |file: u8| vec![file; 100_000];
        for file in 0..12u8 {
            client.write(format!("/d{}/file{file}", file % 6), &contents(file)).await.unwrap();
        }
        for file in 0..12u8 {
            let (from, to) = (file % 6, (file + 1) % 6);
            let name = |dir| format!("/d{dir}/file{file}");
            client.rename(name(from), name(to)).await.unwrap();
        }
        client.sync().await.unwrap();
        let mut before = Vec::new();
        for server in 0..usize::from(SERVERS) {
            before.push(blocks_at(cluster, server).await);
            leave_blocks(cluster, server, 3).await;
        }
        assert!(before.iter().all(|count| *count > 0), "{before:?}");
        assert_eq!(collect(cluster, client).await, (vec![], 9, 9));
        assert_eq!(collect(cluster, client).await, (vec![], 0, 0));
        for (server, before) in before.into_iter().enumerate() {
            assert_eq!(blocks_at(cluster, server).await, before);
        }
        let other = cluster.world.connect("other").await.unwrap();
        for file in 0..12u8 {
            let path = format!("/d{}/file{file}", (file + 1) % 6);
            assert_eq!(other.client.read(path).await.unwrap(), contents(file));
        }
    });
}

#[test]
fn what_is_written_while_blocks_are_removed_stays() {
    with_cluster(async |cluster, client| {
        let writer = cluster.world.connect("writer").await.unwrap();
        let mut files = Vec::new();
        for file in 0..6u8 {
            let (path, old, new) =
                (format!("/d{file}/file"), vec![file; 50_000], vec![file + 100; 70_000]);
            writer.client.write(&path, &old).await.unwrap();
            files.push((path, new));
        }
        let writes = async {
            for (path, new) in &files {
                writer.client.write(path, new).await.unwrap();
                cluster.world.wait(Duration::from_millis(30)).await;
            }
        };
        let collects = async {
            for server in 0..usize::from(SERVERS) {
                leave_blocks(cluster, server, 20).await;
            }
            for _ in 0..3 {
                let (found, ..) = collect(cluster, client).await;
                assert_eq!(found, [""; 0]);
            }
        };
        futures::future::join(writes, collects).await;
        writer.client.sync().await.unwrap();
        for (path, new) in &files {
            assert_eq!(client.read(path).await.unwrap(), *new);
        }
        assert_eq!(collect(cluster, client).await.0, [""; 0]);
        for (path, new) in &files {
            assert_eq!(client.read(path).await.unwrap(), *new);
        }
    });
}

#[test]
fn nothing_is_removed_where_it_cannot_be_read_what_is_named() {
    with_cluster(async |cluster, client| {
        for dir in 0..6 {
            client.write(format!("/d{dir}/file"), &vec![1; 50_000]).await.unwrap();
        }
        client.sync().await.unwrap();
        let mut damaged = None;
        let mut take = |key: &[u8], value: &[u8]| {
            if key[KIND] == b'B' {
                damaged = Some((key.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        };
        cluster.world.hosts()[1].engine().scan(&[], &[u8::MAX; 8], &mut take).unwrap();
        let (key, value) = damaged.unwrap();
        for server in 0..usize::from(SERVERS) {
            leave_blocks(cluster, server, 2).await;
        }
        let before = blocks_at(cluster, 1).await;
        cluster.put(&key, &value[..value.len() / 2]);
        let (found, _, removed) = collect(cluster, client).await;
        let says =
            |line: &String| line.contains("server 1") && line.contains("no block is removed");
        assert!(found.iter().any(says), "{found:#?}");
        assert_eq!((removed, blocks_at(cluster, 1).await), (4, before), "the others are sound");
        cluster.put(&key, &value);
        assert_eq!(collect(cluster, client).await, (vec![], 2, 2));
    });
}

#[test]
fn blocks_are_removed_after_repairs_when_that_is_asked() {
    with_cluster(async |cluster, client| {
        leave_blocks(cluster, 2, 5).await;
        let dir = dir(client, &client.root().0, "d3").await;
        cluster.delete(&cluster.entry(&dir, "link").0);
        let check = client.repair_start_everywhere(true, false).await.unwrap();
        let lines = followed(&cluster.world, client, check).await;
        assert!(lines.iter().all(|line| line.starts_with("repaired: ")), "{lines:#?}");
        assert!(!lines.is_empty());
        assert_eq!(blocks_at(cluster, 2).await, 0);
        assert_eq!(findings(&cluster.world, client).await, [""; 0]);
    });
}

#[test]
fn files_that_have_lost_contents_are_named_by_their_paths() {
    with_cluster(async |cluster, client| {
        let mut paths = Vec::new();
        for dir in 0..6u8 {
            client.mkdir(format!("/d{dir}/below"), 0o755).await.unwrap();
            let path = format!("/d{dir}/below/file");
            client.write(&path, &[dir; 50_000]).await.unwrap();
            paths.push(path);
        }
        client.sync().await.unwrap();
        for host in cluster.world.hosts() {
            let blocks: Vec<_> = host.blocks().list().collect().await;
            for block in blocks {
                host.blocks().delete(block.unwrap().id).await.unwrap();
            }
        }
        let found = findings(&cluster.world, client).await;
        for path in paths {
            let names = |line: &String| line.contains(&format!(": {path}: chunk 0 of inode "));
            assert!(found.iter().any(names), "{path}: {found:#?}");
        }
    });
}
