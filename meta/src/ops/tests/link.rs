//! Hard links, slots, and files that were renamed: an inode is found wherever it went.

use base::FsError;
use wire::{DirRef, FileRef, Link, NodeRef, Request};

use super::{client::name, world::in_world};

#[test]
fn all_names_of_a_file_are_one_file() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let first = client.create(&root, "a").await.unwrap();
        client.write(&first, 0, b"hello").await.unwrap();
        let now = world.tick();
        let second = client.link(&first, &dir, "b").await.unwrap();

        let attr = client.stat(&first).await.unwrap();
        assert_eq!((attr.nlink, attr.ctime), (2, now));
        assert_eq!(client.stat(&second).await.unwrap(), attr);
        assert_eq!(client.stat(&dir).await.unwrap().mtime, now);
        client.write(&second, 5, b" you").await.unwrap();
        assert_eq!(client.read(&first).await.unwrap(), b"hello you");

        let gone = client.unlink(&root, "a").await.unwrap();
        assert_eq!(gone.nlink, 1);
        assert_eq!(client.read(&second).await.unwrap(), b"hello you");
        // The old name does not lead to the file any more, but its shard of birth knows it.
        assert_eq!(client.stat(&first).await.unwrap().nlink, 1);
        client.unlink(&dir, "b").await.unwrap();
        assert_eq!(client.stat(&first).await, Err(FsError::Stale));
    });
}

#[test]
fn a_directory_gets_no_second_name() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let link = Link { target: NodeRef::Dir(dir), dir: root, name: name("e") };
        assert_eq!(client.get(Request::Link(link)).await, Err(FsError::NotPermitted));
    });
}

#[test]
fn links_end_at_their_limit() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.link(&file, &root, "g").await.unwrap();
        damage_nlink(world, &file, 64_999);
        client.link(&file, &root, "h").await.unwrap();
        assert_eq!(client.stat(&file).await.unwrap().nlink, 65_000);
        assert_eq!(client.link(&file, &root, "i").await, Err(FsError::TooManyLinks));
        damage_nlink(world, &file, 3);
    });
}

fn damage_nlink(world: &super::world::World, file: &FileRef, nlink: u32) {
    use crate::record::{Record as _, Slot, key};
    use store::Engine as _;
    let key = key::inode(file.ino, key::Part::Main);
    let slot = Slot::from_record(&world.engine.get(&key).unwrap().unwrap()).unwrap();
    let Slot::Inode(mut inode) = slot else { panic!("not linked") };
    inode.nlink = nlink;
    let mut batch = store::Batch::new();
    batch.put(&key, &Slot::Inode(inode).to_record());
    world.engine.write(batch).unwrap();
    world.server.shared.record_cache.clear();
}

#[test]
fn a_file_without_names_gets_none_again() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.open_file(&file).await.unwrap();
        client.unlink(&root, "f").await.unwrap();
        assert_eq!(client.link(&file, &root, "g").await, Err(FsError::NotFound));
    });
}

#[test]
fn a_symlink_can_have_two_names_too() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let first = client.symlink(&root, "s", "target").await.unwrap();
        client.link(&first, &root, "t").await.unwrap();
        client.unlink(&root, "s").await.unwrap();
        let entry = client.lookup(&root, "t").await.unwrap();
        assert_eq!(entry.target.unwrap(), "target");
        assert_eq!(entry.attr.ino, first.ino);
    });
}

#[test]
fn spilled_xattrs_follow_their_file() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "d").await.unwrap();
        let file = client.create(&root, "a").await.unwrap();
        let other = client.create(&dir, "b").await.unwrap();
        let (long, short) = (vec![b'v'; 5000], b"short".to_vec());
        client.set_xattr(&file, "user.big", &long).await.unwrap();
        client.set_xattr(&file, "user.a", &short).await.unwrap();
        client.set_xattr(&other, "user.big", &vec![b'o'; 600]).await.unwrap();

        let expect = async |client: &mut super::client::Client, dir: &DirRef, text: &str| {
            let ino = client.lookup(dir, text).await.unwrap().attr.ino;
            let file = FileRef { dir: *dir, name: name(text), ino };
            client.xattrs(&file).await.iter().map(|(_, value)| value.len()).collect::<Vec<_>>()
        };
        client.rename((&root, "a"), (&root, "c")).await.unwrap();
        assert_eq!(expect(&mut client, &root, "c").await, [5, 5000]);
        client.exchange((&root, "c"), (&dir, "b")).await.unwrap();
        assert_eq!(expect(&mut client, &root, "c").await, [600]);
        assert_eq!(expect(&mut client, &dir, "b").await, [5, 5000]);
        client.link(&file, &root, "l").await.unwrap();
        assert_eq!(expect(&mut client, &root, "l").await, [5, 5000]);
        client.unlink(&dir, "b").await.unwrap();
        assert_eq!(expect(&mut client, &root, "l").await, [5, 5000]);
        // The next name replaces a file with xattrs of its own, which go.
        client.rename((&root, "l"), (&root, "c")).await.unwrap();
        assert_eq!(expect(&mut client, &root, "c").await, [5, 5000]);
        client.remove_xattr(&file, "user.big").await.unwrap();
        assert_eq!(expect(&mut client, &root, "c").await, [5]);
        client.set_xattr(&file, "user.big", &long).await.unwrap();
        // The file has no name, and is open.
        client.open_file(&file).await.unwrap();
        client.unlink(&root, "c").await.unwrap();
        assert_eq!(client.xattrs(&file).await.len(), 2);
        client.release(file.ino, client.opened()).await;
        world.settle().await;
        assert_eq!(client.stat(&file).await, Err(FsError::Stale));
    });
}

#[test]
fn spilled_xattrs_of_a_directory_stay_with_it_and_go_with_it() {
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let dir = client.mkdir(&root, "a").await.unwrap();
        client.set_xattr(&dir, "user.big", &[1; 3000]).await.unwrap();
        client.rename((&root, "a"), (&root, "b")).await.unwrap();
        assert_eq!(client.xattrs(&dir).await.len(), 1);
        client.create(&root, "f").await.unwrap();
        client.exchange((&root, "b"), (&root, "f")).await.unwrap();
        assert_eq!(client.xattrs(&dir).await.len(), 1);
        client.rmdir(&root, "f").await.unwrap();
    });
}
