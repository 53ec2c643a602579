//! fallocate, lseek to data and holes, copy_file_range.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    process::Command,
};

use rustix::{
    fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek},
    io::Errno,
};

use crate::harness::{as_user, mount_new, on_each};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options
}

#[test]
fn fallocate_grows_keeps_punches_and_zeroes() {
    on_each(|mounted| {
        let path = mounted.path("file");
        let file = read_write().open(&path).unwrap();
        file.write_all_at(&[7; 20_000], 0).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 30_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 30_000);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 30_000, 30_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 30_000);
        let blocks = file.metadata().unwrap().blocks();
        fallocate(&file, PUNCH, 4096, 8192).unwrap();
        assert!(file.metadata().unwrap().blocks() < blocks);
        fallocate(&file, FallocateFlags::ZERO_RANGE, 29_000, 2_000).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 19_000, 90_000)
            .unwrap();
        let mut expected = vec![7; 20_000];
        expected.resize(31_000, 0);
        expected[4096..12_288].fill(0);
        expected[19_000..].fill(0);
        assert!(fs::read(&path).unwrap() == expected);
        for refused in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            assert_eq!(fallocate(&file, refused, 0, 4096), Err(Errno::OPNOTSUPP));
        }
    });
}

#[test]
fn fallocate_takes_set_id_bits_from_who_may_not_keep_them() {
    let mounted = mount_new();
    let path = mounted.path("file");
    fs::write(&path, [7; 10_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    as_user(100, &[100], || {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        fallocate(&file, PUNCH, 0, 4096).unwrap();
    });
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    mounted.unmount();
}

#[test]
fn seeks_find_data_and_holes() {
    on_each(|mounted| {
        let file = read_write().open(mounted.path("file")).unwrap();
        file.write_all_at(&[1; 4096], 40_960).unwrap();
        file.set_len(81_920).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(40_960));
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
        assert_eq!(seek(&file, SeekFrom::Hole(40_960)), Ok(45_056));
        assert_eq!(seek(&file, SeekFrom::Data(50_000)), Err(Errno::NXIO));
        assert_eq!(seek(&file, SeekFrom::Hole(81_920)), Err(Errno::NXIO));
    });
}

#[test]
fn copy_file_range_copies_what_was_just_written() {
    on_each(|mounted| {
        let from = read_write().open(mounted.path("from")).unwrap();
        let to = read_write().open(mounted.path("to")).unwrap();
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
        from.write_all_at(&data, 0).unwrap();
        let (mut at, mut into) = (2, 1);
        let mut copied = 0;
        while copied < data.len() - 2 {
            let some = copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 5_000_000);
            copied += some.unwrap();
        }
        assert_eq!((at, into, copied), (3_000_000, 2_999_999, 2_999_998));
        let read = fs::read(mounted.path("to")).unwrap();
        assert!(read[0] == 0 && read[1..] == data[2..]);
        let (mut at, mut into) = (0, 10);
        let overlapping = copy_file_range(&from, Some(&mut at), &from, Some(&mut into), 100);
        assert_eq!(overlapping, Err(Errno::INVAL));
    });
}

#[test]
fn cp_keeps_holes_and_fallocate_digs_them() {
    let mounted = mount_new();
    let (from, to) = (mounted.path("from"), mounted.path("to"));
    let file = File::create(&from).unwrap();
    file.write_all_at(&[1; 8192], 1 << 20).unwrap();
    file.set_len(4 << 20).unwrap();
    drop(file);
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    run(Command::new("cp").args(["--sparse=auto".as_ref(), from.as_os_str(), to.as_os_str()]));
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
    assert_eq!(fs::metadata(&to).unwrap().blocks(), 16);
    fs::write(&to, vec![0; 1 << 20]).unwrap();
    let blocks = fs::metadata(&to).unwrap().blocks();
    run(Command::new("fallocate").arg("-d").arg(&to));
    assert!(fs::metadata(&to).unwrap().blocks() < blocks);
    assert!(fs::read(&to).unwrap() == vec![0; 1 << 20]);
    mounted.unmount();
}
