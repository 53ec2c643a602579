//! Names: making, removing, moving, linking and listing.

use base::{EntryName, FileKind, FsError, Ino};
use wire::RenameMode::{Exchange, NoReplace, Replace};

use super::*;

#[test]
fn what_is_made_is_as_it_was_asked_for() {
    each(|below| {
        let kinds = [
            (New::File(contents("abc")), FileKind::File, 0o4640, 3),
            (New::Directory, FileKind::Directory, 0o1751, 0),
            (New::Symlink("some/where".into()), FileKind::Symlink, 0o777, 10),
            (New::Special(FileKind::Fifo, 0), FileKind::Fifo, 0o606, 0),
            (New::Special(FileKind::Socket, 0), FileKind::Socket, 0o777, 0),
        ];
        for (number, (new, kind, mode, size)) in kinds.into_iter().enumerate() {
            let at = path(number.to_string());
            let wanted = meta(mode);
            let made = below.make(&at, &new, &wanted).unwrap();
            let attr = made.attr;
            assert_eq!((attr.kind, attr.mode), (kind, mode), "{kind:?}");
            assert_eq!((attr.uid, attr.gid), (wanted.uid, wanted.gid));
            assert_eq!((attr.atime, attr.mtime), (wanted.atime, wanted.mtime), "{kind:?}");
            assert!(kind == FileKind::Directory || attr.size == size && attr.nlink == 1);
            assert!(!made.default_acl);
            assert_eq!(below.look(&at), Ok(Some(made)));
            assert_eq!(below.make(&at, &new, &wanted), Err(FsError::Exists));
            assert_eq!(below.make(&at, &New::Directory, &wanted), Err(FsError::Exists));
        }
        assert_eq!(below.target(&path("2")), Ok("some/where".into()));
        assert_eq!(below.target(&path("0")), Err(FsError::Invalid));
        let kinds: Vec<_> = names(below, "").iter().map(|at| look(below, at).unwrap()).collect();
        for entry in below.list(&Path::root(), usize::MAX).unwrap() {
            let found = kinds.iter().find(|found| found.attr.ino == entry.ino).unwrap();
            assert!(entry.kind.is_none_or(|kind| kind == found.attr.kind));
        }
    });
}

#[test]
fn a_device_is_made_with_its_number() {
    each(|below| {
        let new = New::Special(FileKind::CharDevice, 0x0001_0305);
        match below.make(&path("null"), &new, &meta(0o666)) {
            Ok(found) => assert_eq!(found.attr.rdev, 0x0001_0305),
            // The user may not, and then nothing is there.
            Err(error) => {
                assert_eq!(error, FsError::NotPermitted);
                assert_eq!(look(below, "null"), None);
            }
        }
    });
}

#[test]
fn a_directory_can_be_used_whatever_its_mode_until_it_is_set() {
    each(|below| {
        let made = below.make(&path("d"), &New::Directory, &meta(0o050)).unwrap();
        assert_eq!(made.attr.mode, 0o750);
        file(below, "d/f", "");
        assert_eq!(below.set(&path("d"), &mode(0o050)).unwrap().attr.mode, 0o050);
        assert_eq!(below.set(&path("d"), &mode(0o755)).unwrap().attr.mode, 0o755);
    });
}

#[test]
fn nothing_is_at_a_path_below_no_directory() {
    each(|below| {
        file(below, "f", "");
        symlink(below, "s", "d");
        dir(below, "d");
        file(below, "d/f", "");
        assert_eq!((look(below, "x"), look(below, "x/y"), look(below, "f/y")), (None, None, None));
        assert_eq!(look(below, "").unwrap().attr.kind, FileKind::Directory);
        let new = New::File(contents(""));
        assert_eq!(below.make(&path("x/y"), &new, &meta(0o644)), Err(FsError::NotFound));
        assert_eq!(below.make(&path("f/y"), &new, &meta(0o644)), Err(FsError::NotDirectory));
        assert_eq!(below.list(&path("x"), usize::MAX), Err(FsError::NotFound));
        assert_eq!(below.list(&path("f"), usize::MAX), Err(FsError::NotDirectory));
        assert_eq!(below.read(&path("d"), 9), Err(FsError::IsDirectory));
        assert_eq!(below.read(&path("x"), 9), Err(FsError::NotFound));
        assert_eq!(below.set(&path("x"), &mode(0)), Err(FsError::NotFound));
    });
}

#[test]
fn no_symbolic_link_is_followed() {
    each(|below| {
        dir(below, "d");
        file(below, "d/f", "abc");
        symlink(below, "s", "d");
        symlink(below, "t", "d/f");
        symlink(below, "out", "/etc");
        let (at, new) = (path("s/f"), New::File(contents("")));
        assert_eq!(below.look(&at), Err(FsError::Loop));
        assert_eq!(below.look(&path("out/passwd")), Err(FsError::Loop));
        assert_eq!(below.list(&path("s"), usize::MAX), Err(FsError::Loop));
        assert_eq!(below.make(&path("s/g"), &new, &meta(0o644)), Err(FsError::Loop));
        assert_eq!(below.unlink(&at), Err(FsError::Loop));
        assert_eq!(below.rename(&at, &path("x"), Replace), Err(FsError::Loop));
        assert_eq!(below.link(&path("d/f"), &path("s/g")), Err(FsError::Loop));
        assert_eq!(below.set(&at, &mode(0)), Err(FsError::Loop));
        assert_eq!(below.read(&path("t"), 9), Err(FsError::Loop));
        assert_eq!(below.open(&path("t")).err(), Some(FsError::Loop));
        let change = Change { contents: Some(contents("x")), ..Change::default() };
        assert_eq!(below.set(&path("t"), &change), Err(FsError::Loop));
        assert_eq!(below.unnamed(&path("s"), &meta(0o600)).err(), Some(FsError::Loop));
        assert_eq!(below.sync_dir(&path("s")), Err(FsError::Loop));
        assert_eq!(below.make(&path("t"), &new, &meta(0o644)), Err(FsError::Exists));
        assert_eq!(text(below, "d/f"), "abc");
        below.link(&path("s"), &path("s2")).unwrap();
        assert_eq!(look(below, "s2").unwrap().attr.kind, FileKind::Symlink);
        below.unlink(&path("s")).unwrap();
        assert_eq!(names(below, "d"), ["f"]);
    });
}

#[test]
fn removing_wants_the_right_kind_and_an_empty_directory() {
    each(|below| {
        dir(below, "d");
        file(below, "d/f", "");
        assert_eq!(below.unlink(&path("d")), Err(FsError::IsDirectory));
        assert_eq!(below.rmdir(&path("d/f")), Err(FsError::NotDirectory));
        assert_eq!(below.rmdir(&path("d")), Err(FsError::NotEmpty));
        assert_eq!(below.unlink(&path("x")), Err(FsError::NotFound));
        assert_eq!(below.rmdir(&path("x")), Err(FsError::NotFound));
        assert_eq!(below.unlink(&Path::root()), Err(FsError::IsDirectory));
        assert_eq!(below.rmdir(&Path::root()), Err(FsError::Invalid));
        below.unlink(&path("d/f")).unwrap();
        below.rmdir(&path("d")).unwrap();
        assert_eq!(names(below, ""), [""; 0]);
    });
}

#[test]
fn an_entry_moves_as_posix_says() {
    each(|below| {
        let (a, b) = (file(below, "a", "A").attr.ino, file(below, "b", "B").attr.ino);
        dir(below, "d");
        dir(below, "e");
        file(below, "e/f", "");
        let ino = |at: &str| look(below, at).map(|found| found.attr.ino);
        let rename = |from: &str, to: &str, mode| below.rename(&path(from), &path(to), mode);
        assert_eq!(rename("a", "b", NoReplace), Err(FsError::Exists));
        assert_eq!(rename("a", "x", Exchange), Err(FsError::NotFound));
        assert_eq!(rename("x", "a", Replace), Err(FsError::NotFound));
        assert_eq!(rename("a", "d", Replace), Err(FsError::IsDirectory));
        assert_eq!(rename("d", "a", Replace), Err(FsError::NotDirectory));
        assert_eq!(rename("d", "e", Replace), Err(FsError::NotEmpty));
        assert_eq!(rename("e", "e/g", Replace), Err(FsError::Invalid));
        assert_eq!(rename("e/f", "e", Replace), Err(FsError::NotEmpty));
        assert_eq!(rename("e/f", "e", Exchange), Err(FsError::Invalid));
        assert_eq!(rename("", "x", Replace), Err(FsError::Busy));
        assert_eq!(rename("a", "", Replace), Err(FsError::Busy));
        rename("a", "b", Exchange).unwrap();
        assert_eq!((ino("a"), ino("b")), (Some(b), Some(a)));
        rename("a", "d", Exchange).unwrap();
        assert_eq!(look(below, "a").unwrap().attr.kind, FileKind::Directory);
        rename("e", "a", Replace).unwrap();
        assert_eq!((names(below, "a"), ino("e")), (vec!["f".to_owned()], None));
        rename("d", "a/g", NoReplace).unwrap();
        rename("a/g", "b", Replace).unwrap();
        assert_eq!((text(below, "b"), ino("b")), ("B".to_owned(), Some(b)));
        below.link(&path("b"), &path("c")).unwrap();
        rename("b", "c", Replace).unwrap();
        assert_eq!((ino("b"), ino("c")), (Some(b), Some(b)), "two names of one file stay");
    });
}

#[test]
fn a_file_has_several_names() {
    each(|below| {
        let ino = file(below, "a", "abc").attr.ino;
        dir(below, "d");
        below.link(&path("a"), &path("d/b")).unwrap();
        let found = look(below, "d/b").unwrap().attr;
        assert_eq!((found.ino, found.nlink), (ino, 2));
        let link = |from: &str, to: &str| below.link(&path(from), &path(to));
        assert_eq!(link("a", "d/b"), Err(FsError::Exists));
        assert_eq!(link("x", "y"), Err(FsError::NotFound));
        assert_eq!(link("d", "e"), Err(FsError::NotPermitted));
        assert_eq!(link("", "e"), Err(FsError::NotPermitted));
        assert_eq!(link("a", ""), Err(FsError::Exists));
        let change = Change { contents: Some(contents("xy")), ..Change::default() };
        below.set(&path("a"), &change).unwrap();
        assert_eq!(text(below, "d/b"), "xy");
        below.unlink(&path("a")).unwrap();
        assert_eq!(look(below, "d/b").unwrap().attr.nlink, 1);
    });
}

#[test]
fn names_have_any_bytes_and_paths_any_length() {
    each(|below| {
        let every: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let long = [b'x'; 255];
        for name in [&every[..], &long, b"\xff\xfe", b" ", b"a\nb", b"..."] {
            let at = path(name);
            below.make(&at, &New::File(contents("x")), &meta(0o644)).unwrap();
            assert_eq!(below.read(&at, 9), Ok(b"x".to_vec()));
            let listed = below.list(&Path::root(), usize::MAX).unwrap();
            let entry = listed.iter().find(|entry| entry.name.as_bytes() == name);
            assert!(entry.is_some(), "{}", name.escape_ascii());
            below.unlink(&at).unwrap();
        }
        let name = EntryName::new(&[b'd'; 250]).unwrap();
        let mut deep = Path::root();
        for _ in 0..40 {
            deep = deep.child(&name);
            below.make(&deep, &New::Directory, &meta(0o755)).unwrap();
        }
        let leaf = deep.child(&name);
        below.make(&leaf, &New::File(contents("deep")), &meta(0o644)).unwrap();
        assert_eq!(below.read(&leaf, 9), Ok(b"deep".to_vec()));
        below.rename(&leaf, &path("f"), Replace).unwrap();
        assert_eq!(text(below, "f"), "deep");
        while let Some((above, _)) = deep.split() {
            below.rmdir(&deep).unwrap();
            deep = above;
        }
    });
}

#[test]
fn listings_of_large_directories_are_whole() {
    each(|below| {
        for number in 0..1000 {
            file(below, &format!("file-{number:04}"), "");
        }
        let listed = below.list(&Path::root(), usize::MAX).unwrap();
        let inos: std::collections::BTreeSet<Ino> = listed.iter().map(|entry| entry.ino).collect();
        assert_eq!((listed.len(), inos.len()), (1000, 1000));
    });
}

#[test]
fn space_and_stable_storage_are_asked_for() {
    each(|below| {
        dir(below, "d");
        file(below, "d/f", "abc");
        symlink(below, "s", "d");
        below.sync_file(&path("d/f")).unwrap();
        below.sync_file(&path("s")).unwrap();
        below.sync_file(&path("d")).unwrap();
        below.sync_dir(&path("d")).unwrap();
        below.sync_dir(&Path::root()).unwrap();
        assert_eq!(below.sync_file(&path("x")), Err(FsError::NotFound));
        assert_eq!(below.sync_dir(&path("d/f")), Err(FsError::NotDirectory));
        let statfs = below.statfs().unwrap();
        assert!(statfs.bytes >= statfs.bytes_free && statfs.bytes > 0);
    });
}
