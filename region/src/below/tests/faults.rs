//! Failures: nothing half made stays, and the faults of [`Memory`] do what they say.

use base::FsError;

use super::*;

#[test]
fn a_make_that_fails_leaves_nothing() {
    each(|below| {
        let meta = Meta { uid: u32::MAX, ..meta(0o644) };
        let kinds = [
            New::File(contents("abc")),
            New::Directory,
            New::Symlink("x".into()),
            New::Special(base::FileKind::Fifo, 0),
        ];
        for new in kinds {
            assert_eq!(below.make(&path("f"), &new, &meta), Err(FsError::Invalid), "{new:?}");
            assert_eq!(names(below, ""), [""; 0]);
        }
        assert_eq!(below.unnamed(&Path::root(), &meta).err(), Some(FsError::Invalid));
        let symlink = |target: Vec<u8>| {
            below.make(&path("s"), &New::Symlink(target.into()), &super::meta(0o777))
        };
        assert_eq!(symlink(vec![]), Err(FsError::NotFound));
        assert_eq!(symlink(vec![b'x'; 4096]), Err(FsError::NameTooLong));
        assert_eq!(names(below, ""), [""; 0]);
    });
}

#[test]
fn calls_are_counted_and_fail_as_planned() {
    let memory = memory();
    file(&memory, "a", "");
    memory.fail_next(2, FsError::QuotaExceeded);
    assert_eq!(memory.look(&path("a")), Err(FsError::QuotaExceeded));
    assert_eq!(memory.unlink(&path("a")), Err(FsError::QuotaExceeded));
    assert!(memory.look(&path("a")).unwrap().is_some());
    dir(&memory, "d");
    memory.fail_within(path("d"), FsError::Denied);
    assert_eq!(
        memory.rename(&path("a"), &path("d/a"), wire::RenameMode::Replace),
        Err(FsError::Denied)
    );
    memory.fail(|call| (call.method == "list").then_some(FsError::Stale));
    assert_eq!(memory.list(&path("d"), usize::MAX), Err(FsError::Stale));
    memory.heal();
    memory.rename(&path("a"), &path("d/a"), wire::RenameMode::Replace).unwrap();
    assert_eq!((memory.calls_of("look"), memory.calls_of("rename")), (2, 2));
    assert_eq!((memory.changes(), memory.calls_of("statfs")), (3, 0));
    memory.forget_calls();
    assert!(memory.calls().is_empty() && memory.changes() == 0);
}

#[test]
fn a_full_disk_takes_nothing_until_there_is_room() {
    let memory = memory();
    file(&memory, "a", "abc");
    let open = memory.open(&path("a")).unwrap();
    memory.full();
    let new = New::File(contents("x"));
    let change = Change { contents: Some(contents("x")), ..Change::default() };
    assert_eq!(memory.make(&path("b"), &new, &meta(0o644)), Err(FsError::NoSpace));
    assert_eq!(memory.set(&path("a"), &change), Err(FsError::NoSpace));
    assert_eq!(open.write_at(0, b"x"), Err(FsError::NoSpace));
    assert_eq!(memory.statfs().unwrap().bytes_free, 0);
    memory.set(&path("a"), &mode(0o600)).unwrap();
    open.truncate(1).unwrap();
    memory.unlink(&path("a")).unwrap();
    memory.room();
    memory.make(&path("b"), &new, &meta(0o644)).unwrap();
    memory.check();
}

#[test]
fn a_machine_that_died_answers_nothing_and_has_what_it_had() {
    let memory = memory();
    memory.after(2);
    file(&memory, "a", "abc");
    assert_eq!(memory.unlink(&path("x")), Err(FsError::NotFound), "no change was made");
    file(&memory, "b", "");
    assert_eq!(memory.unlink(&path("a")), Err(FsError::Io));
    assert_eq!(memory.look(&path("a")), Err(FsError::Io));
    assert_eq!(memory.statfs(), Err(FsError::Io));
    let tree = memory.tree();
    memory.heal();
    assert_eq!(memory.tree(), tree);
    let paths: Vec<String> = tree.keys().map(ToString::to_string).collect();
    assert_eq!(paths, [".", "a", "b"]);
    assert_eq!(tree[&path("a")].1, "abc");
    assert_eq!(tree[&path("a")].0, look(&memory, "a").unwrap().attr);
    let outsider = memory.clone();
    outsider.unlink(&path("a")).unwrap();
    assert_eq!(look(&memory, "a"), None);
}
