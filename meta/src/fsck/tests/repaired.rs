//! Repairs: what they keep, where they put what they save, and that other clients go on meanwhile.
//! That each kind of damage is repaired at all is shown where it is found.

use std::cell::Cell;

use base::{DirId, FileKind, FsError};
use wire::{DirRef, FileRef};

use super::{Damage, jobs::block_of, mends, plant};
use crate::{
    ops::tests::{
        client::{Client, name},
        world::{Setup, World, in_damaged_world, in_world, in_world_of},
    },
    record::{Slot, key, key::Part},
};

async fn lost_and_found(client: &mut Client) -> DirRef {
    let root = client.root;
    client.lookup(&root, "lost+found").await.unwrap().dir.unwrap()
}

/// The names in a directory.
async fn names(client: &mut Client, dir: &DirRef) -> Vec<String> {
    let page = client.page(dir, 0, 100).await.unwrap();
    let mut names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    names.sort_unstable();
    names
}

fn hurt(world: &World, damage: impl FnOnce(&Damage<'_>)) {
    damage(&Damage(world));
    world.server.shared.record_cache.clear();
}

#[test]
fn contents_whose_entry_is_damaged_are_in_lost_and_found() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        hurt(world, |damage| {
            damage.put_bytes(&damage.name_key(tree.a.id, "big", Part::Main), b"\x01junk");
        });
        mends(&mut tree.client).await;
        let client = &mut tree.client;
        let lost = lost_and_found(client).await;
        let called = tree.big.ino.0.to_string();
        assert_eq!(names(client, &lost).await, std::slice::from_ref(&called));
        let saved = FileRef { dir: lost, name: name(&called), ino: tree.big.ino };
        assert_eq!(client.read(&saved).await.unwrap(), [1; 9000]);
        let attr = client.stat(&lost).await.unwrap();
        assert_eq!((attr.uid, attr.mode & 0o777, attr.kind), (0, 0o700, FileKind::Directory));
        assert_eq!(client.lookup(&tree.a, "big").await, Err(FsError::NotFound));
    });
}

#[test]
fn an_inode_without_any_name_is_in_lost_and_found() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        hurt(world, |damage| {
            damage.delete(&damage.name_key(tree.root.id, "l1", Part::Main));
            damage.delete(&damage.name_key(tree.a.id, "l2", Part::Main));
        });
        mends(&mut tree.client).await;
        let lost = lost_and_found(&mut tree.client).await;
        let found = tree.client.lookup(&lost, &tree.linked.ino.0.to_string()).await.unwrap();
        assert_eq!((found.attr.ino, found.attr.nlink), (tree.linked.ino, 1));
    });
}

#[test]
fn a_directory_keeps_its_names_when_its_record_is_rebuilt() {
    for locality in [base::Locality::Directory, base::Locality::Subtree] {
        in_world_of(Setup { locality, shards: 3, ..Setup::default() }, async |world| {
            let mut client = world.client().await;
            let root = client.root;
            let a = client.mkdir(&root, "a").await.unwrap();
            let b = client.mkdir(&a, "b").await.unwrap();
            client.create(&b, "f").await.unwrap();
            let shard = base::placement::shard_of(b.home, 0, 3);
            hurt(world, |damage| damage.delete(&key::content(shard, b.id, 0, Part::Main)));
            assert_eq!(client.lookup(&a, "b").await, Err(FsError::Io));
            mends(&mut client).await;
            let again = client.lookup(&a, "b").await.unwrap();
            assert_eq!((again.attr.ino, again.attr.size), (b.ino, 1));
            assert_eq!(names(&mut client, &b).await, ["f"]);
            // The directory can be moved and removed like any other.
            client.rename((&a, "b"), (&root, "c")).await.unwrap();
            client.unlink(&b, "f").await.unwrap();
            client.rmdir(&root, "c").await.unwrap();
        });
    }
}

#[test]
fn a_directory_that_nothing_leads_to_is_in_lost_and_found_with_all_below_it() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        tree.client.create(&tree.sub, "deep").await.unwrap();
        hurt(world, |damage| {
            // Both the entry and the record are lost: only the names in the directory are left.
            damage.delete(&damage.name_key(tree.a.id, "sub", Part::Main));
            damage.delete(&damage.content_key(tree.sub.id));
        });
        mends(&mut tree.client).await;
        let lost = lost_and_found(&mut tree.client).await;
        let [called] = &names(&mut tree.client, &lost).await[..] else { panic!() };
        let saved = tree.client.lookup(&lost, called).await.unwrap().dir.unwrap();
        assert_eq!(names(&mut tree.client, &saved).await, ["deep"]);
        tree.client.unlink(&saved, "deep").await.unwrap();
        let called = called.clone();
        tree.client.rmdir(&lost, &called).await.unwrap();
        assert_eq!(tree.client.fsck(false).await.findings, Vec::<String>::new());
    });
}

#[test]
fn contents_that_are_lost_are_given_up_only_when_that_is_said() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        let block = block_of(&Damage(world), &tree.big);
        world.blocks.delete(block).await.unwrap();
        let left = tree.client.repair(false).await;
        assert_eq!(left.findings_total, 1);
        assert!(left.findings[0].contains("is missing"), "{left:#?}");
        let given_up = tree.client.repair(true).await;
        assert_eq!(given_up.findings_total, 0, "{given_up:#?}");
        assert_eq!(tree.client.read(&tree.big).await.unwrap(), [0; 9000]);
        assert_eq!(tree.client.stat(&tree.big).await.unwrap().allocated, 0);
    });
}

#[test]
fn a_chunk_that_cannot_be_read_is_given_up_only_when_that_is_said() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        hurt(world, |damage| damage.put_bytes(&key::chunk(tree.big.ino, 0), b"\x01\xff"));
        assert!(tree.client.repair(false).await.findings_total > 0);
        assert_eq!(tree.client.read(&tree.big).await, Err(FsError::Io));
        assert_eq!(tree.client.repair(true).await.findings_total, 0);
        assert_eq!(tree.client.read(&tree.big).await.unwrap(), [0; 9000]);
    });
}

#[test]
fn what_is_not_damaged_stays_as_it_is() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        let before = records(world);
        let slot = key::inode(tree.linked.ino, Part::Main);
        hurt(world, |damage| {
            damage.change(&slot, |slot: &mut Slot| match slot {
                Slot::Inode(inode) => inode.nlink = 7,
                Slot::Moved(_) => panic!("not linked"),
            });
            damage.content(&tree.a, |content| content.entries = 99);
        });
        mends(&mut tree.client).await;
        assert_eq!(records(world), before);
    });
}

/// All stored records except those of sessions.
fn records(world: &World) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    store::Engine::scan(world.engine.as_ref(), &[], &[u8::MAX; 8], &mut |key, value| {
        if !matches!(key[2], b'S' | b'Q') {
            all.push((key.to_vec(), value.to_vec()));
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    all
}

#[test]
fn counts_are_mended_while_they_change() {
    in_world(async |world| {
        let mut tree = plant(world).await;
        let mut other = world.client().await;
        hurt(world, |damage| {
            damage.content(&tree.a, |content| (content.entries, content.subdirs) = (1000, 1000));
        });
        let a = tree.a;
        let busy = async {
            for round in 0..50 {
                other.create(&a, &format!("new{round}")).await.unwrap();
                other.mkdir(&a, &format!("dir{round}")).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (repaired, ()) = tokio::join!(tree.client.repair(false), busy);
        assert_eq!(repaired.findings_total, 0, "{repaired:#?}");
        let attr = tree.client.stat(&a).await.unwrap();
        assert_eq!((attr.size, attr.nlink), (6 + 100, 2 + 51));
        tree.client.bye().await;
    });
}

#[test]
fn a_repair_that_a_crash_interrupts_is_finished_by_the_next() {
    let in_the_middle = Cell::new(0);
    for turns in 0..60 {
        in_damaged_world(async |world| {
            let mut tree = plant(world).await;
            hurt(world, |damage| {
                damage.delete(&damage.content_key(tree.a.id));
                damage.put_bytes(&damage.name_key(tree.root.id, "l1", Part::Main), b"\x01junk");
            });
            let start = wire::Request::Repair(wire::Repair { gc: false, discard_lost: false });
            tree.client.get(start).await.unwrap();
            world.engine.take_cost();
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            let written = world.engine.take_cost().batches;
            world.restart().await;
            tree.client.resume(world).await;
            tree.client.claim_nothing().await;
            let is_left = !tree.client.fsck(false).await.findings.is_empty();
            in_the_middle.set(in_the_middle.get() + u32::from(written > 0 && is_left));
            mends(&mut tree.client).await;
            assert_eq!(tree.client.lookup(&tree.root, "a").await.unwrap().attr.ino, tree.a.ino);
        });
    }
    assert!(in_the_middle.get() > 0, "no crash came between two writes of a repair");
}

#[test]
fn a_damaged_root_is_made_anew_with_all_that_was_in_it() {
    in_damaged_world(async |world| {
        let mut tree = plant(world).await;
        hurt(world, |damage| damage.put_bytes(&damage.content_key(DirId::ROOT), b"\x01junk"));
        mends(&mut tree.client).await;
        let root = tree.root;
        assert_eq!(names(&mut tree.client, &root).await, ["a", "l1"]);
    });
}
