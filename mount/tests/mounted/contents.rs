//! Reading, writing, mapping, truncating.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock},
    io::Errno,
};

use crate::harness::{mount_new, on_each, start_role, until};

/// Bytes that tell where they belong.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 / 3 % 251).unwrap()).collect()
}

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options
}

#[test]
fn what_was_written_is_read_in_any_order() {
    on_each(|mounted| {
        let data = pattern(3 << 20);
        let file = read_write().open(mounted.path("file")).unwrap();
        for (index, part) in data.chunks(100_003).enumerate().collect::<Vec<_>>().iter().rev() {
            file.write_all_at(part, (index * 100_003) as u64).unwrap();
        }
        assert!(fs::read(mounted.path("file")).unwrap() == data);
        let mut middle = vec![0; 5000];
        file.read_exact_at(&mut middle, 1_000_001).unwrap();
        assert!(middle == data[1_000_001..1_005_001]);
        assert_eq!(file.read_at(&mut middle, 3 << 20).unwrap(), 0);
        file.write_all_at(b"OVER", 2_000_000).unwrap();
        file.read_exact_at(&mut middle[..6], 1_999_999).unwrap();
        assert_eq!(&middle[1..5], b"OVER");
    });
}

#[test]
fn large_writes_arrive_in_large_requests() {
    let mounted = mount_new();
    fs::write(mounted.path("file"), vec![5; 4 << 20]).unwrap();
    assert!(mounted.seen.count("write") <= 8, "{}", mounted.seen.count("write"));
}

#[test]
fn appends_go_to_the_end() {
    on_each(|mounted| {
        let path = mounted.path("log");
        let mut one = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let mut two = OpenOptions::new().append(true).open(&path).unwrap();
        for _ in 0..3 {
            one.write_all(b"one ").unwrap();
            two.write_all(b"two ").unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"one two one two one two ");
    });
}

#[test]
fn holes_read_as_zeros_and_take_no_space() {
    on_each(|mounted| {
        let file = read_write().open(mounted.path("sparse")).unwrap();
        let far = (5_u64 << 30) + 17;
        file.write_all_at(b"end", far).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!(stat.len(), far + 3);
        assert!(stat.blocks() < 64, "{}", stat.blocks());
        let mut bytes = [1; 20];
        file.read_exact_at(&mut bytes, far - 17).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0end");
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..8], b"begin\0\0\0");
    });
}

#[test]
fn truncation_cuts_and_what_grows_again_is_zeros() {
    on_each(|mounted| {
        let path = mounted.path("file");
        let data = pattern(10_000);
        fs::write(&path, &data).unwrap();
        let file = read_write().open(&path).unwrap();
        file.set_len(5000).unwrap();
        assert!(fs::read(&path).unwrap() == data[..5000]);
        file.set_len(9000).unwrap();
        let grown = fs::read(&path).unwrap();
        assert!(grown[..5000] == data[..5000]);
        assert!(grown[5000..] == [0; 4000]);
        assert_eq!(file.metadata().unwrap().len(), 9000);
        file.set_len(0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(
            file.set_len(u64::MAX >> 1).unwrap_err().kind(),
            std::io::ErrorKind::FileTooLarge
        );
    });
}

#[test]
fn an_open_that_truncates_empties_the_file() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"first and long").unwrap();
        let mut open = File::open(&path).unwrap();
        let mut bytes = [0; 5];
        open.read_exact(&mut bytes).unwrap();
        fs::write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        open.rewind().unwrap();
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "second");
    });
}

#[test]
fn shared_maps_read_and_write_the_file() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, pattern(10_000)).unwrap();
        // In a process of its own: one that serves a mount should not fault on it.
        assert!(start_role("map", &path).end().success());
        let mut expected = pattern(10_000);
        expected[4990..5010].fill(b'm');
        assert!(fs::read(&path).unwrap() == expected);
    });
}

/// The child's part of the test above.
#[expect(unsafe_code, reason = "a map has no safe interface")]
pub(crate) fn write_and_read_through_maps(path: &Path) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

    let file = read_write().open(path).unwrap();
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh shared map of a file that stays 10,000 bytes long; nobody else maps or
    // changes it while the slice lives, and it is unmapped once, after its last use.
    unsafe {
        let map = mmap(std::ptr::null_mut(), 10_000, both, MapFlags::SHARED, &file, 0).unwrap();
        let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), 10_000);
        assert!(bytes == pattern(10_000));
        bytes[4990..5010].fill(b'm');
        msync(map, 10_000, MsyncFlags::SYNC).unwrap();
        let mut read = [0; 20];
        file.read_exact_at(&mut read, 4990).unwrap();
        assert_eq!(read, [b'm'; 20]);
        file.write_all_at(b"w", 9999).unwrap();
        assert_eq!(bytes[9999], b'w');
        bytes[9999] = pattern(10_000)[9999];
        munmap(map, 10_000).unwrap();
    }
}

#[test]
fn direct_io_sees_the_same_bytes() {
    use std::os::unix::fs::OpenOptionsExt;
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, pattern(8192)).unwrap();
        let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        let file = read_write().custom_flags(flags).open(&path).unwrap();
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 4096).unwrap();
        assert!(bytes == pattern(8192)[4096..]);
        file.write_all_at(&vec![9; 4096], 4096).unwrap();
        assert!(fs::read(&path).unwrap()[4096..] == [9; 4096]);
    });
}

#[test]
fn direct_io_needs_no_alignment() {
    use std::os::unix::fs::OpenOptionsExt;
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, pattern(9000)).unwrap();
        let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        let file = read_write().custom_flags(flags).open(&path).unwrap();
        let mut bytes = vec![0; 1001];
        file.read_exact_at(&mut bytes[1..], 4097).unwrap();
        assert!(bytes[1..] == pattern(9000)[4097..5097]);
        file.write_all_at(&[9; 777], 8999).unwrap();
        let written = fs::read(&path).unwrap();
        assert!(written[..8999] == pattern(9000)[..8999] && written[8999..] == [9; 777]);
    });
}

#[test]
fn two_processes_see_each_others_writes_through_maps() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, vec![0; 8192]).unwrap();
        let mut roles = [start_role("ping", &path), start_role("pong", &path)];
        for role in &mut roles {
            assert!(role.end().success());
        }
        assert_eq!(fs::read(&path).unwrap()[4096], 20, "each has counted on what the other wrote");
    });
}

/// A child's part of the test above: counts up at the numbers of its side.
#[expect(unsafe_code, reason = "a map has no safe interface")]
pub(crate) fn count_in_turn(path: &Path, side: u8) {
    use std::sync::atomic::{AtomicU8, Ordering};

    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

    let file = read_write().open(path).unwrap();
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh shared map of a file that stays 8192 bytes long; the byte that both processes
    // use is only ever used as an atomic, and the map is unmapped once, after its last use.
    unsafe {
        let map = mmap(std::ptr::null_mut(), 8192, both, MapFlags::SHARED, &file, 0).unwrap();
        let turn = AtomicU8::from_ptr(map.cast::<u8>().add(4096));
        until("both have counted", || {
            let now = turn.load(Ordering::SeqCst);
            if now < 20 && now % 2 == side {
                turn.store(now + 1, Ordering::SeqCst);
            }
            now >= 20
        });
        msync(map, 8192, MsyncFlags::SYNC).unwrap();
        munmap(map, 8192).unwrap();
    }
}

#[test]
fn a_script_on_the_mount_can_be_executed() {
    on_each(|mounted| {
        let path = mounted.path("script");
        fs::write(&path, b"#!/bin/sh\necho \"$1\" from \"$0\"\n").unwrap();
        let refused = Command::new(&path).output().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o111)).unwrap();
        fs::copy("/bin/true", mounted.path("true")).unwrap();
        // A child that another test has just forked may still have the file open for writing.
        let mut said = None;
        until("the files are closed", || {
            let output = Command::new(mounted.path("true")).status();
            said = Command::new(&path).arg("hello").output().ok();
            output.is_ok_and(|status| status.success()) && said.is_some()
        });
        let expected = format!("hello from {}\n", path.display());
        assert_eq!(String::from_utf8(said.unwrap().stdout).unwrap(), expected);
    });
}

#[test]
fn every_close_flushes_and_the_last_one_releases() {
    on_each(|mounted| {
        let (flushes, releases) = (mounted.seen.count("flush"), mounted.seen.count("release"));
        let file = read_write().open(mounted.path("file")).unwrap();
        let second = file.try_clone().unwrap();
        drop(file);
        until("close flushes", || mounted.seen.count("flush") > flushes);
        assert_eq!(mounted.seen.count("release"), releases);
        drop(second);
        until("the last close releases", || mounted.seen.count("release") == releases + 1);
        assert!(mounted.seen.count("flush") >= flushes + 2);
    });
}

#[test]
fn syncs_reach_the_file_system() {
    on_each(|mounted| {
        let file = read_write().open(mounted.path("file")).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(mounted.seen.count("fsync"), 2);
        File::open(mounted.root()).unwrap().sync_all().unwrap();
        assert_eq!(mounted.seen.count("sync_dir"), 1);
        assert_eq!(mounted.seen.count("sync"), 0);
    });
}

#[test]
fn a_sync_of_everything_is_not_told_to_a_mount() {
    on_each(|mounted| {
        let file = read_write().open(mounted.path("file")).unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        let asked = || ["sync", "sync_dir", "fsync", "flush"].map(|op| mounted.seen.count(op));
        // Linux hands it to virtiofs only: it succeeds, and the file system hears nothing of it.
        rustix::fs::syncfs(&file).unwrap();
        assert_eq!(asked(), [0; 4]);
        File::open(mounted.root()).unwrap().sync_all().unwrap();
        assert_eq!(mounted.seen.count("sync_dir"), 1);
    });
}

#[test]
fn what_is_not_there_yet_is_refused_as_programs_expect() {
    on_each(|mounted| {
        let file = read_write().open(mounted.path("file")).unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        for _ in 0..2 {
            let refused = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
            assert_eq!(refused, Err(Errno::OPNOTSUPP));
            let copy = read_write().open(mounted.path("copy")).unwrap();
            assert_eq!(rustix::fs::ioctl_ficlone(&copy, &file), Err(Errno::OPNOTSUPP));
        }
    });
}

#[test]
fn locks_hold_between_programs_of_one_mount() {
    on_each(|mounted| {
        let one = read_write().open(mounted.path("file")).unwrap();
        let two = read_write().open(mounted.path("file")).unwrap();
        flock(&one, FlockOperation::LockExclusive).unwrap();
        let refused = flock(&two, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(refused, Err(Errno::WOULDBLOCK));
        flock(&one, FlockOperation::Unlock).unwrap();
        flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
    });
}

#[test]
fn two_programs_that_append_on_one_mount_overwrite_nothing() {
    on_each(|mounted| {
        let path = mounted.path("log");
        File::create(&path).unwrap();
        std::thread::scope(|scope| {
            for program in 0..2 {
                let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                scope.spawn(move || {
                    for line in 0..200 {
                        file.write_all(format!("{program} {line}\n").as_bytes()).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        for program in 0..2 {
            let own = text.lines().filter_map(|line| line.strip_prefix(&format!("{program} ")));
            let lines: Vec<u32> = own.map(|line| line.parse().unwrap()).collect();
            assert_eq!(lines, (0..200).collect::<Vec<_>>());
        }
    });
}
