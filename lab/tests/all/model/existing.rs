//! Mounts that ask for directories that exist, because they work there.

use std::time::Duration;

use base::{Cred, FileKind, SetAttr};
use client::{Delegating, FileSystem as _, New};
use lab::clock::HandClock;
use wire::{DirRef, FileRef, NodeRef, Token};

use super::{
    START,
    delegated::{Case, TWO, answers_as_the_model, name, new_dir, unpack},
    world::{Setup, World, in_world},
};

#[test]
fn mounts_that_ask_for_directories_that_exist_answer_as_the_model() {
    let both = Case { eager: true, ..TWO };
    let one = Case { holds: [true, false], ..both };
    let longer = Case { pause: Duration::from_millis(40), ..both };
    let cluster = Case { setup: Setup { servers: 3, ..TWO.setup }, ..both };
    answers_as_the_model(&[both, one, longer], 120, 2);
    answers_as_the_model(&[cluster], 60, 2);
}

/// Makes a directory with files, by a client that holds nothing.
pub(super) async fn filled(world: &World, text: &str, files: usize) -> DirRef {
    let maker = Delegating::new(world.client(&Token::administrator(), true).await, false);
    let (root, _) = maker.root();
    let dir = new_dir(&maker, &root, text).await;
    for file in 0..files {
        unpack(&maker, &dir, &name(&format!("f{file}")), "contents").await;
    }
    maker.close().await.expect("there is room");
    dir
}

#[test]
fn a_directory_that_exists_is_held_by_who_works_in_it_and_shown_to_others_at_once() {
    const FILES: usize = 60;
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let dir = filled(world, "d", FILES).await;
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let other = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let requests = || mount.requests_by_server().iter().sum::<u64>();
        let before = requests();
        for file in 0..FILES / 2 {
            let removed = mount.unlink(&Cred::ROOT, &dir, &name(&format!("f{file}"))).await;
            removed.expect("it is there");
        }
        for file in 0..FILES / 2 {
            unpack(&mount, &dir, &name(&format!("new{file}")), "longer contents").await;
        }
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let kept = mount.lookup(&Cred::ROOT, &dir, &name("f59")).await.expect("it is there");
        let file = FileRef { dir, name: name("f59"), ino: kept.attr.ino };
        mount.setattr(&Cred::ROOT, &NodeRef::File(file), set).await.expect("it is there");
        let sent = requests() - before;
        assert!(sent < 20, "{sent} requests");
        assert_eq!((mount.grants_and_recalls(), mount.existing()), ((1, 0), 1));

        let page = other.readdir(&Cred::ROOT, &dir, 0, 1000, true).await.expect("it is there");
        assert_eq!(page.entries.len(), FILES);
        for entry in &page.entries {
            let attr = entry.entry.as_ref().expect("attributes were asked for").attr;
            let is_new = entry.name.as_bytes().starts_with(b"new");
            assert_eq!(attr.size, if is_new { 15 } else { 8 }, "{}", entry.name);
            let mode = if entry.name == name("f59") { 0o600 } else { 0o640 };
            assert_eq!(attr.mode & 0o777, mode, "{}", entry.name);
        }
        assert_eq!(mount.grants_and_recalls(), (1, 1));
        // The mount does not ask at once for a directory that it was asked for.
        for file in 0..8 {
            unpack(&mount, &dir, &name(&format!("more{file}")), "contents").await;
        }
        assert_eq!(mount.grants_and_recalls(), (1, 1));
        tokio::time::sleep(Duration::from_secs(2)).await;
        for file in 8..16 {
            unpack(&mount, &dir, &name(&format!("more{file}")), "contents").await;
        }
        assert_eq!(mount.grants_and_recalls(), (2, 1));
        mount.close().await.expect("nothing is lost");
        other.close().await.expect("nothing is lost");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_change_from_here_is_later_than_those_that_others_have_made_before() {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let dir = filled(world, "d", 3).await;
        let looker = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let mount = Delegating::eager(world.client(&Token::administrator(), true).await);
        let modified = async || {
            let attr = looker.getattr(&Cred::ROOT, &NodeRef::Dir(dir)).await.expect("it is there");
            assert_eq!(attr.ctime, attr.mtime);
            attr.mtime
        };
        for round in 0..3 {
            let theirs = name(&format!("theirs{round}"));
            let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
            let made = looker.create(&Cred::ROOT, &dir, &theirs, new, true, false).await;
            made.expect("it is new");
            let before = modified().await;
            // The mount asks for the directory with the first one.
            for file in ["first", "second"] {
                unpack(&mount, &dir, &name(&format!("{file}{round}")), "contents").await;
            }
            // The server has both a second later, and does not take their time back to the present.
            clock.tick();
            assert!(modified().await > before, "round {round}");
        }
        assert_eq!(mount.grants_and_recalls(), (3, 3));
        mount.close().await.expect("nothing is left");
    });
}

#[test]
fn a_large_directory_is_held_only_by_who_changes_much_in_it() {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let dir = filled(world, "d", 300).await;
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let mut held_after = None;
        for file in 0..30 {
            let removed = mount.unlink(&Cred::ROOT, &dir, &name(&format!("f{file}"))).await;
            removed.expect("it is there");
            if mount.existing() > 0 && held_after.is_none() {
                held_after = Some(file + 1);
            }
        }
        // Reading 64 names is worth a change.
        assert!(held_after.is_some_and(|changes| (5..12).contains(&changes)), "{held_after:?}");
        mount.close().await.expect("nothing is lost");
    });
}

#[test]
fn a_directory_in_which_a_file_is_open_is_held_and_the_file_is_as_it_was_written() {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let dir = filled(world, "d", 5).await;
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let looker = world.client(&Token::administrator(), true).await;
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let mut handles = Vec::new();
        // The second one makes the mount ask for the directory, while both are open.
        for text in ["a", "b", "c", "d"] {
            let made = mount.create(&Cred::ROOT, &dir, &name(text), new, true, true).await;
            let made = made.expect("it is new");
            let handle = made.handle.expect("it was to be opened");
            mount.write(handle, 0, "before".into(), false).await.expect("there is room");
            tokio::time::sleep(Duration::from_millis(5)).await;
            handles.push((text, handle));
        }
        assert_eq!(mount.existing(), 1);
        for (text, handle) in handles {
            let found = mount.lookup(&Cred::ROOT, &dir, &name(text)).await.expect("it is there");
            assert_eq!(found.attr.size, 6, "{text}");
            mount.write(handle, 6, " and after".into(), false).await.expect("there is room");
            mount.flush(handle).await.expect("there is room");
            mount.release(handle).await.expect("it is open");
            let found = mount.lookup(&Cred::ROOT, &dir, &name(text)).await.expect("it is there");
            assert_eq!(found.attr.size, 16, "{text}");
        }
        for text in ["a", "b", "c", "d"] {
            let found = looker.lookup(&Cred::ROOT, &dir, &name(text)).await.expect("it is there");
            let shown = mount.lookup(&Cred::ROOT, &dir, &name(text)).await.expect("it is there");
            assert_eq!(found.attr, shown.attr, "{text}");
            assert_eq!(found.attr.size, 16, "{text}");
        }
        mount.close().await.expect("nothing is lost");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_that_was_open_when_its_directory_was_granted_is_read_as_others_have_written_it() {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let dir = filled(world, "d", 1).await;
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let writer = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let found = mount.lookup(&Cred::ROOT, &dir, &name("f0")).await.expect("it is there");
        let file = FileRef { dir, name: name("f0"), ino: found.attr.ino };
        let handle = mount.open(&Cred::ROOT, &file, None).await.expect("it may be read");
        assert_eq!(mount.read(handle, 0, 100).await.expect("it is whole"), "contents");

        let writes = writer.open(&Cred::ROOT, &file, None).await.expect("it may be written");
        writer.write(writes, 0, "CONTENTS".into(), false).await.expect("there is room");
        writer.release(writes).await.expect("it is open");

        for text in ["a", "b", "c"] {
            unpack(&mount, &dir, &name(text), "contents").await;
        }
        assert_eq!(mount.existing(), 1);
        mount.release(handle).await.expect("it is open");
        let handle = mount.open(&Cred::ROOT, &file, None).await.expect("it may be read");
        assert_eq!(mount.read(handle, 0, 100).await.expect("it is whole"), "CONTENTS");
        mount.release(handle).await.expect("it is open");
        mount.close().await.expect("nothing is lost");
    });
}
