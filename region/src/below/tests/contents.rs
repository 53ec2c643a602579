//! Contents of files: whole, and through what is open.

use base::FsError;
use wire::{AllocateMode, SeekTo};

use super::*;

#[test]
fn contents_are_read_up_to_what_was_asked_for() {
    each(|below| {
        file(below, "f", "abcdef");
        assert_eq!(below.read(&path("f"), 3), Ok(b"abc".to_vec()));
        assert_eq!(below.read(&path("f"), 0), Ok(vec![]));
        let large = vec![b'x'; 3 << 20];
        let new = New::File(Arc::new(large.clone()));
        let found = below.make(&path("large"), &new, &meta(0o600)).unwrap();
        assert_eq!(found.attr.size, 3 << 20);
        assert!(below.read(&path("large"), usize::MAX) == Ok(large));
        let fifo = New::Special(base::FileKind::Fifo, 0);
        below.make(&path("fifo"), &fifo, &meta(0o600)).unwrap();
        assert_eq!(below.read(&path("fifo"), 9), Err(FsError::Invalid), "and does not wait");
    });
}

#[test]
fn an_open_file_is_read_and_written_and_lives_on() {
    each(|below| {
        file(below, "f", "abc");
        let open = below.open(&path("f")).unwrap();
        open.write_at(5, b"xyz").unwrap();
        assert_eq!(open.read_at(0, 99).unwrap(), &b"abc\0\0xyz"[..]);
        assert_eq!(open.read_at(6, 1).unwrap(), &b"y"[..]);
        assert_eq!(open.read_at(8, 9).unwrap(), &b""[..]);
        assert_eq!(open.read_at(u64::MAX, 9).unwrap(), &b""[..]);
        assert_eq!(text(below, "f"), "abc\0\0xyz");
        open.truncate(2).unwrap();
        open.truncate(4).unwrap();
        assert_eq!(open.read_at(0, 99).unwrap(), &b"ab\0\0"[..]);
        let change =
            Change { mode: Some(0o400), times: Some((time(1), time(2))), ..Change::default() };
        open.set(&change).unwrap();
        below.unlink(&path("f")).unwrap();
        let attr = open.attr().unwrap();
        assert_eq!((attr.nlink, attr.size, attr.mode, attr.mtime), (0, 4, 0o400, time(2)));
        open.write_at(0, b"z").unwrap();
        open.sync().unwrap();
        assert_eq!(open.read_at(0, 1).unwrap(), &b"z"[..]);
        assert_eq!(open.link(&path("g")), Err(FsError::NotFound), "its last name is gone");
        assert_eq!(open.write_at(i64::MAX as u64 + 1, b"x"), Err(FsError::Invalid));
        assert_eq!(open.truncate(u64::MAX), Err(FsError::Invalid));
    });
}

#[test]
fn only_a_regular_file_is_opened() {
    each(|below| {
        dir(below, "d");
        let fifo = New::Special(base::FileKind::Fifo, 0);
        below.make(&path("fifo"), &fifo, &meta(0o600)).unwrap();
        let error = |at: &str| below.open(&path(at)).err();
        assert_eq!(error("d"), Some(FsError::IsDirectory));
        assert_eq!(error("x"), Some(FsError::NotFound));
        assert_eq!(error("fifo"), Some(FsError::Invalid));
    });
}

#[test]
fn a_file_without_a_name_gets_one() {
    each(|below| {
        dir(below, "d");
        let (found, open) = below.unnamed(&path("d"), &meta(0o640)).unwrap();
        assert_eq!((found.attr.nlink, found.attr.mode), (0, 0o640));
        assert_eq!(names(below, "d"), [""; 0]);
        open.write_at(0, b"abc").unwrap();
        file(below, "taken", "");
        assert_eq!(open.link(&path("taken")), Err(FsError::Exists));
        assert_eq!(open.link(&path("x/y")), Err(FsError::NotFound));
        open.link(&path("d/f")).unwrap();
        open.link(&path("g")).unwrap();
        let attr = look(below, "g").unwrap().attr;
        assert_eq!((attr.ino, attr.nlink), (found.attr.ino, 2));
        assert_eq!(text(below, "d/f"), "abc");
        assert_eq!(below.unnamed(&path("g"), &meta(0o600)).err(), Some(FsError::NotDirectory));
        drop(below.unnamed(&Path::root(), &meta(0o600)).unwrap());
    });
}

#[test]
fn ranges_are_allocated_and_made_zeros() {
    each(|below| {
        file(below, "f", "abcdef");
        let open = below.open(&path("f")).unwrap();
        let all = || open.read_at(0, 99).unwrap();
        open.allocate(0, 8, AllocateMode::Keep).unwrap();
        assert_eq!(all(), &b"abcdef"[..]);
        open.allocate(0, 8, AllocateMode::Grow).unwrap();
        assert_eq!(all(), &b"abcdef\0\0"[..]);
        open.allocate(1, 2, AllocateMode::ZeroWithin).unwrap();
        open.allocate(7, 20, AllocateMode::ZeroWithin).unwrap();
        assert_eq!(all(), &b"a\0\0def\0\0"[..]);
        open.allocate(5, 5, AllocateMode::Zero).unwrap();
        assert_eq!(all(), &b"a\0\0de\0\0\0\0\0"[..]);
        assert_eq!(open.allocate(0, 0, AllocateMode::Grow), Err(FsError::Invalid));
        let huge = open.allocate(i64::MAX as u64 - 1000, 4096, AllocateMode::Grow);
        assert_eq!(huge, Err(FsError::FileTooBig));
    });
}

#[test]
fn data_and_holes_are_found() {
    each(|below| {
        file(below, "f", "");
        let open = below.open(&path("f")).unwrap();
        assert_eq!(open.seek(0, SeekTo::Data), Err(FsError::NoSuchDevice));
        let (page, hole) = (vec![1; 4096], 1 << 20);
        open.write_at(0, &page).unwrap();
        open.write_at(hole, &page[..10]).unwrap();
        open.truncate(2 * hole).unwrap();
        assert_eq!(open.seek(5, SeekTo::Data), Ok(5));
        assert_eq!(open.seek(5, SeekTo::Hole), Ok(4096));
        assert_eq!(open.seek(4096, SeekTo::Data), Ok(hole));
        assert_eq!(open.seek(hole, SeekTo::Hole), Ok(hole + 4096));
        assert_eq!(open.seek(hole + 4096, SeekTo::Data), Err(FsError::NoSuchDevice));
        assert_eq!(open.seek(hole + 4096, SeekTo::Hole), Ok(hole + 4096));
        assert_eq!(open.seek(2 * hole, SeekTo::Hole), Err(FsError::NoSuchDevice));
        assert_eq!(open.seek(u64::MAX, SeekTo::Hole), Err(FsError::NoSuchDevice));
        open.truncate(hole + 10).unwrap();
        assert_eq!(open.seek(hole, SeekTo::Hole), Ok(hole + 10));
    });
}
