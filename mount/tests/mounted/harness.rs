//! The model, or a client of a server in memory, mounted for one test: served by a thread of its
//! own, always unmounted.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use base::{Clock, HashKey, Time};
use client::{Client, Config, FileSystem, Tasks, Turns, model::Model};
use fuse::{Ended, Unmount};
use mount::{IoUring, Options};
use rustix::{process::Gid, process::Uid, thread};
use wire::Operation;

use crate::{
    probe::{POSITION_BITS, Probe, Seen},
    world::World,
};

#[path = "../../../fuse/tests/mounted/parameter.rs"]
mod parameter;
pub(crate) use parameter::can_be_offered;

/// Time-out of waits that end at once when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file system in memory, mounted.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
    served: Option<JoinHandle<Ended>>,
    /// The model behind the mount. Behind a mount of a server this one is empty.
    pub(crate) model: Model,
    pub(crate) seen: Arc<Seen>,
    /// The client behind a mount of a server.
    client: Option<Client>,
}

/// Behaviour of the file system behind a mount.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) options: Options,
    pub(crate) late: bool,
    pub(crate) position_bits: u32,
    /// Over io_uring each CPU has a thread if they are taken.
    pub(crate) turns: Turns,
}

impl Default for Way {
    fn default() -> Way {
        let (io_uring, turns) = everything();
        let options =
            Options { allow_other: true, suid: true, dev: true, io_uring, ..Options::default() };
        Way { options, late: false, position_bits: POSITION_BITS, turns }
    }
}

/// `MOUNT_TEST_IO_URING=one` has all mounts use io_uring with one thread, and any other value with
/// one for each CPU, for a run of all tests by hand.
fn everything() -> (IoUring, Turns) {
    match std::env::var_os("MOUNT_TEST_IO_URING") {
        None => (IoUring::Off, Turns::default()),
        Some(threads) if threads == "one" => (IoUring::On, Turns::default()),
        Some(_) => (IoUring::On, Turns::of_threads()),
    }
}

/// Runs `act`, which mounts, while the kernel offers what the mount wants.
fn as_offered<T>(way: &Way, act: impl FnOnce() -> T) -> T {
    match way.options.io_uring {
        IoUring::On => parameter::with_parameter("Y", act),
        IoUring::Off | IoUring::Auto => act(),
    }
}

impl Way {
    /// A mount of which the kernel caches nothing.
    pub(crate) fn uncached() -> Way {
        let mut way = Way::default();
        (way.options.attr_timeout, way.options.entry_timeout) = (Duration::ZERO, Duration::ZERO);
        way
    }

    /// No answer is there at once.
    pub(crate) fn late() -> Way {
        Way { late: true, ..Way::default() }
    }

    /// A mount that takes requests over io_uring, with a thread for each CPU.
    pub(crate) fn over_ring() -> Way {
        let mut way = Way { turns: Turns::of_threads(), ..Way::default() };
        way.options.io_uring = IoUring::On;
        way
    }

    /// A mount whose answers stay true for the length of a test.
    pub(crate) fn cached() -> Way {
        let mut way = Way::default();
        let hour = Duration::from_secs(3600);
        (way.options.attr_timeout, way.options.entry_timeout) = (hour, hour);
        way
    }
}

/// Runs a test on mounts of each kind: of the model, and of a server through its client.
pub(crate) fn on_each(test: impl Fn(&Mounted)) {
    on_each_of_the_model(&test);
    let mut ways = vec![Way::default()];
    if can_be_offered() {
        ways.push(Way::over_ring());
    }
    for way in ways {
        let mounted = mount_server(&way);
        test(&mounted);
        mounted.unmount();
    }
}

/// Runs a test on mounts of the model of each kind.
pub(crate) fn on_each_of_the_model(test: impl Fn(&Mounted)) {
    let mut ways = vec![Way::default(), Way::late(), Way::uncached()];
    if can_be_offered() {
        ways.push(Way::over_ring());
    }
    for way in ways {
        let mounted = mount(&new_model(), &way);
        test(&mounted);
        mounted.unmount();
    }
}

/// Each look at it is a microsecond later, and it is this year.
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Time {
        let micros = self.0.fetch_add(1, Ordering::Relaxed);
        let sec = 1_780_000_000 + i64::try_from(micros / 1_000_000).unwrap();
        Time { sec, nsec: u32::try_from(micros % 1_000_000).unwrap() * 1000 + 7 }
    }
}

/// An empty file system.
pub(crate) fn new_model() -> Model {
    Model::new(Arc::new(Ticks(AtomicU64::new(0))), HashKey::new(5, 6), true)
}

pub(crate) fn mount_new() -> Mounted {
    mount(&new_model(), &Way::default())
}

pub(crate) fn mount(model: &Model, way: &Way) -> Mounted {
    let dir = tempfile::tempdir().unwrap();
    let mounted = try_mount(model, way, dir.path());
    let (served, seen) = mounted.unwrap_or_else(|error| panic!("{error}: {error:?}"));
    Mounted { dir, served: Some(served), model: model.clone(), seen, client: None }
}

/// Mounts a new file system of a server in memory, through its client. At the end the server is
/// checked.
pub(crate) fn mount_server(way: &Way) -> Mounted {
    let dir = tempfile::tempdir().unwrap();
    let seen = Arc::new(Seen::default());
    let (way, path, shared) = (way.clone(), dir.path().to_owned(), Arc::clone(&seen));
    let (connected, client) = mpsc::channel();
    let offer = way.clone();
    let served = as_offered(&offer, || {
        on_a_thread(async move |started| {
            World::run(async |world| {
                let mut config = Config { kernel_checks: true, ..world.config() };
                if way.turns.are_taken() {
                    config.tasks = Tasks::InTurns(way.turns.clone());
                }
                let client = Client::connect(config).await.unwrap();
                connected.send(client.clone()).unwrap();
                let probe = probe(client.clone(), shared, &way);
                let ended = serve(probe, &path, &way, &started).await;
                let job = client.fsck_start(false).await.unwrap();
                loop {
                    let check = client.fsck_poll(job, false).await.unwrap();
                    if check.done {
                        assert_eq!(check.findings, [""; 0]);
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                client.close().await.unwrap();
                ended
            })
            .await
        })
    });
    let served = served.unwrap_or_else(|error| panic!("{error}: {error:?}"));
    let client = client.recv().ok();
    Mounted { dir, served: Some(served), model: new_model(), seen, client }
}

type Served = (JoinHandle<Ended>, Arc<Seen>);

/// Mounts, or says why not.
pub(crate) fn try_mount(model: &Model, way: &Way, path: &Path) -> Result<Served, mount::Error> {
    let seen = Arc::new(Seen::default());
    let probe = probe(model.client(true), Arc::clone(&seen), way);
    let (mine, path) = (way.clone(), path.to_owned());
    let serve = async move |started| serve(probe, &path, &mine, &started).await;
    let served = as_offered(way, || on_a_thread(serve));
    served.map(|served| (served, seen))
}

fn probe<F>(inner: F, seen: Arc<Seen>, way: &Way) -> Probe<F> {
    Probe { inner, seen, late: way.late, position_bits: way.position_bits }
}

/// Where a mount says that it has started, or why it has not.
type Started = mpsc::Sender<Result<(), mount::Error>>;

/// Serves a mount on a thread of its own. Returns when it has started.
#[expect(clippy::disallowed_methods, reason = "tests start their own threads, and join them")]
fn on_a_thread(
    serve: impl AsyncFnOnce(Started) -> Ended + Send + 'static,
) -> Result<JoinHandle<Ended>, mount::Error> {
    let (send, started) = mpsc::channel();
    let served = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, serve(send))
    });
    started.recv_timeout(PATIENCE).expect("the mount starts").map(|()| served)
}

async fn serve<F: FileSystem + Send + Sync + 'static>(
    probe: Probe<F>,
    path: &Path,
    way: &Way,
    started: &Started,
) -> Ended {
    match mount::run(probe, path, &way.options, &way.turns).await {
        Ok(mounted) => {
            assert_eq!(mounted.mountpoint(), path);
            started.send(Ok(())).unwrap();
            mounted.ended().await.unwrap()
        }
        Err(error) => {
            started.send(Err(error)).unwrap();
            Ended::Unmounted
        }
    }
}

impl Mounted {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// How often the server was asked, by the kind of request.
    pub(crate) fn requests(&self) -> BTreeMap<String, u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let load = runtime.block_on(self.client().server_load()).unwrap();
        let asked = |operation: Operation| {
            let outcomes = operation.outcomes.iter().map(|(_, count)| count);
            (operation.name, outcomes.sum())
        };
        load.operations.into_iter().map(asked).collect()
    }

    /// The client behind a mount of a server.
    pub(crate) fn client(&self) -> &Client {
        self.client.as_ref().expect("it is a mount of a server")
    }

    /// Unmounts when no process uses the mount any more, waits for the end, and looks at what is
    /// left.
    pub(crate) fn unmount(self) {
        // A child that another test has just forked may still have our files open.
        until("nobody uses the mount", || fuse::unmount(self.root(), Unmount::WhenIdle).is_ok());
        let model = self.model.clone();
        assert_eq!(self.ended(), Ended::Unmounted);
        model.check();
    }

    /// The end, after it was unmounted by other means.
    pub(crate) fn ended(mut self) -> Ended {
        self.served.take().unwrap().join().unwrap()
    }
}

impl Mounted {
    /// The end of a mount that is still in the tree, and is taken out of it then.
    pub(crate) fn served_end(mut self) -> Ended {
        let ended = self.served.take().unwrap().join().unwrap();
        fuse::unmount(self.root(), Unmount::Lazy).unwrap();
        ended
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(served) = self.served.take() else { return };
        self.seen.release();
        let unmounted = fuse::unmount(self.root(), Unmount::Lazy);
        // After a failure someone may still be waiting for an answer that never comes.
        if !std::thread::panicking() {
            unmounted.unwrap();
            assert_eq!(served.join().unwrap(), Ended::Unmounted);
        }
    }
}

/// Runs `act` on a thread that acts as this user, with no other groups than these.
pub(crate) fn as_user<T: Send>(uid: u32, gids: &[u32], act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let gids: Vec<Gid> = gids.iter().map(|gid| Gid::from_raw(*gid)).collect();
            thread::set_thread_groups(&gids).unwrap();
            thread::set_thread_res_gid(gids[0], gids[0], gids[0]).unwrap();
            let uid = Uid::from_raw(uid);
            thread::set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A process that does one thing (see `child_role`), killed at the latest when dropped.
pub(crate) struct Role(Child);

pub(crate) fn start_role(role: &str, path: &Path) -> Role {
    // A shell that runs the tests in the background may ignore interrupts, and a child inherits
    // that.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(std::env::current_exe().unwrap());
    command.args(["child_role", "--exact", "--nocapture"]);
    command.env("MOUNT_TEST_ROLE", role).env("MOUNT_TEST_PATH", path);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Role(command.spawn().unwrap())
}

impl Role {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills it, and fails if it does not end.
    pub(crate) fn kill(mut self) -> ExitStatus {
        self.0.kill().unwrap();
        self.end()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
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
        let _ = self.0.wait();
    }
}

/// Waits for a condition by looking again and again, where no event announces it.
#[expect(clippy::disallowed_methods, reason = "other processes and the kernel announce nothing")]
pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 5 {
        if reached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never happens: {what}");
}
