//! Locks between clients, against a server in memory that is killed and started again.

use std::time::Duration;

use base::{
    ByteRange, FsError,
    LockMode::{Exclusive, Shared},
};
use client::{Client, Error, File, FileLock, FileSystem, OpenOptions};
use futures::FutureExt as _;
use tokio::{sync::oneshot, time::sleep};

use crate::world::World;

const HELD: Error = Error::Fs(FsError::TryAgain);

async fn open(client: &Client) -> File {
    client.open_with("/f", OpenOptions::both().create(0o644)).await.unwrap()
}

fn range(first: u64, last: u64) -> ByteRange {
    ByteRange { first, last }
}

/// Lets everything happen that can without anybody's doing.
async fn settle() {
    sleep(Duration::from_millis(300)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_holds_between_clients_and_between_files_of_one() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let (file, other, again) = (open(&one).await, open(&two).await, open(&one).await);
        file.lock(Exclusive).await.unwrap();
        assert_eq!(other.try_lock(Shared).await, Err(HELD));
        assert_eq!(again.try_lock(Shared).await, Err(HELD));
        file.lock(Shared).await.unwrap();
        other.try_lock(Shared).await.unwrap();
        file.unlock().await.unwrap();
        other.unlock().await.unwrap();
        again.try_lock(Exclusive).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ranges_are_locked_each_for_itself_and_can_be_asked_for() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let (file, other) = (open(&one).await, open(&two).await);
        file.lock_range(range(0, 99), Exclusive).await.unwrap();
        file.unlock_range(range(40, 59)).await.unwrap();
        other.try_lock_range(range(40, 59), Exclusive).await.unwrap();
        assert_eq!(other.try_lock_range(range(59, 60), Shared).await, Err(HELD));
        let found = other.get_lock(range(50, 1000), Shared).await.unwrap().unwrap();
        assert_eq!((found.range, found.mode, found.pid), (range(60, 99), Exclusive, 0));
        assert_eq!(other.get_lock(range(100, 1000), Exclusive).await, Ok(None));
        let reader = two.open_with("/f", OpenOptions::reading()).await.unwrap();
        let refused = reader.try_lock_range(range(500, 500), Exclusive).await;
        assert_eq!(refused, Err(FsError::BadHandle.into()));
        let backwards = file.lock_range(range(5, 4), Shared).await;
        assert_eq!(backwards, Err(FsError::Invalid.into()));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_asks_once_and_goes_on_when_the_lock_is_free() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let (file, other) = (open(&one).await, open(&two).await);
        file.lock(Exclusive).await.unwrap();
        let asked = two.stats().requests;
        let mut waits = Box::pin(other.lock(Exclusive));
        assert!(waits.as_mut().now_or_never().is_none());
        sleep(Duration::from_secs(100)).await;
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(two.stats().requests, asked + 1, "it does not poll");
        file.unlock().await.unwrap();
        waits.await.unwrap();
        assert_eq!(file.try_lock(Shared).await, Err(HELD));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_has_the_lock_reads_what_the_one_before_wrote() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let (file, other) = (open(&one).await, open(&two).await);
        for round in 0..20_u64 {
            for file in [&file, &other] {
                file.lock_range(range(0, 7), Exclusive).await.unwrap();
                let bytes = file.read_at(0, 8).await.unwrap();
                let count = <[u8; 8]>::try_from(&bytes[..]).map_or(0, u64::from_le_bytes);
                file.write_at(0, &(count + 1).to_le_bytes()).await.unwrap();
                file.unlock_range(range(0, 7)).await.unwrap();
                assert!(count / 2 == round, "{count} in round {round}");
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_ends_with_its_file_and_with_its_client() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let other = open(&two).await;
        let keeps_it_open = open(&one).await;
        let file = open(&one).await;
        file.lock(Exclusive).await.unwrap();
        file.close().await.unwrap();
        other.try_lock(Exclusive).await.unwrap();
        other.unlock().await.unwrap();

        let file = open(&one).await;
        file.lock_range(range(3, 3), Shared).await.unwrap();
        drop(file);
        settle().await;
        other.try_lock_range(range(3, 3), Exclusive).await.unwrap();
        other.unlock_range(range(3, 3)).await.unwrap();

        keeps_it_open.lock(Exclusive).await.unwrap();
        let mut waits = Box::pin(other.lock(Shared));
        assert!(waits.as_mut().now_or_never().is_none());
        one.close().await.unwrap();
        waits.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_close_without_locks_asks_nobody_about_them() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client).await;
        file.lock(Exclusive).await.unwrap();
        file.unlock().await.unwrap();
        let before = world.counter("lock");
        let handle = client.open_with("/g", OpenOptions::both().create(0o644)).await.unwrap();
        handle.write_at(0, b"x").await.unwrap();
        handle.close().await.unwrap();
        assert_eq!(world.counter("lock"), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn locks_survive_a_restart_of_the_server_and_so_do_those_who_wait() {
    World::run(async |world| {
        let [one, two, three] = [world.client().await, world.client().await, world.client().await];
        let (file, other, third) = (open(&one).await, open(&two).await, open(&three).await);
        file.lock(Exclusive).await.unwrap();
        file.lock_range(range(0, 9), Shared).await.unwrap();
        let mut waits = Box::pin(other.lock(Exclusive));
        assert!(waits.as_mut().now_or_never().is_none());
        for _ in 0..3 {
            world.kill();
            world.start();
            settle().await;
            assert!(waits.as_mut().now_or_never().is_none());
            assert_eq!(third.try_lock(Shared).await, Err(HELD));
            assert_eq!(third.try_lock_range(range(9, 9), Exclusive).await, Err(HELD));
        }
        file.unlock().await.unwrap();
        waits.await.unwrap();
        file.unlock_range(ByteRange::ALL).await.unwrap();
        third.try_lock_range(range(9, 9), Exclusive).await.unwrap();
        world.kill();
        world.start();
        assert_eq!(file.try_lock(Shared).await, Err(HELD), "what was given since is claimed too");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_session_loses_the_lock_and_learns_it() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client).await;
        file.lock(Exclusive).await.unwrap();
        world.kill();
        world.cut(true);
        world.start();
        sleep(Duration::from_secs(100)).await;
        world.cut(false);
        let other = open(&world.client().await).await;
        other.try_lock(Exclusive).await.unwrap();
        assert_eq!(
            file.write_at(0, b"x").await.and(file.sync_all().await),
            Err(Error::SessionLost)
        );
        assert_eq!(file.try_lock(Shared).await, Err(Error::SessionLost));
        let again = open(&client).await;
        assert_eq!(again.try_lock(Shared).await, Err(HELD));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_can_be_interrupted_and_dropped() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let file = open(&one).await;
        file.lock(Exclusive).await.unwrap();
        let node = file_ref(&file);
        let handle = FileSystem::open(&two, &base::Cred::ROOT, &node, None).await.unwrap();
        let lock = FileLock {
            kind: base::LockKind::Whole,
            mode: Exclusive,
            range: ByteRange::ALL,
            pid: 7,
        };
        let (interrupt, interrupted) = oneshot::channel::<()>();
        let waits = two.lock_wait(handle, 5, lock, async { drop(interrupted.await) });
        let ((), ended) = futures::join!(
            async {
                settle().await;
                interrupt.send(()).unwrap();
            },
            waits
        );
        assert_eq!(ended, Err(FsError::Interrupted.into()));

        let other = open(&two).await;
        let mut dropped = Box::pin(other.lock(Exclusive));
        assert!(dropped.as_mut().now_or_never().is_none());
        settle().await;
        drop(dropped);
        settle().await;
        file.unlock().await.unwrap();
        settle().await;
        file.try_lock(Exclusive).await.unwrap();
    })
    .await;
}

fn file_ref(file: &File) -> wire::FileRef {
    match file.node() {
        wire::NodeRef::File(file) => file,
        wire::NodeRef::Dir(_) => panic!("a file"),
    }
}

#[tokio::test(start_paused = true)]
async fn to_wait_in_a_circle_is_refused() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let (file, other) = (open(&one).await, open(&two).await);
        file.lock_range(range(0, 0), Exclusive).await.unwrap();
        other.lock_range(range(1, 1), Exclusive).await.unwrap();
        let mut waits = Box::pin(file.lock_range(range(1, 1), Shared));
        assert!(waits.as_mut().now_or_never().is_none());
        settle().await;
        let around = other.lock_range(range(0, 0), Shared).await;
        assert_eq!(around, Err(FsError::Deadlock.into()));
        other.unlock_range(ByteRange::ALL).await.unwrap();
        waits.await.unwrap();
    })
    .await;
}
