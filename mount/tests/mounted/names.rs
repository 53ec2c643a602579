//! Making, finding and removing names.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, makedev, mknodat},
    io::Errno,
};

use crate::harness::{Way, mount, mount_new, new_model, on_each, on_each_of_the_model, start_role};

#[test]
fn what_is_made_is_there_and_what_is_removed_is_not() {
    on_each(|mounted| {
        let (dir, file) = (mounted.path("dir"), mounted.path("dir/file"));
        fs::create_dir(&dir).unwrap();
        assert_eq!(fs::create_dir(&dir).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::metadata(&file).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&file, b"hello").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"hello");
        assert_eq!(fs::remove_dir(&dir).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        assert_eq!(fs::remove_file(&dir).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(fs::remove_dir(&file).unwrap_err().kind(), ErrorKind::NotADirectory);
        assert_eq!(fs::read(file.join("x")).unwrap_err().kind(), ErrorKind::NotADirectory);
        fs::remove_file(&file).unwrap();
        assert_eq!(fs::remove_file(&file).unwrap_err().kind(), ErrorKind::NotFound);
        fs::remove_dir(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_new_name_is_found_at_once_after_it_was_not() {
    let mounted = mount(&new_model(), &Way::cached());
    let path = mounted.path("file");
    let other = mounted.model.client(true);
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    crate::caches::make(&other, "file", b"from elsewhere");
    assert_eq!(fs::read(&path).unwrap(), b"from elsewhere", "absence is not cached");
}

#[test]
fn an_exclusive_create_refuses_what_is_there() {
    on_each(|mounted| {
        let path = mounted.path("file");
        File::create_new(&path).unwrap();
        assert_eq!(File::create_new(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        symlink("nowhere", mounted.path("link")).unwrap();
        let refused = File::create_new(mounted.path("link"));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::AlreadyExists);
    });
}

#[test]
fn an_open_that_may_create_opens_what_another_client_has_made_meanwhile() {
    on_each_of_the_model(|mounted| {
        // The kernel looks the name up, does not find it, and asks to create it.
        let other = mounted.model.client(true);
        let before = mounted.seen.count("create");
        mounted.seen.hold("create");
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false);
                options.open(mounted.path("file")).unwrap()
            });
            crate::harness::until("create is asked for", || mounted.seen.count("create") > before);
            crate::caches::make(&other, "file", b"theirs");
            mounted.seen.release();
            let mut text = String::new();
            opened.join().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "theirs");
        });
    });
}

#[test]
fn a_name_has_up_to_255_bytes_of_any_value() {
    on_each(|mounted| {
        let bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let longest = vec![b'x'; 255];
        for name in [bytes, longest, "ü".repeat(127).into_bytes()] {
            let path = mounted.root().join(OsStr::from_bytes(&name));
            fs::write(&path, &name).unwrap();
            let listed = fs::read_dir(mounted.root()).unwrap().next().unwrap().unwrap();
            assert_eq!(listed.file_name().as_bytes(), name);
            fs::remove_file(&path).unwrap();
        }
        for len in [256, 1000, 2000] {
            let path = mounted.path(&"x".repeat(len));
            for error in [
                fs::metadata(&path).unwrap_err(),
                fs::create_dir(&path).unwrap_err(),
                File::create(&path).unwrap_err(),
                fs::remove_file(&path).unwrap_err(),
                symlink("a", &path).unwrap_err(),
            ] {
                assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()), "{len}");
            }
        }
    });
}

#[test]
fn symbolic_links_lead_where_they_point_and_loops_end() {
    on_each(|mounted| {
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/file"), b"hello").unwrap();
        symlink("dir", mounted.path("to-dir")).unwrap();
        symlink("to-dir/file", mounted.path("to-file")).unwrap();
        assert_eq!(fs::read(mounted.path("to-file")).unwrap(), b"hello");
        assert_eq!(fs::read_link(mounted.path("to-file")).unwrap().as_os_str(), "to-dir/file");
        assert_eq!(fs::symlink_metadata(mounted.path("to-file")).unwrap().len(), 11);
        assert_eq!(fs::metadata(mounted.path("to-dir")).unwrap().nlink(), 2);

        symlink("b", mounted.path("a")).unwrap();
        symlink("a", mounted.path("b")).unwrap();
        let error = fs::read(mounted.path("a")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        let longest = "x".repeat(4095);
        symlink(&longest, mounted.path("long")).unwrap();
        assert_eq!(fs::read_link(mounted.path("long")).unwrap().as_os_str(), longest.as_str());
        let no_follow = OFlags::RDONLY | OFlags::NOFOLLOW;
        let refused = rustix::fs::open(mounted.path("a"), no_follow, Mode::empty());
        assert_eq!(refused.unwrap_err(), Errno::LOOP);
    });
}

#[test]
fn special_files_are_what_they_were_made_as() {
    on_each(|mounted| {
        let mode = Mode::from_raw_mode(0o640);
        let make = |name: &str, kind, device| {
            mknodat(CWD, mounted.path(name), kind, mode, device).unwrap();
            fs::symlink_metadata(mounted.path(name)).unwrap()
        };
        assert!(make("fifo", FileType::Fifo, 0).file_type().is_fifo());
        assert!(make("socket", FileType::Socket, 0).file_type().is_socket());
        assert!(make("file", FileType::RegularFile, 0).file_type().is_file());
        let device = makedev(1, 3);
        let null = make("null", FileType::CharacterDevice, device);
        assert!(null.file_type().is_char_device());
        assert_eq!((null.rdev(), null.mode() & 0o7777), (device, 0o640));
        let large = makedev(0xabc, 0xabcde);
        let block = make("block", FileType::BlockDevice, large);
        assert!(block.file_type().is_block_device());
        assert_eq!(block.rdev(), large);

        // The device files work: the kernel opens the devices that they name, and does not ask us.
        let mut file =
            OpenOptions::new().read(true).write(true).open(mounted.path("null")).unwrap();
        file.write_all(b"gone").unwrap();
        assert_eq!(file.read(&mut [0; 4]).unwrap(), 0);
        let mut both =
            OpenOptions::new().read(true).write(true).open(mounted.path("fifo")).unwrap();
        both.write_all(b"through").unwrap();
        let mut text = [0; 7];
        both.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"through");
        assert_eq!(mounted.seen.count("open"), 0);
    });
}

#[test]
fn a_file_lives_on_under_its_other_names() {
    on_each(|mounted| {
        let name = |name: &str| mounted.path(name);
        fs::create_dir(name("dir")).unwrap();
        fs::write(name("a"), b"one").unwrap();
        fs::hard_link(name("a"), name("dir/b")).unwrap();
        fs::hard_link(name("dir/b"), name("c")).unwrap();
        let ino = fs::metadata(name("a")).unwrap().ino();
        for path in ["a", "dir/b", "c"] {
            let stat = fs::metadata(name(path)).unwrap();
            assert_eq!((stat.ino(), stat.nlink()), (ino, 3), "{path}");
        }
        assert_eq!(
            fs::hard_link(name("a"), name("c")).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert!(fs::hard_link(name("dir"), name("d")).is_err());

        fs::write(name("c"), b"two").unwrap();
        fs::remove_file(name("c")).unwrap();
        assert_eq!(fs::read(name("a")).unwrap(), b"two");
        fs::remove_file(name("a")).unwrap();
        assert_eq!(fs::read(name("dir/b")).unwrap(), b"two");
        let stat = fs::metadata(name("dir/b")).unwrap();
        assert_eq!((stat.ino(), stat.nlink()), (ino, 1));
        OpenOptions::new().append(true).open(name("dir/b")).unwrap().write_all(b"!").unwrap();
        assert_eq!(fs::read(name("dir/b")).unwrap(), b"two!");
    });
}

#[test]
fn a_symbolic_link_is_read_by_the_name_that_is_left() {
    for way in [Way::cached(), Way::uncached(), Way::late()] {
        let mounted = mount(&new_model(), &way);
        symlink("target", mounted.path("a")).unwrap();
        let link = |from: &str, to: &str| {
            let (from, to) = (mounted.path(from), mounted.path(to));
            rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()).unwrap();
        };
        link("a", "b");
        fs::remove_file(mounted.path("b")).unwrap();
        assert_eq!(fs::read_link(mounted.path("a")).unwrap().as_os_str(), "target");
        mounted.unmount();
    }
}

#[test]
fn a_file_unlinked_while_open_stays_until_it_is_closed() {
    on_each(|mounted| {
        let path = mounted.path("file");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"before").unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);

        let stat = file.metadata().unwrap();
        assert_eq!((stat.nlink(), stat.len()), (0, 6));
        file.write_all(b" and after").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before and after");
        file.set_len(3).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!((stat.len(), stat.mode() & 0o777), (3, 0o600));
        file.sync_all().unwrap();

        // A new file of the name is another file.
        fs::write(&path, b"new").unwrap();
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"bef");
        assert_ne!(file.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
        assert_eq!(mounted.seen.outdated(), [""; 0]);
    });
}

#[test]
fn a_removed_directory_can_still_be_asked_about() {
    on_each(|mounted| {
        fs::create_dir(mounted.path("dir")).unwrap();
        let dir = File::open(mounted.path("dir")).unwrap();
        fs::remove_dir(mounted.path("dir")).unwrap();
        assert_eq!(dir.metadata().unwrap().nlink(), 0);
        assert!(dir.metadata().unwrap().is_dir());
        let inside = rustix::fs::openat(&dir, "x", OFlags::CREATE, Mode::from_raw_mode(0o600));
        assert_eq!(inside.unwrap_err(), Errno::NOENT);
        let mut buffer = Vec::with_capacity(4096);
        let mut entries = rustix::fs::RawDir::new(&dir, buffer.spare_capacity_mut());
        assert_eq!(entries.next().map(|entry| entry.map(|_| ()).unwrap_err()), Some(Errno::NOENT));
    });
}

#[test]
fn a_file_that_nobody_sees_any_more_has_no_node() {
    let mounted = mount_new();
    for number in 0..100 {
        fs::write(mounted.path("file"), number.to_string()).unwrap();
        fs::remove_file(mounted.path("file")).unwrap();
    }
    mounted.unmount();
}

#[test]
fn new_files_get_the_mode_without_the_umask() {
    on_each(|mounted| {
        // In a process of its own, whose umask is no other test's.
        assert!(start_role("umask", mounted.root()).end().success());
        let mode = |name: &str| fs::metadata(mounted.path(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("file"), mode("dir"), mode("fifo")), (0o640, 0o750, 0o750));
    });
}

/// The child's part of the test above.
pub(crate) fn make_with_umask(dir: &Path) {
    rustix::process::umask(Mode::from_raw_mode(0o027));
    File::options().write(true).create_new(true).mode(0o666).open(dir.join("file")).unwrap();
    fs::create_dir(dir.join("dir")).unwrap();
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o777), 0).unwrap();
}

#[test]
fn names_that_differ_only_in_case_or_normalisation_are_different() {
    on_each(|mounted| {
        let names = ["name", "Name", "NAME", "\u{fc}", "u\u{308}", "\u{df}", "ss", "a", "a ", " a"];
        for name in names {
            let path = mounted.path(name);
            File::options().write(true).create_new(true).open(&path).unwrap();
            fs::write(&path, name).unwrap();
        }
        assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), names.len());
        for name in names {
            assert_eq!(fs::read(mounted.path(name)).unwrap(), name.as_bytes());
        }
    });
}
