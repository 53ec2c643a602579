//! A real server in this thread, and real clients that reach it through pipes in memory.
//!
//! Nothing goes wrong in it: no delay, no loss, no restart; `lab::sim` is for that. Its file times come from a
//! clock that is moved by hand, and what tokio waits for happens at once.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{Cred, EntryName, Locality, Random};
use client::{Client, Config, Dial, FileSystem, Stream};
use futures::future::BoxFuture;
use lab::{
    clock::HandClock,
    sim::trace::{self, Trace},
};
use meta::{Durability, FormatOptions, Server, ServerOptions, format};
use store::{Blocks, Engine, MemoryEngine};
use tokio::{
    io::DuplexStream,
    sync::mpsc,
    task::{LocalSet, spawn_local},
};
use wire::{FsckProgress, Token};

const SIGNING_KEY: &[u8] = b"the key of a file system in tests";
/// Longer than a client waits with what it does after its answers.
const SETTLED: Duration = Duration::from_millis(30);
/// Longer than a server waits with what it does in the background.
const RECLAIMED: Duration = Duration::from_millis(300);
/// How many bytes are under way in each direction.
const PIPE_BYTES: usize = 1 << 20;

/// What differs from one world to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) shards: u16,
    pub(crate) locality: Locality,
    pub(crate) durability: Durability,
    pub(crate) inline_bytes_max: u32,
    /// Whether clients keep what they read.
    pub(crate) read_cache: bool,
    /// How much memory they have for directories that they have walked through.
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
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("it needs no resources");
    let run = || {
        LocalSet::new().block_on(&runtime, async {
            let world = World::new(setup, clock);
            test(&world).await
        })
    };
    let (ended, problems) = trace::hear(&Trace::new(false), run);
    assert!(problems.is_empty(), "{}", problems.join("\n  and "));
    ended.expect("a panic is a problem")
}

/// Lets everybody do what is still to be done.
pub(crate) async fn settle() {
    tokio::time::sleep(SETTLED).await;
}

impl World {
    fn new(setup: Setup, clock: &HandClock) -> World {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::default());
        let (clock, random) = (clock.clone(), Arc::new(Seeded::default()));
        let options = FormatOptions {
            name: "model".into(),
            shards: setup.shards,
            servers: 1,
            locality: setup.locality,
            inline_bytes_max: setup.inline_bytes_max,
            blocks: "memory".into(),
            signing_key: SIGNING_KEY.to_vec(),
        };
        format(engine.as_ref(), &options, &clock, random.as_ref()).expect("the engine is empty");
        let options = ServerOptions {
            durability: setup.durability,
            lease: Duration::from_secs(30),
            ..ServerOptions::simulated("memory:1")
        };
        let server =
            Server::open(engine, Blocks::memory(), options, Arc::new(clock.clone()), random)
                .expect("it was just formatted");
        let (port, mut arrivals) = mpsc::unbounded_channel();
        let core = server.core(0);
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
        World { port: Arc::new(Port(port)), clock, setup }
    }

    /// A client with a token of its own; `kernel_checks`: as a mount.
    pub(crate) async fn client(&self, token: &Token, kernel_checks: bool) -> Client {
        let config = Config {
            client_name: "model".into(),
            kernel_checks,
            read_cache_bytes: if self.setup.read_cache { 1 << 20 } else { 0 },
            access_cache_bytes: self.setup.access_cache_bytes,
            dial: self.port.clone(),
            clock: Arc::new(self.clock.clone()),
            random: Arc::new(Seeded::default()),
            ..Config::new(vec!["memory:1".into()], token.sign(SIGNING_KEY))
        };
        Client::connect(config).await.expect("the token is right")
    }

    /// What a check of the whole file system says.
    pub(crate) async fn fsck(&self) -> FsckProgress {
        let client = self.client(&Token::administrator(), true).await;
        let job = client.fsck_start(false).await.expect("no other check runs");
        let progress = loop {
            let progress = client.fsck_poll(job, false).await.expect("the job is there");
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

    /// Waits until the server has removed what is not needed any more.
    pub(crate) async fn reclaimed(&self) {
        tokio::time::sleep(RECLAIMED).await;
    }
}

/// Hands streams to the server.
struct Port(mpsc::UnboundedSender<DuplexStream>);

impl Dial for Port {
    fn dial<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let sent = self.0.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused.into());
        Box::pin(async move { sent.map(|()| Box::new(ours) as Box<dyn Stream>) })
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
