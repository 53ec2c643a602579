//! The crate against the real kernel: the file system in memory, mounted, and used as programs do.
//!
//! Needs `/dev/fuse` and the right to mount; without them these tests fail, they are not skipped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

#[path = "mounted/harness.rs"]
pub(crate) mod harness;

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use fuse::{Ended, Errno, Handler, InitOptions, NodeId, Notice, Op, Reply, Request, Unmount};
use harness::{Deferred, Gate, mount, mount_again, mount_null, null, serve_here, start_role};
use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, RenameFlags, StatxFlags, XattrFlags};

#[test]
fn files_and_directories_are_as_programs_expect() {
    let Some(mounted) = mount_null() else { return };
    let (dir, file) = (mounted.path("dir"), mounted.path("dir/file"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, b"hello").unwrap();
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b" world").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"hello world");
    assert_eq!(fs::metadata(&file).unwrap().len(), 11);

    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&file, Some(1000), Some(100)).unwrap();
    File::options().write(true).open(&file).unwrap().set_len(5).unwrap();
    let stat = fs::metadata(&file).unwrap();
    assert_eq!((stat.mode(), stat.uid(), stat.gid(), stat.len()), (0o100_600, 1000, 100, 5));

    let link = mounted.path("link");
    fs::hard_link(&file, &link).unwrap();
    assert_eq!(fs::metadata(&link).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("dir/file", mounted.path("symlink")).unwrap();
    assert_eq!(fs::read(mounted.path("symlink")).unwrap(), b"hello");
    fs::rename(&file, mounted.path("moved")).unwrap();
    assert_eq!(fs::metadata(&file).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(dir.join("other"), b"").unwrap();
    assert_eq!(fs::remove_dir(&dir).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_file(&link).unwrap();
    assert_eq!(fs::read(mounted.path("moved")).unwrap(), b"hello");
    assert!(mounted.seen.count("FLUSH") > 0, "closing a file is answered");
}

#[test]
fn an_open_file_without_a_name_is_written_and_read() {
    let Some(mounted) = mount_null() else { return };
    let mut file = File::create_new(mounted.path("file")).unwrap();
    fs::remove_file(mounted.path("file")).unwrap();
    file.write_all(b"still here").unwrap();
    let mut byte = [0; 5];
    file.read_exact_at(&mut byte, 6).unwrap_err();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

#[test]
fn large_writes_arrive_whole_and_in_large_requests() {
    let Some(mounted) = mount_null() else { return };
    let data: Vec<u8> = (0..4_u32 << 20).map(|at| at.to_le_bytes()[1]).collect();
    fs::write(mounted.path("large"), &data).unwrap();
    assert!(fs::read(mounted.path("large")).unwrap() == data);
    let writes = mounted.seen.count("WRITE");
    assert!(writes <= 8, "4 MiB came in {writes} writes, where 1 MiB is allowed");
}

#[test]
fn answers_given_later_from_kept_requests_are_the_same() {
    let options = fuse::NullFs::init_options();
    let Some(mounted) = mount(1, &options, || Deferred(Arc::new(null(Duration::ZERO)))) else {
        return;
    };
    let data: Vec<u8> = (0..3_u32 << 20).map(|at| at.to_le_bytes()[2]).collect();
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::write(mounted.path("dir/large"), &data).unwrap();
    fs::write(mounted.path("dir/small"), b"small").unwrap();
    assert!(fs::read(mounted.path("dir/large")).unwrap() == data);
    assert_eq!(fs::read(mounted.path("dir/small")).unwrap(), b"small");
    assert_eq!(names(&mounted.path("dir")), ["large", "small"]);
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_listing_of_5000_entries_is_complete_and_brings_attributes_along() {
    let Some(mounted) = mount_null() else { return };
    let mut made: Vec<String> = (0..5000).map(|number| format!("file-{number}")).collect();
    for name in &made {
        File::create_new(mounted.path(name)).unwrap();
    }
    made.sort();
    assert_eq!(names(mounted.root()), made);
    assert!(mounted.seen.count("READDIRPLUS") > 0);
    let before = mounted.seen.count("LOOKUP") + mounted.seen.count("GETATTR");
    for name in &made {
        fs::metadata(mounted.path(name)).unwrap();
    }
    let after = mounted.seen.count("LOOKUP") + mounted.seen.count("GETATTR");
    assert_eq!(after, before, "what was listed needs no look-up");
}

#[test]
fn a_listing_goes_on_while_what_was_listed_is_removed() {
    let Some(mounted) = mount_null() else { return };
    for number in 0..1000 {
        File::create_new(mounted.path(&number.to_string())).unwrap();
    }
    let mut removed = 0;
    for entry in fs::read_dir(mounted.root()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 1000);
    assert!(names(mounted.root()).is_empty());
}

#[test]
fn a_process_blocked_in_a_lock_can_be_killed() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();

    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    for (waiting, role) in ["flock", "fcntl"].into_iter().enumerate() {
        let child = start_role(role, &path);
        mounted.seen.wait("SETLKW", 3 + u64::try_from(waiting).unwrap());
        assert!(!child.kill().success());
    }
    assert_eq!(mounted.seen.count("SETLK"), 0, "rustix asks to wait, and gets its locks at once");
}

#[test]
fn a_process_blocked_in_a_lock_gets_it_when_it_is_released() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut child = start_role("flock", &path);
    mounted.seen.wait("SETLKW", 2);
    drop(file);
    assert!(child.end().success());
}

#[test]
fn flock_and_fcntl_locks_do_not_meet_but_each_excludes() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    // Another process takes an fcntl lock although the file is flocked here.
    assert!(start_role("fcntl", &path).end().success());

    let other = File::options().write(true).open(&path).unwrap();
    let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();

    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    assert_eq!(start_role("fcntl-try", &path).end().code(), Some(Errno::AGAIN.raw_os_error()));
    // POSIX: closing any descriptor of the file ends the process's fcntl locks.
    drop(other);
    mounted.seen.wait("FLUSH", 1);
    assert!(start_role("fcntl-try", &path).end().success());
}

/// Exit code of a test program in which a test has failed.
const FAILED_TEST: i32 = 101;

/// Plays the role of a process that `start_role` starts. As a test: a process without a part to
/// play fails.
#[test]
fn child_role() {
    let Ok(role) = std::env::var("FUSE_TEST_ROLE") else {
        let status = start_role("nothing", Path::new("/")).end();
        assert_eq!(status.code(), Some(FAILED_TEST), "{status}");
        return;
    };
    let path = std::env::var_os("FUSE_TEST_PATH").unwrap();
    let file = || File::options().write(true).open(&path).unwrap();
    let done = match role.as_str() {
        "flock" => rustix::fs::flock(file(), FlockOperation::LockExclusive),
        "fcntl" => rustix::fs::fcntl_lock(file(), FlockOperation::LockExclusive),
        "fcntl-try" => rustix::fs::fcntl_lock(file(), FlockOperation::NonBlockingLockExclusive),
        "serve" => {
            serve_here(Path::new(&path));
            Ok(())
        }
        "mount-again" => {
            mount_again();
            Ok(())
        }
        "getxattr" => rustix::fs::getxattr(&path, "user.never", &mut [0; 16]).map(|_| ()),
        other => panic!("no such role: {other}"),
    };
    std::process::exit(done.map_or_else(Errno::raw_os_error, |()| 0));
}

#[test]
fn a_nameless_file_can_be_given_a_name() {
    let Some(mounted) = mount_null() else { return };
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let mut file = OpenOptions::new().write(true).custom_flags(flags).open(mounted.root()).unwrap();
    file.write_all(b"made nameless").unwrap();
    assert!(names(mounted.root()).is_empty());

    let by_fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, by_fd, CWD, mounted.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(mounted.path("named")).unwrap(), b"made nameless");
    assert_eq!(mounted.seen.count("TMPFILE"), 1);
}

#[test]
fn statx_tells_when_a_file_was_made() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    File::create_new(&path).unwrap();
    fs::write(&path, b"later").unwrap();
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).unwrap();
    assert!(StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME));
    assert!(stat.stx_btime.tv_sec > 1_700_000_000);
    assert!(stat.stx_btime.tv_sec < stat.stx_mtime.tv_sec);
    assert_eq!((stat.stx_btime.tv_nsec, stat.stx_size), (5, 5));
    assert!(mounted.seen.count("STATX") > 0);
}

#[test]
fn holes_are_found() {
    let Some(mounted) = mount_null() else { return };
    let mut file = File::create_new(mounted.path("sparse")).unwrap();
    file.write_all_at(b"x", 1 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(0));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 1));
    file.seek(SeekFrom::Start(0)).unwrap();
    assert!(mounted.seen.count("LSEEK") > 0);
}

#[test]
fn ranges_are_copied_by_the_file_system() {
    let Some(mounted) = mount_null() else { return };
    fs::write(mounted.path("from"), b"0123456789").unwrap();
    let from = File::open(mounted.path("from")).unwrap();
    let to = File::create_new(mounted.path("to")).unwrap();
    let (mut at, mut into) = (2, 1);
    let copied =
        rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 5).unwrap();
    assert_eq!((copied, at, into), (5, 7, 6));
    assert_eq!(fs::read(mounted.path("to")).unwrap(), b"\x0023456");
    let seen = &mounted.seen;
    assert_eq!(seen.count("COPY_FILE_RANGE") + seen.count("COPY_FILE_RANGE_64"), 1);
}

#[test]
fn rename_can_refuse_to_replace_and_can_exchange() {
    let Some(mounted) = mount_null() else { return };
    let (one, two) = (mounted.path("one"), mounted.path("two"));
    fs::write(&one, b"1").unwrap();
    fs::write(&two, b"2").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (b"2".into(), b"1".into()));
    assert_eq!(mounted.seen.count("RENAME2"), 1, "the kernel checks NOREPLACE where it knows");
}

#[test]
fn xattrs_are_kept_and_listed() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let set = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.a", value, flags);
    set(b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    let large = vec![7; 60_000];
    set(&large, XattrFlags::REPLACE).unwrap();
    let mut value = vec![0; 65_536];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut value), Ok(60_000));
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut [0; 9]), Err(Errno::RANGE));
    let listed = rustix::fs::listxattr(&path, &mut value).unwrap();
    assert_eq!(&value[..listed], b"user.a\0");
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut value), Err(Errno::NODATA));
}

#[test]
fn four_threads_create_in_one_directory_at_once() {
    let Some(mounted) = mount_null() else { return };
    thread::scope(|scope| {
        for thread in 0..4 {
            let mounted = &mounted;
            scope.spawn(move || {
                for number in 0..250 {
                    File::create_new(mounted.path(&format!("{thread}-{number}"))).unwrap();
                }
            });
        }
    });
    assert_eq!(names(mounted.root()).len(), 1000);
    assert_eq!(mounted.seen.count("CREATE"), 1000);
}

#[test]
fn a_name_is_looked_up_again_after_it_was_invalidated() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let node = NodeId(fs::metadata(&path).unwrap().ino());
    let lookups = || {
        let before = mounted.seen.count("LOOKUP");
        fs::metadata(&path).unwrap();
        mounted.seen.count("LOOKUP") - before
    };
    assert_eq!(lookups(), 0, "cached");
    let name = || Bytes::from_static(b"file");
    for expire_only in [false, true] {
        let parent = NodeId::ROOT;
        let notice = Notice::InvalEntry { parent, name: name(), expire_only };
        mounted.notifier.send(&notice).unwrap();
        assert_eq!((lookups(), lookups()), (1, 0), "{notice:?}");
    }
    let gone = Notice::Delete { parent: NodeId::ROOT, child: node, name: name() };
    mounted.notifier.send(&gone).unwrap();
    assert_eq!((lookups(), lookups()), (1, 0));
    mounted.notifier.send(&Notice::IncEpoch).unwrap();
    assert_eq!((lookups(), lookups()), (1, 0));
    let unknown = Notice::InvalInode { node: NodeId(4711), offset: 0, len: 0 };
    mounted.notifier.send(&unknown).unwrap();
}

#[test]
fn contents_and_attributes_are_asked_for_again_after_they_were_invalidated() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    fs::write(&path, b"contents").unwrap();
    let node = NodeId(fs::metadata(&path).unwrap().ino());
    let mut file = File::open(&path).unwrap();
    let mut requests = || {
        // std asks by statx(2), for the time of birth as well.
        let count = |kinds: &[&str]| kinds.iter().map(|kind| mounted.seen.count(kind)).sum::<u64>();
        let before = (count(&["READ"]), count(&["GETATTR", "STATX"]));
        file.rewind().unwrap();
        let mut contents = String::new();
        file.read_to_string(&mut contents).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8);
        (contents, count(&["READ"]) - before.0, count(&["GETATTR", "STATX"]) - before.1)
    };
    requests();
    assert_eq!(requests(), ("contents".into(), 0, 0), "cached");
    mounted.notifier.send(&Notice::InvalInode { node, offset: 0, len: 0 }).unwrap();
    let (contents, reads, stats) = requests();
    assert_eq!((contents.as_str(), reads), ("contents", 1));
    assert!(stats > 0);
    let data = Bytes::from_static(b"CON");
    mounted.notifier.send(&Notice::Store { node, offset: 0, data }).unwrap();
    assert_eq!(requests().0, "CONtents");
}

#[test]
fn notices_sent_from_a_task_do_not_block_its_thread() {
    let Some(mounted) = mount_null() else { return };
    let parent = NodeId::ROOT;
    let notices = (0..100).map(|number| Notice::InvalEntry {
        parent,
        name: number.to_string().into(),
        expire_only: false,
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(mounted.notifier.send_all(notices.collect())), Ok(()));
}

#[test]
fn unmounting_ends_the_session() {
    let Some(mounted) = mount_null() else { return };
    fs::write(mounted.path("file"), b"").unwrap();
    assert_eq!(mounted.unmount(Unmount::WhenIdle), [Ended::Unmounted]);
}

#[test]
fn a_mount_in_use_is_busy_and_ends_when_its_last_file_is_closed() {
    let Some(mounted) = mount_null() else { return };
    let mut file = File::create_new(mounted.path("file")).unwrap();
    assert!(fuse::unmount(mounted.root(), Unmount::WhenIdle).is_err());
    fuse::unmount(mounted.root(), Unmount::Lazy).unwrap();
    file.write_all(b"still served").unwrap();
    drop(file);
    // The mount is gone; the session ends by itself.
    assert_eq!(mounted.ended(), [Ended::Unmounted]);
}

/// Answers the root's attributes, statfs after it has held its thread at the gate, and getxattr only
/// when it is interrupted.
#[derive(Default)]
pub(crate) struct Waits(pub(crate) Arc<Gate>);

impl Handler for Waits {
    fn request(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Op::StatFs => {
                self.0.hold();
                reply.error(Errno::NOSYS);
            }
            Op::GetXattr { .. } => {
                tokio::task::spawn_local(async move {
                    reply.interrupted().await;
                    reply.error(Errno::INTR);
                });
            }
            Op::GetAttr { .. } => {
                let attr = fuse::Attr {
                    ino: 1,
                    size: 0,
                    blocks: 0,
                    atime: fuse::Timespec::default(),
                    mtime: fuse::Timespec::default(),
                    ctime: fuse::Timespec::default(),
                    mode: 0o040_755,
                    nlink: 2,
                    uid: 0,
                    gid: 0,
                    rdev: 0,
                    blksize: 4096,
                };
                reply.attr(&attr, Duration::from_secs(3600));
            }
            Op::ListXattr { .. } => drop(reply),
            _ => reply.error(Errno::NOSYS),
        }
    }

    fn forget(&self, _node: NodeId, _lookups: u64) {}
}

#[test]
fn an_interrupt_finds_its_request_whichever_descriptor_read_either() {
    let Some(mounted) = mount(2, &InitOptions::default(), Waits::default) else { return };
    // Both sessions wait on the same queue, so requests and their interrupts fall to either.
    for round in 0..20 {
        let children: Vec<_> = (0..4).map(|_| start_role("getxattr", mounted.root())).collect();
        mounted.seen.wait("GETXATTR", (round + 1) * 4);
        for child in children {
            assert!(!child.kill().success());
        }
    }
    assert_eq!(mounted.unmount(Unmount::Lazy), [Ended::Unmounted, Ended::Unmounted]);
}

#[test]
fn a_request_that_the_handler_forgets_fails_with_eio() {
    let Some(mounted) = mount(1, &InitOptions::default(), Waits::default) else { return };
    assert_eq!(rustix::fs::listxattr(mounted.root(), &mut [0; 16]), Err(Errno::IO));
}

#[test]
fn mounting_on_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = fuse::MountOptions::default();
    assert!(matches!(
        fuse::mount(&options, &dir.path().join("nothing")),
        Err(fuse::MountError::MountPoint { .. })
    ));
    assert!(fuse::unmount(dir.path(), Unmount::WhenIdle).is_err());
}

/// Panics where it is asked for the space of the file system.
struct Panics;

impl Handler for Panics {
    fn request(&self, request: Request<'_>, reply: Reply) {
        assert!(!matches!(request.op, Op::StatFs), "this handler panics");
        reply.error(Errno::NOSYS);
    }

    fn forget(&self, _node: NodeId, _lookups: u64) {}
}

#[test]
fn a_thread_that_panics_ends_the_session() {
    let Some(mut mounted) = mount(1, &InitOptions::default(), || Panics) else { return };
    let root = mounted.root().to_owned();
    thread::scope(|scope| {
        let asked = scope.spawn(|| rustix::fs::statvfs(&root).map(drop));
        let failure = mounted.failure();
        assert!(failure.contains("panic"), "{failure}");
        // The end of the process does the same.
        fuse::unmount(&root, Unmount::Force).unwrap();
        assert!(asked.join().unwrap().is_err());
    });
}
