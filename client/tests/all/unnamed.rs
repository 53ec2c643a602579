//! Files that are made without a name, and get one later or never.

use std::time::Duration;

use base::{Cred, FsError};
use client::Error;
use tokio::time::sleep;

use crate::world::{World, fs};

#[tokio::test(start_paused = true)]
async fn a_file_without_a_name_is_gone_when_it_is_closed() {
    World::run(async |world| {
        let client = world.client().await;
        let file = client.tmpfile("/", 0o640, true).await.unwrap();
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        file.flush().await.unwrap();
        let attr = file.metadata().await.unwrap();
        assert_eq!((attr.nlink, attr.size, attr.mode & 0o777), (0, 20_000, 0o640));
        assert!(client.read_dir("/").await.unwrap().all().await.unwrap().is_empty());
        assert_eq!(world.counter("inodes_reclaimed"), 0);
        file.close().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert!(world.counter("inodes_reclaimed") > 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn its_first_name_makes_an_unnamed_file_one_like_others() {
    World::run(async |world| {
        let (client, other) = (world.client().await, world.client().await);
        client.mkdir("/d", 0o755).await.unwrap();
        client.write("/d/taken", b"").await.unwrap();
        let file = client.tmpfile("/d", 0o644, true).await.unwrap();
        file.write_at(0, b"complete").await.unwrap();
        assert_eq!(fs(file.link("/d/taken").await), FsError::Exists);
        file.link("/d/f").await.unwrap();
        assert_eq!(other.read("/d/f").await.unwrap(), &b"complete"[..]);
        assert_eq!(other.stat("/d/f").await.unwrap().nlink, 1);
        file.append(b"d").await.unwrap();
        file.link("/g").await.unwrap();
        file.close().await.unwrap();
        assert_eq!(other.read("/g").await.unwrap(), &b"completed"[..]);
        assert_eq!(other.stat("/d/f").await.unwrap().nlink, 2);
        other.unlink("/d/f").await.unwrap();
        other.rename("/g", "/d/h").await.unwrap();
        assert_eq!(client.read("/d/h").await.unwrap(), &b"completed"[..]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_gets_its_first_name_once_and_none_if_it_was_made_so() {
    World::run(async |world| {
        let client = world.client().await;
        let never = client.tmpfile("/", 0o600, false).await.unwrap();
        assert_eq!(fs(never.link("/f").await), FsError::NotFound);
        let once = client.tmpfile("/", 0o600, true).await.unwrap();
        once.link("/f").await.unwrap();
        client.unlink("/f").await.unwrap();
        assert_eq!(fs(once.link("/f").await), FsError::NotFound);
        assert_eq!(fs(client.stat("/f").await), FsError::NotFound);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_without_a_name_survives_a_restart_of_the_server_while_it_is_open() {
    World::run(async |world| {
        let client = world.client().await;
        let file = client.tmpfile("/", 0o644, true).await.unwrap();
        file.write_at(0, b"before").await.unwrap();
        file.flush().await.unwrap();
        world.kill();
        world.start();
        file.write_at(6, b", after").await.unwrap();
        sleep(Duration::from_secs(40)).await;
        assert_eq!(file.read_all().await.unwrap(), &b"before, after"[..]);
        file.link("/f").await.unwrap();
        file.close().await.unwrap();
        assert_eq!(client.read("/f").await.unwrap(), &b"before, after"[..]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_without_a_name_ends_with_its_session_and_when_nobody_claims_it() {
    World::run(async |world| {
        let vanishing = world.client().await;
        let file = vanishing.tmpfile("/", 0o644, true).await.unwrap();
        world.cut(true);
        world.kill();
        world.start();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(world.counter("inodes_reclaimed"), 0);
        sleep(Duration::from_secs(20)).await;
        assert_eq!(world.counter("inodes_reclaimed"), 1);
        world.cut(false);
        assert_eq!(file.link("/f").await, Err(Error::SessionLost));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_may_make_no_name_in_a_directory_makes_no_file_without_one_there() {
    World::run(async |world| {
        let root = world.client().await;
        root.mkdir("/closed", 0o755).await.unwrap();
        root.mkdir("/open", 0o1777).await.unwrap();
        let five = root.as_user(Cred { uid: 5, gid: 50, groups: Vec::new() });
        assert_eq!(fs(five.tmpfile("/closed", 0o644, true).await.map(drop)), FsError::Denied);
        assert_eq!(fs(five.tmpfile("/none", 0o644, true).await.map(drop)), FsError::NotFound);
        let file = five.tmpfile("/open", 0, true).await.unwrap();
        file.write_at(0, b"mine").await.unwrap();
        assert_eq!(fs(file.link("/closed/f").await), FsError::Denied);
        file.link("/open/f").await.unwrap();
        let attr = root.stat("/open/f").await.unwrap();
        assert_eq!((attr.uid, attr.gid, attr.mode & 0o777), (5, 50, 0));
    })
    .await;
}
