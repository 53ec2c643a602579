//! Moving names.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
};

use rustix::{
    fs::{CWD, Mode, OFlags, RenameFlags, openat, renameat_with},
    io::Errno,
};

use crate::harness::on_each;

#[test]
fn a_rename_moves_and_replaces() {
    on_each(|mounted| {
        let name = |name: &str| mounted.path(name);
        fs::create_dir(name("one")).unwrap();
        fs::create_dir(name("two")).unwrap();
        fs::write(name("one/a"), b"a").unwrap();
        fs::write(name("two/b"), b"b").unwrap();
        let ino = fs::metadata(name("one/a")).unwrap().ino();
        fs::rename(name("one/a"), name("two/b")).unwrap();
        assert_eq!(fs::metadata(name("one/a")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read(name("two/b")).unwrap(), b"a");
        assert_eq!(fs::metadata(name("two/b")).unwrap().ino(), ino);

        fs::rename(name("one"), name("two/one")).unwrap();
        fs::write(name("two/one/c"), b"c").unwrap();
        let refused = |from: &str, to: &str| fs::rename(name(from), name(to)).unwrap_err().kind();
        assert_eq!(refused("two", "two/one/x"), ErrorKind::InvalidInput);
        assert_eq!(refused("two/b", "two/one"), ErrorKind::IsADirectory);
        assert_eq!(refused("two/one", "two/b"), ErrorKind::NotADirectory);
        fs::create_dir(name("empty")).unwrap();
        assert_eq!(refused("empty", "two/one"), ErrorKind::DirectoryNotEmpty);
        fs::rename(name("two/one"), name("empty")).unwrap();
        assert_eq!(fs::read(name("empty/c")).unwrap(), b"c");
        assert_eq!(refused("nothing", "x"), ErrorKind::NotFound);
        assert_eq!(mounted.seen.outdated(), [""; 0]);
    });
}

#[test]
fn a_directory_that_was_replaced_is_to_those_who_work_in_it_as_one_that_was_removed() {
    on_each(|mounted| {
        for name in ["one", "two"] {
            fs::create_dir(mounted.path(name)).unwrap();
        }
        let dir = File::open(mounted.path("two")).unwrap();
        let ino = dir.metadata().unwrap().ino();
        fs::rename(mounted.path("one"), mounted.path("two")).unwrap();
        assert_ne!(fs::metadata(mounted.path("two")).unwrap().ino(), ino);
        let left = dir.metadata().unwrap();
        assert_eq!((left.ino(), left.nlink()), (ino, 0));
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let made = openat(&dir, "file", flags, Mode::RUSR).map(drop);
        assert_eq!(made, Err(Errno::NOENT));
        assert_eq!(
            openat(&dir, "nothing", OFlags::RDONLY, Mode::empty()).map(drop),
            Err(Errno::NOENT)
        );
    });
}

#[test]
fn a_file_renamed_while_open_stays_open_and_is_known_by_its_new_name() {
    on_each(|mounted| {
        fs::create_dir(mounted.path("dir")).unwrap();
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create_new(true).open(mounted.path("old")).unwrap();
        file.write_all(b"before").unwrap();
        fs::rename(mounted.path("old"), mounted.path("dir/new")).unwrap();
        file.write_all(b" after").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 12);
        file.set_len(9).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(mounted.path("dir/new")).unwrap(), b"before af");
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before af");
        fs::rename(mounted.path("dir"), mounted.path("moved")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 9);
        assert_eq!(fs::read(mounted.path("moved/new")).unwrap(), b"before af");
        assert_eq!(mounted.seen.outdated(), [""; 0], "the table follows renames");
    });
}

#[test]
fn a_file_replaced_while_open_stays_readable_and_writable() {
    on_each(|mounted| {
        fs::write(mounted.path("file"), b"old").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(mounted.path("file")).unwrap();
        fs::write(mounted.path("new"), b"new").unwrap();
        fs::rename(mounted.path("new"), mounted.path("file")).unwrap();
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"new");
        file.write_all_at(b"er", 3).unwrap();
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"older");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    });
}

#[test]
fn a_directory_renamed_while_a_process_is_in_it_stays_the_same() {
    on_each(|mounted| {
        fs::create_dir_all(mounted.path("a/b")).unwrap();
        let inside = File::open(mounted.path("a/b")).unwrap();
        fs::rename(mounted.path("a"), mounted.path("c")).unwrap();
        let flags = OFlags::CREATE | OFlags::WRONLY;
        drop(openat(&inside, "file", flags, Mode::from_raw_mode(0o644)).unwrap());
        assert!(fs::metadata(mounted.path("c/b/file")).is_ok());
        let above = openat(&inside, "..", OFlags::DIRECTORY, Mode::empty()).unwrap();
        let c = fs::metadata(mounted.path("c")).unwrap();
        assert_eq!(rustix::fs::fstat(above).unwrap().st_ino, c.ino());
    });
}

#[test]
fn a_rename_can_refuse_to_replace() {
    on_each(|mounted| {
        let (one, two, free) = (mounted.path("one"), mounted.path("two"), mounted.path("free"));
        fs::write(&one, b"1").unwrap();
        fs::write(&two, b"2").unwrap();
        let flags = RenameFlags::NOREPLACE;
        assert_eq!(renameat_with(CWD, &one, CWD, &two, flags), Err(Errno::EXIST));
        renameat_with(CWD, &one, CWD, &free, flags).unwrap();
        assert_eq!((fs::read(&free).unwrap(), fs::read(&two).unwrap()), (b"1".into(), b"2".into()));
        let whiteout = renameat_with(CWD, &free, CWD, &one, RenameFlags::WHITEOUT);
        assert_eq!(whiteout, Err(Errno::INVAL));
    });
}

#[test]
fn two_names_change_places_and_each_is_known_by_its_new_one() {
    on_each(|mounted| {
        let name = |name: &str| mounted.path(name);
        fs::create_dir_all(name("dir/below")).unwrap();
        fs::write(name("dir/one"), b"1").unwrap();
        fs::write(name("two"), b"2").unwrap();
        let (one, two) = (File::open(name("dir/one")).unwrap(), File::open(name("two")).unwrap());
        let swap =
            |a: &str, b: &str| renameat_with(CWD, name(a), CWD, name(b), RenameFlags::EXCHANGE);
        swap("dir/one", "two").unwrap();
        assert_eq!(fs::read(name("dir/one")).unwrap(), b"2");
        assert_eq!(fs::read(name("two")).unwrap(), b"1");
        for file in [&one, &two] {
            file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert_eq!(mounted.seen.outdated(), [""; 0]);

        swap("two", "dir/below").unwrap();
        assert!(fs::metadata(name("two")).unwrap().is_dir());
        assert_eq!(fs::read(name("dir/below")).unwrap(), b"1");
        assert_eq!(swap("two", "nothing"), Err(Errno::NOENT));
        assert_eq!(swap("dir", "dir/below"), Err(Errno::INVAL));
    });
}
