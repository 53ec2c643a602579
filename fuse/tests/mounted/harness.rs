//! A file system mounted for one test: served by a thread of its own, watched, and always
//! unmounted. The program of the tests says by its name which transport it uses.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicI64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use fuse::{
    Connection, Ended, Handler, InitOptions, IoUring, MountOptions, NodeId, Notifier, NullFs,
    Reply, Request, Session, Threads, Timespec, Transport, Unmount,
};
use rustix::thread::{Pid, gettid};

/// How long anything here may take that takes no time when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[path = "parameter.rs"]
pub(crate) mod parameter;
use parameter::{can_be_offered, with_parameter};

/// Whether this program tests io_uring.
pub(crate) const OVER_RING: bool =
    matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"over_ring" | b"each_cpu");

/// Threads that take requests over io_uring in this program.
pub(crate) const THREADS: Threads = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"each_cpu" => Threads::EachCpu,
    _ => Threads::One,
};

/// A mounted file system.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
    served: Vec<JoinHandle<Ended>>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) notifier: Notifier,
}

/// How many requests of each kind came, by their name in the protocol.
#[derive(Default)]
pub(crate) struct Seen {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    changed: Condvar,
}

impl Seen {
    fn add(&self, name: &'static str) {
        *self.counts.lock().unwrap().entry(name).or_default() += 1;
        self.changed.notify_all();
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    /// Waits until so many came.
    pub(crate) fn wait(&self, name: &str, count: u64) {
        let counts = self.counts.lock().unwrap();
        let too_few = |counts: &mut BTreeMap<&str, u64>| {
            counts.get(name).copied().unwrap_or_default() < count
        };
        let (counts, timeout) = self.changed.wait_timeout_while(counts, PATIENCE, too_few).unwrap();
        assert!(!timeout.timed_out(), "waited for {count} {name}, seen: {counts:?}");
    }
}

/// Counts, and hands on.
struct Watched<H> {
    inner: H,
    seen: Arc<Seen>,
}

impl<H: Handler> Handler for Watched<H> {
    fn request(&self, request: Request<'_>, reply: Reply) {
        self.seen.add(request.name());
        self.inner.request(request, reply);
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.inner.forget(node, lookups);
    }
}

/// Takes every request out of the buffer and answers it later, from a task.
pub(crate) struct Deferred<H>(pub(crate) Arc<H>);

impl<H: Handler + 'static> Handler for Deferred<H> {
    fn request(&self, request: Request<'_>, reply: Reply) {
        let (inner, request) = (Arc::clone(&self.0), request.detach());
        tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            inner.request(request.get(), reply);
        });
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.0.forget(node, lookups);
    }
}

/// A file system in memory; the kernel may believe what it was told for `ttl`.
pub(crate) fn null(ttl: Duration) -> NullFs {
    let ticks = AtomicI64::new(1_700_000_001);
    NullFs::new(ttl, move || Timespec { secs: ticks.fetch_add(1, Ordering::Relaxed), nanos: 5 })
}

/// Mounts the file system in memory, with long times to live. None as with [`mount`].
pub(crate) fn mount_null() -> Option<Mounted> {
    mount(1, &NullFs::init_options(), || null(Duration::from_secs(3600)))
}

/// Mounts what `make` makes, and serves it from so many threads, each with its own. None, which has
/// been reported, where this program tests io_uring and the kernel cannot be made to offer it.
pub(crate) fn mount<H: Handler + Send + Sync + 'static>(
    threads: usize,
    options: &InitOptions,
    make: impl Fn() -> H + Clone + Send + 'static,
) -> Option<Mounted> {
    if !OVER_RING {
        return Some(mount_as(threads, options, Transport::Device, make));
    }
    let options = InitOptions { io_uring: IoUring::On, threads: THREADS, ..*options };
    let ring = || mount_as(threads, &options, Transport::IoUring, make);
    can_be_offered().then(|| with_parameter("Y", ring))
}

/// Mounts, and expects requests to come by this way.
pub(crate) fn mount_as<H: Handler + Send + Sync + 'static>(
    threads: usize,
    options: &InitOptions,
    transport: Transport,
    make: impl Fn() -> H + Clone + Send + 'static,
) -> Mounted {
    let dir = tempfile::tempdir().unwrap();
    let connection = fuse::mount(&mount_options(), dir.path()).expect("root can mount");
    let seen = Arc::new(Seen::default());
    let mut served = Vec::new();
    let mut connection = Some(connection);
    let mut notifier = None;
    for _ in 0..threads {
        let (send, receive) = mpsc::channel();
        let serve = serve(connection.take().unwrap(), *options, make.clone(), &seen, send);
        served.push(serve);
        let (next, its_notifier, its_transport) =
            receive.recv_timeout(PATIENCE).expect("the session starts");
        assert_eq!(its_transport, transport);
        connection = Some(next);
        notifier = Some(its_notifier);
    }
    Mounted { dir, served, seen, notifier: notifier.unwrap() }
}

pub(crate) fn mount_options() -> MountOptions {
    MountOptions {
        fsname: "null".into(),
        subtype: "null".into(),
        default_permissions: true,
        allow_other: true,
        nosuid: true,
        nodev: true,
        ..MountOptions::default()
    }
}

type Started = (Connection, Notifier, Transport);

#[expect(clippy::disallowed_methods, reason = "tests start their own threads, and join them")]
fn serve<H: Handler + Send + Sync + 'static>(
    connection: Connection,
    options: InitOptions,
    make: impl FnOnce() -> H + Send + 'static,
    seen: &Arc<Seen>,
    started: mpsc::Sender<Started>,
) -> JoinHandle<Ended> {
    let seen = Arc::clone(seen);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let mut session = Session::start(connection, &options).await.unwrap();
            let handler = Arc::new(Watched { inner: make(), seen });
            start_workers(&mut session, &handler).await;
            let next = session.try_clone_connection().unwrap();
            let transport = session.negotiated().transport();
            started.send((next, session.notifier(), transport)).unwrap();
            session.run(&*handler).await.unwrap()
        })
    })
}

/// Starts the threads of a session, if it has agreed on some.
async fn start_workers<H: Handler + Send + Sync + 'static>(
    session: &mut Session,
    handler: &Arc<H>,
) {
    let handler = Arc::clone(handler);
    let serve = move |worker: fuse::Worker| {
        let handler = Arc::clone(&handler);
        async move { worker.run(&*handler).await }
    };
    session.start_workers("test", serve).await.unwrap();
}

impl Mounted {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts and gives how each session ended.
    pub(crate) fn unmount(self, when: Unmount) -> Vec<Ended> {
        fuse::unmount(self.dir.path(), when).unwrap();
        self.ended()
    }

    /// How each session ended; for a mount that is unmounted already.
    pub(crate) fn ended(mut self) -> Vec<Ended> {
        self.served.drain(..).map(|served| served.join().unwrap()).collect()
    }
}

impl Mounted {
    /// Why serving it failed, which is waited for; the mount is still there.
    pub(crate) fn failure(&mut self) -> String {
        let failed = self.served.pop().unwrap().join().unwrap_err();
        let text = failed.downcast_ref::<String>().map(String::as_str);
        text.or(failed.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.served.is_empty() {
            return;
        }
        let unmounted = fuse::unmount(self.dir.path(), Unmount::Lazy);
        // After a failure someone may still be waiting for an answer that never comes.
        if !std::thread::panicking() {
            unmounted.unwrap();
            self.served
                .drain(..)
                .for_each(|served| assert_eq!(served.join().unwrap(), Ended::Unmounted));
        }
    }
}

/// A process that does one thing (see `child_role`), killed at the latest when dropped.
pub(crate) struct Role(pub(crate) Child);

pub(crate) fn start_role(role: &str, path: &Path) -> Role {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = match (OVER_RING, THREADS) {
        (false, _) => "child_role",
        (true, Threads::One) => "mounted::child_role",
        (true, Threads::EachCpu) => "over_ring::mounted::child_role",
    };
    command.args([test, "--exact", "--nocapture"]);
    command.env("FUSE_TEST_ROLE", role).env("FUSE_TEST_PATH", path);
    // glibc maps another 64 MiB when one thread more than ever allocates at once: that is no leak.
    command.env("MALLOC_ARENA_MAX", "1");
    command.stdout(std::process::Stdio::null());
    Role(command.spawn().unwrap())
}

impl Role {
    /// Kills it, and fails if it does not end.
    pub(crate) fn kill(mut self) -> ExitStatus {
        self.0.kill().unwrap();
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Waits for a condition by looking again and again, where no event announces it.
#[expect(clippy::disallowed_methods, reason = "other processes and the kernel announce nothing")]
pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if reached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never happens: {what}");
}

/// Where a handler blocks its thread, which it must not, until the test lets it go on.
#[derive(Default)]
pub(crate) struct Gate {
    /// The thread that is held.
    pub(crate) held: Mutex<Option<Pid>>,
    pub(crate) changed: Condvar,
}

impl Gate {
    /// Blocks this thread until it is let go.
    pub(crate) fn hold(&self) {
        let mut held = self.held.lock().unwrap();
        *held = Some(gettid());
        self.changed.notify_all();
        let (held, _) =
            self.changed.wait_timeout_while(held, PATIENCE, |held| held.is_some()).unwrap();
        drop(held);
    }
}

/// Mounts a file system in memory on `path` and serves it until it is unmounted.
pub(crate) fn serve_here(path: &Path) {
    let connection = fuse::mount(&mount_options(), path).unwrap();
    let io_uring = if OVER_RING { IoUring::On } else { IoUring::Off };
    let options = InitOptions { io_uring, threads: THREADS, ..NullFs::init_options() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut session = Session::start(connection, &options).await.unwrap();
        let handler = Arc::new(null(Duration::ZERO));
        start_workers(&mut session, &handler).await;
        session.run(&*handler).await.unwrap();
    });
}

/// Number of bytes that this process has mapped, and its open files.
fn size() -> (u64, Vec<PathBuf>) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    (kib << 10, open.filter_map(|file| fs::read_link(file.path()).ok()).collect())
}

/// Mounts and unmounts often, and fails if that leaves memory mapped or files open.
pub(crate) fn mount_again() {
    let round = || {
        let mounted = mount_null().expect("the test that starts this has looked");
        fs::write(mounted.path("file"), vec![1; 1 << 20]).unwrap();
        assert_eq!(mounted.unmount(Unmount::Lazy), [Ended::Unmounted]);
    };
    (0..3).for_each(|_| round());
    let before = size();
    (0..20).for_each(|_| round());
    let after = size();
    assert!(after.0 < before.0 + (32 << 20), "{before:?} {after:?}");
    assert!(after.1.len() <= before.1.len(), "{before:?} {after:?}");
}
