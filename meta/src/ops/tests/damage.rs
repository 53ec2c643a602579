//! Damaged records: they answer EIO, everything else works, and nobody waits for ever.

use base::FsError;
use store::{Batch, Engine as _};
use wire::{DirRef, FileRef, Info, NodeRef, Reply, Request};

use super::{
    client::{Client, name},
    world::{World, in_damaged_world},
};
use crate::record::{
    ChunkRecord, Content, EntryRecord, Key, Location, Record, Slot, key, key::Part,
};

fn write(world: &World, key: &[u8], value: Option<&[u8]>) {
    let mut batch = Batch::new();
    match value {
        Some(value) => batch.put(key, value),
        None => batch.delete(key),
    }
    world.engine.write(batch).unwrap();
    world.server.shared.record_cache.clear();
}

fn change<R: Record>(world: &World, key: &[u8], change: impl FnOnce(&mut R)) {
    let mut record = R::from_record(&world.engine.get(key).unwrap().unwrap()).unwrap();
    change(&mut record);
    write(world, key, Some(&record.to_record()));
}

fn shard(world: &World, dir: &DirRef) -> base::ShardId {
    base::placement::shard_of(dir.home, 0, world.server.shared.config.shards)
}

fn name_key(world: &World, dir: &DirRef, text: &str, part: Part) -> Key {
    let name = name(text);
    let pos = world.server.shared.config.hash_key.pos(&name);
    key::name(shard(world, dir), dir.id, pos, &name, part)
}

fn content_key(world: &World, dir: &DirRef) -> Key {
    key::content(shard(world, dir), dir.id, 0, Part::Main)
}

/// The names and whether each shows its attributes.
async fn listed(client: &mut Client, dir: &DirRef) -> Vec<(String, bool)> {
    let page = client.page(dir, 0, 100).await.unwrap();
    let mut shown: Vec<_> =
        page.entries.iter().map(|entry| (entry.name.to_string(), entry.entry.is_some())).collect();
    shown.sort_unstable();
    shown
}

#[test]
fn a_damaged_entry() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.create(&root, "bad").await.unwrap();
        let good = client.create(&root, "good").await.unwrap();
        write(world, &name_key(world, &root, "bad", Part::Main), Some(b"\x01\x01junk"));
        let io = FsError::Io;
        assert_eq!(client.lookup(&root, "bad").await, Err(io));
        assert_eq!(client.create(&root, "bad").await, Err(io));
        assert_eq!(client.unlink(&root, "bad").await, Err(io));
        assert_eq!(client.rename((&root, "bad"), (&root, "x")).await, Err(io));
        assert_eq!(client.rename((&root, "good"), (&root, "bad")).await, Err(io));
        let expected = [("bad".to_owned(), false), ("good".to_owned(), true)];
        assert_eq!(listed(&mut client, &root).await, expected);
        let findings = world.findings().await;
        assert!(findings.iter().any(|found| found.contains("/bad")), "{findings:?}");
        client.write(&good, 0, b"fine").await.unwrap();
        client.rename((&root, "good"), (&root, "better")).await.unwrap();
    });
}

#[test]
fn a_directory_without_content_record() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let bad = client.mkdir(&root, "bad").await.unwrap();
        client.mkdir(&root, "good").await.unwrap();
        write(world, &content_key(world, &bad), None);
        let io = FsError::Io;
        assert_eq!(client.lookup(&root, "bad").await, Err(io));
        assert_eq!(client.rmdir(&root, "bad").await, Err(io));
        assert_eq!(client.rename((&root, "bad"), (&root, "x")).await, Err(io));
        assert_eq!(client.rename((&root, "good"), (&root, "bad")).await, Err(io));
        assert_eq!(client.mkdir(&root, "bad").await, Err(FsError::Exists));
        let expected = [("bad".to_owned(), false), ("good".to_owned(), true)];
        assert_eq!(listed(&mut client, &root).await, expected);
        client.rename((&root, "good"), (&root, "better")).await.unwrap();
    });
}

#[test]
fn a_name_of_an_inode_that_is_not_in_its_slot() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "a").await.unwrap();
        client.link(&file, &root, "b").await.unwrap();
        client.create(&root, "good").await.unwrap();
        write(world, &key::inode(file.ino, Part::Main), None);
        let io = FsError::Io;
        assert_eq!(client.lookup(&root, "a").await, Err(io));
        assert_eq!(client.stat(&file).await, Err(io));
        assert_eq!(client.open_file(&file).await.unwrap_err(), io);
        assert_eq!(client.unlink(&root, "a").await, Err(io));
        assert_eq!(client.rename((&root, "a"), (&root, "x")).await, Err(io));
        let shown = [("a", false), ("b", false), ("good", true)];
        let shown = shown.map(|(name, shown)| (name.to_owned(), shown));
        assert_eq!(listed(&mut client, &root).await, shown);
    });
}

#[test]
fn a_moved_file_that_is_not_where_it_is_said_to_be() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "a").await.unwrap();
        client.rename((&root, "a"), (&root, "b")).await.unwrap();
        let nowhere = Location { dir: root.id, home: root.home, name: name("nowhere") };
        let slot = Slot::Moved(nowhere).to_record();
        write(world, &key::inode(file.ino, Part::Main), Some(&slot));
        assert_eq!(client.stat(&file).await, Err(FsError::Io));
        let named = FileRef { name: name("b"), ..file };
        client.write(&named, 0, b"fine").await.unwrap();
        client.unlink(&root, "b").await.unwrap();
    });
}

#[test]
fn chunks_that_cannot_be_read() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let bad = client.create(&root, "bad").await.unwrap();
        let good = client.create(&root, "good").await.unwrap();
        for file in [&bad, &good] {
            client.write_blocks(file, 0, &[1; 9000]).await.unwrap();
        }
        change(world, &key::chunk(bad.ino, 0), |chunk: &mut ChunkRecord| {
            (chunk.slices[0].start, chunk.slices[0].len) = (u32::MAX, 9);
        });
        let io = FsError::Io;
        assert_eq!(client.read(&bad).await, Err(io));
        assert_eq!(client.open_file(&bad).await.unwrap_err(), io);
        assert_eq!(client.write(&bad, 0, b"x").await, Err(io));
        assert_eq!(client.truncate(&bad, 5).await, Err(io));
        assert_eq!(client.read(&good).await.unwrap(), [1; 9000]);
        // The background does not stumble over it for ever either.
        client.unlink(&root, "bad").await.unwrap();
        client.unlink(&root, "good").await.unwrap();
        world.settle().await;
        assert_eq!(world.counter("blocks_deleted"), 1);
        client.create(&root, "bad").await.unwrap();
        // A file that could not be opened is not open.
        assert_eq!(world.server.status().sessions[0].open_files, 0);
    });
}

#[test]
fn a_block_that_is_missing() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let bad = client.create(&root, "bad").await.unwrap();
        client.write_blocks(&bad, 0, &[1; 9000]).await.unwrap();
        let block = base::BlockId::new(client.welcome.session, 1);
        world.blocks.delete(block).await.unwrap();
        let part = wire::BlockPart { block, block_bytes: 9000, offset: 0, ticket: 0 };
        let get = Request::BlockGet(wire::BlockGet { part, len: 9000 });
        // The block may have been replaced since the client was told of it: the client asks again
        // where it is.
        assert_eq!(client.ask(get).await, wire::Answer::Retry(wire::Retry::StaleDir));
        client.write_blocks(&bad, 0, &[2; 9000]).await.unwrap();
        assert_eq!(client.read(&bad).await.unwrap(), [2; 9000]);
    });
}

#[test]
fn a_chunk_that_is_full_and_cannot_be_read() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let bad = client.create(&root, "bad").await.unwrap();
        client.write_blocks(&bad, 0, &[1; 9000]).await.unwrap();
        world.blocks.delete(base::BlockId::new(client.welcome.session, 1)).await.unwrap();
        let write = |round: u32| {
            let slice = |index: u32| wire::Slice {
                start: (index * 8 + round) * 8,
                len: 8,
                source: wire::SliceSource::Embedded(vec![1; 8].into()),
            };
            let chunks =
                vec![wire::ChunkSlices { chunk: 0, slices: (0..1024).map(slice).collect() }];
            let (file, end) = (bad.clone(), 1 << 20);
            Request::Write(wire::Write {
                file,
                chunks,
                end,
                at: None,
                clear_set_id: false,
                set: None,
                blocks: Vec::new(),
            })
        };
        let mut last = wire::Answer::Halted;
        for round in 0..7 {
            last = client.ask(write(round)).await;
            world.settle().await;
        }
        // A wait for the compaction of this chunk would last for ever.
        assert_eq!(last, wire::Answer::Failed(FsError::Io));
        client.truncate(&bad, 0).await.unwrap();
        client.write(&bad, 0, b"new").await.unwrap();
        assert_eq!(client.read(&bad).await.unwrap(), b"new");
    });
}

#[test]
fn a_loop_of_directories() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let a = client.mkdir(&root, "a").await.unwrap();
        let b = client.mkdir(&a, "b").await.unwrap();
        let c = client.mkdir(&b, "c").await.unwrap();
        client.mkdir(&root, "other").await.unwrap();
        client.create(&c, "f").await.unwrap();
        change(world, &content_key(world, &a), |content: &mut Content| {
            (content.parent, content.parent_home, content.parent_ino) = (c.id, c.home, c.ino);
        });
        assert_eq!(client.rename((&root, "other"), (&c, "x")).await, Err(FsError::Io));
        let info = Request::Info(Info { node: NodeRef::Dir(c) });
        assert_eq!(client.get(info).await, Err(FsError::Io));
        client.rename((&c, "f"), (&c, "g")).await.unwrap();
        let info = Request::Info(Info { node: NodeRef::Dir(root) });
        assert!(matches!(client.get(info).await, Ok(Reply::Lines(_))));
    });
}

#[test]
fn counts_that_are_too_low() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        client.mkdir(&root, "d").await.unwrap();
        client.mkdir(&root, "e").await.unwrap();
        client.mkdir(&root, "g").await.unwrap();
        client.create(&root, "f").await.unwrap();
        change(world, &content_key(world, &root), |content: &mut Content| {
            (content.entries, content.subdirs) = (0, 0);
        });
        client.unlink(&root, "f").await.unwrap();
        client.rename((&root, "d"), (&root, "e")).await.unwrap();
        let e = client.lookup(&root, "e").await.unwrap().dir.unwrap();
        client.rename((&root, "g"), (&e, "g")).await.unwrap();
        client.rmdir(&e, "g").await.unwrap();
        client.rmdir(&root, "e").await.unwrap();
        assert_eq!(client.stat(&root).await.unwrap().nlink, 2);
    });
}

#[test]
fn extended_attributes_that_are_missing() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.set_xattr(&file, "user.big", &[1; 2000]).await.unwrap();
        write(world, &name_key(world, &root, "f", Part::Xattrs), None);
        let node = NodeRef::File(file.clone());
        let list = Request::Xattrs(wire::Getattr { node });
        assert_eq!(client.get(list).await, Err(FsError::Io));
        assert_eq!(client.set_xattr(&file, "user.x", b"").await, Err(FsError::Io));
        client.write(&file, 0, b"fine").await.unwrap();
        client.unlink(&root, "f").await.unwrap();
    });
}

#[test]
fn an_inode_whose_size_is_not_that_of_its_contents() {
    in_damaged_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let file = client.create(&root, "f").await.unwrap();
        client.write(&file, 0, b"contents").await.unwrap();
        let key = name_key(world, &root, "f", Part::Main);
        let stored = world.engine.get(&key).unwrap().unwrap();
        let Ok(EntryRecord::Node(mut inode)) = EntryRecord::from_record(&stored) else { panic!() };
        inode.size = 3;
        write(world, &key, Some(&EntryRecord::Node(inode).to_record()));
        assert_eq!(client.write(&file, 0, b"x").await, Err(FsError::Io));
        assert_eq!(client.stat(&file).await, Err(FsError::Io));
    });
}
