//! Real servers in this thread, one or several, and real clients that reach them through pipes in
//! memory.
//!
//! Nothing goes wrong in this world: no delay, no loss, no restart; `lab::sim` is for that. File
//! times come from a clock that is moved by hand, and tokio's time passes at once.

use std::{
    collections::BTreeMap,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{Cred, EntryName, Locality, Random};
use client::{Client, Config, Dial, Dialled, FileSystem};
use futures::future::BoxFuture;
use lab::{
    clock::HandClock,
    sim::trace::{self, Trace},
};
use meta::{
    ClusterOptions, Durability, FormatOptions, Server, ServerOptions, format, format_joined,
};
use parking_lot::Mutex;
use store::{Blocks, Engine, MemoryEngine};
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    task::{LocalSet, spawn_local},
    time::Instant,
};
use wire::{FsckProgress, Join, Token};

const SIGNING_KEY: &[u8] = b"the key of a file system in tests";
/// Longer than a client waits with work that it does after its answers.
const SETTLED: Duration = Duration::from_millis(30);
/// Longer than a server waits with background work.
const RECLAIMED: Duration = Duration::from_millis(300);
/// Maximum number of bytes in flight in each direction.
const PIPE_BYTES: usize = 1 << 20;

/// The parameters in which worlds differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) servers: u16,
    pub(crate) shards: u16,
    pub(crate) locality: Locality,
    pub(crate) durability: Durability,
    pub(crate) inline_bytes_max: u32,
    /// Whether clients cache contents that they read.
    pub(crate) read_cache: bool,
    /// Memory of a client for directories that it has walked through, in bytes.
    pub(crate) access_cache_bytes: u64,
}

/// A file system with its server.
pub(crate) struct World {
    port: Arc<Port>,
    clock: HandClock,
    setup: Setup,
}

/// Runs `test` in a world of its own.
pub(crate) fn in_world<T>(
    setup: Setup,
    clock: &HandClock,
    test: impl AsyncFnOnce(&World) -> T,
) -> T {
    let mut ended = None;
    run(pin!(async {
        let world = World::new(setup, clock).await;
        ended = Some(test(&world).await);
    }));
    ended.expect("a panic is a problem")
}

/// Not generic, so that the executor is compiled once.
fn run(test: Pin<&mut dyn Future<Output = ()>>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("it needs no resources");
    let run = || LocalSet::new().block_on(&runtime, test);
    let (_, problems) = trace::hear(&Trace::new(false), run);
    assert!(problems.is_empty(), "{}", problems.join("\n  and "));
}

/// Waits until clients have done the work that they do after their answers.
pub(crate) async fn settle() {
    tokio::time::sleep(SETTLED).await;
}

impl World {
    async fn new(setup: Setup, clock: &HandClock) -> World {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::default());
        let options = FormatOptions {
            name: "model".into(),
            shards: setup.shards,
            lanes: base::limits::LANES_MAX,
            servers: setup.servers,
            locality: setup.locality,
            inline_bytes_max: setup.inline_bytes_max,
            blocks: "memory".into(),
            signing_key: SIGNING_KEY.to_vec(),
        };
        format(engine.as_ref(), &options, clock, &Seeded::default()).expect("the engine is empty");
        let world = World { port: Arc::default(), clock: clock.clone(), setup };
        world.start(0, engine);
        for server in 1..setup.servers {
            let client = Client::connect_incomplete(world.config(&Token::administrator(), true));
            let client = client.await.expect("the first one runs");
            let (engine, member) = (MemoryEngine::default(), u64::from(server) << 32);
            let joined = client.join(Join { address: address(server), member }).await;
            let joined = joined.expect("there is a place");
            format_joined(&engine, &joined, member, setup.servers).expect("the engine is empty");
            client.close().await.expect("nothing was written");
            world.start(server, Arc::new(engine));
        }
        world
    }

    /// Starts a server.
    fn start(&self, server: u16, engine: Arc<dyn Engine>) {
        let random = Arc::new(Seeded(AtomicU64::new(u64::from(server) << 48)));
        let started = Instant::now();
        let cluster = ClusterOptions {
            dial: self.port.clone(),
            coordinators: if server == 0 { Vec::new() } else { vec![address(0)] },
            lease: Duration::from_secs(3),
            alone: Duration::ZERO,
            awake_or_not: Arc::new(move || started.elapsed()),
            kept_all: true,
            place: meta::Place::default(),
            word: meta::Word::default(),
            calls: false,
        };
        let options = ServerOptions {
            durability: self.setup.durability,
            lease: Duration::from_secs(30),
            cluster: (self.setup.servers > 1).then_some(cluster),
            ..ServerOptions::simulated(&address(server))
        };
        let clock = Arc::new(self.clock.clone());
        let server_of = Server::open(engine, Blocks::memory(), options, clock, random)
            .expect("it was just formatted");
        let (port, mut arrivals) = mpsc::unbounded_channel();
        self.port.0.lock().insert(address(server), port);
        let core = server_of.core(0);
        spawn_local({
            let core = core.clone();
            async move { core.run().await }
        });
        spawn_local({
            let core = core.clone();
            async move { core.background().await }
        });
        spawn_local(async move {
            while let Some(stream) = arrivals.recv().await {
                let core = core.clone();
                spawn_local(async move { core.serve(stream).await });
            }
        });
    }

    /// A client with a token of its own; `kernel_checks`: as a mount.
    pub(crate) async fn client(&self, token: &Token, kernel_checks: bool) -> Client {
        Client::connect(self.config(token, kernel_checks)).await.expect("the token is right")
    }

    fn config(&self, token: &Token, kernel_checks: bool) -> Config {
        Config {
            client_name: "model".into(),
            kernel_checks,
            read_cache_bytes: if self.setup.read_cache { 1 << 20 } else { 0 },
            access_cache_bytes: self.setup.access_cache_bytes,
            dial: self.port.clone(),
            clock: Arc::new(self.clock.clone()),
            random: Arc::new(Seeded::default()),
            ..Config::new((0..self.setup.servers).map(address).collect(), token.sign(SIGNING_KEY))
        }
    }

    /// Checks the whole file system. Returns the final progress.
    pub(crate) async fn fsck(&self) -> FsckProgress {
        let client = self.client(&Token::administrator(), true).await;
        let mut check = client.fsck_start_everywhere(false).await.expect("no other check runs");
        let progress = loop {
            let progress = check.poll(&client, false).await.expect("the job is there");
            if progress.done {
                break progress;
            }
            settle().await;
        };
        client.close().await.expect("nothing was written");
        progress
    }

    /// Makes a directory below the root.
    pub(crate) async fn mkdir(&self, name: &str) {
        let client = self.client(&Token::administrator(), true).await;
        let (root, name) = (client.root().0, EntryName::new(name.as_bytes()).expect("a name"));
        FileSystem::mkdir(&client, &Cred::ROOT, &root, &name, 0o755).await.expect("it is new");
        client.close().await.expect("nothing was written");
    }

    /// Waits until the server has removed orphans in the background.
    pub(crate) async fn reclaimed(&self) {
        tokio::time::sleep(RECLAIMED).await;
    }
}

/// Where a server listens.
fn address(server: u16) -> String {
    format!("memory:{}", server + 1)
}

/// Hands streams to servers.
#[derive(Default)]
struct Port(Mutex<BTreeMap<String, mpsc::UnboundedSender<DuplexStream>>>);

impl Dial for Port {
    fn dial<'a>(&'a self, address: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let sent = match self.0.lock().get(address) {
            Some(server) => server.send(theirs).map_err(|_| refused()),
            None => Err(refused()),
        };
        Box::pin(async move { sent.map(|()| Dialled::plain(ours)) })
    }
}

/// Numbers that are the same in every run, and good enough for ids (splitmix64).
#[derive(Default)]
struct Seeded(AtomicU64);

impl Random for Seeded {
    fn next(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
