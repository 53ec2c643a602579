//! Contents of files, against a server in memory and a vector of bytes.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use base::{Access, Cred, FsError, SetAttr, SetTime, Time};
use bytes::Bytes;
use client::{AccessTimes, Client, Config, Error, File, FileSystem, Handle, OpenOptions};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use proptest::{prelude::*, test_runner::TestRunner};
use wire::{NodeRef, XattrMode};

use crate::world::World;

const MIB: u64 = 1 << 20;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let bytes = (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 9 ^ seed).to_le_bytes()[0]);
    bytes.collect()
}

async fn open(client: &Client, path: &str) -> File {
    client.open_with(path, OpenOptions::both().create(0o644)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_was_written_is_read_at_once_and_by_others_after_a_close() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        for len in [0, 1, 4096, 4097, 100_000, 9 << 20] {
            let path = format!("/{len}");
            let data = pattern(len as u64, len);
            let file = open(&one, &path).await;
            file.write_at(0, &data).await.unwrap();
            assert_eq!(file.metadata().await.unwrap().size, len as u64);
            assert_eq!(file.read_all().await.unwrap(), data);
            file.close().await.unwrap();
            assert!(two.read(&path).await.unwrap() == data, "len={len}");
            assert!(one.read(&path).await.unwrap() == data, "len={len}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_attributes_goes_with_what_was_written_before_it() {
    World::run(async |world| {
        let (client, other) = (world.client().await, world.client().await);
        let sent = || client.requests_by_server().iter().sum::<u64>();
        // A block of up to 64 KiB goes along as well.
        for (path, len, requests) in
            [("/small", 7, 1), ("/block", 65_536, 1), ("/large", 65_537, 2)]
        {
            let (file, data) = (open(&client, path).await, pattern(3, len));
            let made = file.metadata().await.unwrap();
            file.write_at(0, &data).await.unwrap();
            let before = sent();
            let time = Time { sec: 7, nsec: 8 };
            let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
            let attr = client.setattr(&Cred::ROOT, &file.node(), set).await.unwrap();
            assert_eq!(sent() - before, requests, "{path}");
            assert_eq!((attr.size, attr.mtime), (len as u64, time));
            assert!(attr.ctime > made.ctime, "clients see by it that contents have changed");
            assert_eq!(other.stat(path).await.unwrap(), attr);
            assert_eq!(other.read(path).await.unwrap(), data);
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            client.setattr(&Cred::ROOT, &file.node(), set).await.unwrap();
            assert_eq!(sent() - before, requests + 1, "nothing is left to send");
            file.close().await.unwrap();
            assert_eq!(other.stat(path).await.unwrap().mtime, time);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_written_is_stored_where_the_change_of_attributes_after_it_is_refused() {
    World::run(async |world| {
        let root = world.client().await;
        root.write("/f", b"old").await.unwrap();
        root.chmod("/f", 0o666).await.unwrap();
        let user = Cred { uid: 7, gid: 7, groups: Vec::new() };
        let config = Config { cred: user.clone(), ..world.config() };
        let client = Client::connect(config).await.unwrap();
        let file = client.open_with("/f", OpenOptions::both()).await.unwrap();
        file.write_at(0, b"new").await.unwrap();
        let time = SetTime::At(Time { sec: 7, nsec: 8 });
        let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
        let refused = client.setattr(&user, &file.node(), set).await;
        assert_eq!(refused, Err(FsError::NotPermitted.into()));
        file.close().await.unwrap();
        assert_eq!(root.read("/f").await.unwrap(), &b"new"[..]);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn small_files_make_no_block_and_large_ones_few() {
    World::run(async |world| {
        let client = world.client().await;
        client.write("/small", &pattern(1, 4096)).await.unwrap();
        assert_eq!(world.counter("block_put"), 0);
        client.write("/large", &pattern(2, 16 << 20)).await.unwrap();
        assert_eq!(world.counter("block_put"), 4);
        let file = open(&client, "/random").await;
        for at in 0..200 {
            file.write_at(at * 10_000, &pattern(at, 4000)).await.unwrap();
        }
        file.close().await.unwrap();
        assert_eq!(world.counter("block_put"), 5, "small pieces of a chunk are packed");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_small_file_is_kept_with_its_metadata_as_the_file_system_says() {
    let blocks = store::Blocks::memory();
    World::run_with(blocks.clone(), async |world| {
        let root = world.client().await;
        let stored = async || blocks.list().count().await;
        root.write("/before", &pattern(0, 20_000)).await.unwrap();
        assert_eq!(stored().await, 1);
        root.set_xattr("/", "pando.inline_max", b"64K", XattrMode::Set).await.unwrap();
        let client = world.client().await;
        for (number, len) in [(1, 4097), (2, 20_000), (3, 65_536)] {
            let path = format!("/{number}");
            client.write(&path, &pattern(number, len)).await.unwrap();
            assert_eq!(root.read(&path).await.unwrap(), pattern(number, len));
            let attr = root.stat(&path).await.unwrap();
            assert_eq!((attr.size, attr.allocated), (len as u64, len as u64));
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(stored().await, 1, "none is made a block later");
        client.write("/4", &pattern(4, 65_537)).await.unwrap();
        assert_eq!(stored().await, 2);

        // A piece of a larger file is a block, unless it is short.
        let large = open(&client, "/4").await;
        for (at, len, more) in [(100, 4096, 0), (9000, 5000, 1)] {
            let before = stored().await;
            large.write_at(at, &pattern(at, len)).await.unwrap();
            large.flush().await.unwrap();
            assert_eq!(stored().await - before, more, "{len} bytes");
        }
        large.close().await.unwrap();

        // A small file that grows, and is cut.
        let grows = open(&client, "/2").await;
        grows.write_at(20_000, &pattern(5, 100_000)).await.unwrap();
        grows.close().await.unwrap();
        let both = [pattern(2, 20_000), pattern(5, 100_000)].concat();
        assert_eq!(root.read("/2").await.unwrap(), both);
        client.truncate("/2", 10_000).await.unwrap();
        assert_eq!(root.read("/2").await.unwrap(), both[..10_000]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_write_is_sent_when_it_is_a_second_old() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let file = open(&one, "/f").await;
        file.write_at(0, b"hello").await.unwrap();
        assert_eq!(two.stat("/f").await.unwrap().size, 0);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(two.stat("/f").await.unwrap().size, 5);
        drop(file);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn times_do_not_change_when_a_write_is_sent() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client, "/f").await;
        file.write_at(0, b"hello").await.unwrap();
        let before = file.metadata().await.unwrap();
        file.sync_all().await.unwrap();
        let after = file.metadata().await.unwrap();
        assert_eq!(
            (before.mtime, before.ctime, before.size),
            (after.mtime, after.ctime, after.size)
        );
        let at = Time { sec: 5, nsec: 0 };
        file.write_at(5, b"world").await.unwrap();
        client.utimes("/f", None, Some(SetTime::At(at))).await.unwrap();
        file.close().await.unwrap();
        assert_eq!(client.stat("/f").await.unwrap().mtime, at);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_client_sends_what_was_written() {
    World::run(async |world| {
        let one = world.client().await;
        let file = open(&one, "/f").await;
        file.write_at(0, b"hello").await.unwrap();
        drop((one, file));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(world.client().await.read("/f").await.unwrap(), &b"hello"[..]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_removed_or_renamed_while_open_can_be_used() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let data = pattern(1, 300_000);
        for (path, other) in [("/a", None), ("/b", Some("/c"))] {
            let file = open(&one, path).await;
            file.write_at(0, &data).await.unwrap();
            file.flush().await.unwrap();
            match other {
                Some(other) => two.rename(path, other).await.unwrap(),
                None => two.unlink(path).await.unwrap(),
            }
            file.write_at(300_000, &data).await.unwrap();
            file.sync_all().await.unwrap();
            assert_eq!(file.read_at(299_999, 2).await.unwrap()[..], [data[299_999], data[0]]);
            assert_eq!(file.metadata().await.unwrap().nlink, u32::from(other.is_some()));
            file.set_len(5).await.unwrap();
            assert_eq!(file.read_all().await.unwrap(), data[..5]);
            file.close().await.unwrap();
        }
        assert_eq!(one.read("/c").await.unwrap(), data[..5]);
        assert!(matches!(one.stat("/a").await, Err(Error::Fs(FsError::NotFound))));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_clients_writing_different_ranges_lose_nothing() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let (first, second) = (open(&one, "/f").await, open(&two, "/f").await);
        for at in 0..40_u64 {
            let file = if at % 2 == 0 { &first } else { &second };
            file.write_at(at * 10_000, &pattern(at, 10_000)).await.unwrap();
            if at % 7 == 0 {
                file.flush().await.unwrap();
            }
        }
        first.close().await.unwrap();
        second.close().await.unwrap();
        let all: Vec<u8> = (0..40).flat_map(|at| pattern(at, 10_000)).collect();
        for client in [one, two] {
            assert!(client.read("/f").await.unwrap() == all);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn writers_wait_when_too_much_is_not_sent() {
    World::run(async |world| {
        for (dirty_bytes_max, waits) in [(MIB, true), (64 * MIB, false)] {
            let config = Config { dirty_bytes_max, ..world.config() };
            let client = Client::connect(config).await.unwrap();
            let file = open(&client, &format!("/{dirty_bytes_max}")).await;
            let data = pattern(3, 20 << 20);
            let mut waited = 0;
            for (index, part) in data.chunks(100_000).enumerate() {
                let mut write = Box::pin(file.write_at(index as u64 * 100_000, part));
                if futures::poll!(write.as_mut()).is_pending() {
                    waited += 1;
                    write.await.unwrap();
                }
            }
            assert_eq!(waited > 0, waits, "{waited} waited, of {dirty_bytes_max} bytes at most");
            file.close().await.unwrap();
            assert!(client.read(&format!("/{dirty_bytes_max}")).await.unwrap() == data);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sparse_file_beyond_four_gigabytes_is_exact() {
    World::run(async |world| {
        let client = world.client().await;
        let file = open(&client, "/f").await;
        let far = 5 << 30;
        file.write_at(far, b"far").await.unwrap();
        file.write_at(0, b"near").await.unwrap();
        assert_eq!(file.read_at(far - 2, 10).await.unwrap(), &b"\0\0far"[..]);
        file.close().await.unwrap();
        let file = client.open("/f").await.unwrap();
        assert_eq!(file.read_at(far - 2, 10).await.unwrap(), &b"\0\0far"[..]);
        assert_eq!(file.read_at(2, 4).await.unwrap(), &b"ar\0\0"[..]);
        assert_eq!(file.read_at(MIB * 1000, 3).await.unwrap(), &b"\0\0\0"[..]);
        assert!(client.stat("/f").await.unwrap().allocated < MIB);
        assert!(matches!(file.write_at(0, b"").await, Err(Error::Fs(FsError::BadHandle))));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reading_keeps_the_access_time_always_or_never_where_that_is_asked_for() {
    World::run(async |world| {
        for (when, kept) in [(AccessTimes::Always, true), (AccessTimes::Never, false)] {
            let config = Config { access_times: when, ..world.config() };
            let client = Client::connect(config).await.unwrap();
            client.write("/f", b"contents").await.unwrap();
            let mut before = client.stat("/f").await.unwrap();
            for _ in 0..3 {
                client.read("/f").await.unwrap();
                tokio::time::sleep(Duration::from_secs(2)).await;
                let after = client.stat("/f").await.unwrap();
                assert_eq!(after.atime > before.atime, kept, "{when:?}");
                before = after;
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reading_keeps_the_access_time_as_relatime_does() {
    World::run(async |world| {
        let client = world.client().await;
        client.write("/f", b"hello").await.unwrap();
        let before = client.stat("/f").await.unwrap();
        client.read("/f").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let after = client.stat("/f").await.unwrap();
        assert!(after.atime > before.atime && after.atime > after.mtime);
        assert_eq!(after.ctime, before.ctime);
        client.read("/f").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(client.stat("/f").await.unwrap().atime, after.atime);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_stays_open_is_read_anew_after_each_change() {
    World::run(async |world| {
        let client = world.client().await;
        client.write("/f", b"hello").await.unwrap();
        let file = client.open("/f").await.unwrap();
        let mut before = client.stat("/f").await.unwrap();
        for mode in [0o600, 0o644] {
            file.read_all().await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let after = client.stat("/f").await.unwrap();
            assert!(after.atime > before.atime && after.atime > after.ctime);
            // The clock of a world moves when it is read.
            for _ in 0..2000 {
                base::Clock::now(&*world.clock);
            }
            before = client.chmod("/f", mode).await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_file_is_released_and_one_opened_again_is_not() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let file = open(&one, "/f").await;
        file.write_at(0, b"x").await.unwrap();
        file.close().await.unwrap();
        let again = open(&one, "/f").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        two.unlink("/f").await.unwrap();
        assert_eq!(again.read_all().await.unwrap(), &b"x"[..]);
        let open_files = |status: &wire::Status| -> u64 {
            status.sessions.iter().map(|session| session.open_files).sum()
        };
        assert_eq!(open_files(&one.status().await.unwrap()), 1);
        drop(again);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(open_files(&one.status().await.unwrap()), 0);
    })
    .await;
}

#[tokio::test]
async fn a_client_of_the_servers_process_reaches_blocks_itself() {
    let blocks = store::Blocks::memory();
    World::run_with(blocks.clone(), async |world| {
        world.near();
        let config = || Config { blocks: Some(blocks.clone()), ..world.config() };
        let one = Client::connect(config()).await.unwrap();
        let two = Client::connect(config()).await.unwrap();
        let data = pattern(1, 5 << 20);
        one.write("/f", &data).await.unwrap();
        assert!(two.read("/f").await.unwrap() == data);
        assert_eq!((world.counter("block_put"), world.counter("block_get")), (0, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_write_has_stored_is_removed() {
    let blocks = store::Blocks::memory();
    World::run_with(blocks.clone(), async |world| {
        let client = world.client().await;
        client.mkdir("/d", 0o755).await.unwrap();
        let limit = XattrMode::Set;
        client.set_xattr("/d", "pando.quota.bytes", b"1048576", limit).await.unwrap();
        let full = client.write("/d/f", &pattern(1, 5 << 20)).await;
        assert!(matches!(full, Err(Error::Fs(FsError::QuotaExceeded))), "{full:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(blocks.list().count().await, 0);
        client.write("/d/f", &pattern(2, 500_000)).await.unwrap();
        assert_eq!(client.read("/d/f").await.unwrap(), pattern(2, 500_000));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_read_in_sequence_is_read_in_large_parts() {
    World::run(async |world| {
        let (one, two) = (world.client().await, world.client().await);
        let data = pattern(1, 32 << 20);
        one.write("/f", &data).await.unwrap();
        let file = two.open("/f").await.unwrap();
        for at in (0..data.len()).step_by(128 << 10) {
            let read = file.read_at(at as u64, 128 << 10).await.unwrap();
            assert!(read == data[at..at + (128 << 10)], "at={at}");
        }
        let gets = world.counter("block_get");
        assert!((8..=30).contains(&gets), "gets={gets}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_small_file_costs_two_requests_to_make_and_two_to_read() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/d", 0o755).await.unwrap();
        let cost = async |work: BoxFuture<'_, ()>| {
            let before = client.stats().requests;
            work.await;
            client.stats().requests - before
        };
        // Create, write; the release comes later.
        let make = async { client.write("/d/f", b"hello").await.unwrap() };
        assert_eq!(cost(make.boxed()).await, 2);
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Look-up and open; the access time and the release come later.
        let read = async { assert_eq!(client.read("/d/f").await.unwrap(), &b"hello"[..]) };
        assert_eq!(cost(read.boxed()).await, 2);
    })
    .await;
}

#[derive(Debug, Clone)]
enum Op {
    Write { client: usize, at: u64, len: usize, seed: u64 },
    Read { client: usize, at: u64, len: u32 },
    Truncate { client: usize, size: u64 },
    Flush,
    Reopen,
    Restart,
}

fn op(span: u64) -> impl Strategy<Value = Op> {
    let span = 0..span;
    let len = prop_oneof![1usize..100, 3000usize..6000, 50_000usize..200_000];
    prop_oneof![
        6 => (0usize..2, span.clone(), len, any::<u64>())
            .prop_map(|(client, at, len, seed)| Op::Write { client, at, len, seed }),
        4 => (0usize..2, span.clone(), 1u32..200_000)
            .prop_map(|(client, at, len)| Op::Read { client, at, len }),
        2 => (0usize..2, span).prop_map(|(client, size)| Op::Truncate { client, size }),
        1 => Just(Op::Flush),
        1 => Just(Op::Reopen),
        1 => Just(Op::Restart),
    ]
}

struct Side {
    client: Client,
    handle: Handle,
    node: NodeRef,
}

impl Side {
    async fn open(client: Client) -> Side {
        let node = client.resolve("/f").await.unwrap();
        let NodeRef::File(file) = &node else { panic!("a file") };
        let access = Some(Access::READ.and(Access::WRITE));
        let handle = FileSystem::open(&client, &Cred::ROOT, file, access).await.unwrap();
        Side { client, handle, node }
    }

    async fn flush(&self) {
        self.client.flush(self.handle).await.unwrap();
    }
}

/// Two clients take turns. Whoever takes over opens the file anew after the other has flushed, as
/// close-to-open asks; one that goes on needs neither.
async fn follows(world: World, ops: Vec<Op>) {
    let mut model: Vec<u8> = Vec::new();
    let clients = [world.client().await, world.client().await];
    clients[0].write("/f", b"").await.unwrap();
    let mut sides = [Side::open(clients[0].clone()).await, Side::open(clients[1].clone()).await];
    let mut turn = 0;
    for op in ops {
        let who = match &op {
            Op::Write { client, .. } | Op::Read { client, .. } | Op::Truncate { client, .. } => {
                *client
            }
            Op::Flush | Op::Reopen | Op::Restart => turn,
        };
        if who != turn {
            sides[turn].flush().await;
            let old = sides[who].handle;
            sides[who] = Side::open(clients[who].clone()).await;
            clients[who].release(old).await.unwrap();
            turn = who;
        }
        let side = &sides[turn];
        match op {
            Op::Write { at, len, seed, .. } => {
                let data = pattern(seed, len);
                let end = usize::try_from(at).unwrap() + len;
                model.resize(model.len().max(end), 0);
                model[end - len..end].copy_from_slice(&data);
                let (fs, data) = (&side.client, Bytes::from(data));
                FileSystem::write(fs, side.handle, at, data, false).await.unwrap();
            }
            Op::Read { at, len, .. } => {
                let read = FileSystem::read(&side.client, side.handle, at, len).await.unwrap();
                let start = usize::try_from(at).unwrap().min(model.len());
                let end = (start + len as usize).min(model.len());
                assert!(read == model[start..end], "at={at} len={len}");
            }
            Op::Truncate { size, .. } => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let attr = side.client.setattr(&Cred::ROOT, &side.node, set).await.unwrap();
                assert_eq!(attr.size, size);
                model.resize(usize::try_from(size).unwrap(), 0);
            }
            Op::Flush => side.flush().await,
            Op::Reopen => {
                let old = sides[turn].handle;
                sides[turn] = Side::open(clients[turn].clone()).await;
                clients[turn].release(old).await.unwrap();
            }
            Op::Restart => {
                world.kill();
                world.start();
            }
        }
        let side = &sides[turn];
        let size = side.client.getattr(&Cred::ROOT, &side.node).await.unwrap().size;
        assert_eq!(size, model.len() as u64);
    }
    for client in clients {
        sides[turn].flush().await;
        assert!(client.read("/f").await.unwrap() == model);
    }
}

fn random_files(span: u64, cases: u32, ops: usize) {
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let strategy = proptest::collection::vec(op(span), 1..ops);
    let result = runner.run(&strategy, |ops| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(World::run(async |world| follows(world, ops).await));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn random_changes_of_a_small_file_are_exact() {
    random_files(6000, 100, 40);
}

#[test]
fn random_changes_of_a_large_file_are_exact() {
    random_files(9 << 20, 30, 60);
}

/// The blocks below a directory.
fn blocks_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(blocks_in(&path));
        } else if !path.to_string_lossy().contains('#') {
            found.push(path);
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn what_a_power_cut_took_before_it_was_named_is_stored_again() {
    let bytes = pattern(1, 100_000);
    let mut losses = 0;
    for turns in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let blocks = store::Blocks::directory(dir.path()).unwrap();
        losses += World::run_with(blocks, async |world| {
            let client = world.client().await;
            let file = client.create("/f", 0o644).await.unwrap();
            client.sync().await.unwrap();
            file.write_at(0, &bytes).await.unwrap();
            let (flushed, ()) = tokio::join!(file.flush(), async {
                while blocks_in(dir.path()).is_empty() {
                    tokio::task::yield_now().await;
                }
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                world.power_cut();
                blocks_in(dir.path()).iter().for_each(|block| std::fs::remove_file(block).unwrap());
                world.start();
            });
            flushed.unwrap();
            let synced = file.sync_all().await;
            let losses = client.stats().losses;
            // Either the write was answered and is gone, or it was not and is sent whole.
            assert_eq!(synced.is_err(), losses == 1, "{synced:?}");
            let found = client.read("/f").await.unwrap();
            assert!(if losses == 1 { found.is_empty() } else { found == bytes }, "{turns} turns");
            losses
        })
        .await;
    }
    assert!((1..30).contains(&losses), "of 30 writes {losses} had been answered");
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_to_a_file_that_a_power_cut_took_is_told_once_as_an_io_error() {
    World::run(async |world| {
        let client = world.client().await;
        client.mkdir("/stable", 0o755).await.unwrap();
        client.sync().await.unwrap();
        let lost = Err(Error::Fs(FsError::Io));
        let unsent = async |path| {
            let file = client.create(path, 0o644).await.unwrap();
            file.write_at(0, b"unsent").await.unwrap();
            world.power_cut();
            world.start();
            file
        };
        let file = unsent("/stable/by sync").await;
        assert_eq!(client.sync().await, lost);
        client.sync().await.unwrap();
        assert_eq!(file.sync_all().await, lost);
        file.sync_all().await.unwrap();

        let file = unsent("/stable/by fsync").await;
        assert_eq!(file.sync_all().await, lost);
        file.sync_all().await.unwrap();
        assert_eq!(client.sync().await, lost);
        client.sync().await.unwrap();

        assert_eq!(unsent("/stable/by close").await.close().await, lost);
        assert_eq!(client.sync().await, lost);
        client.sync().await.unwrap();
        assert_eq!(client.stats().losses, 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn each_open_file_is_told_once_what_a_power_cut_took() {
    World::run(async |world| {
        let client = world.client().await;
        let kept = client.create("/kept", 0o644).await.unwrap();
        kept.write_at(0, b"kept").await.unwrap();
        kept.sync_all().await.unwrap();
        let written = client.create("/written", 0o644).await.unwrap();
        written.write_at(0, b"lost").await.unwrap();
        written.flush().await.unwrap();
        client.mkdir("/made", 0o755).await.unwrap();
        world.power_cut();
        world.start();

        assert_eq!(written.sync_all().await, Err(Error::Fs(FsError::Io)));
        written.sync_all().await.unwrap();
        kept.sync_all().await.unwrap();
        assert_eq!(client.sync().await, Err(Error::Fs(FsError::Io)));
        client.sync().await.unwrap();
        assert_eq!((client.stats().losses, world.counter("sessions_set_back")), (1, 1));
        assert_eq!(client.read("/kept").await.unwrap(), b"kept"[..]);
        assert!(client.stat("/written").await.is_err());

        // A cut that takes nothing of it, and a restart, are not told.
        client.mkdir("/later", 0o755).await.unwrap();
        client.sync().await.unwrap();
        world.power_cut();
        world.start();
        client.sync().await.unwrap();
        client.mkdir("/last", 0o755).await.unwrap();
        world.kill();
        world.start();
        client.sync().await.unwrap();
        assert_eq!(client.stats().losses, 1);
    })
    .await;
}
