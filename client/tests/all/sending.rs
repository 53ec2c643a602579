//! Tests of written data when it is sent: which writer wins, and which handle learns of an error.

use std::time::Duration;

use base::{Access, Cred, FsError};
use client::{Client, Error, FileSystem, OpenOptions};
use tokio::{task::yield_now, time::sleep};
use wire::{NodeRef, XattrMode};

use crate::world::World;

/// Makes a directory in which there is room for 8 KiB.
async fn limit(client: &Client, dir: &str) {
    client.mkdir(dir, 0o755).await.unwrap();
    client.set_xattr(dir, "pando.quota.bytes", b"8192", XattrMode::Set).await.unwrap();
    sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_who_write_the_same_bytes_the_last_to_send_wins() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        for large in [10, 20_000] {
            one.write("/f", &vec![b'-'; large]).await.unwrap();
            let first = one.open_with("/f", OpenOptions::both()).await.unwrap();
            let second = two.open_with("/f", OpenOptions::both()).await.unwrap();
            first.write_at(2, b"oneone").await.unwrap();
            second.write_at(4, b"twotwo").await.unwrap();
            second.flush().await.unwrap();
            first.flush().await.unwrap();
            let found = two.read("/f").await.unwrap();
            assert_eq!(&found[..10], b"--oneonewo");
            assert_eq!(found.len(), large);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_sending_is_told_once_by_the_next_flush() {
    World::run(async |world| {
        let client = world.client().await;
        limit(&client, "/d").await;
        let full = Err(Error::Fs(FsError::QuotaExceeded));
        let file = client.create("/d/f", 0o644).await.unwrap();
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        assert_eq!(file.flush().await, full);
        assert_eq!(file.flush().await, Ok(()));
        assert_eq!(file.metadata().await.unwrap().size, 0);
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        assert_eq!(file.sync_all().await, full);
        file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        // The client sends data by itself when it is a second old.
        sleep(Duration::from_secs(3)).await;
        assert_eq!(file.close().await, full);
        client.write("/d/g", b"there is room").await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_close_of_a_copied_descriptor_leaves_an_error_for_the_next_fsync() {
    World::run(async |world| {
        let client = world.client().await;
        limit(&client, "/d").await;
        let full = Err(Error::Fs(FsError::QuotaExceeded));
        let file = client.create("/d/f", 0o644).await.unwrap();
        let NodeRef::File(node) = file.node() else { panic!("it is a file") };
        let rights = Access::READ.and(Access::WRITE);
        let handle = FileSystem::open(&client, &Cred::ROOT, &node, Some(rights)).await.unwrap();
        FileSystem::write(&client, handle, 0, vec![b'x'; 20_000].into(), false).await.unwrap();
        // Each close flushes.
        assert_eq!(FileSystem::flush(&client, handle).await, full);
        assert_eq!(FileSystem::flush(&client, handle).await, full);
        assert_eq!(FileSystem::fsync(&client, handle).await, full);
        assert_eq!(FileSystem::fsync(&client, handle).await, Ok(()));
        assert_eq!(FileSystem::flush(&client, handle).await, Ok(()));
        FileSystem::release(&client, handle).await.unwrap();
        assert_eq!(file.close().await, full, "it had the file open, too");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sync_tells_of_what_fails_while_other_files_are_sent() {
    World::run(async |world| {
        let client = world.client().await;
        limit(&client, "/d").await;
        let mut files = vec![client.create("/d/full", 0o644).await.unwrap()];
        for name in 0..8 {
            files.push(client.create(format!("/{name}"), 0o644).await.unwrap());
        }
        for file in &files {
            file.write_at(0, &[b'x'; 20_000]).await.unwrap();
        }
        assert_eq!(client.sync().await, Err(Error::Fs(FsError::QuotaExceeded)));
        assert_eq!(client.sync().await, Ok(()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_stored_before_a_restart_and_not_named_is_stored_anew() {
    World::run(async |world| {
        let client = world.client().await;
        for name in ["/f", "/g"] {
            let file = client.create(name, 0o644).await.unwrap();
            let data = vec![b'x'; 24 << 20];
            file.write_at(0, &data).await.unwrap();
            let restart = async {
                while world.counter("block_put") < 5 {
                    yield_now().await;
                }
                world.kill();
                world.start();
            };
            let (flushed, ()) = tokio::join!(file.flush(), restart);
            flushed.unwrap();
            assert!(
                world.counter("block_put") >= 6,
                "all of it is stored by the server that is up"
            );
            assert!(client.read(name).await.unwrap() == data);
            world.kill();
            world.start();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn small_pieces_in_any_number_are_named_once_each() {
    World::run(async |world| {
        let client = world.client().await;
        let file = client.create("/f", 0o644).await.unwrap();
        let mut model = vec![0; 3000 * 300];
        for at in (0..model.len()).step_by(300) {
            let piece = [u8::try_from(at % 251).unwrap(); 100];
            file.write_at(at as u64, &piece).await.unwrap();
            model[at..at + 100].copy_from_slice(&piece);
        }
        file.flush().await.unwrap();
        let mut found = client.read("/f").await.unwrap().to_vec();
        found.resize(model.len(), 0);
        assert!(found == model);
        assert_eq!(world.counter("block_put"), 3);
    })
    .await;
}
