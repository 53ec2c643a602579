//! The cost of each operation at the engine when no record is cached: the `Cost:` lines, counted,
//! on one core. Changes include the stored answer.

use base::{SetAttr, SetTime};
use wire::{FileRef, Request, Token, Walk};

use super::{
    client::{Client, name},
    world::{Cost, Setup, World, in_world_of},
};

/// The sums of a user and of a group, which are stored where one of them comes to use more or less.
const SUMS: u64 = 2;

/// The engine's work for one operation.
async fn cost<T>(world: &World, operation: impl Future<Output = T>) -> Cost {
    world.server.shared.record_cache.clear();
    world.engine.take_cost();
    operation.await;
    world.engine.take_cost()
}

/// Reads, scans and changes, in one batch.
fn is(reads: u64, scans: u64, changes: u64) -> Cost {
    Cost { reads, scans, batches: u64::from(changes > 0), changes }
}

/// A world without background work, and a client whose kernel checks permissions.
fn in_quiet_world(test: impl AsyncFnOnce(&mut World, &mut Client)) {
    in_world_of(Setup { background: false, ..Setup::default() }, async |world| {
        let mut client = Client::open(world, &Token::administrator(), true).await.unwrap();
        test(world, &mut client).await;
    });
}

#[test]
fn of_making_and_finding_names() {
    in_quiet_world(async |world, client| {
        let root = client.root;
        assert_eq!(cost(world, client.create(&root, "f")).await, is(2, 0, 3 + SUMS));
        assert_eq!(cost(world, client.create(&root, "f")).await, is(2, 0, 0));
        assert_eq!(cost(world, client.mkdir(&root, "d")).await, is(4, 0, 4 + SUMS));
        assert_eq!(cost(world, client.symlink(&root, "s", "x")).await, is(2, 0, 3 + SUMS));
        assert_eq!(cost(world, client.lookup(&root, "f")).await, is(2, 0, 0));
        assert_eq!(cost(world, client.lookup(&root, "d")).await, is(3, 0, 0));
        assert_eq!(cost(world, client.lookup(&root, "x")).await, is(2, 0, 0));
        let walk = Request::Walk(Walk { from: root, names: vec![name("d"), name("x")] });
        assert_eq!(cost(world, client.get(walk)).await, is(4, 0, 0));
        let ino = client.lookup(&root, "f").await.unwrap().attr.ino;
        let file = FileRef { dir: root, name: name("f"), ino };
        assert_eq!(cost(world, client.stat(&root)).await, is(1, 0, 0));
        assert_eq!(cost(world, client.stat(&file)).await, is(1, 0, 0));
        assert_eq!(cost(world, client.page(&root, 0, 100)).await, is(2, 1, 0));
        assert_eq!(cost(world, client.get(Request::Ping)).await, is(0, 0, 0));
        // Where the server checks walks it reads the directory of a file.
        let mut checked = world.client().await;
        assert_eq!(cost(world, checked.stat(&file)).await, is(2, 0, 0));
    });
}

#[test]
fn what_was_just_written_is_not_asked_of_the_engine_again() {
    in_quiet_world(async |world, client| {
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        client.create(&dir, "a").await.unwrap();
        world.engine.take_cost();
        client.create(&dir, "b").await.unwrap();
        assert_eq!(world.engine.take_cost().reads, 1, "whether there is such a name");
        client.mkdir(&dir, "sub").await.unwrap();
        world.engine.take_cost();
        assert_eq!(client.stat(&dir).await.unwrap().nlink, 3, "as it is now");
        assert_eq!(world.engine.take_cost().reads, 0);
        client.rmdir(&dir, "sub").await.unwrap();
        client.unlink(&dir, "a").await.unwrap();
        client.unlink(&dir, "b").await.unwrap();
        client.rmdir(&root, "d").await.unwrap();
        assert_eq!(client.lookup(&root, "d").await.err(), Some(base::FsError::NotFound));
    });
}

#[test]
fn of_links_and_removals() {
    in_quiet_world(async |world, client| {
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.create(&root, "g").await.unwrap();
        client.mkdir(&root, "d").await.unwrap();
        assert_eq!(cost(world, client.link(&file, &root, "l")).await, is(3, 0, 6));
        assert_eq!(cost(world, client.link(&file, &root, "m")).await, is(4, 0, 4));
        assert_eq!(cost(world, client.lookup(&root, "l")).await, is(3, 0, 0));
        assert_eq!(cost(world, client.stat(&file)).await, is(2, 0, 0));
        assert_eq!(cost(world, client.unlink(&root, "l")).await, is(3, 0, 4));
        assert_eq!(cost(world, client.unlink(&root, "g")).await, is(2, 0, 3 + SUMS));
        assert_eq!(cost(world, client.rmdir(&root, "d")).await, is(4, 0, 4 + SUMS));
    });
}

#[test]
fn of_renames() {
    in_quiet_world(async |world, client| {
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        let file = client.create(&a, "f").await.unwrap();
        client.create(&a, "m").await.unwrap();
        assert_eq!(cost(world, client.rename((&a, "f"), (&a, "o"))).await, is(3, 0, 5));
        assert_eq!(cost(world, client.stat(&file)).await, is(3, 0, 0));
        assert_eq!(cost(world, client.rename((&a, "o"), (&a, "m"))).await, is(3, 0, 6 + SUMS));
        assert_eq!(cost(world, client.rename((&a, "m"), (&b, "m"))).await, is(4, 0, 6));
        assert_eq!(cost(world, client.rename((&a, "b"), (&a, "c"))).await, is(5, 0, 6));
        assert_eq!(cost(world, client.rename((&a, "c"), (&root, "c"))).await, is(6, 0, 6));
        assert_eq!(cost(world, client.rename((&root, "c"), (&a, "c"))).await, is(6, 0, 6));
        let deep = client.mkdir(&a, "deep").await.unwrap();
        let deeper = client.mkdir(&deep, "deeper").await.unwrap();
        assert_eq!(cost(world, client.rename((&a, "c"), (&deeper, "c"))).await, is(7, 0, 6));
        client.mkdir(&deep, "empty").await.unwrap();
        assert_eq!(
            cost(world, client.rename((&deeper, "c"), (&deep, "empty"))).await,
            is(9, 0, 8 + SUMS)
        );
        client.create(&root, "file").await.unwrap();
        let exchanged = cost(world, client.exchange((&deep, "empty"), (&root, "file"))).await;
        assert_eq!(exchanged, is(6, 0, 7));
    });
}

#[test]
fn of_attributes() {
    in_quiet_world(async |world, client| {
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&dir, "f").await.unwrap();
        assert_eq!(cost(world, client.chmod(&file, 0o600)).await, is(1, 0, 2));
        assert_eq!(cost(world, client.chmod(&dir, 0o700)).await, is(2, 0, 3));
        let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(cost(world, client.setattr(&dir, times)).await, is(1, 0, 2));
        assert_eq!(cost(world, client.set_xattr(&file, "user.x", b"")).await, is(1, 0, 2));
        assert_eq!(cost(world, client.xattrs(&file)).await, is(1, 0, 0));
        let long = [0; 1000];
        assert_eq!(cost(world, client.set_xattr(&file, "user.x", &long)).await, is(1, 0, 3));
        assert_eq!(cost(world, client.set_xattr(&file, "user.y", &long)).await, is(2, 0, 3));
        assert_eq!(cost(world, client.xattrs(&file)).await, is(2, 0, 0));
    });
}

#[test]
fn of_contents() {
    in_quiet_world(async |world, client| {
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        assert_eq!(cost(world, client.open_file(&file)).await, is(1, 0, 0));
        assert_eq!(cost(world, client.write(&file, 0, b"x")).await, is(1, 0, 2 + SUMS));
        assert_eq!(cost(world, client.read(&file)).await, is(1, 0, 0));
        assert_eq!(cost(world, client.write(&file, 5000, b"x")).await, is(1, 0, 4 + SUMS));
        assert_eq!(cost(world, client.write_blocks(&file, 6000, b"x")).await, is(2, 0, 3 + SUMS));
        assert_eq!(cost(world, client.open_file(&file)).await, is(2, 0, 0));
        assert_eq!(cost(world, client.read(&file)).await, is(2, 0, 0));
        assert_eq!(cost(world, client.truncate(&file, 5000)).await, is(2, 1, 4 + SUMS));
        assert_eq!(cost(world, client.truncate(&file, 0)).await, is(1, 1, 3 + SUMS));
        let number = client.opened();
        assert_eq!(cost(world, client.release(file.ino, number)).await, is(0, 0, 0));
    });
}
