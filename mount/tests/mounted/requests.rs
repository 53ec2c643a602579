//! How many requests a mount sends to its server for what programs do.

use std::{
    fs::{self, FileTimes, OpenOptions, Permissions},
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown, symlink},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use crate::harness::{Mounted, Way, mount_server};

const FILES: u64 = 40;
/// Requests of the probe itself for each file of an archive: it looks up and stats the file of each
/// of three changes of attributes.
const PROBED: u64 = 6;

/// Makes a file as GNU tar does for root.
fn extract(path: &Path, contents: &[u8]) {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(contents).unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time)).unwrap();
    fchown(&file, Some(1000), Some(1000)).unwrap();
    file.set_permissions(Permissions::from_mode(0o640)).unwrap();
}

/// The number of requests for each of the files that `work` is about, without releases: these wait
/// a moment and go in batches, as many as the machine is slow.
fn for_each_file(mounted: &Mounted, work: impl FnOnce()) -> u64 {
    let before = mounted.requests();
    work();
    let after = mounted.requests();
    let sent = |kind: &String| after[kind] - before.get(kind).unwrap_or(&0);
    let counted = ["load", "release"].map(str::to_owned);
    let requests = after.keys().filter(|kind| !counted.contains(kind)).map(sent).sum::<u64>();
    assert_eq!(requests % FILES, 0, "{before:?}, then {after:?}");
    requests / FILES
}

#[test]
fn a_file_of_an_archive_costs_five_requests_and_its_removal_one() {
    let mounted = mount_server(&Way::cached());
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let file = |number: u64| dir.join(number.to_string());
    let made = for_each_file(&mounted, || {
        (0..FILES).for_each(|number| extract(&file(number), &[b'x'; 300]));
    });
    assert_eq!(made, 5 + PROBED);
    let stat = fs::metadata(file(7)).unwrap();
    assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.mtime()), (0o640, 1000, 1_700_000_000));
    assert_eq!(fs::metadata(&dir).unwrap().size(), FILES);
    let removed = for_each_file(&mounted, || {
        (0..FILES).for_each(|number| fs::remove_file(file(number)).unwrap());
    });
    assert_eq!(removed, 1);
    assert_eq!(fs::metadata(&dir).unwrap().size(), 0);
    let large = for_each_file(&mounted, || {
        (0..FILES).for_each(|number| extract(&file(number), &[b'x'; 9000]));
    });
    assert_eq!(large, 5 + PROBED, "the block comes with the write");
    mounted.unmount();
}

#[test]
fn what_a_change_of_a_name_left_of_its_directory_is_not_asked_for() {
    let mounted = mount_server(&Way::cached());
    let (one, other) = (mounted.path("one"), mounted.path("other"));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    let size = |dir: &Path| fs::metadata(dir).unwrap().size();
    // The kernel asks for the time of birth of each, once.
    assert_eq!([mounted.root(), &one, &other].map(size), [2, 0, 0]);
    let asked = mounted.seen.count("getattr");
    fs::write(one.join("file"), b"x").unwrap();
    assert_eq!((size(&one), size(mounted.root())), (1, 2));
    symlink("file", one.join("symlink")).unwrap();
    assert_eq!(size(&one), 2);
    assert_eq!(mounted.seen.count("getattr"), asked);
    fs::hard_link(one.join("file"), other.join("link")).unwrap();
    // The kernel may ask for the file itself, which has changed.
    let asked = mounted.seen.count("getattr");
    assert_eq!((size(&one), size(&other)), (2, 1));
    fs::rename(one.join("symlink"), other.join("symlink")).unwrap();
    assert_eq!((size(&one), size(&other)), (1, 2));
    fs::rename(other.join("symlink"), other.join("moved")).unwrap();
    assert_eq!(size(&other), 2);
    fs::remove_file(other.join("moved")).unwrap();
    assert_eq!(size(&other), 1);
    fs::create_dir(one.join("sub")).unwrap();
    assert_eq!(fs::metadata(&one).unwrap().nlink(), 3);
    fs::remove_dir(one.join("sub")).unwrap();
    assert_eq!(fs::metadata(&one).unwrap().nlink(), 2);
    assert_eq!(mounted.seen.count("getattr"), asked);
    // A change by the mount itself since then is in no such answer.
    fs::write(one.join("second"), b"x").unwrap();
    fs::set_permissions(&one, Permissions::from_mode(0o711)).unwrap();
    assert_eq!((fs::metadata(&one).unwrap().mode() & 0o777, size(&one)), (0o711, 2));
    mounted.unmount();
}
