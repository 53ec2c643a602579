//! The view of a session: of files through a walk that it must prove, at the server where they were
//! born, and of directories that others have just emptied by moves.

use std::time::Duration;

use base::{Access, Cred, FsError};
use client::FileSystem;
use lab::sim::plan::Plan;
use meta::Durability;
use wire::NodeRef;

use crate::calm::{failed, in_cluster, in_cluster_of};

#[test]
fn a_file_is_reached_by_its_name_only_as_long_as_its_directory_may_be_searched() {
    in_cluster(async |world, root| {
        let bound = world.connect_bound("bound", 100).await.unwrap();
        let user = Cred { uid: 100, gid: 100, groups: Vec::new() };
        // Some files are born at another server than that of their directory.
        for number in 0..6 {
            let [made, shown, hidden] =
                ["made", "shown", "hidden"].map(|name| format!("/{name}-{number}"));
            for (dir, mode) in [(&made, 0o755), (&shown, 0o755), (&hidden, 0o700)] {
                root.mkdir(dir, mode).await.unwrap();
            }
            let path = format!("{shown}/f");
            root.write(format!("{made}/f"), b"contents").await.unwrap();
            root.rename(format!("{made}/f"), &path).await.unwrap();

            let node = bound.client.resolve(&path).await.unwrap();
            bound.client.getattr(&user, &node).await.unwrap();
            root.chmod(&shown, 0o700).await.unwrap();
            assert_eq!(failed(bound.client.getattr(&user, &node).await), FsError::Denied);
            root.chmod(&shown, 0o755).await.unwrap();
            bound.client.getattr(&user, &node).await.unwrap();
            root.rename(&path, format!("{hidden}/f")).await.unwrap();
            assert_eq!(failed(bound.client.getattr(&user, &node).await), FsError::Stale);
        }
    });
}

#[test]
fn a_directory_is_empty_as_soon_as_all_that_was_in_it_has_moved_away() {
    // The coordinator tells others of its commits when they are stable.
    let slow = |plan: &mut Plan| {
        plan.durability = Durability::Relaxed;
        plan.disk_ms_max = 1;
    };
    in_cluster_of(slow, async |world, root| {
        world.hosts().iter().for_each(|host| host.slow_down_disk(20));
        for number in 0..6 {
            let [from, to] = ["from", "to"].map(|name| format!("/{name}-{number}"));
            for dir in [&from, &to, &format!("{from}/d")] {
                root.mkdir(dir, 0o755).await.unwrap();
            }
            world.wait(Duration::from_secs(1)).await;
            root.rename(format!("{from}/d"), format!("{to}/d")).await.unwrap();
            root.rmdir(&from).await.unwrap();
        }
    });
}

#[test]
fn who_has_a_file_open_reaches_it_wherever_it_was_born() {
    in_cluster(async |_, root| {
        let user = Cred { uid: 100, gid: 100, groups: Vec::new() };
        for number in 0..6 {
            let [made, shown] = ["made", "shown"].map(|name| format!("/{name}-{number}"));
            for dir in [&made, &shown] {
                root.mkdir(dir, 0o755).await.unwrap();
            }
            let path = format!("{shown}/f");
            root.write(format!("{made}/f"), b"contents").await.unwrap();
            root.rename(format!("{made}/f"), &path).await.unwrap();
            let node = root.resolve(&path).await.unwrap();
            let NodeRef::File(file) = &node else { panic!("it is a file") };
            let open = FileSystem::open(root, &user, file, Some(Access::READ)).await.unwrap();
            root.chmod(&shown, 0o700).await.unwrap();
            root.getattr(&user, &node).await.unwrap();
            let other = Cred { uid: 101, gid: 101, groups: Vec::new() };
            assert_eq!(failed(root.getattr(&other, &node).await), FsError::Denied);
            root.release(open).await.unwrap();
        }
    });
}
