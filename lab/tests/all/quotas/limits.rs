//! Limits: usage never exceeds them, whichever servers it is on, and no request is refused while
//! there is room.

use std::{collections::BTreeMap, time::Duration};

use base::{Cred, DirId, EntryName, FileKind, FsError};
use client::{Client, FileSystem, New};
use lab::{
    check::quota::{self, until_full},
    sim::{network::Place, plan::Plan, world::World},
};
use wire::{DirRef, NodeRef, RenameMode};

use super::{SERVERS, compare, count, in_world, is, plan, server_of, with_all};

/// Sets a limit. The limit is enforced when this returns.
async fn limit(world: &World, client: &Client, path: &str, what: &str, max: u64) {
    quota::limit(world, client, path, what, max).await.unwrap();
}

/// Makes directories until there is no room. Returns how many were made.
async fn fill(client: &Client, dir: &str, names: &str, max: u64) -> u64 {
    let path = |number| format!("{dir}/{names}{number}");
    until_full(max, async |number| client.mkdir(path(number), 0o755).await.map(drop)).await.unwrap()
}

/// Makes empty files until there is no room. Unlike with [`fill`], each change concerns one server
/// only.
async fn fill_with_files(client: &Client, dir: &str, names: &str) -> u64 {
    let path = |number| format!("{dir}/{names}{number}");
    until_full(u64::MAX, async |number| client.write(path(number), b"").await).await.unwrap()
}

#[test]
fn several_servers_pass_no_limit_and_refuse_nobody_while_there_is_room() {
    with_all(async |world, maker| {
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
        // The same amount of room again, on any servers.
        let mut removed = 0;
        for dir in [1, 5] {
            for number in 0..9 {
                let path = format!("/d/{dir}/a{number}");
                removed += u64::from(client.rmdir(path).await.is_ok());
            }
        }
        assert!(removed > 0);
        assert_eq!(fill_all("b").await, removed);
        // The limit is raised, and then set below the usage.
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
    with_all(async |world, maker| {
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
        let mut of = BTreeMap::new();
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
        // The coordinator reaches the restarted server again, which has given back its grant.
        world.wait(Duration::from_secs(5)).await;
        let then = fill_with_files(client, &of[here], "b").await;
        assert_eq!(there_were + then, 99);
        client.unlink(format!("{}/a0", of[here])).await.unwrap();
        client.mkdir(format!("{}/more", of[&away]), 0o755).await.unwrap();
        // A restarted coordinator grants no more than there is.
        world.hosts()[0].crash(false);
        world.hosts()[0].start().unwrap();
        assert_eq!(fill_with_files(client, &of[here], "c").await, 0);
        client.rmdir(format!("{}/more", of[&away])).await.unwrap();
        assert_eq!(fill_with_files(client, &of[here], "d").await, 1);
    });
}

/// Makes a directory by handle, as a mount does.
async fn make_dir(client: &Client, dir: &DirRef, name: &str) -> DirRef {
    let name = EntryName::new(name.as_bytes()).unwrap();
    let made = FileSystem::mkdir(client, &Cred::ROOT, dir, &name, 0o755).await.unwrap();
    made.dir.unwrap()
}

#[test]
fn a_limit_holds_though_a_server_goes_on_without_the_coordinator() {
    let alone = Duration::from_secs(20);
    in_world(Plan { alone, ..plan() }, async |world, maker| {
        let client = &maker.client;
        let (dir, cut_off) = (format!("/{}", world.name_on(client, DirId::ROOT, 1).0), 2);
        client.mkdir(&dir, 0o755).await.unwrap();
        let NodeRef::Dir(top) = client.resolve(&dir).await.unwrap() else { panic!("it is one") };
        for (from, to) in [(0, cut_off), (cut_off, 0)] {
            let (from, to) = (Place::Server(from), Place::Server(to));
            world.network().wall(from, to, Duration::from_secs(100));
        }
        limit(world, client, &dir, "entries", 5).await;
        let dir = make_dir(client, &top, &world.name_on(client, top.id, cut_off).0).await;
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let made = until_full(9, async |number| {
            let (cred, name) = (Cred::ROOT, number.to_string());
            let name = EntryName::new(name.as_bytes()).unwrap();
            let made = FileSystem::create(client, &cred, &dir, &name, new, true, false);
            made.await.map(drop)
        });
        assert_eq!(made.await.unwrap(), 3);
    });
}

#[test]
fn limits_nest_and_a_quota_does_not_move_below_one() {
    with_all(async |world, maker| {
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
        // Moving a directory out makes room.
        client.rename("/a/b", "/b").await.unwrap();
        assert_eq!(fill(client, "/b", "more", 20).await, 0);
        assert_eq!(fill(client, "/a", "more", 20).await, 10);
        compare(world, client, "/a").await;
        compare(world, client, "/b").await;
        is(client.rename("/b", "/a/b").await, FsError::CrossDevice);
    });
}

/// A directory that is nearly full, and a file beside it.
async fn nearly_full(world: &World, client: &Client) {
    client.mkdir("/d", 0o755).await.unwrap();
    client.write("/d/y", &[1; 9000]).await.unwrap();
    client.write("/d/z", &[1; 8000]).await.unwrap();
    client.write("/x", &[1; 10_000]).await.unwrap();
    limit(world, client, "/d", "bytes", 20_000).await;
    assert_eq!(compare(world, client, "/d").await, (3, 17_000));
    // A closed file is no longer charged for more than it has a moment later.
    world.wait(Duration::from_secs(5)).await;
}

#[test]
fn what_takes_the_place_of_something_needs_room_for_the_difference() {
    with_all(async |world, maker| {
        let client = &maker.client;
        nearly_full(world, client).await;
        client.rename("/x", "/d/y").await.unwrap();
        assert_eq!(compare(world, client, "/d").await, (3, 18_000));
        client.write("/x", &[1; 10_001]).await.unwrap();
        client.rename_with("/d/z", "/x", RenameMode::Exchange).await.unwrap_err();
        client.write("/x", &[1; 10_000]).await.unwrap();
        client.rename_with("/d/z", "/x", RenameMode::Exchange).await.unwrap();
        assert_eq!(compare(world, client, "/d").await, (3, 20_000));
        // Usage shrinks, though it still exceeds the limit.
        limit(world, client, "/d", "bytes", 12_000).await;
        client.write("/x", &[1; 9000]).await.unwrap();
        client.rename("/x", "/d/y").await.unwrap();
        assert_eq!(compare(world, client, "/d").await, (3, 19_000));
    });
}

#[test]
fn what_charges_twice_needs_room_for_both() {
    for (max, there_is_room) in [(3, true), (2, false)] {
        with_all(async |world, maker| {
            let client = &maker.client;
            client.mkdir("/d", 0o755).await.unwrap();
            limit(world, client, "/d", "entries", max).await;
            for name in ["a", "b"] {
                client.write(format!("/{name}"), b"x").await.unwrap();
                client.link(format!("/{name}"), format!("/d/{name}")).await.unwrap();
                client.unlink(format!("/{name}")).await.unwrap();
            }
            world.wait(Duration::from_secs(5)).await;
            // The files were made elsewhere. The exchange charges both here from now on.
            let exchanged = client.rename_with("/d/a", "/d/b", RenameMode::Exchange).await;
            assert_eq!(exchanged.is_ok(), there_is_room, "{exchanged:?}");
        });
    }
}

#[test]
fn a_quota_that_leaves_another_takes_no_more_with_it_than_it_uses() {
    // With the other placement all of it is on one server.
    in_world(plan(), async |world, maker| {
        let client = &maker.client;
        let mut below = BTreeMap::new();
        let mut beside = BTreeMap::new();
        for dir in 0..20 {
            for (of, dir) in
                [(&mut below, format!("/a/b/{dir}")), (&mut beside, format!("/a/p{dir}"))]
            {
                client.create_dir_all(&dir, 0o755).await.unwrap();
                of.insert(server_of(client, &dir).await, dir);
            }
        }
        let one = *below.keys().find(|server| beside.contains_key(server)).unwrap();
        let (_, other) = below.iter().find(|(server, _)| **server != one).unwrap();
        limit(world, client, "/a", "entries", 142).await;
        count(world, client, "/a/b").await;
        // One server charges, another one releases.
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
