//! Damage in a cluster: damaged records answer EIO, as on one server. Everything else works, and no
//! request waits for ever.

use std::{ops::ControlFlow, time::Duration};

use base::{Cred, FsError, SetAttr};
use client::{Client, FileSystem as _};
use lab::sim::{server::Host, world::World};
use store::{Batch, Engine as _};

use crate::calm::{failed, in_cluster};

/// Removes all records of a kind whose keys hold `bytes`, from all servers; returns their number.
async fn remove(world: &World, kind: u8, bytes: &[u8]) -> usize {
    settle(world).await;
    let mut removed = 0;
    for host in world.hosts() {
        let mut batch = Batch::default();
        let visit = &mut |key: &[u8], _: &[u8]| {
            let is_meant = key.windows(bytes.len()).any(|part| part == bytes);
            if key.get(2) == Some(&kind) && is_meant {
                batch.delete(key);
            }
            ControlFlow::Continue(())
        };
        host.engine().scan(&[], &[u8::MAX; 16], visit).unwrap();
        removed += batch.len();
        host.engine().write(batch).unwrap();
    }
    world.hosts().iter().for_each(restart);
    removed
}

/// Lets all servers hear how transactions ended.
async fn settle(world: &World) {
    world.wait(Duration::from_secs(5)).await;
}

/// Restarts a server, so that it has no record in memory.
fn restart(host: &Host) {
    host.kill();
    host.start().unwrap();
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    let mut page = client.read_dir(path).await.unwrap().all().await.unwrap();
    page.sort_by(|one, other| one.name.cmp(&other.name));
    page.into_iter().map(|entry| entry.name.to_string()).collect()
}

/// Directories whose groups are on different servers, with one file in all of them.
async fn linked(client: &Client) -> Vec<String> {
    let dirs: Vec<_> = (0..6).map(|number| format!("/dir-{number}")).collect();
    for dir in &dirs {
        client.mkdir(dir, 0o755).await.unwrap();
    }
    client.write(format!("{}/f", dirs[0]), b"contents").await.unwrap();
    for dir in &dirs[1..] {
        client.link(format!("{}/f", dirs[0]), format!("{dir}/f")).await.unwrap();
    }
    dirs
}

#[test]
fn names_of_an_inode_that_is_gone() {
    in_cluster(async |world, client| {
        world.trace().expect("run `pando fsck`");
        let dirs = linked(client).await;
        assert_eq!(remove(world, b'I', b"I").await, 1);
        for dir in dirs {
            let path = format!("{dir}/f");
            assert_eq!(failed(client.stat(&path).await), FsError::Io, "{path}");
            assert_eq!(failed(client.unlink(&path).await), FsError::Io, "{path}");
            assert_eq!(failed(client.rename(&path, "/moved").await), FsError::Io, "{path}");
            assert_eq!(names(client, &dir).await, ["f"]);
            client.write(format!("{dir}/g"), b"fine").await.unwrap();
        }
    });
}

#[test]
fn directories_without_a_content_record() {
    in_cluster(async |world, client| {
        world.trace().expect("run `pando fsck`");
        client.mkdir("/above", 0o755).await.unwrap();
        for number in 0..6 {
            client.mkdir(format!("/above/{number}"), 0o755).await.unwrap();
        }
        let content_of = client.stat("/above").await.unwrap();
        assert_eq!(content_of.nlink, 8);
        remove_contents_below(world).await;
        for number in 0..6 {
            let path = format!("/above/{number}");
            assert_eq!(failed(client.rmdir(&path).await), FsError::Io, "{path}");
            assert_eq!(failed(client.rename(&path, "/moved").await), FsError::Io, "{path}");
        }
        assert_eq!(names(client, "/above").await.len(), 6);
        client.mkdir("/above/fine", 0o755).await.unwrap();
    });
}

/// Removes the content records of empty directories.
async fn remove_contents_below(world: &World) {
    settle(world).await;
    let mut above = Vec::new();
    for host in world.hosts() {
        let visit = &mut |key: &[u8], _: &[u8]| {
            if key.get(2) == Some(&b'N') {
                above.push(key[3..19].to_vec());
            }
            ControlFlow::Continue(())
        };
        host.engine().scan(&[], &[u8::MAX; 16], visit).unwrap();
    }
    for host in world.hosts() {
        let mut batch = Batch::default();
        let visit = &mut |key: &[u8], _: &[u8]| {
            if key.get(2) == Some(&b'D') && !above.iter().any(|dir| key[3..19] == dir[..]) {
                batch.delete(key);
            }
            ControlFlow::Continue(())
        };
        host.engine().scan(&[], &[u8::MAX; 16], visit).unwrap();
        host.engine().write(batch).unwrap();
    }
    world.hosts().iter().for_each(restart);
}

#[test]
fn permissions_of_directories_whose_entries_are_gone() {
    in_cluster(async |world, client| {
        world.trace().expect("run `pando fsck`");
        let mut open = Vec::new();
        for number in 0..6 {
            let path = format!("/closed-{number}");
            client.mkdir(&path, 0o755).await.unwrap();
            open.push(client.resolve(&path).await.unwrap());
        }
        assert_eq!(remove(world, b'N', b"closed-").await, 6);
        let closed = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        for dir in open {
            let changed = client.setattr(&Cred::ROOT, &dir, closed).await;
            assert_eq!(failed(changed), FsError::Io);
        }
    });
}
