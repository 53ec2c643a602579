//! Quotas of several servers: usage below a directory is counted exactly, whichever server it is
//! on.
//!
//! Each test ends with a check of all servers, which compares charges with what exists.

mod limits;

use std::{ops::ControlFlow, time::Duration};

use base::{Account, FsError, Ino, Locality, placement::shard_of};
use client::{Client, Error};
use lab::{
    check::{
        self,
        quota::{facts, used, walk},
    },
    sim::{
        plan::{Plan, Quotas},
        play::test_in,
        server::Host,
        world::{Machine, World},
    },
};
use store::{Batch, Engine as _};
use wire::{NodeRef, RenameMode, XattrMode};

const SERVERS: u16 = 4;
const SHARDS: u16 = 16;
const BYTES: &str = "pando.quota.bytes";

/// Runs a test in worlds without faults, with each placement.
fn with_all(test: impl AsyncFn(&World, &Machine)) {
    for locality in [Locality::Directory, Locality::Subtree, Locality::Hybrid] {
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

/// Runs a test as [`in_world`] does, without the final check: the servers may be replaced
/// meanwhile.
fn in_world_of_many(plan: Plan, test: impl AsyncFn(&World, Machine)) {
    test_in(plan, async |world| {
        let maker = world.connect("maker").await.unwrap();
        test(world, maker).await;
    });
}

async fn findings(world: &World, client: &Client, repair: bool) -> Vec<String> {
    let check = match repair {
        true => client.repair_start_everywhere(false, false).await.unwrap(),
        false => client.fsck_start_everywhere(false).await.unwrap(),
    };
    check::follow(world, client, check).await.unwrap().findings
}

async fn set(client: &Client, path: &str, max: &str) -> client::Result<()> {
    client.set_xattr(path, BYTES, max.as_bytes(), XattrMode::Set).await
}

/// Lets a directory be counted. Returns its usage, which must be what a walk finds.
async fn count(world: &World, client: &Client, path: &str) -> (u64, u64) {
    set(client, path, "unlimited").await.unwrap();
    compare(world, client, path).await
}

/// Returns the usage below a directory, which must be what a walk finds.
async fn compare(world: &World, client: &Client, path: &str) -> (u64, u64) {
    let there = walk(client, path).await.unwrap();
    for _ in 0..100 {
        if used(world, client, path).await.unwrap() == there {
            return there;
        }
        // Files that were open are closed, and removed, a moment later.
        world.wait(Duration::from_millis(200)).await;
    }
    let used = used(world, client, path).await.unwrap();
    panic!("below {path} {used:?} entries and bytes are counted, and there are {there:?}");
}

/// Makes a tree over all servers.
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
    with_all(async |world, maker| {
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
        // Counting once more gives the right usage.
        count(world, client, "/tree").await;
        assert!(!facts(client, "/other").await.unwrap().contains_key("quota.state"));
    });
}

#[test]
fn below_two_directories_is_not_counted_at_once() {
    with_all(async |world, maker| {
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
    with_all(async |world, maker| {
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
    with_all(async |world, maker| {
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
        // A file with a name elsewhere counts where it was made.
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
    with_all(async |world, maker| counts_meanwhile(world, maker, async |_| {}).await);
}

/// Moves directories, and one name of files with two, from partition to partition of a directory,
/// until it is told to stop.
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
    with_all(async |world, maker| {
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
        // The servers remove no orphan until all sessions have claimed their open files, or have
        // ended.
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
        assert!(world.counts().handoffs_done > 0, "it has not split");
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
                let number = key.get(3..11).map(|ino| u64::from_be_bytes(ino.try_into().unwrap()));
                let is_root = number
                    .is_some_and(|ino| matches!(Account::of(Ino(ino)), Account::Directory(_)));
                if key[2] == b'A' && is_root && value.len() > 1 {
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
            // The counts of these directories are sums over all servers.
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
