//! A dump is the tree at one moment, and the tree that is loaded from it is the same.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use base::{Attr, FileKind, FsError, ShardId};
use bytes::Bytes;
use store::Engine;
use wire::{DirRef, DumpNext, DumpPage, DumpStarted, FileRef, Reply, Request, Token, Unlink};

use super::{
    client::{Client, user},
    cores::{next, random_act},
    world::{Counting, Seeded, World, in_world},
};
use crate::{
    cluster::member::Member,
    dump::{Header, LoadError, Loader},
    record::{
        Config, QuotaId, QuotaRecord, Record as _, Usage,
        key::{self, UsagePart},
    },
};

async fn start(client: &mut Client) -> Result<DumpStarted, FsError> {
    match client.get(Request::DumpStart).await? {
        Reply::DumpStarted(started) => Ok(started),
        other => panic!("{other:?}"),
    }
}

async fn page(client: &mut Client, dump: u64, from: Bytes, end: bool) -> Result<DumpPage, FsError> {
    match client.get(Request::DumpNext(DumpNext { dump, from, end })).await? {
        Reply::DumpPage(page) => Ok(page),
        other => panic!("{other:?}"),
    }
}

fn header(started: &DumpStarted) -> Header {
    base::Decode::from_bytes(&started.header).unwrap()
}

/// Loads the rest of a dump into an engine of its own. Returns the number of pages.
async fn load(client: &mut Client, started: &DumpStarted, key: &[u8]) -> (Counting, usize) {
    let (engine, header) = (Counting::default(), header(started));
    let mut pages = 0;
    let mut loader = Loader::begin(&[&engine], &header).unwrap();
    let mut from = Some(Bytes::new());
    while let Some(at) = from {
        let page = page(client, started.dump, at, false).await.unwrap();
        loader.records(page.records).unwrap();
        from = page.next;
        pages += 1;
    }
    loader.finish(&header, "memory", key, &Seeded::default()).unwrap();
    (engine, pages)
}

type Tree = BTreeMap<String, (Attr, Vec<(Bytes, Bytes)>, Vec<u8>)>;

/// Everything below a directory, by path: attributes, extended attributes, contents or target.
async fn tree(client: &mut Client, top: &DirRef) -> Tree {
    let mut found = Tree::new();
    let mut dirs = vec![(String::new(), *top)];
    while let Some((path, dir)) = dirs.pop() {
        let attr = client.stat(&dir).await.unwrap();
        let xattrs = client.xattrs(&dir).await;
        for text in client.names(&dir).await {
            let entry = client.lookup(&dir, &text).await.unwrap();
            let path = format!("{path}/{text}");
            let Some(below) = entry.dir else {
                let ino = entry.attr.ino;
                let file = FileRef { dir, name: super::client::name(&text), ino };
                let xattrs = client.xattrs(&file).await;
                let data = match entry.attr.kind {
                    FileKind::File => client.read(&file).await.unwrap(),
                    _ => entry.target.map(Vec::from).unwrap_or_default(),
                };
                found.insert(path, (entry.attr, xattrs, data));
                continue;
            };
            dirs.push((path, DirRef { ticket: 0, ..below }));
        }
        found.insert(format!("{path}/"), (attr, xattrs, Vec::new()));
    }
    found
}

/// A client that needs no tickets, and so may use references of another client.
async fn trusted(world: &mut World) -> Client {
    Client::open(world, &Token::administrator(), true).await.unwrap()
}

#[test]
fn what_is_loaded_from_a_dump_is_the_tree_when_it_was_started() {
    in_world(async |world| {
        let mut client = trusted(world).await;
        let root = client.root;
        let mut dirs = vec![root];
        for index in 0..3 {
            dirs.push(client.mkdir(&root, &format!("n{index}")).await.unwrap());
        }
        let mut random = 3;
        for _ in 0..800 {
            let mut draw = |below: u64| {
                random = next(random);
                usize::try_from((random >> 33) % below).unwrap()
            };
            let picks = [draw(12), draw(4), draw(4), draw(4), draw(4), draw(2)];
            random_act(&mut client, &dirs, picks).await;
        }
        let many = client.mkdir(&root, "many").await.unwrap();
        client.set_xattr(&many, "pando.quota.bytes", b"1G").await.unwrap();
        for index in 0..300 {
            let file = client.create(&many, &format!("f{index}")).await.unwrap();
            client.set_xattr(&file, "user.large", &[7; 3000]).await.unwrap();
        }
        client.make(&root, "device", FileKind::CharDevice, 0o600).await.unwrap();
        client.symlink(&root, "symlink", "target").await.unwrap();
        let open = client.create(&many, "open").await.unwrap();
        client.open_file(&open).await.unwrap();
        client.write_blocks(&open, 0, &[1; 9000]).await.unwrap();
        client.unlink(&many, "open").await.unwrap();
        world.settle().await;

        let before = tree(&mut client, &root).await;
        let started = start(&mut client).await.unwrap();
        assert_eq!(start(&mut client).await.err(), Some(FsError::Busy));
        // Later changes are not in the dump, and take no block from it.
        for index in 0..300 {
            client.unlink(&many, &format!("f{index}")).await.unwrap();
        }
        for dir in &dirs[1..] {
            for text in ["n0", "n1", "n2", "n3"] {
                // Some of the names are there, in directories that are.
                let unlink = Unlink { dir: *dir, name: super::client::name(text) };
                client.ask(Request::Unlink(unlink)).await;
            }
        }
        client.create(&many, "late").await.unwrap();
        world.settle().await;
        let key = world.server.shared.config.signing_key.clone();
        let (engine, pages) = load(&mut client, &started, &key).await;
        assert!(pages > 1);

        world.engine = Arc::new(engine);
        world.restart().await;
        world.settle().await;
        assert_eq!(world.findings().await, [""; 0]);
        let mut client = trusted(world).await;
        let root = client.root;
        assert_eq!(tree(&mut client, &root).await, before);
        let used = client.info(&many).await;
        assert!(used.contains(&("used.entries".to_owned(), "301".to_owned())), "{used:?}");
        // The loaded file system goes on: no number is given out twice.
        client.create(&root, "new").await.unwrap();
    });
}

#[test]
fn only_administrators_dump_and_a_dump_that_nobody_asks_about_is_forgotten() {
    in_world(async |world| {
        let token = Token { uid: Some(1000), gids: vec![1000], ..Token::administrator() };
        let mut other = world.client_with(&token).await;
        other.cred = user(1000);
        assert_eq!(start(&mut other).await.err(), Some(FsError::NotPermitted));
        let mut client = world.client().await;
        let forgotten = start(&mut client).await.unwrap();
        for _ in 0..20 {
            world.wait(std::time::Duration::from_secs(30)).await;
            client.get(Request::Ping).await.unwrap();
        }
        let lost = page(&mut client, forgotten.dump, Bytes::new(), false).await;
        assert_eq!(lost.err(), Some(FsError::NotFound));
        let again = start(&mut client).await.unwrap();
        let past =
            page(&mut client, again.dump, Bytes::from_static(&[0xff; 20]), false).await.unwrap();
        assert!(past.records.is_empty() && past.next.is_none());
        page(&mut client, again.dump, Bytes::new(), true).await.unwrap();
        start(&mut client).await.unwrap();
    });
}

#[test]
fn what_is_no_dump_is_not_loaded() {
    in_world(async |world| {
        let mut client = world.client().await;
        let started = start(&mut client).await.unwrap();
        let header = header(&started);
        let page = page(&mut client, started.dump, Bytes::new(), false).await.unwrap();
        let exists = Loader::begin(&[world.engine.as_ref()], &header).err();
        assert!(matches!(exists, Some(LoadError::Exists)));
        let wide = Header { shards: 0, ..header.clone() };
        let engine = Counting::default();
        assert!(matches!(Loader::begin(&[&engine], &wide).err(), Some(LoadError::Invalid(_))));
        let refused = |records: Vec<(Bytes, Bytes)>| {
            let taken = Loader::begin(&[&engine], &header).unwrap().records(records);
            assert!(matches!(taken, Err(LoadError::Invalid(_))), "{taken:?}");
        };
        let mut turned = page.records.clone();
        turned.reverse();
        refused(turned);
        let cut = page.records.iter().map(|(key, value)| (key.clone(), value.slice(..1)));
        refused(cut.collect());
        refused(vec![(Bytes::from_static(b"\0\0S12345678"), Bytes::new())]);
        refused(vec![(Bytes::from_static(b"\xff\0Nx"), Bytes::new())]);
    });
}

#[test]
fn what_is_loaded_for_several_servers_is_on_that_of_its_shard_and_its_quotas_are_the_coordinators()
{
    in_world(async |world| {
        let mut client = world.client().await;
        let root = client.root;
        let limited = client.mkdir(&root, "limited").await.unwrap();
        client.set_xattr(&limited, "pando.quota.entries", b"77").await.unwrap();
        world.settle().await;
        let inner = client.mkdir(&limited, "inner").await.unwrap();
        let file = client.create(&inner, "file").await.unwrap();
        client.write_blocks(&file, 0, &[1; 9000]).await.unwrap();
        let started = start(&mut client).await.unwrap();
        let header = header(&started);
        let page = page(&mut client, started.dump, Bytes::new(), false).await.unwrap();
        assert_eq!((page.next, page.blocks.len()), (None, 1));

        let engines = [Counting::default(), Counting::default(), Counting::default()];
        let engines = engines.each_ref().map(|engine| engine as &dyn Engine);
        let many = vec![engines[0]; usize::from(header.shards) + 1];
        assert!(matches!(Loader::begin(&many, &header).err(), Some(LoadError::Servers { .. })));
        let mut loader = Loader::begin(&engines, &header).unwrap();
        let block = page.blocks[0].0;
        assert!(loader.server_of_block(block).is_err());
        loader.records(page.records.clone()).unwrap();
        let server = loader.server_of_block(block).unwrap();
        assert_eq!(server, file.ino.shard().0 % 3);
        loader.finish(&header, "memory", b"key", &Seeded::default()).unwrap();

        let mut found = BTreeMap::new();
        for (server, engine) in (0..).zip(&engines) {
            let member = engine.get(&key::member()).unwrap().unwrap();
            let member = Member::from_record(&member).unwrap();
            assert_eq!((member.server, member.servers), (server, 3));
            assert_eq!(engine.get(&key::roster()).unwrap().is_some(), server == 0);
            assert_eq!(
                engine.get(&key::config()).unwrap(),
                world.engine.get(&key::config()).unwrap().map(|_| Config {
                    blocks: "memory".into(),
                    signing_key: Bytes::from_static(b"key"),
                    ..world.server.shared.config.clone()
                }
                .to_record())
            );
            engine
                .scan(&[], &[u8::MAX; 8], &mut |key, value| {
                    if key::shard_of(key) != ShardId::SERVER {
                        assert_eq!(key::shard_of(key).0 % 3, server);
                        found.insert(key.to_vec(), Bytes::copy_from_slice(value));
                    }
                    ControlFlow::Continue(())
                })
                .unwrap();
        }
        for (key, value) in
            page.records.iter().filter(|(key, _)| key::shard_of(key) != ShardId::SERVER)
        {
            let loaded = found.remove(&key[..]);
            assert_eq!(loaded.as_ref(), Some(value), "{key:?}");
        }
        assert!(found.is_empty(), "{found:?}");

        let id = QuotaId(limited.ino);
        let usages = engines.map(|engine| engine.get(&key::usage(id, UsagePart::Core(0))).unwrap());
        // The coordinator counts the directories, the file and its block.
        let used = Usage::of(3, 9000);
        assert_eq!(usages, [Some(used.to_record()), None, None]);
        let root = engines[0].get(&key::usage(id, UsagePart::Root)).unwrap().unwrap();
        let root = QuotaRecord::from_record(&root).unwrap();
        assert_eq!((root.bytes_max, root.entries_max), (None, Some(77)));
    });
}
