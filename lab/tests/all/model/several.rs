//! Mounts of several servers that hold directories.

use std::time::Duration;

use base::{Cred, SetAttr, SetTime};
use client::{Delegating, FileSystem as _};
use lab::clock::HandClock;
use wire::{DirRef, NodeRef, Token};

use super::{
    START,
    delegated::{TWO, name, new_dir, unpack},
    existing::filled,
    world::{Setup, World, in_world},
};

/// Runs a test on three servers, with a mount that asks for delegations and loses nothing.
fn on_three_servers(test: impl AsyncFnOnce(&World, &Delegating, DirRef)) {
    let clock = HandClock::at(START);
    in_world(Setup { servers: 3, ..TWO.setup }, &clock, async |world| {
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        test(world, &mount, mount.root().0).await;
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn times_and_then_owner_of_a_directory_wait_for_nothing_on_several_servers() {
    on_three_servers(async |world, mount, root| {
        let began = tokio::time::Instant::now();
        for round in 0..24 {
            // A third of them are on the server of the one above, and may be held.
            let above = new_dir(mount, &root, &format!("above{round}")).await;
            let dir = new_dir(mount, &above, "d").await;
            unpack(mount, &dir, &name("f"), "contents").await;
            let node = NodeRef::Dir(dir);
            let time = SetTime::At(base::Time { sec: 5, nsec: 0 });
            let times = SetAttr { mtime: Some(time), ..SetAttr::default() };
            mount.setattr(&Cred::ROOT, &node, times).await.expect("it is there");
            let owner = SetAttr { uid: Some(9), gid: Some(9), ..SetAttr::default() };
            mount.setattr(&Cred::ROOT, &node, owner).await.expect("it is there");
            mount.settle_all().await;
            let looker = world.client(&Token::administrator(), true).await;
            let seen = looker.getattr(&Cred::ROOT, &node).await.expect("it is there");
            assert_eq!((seen.uid, seen.gid, seen.mtime.sec), (9, 9, 5));
        }
        let (took, held) = (began.elapsed(), mount.grants_and_recalls());
        assert!(took < Duration::from_secs(10) && held.0 > 2, "it took {took:?}; {held:?}");
    });
}

#[test]
fn mode_and_owner_of_a_directory_do_not_cost_its_delegation_on_several_servers() {
    on_three_servers(async |world, mount, root| {
        let mut all = Vec::new();
        for round in 0..12_u32 {
            let above = new_dir(mount, &root, &format!("above{round}")).await;
            for (text, mode) in [("d", 0o700), ("e", 0o711)] {
                let dir = new_dir(mount, &above, text).await;
                unpack(mount, &dir, &name("f"), "contents").await;
                let (uid, mode) = (Some(round), Some(mode));
                let set = SetAttr { uid, mode, ..SetAttr::default() };
                mount.setattr(&Cred::ROOT, &NodeRef::Dir(dir), set).await.expect("it is there");
                unpack(mount, &dir, &name("g"), "contents").await;
                all.push((dir, uid, mode));
            }
        }
        let (granted, recalled) = mount.grants_and_recalls();
        assert!(granted > 4 && recalled == 0, "{granted} granted, {recalled} recalled");
        mount.settle_all().await;
        let looker = world.client(&Token::administrator(), true).await;
        for (dir, uid, mode) in all {
            let seen = looker.getattr(&Cred::ROOT, &NodeRef::Dir(dir)).await.expect("it is there");
            let seen = (Some(seen.uid), Some(seen.mode & 0o7777), seen.size);
            assert_eq!(seen, (uid, mode, 2));
        }
    });
}

#[test]
fn a_directory_of_any_server_is_given_inode_numbers_of_its_own_shard() {
    const FILES: usize = 60;
    let clock = HandClock::at(START);
    in_world(Setup { servers: 3, ..TWO.setup }, &clock, async |world| {
        // The directories' own numbers are of the shard of the root.
        for dir in 0..6 {
            let dir = filled(world, &format!("d{dir}"), 3).await;
            let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
            // A directory is given to nobody while its server may still lose its entry.
            mount.sync().await.expect("the servers are there");
            tokio::time::sleep(Duration::from_secs(5)).await;
            let before = mount.requests_by_server().iter().sum::<u64>();
            for file in 0..FILES {
                unpack(&mount, &dir, &name(&format!("new{file}")), "contents").await;
            }
            mount.settle_all().await;
            let sent = mount.requests_by_server().iter().sum::<u64>() - before;
            assert_eq!(mount.grants_and_recalls(), (1, 0));
            assert!(sent < 30, "{sent} requests made {FILES} files");
            mount.close().await.expect("nothing is lost");
        }
    });
}
