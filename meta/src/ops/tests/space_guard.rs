//! A disk that is nearly full: operations that are refused, operations that are not, and the end of
//! it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use base::FsError;
use wire::{Allocate, AllocateMode, Answer, Request};

use super::world::{Setup, World, in_world_of};
use crate::Limits;

const MIB: u64 = 1 << 20;

/// Runs a test on a disk of which it sets the free space; 64 MiB are the reserve.
fn on_a_disk(test: impl AsyncFnOnce(&mut World, &AtomicU64)) {
    let free = Arc::new(AtomicU64::new(1 << 40));
    let seen = free.clone();
    let shown: crate::FreeBytes = Arc::new(move || seen.load(Ordering::Relaxed));
    let limits = Limits { free: shown, reserve: 64 * MIB, ..Limits::default() };
    in_world_of(Setup { limits, ..Setup::default() }, async |world| {
        test(world, &free).await;
        free.store(1 << 40, Ordering::Relaxed);
        look(world).await;
    });
}

/// Lets the server look at its disk.
async fn look(world: &World) {
    world.wait(std::time::Duration::from_millis(600)).await;
}

async fn fill(world: &World, disk: &AtomicU64, free: u64) {
    disk.store(free, Ordering::Relaxed);
    look(world).await;
}

#[test]
fn below_the_mark_writes_are_refused_and_reads_and_removals_work() {
    on_a_disk(async |world, disk| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "file").await.unwrap();
        let large = client.create(&root, "large").await.unwrap();
        client.write(&file, 0, b"here").await.unwrap();
        client.write_blocks(&large, 0, &[7; 9000]).await.unwrap();
        fill(world, disk, 63 * MIB).await;
        let full = FsError::NoSpace;
        assert_eq!(client.create(&root, "new").await.unwrap_err(), full);
        assert_eq!(client.mkdir(&root, "new").await.unwrap_err(), full);
        assert_eq!(client.link(&file, &root, "new").await.unwrap_err(), full);
        assert_eq!(client.write(&file, 4, b", more").await.unwrap_err(), full);
        let block = client.next_block();
        assert_eq!(client.put_block(block, b"block").await.unwrap_err(), full);

        assert_eq!(client.read(&file).await.unwrap(), b"here");
        client.truncate(&large, 100).await.unwrap();
        client.rename((&root, "file"), (&root, "other")).await.unwrap();
        client.unlink(&root, "other").await.unwrap();
        let mut another = world.client().await;
        assert_eq!(another.names(&root).await, ["large"]);
        another.bye().await;

        fill(world, disk, 80 * MIB).await;
        client.create(&root, "new").await.unwrap();
    });
}

#[test]
fn with_nothing_left_only_reads_are_served() {
    on_a_disk(async |world, disk| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "file").await.unwrap();
        client.write(&file, 0, b"here").await.unwrap();
        world.settle().await;
        fill(world, disk, MIB).await;
        world.engine.take_cost();
        let full = FsError::NoSpace;
        assert_eq!(client.unlink(&root, "file").await.unwrap_err(), full);
        assert_eq!(client.chmod(&file, 0o600).await.unwrap_err(), full);
        assert_eq!(client.ask(Request::Bye).await, Answer::Failed(full));
        assert_eq!(client.read(&file).await.unwrap(), b"here");
        assert_eq!(client.names(&root).await, ["file"]);
        assert_eq!(world.engine.take_cost().batches, 0, "nothing is written");
        fill(world, disk, 63 * MIB).await;
        client.unlink(&root, "file").await.unwrap();
    });
}

#[test]
fn a_start_on_a_full_disk_writes_nothing_and_goes_on_when_there_is_room() {
    on_a_disk(async |world, disk| {
        let mut client = world.client().await;
        let root = client.root;
        let before = client.create(&root, "file").await.unwrap();
        fill(world, disk, MIB).await;
        world.engine.take_cost();
        world.restart().await;
        client.resume(world).await;
        client.claim_nothing().await;
        assert_eq!(client.names(&root).await, ["file"]);
        assert_eq!(world.engine.take_cost().batches, 0, "nothing is written");
        fill(world, disk, 80 * MIB).await;
        let after = client.create(&root, "new").await.unwrap();
        assert_ne!(after.ino, before.ino);
    });
}

#[test]
fn an_allocation_of_more_than_there_is_room_for_is_refused_and_takes_nothing() {
    on_a_disk(async |world, _| {
        // The free space that a simulated server reports, less the reserve.
        let room = (1 << 39) - 64 * MIB;
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "file").await.unwrap();
        client.write_blocks(&file, 0, &[7; 9000]).await.unwrap();
        let before = client.stat(&file).await.unwrap();
        let ask = |len, mode| {
            let file = file.clone();
            Request::Allocate(Allocate { file, offset: 0, len, mode, clear_set_id: true })
        };
        for mode in [AllocateMode::Grow, AllocateMode::Keep, AllocateMode::Zero] {
            // The file has some of the room already.
            let refused = client.get(ask(room + 9001, mode)).await;
            assert_eq!(refused.unwrap_err(), FsError::NoSpace, "{mode:?}");
            assert_eq!(client.stat(&file).await.unwrap(), before, "{mode:?}");
        }
        // An operation that frees space needs none.
        client.get(ask(room + 9001, AllocateMode::ZeroWithin)).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().allocated, 0);
        client.get(ask(room, AllocateMode::Grow)).await.unwrap();
        let after = client.stat(&file).await.unwrap();
        assert_eq!((after.size, after.allocated), (room, 0));
    });
}
