//! Renames in all modes, of files and directories, and the notes of them at birth places.

use base::{DirId, FileKind, FsError, NameVersion};
use store::Engine as _;
use wire::{DirRef, FileRef, RenameMode};

use super::{
    client::{Client, name},
    world::{World, in_world},
};
use crate::record::{Record as _, RenameList, key};

/// The versions born as `text` in the root that live elsewhere, by the rename list.
fn rename_list(world: &World, text: &str) -> Vec<u32> {
    let config = &world.server.shared.config;
    let shard = base::placement::shard_of(DirId::ROOT, 0, config.shards);
    let name = name(text);
    let pos = config.hash_key.pos(&name);
    let key = key::name(shard, DirId::ROOT, pos, &name, key::Part::RenameList);
    let stored = world.engine.get(&key).unwrap();
    let versions = stored.map(|bytes| RenameList::from_record(&bytes).unwrap().versions);
    versions.unwrap_or_default().into_iter().map(|NameVersion(version)| version).collect()
}

#[test]
fn a_renamed_file_is_found_by_its_old_handle() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&root, "a").await.unwrap();
        client.write(&file, 0, b"data").await.unwrap();
        let before = client.stat(&file).await.unwrap();
        let now = world.tick();
        client.rename((&root, "a"), (&dir, "b")).await.unwrap();

        assert_eq!(client.lookup(&root, "a").await, Err(FsError::NotFound));
        let attr = client.lookup(&dir, "b").await.unwrap().attr;
        assert_eq!((attr.ino, attr.ctime, attr.mtime), (file.ino, now, before.mtime));
        for dir in [&root, &dir] {
            let attr = client.stat(dir).await.unwrap();
            assert_eq!((attr.mtime, attr.ctime), (now, now));
        }
        assert_eq!(client.stat(&root).await.unwrap().size, 1);
        assert_eq!(client.stat(&dir).await.unwrap().size, 1);
        assert_eq!(client.read(&file).await.unwrap(), b"data");
        client.rename((&dir, "b"), (&root, "c")).await.unwrap();
        client.write(&file, 4, b"!").await.unwrap();
        let third = FileRef { dir: root, name: name("c"), ino: file.ino };
        assert_eq!(client.read(&third).await.unwrap(), b"data!");
        client.rename((&root, "c"), (&root, "a")).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().size, 5);
        client.unlink(&root, "a").await.unwrap();
        assert_eq!(client.stat(&file).await, Err(FsError::Stale));
    });
}

#[test]
fn a_rename_replaces_a_file_and_only_a_file() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.create(&root, "a").await.unwrap();
        let b = client.create(&root, "b").await.unwrap();
        client.mkdir(&root, "d").await.unwrap();
        assert_eq!(client.rename((&root, "a"), (&root, "d")).await, Err(FsError::IsDirectory));
        assert_eq!(client.rename((&root, "d"), (&root, "a")).await, Err(FsError::NotDirectory));
        assert_eq!(client.rename((&root, "x"), (&root, "a")).await, Err(FsError::NotFound));
        client.rename((&root, "a"), (&root, "b")).await.unwrap();
        assert_eq!(client.lookup(&root, "b").await.unwrap().attr.ino, a.ino);
        assert_eq!(client.stat(&b).await, Err(FsError::Stale));
        assert_eq!(client.stat(&root).await.unwrap().size, 2);
        assert_eq!(client.names(&root).await, ["b", "d"]);
    });
}

#[test]
fn a_rename_of_a_name_to_itself_or_to_another_name_of_its_file_does_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "a").await.unwrap();
        client.link(&file, &root, "b").await.unwrap();
        client.mkdir(&root, "d").await.unwrap();
        let before = client.stat(&root).await.unwrap();
        world.tick();
        for (from, to) in [("a", "b"), ("a", "a"), ("d", "d")] {
            client.rename((&root, from), (&root, to)).await.unwrap();
            client.exchange((&root, from), (&root, to)).await.unwrap();
        }
        assert_eq!(client.stat(&root).await.unwrap(), before);
        assert_eq!(client.names(&root).await, ["a", "b", "d"]);
        assert_eq!(client.stat(&file).await.unwrap().nlink, 2);
    });
}

#[test]
fn one_of_two_names_can_be_renamed_and_replaced() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&root, "a").await.unwrap();
        client.link(&file, &root, "b").await.unwrap();
        client.rename((&root, "b"), (&dir, "c")).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().nlink, 2);
        let other = client.create(&root, "o").await.unwrap();
        client.rename((&root, "o"), (&dir, "c")).await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().nlink, 1);
        assert_eq!(client.lookup(&dir, "c").await.unwrap().attr.ino, other.ino);
        client.rename((&root, "a"), (&dir, "c")).await.unwrap();
        assert_eq!(client.stat(&other).await, Err(FsError::Stale));
        assert_eq!(client.stat(&file).await.unwrap().nlink, 1);
    });
}

#[test]
fn noreplace_refuses_a_taken_name_and_exchange_a_free_one() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.create(&root, "a").await.unwrap();
        client.create(&root, "b").await.unwrap();
        let taken = client.rename_mode((&root, "a"), (&root, "b"), RenameMode::NoReplace).await;
        assert_eq!(taken, Err(FsError::Exists));
        assert_eq!(client.exchange((&root, "a"), (&root, "c")).await, Err(FsError::NotFound));
        client.rename_mode((&root, "a"), (&root, "c"), RenameMode::NoReplace).await.unwrap();
        assert_eq!(client.names(&root).await, ["b", "c"]);
    });
}

#[test]
fn a_file_and_a_directory_change_places() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let one = client.mkdir(&root, "one").await.unwrap();
        let two = client.mkdir(&root, "two").await.unwrap();
        let file = client.create(&one, "x").await.unwrap();
        let dir = client.mkdir(&two, "y").await.unwrap();
        let inner = client.create(&dir, "inner").await.unwrap();
        let now = world.tick();
        client.exchange((&one, "x"), (&two, "y")).await.unwrap();

        let found = client.lookup(&one, "x").await.unwrap();
        assert_eq!((found.attr.kind, found.attr.ino), (FileKind::Directory, dir.ino));
        assert_eq!((found.dir.unwrap().id, found.attr.ctime), (dir.id, now));
        assert_eq!(client.lookup(&two, "y").await.unwrap().attr.ino, file.ino);
        let links = |attr: base::Attr| (attr.size, attr.nlink);
        assert_eq!(links(client.stat(&one).await.unwrap()), (1, 3));
        assert_eq!(links(client.stat(&two).await.unwrap()), (1, 2));
        assert_eq!(client.stat(&inner).await.unwrap().ino, inner.ino);
        client.exchange((&two, "y"), (&one, "x")).await.unwrap();
        assert_eq!(client.lookup(&one, "x").await.unwrap().attr.ino, file.ino);
        assert_eq!(links(client.stat(&one).await.unwrap()), (1, 2));
    });
}

#[test]
fn two_directories_change_places() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&root, "b").await.unwrap();
        client.exchange((&root, "a"), (&root, "b")).await.unwrap();
        assert_eq!(client.lookup(&root, "a").await.unwrap().attr.ino, b.ino);
        assert_eq!((rename_list(world, "a"), rename_list(world, "b")), (vec![0], vec![0]));
        assert_eq!(client.stat(&root).await.unwrap().nlink, 4);
        client.exchange((&root, "b"), (&root, "a")).await.unwrap();
        assert_eq!(client.lookup(&root, "a").await.unwrap().attr.ino, a.ino);
        assert_eq!((rename_list(world, "a"), rename_list(world, "b")), (vec![], vec![]));
    });
}

#[test]
fn a_moved_directory_keeps_its_id_and_all_below_it() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&root, "b").await.unwrap();
        let sub = client.mkdir(&a, "sub").await.unwrap();
        let file = client.create(&sub, "f").await.unwrap();
        let version = client.latest.cache_version;
        client.rename((&a, "sub"), (&b, "moved")).await.unwrap();

        let found = client.lookup(&b, "moved").await.unwrap();
        assert!(found.dir.unwrap().same(&sub));
        assert!(client.latest.cache_version > version, "clients are told");
        assert_eq!(client.stat(&file).await.unwrap().ino, file.ino);
        assert_eq!(client.stat(&a).await.unwrap().nlink, 2);
        assert_eq!(client.stat(&b).await.unwrap().nlink, 3);
        let page = client.page(&sub, 0, 10).await.unwrap();
        assert_eq!(page.parent_ino, b.ino);
    });
}

#[test]
fn a_directory_never_goes_below_itself() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        let c = client.mkdir(&b, "c").await.unwrap();
        client.create(&b, "f").await.unwrap();
        for to in [&a, &b, &c] {
            let moved = client.rename((&root, "a"), (to, "x")).await;
            assert_eq!(moved, Err(FsError::Invalid));
        }
        assert_eq!(client.exchange((&root, "a"), (&b, "f")).await, Err(FsError::Invalid));
        assert_eq!(client.exchange((&b, "f"), (&root, "a")).await, Err(FsError::Invalid));
        // A directory above the source is not empty.
        assert_eq!(client.rename((&b, "f"), (&root, "a")).await, Err(FsError::NotEmpty));
        assert_eq!(client.rename((&b, "c"), (&root, "a")).await, Err(FsError::NotEmpty));
        assert_eq!(client.rename((&b, "c"), (&a, "b")).await, Err(FsError::NotEmpty));
    });
}

#[test]
fn a_directory_replaces_only_an_empty_one() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&root, "b").await.unwrap();
        client.create(&b, "f").await.unwrap();
        assert_eq!(client.rename((&root, "a"), (&root, "b")).await, Err(FsError::NotEmpty));
        client.unlink(&b, "f").await.unwrap();
        client.set_xattr(&b, "user.big", &[1; 2000]).await.unwrap();
        client.rename((&root, "a"), (&root, "b")).await.unwrap();
        assert!(client.lookup(&root, "b").await.unwrap().dir.unwrap().same(&a));
        let attr = client.stat(&root).await.unwrap();
        assert_eq!((attr.size, attr.nlink), (1, 3));
        assert_eq!(client.names(&root).await, ["b"]);
    });
}

#[test]
fn a_name_is_born_with_a_new_version_while_an_older_one_lives_elsewhere() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let mut moved: Vec<DirRef> = Vec::new();
        for index in 0..3 {
            let dir = client.mkdir(&root, "d").await.unwrap();
            client.create(&dir, &format!("f{index}")).await.unwrap();
            client.rename((&root, "d"), (&root, &format!("moved{index}"))).await.unwrap();
            assert!(moved.iter().all(|other| other.id != dir.id));
            moved.push(dir);
        }
        assert_eq!(rename_list(world, "d"), [0, 1, 2]);
        // A directory that is removed frees its version.
        client.unlink(&moved[1], "f1").await.unwrap();
        client.rmdir(&root, "moved1").await.unwrap();
        assert_eq!(rename_list(world, "d"), [0, 2]);
        let again = client.mkdir(&root, "d").await.unwrap();
        assert_eq!((again.id, rename_list(world, "d")), (moved[1].id, vec![0, 2]));
        assert_ne!(again.ino, moved[1].ino);
        // A directory that comes back to its birth place is not elsewhere any more.
        client.rename((&root, "moved2"), (&root, "d")).await.unwrap();
        assert_eq!(rename_list(world, "d"), [0]);
        assert!(client.lookup(&root, "d").await.unwrap().dir.unwrap().same(&moved[2]));
        // The first directory replaces it.
        client.unlink(&moved[2], "f2").await.unwrap();
        client.rename((&root, "moved0"), (&root, "d")).await.unwrap();
        assert_eq!(rename_list(world, "d"), Vec::<u32>::new());
        assert_eq!(client.names(&root).await, ["d"]);
    });
}

#[test]
fn a_birth_place_that_was_removed_still_knows_who_was_born_there() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let place = client.mkdir(&root, "place").await.unwrap();
        let first = client.mkdir(&place, "d").await.unwrap();
        client.rename((&place, "d"), (&root, "elsewhere")).await.unwrap();
        client.rmdir(&root, "place").await.unwrap();
        let place = client.mkdir(&root, "place").await.unwrap();
        let second = client.mkdir(&place, "d").await.unwrap();
        assert_ne!(first.id, second.id);
        client.rmdir(&root, "elsewhere").await.unwrap();
        client.rmdir(&place, "d").await.unwrap();
        assert_eq!(client.mkdir(&place, "d").await.unwrap().id, first.id);
    });
}

#[test]
fn open_files_are_found_after_their_directory_was_moved_and_they_were_replaced() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&dir, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        let mut other = world.client().await;
        other.rename((&root, "d"), (&root, "e")).await.unwrap();
        client.write(&file, 0, b"one").await.unwrap();
        other.rename((&dir, "f"), (&root, "g")).await.unwrap();
        client.write(&file, 3, b"two").await.unwrap();
        other.create(&root, "h").await.unwrap();
        other.rename((&root, "h"), (&root, "g")).await.unwrap();
        client.write(&file, 6, b"six").await.unwrap();
        assert_eq!(client.read(&file).await.unwrap(), b"onetwosix");
        assert_eq!(client.stat(&file).await.unwrap().nlink, 0);
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert_eq!(client.stat(&file).await, Err(FsError::Stale));
    });
}

#[test]
fn a_ring_of_renames_loses_nothing() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let mut dirs = Vec::new();
        for index in 0..4 {
            dirs.push(client.mkdir(&root, &format!("dir{index}")).await.unwrap());
        }
        let mut inos = Vec::new();
        for dir in &dirs {
            inos.push(client.create(dir, "x").await.unwrap().ino);
        }
        for round in 0..25 {
            let (from, to) = (round % 4, (round + 1) % 4);
            ring_step(&mut client, &dirs[from], &dirs[to], round).await;
        }
        let mut found = Vec::new();
        for dir in &dirs {
            found.push(client.lookup(dir, "x").await.unwrap().attr.ino);
        }
        found.sort_unstable();
        inos.sort_unstable();
        assert_eq!(found, inos);
    });
}

async fn ring_step(client: &mut Client, from: &DirRef, to: &DirRef, round: usize) {
    if round.is_multiple_of(3) {
        client.exchange((from, "x"), (to, "x")).await.unwrap();
    } else {
        client.rename((to, "x"), (to, "y")).await.unwrap();
        client.rename((from, "x"), (to, "x")).await.unwrap();
        client.rename((to, "y"), (from, "x")).await.unwrap();
    }
}
