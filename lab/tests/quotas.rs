//! Quotas of several servers: what is used below a directory is counted whichever server has it, exactly.
//!
//! Each test ends with a check of all servers, which compares what is charged with what there is.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

use std::{ops::ControlFlow, time::Duration};

use base::{FileKind, FsError, Locality, placement::shard_of};
use client::{Client, Error};
use lab::{
    check::quota::{facts, used},
    sim::{
        plan::{Plan, Quotas},
        server::Host,
        trace::Trace,
        world::{Machine, World},
    },
};
use store::{Batch, Engine as _};
use tokio::{runtime::Builder, task::LocalSet};
use wire::{NodeRef, RenameMode, XattrMode};

const SERVERS: u16 = 4;
const SHARDS: u16 = 16;
const BYTES: &str = "pando.quota.bytes";

/// A world in which nothing goes wrong, by both placements.
fn with_both(test: impl AsyncFn(&World, &Machine)) {
    for locality in [Locality::Directory, Locality::Subtree] {
        in_world(Plan { locality, ..plan() }, &test);
    }
}

fn plan() -> Plan {
    Plan {
        shards: SHARDS,
        locality: Locality::Directory,
        access_cache: true,
        inline_bytes_max: 4096,
        lease: Duration::from_secs(1000),
        server_lease: Duration::from_secs(3),
        split_threshold: u64::MAX,
        trash: false,
        quotas: Quotas::None,
        ..Plan::draw(1, SERVERS)
    }
}

fn in_world(plan: Plan, test: impl AsyncFn(&World, &Machine)) {
    in_world_of_many(plan, async |world, maker| {
        test(world, &maker).await;
        assert_eq!(findings(world, &maker.client, false).await, [""; 0]);
        maker.close().await.unwrap();
    });
}

/// As [`in_world`], where the servers may be others in the end.
fn in_world_of_many(plan: Plan, test: impl AsyncFn(&World, Machine)) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let world = World::new(plan, None, &Trace::new(false)).unwrap();
        world.form().await.unwrap();
        let maker = world.connect("maker").await.unwrap();
        test(&world, maker).await;
    });
}

async fn findings(world: &World, client: &Client, repair: bool) -> Vec<String> {
    let mut check = match repair {
        true => client.repair_start_everywhere(false, false).await.unwrap(),
        false => client.fsck_start_everywhere(false).await.unwrap(),
    };
    loop {
        let progress = check.poll(client, false).await.unwrap();
        if progress.done {
            return progress.findings;
        }
        world.wait(Duration::from_millis(50)).await;
    }
}

async fn set(client: &Client, path: &str, max: &str) -> client::Result<()> {
    client.set_xattr(path, BYTES, max.as_bytes(), XattrMode::Set).await
}

/// Has a directory counted; what is used below it, and nothing else is there.
async fn count(world: &World, client: &Client, path: &str) -> (u64, u64) {
    set(client, path, "unlimited").await.unwrap();
    compare(world, client, path).await
}

/// What is used below a directory, which must be what a walk finds.
async fn compare(world: &World, client: &Client, path: &str) -> (u64, u64) {
    let there = walk(client, path).await;
    for _ in 0..100 {
        if used(world, client, path).await.unwrap() == there {
            return there;
        }
        // What was open is closed, and removed, a moment later.
        world.wait(Duration::from_millis(200)).await;
    }
    let used = used(world, client, path).await.unwrap();
    panic!("below {path} {used:?} entries and bytes are counted, and there are {there:?}");
}

/// What is below a directory: inodes and bytes. A file with several names is counted with the first.
async fn walk(client: &Client, top: &str) -> (u64, u64) {
    let (mut inos, mut bytes) = (std::collections::BTreeSet::new(), 0);
    let mut dirs = vec![top.trim_end_matches('/').to_owned()];
    inos.insert(client.lstat(top).await.unwrap().ino);
    while let Some(dir) = dirs.pop() {
        let listed = if dir.is_empty() { "/" } else { &dir };
        for entry in client.read_dir(listed).await.unwrap().all().await.unwrap() {
            let path = format!("{dir}/{}", entry.name);
            let attr = client.lstat(&path).await.unwrap();
            if inos.insert(attr.ino) {
                bytes += attr.allocated;
            }
            if attr.kind == FileKind::Directory {
                dirs.push(path);
            }
        }
    }
    (inos.len() as u64, bytes)
}

/// A tree over all servers.
async fn make_tree(client: &Client, top: &str) {
    client.create_dir_all(format!("{top}/large"), 0o755).await.unwrap();
    for (name, value) in [("spread", "extendible"), ("large_dir", "5")] {
        let name = format!("pando.{name}");
        let large = format!("{top}/large");
        client.set_xattr(&large, &name, value.as_bytes(), XattrMode::Set).await.unwrap();
    }
    for number in 0..12 {
        let dir = format!("{top}/{number}");
        client.write(format!("{top}/large/{number}"), &[7; 9000]).await.unwrap();
        client.create_dir_all(format!("{dir}/below/it"), 0o755).await.unwrap();
        client.write(format!("{dir}/small"), b"small").await.unwrap();
        client.symlink("small", format!("{dir}/below/symlink")).await.unwrap();
        // Born elsewhere, mostly.
        client.write(format!("{top}/large/moves{number}"), b"moves").await.unwrap();
        client.rename(format!("{top}/large/moves{number}"), format!("{dir}/moved")).await.unwrap();
        client.link(format!("{dir}/small"), format!("{top}/large/link{number}")).await.unwrap();
    }
}

/// The server of a directory.
async fn server_of(client: &Client, path: &str) -> u16 {
    match client.resolve(path).await.unwrap() {
        NodeRef::Dir(dir) => shard_of(dir.home, 0, SHARDS).0 % SERVERS,
        NodeRef::File(_) => panic!("it is a directory"),
    }
}

fn executed(world: &World) -> Vec<u64> {
    world.hosts().iter().map(|host| host.counter("requests")).collect()
}

fn is(result: client::Result<()>, expected: FsError) {
    assert!(matches!(result, Err(Error::Fs(error)) if error == expected), "{result:?}");
}

#[test]
fn what_is_there_is_counted_and_so_is_every_change() {
    with_both(async |world, maker| {
        let client = &maker.client;
        make_tree(client, "/tree").await;
        make_tree(client, "/other").await;
        assert!(!facts(client, "/tree").await.unwrap().contains_key("quota.state"));
        let (entries, _) = count(world, client, "/tree").await;
        assert_eq!(entries, 2 + 12 * 7);
        for number in 0..12 {
            let dir = format!("/tree/{number}");
            client.write(format!("{dir}/new"), &[1; 20_000]).await.unwrap();
            client.mkdir(format!("{dir}/new dir"), 0o755).await.unwrap();
            client
                .rename(format!("{dir}/moved"), format!("/tree/large/back{number}"))
                .await
                .unwrap();
            client.unlink(format!("/tree/large/{number}")).await.unwrap();
            client.unlink(format!("{dir}/small")).await.unwrap();
            client.write(format!("{dir}/new"), &[1; 100]).await.unwrap();
            client.rename(format!("{dir}/below"), format!("{dir}/new dir/below")).await.unwrap();
            if number % 2 == 0 {
                client.rmdir(format!("{dir}/new dir/below/it")).await.unwrap();
                client.unlink(format!("/tree/large/link{number}")).await.unwrap();
            }
            compare(world, client, "/tree").await;
        }
        set(client, "/tree", "none").await.unwrap();
        while facts(client, "/tree").await.unwrap().contains_key("quota.state") {
            world.wait(Duration::from_millis(100)).await;
        }
        // And once more.
        count(world, client, "/tree").await;
        assert!(!facts(client, "/other").await.unwrap().contains_key("quota.state"));
    });
}

#[test]
fn below_two_directories_is_not_counted_at_once() {
    with_both(async |world, maker| {
        let client = &maker.client;
        client.mkdir("/e", 0o755).await.unwrap();
        set(client, "/e", "unlimited").await.unwrap();
        client.mkdir("/f", 0o755).await.unwrap();
        is(set(client, "/f", "unlimited").await, FsError::Busy);
        compare(world, client, "/e").await;
        set(client, "/f", "unlimited").await.unwrap();
    });
}

#[test]
fn files_are_charged_where_they_are_moved_to_and_full_directories_stay() {
    with_both(async |world, maker| {
        let client = &maker.client;
        for number in 0..8 {
            client.create_dir_all(format!("/in{number}/full"), 0o755).await.unwrap();
            client.create_dir_all(format!("/out{number}/full"), 0o755).await.unwrap();
            client.mkdir(format!("/in{number}/empty"), 0o755).await.unwrap();
            client.write(format!("/in{number}/full/file"), b"x").await.unwrap();
            client.write(format!("/out{number}/full/file"), &[1; 9000]).await.unwrap();
            count(world, client, &format!("/in{number}")).await;
        }
        for number in 0..8 {
            let (inside, outside) = (format!("/in{number}"), format!("/out{number}"));
            let into = |name: &str| format!("{inside}/{name}");
            let out = |name: &str| format!("{outside}/{name}");
            client.rename(out("full/file"), into("file")).await.unwrap();
            assert_eq!(compare(world, client, &inside).await, (5, 9001));
            client.rename(into("full/file"), out("full/file")).await.unwrap();
            assert_eq!(compare(world, client, &inside).await, (4, 9000));
            // In and out again, wherever its inode is.
            for _ in 0..2 {
                client.rename(into("file"), out("file")).await.unwrap();
                assert_eq!(compare(world, client, &inside).await, (3, 0));
                client.rename(out("file"), into("file")).await.unwrap();
                assert_eq!(compare(world, client, &inside).await, (4, 9000));
            }
            is(client.rename(out("full"), into("not")).await, FsError::CrossDevice);
            client.rename(into("empty"), out("empty")).await.unwrap();
            assert_eq!(compare(world, client, &inside).await, (3, 9000));
            client.rename(out("empty"), into("empty")).await.unwrap();
            client.write(into("full/file"), b"x").await.unwrap();
            is(client.rename(into("full"), out("not")).await, FsError::CrossDevice);
            // Within it, and it itself, as anywhere.
            client.rename(into("full"), into("empty/full")).await.unwrap();
            client.rename(&inside, out("in")).await.unwrap();
            assert_eq!(compare(world, client, &out("in")).await, (5, 9001));
            let swapped = client.rename_with(out("full"), out("in/empty"), RenameMode::Exchange);
            is(swapped.await, FsError::CrossDevice);
        }
    });
}

#[test]
fn quotas_nest_and_go_with_their_directories() {
    with_both(async |world, maker| {
        let client = &maker.client;
        make_tree(client, "/tree").await;
        count(world, client, "/tree/3").await;
        count(world, client, "/tree").await;
        count(world, client, "/tree/4").await;
        for path in ["/tree/3/below/it/f", "/tree/4/f", "/tree/f"] {
            client.write(path, &[1; 6000]).await.unwrap();
        }
        for path in ["/tree", "/tree/3", "/tree/4"] {
            compare(world, client, path).await;
        }
        // What has a name elsewhere counts where it was made.
        client.unlink("/tree/large/link4").await.unwrap();
        client.rename("/tree/4", "/four").await.unwrap();
        world.wait(Duration::from_secs(5)).await;
        compare(world, client, "/tree").await;
        client.rename("/four", "/tree/5/four").await.unwrap();
        world.wait(Duration::from_secs(5)).await;
        compare(world, client, "/tree").await;
        set(client, "/tree/3", "none").await.unwrap();
        while facts(client, "/tree/3").await.unwrap().contains_key("quota.state") {
            world.wait(Duration::from_millis(100)).await;
        }
        compare(world, client, "/tree").await;
        // One whose directory goes, goes with it.
        client.mkdir("/tree/gone", 0o755).await.unwrap();
        count(world, client, "/tree/gone").await;
        client.rmdir("/tree/gone").await.unwrap();
        world.wait(Duration::from_secs(60)).await;
        compare(world, client, "/tree").await;
        client.mkdir("/tree/gone", 0o755).await.unwrap();
        count(world, client, "/tree/gone").await;
    });
}

#[test]
fn a_create_or_a_write_below_a_quota_needs_no_other_server() {
    let calm = Plan { server_lease: Duration::from_secs(9), ..plan() };
    in_world(calm, async |world, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b/c/d/e", 0o755).await.unwrap();
        count(world, client, "/a").await;
        let owner = usize::from(server_of(client, "/a/b/c/d/e").await);
        for number in 0..20 {
            let path = format!("/a/b/c/d/e/{number}");
            let before = executed(world);
            match number % 4 {
                0..=2 => client.write(path, &[1; 100]).await.unwrap(),
                _ => client.unlink(format!("/a/b/c/d/e/{}", number - 1)).await.unwrap(),
            }
            let after = executed(world);
            for (server, (after, before)) in after.iter().zip(before).enumerate() {
                // A heartbeat of each may come in between, to the coordinator.
                let beats = if server == 0 { u64::from(SERVERS) - 1 } else { 0 };
                assert!(server == owner || after - before <= beats, "{server} was asked");
            }
        }
        compare(world, client, "/a").await;
    });
}

/// Makes and moves until it is told to stop.
async fn change(client: Client, top: String, rounds: u32) {
    for round in 0..rounds {
        let dir = format!("{top}/new{round}");
        client.mkdir(&dir, 0o755).await.unwrap();
        for number in 0..4 {
            client.write(format!("{dir}/{number}"), &vec![1; 3000 * number]).await.unwrap();
        }
        client.rename(format!("{dir}/1"), format!("{top}/large/r{round}")).await.unwrap();
        client.unlink(format!("{dir}/2")).await.unwrap();
        client.rename(&dir, format!("{top}/large/new{round}")).await.unwrap();
        if round > 0 {
            let before = format!("{top}/large/new{}", round - 1);
            client.rename(before, format!("{dir}-moved")).await.unwrap();
        }
    }
}

/// Counts while others change everything, and servers die.
async fn counts_meanwhile(world: &World, maker: &Machine, dies: impl AsyncFn(&World)) {
    let client = &maker.client;
    make_tree(client, "/tree").await;
    client.sync().await.unwrap();
    let changes = tokio::task::spawn_local(change(client.clone(), "/tree".into(), 12));
    for max in ["unlimited", "none", "unlimited"] {
        while let Err(error) = set(client, "/tree", max).await {
            assert!(matches!(error, Error::Fs(FsError::Busy)), "{error:?}");
            world.wait(Duration::from_millis(300)).await;
        }
        dies(world).await;
    }
    changes.await.unwrap();
    compare(world, client, "/tree").await;
}

#[test]
fn it_is_counted_while_everything_changes() {
    with_both(async |world, maker| counts_meanwhile(world, maker, async |_| {}).await);
}

/// Moves directories, and one name of files with two, from partition to partition of a directory, until it is told to stop.
async fn shuffle(client: Client, rounds: u32) {
    let was = |what: &str, round: u32| format!("/d/{what}-{round}");
    for number in 0..8 {
        client.create_dir_all(was(&format!("dir{number}"), 0) + "/below", 0o755).await.unwrap();
        client.write(format!("/d/file{number}"), b"bytes").await.unwrap();
        client.link(format!("/d/file{number}"), was(&format!("link{number}"), 0)).await.unwrap();
        client.unlink(format!("/d/file{number}")).await.unwrap();
        client
            .link(was(&format!("link{number}"), 0), was(&format!("other{number}"), 0))
            .await
            .unwrap();
    }
    client.mkdir("/d/begun", 0o755).await.unwrap();
    for round in 0..rounds {
        let moves = (0..8)
            .flat_map(|number| ["dir", "link", "other"].map(|what| format!("{what}{number}")));
        let moves = moves.map(|what| client.rename(was(&what, round), was(&what, round + 1)));
        for moved in futures::future::join_all(moves).await {
            moved.unwrap();
        }
    }
}

#[test]
fn it_is_counted_while_names_move_within_a_directory() {
    with_both(async |world, maker| {
        let client = &maker.client;
        client.mkdir("/d", 0o755).await.unwrap();
        for (name, value) in [("spread", "extendible"), ("large_dir", "5")] {
            let name = format!("pando.{name}");
            client.set_xattr("/d", &name, value.as_bytes(), XattrMode::Set).await.unwrap();
        }
        let shuffles = tokio::task::spawn_local(shuffle(client.clone(), 60));
        while client.lstat("/d/begun").await.is_err() {
            world.wait(Duration::from_millis(5)).await;
        }
        for max in ["unlimited", "none", "unlimited", "none", "unlimited"] {
            while let Err(error) = set(client, "/d", max).await {
                assert!(matches!(error, Error::Fs(FsError::Busy)), "{error:?}");
                world.wait(Duration::from_millis(20)).await;
            }
        }
        shuffles.await.unwrap();
        compare(world, client, "/d").await;
    });
}

#[test]
fn it_is_counted_though_servers_die_meanwhile() {
    for power in [false, true] {
        // Until all sessions have claimed what they had open, or have ended, nothing is removed that may be.
        let lease = Duration::from_secs(5);
        let strict = Plan { durability: meta::Durability::Strict, lease, ..plan() };
        in_world(strict, async |world, maker| {
            let random = world.random("deaths");
            counts_meanwhile(world, maker, async |world| {
                for _ in 0..6 {
                    world.wait(random.ms(0..400)).await;
                    let host = &world.hosts()[random.index(usize::from(SERVERS))];
                    host.crash(power);
                    world.wait(random.ms(0..300)).await;
                    host.start().unwrap();
                }
            })
            .await;
        });
    }
}

#[test]
fn it_is_counted_while_directories_split() {
    let splits = Plan { split_threshold: 12, ..plan() };
    in_world(splits, async |world, maker| {
        let client = &maker.client;
        client.mkdir("/d", 0o755).await.unwrap();
        set(client, "/d", "unlimited").await.unwrap();
        for number in 0..200 {
            client.write(format!("/d/{number}"), &[1; 100]).await.unwrap();
        }
        compare(world, client, "/d").await;
        set(client, "/d", "none").await.unwrap();
        for number in 200..300 {
            client.mkdir(format!("/d/{number}"), 0o755).await.unwrap();
        }
        while facts(client, "/d").await.unwrap().contains_key("quota.state") {
            world.wait(Duration::from_millis(100)).await;
        }
        set(client, "/d", "unlimited").await.unwrap();
        for number in 0..200 {
            client.unlink(format!("/d/{number}")).await.unwrap();
        }
        compare(world, client, "/d").await;
        client.write("/d/x", b"x").await.unwrap();
        compare(world, client, "/d").await;
    });
}

/// Sets a limit; it holds when this returns.
async fn limit(world: &World, client: &Client, path: &str, what: &str, max: u64) {
    let (name, max) = (format!("pando.quota.{what}"), max.to_string());
    while let Err(error) = client.set_xattr(path, &name, max.as_bytes(), XattrMode::Set).await {
        assert!(matches!(error, Error::Fs(FsError::Busy)), "{error:?}");
        world.wait(Duration::from_millis(100)).await;
    }
    used(world, client, path).await.unwrap();
}

/// Makes directories until there is no room; how many there was room for.
async fn fill(client: &Client, dir: &str, names: &str, max: u64) -> u64 {
    for number in 0..max {
        match client.mkdir(format!("{dir}/{names}{number}"), 0o755).await {
            Ok(_) => {}
            Err(Error::Fs(FsError::QuotaExceeded)) => return number,
            Err(error) => panic!("{error:?}"),
        }
    }
    max
}

#[test]
fn several_servers_pass_no_limit_and_refuse_nobody_while_there_is_room() {
    with_both(async |world, maker| {
        let client = &maker.client;
        for dir in 0..8 {
            client.create_dir_all(format!("/d/{dir}"), 0o755).await.unwrap();
        }
        limit(world, client, "/d", "entries", 9 + 40).await;
        let machines = world.connect_all("fills", 8).await.unwrap();
        let fill_all = async |names: &str| {
            let fills = (0..).zip(&machines).map(|(dir, machine): (usize, _)| async move {
                fill(&machine.client, &format!("/d/{dir}"), names, 9).await
            });
            futures::future::join_all(fills).await.into_iter().sum::<u64>()
        };
        assert_eq!(fill_all("a").await, 40);
        assert_eq!(compare(world, client, "/d").await, (49, 0));
        // The same room again, wherever it was.
        let mut removed = 0;
        for dir in [1, 5] {
            for number in 0..9 {
                let path = format!("/d/{dir}/a{number}");
                removed += u64::from(client.rmdir(path).await.is_ok());
            }
        }
        assert!(removed > 0);
        assert_eq!(fill_all("b").await, removed);
        // More may be, and then less than there is.
        limit(world, client, "/d", "entries", 60).await;
        assert_eq!(fill_all("c").await, 11);
        limit(world, client, "/d", "entries", 50).await;
        assert_eq!(fill_all("d").await, 0);
        for machine in machines {
            machine.close().await.unwrap();
        }
    });
}

#[test]
fn what_one_server_releases_others_can_use_at_once() {
    with_both(async |world, maker| {
        let client = &maker.client;
        for dir in 0..6 {
            client.create_dir_all(format!("/d/{dir}"), 0o755).await.unwrap();
        }
        limit(world, client, "/d", "entries", 7 + 12).await;
        limit(world, client, "/d", "bytes", 20_000).await;
        let path = |number: usize| format!("/d/{}/{number}", number % 6);
        for number in 0..6 {
            client.write(path(number), &[1; 3000]).await.unwrap();
        }
        for number in 6..12 {
            client.mkdir(path(number), 0o755).await.unwrap();
        }
        is(client.mkdir("/d/over", 0o755).await.map(drop), FsError::QuotaExceeded);
        is(client.write(path(3), &[1; 6000]).await, FsError::QuotaExceeded);
        client.write(path(3), &[1; 3000]).await.unwrap();
        for number in 12..60 {
            client.rmdir(path(number - 6)).await.unwrap();
            let dir = (number * 5 + 1) % 6;
            client.mkdir(format!("/d/{dir}/new"), 0o755).await.unwrap();
            client.rename(format!("/d/{dir}/new"), path(number)).await.unwrap();
        }
        assert_eq!(compare(world, client, "/d").await, (19, 18_000));
    });
}

#[test]
fn a_server_that_is_away_keeps_from_others_only_what_it_has() {
    in_world(Plan { durability: meta::Durability::Strict, ..plan() }, async |world, maker| {
        let client = &maker.client;
        let mut of = std::collections::BTreeMap::new();
        for dir in 0..20 {
            let dir = format!("/d/{dir}");
            client.create_dir_all(&dir, 0o755).await.unwrap();
            of.insert(server_of(client, &dir).await, dir);
        }
        let needed = [0, server_of(client, "/").await, server_of(client, "/d").await];
        let mut free = (0..SERVERS).filter(|server| !needed.contains(server));
        let away = free.next().expect("there are enough");
        let here = of.keys().find(|server| **server != away).unwrap();
        limit(world, client, "/d", "entries", 21 + 100).await;
        client.write(format!("{}/file", of[&away]), b"").await.unwrap();
        let host = &world.hosts()[usize::from(away)];
        host.kill();
        let spare = 99 / u64::from(SERVERS) / 2;
        let there_were = fill_with_files(client, &of[here], "a").await;
        assert!((99 - spare..99).contains(&there_were), "{there_were}");
        host.start().unwrap();
        // It is asked again, and has given back what it had.
        let then = fill_with_files(client, &of[here], "b").await;
        assert_eq!(there_were + then, 99);
        client.unlink(format!("{}/a0", of[here])).await.unwrap();
        client.mkdir(format!("{}/more", of[&away]), 0o755).await.unwrap();
        // Whoever the coordinator was, it allows no more than there is.
        world.hosts()[0].crash(false);
        world.hosts()[0].start().unwrap();
        assert_eq!(fill_with_files(client, &of[here], "c").await, 0);
        client.rmdir(format!("{}/more", of[&away])).await.unwrap();
        assert_eq!(fill_with_files(client, &of[here], "d").await, 1);
    });
}

/// As [`fill`], with files, of which each concerns one server.
async fn fill_with_files(client: &Client, dir: &str, names: &str) -> u64 {
    for number in 0.. {
        match client.write(format!("{dir}/{names}{number}"), b"").await {
            Ok(()) => {}
            Err(Error::Fs(FsError::QuotaExceeded)) => return number,
            Err(error) => panic!("{error:?}"),
        }
    }
    unreachable!("there is a limit")
}

#[test]
fn limits_nest_and_a_quota_does_not_move_below_one() {
    with_both(async |world, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b", 0o755).await.unwrap();
        client.mkdir("/q", 0o755).await.unwrap();
        limit(world, client, "/a", "entries", 20).await;
        limit(world, client, "/a/b", "entries", 10).await;
        count(world, client, "/q").await;
        client.write("/q/file", b"x").await.unwrap();
        assert_eq!(fill(client, "/a/b", "n", 20).await, 9);
        assert_eq!(fill(client, "/a", "n", 20).await, 9);
        is(client.rename("/q/file", "/a/file").await, FsError::QuotaExceeded);
        is(client.rename("/a/n1", "/a/b/n9").await, FsError::QuotaExceeded);
        is(client.rename("/q", "/a/q").await, FsError::CrossDevice);
        // Out of it, it makes room.
        client.rename("/a/b", "/b").await.unwrap();
        assert_eq!(fill(client, "/b", "more", 20).await, 0);
        assert_eq!(fill(client, "/a", "more", 20).await, 10);
        compare(world, client, "/a").await;
        compare(world, client, "/b").await;
        is(client.rename("/b", "/a/b").await, FsError::CrossDevice);
    });
}

/// Two small trees in one world, and how much room is left in the first.
async fn nearly_full(world: &World, client: &Client) {
    client.mkdir("/d", 0o755).await.unwrap();
    client.write("/d/y", &[1; 9000]).await.unwrap();
    client.write("/d/z", &[1; 8000]).await.unwrap();
    client.write("/x", &[1; 10_000]).await.unwrap();
    limit(world, client, "/d", "bytes", 20_000).await;
    assert_eq!(compare(world, client, "/d").await, (3, 17_000));
    // What is closed is charged for no more a moment later.
    world.wait(Duration::from_secs(5)).await;
}

#[test]
fn what_takes_the_place_of_something_needs_room_for_the_difference() {
    with_both(async |world, maker| {
        let client = &maker.client;
        nearly_full(world, client).await;
        client.rename("/x", "/d/y").await.unwrap();
        assert_eq!(compare(world, client, "/d").await, (3, 18_000));
        client.write("/x", &[1; 10_001]).await.unwrap();
        client.rename_with("/d/z", "/x", RenameMode::Exchange).await.unwrap_err();
        client.write("/x", &[1; 10_000]).await.unwrap();
        client.rename_with("/d/z", "/x", RenameMode::Exchange).await.unwrap();
        assert_eq!(compare(world, client, "/d").await, (3, 20_000));
        // There is less than there was, if still too much.
        limit(world, client, "/d", "bytes", 12_000).await;
        client.write("/x", &[1; 9000]).await.unwrap();
        client.rename("/x", "/d/y").await.unwrap();
        assert_eq!(compare(world, client, "/d").await, (3, 19_000));
    });
}

#[test]
fn what_charges_twice_needs_room_for_both() {
    for (max, there_is_room) in [(3, true), (2, false)] {
        with_both(async |world, maker| {
            let client = &maker.client;
            client.mkdir("/d", 0o755).await.unwrap();
            limit(world, client, "/d", "entries", max).await;
            for name in ["a", "b"] {
                client.write(format!("/{name}"), b"x").await.unwrap();
                client.link(format!("/{name}"), format!("/d/{name}")).await.unwrap();
                client.unlink(format!("/{name}")).await.unwrap();
            }
            world.wait(Duration::from_secs(5)).await;
            // They were made elsewhere, and count here from now on.
            let exchanged = client.rename_with("/d/a", "/d/b", RenameMode::Exchange).await;
            assert_eq!(exchanged.is_ok(), there_is_room, "{exchanged:?}");
        });
    }
}

#[test]
fn a_quota_that_leaves_another_takes_no_more_with_it_than_it_uses() {
    with_both(async |world, maker| {
        let client = &maker.client;
        let mut below = std::collections::BTreeMap::new();
        let mut beside = std::collections::BTreeMap::new();
        for dir in 0..20 {
            for (of, dir) in
                [(&mut below, format!("/a/b/{dir}")), (&mut beside, format!("/a/p{dir}"))]
            {
                client.create_dir_all(&dir, 0o755).await.unwrap();
                of.insert(server_of(client, &dir).await, dir);
            }
        }
        let Some(one) = below.keys().find(|server| beside.contains_key(server)).copied() else {
            return;
        };
        let Some((_, other)) = below.iter().find(|(server, _)| **server != one) else { return };
        limit(world, client, "/a", "entries", 142).await;
        count(world, client, "/a/b").await;
        // What one server has charged another releases.
        for number in 0..60 {
            let (here, there) = (format!("{}/{number}", below[&one]), format!("{other}/{number}"));
            client.write(&here, b"").await.unwrap();
            client.rename(&here, &there).await.unwrap();
            client.unlink(&there).await.unwrap();
        }
        world.wait(Duration::from_secs(5)).await;
        fill_with_files(client, &beside[&one], "n").await;
        assert_eq!(compare(world, client, "/a").await.0, 142);
        client.rename("/a/b", "/b").await.unwrap();
        assert_eq!(fill_with_files(client, &beside[&one], "m").await, 21);
        assert_eq!(compare(world, client, "/a").await.0, 142);
    });
}

#[test]
fn what_is_removed_counts_no_more_while_it_is_in_the_trash() {
    let with_trash = Plan { trash: true, ..plan() };
    in_world(with_trash, async |world, maker| {
        let client = &maker.client;
        client.set_xattr("/", "pando.trash_days", b"1", XattrMode::Set).await.unwrap();
        world.wait(Duration::from_secs(10)).await;
        make_tree(client, "/tree").await;
        let before = count(world, client, "/tree").await;
        for number in 0..12 {
            client.unlink(format!("/tree/{number}/moved")).await.unwrap();
            client.unlink(format!("/tree/{number}/below/symlink")).await.unwrap();
            client.rmdir(format!("/tree/{number}/below/it")).await.unwrap();
        }
        let after = compare(world, client, "/tree").await;
        assert_eq!(after.0, before.0 - 36);
        for server in client.read_dir("/.trash").await.unwrap().all().await.unwrap() {
            let server = format!("/.trash/{}", server.name);
            for hour in client.read_dir(&server).await.unwrap().all().await.unwrap() {
                let hour = format!("{server}/{}", hour.name);
                for thrown in client.read_dir(&hour).await.unwrap().all().await.unwrap() {
                    let at = format!("{hour}/{}", thrown.name);
                    let path = facts(client, &at).await.unwrap()["trash.path"].clone();
                    client.rename(at, path).await.unwrap();
                }
            }
        }
        assert_eq!(compare(world, client, "/tree").await, before);
    });
}

#[test]
fn a_wrong_sum_is_found_and_repaired() {
    in_world(plan(), async |world, maker| {
        let client = &maker.client;
        make_tree(client, "/tree").await;
        let right = count(world, client, "/tree").await;
        client.sync().await.unwrap();
        let host = &world.hosts()[2];
        host.kill();
        let mut records = Vec::new();
        host.engine()
            .scan(&[], &[u8::MAX; 16], &mut |key, value| {
                if key[2] == b'A' && value.len() > 1 {
                    records.push((key.to_vec(), value.to_vec()));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        let (key, _) = records.first().expect("it has charged something").clone();
        let mut batch = Batch::default();
        batch.delete(&key);
        host.engine().write(batch).unwrap();
        host.engine().sync().unwrap();
        host.start().unwrap();
        let found = findings(world, client, false).await;
        assert!(found.len() == 1 && found[0].contains("the quota of directory"), "{found:?}");
        let repaired = findings(world, client, true).await;
        assert!(repaired.len() == 1 && repaired[0].starts_with("repaired: "), "{repaired:?}");
        assert_eq!(compare(world, client, "/tree").await, right);
    });
}

#[test]
fn a_dump_has_quotas_whatever_servers_it_is_loaded_into() {
    for (locality, into) in
        [(Locality::Directory, 1), (Locality::Directory, 3), (Locality::Subtree, 1)]
    {
        in_world_of_many(Plan { locality, ..plan() }, async |world, maker| {
            let client = &maker.client;
            make_tree(client, "/tree").await;
            // Their numbers are of all servers.
            let counted = ["/tree", "/tree/1", "/tree/2/below", "/tree/3"];
            for path in counted {
                count(world, client, path).await;
            }
            client.mkdir("/gone", 0o755).await.unwrap();
            count(world, client, "/gone").await;
            client.rmdir("/gone").await.unwrap();
            let dump = client.dump_start().await.unwrap();
            let dumped = world.read_dump(client, dump, into).await.unwrap();
            maker.close().await.unwrap();
            world.hosts().iter().for_each(Host::kill);

            let hosts = world.serve(dumped).unwrap();
            let looks = world.connect("looks").await.unwrap();
            let client = &looks.client;
            assert_eq!(findings(world, client, false).await, [""; 0]);
            for path in counted {
                compare(world, client, path).await;
            }
            client.write("/tree/1/more", &[1; 6000]).await.unwrap();
            client.rename("/tree/1/more", "/tree/large/more").await.unwrap();
            client.unlink("/tree/large/link3").await.unwrap();
            client.rename("/tree/3", "/three").await.unwrap();
            client.mkdir("/gone", 0o755).await.unwrap();
            count(world, client, "/gone").await;
            set(client, "/tree/1", "none").await.unwrap();
            while facts(client, "/tree/1").await.unwrap().contains_key("quota.state") {
                world.wait(Duration::from_millis(100)).await;
            }
            for path in ["/tree", "/tree/2/below", "/three"] {
                compare(world, client, path).await;
            }
            assert_eq!(findings(world, client, false).await, [""; 0]);
            looks.close().await.unwrap();
            hosts.iter().for_each(Host::kill);
        });
    }
}
