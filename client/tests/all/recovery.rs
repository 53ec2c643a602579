//! Sessions, against a server that is killed and started again.

use std::{cell::Cell, rc::Rc, time::Duration};

use base::FsError;
use client::{Error, OpenOptions};
use futures::{FutureExt as _, future::join_all};
use tokio::time::sleep;

use crate::world::World;

#[tokio::test(start_paused = true)]
async fn a_client_goes_on_when_its_server_was_restarted() {
    World::run(async |world| {
        let client = world.client().await;
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        world.kill();
        let (made, ()) = tokio::join!(client.mkdir("/a/b/c", 0o755), async {
            sleep(Duration::from_secs(20)).await;
            world.start();
        });
        made.unwrap();
        assert!(client.stat("/a/b/c").await.is_ok());
        assert_eq!(client.stats().reconnects, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_does_not_wait_for_a_server_to_release_files() {
    World::run(async |world| {
        let client = world.client().await;
        let file = client.open_with("/f", OpenOptions::both().create_new(0o644)).await.unwrap();
        file.close().await.unwrap();
        // The release waits a moment for others, and the server does not live to hear of it.
        world.kill();
        let closed = tokio::time::timeout(Duration::from_secs(3), client.close()).await;
        closed.expect("it ends without its server").unwrap();
        world.start();
        // Another client finds the file closed with the session of the first.
        let other = world.client().await;
        other.unlink("/f").await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_operation_happens_exactly_once_however_often_the_server_dies() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/d", 0o755).await.unwrap();
        let worker = |task: usize| {
            let client = client.clone();
            async move {
                for round in 0..40 {
                    let (one, two) = (format!("/d/{task}-{round}"), format!("/d/{task}-{round}x"));
                    // Each of these fails when it is done twice.
                    client.open_with(&one, OpenOptions::both().create_new(0o644)).await.unwrap();
                    client.rename(&one, &two).await.unwrap();
                    client.mkdir(&one, 0o755).await.unwrap();
                    client.rmdir(&one).await.unwrap();
                    if round % 2 == 0 {
                        client.unlink(&two).await.unwrap();
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let counts = Rc::new(Cell::new((0, 0)));
        // Among the server's own tasks, so that it is met between executing and answering.
        let killer = tokio::task::spawn_local({
            let (world, counts) = (world.clone(), Rc::clone(&counts));
            async move {
                loop {
                    sleep(Duration::from_millis(2)).await;
                    let (killed, suppressed) = counts.get();
                    for _ in 0..killed % 17 {
                        tokio::task::yield_now().await;
                    }
                    let found = world.counter("duplicates_suppressed");
                    counts.set((killed + 1, suppressed + found));
                    world.kill();
                    world.start();
                }
            }
        });
        join_all((0..16).map(worker)).await;
        killer.abort();
        let (killed, suppressed) = counts.get();
        assert!(killed > 10 && suppressed > 0, "killed={killed} suppressed={suppressed}");
        assert!(client.stats().retries > 0);
        let left = client.read_dir("/d").await.unwrap().all().await.unwrap();
        assert_eq!(left.len(), 16 * 20);
        let stats = client.stats();
        assert!(stats.reconnects >= killed / 2, "{stats:?} killed={killed}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn open_files_survive_a_restart_even_without_a_name() {
    World::run(async |world| {
        let (client, other) = (world.client().await, world.client().await);
        let data = vec![7; 100_000];
        let options = OpenOptions::both().create(0o644);
        let file = client.open_with("/f", options).await.unwrap();
        file.write_at(0, &data).await.unwrap();
        file.flush().await.unwrap();
        client.unlink("/f").await.unwrap();
        let kept = client.open_with("/g", options).await.unwrap();
        world.kill();
        world.start();
        other.unlink("/g").await.unwrap();
        sleep(Duration::from_secs(40)).await;
        assert!(file.read_all().await.unwrap() == data);
        kept.write_at(0, b"still here").await.unwrap();
        kept.sync_all().await.unwrap();
        assert_eq!(kept.metadata().await.unwrap().nlink, 0);
        file.close().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_is_seen_through_and_leaves_nothing_open() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/d", 0o755).await.unwrap();
        for i in 0..50 {
            let path = format!("/d/{i}");
            let mut create = Box::pin(client.create(&path, 0o644));
            // Once polled, it is sent.
            assert!(create.as_mut().now_or_never().is_none());
            for _ in 0..i % 5 {
                tokio::task::yield_now().await;
            }
            drop(create);
        }
        sleep(Duration::from_millis(200)).await;
        assert_eq!(client.read_dir("/d").await.unwrap().all().await.unwrap().len(), 50);
        let status = client.status().await.unwrap();
        assert_eq!(status.sessions[0].open_files, 0);
        assert_eq!(client.stats().retries, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_fails_what_was_open_and_goes_on() {
    World::run(async |world| {
        let client = world.client().await;
        let file = client.create("/f", 0o644).await.unwrap();
        file.write_at(0, b"lost").await.unwrap();
        world.kill();
        world.cut(true);
        world.start();
        sleep(Duration::from_secs(100)).await;
        world.cut(false);
        assert_eq!(client.stat("/f").await.unwrap().size, 0);
        assert_eq!(file.sync_all().await, Err(Error::SessionLost));
        assert_eq!(file.read_at(0, 1).await, Err(Error::SessionLost));
        assert_eq!(file.write_at(0, b"x").await, Err(Error::SessionLost));
        client.write("/f", b"new").await.unwrap();
        assert_eq!(client.read("/f").await.unwrap(), &b"new"[..]);
        drop(file);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_keeps_its_session() {
    World::run(async |world| {
        let client = world.client().await;
        let file = client.create("/f", 0o644).await.unwrap();
        sleep(Duration::from_secs(1000)).await;
        file.write_at(0, b"x").await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(client.stats().reconnects, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_says_so() {
    World::run(async |world| {
        let (client, other) = (world.client().await, world.client().await);
        let file = client.create("/f", 0o644).await.unwrap();
        file.write_at(0, b"x").await.unwrap();
        client.close().await.unwrap();
        assert_eq!(client.stat("/f").await, Err(Error::Closed));
        assert_eq!(other.read("/f").await.unwrap(), &b"x"[..]);
        assert_eq!(other.status().await.unwrap().sessions.len(), 1);
        assert!(!matches!(file.close().await, Err(Error::Fs(FsError::BadHandle))));
    })
    .await;
}
