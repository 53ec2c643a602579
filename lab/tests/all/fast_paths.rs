//! Whole paths that one server looks up with what it keeps of other servers' directories: what it
//! keeps is never more than they grant.

use std::time::Duration;

use anyhow::ensure;
use base::{Cred, FsError, Locality, placement::shard_of};
use client::{Client, Error};
use lab::sim::{
    plan::Plan,
    play::{in_world, test_in},
    world::{Machine, World},
};
use meta::Bug;
use tokio::time::timeout;
use wire::{NodeRef, Token, XattrMode};

const SERVERS: u16 = 4;
const DEPTH: usize = 16;
const USER: u32 = 100;

fn path(depth: usize) -> String {
    (0..depth).map(|at| format!("/d{at}")).collect()
}

/// Runs a test on `/d0/d1/...` with a file at its end, in which every server knows the way there.
fn on_a_cluster(test: impl AsyncFnOnce(&World, &Client)) {
    on_a_cluster_with(true, test);
}

fn on_a_cluster_with(fast_paths: bool, test: impl AsyncFnOnce(&World, &Client)) {
    test_in(plan(fast_paths), async |world| {
        let machine = make_path(world).await;
        test(world, &machine.client).await;
    });
}

fn plan(fast_paths: bool) -> Plan {
    Plan {
        split_threshold: u64::MAX,
        locality: Locality::Directory,
        // Clients send no requests just to keep their sessions.
        lease: Duration::from_secs(1000),
        access_cache: true,
        fast_paths,
        ..Plan::draw(3, SERVERS)
    }
}

/// Makes the path, and has every server know it.
async fn make_path(world: &World) -> Machine {
    let machine = world.connect("makes").await.unwrap();
    machine.client.create_dir_all(path(DEPTH), 0o755).await.unwrap();
    machine.client.write(file(), b"x").await.unwrap();
    assert!(looks(world).await.is_ok());
    machine
}

fn file() -> String {
    format!("{}/file", path(DEPTH))
}

/// A user's client that has seen nothing.
async fn cold(world: &World) -> Machine {
    world.connect_bound("cold", USER).await.unwrap()
}

/// Whether such a client finds the file.
async fn looks(world: &World) -> client::Result<()> {
    looks_at(world, &file()).await
}

async fn looks_at(world: &World, path: &str) -> client::Result<()> {
    let machine = cold(world).await;
    let found = machine.client.stat(path).await;
    machine.close().await.unwrap();
    found.map(drop)
}

fn is(found: &client::Result<()>, error: FsError) -> bool {
    matches!(found, Err(Error::Fs(found)) if *found == error)
}

#[test]
fn a_session_that_must_prove_its_walk_finds_any_path_with_one_request() {
    on_a_cluster(async |world, _| {
        // Look-ups that servers have run. One that has to wait for something runs again.
        let asked = || world.hosts().iter().map(|host| host.counter("lookup")).sum::<u64>();
        // The first time a server may read what it lacks, and look again.
        for (depth, again) in [2, 8, DEPTH].into_iter().flat_map(|at| [(at, false), (at, true)]) {
            let machine = cold(world).await;
            let before = asked();
            machine.client.stat(path(depth) + "/nothing").await.unwrap_err();
            assert!(!again || asked() - before <= 2, "{depth}");
            let stats = machine.client.stats();
            assert_eq!((stats.fast_paths, stats.slow_paths), (1, 0), "{depth}");
            machine.close().await.unwrap();
        }
        let of = |path: String| Token {
            path,
            uid: Some(USER),
            gids: vec![USER],
            ..Token::administrator()
        };
        for depth in [1, 5, DEPTH - 2] {
            let below: String = (depth..DEPTH).map(|at| format!("/d{at}")).collect();
            for again in [false, true] {
                let machine = world.connect_with("below", &of(path(depth))).await.unwrap();
                let before = asked();
                machine.client.stat(format!("{below}/file")).await.unwrap();
                assert!(!again || asked() - before <= 2, "{depth}");
                let stats = machine.client.stats();
                assert_eq!((stats.fast_paths, stats.slow_paths), (1, 0), "{depth}");
                machine.close().await.unwrap();
            }
        }
    });
}

#[test]
fn a_chmod_that_was_answered_is_in_force_for_every_path_through_the_directory() {
    on_a_cluster(async |world, root| {
        for depth in (1..=DEPTH).rev() {
            root.chmod(path(depth), 0o700).await.unwrap();
            assert!(is(&looks(world).await, FsError::Denied), "{depth}");
            root.chmod(path(depth), 0o755).await.unwrap();
            assert!(looks(world).await.is_ok(), "{depth}");
            root.chown(path(depth), Some(USER), None).await.unwrap();
            root.chmod(path(depth), 0o700).await.unwrap();
            assert!(looks(world).await.is_ok(), "{depth}");
            root.chown(path(depth), Some(USER + 1), None).await.unwrap();
            assert!(is(&looks(world).await, FsError::Denied), "{depth}");
            root.chmod(path(depth), 0o711).await.unwrap();
            assert!(looks(world).await.is_ok(), "{depth}");
        }
    });
}

/// Has a client that is limited to a directory close those below, one after the other.
fn closed_by_a_limited_client(bug: Option<Bug>) -> anyhow::Result<()> {
    in_world(plan(true), bug, Duration::from_secs(10_000), async |world| {
        let machine = make_path(&world).await;
        let limited = world.connect_limited("limited", &path(2)).await?;
        for depth in (3..=DEPTH).rev() {
            let below: String = (2..depth).map(|at| format!("/d{at}")).collect();
            limited.client.chmod(&below, 0o700).await?;
            let found = looks(&world).await;
            ensure!(is(&found, FsError::Denied), "{below}: {found:?}");
            limited.client.chmod(&below, 0o755).await?;
            ensure!(looks(&world).await.is_ok(), "{below}");
        }
        limited.close().await?;
        machine.close().await
    })
}

#[test]
fn a_chmod_by_a_client_that_is_limited_to_a_directory_is_in_force_as_well() {
    closed_by_a_limited_client(None).unwrap();
    closed_by_a_limited_client(Some(Bug::OwnMoveLearnt)).unwrap_err();
}

/// An ACL that grants these rights to the user, and to all others.
fn acl(user: u16, others: u16) -> Vec<u8> {
    let entries = [(1, 7, u32::MAX), (2, user, USER), (4, 0, u32::MAX), (16, 7, u32::MAX)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries.into_iter().chain([(32u16, others, u32::MAX)]) {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn an_acl_that_was_set_is_in_force_for_every_path_through_the_directory() {
    on_a_cluster(async |world, root| {
        let set = async |user: u16, others: u16| {
            let acl = acl(user, others);
            let name = "system.posix_acl_access";
            root.set_xattr(path(7), name, &acl, XattrMode::Set).await.unwrap();
        };
        set(0, 5).await;
        assert!(is(&looks(world).await, FsError::Denied));
        set(1, 0).await;
        assert!(looks(world).await.is_ok());
        root.remove_xattr(path(7), "system.posix_acl_access").await.unwrap();
        assert!(is(&looks(world).await, FsError::Denied));
    });
}

#[test]
fn what_one_user_has_found_lets_in_no_other_whom_an_acl_keeps_out() {
    for fast_paths in [true, false] {
        on_a_cluster_with(fast_paths, async |world, root| {
            for depth in [1, 7, DEPTH - 1] {
                let name = "system.posix_acl_access";
                root.set_xattr(path(depth), name, &acl(0, 5), XattrMode::Set).await.unwrap();
                let machine = world.connect("both").await.unwrap();
                let of = |uid| Cred { uid, gid: uid, groups: Vec::new() };
                let (one, other) = (of(USER + 1), of(USER));
                machine.client.as_user(one).stat(file()).await.unwrap();
                let found = machine.client.as_user(other).stat(file()).await.map(drop);
                assert!(is(&found, FsError::Denied), "{depth}, {fast_paths}: {found:?}");
                machine.close().await.unwrap();
                root.remove_xattr(path(depth), name).await.unwrap();
                root.chmod(path(depth), 0o755).await.unwrap();
            }
        });
    }
}

#[test]
fn a_path_below_a_server_that_is_away_is_refused_by_those_that_are_not() {
    on_a_cluster(async |world, root| {
        root.mkdir("/closed", 0o700).await.unwrap();
        for number in 0..16 {
            root.mkdir(format!("/closed/{number}"), 0o755).await.unwrap();
            root.mkdir(format!("/closed/{number}/x"), 0o755).await.unwrap();
        }
        let machine = cold(world).await;
        let NodeRef::Dir(closed) = root.resolve("/closed").await.unwrap() else {
            panic!("it is a directory")
        };
        let here = shard_of(closed.home, 0, world.plan().shards).0 % SERVERS;
        let away = (1..SERVERS).find(|server| *server != here).unwrap();
        world.hosts()[usize::from(away)].kill();
        for number in 0..16 {
            let found = machine.client.stat(format!("/closed/{number}/x/y"));
            let found = timeout(Duration::from_secs(5), found).await.expect("it is answered");
            let found = found.map(drop);
            assert!(is(&found, FsError::Denied), "{number}: {found:?}");
        }
        world.hosts()[usize::from(away)].start().unwrap();
        machine.close().await.unwrap();
    });
}

#[test]
fn a_path_through_a_directory_that_was_moved_leads_to_what_is_there_now() {
    on_a_cluster(async |world, root| {
        let (old, new) = (path(5), "/moved");
        root.rename(&old, new).await.unwrap();
        assert!(is(&looks(world).await, FsError::NotFound));
        let below: String = (5..DEPTH).map(|at| format!("/d{at}")).collect();
        assert!(looks_at(world, &format!("{new}{below}/file")).await.is_ok());
        // Another directory where it was, with a directory of the same name in it.
        root.create_dir_all(path(DEPTH), 0o755).await.unwrap();
        assert!(is(&looks(world).await, FsError::NotFound));
        root.write(file(), b"y").await.unwrap();
        let machine = cold(world).await;
        assert_eq!(machine.client.read(file()).await.unwrap(), b"y"[..]);
        machine.close().await.unwrap();
    });
}

#[test]
fn a_directory_that_is_made_again_grants_what_the_new_one_grants() {
    on_a_cluster(async |world, root| {
        for mode in [0o700, 0o755, 0o700] {
            root.unlink(file()).await.unwrap();
            for depth in (4..=DEPTH).rev() {
                root.rmdir(path(depth)).await.unwrap();
            }
            assert!(is(&looks(world).await, FsError::NotFound));
            root.mkdir(path(4), mode).await.unwrap();
            root.create_dir_all(path(DEPTH), 0o755).await.unwrap();
            root.write(file(), b"x").await.unwrap();
            let found = looks(world).await;
            let expected = if mode == 0o755 { found.is_ok() } else { is(&found, FsError::Denied) };
            assert!(expected, "{mode:o} {found:?}");
        }
    });
}

#[test]
fn a_symbolic_link_and_a_file_on_the_way_are_as_a_walk_finds_them() {
    on_a_cluster(async |world, root| {
        root.symlink(path(6), "/link").await.unwrap();
        let below: String = (6..DEPTH).map(|at| format!("/d{at}")).collect();
        assert!(looks_at(world, &format!("/link{below}/file")).await.is_ok());
        let through = format!("{}/no/more", file());
        assert!(is(&looks_at(world, &through).await, FsError::NotDirectory));
        assert!(is(&looks_at(world, "/d0/no/such/path").await, FsError::NotFound));
        let up = format!("{}/../../d{}/d{}/file", path(DEPTH), DEPTH - 2, DEPTH - 1);
        assert!(looks_at(world, &up).await.is_ok());
    });
}
