//! A cluster one of whose disks is nearly full: what needs room there is refused and changes
//! nothing, the other servers go on, and all goes on when there is room again.

use std::time::Duration;

use base::{Cred, EntryName, FsError, Locality};
use client::{Client, Delegating, Error, FileSystem as _, New};
use lab::{
    check,
    sim::{
        plan::{Plan, Quotas, Special},
        play::test_in,
        world::World,
    },
};
use tokio::time::timeout;

const SERVERS: u16 = 3;
/// The server with the small disk.
const SMALL: u16 = 1;
/// Within this time a server has looked at its disk.
const LOOK: Duration = Duration::from_millis(600);
/// Longer than anything takes that does not wait for room.
const LONG: Duration = Duration::from_secs(5);

const FULL: Error = Error::Fs(FsError::NoSpace);

/// A calm world in which each directory is on a server of its own, as a whole.
fn plan() -> Plan {
    Plan {
        locality: Locality::Directory,
        divides: false,
        split_threshold: u64::MAX,
        id_bits: None,
        trash: false,
        quotas: Quotas::None,
        special: Special::SmallDisks,
        ..Plan::draw(1, SERVERS)
    }
}

/// Makes a directory in `/` on a server; its path.
async fn dir_on(world: &World, client: &Client, server: u16) -> String {
    let path = format!("/{}", world.name_on(client, client.root().0.id, server).0);
    client.mkdir(&path, 0o755).await.unwrap();
    path
}

/// Fills a disk, or makes room again, and waits until the server knows.
async fn fill(world: &World, server: u16, all: Option<bool>) {
    let host = &world.hosts()[usize::from(server)];
    match all {
        Some(all) => host.fill_disk(all),
        None => host.free_disk(),
    }
    world.wait(LOOK).await;
}

async fn names(client: &Client, dir: &str) -> Vec<String> {
    let entries = client.read_dir(dir).await.unwrap().all().await.unwrap();
    let mut names: Vec<_> = entries.iter().map(|entry| entry.name.to_string()).collect();
    names.sort();
    names
}

async fn make(client: &Client, path: &str) -> client::Result<()> {
    let new = New { kind: base::FileKind::File, mode: 0o644, rdev: 0 };
    client.mknod(path, new).await.map(drop)
}

#[test]
fn a_client_that_comes_to_a_full_server_for_the_first_time_waits_for_room() {
    test_in(plan(), async |world| {
        let [known, late] = [world.connect("known").await, world.connect("late").await];
        let [known, late] = [known.unwrap(), late.unwrap()];
        let dir = dir_on(world, &known.client, SMALL).await;
        make(&known.client, &format!("{dir}/file")).await.unwrap();
        fill(world, SMALL, Some(true)).await;
        assert_eq!(names(&known.client, &dir).await, ["file"]);
        // The server has no room to note another session.
        timeout(LONG, late.client.read_dir(&dir)).await.map(drop).unwrap_err();
        assert!(names(&late.client, "/").await.len() == 1, "the client goes on elsewhere");
        fill(world, SMALL, None).await;
        assert_eq!(timeout(LONG, names(&late.client, &dir)).await.unwrap(), ["file"]);
        // A client without a session is refused.
        fill(world, 0, Some(true)).await;
        let refused = world.connect("new").await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("no space left"), "{refused}");
        fill(world, 0, None).await;
        known.close().await.unwrap();
        late.close().await.unwrap();
    });
}

#[test]
fn a_transaction_that_a_full_server_refuses_changes_nothing_on_any_server() {
    test_in(plan(), async |world| {
        let machine = world.connect("moves").await.unwrap();
        let client = &machine.client;
        let small = dir_on(world, client, SMALL).await;
        let roomy = dir_on(world, client, 2).await;
        let (here, there) = (format!("{roomy}/file"), format!("{small}/file"));
        let (dir, moved) = (format!("{roomy}/dir"), format!("{small}/dir"));
        client.write(&here, b"contents").await.unwrap();
        client.mkdir(&dir, 0o755).await.unwrap();
        make(client, &format!("{small}/old")).await.unwrap();
        let before = client.stat(&here).await.unwrap();
        let aborted = || world.counts().transactions_aborted;
        let aborted_before = aborted();

        fill(world, SMALL, Some(false)).await;
        assert_eq!(client.rename(&here, &there).await, Err(FULL));
        assert_eq!(client.rename(&dir, &moved).await, Err(FULL));
        assert_eq!(client.link(&here, &there).await.map(drop), Err(FULL));
        let wire::NodeRef::Dir(id) = client.resolve(&roomy).await.unwrap() else {
            unreachable!("it is a directory")
        };
        let (born, _) = world.name_on(client, id.id, SMALL);
        let made = client.mkdir(format!("{roomy}/{born}"), 0o755).await;
        assert_eq!(made.map(drop), Err(FULL));
        assert!(aborted() > aborted_before, "the other server has prepared something");
        assert_eq!(names(client, &roomy).await, ["dir", "file"]);
        assert_eq!(names(client, &small).await, ["old"]);
        let after = client.stat(&here).await.unwrap();
        assert_eq!((after.ino, after.nlink), (before.ino, 1));
        assert_eq!(client.read(&here).await.unwrap(), b"contents"[..]);
        // A change that frees room there is done.
        client.rename(format!("{small}/old"), format!("{roomy}/old")).await.unwrap();
        check::fsck(world, client).await.unwrap();

        fill(world, SMALL, None).await;
        client.rename(&here, &there).await.unwrap();
        client.rename(&dir, &moved).await.unwrap();
        client.mkdir(format!("{roomy}/{born}"), 0o755).await.unwrap();
        assert_eq!(names(client, &small).await, ["dir", "file"]);
        check::fsck(world, client).await.unwrap();
        machine.close().await.unwrap();
    });
}

#[test]
fn names_stay_where_they_are_until_the_servers_that_would_take_them_have_room() {
    test_in(Plan { split_threshold: 12, ..plan() }, async |world| {
        let machine = world.connect("makes").await.unwrap();
        let client = &machine.client;
        let dir = dir_on(world, client, 2).await;
        let before = world.counts().handoffs_done;
        for server in [0, SMALL] {
            fill(world, server, Some(false)).await;
        }
        let all: Vec<String> = (10..60).map(|number| number.to_string()).collect();
        for name in &all {
            make(client, &format!("{dir}/{name}")).await.unwrap();
        }
        world.wait(LONG).await;
        assert_eq!(world.counts().handoffs_done, before);
        assert_eq!(names(client, &dir).await, all);
        for server in [0, SMALL] {
            fill(world, server, None).await;
        }
        make(client, &format!("{dir}/last")).await.unwrap();
        world.wait(LONG).await;
        assert!(world.counts().handoffs_done > before, "no name has moved");
        assert_eq!(names(client, &dir).await.len(), all.len() + 1);
        check::fsck(world, client).await.unwrap();
        machine.close().await.unwrap();
    });
}

#[test]
fn a_mount_gives_back_what_it_holds_when_the_disk_is_nearly_full_and_loses_nothing() {
    test_in(plan(), async |world| {
        let machine = world.connect_as("mount", true).await.unwrap();
        let mount = Delegating::new(machine.client.clone(), true);
        let (root, _) = mount.root();
        let (held, _) = world.name_on(&machine.client, root.id, 0);
        let name = |text: &str| EntryName::new(text.as_bytes()).unwrap();
        let dir = mount.mkdir(&Cred::ROOT, &root, &name(&held), 0o755).await.unwrap().dir.unwrap();
        assert_eq!(mount.grants_and_recalls(), (1, 0));

        // The server looks at its disk a few times a second.
        world.hosts()[0].fill_disk(false);
        let new = New { kind: base::FileKind::File, mode: 0o644, rdev: 0 };
        let mut answered = Vec::new();
        let refused = loop {
            let next = (answered.len() + 100).to_string();
            match mount.create(&Cred::ROOT, &dir, &name(&next), new, true, false).await {
                Ok(_) => answered.push(next),
                Err(error) => break error,
            }
            assert!(answered.len() < 400, "creates go on for two seconds on a full disk");
            world.wait(Duration::from_millis(5)).await;
        };
        assert_eq!(refused, FULL, "the call tells it");
        assert!(answered.len() > 1, "some were answered without the server");
        assert_eq!(mount.grants_and_recalls(), (1, 1));
        assert_eq!((mount.sync().await, mount.lost()), (Ok(()), 0));
        assert_eq!(names(&machine.client, &format!("/{held}")).await, answered);

        fill(world, 0, None).await;
        mount.create(&Cred::ROOT, &dir, &name("last"), new, true, false).await.unwrap();
        mount.close().await.unwrap();
        machine.close().await.unwrap();
    });
}
