//! Two mounts of one file system on one machine, each a process of its own.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _, Seek as _, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::fs::{OFlags, XattrFlags};
use tokio::time::Instant;

use crate::{
    harness::{Data, Running, pause, succeed, text, unmount},
    mounted::Mountpoint,
};

/// Two mounts of one server: one makes changes, the other one sees them.
struct Two {
    there: [Mountpoint; 2],
    server: Running,
    _data: Data,
}

/// Two mounts whose kernels believe nothing.
fn two_mounts() -> Two {
    two_mounts_with("attr_timeout=0,entry_timeout=0")
}

fn two_mounts_with(options: &str) -> Two {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let there = ["one", "two"].map(|name| {
        let folder = data.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let mount = Mountpoint::new(&folder);
        let args = ["mount", server.address(), text(&mount.0), "--token", text(&token)];
        succeed(&[&args[..], &["-o", options]].concat());
        mount
    });
    Two { there, server, _data: data }
}

impl Two {
    /// The same path on the mount that changes, and on the one that looks; the two take turns.
    fn paths(&self, turn: usize, name: &str) -> (PathBuf, PathBuf) {
        (self.there[turn % 2].0.join(name), self.there[(turn + 1) % 2].0.join(name))
    }

    fn end(self) {
        for mount in &self.there {
            unmount(&mount.0);
        }
        assert_eq!(self.server.stop(), Some(0));
    }
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn two_mounts_with_timeouts_of_zero_see_each_others_names_at_once() {
    let two = two_mounts();
    for turn in 0..10 {
        let at = |name: &str| two.paths(turn, name);
        let [dir, file, moved, link, symlink, other] =
            ["dir", "dir/file", "dir/moved", "dir/link", "dir/symlink", "other"].map(at);
        fs::create_dir(&dir.0).unwrap();
        assert!(fs::metadata(&dir.1).unwrap().is_dir());
        assert_eq!(fs::metadata(&file.1).unwrap_err().kind(), ErrorKind::NotFound);
        drop(File::create(&file.0).unwrap());
        assert_eq!(names(&dir.1), ["file"]);
        fs::hard_link(&file.0, &link.0).unwrap();
        assert_eq!(fs::metadata(&file.1).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(&link.1).unwrap().ino(), fs::metadata(&file.0).unwrap().ino());
        std::os::unix::fs::symlink("file", &symlink.0).unwrap();
        assert_eq!(fs::read_link(&symlink.1).unwrap().to_str(), Some("file"));
        fs::remove_file(&symlink.0).unwrap();
        std::os::unix::fs::symlink("moved", &symlink.0).unwrap();
        assert_eq!(fs::read_link(&symlink.1).unwrap().to_str(), Some("moved"));
        fs::rename(&file.0, &moved.0).unwrap();
        assert_eq!(fs::metadata(&file.1).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(fs::metadata(&moved.1).is_ok());
        assert_eq!(names(&dir.1), ["link", "moved", "symlink"]);
        fs::remove_file(&link.0).unwrap();
        assert_eq!(fs::metadata(&moved.1).unwrap().nlink(), 1);
        fs::rename(&dir.0, &other.0).unwrap();
        assert!(fs::metadata(&dir.1).is_err());
        assert_eq!(names(&other.1), ["moved", "symlink"]);
        fs::remove_dir_all(&other.0).unwrap();
        assert!(fs::metadata(&other.1).is_err());
    }
    two.end();
}

#[test]
fn two_mounts_with_timeouts_of_zero_see_each_others_attributes_at_once() {
    let two = two_mounts();
    fs::write(two.there[0].0.join("file"), "x").unwrap();
    for turn in 0..10 {
        let (file, seen) = two.paths(turn, "file");
        let open = File::open(&seen).unwrap();
        let number = u32::try_from(turn).unwrap();
        let mode = 0o600 | number;
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&seen).unwrap().mode() & 0o777, mode);
        std::os::unix::fs::chown(&file, Some(mode), Some(number)).unwrap();
        let found = open.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (mode, number));
        let value = turn.to_string();
        rustix::fs::setxattr(&file, "user.turn", value.as_bytes(), XattrFlags::empty()).unwrap();
        let mut read = [0; 8];
        let len = rustix::fs::getxattr(&seen, "user.turn", &mut read[..]).unwrap();
        assert_eq!(&read[..len], value.as_bytes());
        rustix::fs::removexattr(&file, "user.turn").unwrap();
        assert!(rustix::fs::getxattr(&seen, "user.turn", &mut read[..]).is_err());
        let time = std::time::UNIX_EPOCH + Duration::from_secs(turn as u64 + 1);
        File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        assert_eq!(fs::metadata(&seen).unwrap().modified().unwrap(), time);
    }
    two.end();
}

#[test]
fn two_mounts_with_timeouts_of_zero_see_what_the_other_has_written_and_closed_at_once() {
    let two = two_mounts();
    fs::write(two.there[0].0.join("file"), "").unwrap();
    let mut kept = two.there.each_ref().map(|mount| File::open(mount.0.join("file")).unwrap());
    for turn in 0..10 {
        let (file, seen) = two.paths(turn, "file");
        let text = format!("turn {turn}").repeat(turn * 2000 + 1);
        fs::write(&file, &text).unwrap();
        assert_eq!(fs::metadata(&seen).unwrap().len(), text.len() as u64);
        assert_eq!(fs::read_to_string(&seen).unwrap(), text);
        // A file that was open before shows the same.
        let mut found = String::new();
        let open = &mut kept[(turn + 1) % 2];
        open.rewind().unwrap();
        open.read_to_string(&mut found).unwrap();
        assert_eq!(found, text);

        File::options().write(true).open(&file).unwrap().set_len(3).unwrap();
        assert_eq!(fs::read_to_string(&seen).unwrap(), "tur");
        // Bytes written with O_SYNC are seen before the file is closed.
        let sync = i32::try_from(OFlags::SYNC.bits()).unwrap();
        let options = File::options().write(true).custom_flags(sync).open(&file);
        let mut writer = options.unwrap();
        writer.write_all(b"now").unwrap();
        assert_eq!(fs::read_to_string(&seen).unwrap(), "now");
    }
    drop(kept);
    two.end();
}

#[test]
#[expect(unsafe_code, reason = "a map has no safe interface")]
fn two_mounts_with_timeouts_of_zero_map_what_the_other_has_written() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let two = two_mounts();
    let len = 10_000;
    fs::write(two.there[0].0.join("file"), vec![b'-'; len]).unwrap();
    for turn in 0..10 {
        let (file, seen) = two.paths(turn, "file");
        let mapped = File::open(&seen).unwrap();
        let (shared, read) = (MapFlags::SHARED, ProtFlags::READ);
        // SAFETY: the file stays as long as it is, and bytes that others change are read one at a
        // time.
        let map = unsafe { mmap(std::ptr::null_mut(), len, read, shared, &mapped, 0).unwrap() };
        // SAFETY: within the map, which lives until the end of the turn.
        let byte = |at: usize| unsafe { map.cast::<u8>().add(at).read_volatile() };
        byte(0);
        byte(len - 1);
        let new = b'a' + u8::try_from(turn).unwrap();
        let writer = File::options().write(true).open(&file).unwrap();
        writer.write_all_at(&[new], len as u64 - 1).unwrap();
        drop(writer);
        // An access to a map sends no request; a call that makes the kernel look at the file makes
        // it read the pages anew.
        mapped.metadata().unwrap();
        assert_eq!(byte(len - 1), new);
        // SAFETY: it is not used any more.
        unsafe { munmap(map, len).unwrap() };
    }
    two.end();
}

#[test]
fn a_mount_makes_names_in_a_directory_that_another_has_just_made_again() {
    // The kernel believes what it has seen for longer than the test takes.
    let two = two_mounts_with("attr_timeout=3600,entry_timeout=3600");
    type Make = fn(&std::path::Path) -> std::io::Result<()>;
    let makes: [(&str, Make); 4] = [
        ("write", |dir| fs::write(dir.join("file"), b"new")),
        ("mkdir", |dir| fs::create_dir(dir.join("sub"))),
        ("symlink", |dir| std::os::unix::fs::symlink("nowhere", dir.join("link"))),
        ("rename", |dir| fs::rename(dir.with_file_name("moved"), dir.join("moved"))),
    ];
    for (turn, (call, make)) in makes.iter().enumerate() {
        let (dir, seen) = two.paths(turn, &format!("dir {call}"));
        fs::create_dir(&dir).unwrap();
        assert!(seen.is_dir());
        fs::write(seen.with_file_name("moved"), b"moved").unwrap();
        fs::remove_dir(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        make(&seen).unwrap_or_else(|error| panic!("{call}: {error}"));
        assert_eq!(names(&dir).len(), 1, "{call}");
    }
    two.end();
}

#[test]
fn a_directory_that_two_mounts_change_is_seen_to_change_forward_and_no_later_than_it_may_be() {
    // The timeout of the mounts, and time for answers to arrive on a busy machine.
    const LATE_MAX: Duration = Duration::from_secs(1);
    let two = two_mounts_with("attr_timeout=0.2,entry_timeout=0.2");
    fs::create_dir(two.there[0].0.join("dir")).unwrap();
    // Names that each mount has made.
    let made = [const { AtomicU64::new(0) }; 2];
    let begun = Instant::now();
    let work = |who: usize| {
        let (dir, _) = two.paths(who, "dir");
        let (mut shown, mut others) = (0, Vec::new());
        let mut own = 0;
        while begun.elapsed() < 3 * LATE_MAX {
            File::create(dir.join(format!("{who}-{own}"))).unwrap();
            own = made[who].fetch_add(1, Ordering::SeqCst) + 1;
            let asked = Instant::now();
            others.push((asked, made[1 - who].load(Ordering::SeqCst)));
            let size = fs::metadata(&dir).unwrap().size();
            assert!(size >= shown, "{size} after {shown}");
            let old = others.iter().rev().find(|(at, _)| asked - *at > LATE_MAX);
            let told = own + old.map_or(0, |(_, number)| *number);
            assert!(size >= told, "{size} and not {told}, of which {own} are its own");
            shown = size;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0));
        scope.spawn(|| work(1));
    });
    let all = made.each_ref().map(|made| made.load(Ordering::SeqCst)).iter().sum::<u64>();
    pause(LATE_MAX);
    for mount in &two.there {
        assert_eq!(fs::metadata(mount.0.join("dir")).unwrap().size(), all);
    }
    two.end();
}

#[test]
fn two_mounts_see_in_statfs_what_the_other_has_used_at_once() {
    let two = two_mounts();
    succeed(&["set", text(&two.there[0].0), "quota.bytes=64M", "quota.entries=1000"]);
    let until_counted = || {
        let found = rustix::fs::statvfs(&two.there[1].0).unwrap();
        (found.f_blocks * found.f_frsize == 64 << 20).then_some(found)
    };
    let mut tries = 0;
    while until_counted().is_none() {
        tries += 1;
        assert!(tries < 2000, "the quota is never counted");
        pause(Duration::from_millis(10));
    }
    for turn in 0..4 {
        let (file, seen) = two.paths(turn, &format!("file{turn}"));
        let root = seen.parent().unwrap();
        let before = rustix::fs::statvfs(root).unwrap();
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let after = rustix::fs::statvfs(root).unwrap();
        assert_eq!((before.f_bfree - after.f_bfree) * after.f_frsize, 1 << 20);
        assert_eq!(before.f_ffree - after.f_ffree, 1);
    }
    // Without a limit inodes are still counted: the root and four files.
    succeed(&["set", text(&two.there[0].0), "quota.bytes=unlimited", "quota.entries=none"]);
    let shown = rustix::fs::statvfs(&two.there[1].0).unwrap();
    assert!(shown.f_blocks * shown.f_frsize > 64 << 20, "the space is that of the disk again");
    assert_eq!(shown.f_files - shown.f_ffree, 5);
    two.end();
}
