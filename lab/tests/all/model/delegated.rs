//! Mounts that hold directories answer as the model does: alone, two that ask for each other's, and
//! one beside a client that holds nothing.

use std::{cell::RefCell, time::Duration};

use base::{
    Access, Attr, ByteRange, Cred, EntryName, FileKind, FsError, Locality, LockKind, LockMode,
    SetAttr, SetTime,
};
use bytes::Bytes;
use client::{Delegating, FileLock, FileSystem as _, Handle, New, model::Model};
use lab::{
    clock::HandClock,
    ops::{Difference, Rules, Step, Tallies, Tally, compare, search},
    sim::jail::Jail,
};
use wire::{DirRef, Entry, FileRef, NodeRef, ReaddirPage, RenameMode, SeekTo, Token, XattrMode};

use super::{
    START, STEPS_MAX, model,
    real::{USUAL, leaves_nothing, same},
    tree::tree,
    world::{Setup, World, in_world},
};

/// A comparison.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) setup: Setup,
    /// Whether each of the two clients asks for delegations.
    pub(super) holds: [bool; 2],
    /// Whether they ask for directories that exist, at once and again and again.
    pub(super) eager: bool,
    /// The time between two steps: shorter than the time until a change is sent, or longer.
    pub(super) pause: Duration,
    pub(super) page_entries: u32,
}

pub(super) const TWO: Case = Case {
    setup: USUAL.setup,
    holds: [true, true],
    eager: false,
    pause: Duration::from_millis(12),
    page_entries: 2,
};

/// How many directories were granted, and how many asked for by others.
type Grants = (usize, usize);

fn run(
    case: Case,
    clients: usize,
    steps: &[Step],
    tallies: &mut Tallies,
    grants: &mut Grants,
) -> Result<(), Difference> {
    let clock = HandClock::at(START);
    in_world(case.setup, &clock, async |world| {
        let token = Token::administrator();
        let mount = |client, holds| match case.eager && holds {
            true => Delegating::eager(client),
            false => Delegating::new(client, holds),
        };
        let one = mount(world.client(&token, true).await, case.holds[0]);
        let other = mount(world.client(&token, true).await, case.holds[1]);
        let mounts = [one, other];
        let left = mounts.clone().map(Jail::over);
        let right: [Model; 2] = model(&clock, [true, true], 4096);
        let rules = Rules {
            page_entries: (case.page_entries, 100),
            flush: clients > 1,
            ..Rules::default()
        };
        let settle = async || tokio::time::sleep(case.pause).await;
        compare(&clock, rules, (&left, &right), steps, tallies, settle).await?;
        let (mut mine, mut models) = (tree(&left[0]).await, tree(&right[0]).await);
        if !rules.flush {
            (mine, models) = (mine.without_mtimes(), models.without_mtimes());
        }
        same("the whole tree", &mine.unlike(&models), &models.unlike(&mine))?;
        let looker = Jail::over(world.client(&token, true).await);
        let mut seen = tree(&looker).await;
        if !rules.flush {
            seen = seen.without_mtimes();
        }
        same("the tree for others", &seen.unlike(&mine), &mine.unlike(&seen))?;
        drop((left, looker));
        for mount in &mounts {
            let (granted, recalled) = mount.grants_and_recalls();
            *grants = (grants.0 + granted, grants.1 + recalled);
            mount.close().await.expect("everything is flushed");
            assert_eq!(mount.lost(), 0);
        }
        leaves_nothing(world, false, &mine).await
    })
}

pub(super) fn answers_as_the_model(cases: &[Case], sequences: u32, clients: usize) {
    let (tallies, grants) = (RefCell::new(Tallies::new()), RefCell::new((0, 0)));
    for case in cases {
        let found = search(sequences, clients, STEPS_MAX, |steps| {
            let (tallies, grants) = (&mut *tallies.borrow_mut(), &mut *grants.borrow_mut());
            run(*case, clients, steps, tallies, grants)
        });
        assert!(found.is_none(), "{case:?}\n{}", found.expect("checked"));
    }
    for (kind, tally) in tallies.borrow().iter() {
        let Tally { done, refused, skipped } = tally;
        println!("{kind:12} done={done} refused={refused} skipped={skipped}");
        assert!(*done > 0, "{kind} was never done");
    }
    let (granted, recalled) = *grants.borrow();
    println!("granted={granted} recalled={recalled}");
    assert!(granted > 0 && recalled > 0, "nothing was held, or nothing asked for");
}

#[test]
fn a_mount_alone_answers_as_the_model() {
    let longer = Case { pause: Duration::from_millis(40), ..TWO };
    let small = Case { setup: Setup { inline_bytes_max: 0, ..TWO.setup }, ..TWO };
    answers_as_the_model(&[TWO, longer, small], 200, 1);
}

#[test]
fn mounts_that_hold_directories_answer_as_the_model() {
    let one = Case { holds: [true, false], ..TWO };
    let pages = Case { page_entries: 100, ..TWO };
    let subtrees = Case { setup: Setup { locality: Locality::Subtree, ..TWO.setup }, ..TWO };
    answers_as_the_model(&[TWO, one, pages, subtrees], 200, 2);
}

#[test]
fn mounts_of_several_servers_that_hold_directories_answer_as_the_model() {
    let cluster = Case { setup: Setup { servers: 3, ..TWO.setup }, ..TWO };
    answers_as_the_model(&[cluster], 60, 2);
}

pub(super) fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).expect("it is a name")
}

/// Runs a test with a mount that holds the directory `dir` of the root.
fn in_held_dir(test: impl AsyncFnOnce(&World, Delegating, DirRef)) {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let (root, _) = mount.root();
        let made = mount.mkdir(&Cred::ROOT, &root, &name("dir"), 0o755).await.expect("it is new");
        let dir = made.dir.expect("it is a directory");
        test(world, mount, dir).await;
    });
}

#[test]
fn a_file_that_is_removed_when_it_is_about_to_be_made_is_no_loss() {
    in_held_dir(async |_, mount, dir| {
        for is_changed in [false, true] {
            let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
            let made = mount.create(&Cred::ROOT, &dir, &name("a"), new, true, true).await;
            let made = made.expect("it is new");
            let handle = made.handle.expect("it was to be opened");
            mount.write(handle, 0, "contents".into(), false).await.expect("there is room");
            mount.release(handle).await.expect("it is open");
            if is_changed {
                let file = FileRef { dir, name: name("a"), ino: made.entry.attr.ino };
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                let set = mount.setattr(&Cred::ROOT, &NodeRef::File(file), set).await;
                assert_eq!(set.expect("it is there").mode & 0o777, 0o600);
            }
            // The change is on its way, and its task has not run.
            let (caller, name) = (Cred::ROOT, name("a"));
            let (sent, removed) = tokio::join!(mount.sync(), mount.unlink(&caller, &dir, &name));
            assert_eq!((sent, removed.map(drop)), (Ok(()), Ok(())));
        }
        assert_eq!((mount.sync().await, mount.lost()), (Ok(()), 0));
        let (root, _) = mount.root();
        mount.rmdir(&Cred::ROOT, &root, &name("dir")).await.expect("it is empty");
        mount.close().await.expect("nothing is left");
    });
}

/// Makes a file with contents and attributes, as `tar` does.
pub(super) async fn unpack(
    mount: &Delegating,
    dir: &DirRef,
    name: &EntryName,
    contents: &'static str,
) {
    let new = New { kind: FileKind::File, mode: 0o600, rdev: 0 };
    let made = mount.create(&Cred::ROOT, dir, name, new, true, true).await.expect("it is new");
    let handle = made.handle.expect("it was to be opened");
    mount.write(handle, 0, contents.into(), false).await.expect("there is room");
    let node = NodeRef::File(FileRef { dir: *dir, name: name.clone(), ino: made.entry.attr.ino });
    for set in [
        SetAttr { uid: Some(7), gid: Some(7), ..SetAttr::default() },
        SetAttr { mode: Some(0o640), ..SetAttr::default() },
        SetAttr { mtime: Some(SetTime::At(base::Time { sec: 1, nsec: 2 })), ..SetAttr::default() },
    ] {
        mount.setattr(&Cred::ROOT, &node, set).await.expect("it is there");
    }
    mount.release(handle).await.expect("it is open");
}

#[test]
fn many_files_go_to_the_server_in_one_request() {
    const FILES: usize = 60;
    in_held_dir(async |_, mount, dir| {
        let names: Vec<_> = (0..FILES).map(|number| name(&format!("f{number}"))).collect();
        let requests = || mount.requests_by_server().iter().sum::<u64>();
        let before = requests();
        for name in &names {
            unpack(&mount, &dir, name, "contents").await;
        }
        mount.settle_all().await;
        let sent = requests() - before;
        for name in &names {
            mount.unlink(&Cred::ROOT, &dir, name).await.expect("it is there");
        }
        mount.settle_all().await;
        println!("{sent} requests made {FILES} files");
        // Inode numbers are asked for, and closed files released, many at a time.
        assert!(sent <= 6, "{sent} requests made {FILES} files");
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_directory_is_recalled_at_once_also_after_everything_was_given_back() {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let (root, _) = mount.root();
        for round in 0..5 {
            let name = name(&format!("d{round}"));
            let made = mount.mkdir(&Cred::ROOT, &root, &name, 0o755).await.expect("it is new");
            let dir = made.dir.expect("it is a directory");
            unpack(&mount, &dir, &name, "contents").await;
            let began = tokio::time::Instant::now();
            other.lookup(&Cred::ROOT, &dir, &name).await.expect("it is there");
            let took = began.elapsed();
            assert!(took < Duration::from_millis(200), "round {round} took {took:?}");
        }
        let (granted, recalled) = mount.grants_and_recalls();
        assert_eq!((granted, recalled), (5, 5));
        mount.close().await.expect("nothing is left");
    });
}

#[test]
fn a_directory_that_is_removed_and_made_again_is_held_again() {
    let clock = HandClock::at(START);
    in_world(TWO.setup, &clock, async |world| {
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let (root, _) = mount.root();
        let name = name("d");
        // The one that was removed is given back after 10 ms: before, meanwhile and after that.
        let pauses: Vec<u64> = (0..60).map(|step| step * 250).collect();
        for pause in &pauses {
            let dir = new_dir(&mount, &root, "d").await;
            unpack(&mount, &dir, &name, "contents").await;
            let found = other.lookup(&Cred::ROOT, &dir, &name).await.expect("it is there");
            assert_eq!(found.attr.size, 8, "after {pause} us");
            mount.unlink(&Cred::ROOT, &dir, &name).await.expect("it is there");
            mount.rmdir(&Cred::ROOT, &root, &name).await.expect("it is empty");
            tokio::time::sleep(Duration::from_micros(*pause)).await;
        }
        let (granted, recalled) = mount.grants_and_recalls();
        // A grant that meets the return of the one before is not taken.
        assert!(granted > pauses.len() - 5, "{granted} of {} were taken", pauses.len());
        assert!(granted == recalled, "{granted} were granted and {recalled} recalled");
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_mount_whose_file_handles_are_used_holds_nothing() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        unpack(&mount, &dir, &name("a"), "contents").await;
        mount.serves_handles().await;
        let below = new_dir(&mount, &dir, "b").await;
        unpack(&mount, &below, &name("c"), "contents").await;
        let found = other.lookup(&Cred::ROOT, &dir, &name("a")).await.expect("it is there");
        assert_eq!(found.attr.size, 8);
        assert_eq!(mount.grants_and_recalls(), (1, 0));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_that_was_not_sent_is_renamed_without_asking() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let requests = || mount.requests_by_server().iter().sum::<u64>();
        let before = requests();
        let names: Vec<_> = (0..60).map(|number| name(&format!("f{number}"))).collect();
        for last in &names {
            let first = name(&format!(".{last}.new"));
            unpack(&mount, &dir, &first, "contents").await;
            let (from, to) = ((&dir, &first), (&dir, last));
            let renamed = mount.rename(&Cred::ROOT, from, to, RenameMode::NoReplace).await;
            let entry = mount.lookup(&Cred::ROOT, &dir, last).await.expect("it is there");
            assert_eq!(renamed.expect("the name is free").moved, entry.attr.ino);
            mount.lookup(&Cred::ROOT, &dir, &first).await.expect_err("it has another name");
        }
        mount.settle_all().await;
        let sent = requests() - before;
        assert!(sent <= 6, "{sent} requests made {} files", names.len());
        let mine = mount.lookup(&Cred::ROOT, &dir, &names[7]).await.expect("it is there");
        let theirs = other.lookup(&Cred::ROOT, &dir, &names[7]).await.expect("it is there");
        assert_eq!((mine.attr, theirs.attr.size), (theirs.attr, 8));
        // Each file, and no other.
        let page = other.readdir(&Cred::ROOT, &dir, 0, 1000, false).await.expect("it is there");
        assert_eq!(page.entries.len(), names.len());
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn directories_are_removed_without_asking_and_are_gone_for_others_at_once() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let requests = || mount.requests_by_server().iter().sum::<u64>();
        let (above, below) = (name("above"), name("below"));
        let gone = |found: client::Result<Entry>| match found {
            Err(client::Error::Fs(FsError::NotFound | FsError::Stale)) => {}
            found => panic!("it is gone: {found:?}"),
        };
        for round in 0..4 {
            let dir = new_dir(&mount, &dir, &format!("d{round}")).await;
            let outer = new_dir(&mount, &dir, "above").await;
            let inner = new_dir(&mount, &outer, "below").await;
            unpack(&mount, &inner, &below, "contents").await;
            mount.settle_all().await;
            let before = requests();
            mount.rmdir(&Cred::ROOT, &outer, &below).await.expect_err("it has a file");
            mount.unlink(&Cred::ROOT, &inner, &below).await.expect("it is there");
            mount.rmdir(&Cred::ROOT, &outer, &below).await.expect("it is empty");
            mount.rmdir(&Cred::ROOT, &dir, &above).await.expect("it is empty");
            assert_eq!(requests(), before, "nobody was asked");
            match round {
                0 => gone(other.lookup(&Cred::ROOT, &inner, &below).await),
                1 => gone(other.lookup(&Cred::ROOT, &dir, &above).await),
                2 => {
                    let new = New { kind: FileKind::File, mode: 0o600, rdev: 0 };
                    let made = mount.create(&Cred::ROOT, &inner, &below, new, true, false).await;
                    gone(made.map(|made| made.entry));
                }
                _ => {
                    let outer = new_dir(&mount, &dir, "above").await;
                    gone(mount.lookup(&Cred::ROOT, &outer, &below).await);
                }
            }
        }
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_is_shown_as_it_was_written_when_it_was_sent_before_its_close() {
    in_held_dir(async |_, mount, dir| {
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let made = mount.create(&Cred::ROOT, &dir, &name("a"), new, true, true).await;
        let handle = made.expect("it is new").handle.expect("it was to be opened");
        mount.settle_all().await;
        mount.write(handle, 0, "contents".into(), false).await.expect("there is room");
        mount.fsync(handle).await.expect("there is room");
        mount.release(handle).await.expect("it is open");
        // The file is closed at the server, and forgotten here.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let entry = mount.lookup(&Cred::ROOT, &dir, &name("a")).await.expect("it is there");
        assert_eq!(entry.attr.size, 8);
        mount.close().await.expect("nothing is left");
    });
}

#[test]
fn times_of_a_directory_stay_as_they_were_set_last() {
    in_held_dir(async |world, mount, dir| {
        let set = |sec| SetAttr {
            mtime: Some(SetTime::At(base::Time { sec, nsec: 0 })),
            ..SetAttr::default()
        };
        for pause in [30, 15, 5, 0] {
            let file = name(&format!("f{pause}"));
            unpack(&mount, &dir, &file, "contents").await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let before = mount.requests_by_server().iter().sum::<u64>();
            for sec in [7, 9] {
                let node = NodeRef::Dir(dir);
                let attr = mount.setattr(&Cred::ROOT, &node, set(sec)).await.expect("it is there");
                assert_eq!(attr.mtime.sec, sec);
            }
            // More of the file comes after them, and changes no name.
            let entry = mount.lookup(&Cred::ROOT, &dir, &file).await.expect("it is there");
            let node = entry.node(&dir, &file);
            let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            mount.setattr(&Cred::ROOT, &node, mode).await.expect("it is there");
            assert_eq!(mount.requests_by_server().iter().sum::<u64>(), before, "nobody waits");
            mount.settle_all().await;
            let attr = mount.getattr(&Cred::ROOT, &NodeRef::Dir(dir)).await.expect("it is there");
            assert_eq!(attr.mtime.sec, 9);
        }
        // Now the directory is recalled: what comes is what the server has.
        let looker = world.client(&Token::administrator(), true).await;
        let seen = looker.getattr(&Cred::ROOT, &NodeRef::Dir(dir)).await.expect("it is there");
        assert_eq!(seen.mtime.sec, 9);
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn mode_and_owner_of_a_directory_go_to_the_server_at_once_and_wait_for_nothing() {
    in_held_dir(async |world, mount, dir| {
        let (cred, node) = (&Cred::ROOT, NodeRef::Dir(dir));
        let looker = world.client(&Token::administrator(), true).await;
        for (round, mode) in [(0, 0o700), (1, 0o755)] {
            let file = name(&format!("f{round}"));
            unpack(&mount, &dir, &file, "contents").await;
            let before = mount.requests_by_server().iter().sum::<u64>();
            let owner = SetAttr { uid: Some(1000), gid: Some(100 + round), ..SetAttr::default() };
            mount.setattr(cred, &node, owner).await.expect("it is there");
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let attr = mount.setattr(cred, &node, set).await.expect("it is there");
            // An ACL that says what a mode says is one.
            let acl = acl_of_mode(mode);
            let given = (Bytes::from_static(b"system.posix_acl_access"), acl, XattrMode::Set);
            mount.setxattr(cred, &node, given.0, given.1, given.2).await.expect("it is there");
            // There is none that could be removed.
            let default = Bytes::from_static(b"system.posix_acl_default");
            mount.removexattr(cred, &node, default).await.expect("it is there");
            let sent = mount.requests_by_server().iter().sum::<u64>() - before;
            assert_eq!(sent, 3, "what waits in the directory is not sent for it");
            assert_eq!((attr.mode & 0o7777, attr.uid, attr.gid), (mode, 1000, 100 + round));
            let known = mount.getattr(cred, &node).await.expect("it is there");
            let asked = mount.requests_by_server().iter().sum::<u64>() - before;
            assert_eq!((asked, known.mode, known.size), (3, attr.mode, attr.size));
            let made = mount.lookup(cred, &dir, &file).await.expect("it is there").attr;
            assert_eq!((made.uid, made.gid), (7, 7));
        }
        // With the set-group-id bit it matters what was made before.
        let set = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
        mount.setattr(cred, &node, set).await.expect("it is there");
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let made = mount.create(cred, &dir, &name("inherits"), new, true, false).await;
        assert_eq!(made.expect("it is new").entry.attr.gid, 101);
        let set = SetAttr { gid: Some(7), ..SetAttr::default() };
        mount.setattr(cred, &node, set).await.expect("it is there");
        let mine = mount.getattr(cred, &node).await.expect("it is there");
        for (file, gid) in [("f0", 7), ("inherits", 101)] {
            let seen = looker.lookup(cred, &dir, &name(file)).await.expect("it is there").attr;
            assert_eq!(seen.gid, gid, "{file}");
        }
        let seen = looker.getattr(cred, &node).await.expect("it is there");
        assert_eq!((seen.mode, seen.uid, seen.gid), (mine.mode, 1000, 7));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_directory_that_is_divided_by_a_setting_is_held_no_more() {
    let clock = HandClock::at(START);
    in_world(Setup { servers: 3, ..TWO.setup }, &clock, async |world| {
        let mount = Delegating::new(world.client(&Token::administrator(), true).await, true);
        let (root, _) = mount.root();
        for round in 0..12 {
            // A third of them are on the server of the one above, and may be held.
            let dir = new_dir(&mount, &root, &format!("d{round}")).await;
            let (setting, value) = (Bytes::from_static(b"pando.large_dir"), "5".into());
            let node = NodeRef::Dir(dir);
            let set = mount.setxattr(&Cred::ROOT, &node, setting, value, XattrMode::Set).await;
            set.expect("there are several servers");
            for file in 0..20 {
                unpack(&mount, &dir, &name(&format!("f{file}")), "contents").await;
            }
            mount.settle_all().await;
        }
        let held = mount.grants_and_recalls();
        assert!(held.0 > 0, "{held:?}");
        mount.sync().await.expect("nothing is lost");
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

/// Makes a directory, which the mount may hold then.
pub(super) async fn new_dir(mount: &Delegating, above: &DirRef, text: &str) -> DirRef {
    let made = mount.mkdir(&Cred::ROOT, above, &name(text), 0o755).await.expect("it is new");
    made.dir.expect("it is a directory")
}

/// The value of an access ACL that says what this mode says.
fn acl_of_mode(mode: u32) -> Bytes {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, shift) in [(1_u16, 6), (4, 3), (32, 0)] {
        let bits = u16::try_from(mode >> shift & 7).expect("three bits");
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(u32::MAX.to_le_bytes());
    }
    value.into()
}

/// How many requests `mount` sends until `work` is done and everything is sent.
async fn requests_of(mount: &Delegating, work: impl Future<Output = ()>) -> u64 {
    let requests = || mount.requests_by_server().iter().sum::<u64>();
    let before = requests();
    work.await;
    mount.settle_all().await;
    requests() - before
}

/// Opens a file under its name, and reads it.
async fn opened(mount: &Delegating, dir: &DirRef, name: &EntryName) -> (Handle, Bytes) {
    let entry = mount.lookup(&Cred::ROOT, dir, name).await.expect("it is there");
    let NodeRef::File(file) = entry.node(dir, name) else { panic!("{name} is no file") };
    let handle = mount.open(&Cred::ROOT, &file, Some(Access::READ)).await.expect("it is there");
    (handle, mount.read(handle, 0, 100).await.expect("it is open"))
}

#[test]
fn files_that_were_written_here_are_opened_and_read_without_asking() {
    const FILES: usize = 60;
    in_held_dir(async |world, mount, dir| {
        let names: Vec<_> = (0..FILES).map(|number| name(&format!("f{number}"))).collect();
        for name in &names {
            unpack(&mount, &dir, name, "contents").await;
        }
        // By then all of them are closed at the server.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let sent = requests_of(&mount, async {
            for name in &names {
                let (handle, bytes) = opened(&mount, &dir, name).await;
                assert_eq!(bytes, "contents");
                mount.flush(handle).await.expect("nothing was written");
                mount.release(handle).await.expect("it is open");
            }
        });
        let sent = Box::pin(sent).await;
        println!("{sent} requests opened and read {FILES} files");
        // A request has the access times of many.
        assert!(sent <= 3, "{sent} requests opened and read {FILES} files");
        // Once more, and the files go.
        let sent = requests_of(&mount, async {
            for name in &names {
                let (handle, _) = opened(&mount, &dir, name).await;
                mount.release(handle).await.expect("it is open");
                mount.unlink(&Cred::ROOT, &dir, name).await.expect("it is there");
            }
        });
        let sent = Box::pin(sent).await;
        assert!(sent <= 3, "{sent} requests removed {FILES} files");
        // Others find what was read, and when.
        unpack(&mount, &dir, &names[0], "contents").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (handle, _) = opened(&mount, &dir, &names[0]).await;
        let mine = mount.lookup(&Cred::ROOT, &dir, &names[0]).await.expect("it is there").attr;
        assert!(mine.atime > mine.mtime);
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let seen = other.lookup(&Cred::ROOT, &dir, &names[0]).await.expect("it is there").attr;
        assert_eq!((seen.atime, seen.ino), (mine.atime, mine.ino));
        mount.release(handle).await.expect("it is open");
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_that_was_opened_without_asking_lives_on_without_its_name() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        for by_other in [false, true] {
            unpack(&mount, &dir, &name("a"), "contents").await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let (handle, _) = opened(&mount, &dir, &name("a")).await;
            let remover = if by_other { &other } else { &mount };
            remover.unlink(&Cred::ROOT, &dir, &name("a")).await.expect("it is there");
            tokio::time::sleep(Duration::from_secs(2)).await;
            let attr = mount.opened_attr(handle).expect("it is open");
            mount.write(handle, 8, " and more".into(), false).await.expect("it is open");
            mount.fsync(handle).await.expect("it is open");
            let all = mount.read(handle, 0, 100).await.expect("it is open");
            assert_eq!(all, "contents and more");
            // The file is gone with the last handle.
            mount.release(handle).await.expect("it is open");
            tokio::time::sleep(Duration::from_secs(2)).await;
            let gone = FileRef { dir, name: name("a"), ino: attr.ino };
            let opened = other.open(&Cred::ROOT, &gone, Some(Access::READ)).await;
            assert!(opened.is_err(), "{opened:?}");
        }
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_that_had_a_second_name_for_a_moment_is_removed_together_with_others() {
    const FILES: usize = 20;
    in_held_dir(async |_, mount, dir| {
        let names = |kind: &str| -> Vec<_> {
            (0..FILES).map(|number| name(&format!("{kind}{number}"))).collect()
        };
        for (first, second) in names("tmp").iter().zip(&names("obj")) {
            unpack(&mount, &dir, first, "contents").await;
            let entry = mount.lookup(&Cred::ROOT, &dir, first).await.expect("it is there");
            let node = entry.node(&dir, first);
            mount.link(&Cred::ROOT, &node, &dir, second).await.expect("there is room");
            mount.unlink(&Cred::ROOT, &dir, first).await.expect("it is there");
            let (handle, bytes) = opened(&mount, &dir, second).await;
            assert_eq!(bytes, "contents");
            mount.release(handle).await.expect("it is open");
        }
        let sent = requests_of(&mount, async {
            for name in names("obj") {
                let entry = mount.lookup(&Cred::ROOT, &dir, &name).await.expect("it is there");
                assert_eq!(entry.attr.nlink, 1);
                mount.unlink(&Cred::ROOT, &dir, &name).await.expect("it is there");
            }
        });
        let sent = Box::pin(sent).await;
        assert!(sent <= 3, "{sent} requests removed {FILES} files");
        let (root, _) = mount.root();
        mount.rmdir(&Cred::ROOT, &root, &name("dir")).await.expect("it is empty");
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_is_given_another_name_as_git_does_without_asking() {
    const FILES: usize = 40;
    in_held_dir(async |world, mount, dir| {
        let names = |kind: &str| -> Vec<_> {
            (0..FILES).map(|number| name(&format!("{kind}{number}"))).collect()
        };
        let sent = requests_of(&mount, async {
            for (first, second) in names("tmp").iter().zip(&names("obj")) {
                unpack(&mount, &dir, first, "contents").await;
                let entry = mount.lookup(&Cred::ROOT, &dir, first).await.expect("it is there");
                let (node, before) = (entry.node(&dir, first), entry.attr);
                let linked = mount.link(&Cred::ROOT, &node, &dir, second).await;
                assert_eq!(linked.expect("there is room").attr.nlink, 2);
                for name in [first, second] {
                    let seen = mount.lookup(&Cred::ROOT, &dir, name).await.expect("it is there");
                    assert_eq!((seen.attr.ino, seen.attr.nlink), (before.ino, 2));
                }
                let left = mount.unlink(&Cred::ROOT, &dir, first).await.expect("it is there");
                assert_eq!((left.nlink, left.mtime), (1, before.mtime));
                let gone = mount.lookup(&Cred::ROOT, &dir, first).await;
                assert_eq!(gone.map(drop), Err(FsError::NotFound.into()));
            }
        });
        let sent = Box::pin(sent).await;
        assert!(sent <= 8, "{sent} requests made {FILES} files");
        let mine = mount.readdir(&Cred::ROOT, &dir, 0, 100, true).await.expect("it is there");
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let seen = other.readdir(&Cred::ROOT, &dir, 0, 100, true).await.expect("it is there");
        // The clock stands still, so a ctime says nothing.
        let shown = |page: &ReaddirPage| -> Vec<_> {
            let entries = page.entries.iter().map(|listed| {
                let attr = listed.entry.as_ref().expect("it was asked for").attr;
                (listed.name.clone(), Attr { ctime: attr.btime, ..attr })
            });
            entries.collect()
        };
        assert_eq!(shown(&mine).len(), FILES);
        assert_eq!(shown(&mine), shown(&seen));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

/// Makes a file, and gives it a second name at once; its entry before that.
async fn with_two_names(
    mount: &Delegating,
    dir: &DirRef,
    [first, second]: [&EntryName; 2],
) -> Entry {
    unpack(mount, dir, first, "contents").await;
    let entry = mount.lookup(&Cred::ROOT, dir, first).await.expect("it is there");
    let node = entry.node(dir, first);
    mount.link(&Cred::ROOT, &node, dir, second).await.expect("there is room");
    entry
}

#[test]
fn a_second_name_that_stays_is_sent_and_changes_of_the_file_with_it() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let (first, second) = (name("a"), name("b"));
        let entry = with_two_names(&mount, &dir, [&first, &second]).await;
        let node = entry.node(&dir, &first);
        // Changes come at each moment of the way of the name.
        for round in 0..8 {
            let mode = SetAttr { mode: Some(0o600 + round), ..SetAttr::default() };
            mount.setattr(&Cred::ROOT, &node, mode).await.expect("it is there");
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
        for name in [&first, &second] {
            let mine = mount.lookup(&Cred::ROOT, &dir, name).await.expect("it is there").attr;
            assert_eq!((mine.mode & 0o777, mine.nlink), (0o607, 2));
        }
        mount.unlink(&Cred::ROOT, &dir, &first).await.expect("it is there");
        let seen = other.lookup(&Cred::ROOT, &dir, &second).await.expect("it is there").attr;
        assert_eq!((seen.mode & 0o777, seen.nlink, seen.size), (0o607, 1, 8));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn what_is_written_under_a_lock_is_seen_at_once() {
    in_held_dir(async |_, mount, dir| {
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let made = mount.create(&Cred::ROOT, &dir, &name("a"), new, true, true).await;
        let made = made.expect("it is new");
        let (node, handle) =
            (made.entry.node(&dir, &name("a")), made.handle.expect("to be opened"));
        let lock = FileLock {
            range: ByteRange::ALL,
            kind: LockKind::Whole,
            mode: LockMode::Exclusive,
            pid: 1,
        };
        mount.lock(handle, 7, lock).await.expect("nobody has one");
        mount.write(handle, 0, "contents".into(), false).await.expect("there is room");
        let size = async || mount.getattr(&Cred::ROOT, &node).await.expect("it is there").size;
        assert_eq!(size().await, 8);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(size().await, 8);
        mount.release(handle).await.expect("it is open");
        assert_eq!(size().await, 8);
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_that_was_changed_while_it_had_two_names_is_shown_as_it_is() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let (first, second) = (name("a"), name("b"));
        let entry = with_two_names(&mount, &dir, [&first, &second]).await;
        mount.settle_all().await;
        let node = entry.node(&dir, &second);
        let (key, value): (Bytes, Bytes) = ("user.note".into(), "text".into());
        let pair = (key.clone(), value.clone());
        let set = mount.setxattr(&Cred::ROOT, &node, key, value, XattrMode::Set).await;
        set.expect("there is room");
        mount.unlink(&Cred::ROOT, &dir, &first).await.expect("it is there");
        let xattrs = mount.xattrs(&Cred::ROOT, &node).await.expect("it is there");
        assert_eq!(xattrs, [pair]);
        let seen = other.lookup(&Cred::ROOT, &dir, &second).await.expect("it is there");
        assert_eq!((seen.attr.nlink, seen.attr.ino), (1, entry.attr.ino));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_second_name_and_times_of_the_directory_do_not_wait_for_each_other() {
    in_held_dir(async |world, mount, dir| {
        let (first, second) = (name("a"), name("b"));
        unpack(&mount, &dir, &first, "contents").await;
        let entry = mount.lookup(&Cred::ROOT, &dir, &first).await.expect("it is there");
        let node = entry.node(&dir, &first);
        let NodeRef::File(file) = &node else { panic!("it is a file") };
        let handle = mount.open(&Cred::ROOT, file, None).await.expect("it is there");
        mount.link(&Cred::ROOT, &node, &dir, &second).await.expect("there is room");
        let mtime = Some(SetTime::At(base::Time { sec: 5, nsec: 0 }));
        let times = SetAttr { mtime, ..SetAttr::default() };
        mount.setattr(&Cred::ROOT, &NodeRef::Dir(dir), times).await.expect("it is there");
        // More of the file comes, and waits for the times.
        mount.write(handle, 8, " and more".into(), false).await.expect("there is room");
        mount.flush(handle).await.expect("there is room");
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        mount.read(handle, 0, 100).await.expect("it is open");
        let settled = tokio::time::timeout(Duration::from_secs(60), async {
            mount.setattr(&Cred::ROOT, &node, mode).await.expect("it is there");
            mount.settle_all().await;
        });
        settled.await.expect("nothing waits for itself");
        mount.release(handle).await.expect("it is open");
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let seen = other.lookup(&Cred::ROOT, &dir, &second).await.expect("it is there").attr;
        assert_eq!((seen.mode & 0o777, seen.nlink, seen.size), (0o600, 2, 17));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_is_changed_by_a_second_name_that_is_not_sent() {
    in_held_dir(async |_, mount, dir| {
        let (first, second) = (name("a"), name("b"));
        unpack(&mount, &dir, &first, "contents").await;
        mount.settle_all().await;
        let entry = mount.lookup(&Cred::ROOT, &dir, &first).await.expect("it is there");
        mount.link(&Cred::ROOT, &entry.node(&dir, &first), &dir, &second).await.expect("room");
        let node = entry.node(&dir, &second);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let attr = mount.setattr(&Cred::ROOT, &node, mode).await.expect("it is there");
        assert_eq!((attr.mode & 0o777, attr.ino), (0o600, entry.attr.ino));
        let size = SetAttr { size: Some(3), ..SetAttr::default() };
        mount.setattr(&Cred::ROOT, &node, size).await.expect("it is there");
        let (handle, bytes) = opened(&mount, &dir, &second).await;
        assert_eq!(bytes, "con");
        mount.release(handle).await.expect("it is open");
        mount.unlink(&Cred::ROOT, &dir, &second).await.expect("it is there");
        let left = mount.lookup(&Cred::ROOT, &dir, &first).await.expect("it is there").attr;
        assert_eq!((left.nlink, left.size), (1, 3));
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn names_are_right_when_the_directory_is_asked_for_while_a_second_one_is_sent() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let (first, second, third) = (name("a"), name("b"), name("c"));
        let entry = with_two_names(&mount, &dir, [&first, &second]).await;
        let caller = Cred::ROOT;
        let (moved, removed, _) = tokio::join!(
            mount.rename(&caller, (&dir, &second), (&dir, &third), RenameMode::Replace),
            mount.unlink(&caller, &dir, &first),
            other.lookup(&caller, &dir, &first),
        );
        assert_eq!((moved.map(drop), removed.map(drop)), (Ok(()), Ok(())));
        for mount in [&mount, &other] {
            let seen = mount.lookup(&Cred::ROOT, &dir, &third).await.expect("it is there").attr;
            assert_eq!((seen.ino, seen.nlink), (entry.attr.ino, 1));
        }
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}

#[test]
fn a_file_that_is_open_lives_on_when_both_of_its_names_go() {
    in_held_dir(async |world, mount, dir| {
        let other = Delegating::new(world.client(&Token::administrator(), true).await, false);
        let (first, second) = (name("a"), name("b"));
        unpack(&mount, &dir, &first, "contents").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (handle, _) = opened(&mount, &dir, &first).await;
        let attr = mount.opened_attr(handle).expect("it is open");
        let node = NodeRef::File(FileRef { dir, name: first.clone(), ino: attr.ino });
        mount.link(&Cred::ROOT, &node, &dir, &second).await.expect("there is room");
        mount.settle_all().await;
        for name in [&first, &second] {
            other.unlink(&Cred::ROOT, &dir, name).await.expect("it is there");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let found = mount.seek(handle, 0, SeekTo::Data).await;
        assert_eq!(found, Ok(0), "the server has it");
        mount.release(handle).await.expect("it is open");
        mount.close().await.expect("nothing is left");
        assert_eq!(mount.lost(), 0);
    });
}
