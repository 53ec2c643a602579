//! The crate against the real kernel, over io_uring: all that `mounted` tests over `/dev/fuse`, and
//! what only io_uring does.
//!
//! Needs Linux 6.14, and the right to set its module parameter; without them the tests pass, and the
//! program says `NOT TESTED`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "mounted.rs"]
pub(crate) mod mounted;

use std::{
    error::Error as _,
    fs::{self, File},
    io,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fuse::{
    Ended, Errno, InitOptions, IoUring, IoUringError, NullFs, Session, SessionError, Transport,
    Unmount,
};
use mounted::{
    Waits,
    harness::{
        Gate, PATIENCE, THREADS, mount, mount_as, mount_null, mount_options, null,
        parameter::{DISABLED, can_be_offered, not_tested, with_parameter},
        start_role, until,
    },
};
use rustix::{
    fs::{FlockOperation, XattrFlags},
    thread::{CpuSet, Pid, sched_setaffinity},
};

/// Keeps this thread on one CPU.
pub(crate) fn stay_on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).unwrap();
}

/// Runs `act` on a thread, and fails when it takes too long.
#[expect(clippy::disallowed_methods, reason = "tests start their own threads, and join them")]
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _ = send.send(act());
    });
    let value = done.recv_timeout(PATIENCE).expect("it ends in time");
    thread.join().unwrap();
    value
}

#[test]
fn more_locks_can_wait_on_a_cpu_than_it_has_entries_at_first() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let (send, done) = mpsc::channel();
    let waiting = 200;
    thread::scope(|scope| {
        for _ in 0..waiting {
            let (path, send) = (&path, send.clone());
            scope.spawn(move || {
                stay_on(0);
                let file = File::options().write(true).open(path).unwrap();
                rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
                drop(file);
                send.send(()).unwrap();
            });
        }
        mounted.seen.wait("SETLKW", 1 + waiting);
        // The unlock goes by the same queue.
        stay_on(0);
        drop(file);
        for _ in 0..waiting {
            done.recv_timeout(PATIENCE).expect("each gets the lock in turn");
        }
    });
}

#[test]
fn an_interrupt_that_comes_before_its_request_ends_it() {
    // The first session has the ring; the second reads interrupts while the first is blocked.
    let gate = Arc::new(Gate::default());
    let waits = Arc::clone(&gate);
    let make = move || Waits(Arc::clone(&waits));
    let Some(mounted) = mount(2, &InitOptions::default(), make) else { return };
    // The kernel knows the attributes from here on, so that the child sends one request only.
    fs::metadata(mounted.root()).unwrap();
    for round in 1..=3 {
        let root = mounted.root().to_owned();
        thread::scope(|scope| {
            scope.spawn(|| {
                stay_on(0);
                rustix::fs::statvfs(&root)
            });
            let held = Task::of(gate.thread());
            until("the thread sleeps", || held.sleeps());
            let slept = held.sleeps_begun();
            // The child inherits this: the thread that is blocked gets its request, too.
            stay_on(0);
            let mut child = start_role("getxattr", &root);
            until("the child waits for its answer", || waits_for_an_answer(child.0.id()));
            // The kernel tells of no signal that comes before it has handed over the request, for
            // which it wakes the thread.
            until("the request is handed over", || held.sleeps_begun() > slept);
            assert_eq!(mounted.seen.count("GETXATTR"), round - 1, "the thread is blocked");
            child.0.kill().unwrap();
            leave_time_to_read_the_interrupt();
            gate.let_go();
            assert!(!child.end().success());
        });
        mounted.seen.wait("GETXATTR", round);
    }
    assert_eq!(mounted.unmount(Unmount::Lazy), [Ended::Unmounted, Ended::Unmounted]);
}

impl Gate {
    /// Waits until a thread is held, and returns which.
    fn thread(&self) -> Pid {
        let held = self.held.lock().unwrap();
        let (held, _) =
            self.changed.wait_timeout_while(held, PATIENCE, |held| held.is_none()).unwrap();
        held.expect("a thread is held")
    }

    fn let_go(&self) {
        *self.held.lock().unwrap() = None;
        self.changed.notify_all();
    }
}

/// Waits for the other session to read it, which nothing shows. Too short a time tests less, and
/// fails nothing.
#[expect(clippy::disallowed_methods, reason = "there is nothing to wait for")]
fn leave_time_to_read_the_interrupt() {
    thread::sleep(Duration::from_millis(100));
}

/// A thread of this process, as the kernel sees it.
struct Task(String);

impl Task {
    fn of(thread: Pid) -> Task {
        Task(format!("/proc/self/task/{thread}/status"))
    }

    fn line(&self, name: &str) -> String {
        let status = fs::read_to_string(&self.0).unwrap();
        let mut values = status.lines().filter_map(|line| line.strip_prefix(name));
        values.next().unwrap().trim().to_owned()
    }

    fn sleeps(&self) -> bool {
        self.line("State:").starts_with('S')
    }

    /// How often it has gone to sleep.
    fn sleeps_begun(&self) -> u64 {
        self.line("voluntary_ctxt_switches:").parse().unwrap()
    }
}

/// Whether a thread of a process waits for an answer of a FUSE file system.
fn waits_for_an_answer(pid: u32) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.any(|task| {
        let place = fs::read_to_string(task.path().join("wchan"));
        place.is_ok_and(|place| place == "request_wait_answer")
    })
}

#[test]
fn a_killed_process_leaves_nobody_waiting() {
    if !can_be_offered() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let device = fs::metadata(&path).unwrap().dev();
    let server = with_parameter("Y", || {
        let server = start_role("serve", &path);
        until("it is mounted", || fs::metadata(&path).is_ok_and(|found| found.dev() != device));
        server
    });
    let file = File::create_new(path.join("file")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut waiting = start_role("flock", &path.join("file"));
    until("the lock is waited for", || waits_for_an_answer(waiting.0.id()));
    assert!(!server.kill().success());
    assert!(!waiting.end().success());
    let lost = in_time(move || (file.metadata().err(), drop(file)).0).unwrap();
    assert_eq!(Errno::from_io_error(&lost), Some(Errno::NOTCONN));
    fuse::unmount(&path, Unmount::WhenIdle).unwrap();
}

#[test]
fn a_forced_unmount_ends_what_waits() {
    let Some(mounted) = mount_null() else { return };
    let path = mounted.path("file");
    let file = File::create_new(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut waiting = start_role("flock", &path);
    mounted.seen.wait("SETLKW", 2);
    let root = mounted.root().to_owned();
    in_time(move || fuse::unmount(&root, Unmount::Force)).unwrap();
    assert!(!waiting.end().success());
    assert_eq!(in_time(move || mounted.ended()), [Ended::Unmounted]);
    drop(file);
}

#[test]
fn mounts_that_end_leave_no_memory_and_no_descriptor() {
    assert!(!can_be_offered() || start_role("mount-again", Path::new("/")).end().success());
}

#[test]
fn the_largest_xattr_fits_where_writes_are_small() {
    let options = InitOptions { max_write: 4096, ..NullFs::init_options() };
    let Some(mounted) = mount(1, &options, || null(Duration::ZERO)) else { return };
    let path = mounted.path("file");
    fs::write(&path, vec![3; 100_000]).unwrap();
    let large = vec![7; 65_536];
    rustix::fs::setxattr(&path, "user.a", &large, XattrFlags::CREATE).unwrap();
    let mut value = vec![0; 65_536];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut value), Ok(65_536));
    assert!(value == large && fs::read(&path).unwrap() == vec![3; 100_000]);
}

/// A change of a setting of the whole machine. A process of its own undoes it, also when this one is
/// killed; after five seconds at the latest, as a process that waits for its own mount does not end.
struct Changed {
    path: &'static str,
    before: String,
    restore: Child,
}

impl Changed {
    fn change(path: &'static str, value: &str) -> io::Result<Changed> {
        let before = fs::read_to_string(path)?.trim().to_owned();
        // The pipe that it reads ends with this process. Ctrl-C does not reach it.
        let script = r#"timeout 5 cat >/dev/null; echo "$2" >"$1""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", path, &before]).process_group(0);
        let restore = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let changed = Changed { path, before, restore };
        fs::write(path, value)?;
        Ok(changed)
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let ended = self.restore.stdin.take().map(drop).map(|()| self.restore.wait());
        let found = fs::read_to_string(self.path);
        let restored = found.as_ref().is_ok_and(|found| found.trim() == self.before);
        assert!(restored || thread::panicking(), "{}: {ended:?} {found:?}", self.path);
    }
}

/// Whether a test may change what all programs of this machine use. Who runs the tests says so.
fn may_change_machine(what: &str) -> bool {
    let may = std::env::var_os("FUSE_TEST_MACHINE").is_some();
    if !may {
        not_tested(&format!("{what}: only where FUSE_TEST_MACHINE is set"));
    }
    may
}

#[test]
fn a_cpu_can_go_and_come_back() {
    const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
    if !may_change_machine("a CPU that goes") {
        return;
    }
    let Some(mounted) = mount_null() else { return };
    let root = mounted.root().to_owned();
    let work = move |round: u32| {
        let root = root.clone();
        in_time(move || {
            for number in 0..100 {
                fs::write(root.join(format!("{round}-{number}")), b"x").unwrap();
            }
        });
    };
    work(0);
    if !fs::read_to_string(ONLINE).is_ok_and(|online| online.trim() == "1") {
        return not_tested("a CPU that goes: this machine has no second one that can");
    }
    let away = match Changed::change(ONLINE, "0") {
        Ok(away) => away,
        Err(error) => return not_tested(&format!("a CPU that goes: {ONLINE}: {error}")),
    };
    work(1);
    drop(away);
    work(2);
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 300);
}

/// Mounts, starts a session that wants io_uring, and unmounts.
fn started(io_uring: IoUring) -> Result<(Transport, Option<String>), SessionError> {
    let dir = tempfile::tempdir().unwrap();
    let connection = fuse::mount(&mount_options(), dir.path()).unwrap();
    let options = InitOptions { io_uring, threads: THREADS, ..NullFs::init_options() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let session = runtime.block_on(Session::start(connection, &options));
    fuse::unmount(dir.path(), Unmount::Lazy).unwrap();
    session.map(|session| {
        let without = session.without_io_uring().map(ToString::to_string);
        (session.negotiated().transport(), without)
    })
}

#[test]
fn without_the_parameter_requests_come_over_the_device() {
    if !can_be_offered() {
        return;
    }
    with_parameter("N", || {
        let (transport, without) = started(IoUring::Auto).unwrap();
        assert_eq!(transport, Transport::Device);
        assert!(without.unwrap().contains("enable_uring is N"));
        let refused = started(IoUring::On).unwrap_err();
        assert!(matches!(refused, SessionError::IoUring(IoUringError::NotOffered)), "{refused}");
        assert_eq!(started(IoUring::Off).unwrap(), (Transport::Device, None));
    });
    let auto = InitOptions { io_uring: IoUring::Auto, threads: THREADS, ..NullFs::init_options() };
    let mounted =
        with_parameter("N", || mount_as(1, &auto, Transport::Device, || null(Duration::ZERO)));
    fs::write(mounted.path("file"), b"served").unwrap();
    let mounted =
        with_parameter("Y", || mount_as(1, &auto, Transport::IoUring, || null(Duration::ZERO)));
    fs::write(mounted.path("file"), b"served").unwrap();
}

#[test]
fn where_io_uring_is_forbidden_requests_come_over_the_device() {
    if !may_change_machine("io_uring forbidden") {
        return;
    }
    if !can_be_offered() {
        return;
    }
    with_parameter("Y", || {
        let _forbidden = match Changed::change(DISABLED, "2") {
            Ok(forbidden) => forbidden,
            Err(error) => return not_tested(&format!("io_uring forbidden: {DISABLED}: {error}")),
        };
        let (transport, without) = started(IoUring::Auto).unwrap();
        assert_eq!(transport, Transport::Device);
        assert!(without.unwrap().contains("refuses io_uring"));
        let refused = started(IoUring::On).unwrap_err();
        let source = refused.source().and_then(std::error::Error::source).unwrap();
        assert!(source.to_string().contains("not permitted"), "{source}");
    });
}
