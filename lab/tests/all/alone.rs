//! Servers of a cluster that are silent, dead or without the coordinator: the work that goes on at
//! the other servers meanwhile, and its stability. These worlds have no other faults.

use std::time::Duration;

use base::{Cred, EntryName, FileKind};
use client::{Client, FileSystem, New, OpenOptions};
use lab::sim::{plan::Plan, world::World};
use meta::Durability;
use tokio::time::{Instant, timeout};

use crate::steps;

const SERVERS: u16 = 3;
const SECOND: Duration = Duration::from_secs(1);
/// How long servers go on without the coordinator.
const ALONE: Duration = Duration::from_secs(30);

fn in_world(change: impl FnOnce(Plan) -> Plan, test: impl AsyncFn(&World, &Client)) {
    let plan = Plan {
        trash: false,
        lease: Duration::from_secs(10),
        alone: ALONE,
        access_cache: true,
        ..steps::plan(SERVERS, Durability::Relaxed)
    };
    steps::run(change(plan), None, 1000 * SECOND, async |world| {
        let machine = world.connect("alone").await?;
        test(&world, &machine.client).await;
        Ok(())
    })
    .unwrap();
}

async fn write(client: &Client, path: &str) -> client::File {
    let options = OpenOptions::writing().create_new(0o644);
    let file = client.open_with(path, options).await.unwrap();
    file.write_at(0, b"contents").await.unwrap();
    file
}

fn without_syncs(plan: Plan) -> Plan {
    Plan { commit_interval: 100 * SECOND, ..plan }
}

/// Cuts the power of all servers; the last one has just synced by itself.
async fn power_cut(world: &World) {
    world.hosts()[2].settle().unwrap();
    world.hosts().iter().for_each(|host| host.crash(true));
    world.hosts().iter().for_each(|host| host.start().unwrap());
}

#[test]
fn a_power_cut_takes_the_last_moment_of_one_server_and_not_of_another() {
    in_world(without_syncs, async |world, client| {
        let (one, two) = (
            steps::dir_on(client, 1, SERVERS).await.unwrap().0,
            steps::dir_on(client, 2, SERVERS).await.unwrap().0,
        );
        client.sync().await.unwrap();
        // Servers still tell each other of these directories, and sync for that.
        tokio::time::sleep(SECOND).await;
        write(client, &format!("{one}/data")).await.close().await.unwrap();
        write(client, &format!("{two}/marker")).await.close().await.unwrap();
        power_cut(world).await;
        let anew = world.connect("anew").await.unwrap().client;
        assert!(anew.stat(format!("{one}/data")).await.is_err());
        assert!(anew.stat(format!("{two}/marker")).await.is_ok());
    });
}

#[test]
fn what_a_sync_of_a_file_has_waited_for_survives_a_cut_of_all_servers() {
    in_world(without_syncs, async |world, client| {
        let (one, two) = (
            steps::dir_on(client, 1, SERVERS).await.unwrap().0,
            steps::dir_on(client, 2, SERVERS).await.unwrap().0,
        );
        let file = write(client, &format!("{one}/data")).await;
        file.sync_all().await.unwrap();
        write(client, &format!("{two}/marker")).await.close().await.unwrap();
        power_cut(world).await;
        let anew = world.connect("anew").await.unwrap().client;
        assert_eq!(&anew.read(format!("{one}/data")).await.unwrap()[..], b"contents");
    });
}

#[test]
fn with_a_server_dead_syncs_and_space_of_the_others_take_less_than_a_second() {
    in_world(
        |plan| plan,
        async |world, client| {
            let (one, two) = (
                steps::dir_on(client, 1, SERVERS).await.unwrap().0,
                steps::dir_on(client, 2, SERVERS).await.unwrap().0,
            );
            client.statfs().await.unwrap();
            let before = client.statfs().await.unwrap();
            let file = write(client, &format!("{one}/file")).await;
            // The dead server may have lost this.
            write(client, &format!("{two}/file")).await.close().await.unwrap();
            world.hosts()[2].crash(false);
            for round in 0..3 {
                let began = Instant::now();
                file.sync_all().await.unwrap();
                assert!(began.elapsed() < SECOND, "round {round}: {:?}", began.elapsed());
                let began = Instant::now();
                assert_eq!(client.statfs().await.unwrap().bytes, before.bytes);
                assert!(began.elapsed() < SECOND, "round {round}: {:?}", began.elapsed());
                file.write_at(0, b"again").await.unwrap();
            }
            // A sync of everything waits until the server is back.
            let all = client.sync();
            tokio::pin!(all);
            assert!(timeout(10 * SECOND, all.as_mut()).await.is_err());
            world.hosts()[2].start().unwrap();
            all.await.unwrap();
        },
    );
}

#[test]
fn without_the_coordinator_mounts_go_on_and_paths_wait_until_it_is_back() {
    in_world(
        |plan| plan,
        async |world, client| {
            let (path, dir) = steps::dir_on(client, 1, SERVERS).await.unwrap();
            let name = |name: &str| EntryName::new(name.as_bytes()).unwrap();
            let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
            write(client, &format!("{path}/before")).await.close().await.unwrap();
            client.statfs().await.unwrap();
            world.hosts()[0].crash(false);
            tokio::time::sleep(3 * SECOND).await;
            // The file is made by handle, as a mount does it.
            let began = Instant::now();
            let cred = Cred::ROOT;
            let file = name("file");
            let made = FileSystem::create(client, &cred, &dir, &file, new, true, true);
            let made = made.await.unwrap();
            let handle = made.handle.unwrap();
            FileSystem::write(client, handle, 0, "contents".into(), false).await.unwrap();
            client.fsync(handle).await.unwrap();
            client.lookup(&cred, &dir, &name("before")).await.unwrap();
            let (from, to) = (name("before"), name("after"));
            let mode = wire::RenameMode::Replace;
            let moved = FileSystem::rename(client, &cred, (&dir, &from), (&dir, &to), mode);
            moved.await.unwrap();
            assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
            // Cached paths may have changed.
            let by_path = client.stat(format!("{path}/file"));
            tokio::pin!(by_path);
            assert!(timeout(5 * SECOND, by_path.as_mut()).await.is_err());
            tokio::time::sleep(ALONE).await;
            let late = client.lookup(&cred, &dir, &file);
            tokio::pin!(late);
            assert!(timeout(5 * SECOND, late.as_mut()).await.is_err());
            world.hosts()[0].start().unwrap();
            // A lease comes within a second or so, and a waiting client asks each second at least.
            let back = Instant::now();
            late.await.unwrap();
            assert_eq!(by_path.await.unwrap().size, 8);
            assert!(back.elapsed() < 3 * SECOND, "{:?}", back.elapsed());
        },
    );
}
