//! Users and permissions: the kernel checks, and new files get their owners.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::Path,
};

use rustix::io::Errno;

use crate::harness::{as_user, on_each};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn the_kernel_checks_mode_bits() {
    on_each(|mounted| {
        let (dir, file) = (mounted.path("dir"), mounted.path("dir/file"));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, b"secret").unwrap();
        chmod(&file, 0o600);
        let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        as_user(1000, &[1000], || {
            assert!(denied(fs::read(&file).unwrap_err()));
            assert!(denied(fs::write(&file, b"").unwrap_err()));
            assert!(denied(File::create(dir.join("new")).unwrap_err()));
            assert!(denied(fs::remove_file(&file).unwrap_err()));
            let own = fs::set_permissions(&file, fs::Permissions::from_mode(0o777)).unwrap_err();
            assert_eq!(own.raw_os_error(), Some(Errno::PERM.raw_os_error()));
        });
        chmod(&dir, 0o700);
        as_user(1000, &[1000], || assert!(denied(fs::metadata(&file).unwrap_err())));
        chown(&dir, None, Some(50)).unwrap();
        chmod(&dir, 0o750);
        chmod(&file, 0o604);
        as_user(1000, &[1000, 50], || assert_eq!(fs::read(&file).unwrap(), b"secret"));
    });
}

#[test]
fn new_files_belong_to_their_maker() {
    on_each(|mounted| {
        chmod(mounted.root(), 0o777);
        as_user(1000, &[100], || {
            fs::write(mounted.path("file"), b"").unwrap();
            fs::create_dir(mounted.path("dir")).unwrap();
            std::os::unix::fs::symlink("x", mounted.path("link")).unwrap();
        });
        for name in ["file", "dir", "link"] {
            let stat = fs::symlink_metadata(mounted.path(name)).unwrap();
            assert_eq!((stat.uid(), stat.gid()), (1000, 100), "{name}");
        }
    });
}

#[test]
fn a_setgid_directory_gives_its_group_to_what_is_made_in_it() {
    on_each(|mounted| {
        let dir = mounted.path("dir");
        fs::create_dir(&dir).unwrap();
        chown(&dir, None, Some(60)).unwrap();
        chmod(&dir, 0o2777);
        as_user(1000, &[100], || {
            fs::write(dir.join("file"), b"").unwrap();
            fs::create_dir(dir.join("below")).unwrap();
        });
        assert_eq!(fs::metadata(dir.join("file")).unwrap().gid(), 60);
        let below = fs::metadata(dir.join("below")).unwrap();
        assert_eq!((below.gid(), below.mode() & 0o2000), (60, 0o2000));
    });
}

#[test]
fn a_sticky_directory_keeps_what_belongs_to_others() {
    on_each(|mounted| {
        let dir = mounted.path("tmp");
        fs::create_dir(&dir).unwrap();
        chmod(&dir, 0o1777);
        as_user(1000, &[100], || fs::write(dir.join("mine"), b"").unwrap());
        as_user(1001, &[100], || {
            let refused = |error: std::io::Error| {
                assert_eq!(error.raw_os_error(), Some(Errno::PERM.raw_os_error()));
            };
            refused(fs::remove_file(dir.join("mine")).unwrap_err());
            refused(fs::rename(dir.join("mine"), dir.join("yours")).unwrap_err());
        });
        as_user(1000, &[100], || fs::remove_file(dir.join("mine")).unwrap());
    });
}

#[test]
fn a_write_without_privilege_clears_set_id_bits() {
    on_each(|mounted| {
        let path = mounted.path("program");
        for change in [&|file: &File| file.write_all_at(b"x", 0).unwrap(), &|file: &File| {
            file.set_len(3).unwrap()
        }] as [&(dyn Fn(&File) + Sync); 2]
        {
            fs::write(&path, b"contents").unwrap();
            chmod(&path, 0o6777);
            as_user(1000, &[100], || {
                change(&OpenOptions::new().write(true).open(&path).unwrap());
                assert_eq!(mode(&path), 0o777);
            });
            // Set-group-id without group execution is no privilege, and stays.
            chmod(&path, 0o6767);
            as_user(1000, &[100], || {
                change(&OpenOptions::new().write(true).open(&path).unwrap());
                assert_eq!(mode(&path), 0o2767);
            });
            // Root keeps them.
            chmod(&path, 0o6777);
            change(&OpenOptions::new().write(true).open(&path).unwrap());
            assert_eq!(mode(&path), 0o6777);
        }
    });
}

/// The mode alone, which the kernel may have cached.
fn only_mode(path: &Path) -> u32 {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(found.stx_mode) & 0o7777
}

#[test]
fn set_id_bits_that_a_write_clears_are_seen_no_more_whatever_is_cached() {
    use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
    type Change = fn(&Path, &File);
    let changes: [(i32, Change); 4] = [
        (0, |_, file| file.write_all_at(b"x", 0).unwrap()),
        (OFlags::DIRECT.bits().cast_signed(), |_, file| file.write_all_at(b"x", 0).unwrap()),
        (0, |_, file| fallocate(file, FallocateFlags::empty(), 0, 10_000).unwrap()),
        (0, |path, file| {
            let from = File::open(path.with_file_name("from")).unwrap();
            assert_eq!(copy_file_range(from, None, file, None, 3).unwrap(), 3);
        }),
    ];
    on_each(|mounted| {
        let path = mounted.path("program");
        fs::write(mounted.path("from"), b"contents").unwrap();
        for (flags, change) in changes {
            fs::write(&path, b"contents").unwrap();
            for (before, after) in [(0o6777, 0o777), (0o6767, 0o2767), (0o4757, 0o757)] {
                chmod(&path, before);
                assert_eq!(only_mode(&path), before);
                as_user(1000, &[100], || {
                    let mut options = OpenOptions::new();
                    options.write(true).custom_flags(flags);
                    let file = options.open(&path).unwrap();
                    change(&path, &file);
                    assert_eq!(only_mode(&path), after);
                    // Once more, when nothing is left to clear.
                    change(&path, &file);
                });
                assert_eq!(only_mode(&path), after);
            }
        }
    });
}

#[test]
fn a_new_owner_clears_set_id_bits_even_from_root() {
    on_each(|mounted| {
        let path = mounted.path("program");
        fs::write(&path, b"contents").unwrap();
        chmod(&path, 0o6777);
        chown(&path, Some(7), None).unwrap();
        assert_eq!(mode(&path), 0o777);
        chmod(&path, 0o6777);
        chown(&path, None, Some(7)).unwrap();
        assert_eq!(mode(&path), 0o777);
        let dir = mounted.path("dir");
        fs::create_dir(&dir).unwrap();
        chmod(&dir, 0o2755);
        chown(&dir, Some(7), Some(7)).unwrap();
        assert_eq!(mode(&dir), 0o2755, "a directory keeps them");
    });
}

#[test]
fn a_group_one_is_not_in_takes_set_group_id_away() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        chown(&path, Some(1000), Some(60)).unwrap();
        as_user(1000, &[100], || {
            chmod(&path, 0o2755);
            assert_eq!(mode(&path), 0o755);
        });
        as_user(1000, &[60], || {
            chmod(&path, 0o2755);
            assert_eq!(mode(&path), 0o2755);
        });
    });
}

#[test]
fn times_may_be_set_to_now_by_whoever_may_write() {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        chmod(&path, 0o666);
        let set = |tv_nsec: i64| {
            let time = Timespec { tv_sec: 1, tv_nsec };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, &path, &times, AtFlags::empty())
        };
        as_user(1000, &[100], || {
            assert_eq!(set(UTIME_NOW), Ok(()));
            assert_eq!(set(5), Err(Errno::PERM));
        });
    });
}

#[test]
fn a_file_of_another_user_is_not_truncated_by_whoever_may_make_files_beside_it() {
    on_each(|mounted| {
        chmod(mounted.root(), 0o777);
        let mut file = File::create(mounted.path("private")).unwrap();
        file.write_all(b"kept").unwrap();
        chmod(&mounted.path("private"), 0o600);
        as_user(1000, &[100], || {
            let refused = File::create(mounted.path("private")).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        });
        assert_eq!(fs::read(mounted.path("private")).unwrap(), b"kept");
    });
}
