//! The trash with several servers: everything that is removed goes there, can be put back, and goes
//! for good; and what that costs.
//!
//! Each test ends with a check of all servers.

use std::time::Duration;

use base::{FileKind, FsError, Locality, limits::XATTRS_EMBEDDED_BYTES_MAX, placement::shard_of};
use client::{Client, Error, OpenOptions};
use lab::{
    check,
    sim::{
        plan::Plan,
        play::test_in,
        world::{Machine, World},
    },
};
use wire::{NodeRef, RenameMode, XattrMode};

const SERVERS: u16 = 4;
const SHARDS: u16 = 16;
const HOUR: Duration = Duration::from_secs(3600);

/// Runs a test in a world in which nothing goes wrong, with all placements.
fn with_all(test: impl AsyncFn(&World, &Machine)) {
    for locality in [Locality::Directory, Locality::Subtree, Locality::Hybrid] {
        with_trash(locality, &test);
    }
}

fn with_trash(locality: Locality, test: impl AsyncFn(&World, &Machine)) {
    with_trash_in(plan_of(locality), test);
}

fn plan_of(locality: Locality) -> Plan {
    let long = Duration::from_secs(1000);
    Plan {
        shards: SHARDS,
        locality,
        access_cache: true,
        inline_bytes_max: 4096,
        lease: long,
        server_lease: Duration::from_secs(9),
        split_threshold: u64::MAX,
        ..Plan::draw(1, SERVERS)
    }
}

fn with_trash_in(plan: Plan, test: impl AsyncFn(&World, &Machine)) {
    test_in(plan, async |world| {
        let maker = world.connect("maker").await.unwrap();
        keep(world, &maker.client, "1").await;
        test(world, &maker).await;
        check::fsck(world, &maker.client).await.unwrap();
        maker.close().await.unwrap();
    });
}

/// Sets for how many days things are kept, and waits until all servers know.
async fn keep(world: &World, client: &Client, days: &str) {
    client.set_xattr("/", "pando.trash_days", days.as_bytes(), XattrMode::Set).await.unwrap();
    world.wait(Duration::from_secs(20)).await;
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    let entries = client.read_dir(path).await.unwrap().all().await.unwrap();
    let mut names: Vec<_> = entries.iter().map(|entry| entry.name.to_string()).collect();
    names.sort_unstable();
    names
}

/// Things in the trash: where each is, and where it was.
async fn trash(client: &Client) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for server in names(client, "/.trash").await {
        for hour in names(client, &format!("/.trash/{server}")).await {
            for name in names(client, &format!("/.trash/{server}/{hour}")).await {
                let at = format!("/.trash/{server}/{hour}/{name}");
                let lines = client.info(&at).await.unwrap();
                let path = lines.into_iter().find(|(line, _)| line == "trash.path").unwrap().1;
                found.push((path, at));
            }
        }
    }
    found.sort_unstable();
    found
}

async fn paths(client: &Client) -> Vec<String> {
    trash(client).await.into_iter().map(|(path, _)| path).collect()
}

/// Removes a directory and all that is in it, name by name.
async fn remove(client: &Client, top: impl AsRef<str>) {
    let mut dirs = vec![top.as_ref().to_owned()];
    let mut at = 0;
    while let Some(dir) = dirs.get(at).cloned() {
        at += 1;
        for entry in client.read_dir(&dir).await.unwrap().all().await.unwrap() {
            let path = format!("{dir}/{}", entry.name);
            match entry.is_dir() {
                true => dirs.push(path),
                false => client.unlink(path).await.unwrap(),
            }
        }
    }
    for dir in dirs.iter().rev() {
        client.rmdir(dir).await.unwrap();
    }
}

async fn put_back(client: &Client) {
    // Parents come before their contents.
    for (path, at) in trash(client).await {
        client.rename_with(&at, &path, RenameMode::NoReplace).await.unwrap();
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

/// Makes `/tree` with things of all kinds, over all servers; returns their paths.
async fn make_tree(client: &Client) -> Vec<String> {
    client.create_dir_all("/tree/large", 0o755).await.unwrap();
    for (name, value) in [("spread", "extendible"), ("large_dir", "5")] {
        let name = format!("pando.{name}");
        client.set_xattr("/tree/large", &name, value.as_bytes(), XattrMode::Set).await.unwrap();
    }
    let mut all = vec!["/tree".to_owned(), "/tree/large".to_owned()];
    for number in 0..12 {
        let file = format!("/tree/large/{number}");
        client.write(&file, &[7; 9000]).await.unwrap();
        let dir = format!("/tree/{number}");
        client.mkdir(&dir, 0o750).await.unwrap();
        client.chown(&dir, Some(number), Some(7)).await.unwrap();
        let value = vec![b'x'; XATTRS_EMBEDDED_BYTES_MAX + 1];
        client.set_xattr(&dir, "user.large", &value, XattrMode::Set).await.unwrap();
        client.write(format!("{dir}/small"), b"small").await.unwrap();
        client.symlink("small", format!("{dir}/symlink")).await.unwrap();
        // The file is mostly born elsewhere.
        client.write(format!("/tree/large/moves{number}"), b"moves").await.unwrap();
        client.rename(format!("/tree/large/moves{number}"), format!("{dir}/moved")).await.unwrap();
        // One of the two names is removed as the last one.
        client.link(format!("{dir}/small"), format!("/tree/large/link{number}")).await.unwrap();
        all.extend([file, dir.clone(), format!("/tree/large/link{number}")]);
        all.extend(["small", "symlink", "moved"].map(|name| format!("{dir}/{name}")));
    }
    all.sort_unstable();
    all
}

/// Attributes and contents of each path, as text.
async fn show(client: &Client, paths: &[String]) -> Vec<String> {
    let mut shown = Vec::new();
    for path in paths {
        let attr = client.lstat(path).await.unwrap();
        let contents = match attr.kind {
            FileKind::File => client.read(path).await.unwrap().len().to_string(),
            FileKind::Directory => client
                .get_xattr(path, "user.large")
                .await
                .map_or_else(|error| error.to_string(), |value| value.len().to_string()),
            _ => String::new(),
        };
        let (mode, uid, size) = (attr.mode, attr.uid, attr.size);
        shown.push(format!("{path} {:?} {mode:o} {uid} {size} {contents}", attr.kind));
    }
    shown
}

#[test]
fn a_tree_over_all_servers_goes_to_the_trash_name_by_name_and_comes_back() {
    with_all(async |world, maker| {
        let client = &maker.client;
        let all = make_tree(client).await;
        let before = show(client, &all).await;
        remove(client, "/tree").await;
        assert_eq!(names(client, "/").await, [""; 0], "the root does not list the trash");
        check::fsck(world, client).await.unwrap();
        // A file with two names goes to the trash with the last of them.
        let there = paths(client).await;
        let lost: Vec<_> = all.iter().filter(|path| !there.contains(path)).collect();
        assert_eq!(lost.len(), 12, "{lost:?}");
        put_back(client).await;
        assert_eq!(paths(client).await, [""; 0]);
        for number in 0..12 {
            let names = [format!("/tree/{number}/small"), format!("/tree/large/link{number}")];
            let [gone, there] = if lost.contains(&&names[0]) { [0, 1] } else { [1, 0] };
            client.link(&names[there], &names[gone]).await.unwrap();
        }
        assert_eq!(show(client, &all).await, before);
    });
}

#[test]
fn what_is_only_in_the_trash_gets_no_other_name_by_its_number() {
    with_all(async |world, maker| {
        let client = &maker.client;
        let other = world.connect("other").await.unwrap();
        for number in 0..12 {
            let dirs = [format!("/from{number}"), format!("/to{number}")];
            for dir in &dirs {
                client.mkdir(dir, 0o755).await.unwrap();
            }
            // One file is where it was born, one is not, and one had two names there.
            let [born, moved, linked] = [
                format!("{}/born", dirs[0]),
                format!("{}/moved", dirs[1]),
                format!("{}/linked", dirs[1]),
            ];
            client.write(&born, b"x").await.unwrap();
            client.write(format!("{}/moves", dirs[0]), b"x").await.unwrap();
            client.rename(format!("{}/moves", dirs[0]), &moved).await.unwrap();
            client.write(format!("{}/first", dirs[0]), b"x").await.unwrap();
            client.link(format!("{}/first", dirs[0]), &linked).await.unwrap();
            client.unlink(format!("{}/first", dirs[0])).await.unwrap();
            for path in [&born, &moved, &linked] {
                let file = client.open_with(path, OpenOptions::writing()).await.unwrap();
                other.client.unlink(path).await.unwrap();
                let new = format!("{}/new", dirs[1]);
                let gone = file.link(&new).await;
                assert!(matches!(gone, Err(Error::Fs(FsError::NotFound))), "{path}: {gone:?}");
                file.write_at(0, b"written").await.unwrap();
                file.flush().await.unwrap();
                put_back(&other.client).await;
                file.link(&new).await.unwrap();
                assert_eq!(client.read(&new).await.unwrap()[..], b"written"[..]);
                assert_eq!(client.stat(path).await.unwrap().nlink, 2);
                client.unlink(&new).await.unwrap();
                file.close().await.unwrap();
            }
        }
        other.close().await.unwrap();
    });
}

#[test]
fn what_a_rename_replaces_on_another_server_is_in_the_trash() {
    with_all(async |_, maker| {
        let client = &maker.client;
        for number in 0..8 {
            for dir in ["/from", "/to"] {
                client.create_dir_all(format!("{dir}{number}/dir"), 0o755).await.unwrap();
                client.write(format!("{dir}{number}/file"), dir.as_bytes()).await.unwrap();
            }
            for name in ["file", "dir"] {
                let (from, to) = (format!("/from{number}/{name}"), format!("/to{number}/{name}"));
                client.rename(from, to).await.unwrap();
            }
        }
        let mut expected: Vec<_> =
            (0..8).flat_map(|n| ["dir", "file"].map(|name| format!("/to{n}/{name}"))).collect();
        expected.sort_unstable();
        assert_eq!(paths(client).await, expected);
        for (path, at) in trash(client).await {
            if path.ends_with("file") {
                assert_eq!(client.read(at).await.unwrap()[..], b"/to"[..]);
            }
            client.stat(path).await.unwrap();
        }
    });
}

#[test]
fn a_removal_needs_no_server_more_than_without_a_trash() {
    with_trash(Locality::Directory, async |world, maker| {
        let client = &maker.client;
        client.create_dir_all("/a/b/c/d/e", 0o755).await.unwrap();
        let path = "/a/b/c/d/e";
        let owner = usize::from(server_of(client, path).await);
        for number in 0..20 {
            client.write(format!("{path}/{number}"), b"x").await.unwrap();
            client.mkdir(format!("{path}/dir{number}"), 0o755).await.unwrap();
        }
        // The first removal of a server makes its directories, and the first below a directory asks
        // for its path.
        client.unlink(format!("{path}/0")).await.unwrap();
        client.unlink(format!("{path}/1")).await.unwrap();
        world.wait(Duration::from_secs(1)).await;
        let cost = async |what: &dyn Fn() -> String, is_dir: bool| {
            let before = (client.requests_by_server(), executed(world));
            match is_dir {
                true => client.rmdir(what()).await.unwrap(),
                false => client.unlink(what()).await.unwrap(),
            }
            world.wait(Duration::from_millis(100)).await;
            let more = |after: Vec<u64>, before: Vec<u64>| -> Vec<u64> {
                after.iter().zip(before).map(|(after, before)| after - before).collect()
            };
            let touched = more(executed(world), before.1);
            (more(client.requests_by_server(), before.0).iter().sum::<u64>(), touched)
        };
        let mut strangers = 0;
        for number in 2..20 {
            let (requests, touched) = cost(&|| format!("{path}/{number}"), false).await;
            let only: Vec<u64> = (0..4).map(|server| u64::from(server == owner)).collect();
            assert_eq!(requests, 1);
            strangers += touched.iter().zip(&only).filter(|(is, only)| is > only).count();
        }
        // Heartbeats of three servers come in between: each of them once, as this takes less than a
        // lease.
        assert!(strangers <= 3, "others executed {strangers} requests");
        let with: Vec<_> = {
            let mut all = Vec::new();
            for number in 0..10 {
                let dir = format!("{path}/dir{number}");
                let there = usize::from(server_of(client, &dir).await);
                let (requests, touched) = cost(&|| dir.clone(), true).await;
                all.push((requests, touched.iter().filter(|count| **count > 0).count(), there));
            }
            all
        };
        for (requests, touched, there) in with {
            let needed = if there == owner { 1 } else { 2 };
            assert_eq!(requests, 1);
            assert!(touched <= needed + 1, "{touched} servers, and {needed} have it");
        }
    });
}

#[test]
fn who_has_a_removed_directory_cached_makes_nothing_in_the_trash() {
    with_all(async |world, maker| {
        let other = world.connect("other").await.unwrap();
        for number in 0..8 {
            let dir = format!("/d{number}");
            maker.client.mkdir(&dir, 0o755).await.unwrap();
            other.client.write(format!("{dir}/f"), b"x").await.unwrap();
            maker.client.unlink(format!("{dir}/f")).await.unwrap();
            maker.client.rmdir(&dir).await.unwrap();
            let made = other.client.write(format!("{dir}/g"), b"x").await;
            assert!(matches!(made, Err(Error::Fs(FsError::NotFound))), "{made:?}");
            // A new directory comes back.
            put_back(&maker.client).await;
            other.client.write(format!("{dir}/g"), b"x").await.unwrap();
            assert_eq!(names(&maker.client, &dir).await, ["f", "g"]);
        }
        other.close().await.unwrap();
    });
}

#[test]
fn directories_of_one_name_are_kept_however_many_they_are() {
    with_all(async |_, maker| {
        let client = &maker.client;
        for _ in 0..40 {
            client.mkdir("/d", 0o755).await.unwrap();
            client.write("/d/f", b"x").await.unwrap();
            client.unlink("/d/f").await.unwrap();
            client.rmdir("/d").await.unwrap();
        }
        let there = paths(client).await;
        assert_eq!(there.iter().filter(|path| *path == "/d").count(), 40);
        assert_eq!(there.iter().filter(|path| *path == "/d/f").count(), 40);
    });
}

#[test]
fn it_is_emptied_by_each_server_when_its_days_are_over() {
    with_all(async |world, maker| {
        let client = &maker.client;
        make_tree(client).await;
        for number in 0..100 {
            client.write(format!("/tree/0/many{number}"), b"x").await.unwrap();
        }
        remove(client, "/tree").await;
        world.wait(2 * HOUR).await;
        assert!(paths(client).await.len() > 100);
        // Root has put something there by hand: it stays.
        let (_, at) = trash(client).await.into_iter().find(|(path, _)| path == "/tree").unwrap();
        client.mkdir(format!("{at}/by hand"), 0o755).await.unwrap();
        keep(world, client, "0").await;
        world.wait(HOUR / 10).await;
        assert_eq!(paths(client).await, ["/tree"]);
        remove(client, &at).await;
        world.wait(HOUR / 10).await;
        for server in names(client, "/.trash").await {
            assert_eq!(names(client, &format!("/.trash/{server}")).await, [""; 0]);
            let stays = client.rmdir(format!("/.trash/{server}")).await;
            assert!(matches!(stays, Err(Error::Fs(FsError::Busy))), "{stays:?}");
            let stays = client.rename(format!("/.trash/{server}"), "/x").await;
            assert!(matches!(stays, Err(Error::Fs(FsError::Busy))), "{stays:?}");
        }
        let blocks: u64 = world.hosts().iter().map(|host| host.counter("blocks_deleted")).sum();
        assert!(blocks >= 12, "{blocks}");
    });
}

#[test]
fn what_a_server_that_was_drained_has_in_it_goes_when_its_days_are_over() {
    let plan = Plan { moves: true, ..plan_of(Locality::Directory) };
    with_trash_in(plan, async |world, maker| {
        let client = &maker.client;
        make_tree(client).await;
        remove(client, "/tree").await;
        let before = names(client, "/.trash").await;
        let of_first = trash(client).await;
        let moved = client.move_shards(&[1]).await.unwrap();
        assert!(!moved.moves.is_empty());
        world.wait(HOUR).await;
        assert_eq!((names(client, "/.trash").await, trash(client).await), (before, of_first));
        keep(world, client, "0").await;
        world.wait(HOUR / 10).await;
        assert_eq!(paths(client).await, [""; 0]);
        for server in names(client, "/.trash").await {
            assert_eq!(names(client, &format!("/.trash/{server}")).await, [""; 0]);
        }
    });
}

#[test]
fn what_was_in_it_while_a_server_was_alone_goes_when_its_days_are_over() {
    let plan =
        Plan { moves: true, begins_with: Some(1), servers: 2, ..plan_of(Locality::Directory) };
    with_trash_in(plan, async |world, maker| {
        let client = &maker.client;
        client.mkdir("/tree", 0o755).await.unwrap();
        let large = vec![7; XATTRS_EMBEDDED_BYTES_MAX];
        let mut held = Vec::new();
        for number in 0..40 {
            let path = format!("/tree/{number}");
            client.write(&path, path.as_bytes()).await.unwrap();
            if number < 9 {
                client.set_xattr(&path, "user.large", &large, XattrMode::Set).await.unwrap();
                held.push((client.open_with(&path, OpenOptions::both()).await.unwrap(), path));
            }
        }
        remove(client, "/tree").await;
        let hours = names(client, "/.trash").await;
        assert_eq!(hours.len(), 1);
        let hour = format!("/.trash/{}", hours[0]);
        assert!(names(client, &hour).await.len() > 40);
        world.grow(1).await.unwrap();
        for (file, path) in &held {
            assert_eq!(file.read_all().await.unwrap(), path.as_bytes());
        }
        // The coordinator begins anew when the other has served.
        world.wait(HOUR / 60).await;
        check::fsck(world, client).await.unwrap();
        let mover = world.connect("mover").await.unwrap();
        assert!(!mover.client.move_shards(&[]).await.unwrap().moves.is_empty());
        for (file, path) in held {
            assert_eq!(file.read_all().await.unwrap(), path.as_bytes());
            file.write_at(0, b"#").await.unwrap();
            file.close().await.unwrap();
        }
        for name in names(&mover.client, &hour).await {
            let at = format!("{hour}/{name}");
            let lines = mover.client.info(&at).await.unwrap();
            let path = lines.into_iter().find(|(line, _)| line == "trash.path").unwrap().1;
            let Some(number) = path.strip_prefix("/tree/") else { continue };
            let (read, number) = (mover.client.read(&at).await.unwrap(), number.parse::<u32>());
            let text = if number.clone().unwrap() < 9 { path.replacen('/', "#", 1) } else { path };
            assert_eq!(read, text.as_bytes());
            if number.unwrap() < 9 {
                assert_eq!(mover.client.get_xattr(&at, "user.large").await.unwrap(), large);
            }
        }
        mover.close().await.unwrap();
        world.wait(2 * HOUR).await;
        client.write("/later", b"x").await.unwrap();
        client.unlink("/later").await.unwrap();
        world.wait(2 * HOUR).await;
        assert!(names(client, "/.trash").await.contains(&hours[0]));
        keep(world, client, "0").await;
        world.wait(HOUR / 10).await;
        for server in names(client, "/.trash").await {
            assert_ne!(server, hours[0]);
            assert_eq!(names(client, &format!("/.trash/{server}")).await, [""; 0]);
        }
    });
}

#[test]
fn what_is_removed_within_the_trash_is_gone() {
    with_all(async |_, maker| {
        let client = &maker.client;
        make_tree(client).await;
        remove(client, "/tree").await;
        for server in names(client, "/.trash").await {
            for hour in names(client, &format!("/.trash/{server}")).await {
                remove(client, format!("/.trash/{server}/{hour}")).await;
            }
        }
        assert_eq!(paths(client).await, [""; 0]);
        // There is a trash again.
        client.write("/f", b"x").await.unwrap();
        client.unlink("/f").await.unwrap();
        assert_eq!(paths(client).await, ["/f"]);
    });
}

#[test]
fn a_file_that_moved_is_put_back_where_its_directory_is_now() {
    with_all(async |_, maker| {
        let client = &maker.client;
        for number in 0..6 {
            client.create_dir_all(format!("/a{number}/b"), 0o755).await.unwrap();
            client.create_dir_all("/c", 0o755).await.unwrap();
            client.write(format!("/a{number}/b/f"), b"x").await.unwrap();
            client.unlink(format!("/a{number}/b/f")).await.unwrap();
            client.rename(format!("/a{number}"), format!("/c/a{number}")).await.unwrap();
            client.write(format!("/c/a{number}/b/g"), b"x").await.unwrap();
            client.unlink(format!("/c/a{number}/b/g")).await.unwrap();
            client.rmdir(format!("/c/a{number}/b")).await.unwrap();
        }
        let mut expected: Vec<_> = (0..6)
            // `b` is gone, so stored paths count: that of `f` before the move, that of `g` after.
            .flat_map(|n| [format!("/a{n}/b/f"), format!("/c/a{n}/b"), format!("/c/a{n}/b/g")])
            .collect();
        expected.sort_unstable();
        assert_eq!(paths(client).await, expected);
    });
}

#[test]
fn a_user_throws_away_and_does_not_look_into_the_trash() {
    with_all(async |world, maker| {
        maker.client.mkdir("/shared", 0o777).await.unwrap();
        maker.client.chmod("/shared", 0o777).await.unwrap();
        let user = world.connect_bound("user", 7).await.unwrap();
        user.client.mkdir("/shared/d", 0o755).await.unwrap();
        user.client.write("/shared/d/f", b"x").await.unwrap();
        user.client.unlink("/shared/d/f").await.unwrap();
        user.client.rmdir("/shared/d").await.unwrap();
        let denied = user.client.read_dir("/.trash").await.map(drop);
        assert!(matches!(denied, Err(Error::Fs(FsError::Denied))), "{denied:?}");
        assert_eq!(paths(&maker.client).await, ["/shared/d", "/shared/d/f"]);
        put_back(&maker.client).await;
        assert_eq!(user.client.stat("/shared/d").await.unwrap().uid, 7);
        assert_eq!(user.client.read("/shared/d/f").await.unwrap()[..], b"x"[..]);
        user.close().await.unwrap();
    });
}

#[test]
fn a_server_removes_what_it_has_while_others_are_away() {
    with_trash(Locality::Directory, async |world, maker| {
        let client = &maker.client;
        // The root is the coordinator's.
        for name in ["/before", "/f", "/g"] {
            client.write(name, b"x").await.unwrap();
        }
        client.unlink("/before").await.unwrap();
        client.sync().await.unwrap();
        for host in &world.hosts()[1..] {
            host.kill();
        }
        client.unlink("/f").await.unwrap();
        world.wait(HOUR).await;
        // Another hour begins.
        client.unlink("/g").await.unwrap();
        for host in &world.hosts()[1..] {
            host.start().unwrap();
        }
        assert_eq!(paths(client).await, ["/before", "/f", "/g"]);
    });
}
