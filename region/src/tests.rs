//! A region over a file system in memory that fails, that others change, and that is larger than
//! the region's memory. `lab` has random operations.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use base::{Clock, Cred, EntryName, FileKind, FsError, HashKey, SetAttr, Time};
use bytes::Bytes;
use client::{Error, FileSystem as _, Handle, New as NewFile};
use futures::executor::block_on;
use wire::{DirRef, Entry, FileRef};

use crate::{Below as _, Calls, Change, Memory, Meta, New, Path, Region, Settings, Verify};

/// A clock that goes on by a second whenever somebody looks: nothing waits for long.
struct Seconds(AtomicI64);

impl Clock for Seconds {
    fn now(&self) -> Time {
        Time { sec: self.0.fetch_add(1, Ordering::Relaxed), nsec: 0 }
    }
}

/// A clock that is set by hand.
struct Still(AtomicI64);

impl Clock for Still {
    fn now(&self) -> Time {
        Time { sec: self.0.load(Ordering::Relaxed), nsec: 0 }
    }
}

fn world(settings: Settings) -> (Memory, Region) {
    world_at(Arc::new(Seconds(AtomicI64::new(1_000_000))), settings)
}

fn world_at(clock: Arc<impl Clock + 'static>, settings: Settings) -> (Memory, Region) {
    let memory = Memory::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let below = Arc::new(memory.clone());
    let region = Region::new(below, Calls::Here, settings, clock, HashKey::new(1, 2)).unwrap();
    (memory, region)
}

fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

fn path(text: &str) -> Path {
    text.split('/').fold(Path::root(), |above, part| above.child(&name(part)))
}

fn mkdir(region: &Region, dir: &DirRef, text: &str) -> DirRef {
    block_on(region.mkdir(&Cred::ROOT, dir, &name(text), 0o755)).unwrap().dir.unwrap()
}

/// Makes a file and leaves it open.
fn create(region: &Region, dir: &DirRef, text: &str, contents: &str) -> Result<Handle, Error> {
    let new = NewFile { kind: FileKind::File, mode: 0o644, rdev: 0 };
    let made = block_on(region.create(&Cred::ROOT, dir, &name(text), new, true, true))?;
    let handle = made.handle.expect("it was asked for");
    block_on(region.write(handle, 0, Bytes::copy_from_slice(contents.as_bytes()), false))?;
    Ok(handle)
}

fn lookup(region: &Region, dir: &DirRef, text: &str) -> Result<Entry, Error> {
    block_on(region.lookup(&Cred::ROOT, dir, &name(text)))
}

fn open(region: &Region, dir: &DirRef, text: &str) -> Result<Handle, Error> {
    let ino = lookup(region, dir, text)?.attr.ino;
    let file = FileRef { dir: *dir, name: name(text), ino };
    block_on(region.open(&Cred::ROOT, &file, None))
}

fn sync(region: &Region) {
    block_on(region.sync()).unwrap();
    region.check();
    assert!(region.progress().counts.add_up(), "{:?}", region.progress());
}

/// Somebody outside makes a file, for all to use.
fn outsider_makes(memory: &Memory, text: &str, contents: &str) {
    let time = Time { sec: 5, nsec: 0 };
    let meta = Meta { mode: 0o644, uid: 0, gid: 0, atime: time, mtime: time };
    let contents = Arc::new(contents.as_bytes().to_vec());
    memory.make(&path(text), &New::File(contents), &meta).unwrap();
}

fn read_below(memory: &Memory, text: &str) -> String {
    String::from_utf8(memory.read(&path(text), 1_000).unwrap()).unwrap()
}

#[test]
fn an_outsider_s_file_stays_whatever_the_region_does_with_the_name() {
    let (memory, region) = world(Settings::default());
    let root = DirRef::ROOT;
    let handle = create(&region, &root, "f", "ours").unwrap();
    mkdir(&region, &root, "d");
    outsider_makes(&memory, "f", "theirs");
    outsider_makes(&memory, "d", "theirs, too");
    let d = lookup(&region, &root, "d").unwrap().dir.unwrap();
    create(&region, &d, "x", "below it").unwrap();
    sync(&region);
    assert_eq!(region.progress().failed, 3);
    // More changes, and all of it removed.
    block_on(region.write(handle, 0, Bytes::from_static(b"OURS"), false)).unwrap_err();
    block_on(region.write(handle, 0, Bytes::from_static(b"OURS"), false)).unwrap();
    sync(&region);
    block_on(region.unlink(&Cred::ROOT, &d, &name("x"))).unwrap();
    block_on(region.rmdir(&Cred::ROOT, &root, &name("d"))).unwrap();
    block_on(region.unlink(&Cred::ROOT, &root, &name("f"))).unwrap();
    sync(&region);
    assert_eq!(read_below(&memory, "f"), "theirs");
    assert_eq!(read_below(&memory, "d"), "theirs, too");
    assert_eq!(region.progress().failed, 0);
}

/// A directory that was there before the region, with so many files.
fn old_dir(memory: &Memory, region: &Region, files: usize) -> DirRef {
    let time = Time { sec: 5, nsec: 0 };
    let meta = Meta { mode: 0o755, uid: 0, gid: 0, atime: time, mtime: time };
    memory.make(&path("d"), &New::Directory, &meta).unwrap();
    memory.set(&path("d"), &Change { mode: Some(0o755), ..Change::default() }).unwrap();
    (0..files).for_each(|file| outsider_makes(memory, &format!("d/old{file}"), "old"));
    lookup(region, &DirRef::ROOT, "d").unwrap().dir.unwrap()
}

fn absent() -> Option<Error> {
    Some(FsError::NotFound.into())
}

#[test]
fn new_names_in_an_old_directory_are_known_after_a_few_looks() {
    let clock = Arc::new(Still(AtomicI64::new(1_000_000)));
    let (memory, region) = world_at(Arc::clone(&clock), Settings::default());
    let d = old_dir(&memory, &region, 100);
    let loads = || region.progress().counts.loads;
    let before = loads();
    for file in 0..500 {
        create(&region, &d, &format!("new{file}"), "new").unwrap();
    }
    assert_eq!(loads() - before, 5, "four looks and a listing");
    sync(&region);
    assert_eq!(lookup(&region, &d, "old99").map(drop), Ok(()));
    // A file that stops a program is seen after a while.
    assert_eq!(lookup(&region, &d, "stop").err(), absent());
    outsider_makes(&memory, "d/stop", "");
    assert_eq!(lookup(&region, &d, "stop").err(), absent());
    clock.0.fetch_add(6, Ordering::Relaxed);
    assert_eq!(lookup(&region, &d, "stop").map(drop), Ok(()));
    // Names that are gone, and names that have come meanwhile, are right.
    let before = loads();
    for file in 0..100 {
        let gone = format!("old{file}");
        block_on(region.unlink(&Cred::ROOT, &d, &name(&gone))).unwrap();
        assert_eq!(lookup(&region, &d, &gone).err(), absent());
        assert_eq!(lookup(&region, &d, &format!("none{file}")).err(), absent());
    }
    sync(&region);
    assert!(loads() - before < 130, "{} looks", loads() - before);
    assert_eq!(memory.list(&path("d"), usize::MAX).unwrap().len(), 501);
}

#[test]
fn a_file_that_was_forgotten_is_found_though_its_directory_was_listed_before_it_was_made() {
    let settings = Settings { memory_max: 100_000, ..Settings::default() };
    let (memory, region) = world_at(Arc::new(Still(AtomicI64::new(1_000_000))), settings);
    let d = old_dir(&memory, &region, 3);
    for file in 0..400 {
        let handle = create(&region, &d, &format!("new{file}"), "new").unwrap();
        block_on(region.release(handle)).unwrap();
        if file % 50 == 0 {
            sync(&region);
        }
    }
    sync(&region);
    assert!(region.progress().memory <= 90_000, "{:?}", region.progress());
    for file in 0..400 {
        let found = lookup(&region, &d, &format!("new{file}"));
        assert_eq!(found.map(|found| found.attr.size), Ok(3), "new{file}");
    }
}

#[test]
fn a_directory_of_very_many_names_is_looked_at_name_by_name() {
    let (memory, region) =
        world_at(Arc::new(Still(AtomicI64::new(1_000_000))), Settings::default());
    let d = old_dir(&memory, &region, 20_000);
    let before = region.progress().counts.loads;
    for file in 0..400 {
        create(&region, &d, &format!("new{file}"), "new").unwrap();
    }
    // After 4, 16, 64 and 256 looks as many names are read as have cost as much.
    assert_eq!(region.progress().counts.loads - before, 404);
    sync(&region);
}

#[test]
fn a_larger_directory_is_listed_when_that_is_worth_it() {
    let (memory, region) =
        world_at(Arc::new(Still(AtomicI64::new(1_000_000))), Settings::default());
    let d = old_dir(&memory, &region, 1000);
    let before = region.progress().counts.loads;
    for file in 0..400 {
        create(&region, &d, &format!("new{file}"), "new").unwrap();
    }
    assert_eq!(region.progress().counts.loads - before, 4 + 1 + 12 + 1);
    sync(&region);
}

#[test]
fn an_absence_is_of_the_directory_and_not_of_its_path() {
    let (memory, region) =
        world_at(Arc::new(Still(AtomicI64::new(1_000_000))), Settings::default());
    for dir in ["a", "b"] {
        let time = Time { sec: 5, nsec: 0 };
        let meta = Meta { mode: 0o755, uid: 0, gid: 0, atime: time, mtime: time };
        memory.make(&path(dir), &New::Directory, &meta).unwrap();
    }
    outsider_makes(&memory, "b/x", "theirs");
    let root = DirRef::ROOT;
    let a = lookup(&region, &root, "a").unwrap().dir.unwrap();
    assert_eq!(lookup(&region, &a, "x").err(), absent());
    block_on(region.rmdir(&Cred::ROOT, &root, &name("a"))).unwrap();
    let mode = wire::RenameMode::Replace;
    let (b, a) = (name("b"), name("a"));
    block_on(region.rename(&Cred::ROOT, (&root, &b), (&root, &a), mode)).unwrap();
    let a = lookup(&region, &root, "a").unwrap().dir.unwrap();
    assert_eq!(lookup(&region, &a, "x").map(|found| found.attr.size), Ok(6));
    assert_eq!(create(&region, &a, "x", "ours").err(), Some(FsError::Exists.into()));
}

#[test]
fn a_name_is_looked_up_again_where_what_was_known_of_it_has_become_old_meanwhile() {
    // Time goes on by a second with each look, and an absence is believed for five.
    let (memory, region) = world(Settings::default());
    let d = old_dir(&memory, &region, 1);
    let (from, to) = (name("old0"), name("new"));
    assert_eq!(lookup(&region, &d, "new").err(), absent());
    let mode = wire::RenameMode::Replace;
    block_on(region.rename(&Cred::ROOT, (&d, &from), (&d, &to), mode)).unwrap();
    assert_eq!(lookup(&region, &d, "new").map(|found| found.attr.size), Ok(3));
    sync(&region);
}

#[test]
fn an_end_that_is_given_up_ends_also_where_directories_are_left_over() {
    let clock = Arc::new(Still(AtomicI64::new(1_000_000)));
    let (memory, region) = world_at(clock, Settings::default());
    let d = old_dir(&memory, &region, 1);
    create(&region, &d, "new", "contents").unwrap();
    memory.fail_within(path("d"), FsError::Io);
    let report = block_on(region.finish(std::time::Duration::ZERO, |_| ())).unwrap();
    assert_eq!((report.failed.len(), report.late), (1, 1));
    assert_eq!(region.progress().dirty + region.progress().late, 0);
}

#[test]
fn a_region_that_is_closed_answers_no_more_and_ends() {
    let (memory, region) = world(Settings::default());
    let handle = create(&region, &DirRef::ROOT, "f", "answered").unwrap();
    region.close();
    let lost = Err(FsError::Io.into());
    assert_eq!(block_on(region.write(handle, 0, Bytes::from_static(b"x"), false)).map(drop), lost);
    assert_eq!(create(&region, &DirRef::ROOT, "g", "").err(), Some(FsError::Io.into()));
    let report = block_on(region.finish(std::time::Duration::ZERO, |_| ())).unwrap();
    assert!(report.counts.add_up() && report.failed.is_empty());
    assert_eq!(block_on(region.verify(Verify::All)), Ok(Vec::new()));
    assert_eq!(read_below(&memory, "f"), "answered");
}

#[test]
fn a_refusal_is_told_once_and_another_change_tries_again() {
    let (memory, region) = world(Settings::default());
    let d = mkdir(&region, &DirRef::ROOT, "d");
    sync(&region);
    memory.fail_within(path("d"), FsError::Denied);
    let handle = create(&region, &d, "f", "contents").unwrap();
    sync(&region);
    assert_eq!(block_on(region.flush(handle)), Err(FsError::Denied.into()));
    assert_eq!(block_on(region.flush(handle)), Ok(()));
    assert_eq!(open(&region, &d, "f").map(drop), Ok(()));
    assert_eq!((region.progress().failed, region.progress().dirty), (1, 0));
    let failed = block_on(region.rmdir(&Cred::ROOT, &DirRef::ROOT, &name("d")));
    assert_eq!(failed, Err(FsError::NotEmpty.into()));
    memory.heal();
    block_on(region.write(handle, 0, Bytes::from_static(b"new"), false)).unwrap();
    sync(&region);
    assert_eq!(region.progress().failed, 0);
    assert_eq!(read_below(&memory, "d/f"), "newtents");
}

#[test]
fn a_full_disk_refuses_what_needs_room_and_removals_make_some() {
    let (memory, region) = world(Settings::default());
    create(&region, &DirRef::ROOT, "old", "old").unwrap();
    sync(&region);
    create(&region, &DirRef::ROOT, "new", "new").unwrap();
    memory.full();
    assert_eq!(block_on(region.sync()), Err(FsError::NoSpace.into()));
    assert_eq!(create(&region, &DirRef::ROOT, "more", "").map(drop), Err(FsError::NoSpace.into()));
    block_on(region.unlink(&Cred::ROOT, &DirRef::ROOT, &name("old"))).unwrap();
    while region.commit(1) > 0 && memory.look(&path("old")).unwrap().is_some() {}
    assert_eq!(memory.look(&path("old")).unwrap(), None, "removals go first");
    memory.room();
    sync(&region);
    assert_eq!(read_below(&memory, "new"), "new");
    create(&region, &DirRef::ROOT, "more", "").unwrap();
}

#[test]
fn a_directory_that_an_outsider_removes_is_made_again_for_what_is_in_it() {
    let (memory, region) = world(Settings::default());
    let d = mkdir(&region, &DirRef::ROOT, "d");
    sync(&region);
    memory.rmdir(&path("d")).unwrap();
    create(&region, &d, "f", "contents").unwrap();
    sync(&region);
    assert_eq!(read_below(&memory, "d/f"), "contents");
    assert!(region.progress().counts.outside > 0);
}

#[test]
fn memory_stays_within_its_bound_and_the_rest_is_looked_up_again() {
    let settings = Settings { memory_max: 200_000, ..Settings::default() };
    let (_, region) = world(settings);
    let d = mkdir(&region, &DirRef::ROOT, "d");
    for number in 0..1_000 {
        let handle = create(&region, &d, &number.to_string(), &format!("{number}!")).unwrap();
        block_on(region.release(handle)).unwrap();
        while region.commit(16) > 0 {}
    }
    sync(&region);
    for number in 0..1_000 {
        let handle = open(&region, &d, &number.to_string()).unwrap();
        let read = block_on(region.read(handle, 0, 100)).unwrap();
        assert_eq!(read, format!("{number}!"));
        block_on(region.release(handle)).unwrap();
        assert!(region.progress().memory <= 200_000, "{:?}", region.progress());
    }
    region.check();
    let absent = lookup(&region, &d, "1000").map(drop);
    assert_eq!(absent, Err(FsError::NotFound.into()));
    assert!(region.progress().counts.loads > 500);
    let listed = block_on(region.readdir(&Cred::ROOT, &d, 0, 10_000, false)).unwrap();
    assert_eq!(listed.entries.len(), 1_000);
}

#[test]
fn a_difference_below_is_found() {
    let (memory, region) = world(Settings::default());
    create(&region, &DirRef::ROOT, "f", "ours").unwrap();
    sync(&region);
    let verify = || block_on(region.verify(Verify::All)).unwrap();
    assert_eq!(verify(), []);
    memory.unlink(&path("f")).unwrap();
    outsider_makes(&memory, "f", "mine");
    let found = verify();
    let of_file = found.iter().find(|difference| difference.path == path("f")).unwrap();
    assert_eq!(of_file.what, "has another time of the last change");
}

#[test]
fn calls_below_are_few() {
    let (memory, region) = world(Settings::default());
    let d = mkdir(&region, &DirRef::ROOT, "d");
    for number in 0..10 {
        let handle = create(&region, &d, &number.to_string(), "contents").unwrap();
        block_on(region.release(handle)).unwrap();
    }
    assert_eq!(memory.calls_of("look"), 2, "the root, and the name of the first directory");
    memory.forget_calls();
    sync(&region);
    assert_eq!(
        (memory.calls_of("make"), memory.calls_of("set")),
        (11, 2),
        "two directories' times"
    );
    // A tree that was never below needs no call.
    memory.forget_calls();
    let d = mkdir(&region, &d, "t");
    create(&region, &d, "f", "x").unwrap();
    block_on(region.unlink(&Cred::ROOT, &d, &name("f"))).unwrap();
    let above = lookup(&region, &DirRef::ROOT, "d").unwrap().dir.unwrap();
    block_on(region.rmdir(&Cred::ROOT, &above, &name("t"))).unwrap();
    assert_eq!((memory.calls_of("make"), memory.calls_of("rmdir")), (0, 0));
    sync(&region);
}

#[test]
fn others_get_more_rights_in_a_directory_late_and_lose_them_at_once() {
    let (memory, region) = world(Settings::default());
    let d = mkdir(&region, &DirRef::ROOT, "d");
    sync(&region);
    create(&region, &d, "f", "dirty").unwrap();
    let mode_below = || memory.look(&path("d")).unwrap().unwrap().attr.mode & 0o777;
    let set = |set: SetAttr| {
        let node = wire::NodeRef::Dir(d);
        block_on(region.setattr(&Cred::ROOT, &node, set)).unwrap().mode & 0o777
    };
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    // A change of nothing waits for nothing.
    let calls = region.progress().counts.commits;
    set(SetAttr { uid: Some(0), gid: Some(0), ..mode(0o755) });
    assert_eq!(set(mode(0o775)), 0o775);
    assert_eq!((mode_below(), region.progress().dirty), (0o755, 1));
    assert_eq!(region.progress().counts.commits, calls);
    sync(&region);
    assert_eq!(mode_below(), 0o775);
    // The mode of one that is made stable is below.
    set(mode(0o777));
    block_on(region.sync_dir(&d)).unwrap();
    assert_eq!(mode_below(), 0o777);
    create(&region, &d, "g", "dirty").unwrap();
    assert_eq!(set(mode(0o1777)), 0o777);
    assert_eq!(memory.look(&path("d")).unwrap().unwrap().attr.mode & 0o7777, 0o1777);
    create(&region, &d, "h", "dirty").unwrap();
    assert_eq!(set(mode(0o700)), 0o700);
    assert_eq!((mode_below(), region.progress().dirty), (0o700, 0));
    // One that has only its owner's rights wrong is told of.
    set(mode(0o755));
    memory.fail_within(path("d"), FsError::NotPermitted);
    let report = block_on(region.finish(std::time::Duration::ZERO, |_| ())).unwrap();
    assert_eq!((report.failed.len(), report.late), (0, 1));
}
