//! Mounting, unmounting, options.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
};

use fuse::{Ended, Unmount};
use mount::{Error, Options};
use rustix::{io::Errno, mount::UnmountFlags};

use crate::harness::{Mounted, Way, mount, mount_new, new_model, try_mount, until};

fn unmount(path: &Path, when: Unmount) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(mount::unmount(path, when))
}

fn refusal(path: &Path, options: Options) -> Error {
    let way = Way { options, ..Way::default() };
    try_mount(&new_model(), &way, path).map(|_| ()).unwrap_err()
}

#[test]
fn unmounting_while_idle_ends_the_run() {
    let mounted = mount_new();
    fs::write(mounted.path("file"), b"").unwrap();
    until("nobody uses it", || unmount(mounted.root(), Unmount::WhenIdle).is_ok());
    assert_eq!(mounted.ended(), Ended::Unmounted);
}

#[test]
fn a_mount_in_use_is_busy_and_a_lazy_unmount_ends_with_its_last_user() {
    let mounted = mount_new();
    let model = mounted.model.clone();
    let mut file = File::create_new(mounted.path("file")).unwrap();
    fs::remove_file(mounted.path("file")).unwrap();
    assert!(matches!(unmount(mounted.root(), Unmount::WhenIdle), Err(Error::Busy { .. })));
    unmount(mounted.root(), Unmount::Lazy).unwrap();
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
    file.write_all(b"still served").unwrap();
    drop(file);
    assert_eq!(mounted.ended(), Ended::Unmounted);
    // Open files are closed, so files without a name are gone.
    model.check();
}

#[test]
fn a_mount_point_that_cannot_be_used_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let refused = |path: &Path| refusal(path, Options::default());
    assert!(matches!(refused(&dir.path().join("nothing")), Error::NoMountpoint { .. }));
    assert!(matches!(refused(&file), Error::NotDirectory { .. }));
    assert!(matches!(unmount(dir.path(), Unmount::WhenIdle), Err(Error::NotMounted { .. })));
    let mounted = mount_new();
    assert!(matches!(refused(mounted.root()), Error::AlreadyMounted { .. }));
    fs::write(mounted.path("file"), b"still served").unwrap();
}

#[test]
fn a_mount_that_nobody_serves_any_more_is_in_the_way_until_it_is_unmounted() {
    let dir = tempfile::tempdir().unwrap();
    let options = fuse::MountOptions { fsname: "dead".into(), ..fuse::MountOptions::default() };
    drop(fuse::mount(&options, dir.path()).unwrap());
    let refused = refusal(dir.path(), Options::default());
    assert!(matches!(refused, Error::AlreadyMounted { .. }), "{refused:?}");
    unmount(dir.path(), Unmount::WhenIdle).unwrap();
    assert!(matches!(unmount(dir.path(), Unmount::WhenIdle), Err(Error::NotMounted { .. })));
}

#[test]
fn a_subdirectory_can_be_the_root() {
    let mounted = mount_new();
    fs::create_dir_all(mounted.path("a/b/c")).unwrap();
    fs::write(mounted.path("a/b/file"), b"below").unwrap();
    fs::write(mounted.path("first"), b"").unwrap();
    let mut options = Way::default().options;
    options.set("subdir=/a//b/").unwrap();
    let below = mount(&mounted.model, &Way { options: options.clone(), ..Way::default() });
    assert_eq!(fs::read(below.path("file")).unwrap(), b"below");
    let ino = fs::metadata(mounted.path("a/b")).unwrap().ino();
    assert_eq!(fs::metadata(below.root()).unwrap().ino(), ino);
    fs::rename(below.path("file"), below.path("c/file")).unwrap();
    assert_eq!(fs::read(mounted.path("a/b/c/file")).unwrap(), b"below");

    let dir = tempfile::tempdir().unwrap();
    for (path, errno) in [
        ("nothing", base::FsError::NotFound),
        ("first", base::FsError::NotDirectory),
        ("a/../a", base::FsError::Invalid),
    ] {
        options.subdir = path.as_bytes().to_vec();
        let way = Way { options: options.clone(), ..Way::default() };
        match try_mount(&mounted.model, &way, dir.path()).map(|_| ()) {
            Err(Error::Subdir { source, .. }) => assert_eq!(source, client::Error::Fs(errno)),
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let mounted = mount_new();
    fs::write(mounted.path("file"), b"contents").unwrap();
    let options = Options { read_only: true, ..Way::default().options };
    let other = mount(&mounted.model, &Way { options, ..Way::default() });
    assert_eq!(fs::read(other.path("file")).unwrap(), b"contents");
    for error in [
        fs::write(other.path("file"), b"").unwrap_err(),
        fs::create_dir(other.path("dir")).unwrap_err(),
        fs::remove_file(other.path("file")).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    }
}

/// The line that the kernel shows for a mount.
fn shown(mounted: &Mounted) -> String {
    let path = mounted.root().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find(|line| line.contains(&path)).unwrap().to_owned()
}

#[test]
fn options_are_the_kernels_options() {
    let options = Options { fsname: "127.0.0.1:7420".into(), ..Options::default() };
    let plain = shown(&mount(&new_model(), &Way { options, ..Way::default() }));
    assert!(plain.starts_with("127.0.0.1:7420 "), "{plain}");
    assert!(plain.contains(" fuse.pando rw,nosuid,nodev,"), "{plain}");
    assert!(plain.contains(",default_permissions"), "{plain}");
    assert!(!plain.contains("allow_other"), "{plain}");
    let open = shown(&mount_new());
    assert!(open.contains("allow_other") && !open.contains("nosuid"), "{open}");
}

#[test]
fn without_dev_a_device_cannot_be_opened() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let mounted = mount(&new_model(), &Way { options: Options::default(), ..Way::default() });
    let (path, mode) = (mounted.path("null"), Mode::from_raw_mode(0o666));
    mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(1, 3)).unwrap();
    let error = File::open(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
}

#[test]
fn what_the_kernel_never_released_is_closed_at_the_end() {
    let mounted = mount_new();
    let model = mounted.model.clone();
    let seen = Arc::clone(&mounted.seen);
    let file = File::create_new(mounted.path("file")).unwrap();
    fs::remove_file(mounted.path("file")).unwrap();
    // An aborted connection sends no releases; this aborts, and is refused because of the open
    // file.
    let forced = rustix::mount::unmount(mounted.root(), UnmountFlags::FORCE);
    assert_eq!(forced, Err(Errno::BUSY));
    assert_eq!(mounted.served_end(), Ended::Unmounted);
    drop(file);
    assert_eq!(seen.count("release"), 1);
    model.check();
}
