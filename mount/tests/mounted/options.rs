//! Mount options of administrators: what the kernel makes of them, and what the mount does.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
};

use rustix::fs::OFlags;

use crate::harness::{Mounted, Way, mount, mount_new, new_model, until};

/// A mount with these options.
fn with(list: &str) -> Mounted {
    let mut way = Way::default();
    way.options.set(list).unwrap();
    mount(&new_model(), &way)
}

/// Returns the options that the mount table shows of a mount.
fn shown(root: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == root.to_str()).unwrap();
    line.split(' ').nth(3).unwrap().split(',').map(ToOwned::to_owned).collect()
}

#[test]
fn the_kernel_knows_the_options_that_are_its_own() {
    for (list, there, not) in [
        ("ro,noexec,nosuid,nodev", &["ro", "noexec", "nosuid", "nodev"][..], &["rw"][..]),
        ("noexec,exec,suid,dev", &["rw"], &["noexec", "nosuid", "nodev", "sync"]),
        ("sync,noatime", &["sync", "noatime"], &["dirsync", "relatime"]),
        ("sync,async,relatime", &["relatime"], &["sync"]),
        ("dirsync,strictatime", &["dirsync"], &["sync", "relatime", "noatime"]),
        (
            "_netdev,nofail,x-systemd.automount,user,noauto,defaults",
            &["rw"],
            &["noexec", "_netdev"],
        ),
    ] {
        let mounted = with(list);
        let shown = shown(mounted.root());
        let has = |option: &&str| shown.iter().any(|found| found == *option);
        assert!(there.iter().all(has), "{list}: {shown:?}");
        assert!(!not.iter().any(has), "{list}: {shown:?}");
        mounted.unmount();
    }
}

#[test]
fn nothing_is_executed_on_a_mount_with_noexec() {
    for (list, runs) in [("noexec", false), ("exec", true)] {
        let mounted = with(list);
        let path = mounted.path("program");
        fs::copy("/bin/true", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let mut ran = None;
        // A child that another test has just forked may still have it open for writing.
        until("nobody writes to the program", || {
            ran = Some(Command::new(&path).status());
            !matches!(&ran, Some(Err(error)) if error.kind() == ErrorKind::ExecutableFileBusy)
        });
        match ran.unwrap() {
            Ok(status) => assert!(runs && status.success()),
            Err(error) => assert!(!runs && error.kind() == ErrorKind::PermissionDenied, "{error}"),
        }
        mounted.unmount();
    }
}

#[test]
fn what_is_written_with_o_sync_is_stable_when_it_is_answered() {
    let mounted = mount_new();
    let open = |flags: OFlags| {
        let flags = flags.bits().try_into().unwrap();
        let path = mounted.path("file");
        File::options().write(true).create(true).custom_flags(flags).open(path).unwrap()
    };
    for (flags, syncs) in [(OFlags::empty(), 0), (OFlags::DSYNC, 2), (OFlags::SYNC, 4)] {
        let mut file = open(flags);
        file.write_all(b"one").unwrap();
        file.write_all(b"two").unwrap();
        assert_eq!(mounted.seen.count("fsync"), syncs, "{flags:?}");
    }
    mounted.unmount();
}

#[test]
fn on_a_mount_with_sync_all_changes_are_stable_when_they_are_answered() {
    let mounted = with("sync");
    let count = || (mounted.seen.count("fsync"), mounted.seen.count("sync"));
    let mut file = File::create(mounted.path("file")).unwrap();
    assert_eq!(count(), (0, 1));
    file.write_all(b"x").unwrap();
    assert_eq!(count(), (1, 1));
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(mounted.path("file"), mounted.path("other")).unwrap();
    assert_eq!(count(), (1, 3));
    drop(file);
    mounted.unmount();
}

#[test]
fn on_a_mount_with_dirsync_names_are_stable_and_contents_are_not() {
    let mounted = with("dirsync");
    let count = || (mounted.seen.count("fsync"), mounted.seen.count("sync"));
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::write(mounted.path("dir/file"), b"x").unwrap();
    fs::hard_link(mounted.path("dir/file"), mounted.path("link")).unwrap();
    std::os::unix::fs::symlink("x", mounted.path("symlink")).unwrap();
    fs::rename(mounted.path("link"), mounted.path("dir/link")).unwrap();
    fs::remove_file(mounted.path("dir/link")).unwrap();
    fs::remove_file(mounted.path("dir/file")).unwrap();
    fs::remove_dir(mounted.path("dir")).unwrap();
    assert_eq!(count(), (0, 8));
    mounted.unmount();
}
