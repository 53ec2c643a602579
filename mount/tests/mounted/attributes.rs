//! stat, chmod, chown, utimensat, statfs.

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
};

use base::attr::MODE_SETUID;
use rustix::fs::{
    AtFlags, CWD, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, statvfs, statx,
    utimensat,
};

use crate::harness::{
    Mounted, Way, mount, mount_new, new_model, on_each, on_each_of_the_model, until,
};

/// Seconds that the clock of a test's file system shows: those of a machine are later by now.
const NOW: std::ops::Range<i64> = 1_700_000_000..1_781_000_000;

#[test]
fn stat_shows_what_the_file_system_has() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, vec![1; 12_288]).unwrap();
        let stat = fs::metadata(&path).unwrap();
        assert_eq!((stat.len(), stat.nlink(), stat.blksize()), (12_288, 1, 4096));
        assert_eq!(stat.blocks(), 12_288 / 512);
        fs::create_dir(mounted.path("dir")).unwrap();
        let root = fs::metadata(mounted.root()).unwrap();
        assert_eq!((root.ino(), root.nlink(), root.len()), (1, 3, 2));
        let dev = fs::metadata(mounted.path("dir")).unwrap().dev();
        assert_eq!((stat.dev(), root.dev()), (dev, dev));
    });
}

#[test]
fn small_contents_count_as_blocks() {
    let mounted = mount_new();
    fs::write(mounted.path("small"), b"x").unwrap();
    assert!(fs::metadata(mounted.path("small")).unwrap().blocks() > 0);
}

#[test]
fn birth_is_told_and_does_not_change() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        let born = || {
            let flags = StatxFlags::BTIME | StatxFlags::BASIC_STATS;
            let stat = statx(CWD, &path, AtFlags::empty(), flags).unwrap();
            assert!(StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME));
            (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
        };
        let first = born();
        assert!(NOW.contains(&first.0), "now is the file system's now");
        fs::write(&path, b"more").unwrap();
        assert_eq!(born(), first);
    });
}

#[test]
fn chmod_and_chown_change_what_they_say_and_the_time_of_change() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        let stat = || fs::metadata(&path).unwrap();
        let before = stat();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(stat().mode(), 0o104_751);
        assert!((stat().ctime(), stat().ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        assert_eq!((stat().mtime(), stat().mtime_nsec()), (before.mtime(), before.mtime_nsec()));
        chown(&path, Some(123), None).unwrap();
        assert_eq!((stat().uid(), stat().gid()), (123, before.gid()));
        assert_eq!(stat().mode() & MODE_SETUID, 0, "a new owner is no reason to act as him");
        chown(&path, None, Some(u32::MAX - 1)).unwrap();
        assert_eq!((stat().uid(), stat().gid()), (123, u32::MAX - 1));

        let file = File::open(&path).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::fchown(&file, Some(7), Some(8)).unwrap();
        assert_eq!((stat().mode() & 0o777, stat().uid(), stat().gid()), (0o600, 7, 8));
        let link = mounted.path("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(9), Some(10)).unwrap();
        assert_eq!(fs::symlink_metadata(&link).unwrap().uid(), 9);
        assert_eq!(stat().uid(), 7);
    });
}

#[test]
fn times_are_set_to_the_nanosecond() {
    on_each(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, b"").unwrap();
        let set = |atime: (i64, i64), mtime: (i64, i64)| {
            let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
            let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
            utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            let stat = fs::metadata(&path).unwrap();
            ((stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec()))
        };
        let (early, late) = ((-1_000_000_000, 999_999_999), (5_000_000_000, 1));
        assert_eq!(set(early, late), (early, late));
        let omit = (0, UTIME_OMIT);
        assert_eq!(set(omit, early), (early, early));
        let (atime, mtime) = set((0, UTIME_NOW), omit);
        assert!(NOW.contains(&atime.0), "now is the file system's now");
        assert_eq!(mtime, early);
    });
}

#[test]
fn statfs_tells_space_inodes_and_the_longest_name() {
    // The space of a server is that of a disk, which others use as well.
    on_each_of_the_model(|mounted| {
        let before = statvfs(mounted.root()).unwrap();
        assert_eq!((before.f_namemax, before.f_bsize, before.f_frsize), (255, 4096, 4096));
        assert_eq!(before.f_blocks * before.f_frsize, 1 << 40);
        fs::write(mounted.path("file"), vec![1; 1 << 20]).unwrap();
        let after = statvfs(mounted.root()).unwrap();
        assert_eq!(before.f_bfree - after.f_bfree, 256);
        assert_eq!(before.f_ffree - after.f_ffree, 1);
        assert_eq!(after.f_files, 1 << 40);
    });
}

#[test]
fn statfs_is_asked_for_again_when_it_is_old_or_something_has_changed() {
    let free = |mounted: &Mounted| statvfs(mounted.root()).unwrap().f_bfree;
    let mounted = mount(&new_model(), &Way::cached());
    let before = free(&mounted);
    for _ in 0..10 {
        assert_eq!(free(&mounted), before);
    }
    assert_eq!(mounted.seen.count("statfs"), 1);
    fs::write(mounted.path("file"), vec![1; 1 << 20]).unwrap();
    assert_eq!(before - free(&mounted), 256, "its own changes are seen at once");

    let (default, uncached) =
        (mount(&mounted.model, &Way::default()), mount(&mounted.model, &Way::uncached()));
    assert_eq!((before - free(&default), before - free(&uncached)), (256, 256));
    fs::write(mounted.path("file"), vec![1; 2 << 20]).unwrap();
    assert_eq!(before - free(&uncached), 512);
    until("the second is over", || before - free(&default) == 512);
}

#[test]
fn what_the_kernel_may_believe_is_not_asked_again() {
    let mounted = mount(&new_model(), &Way::cached());
    fs::write(mounted.path("file"), b"").unwrap();
    fs::metadata(mounted.path("file")).unwrap();
    let asked = mounted.seen.count("getattr") + mounted.seen.count("lookup");
    for _ in 0..10 {
        fs::metadata(mounted.path("file")).unwrap();
    }
    assert_eq!(mounted.seen.count("getattr") + mounted.seen.count("lookup"), asked);
}
