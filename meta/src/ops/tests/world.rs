//! One server in one thread, whose clock is moved by hand, and clients that speak frames to it.
//!
//! The engine is in memory and counts requests. It outlives the server, so a restart finds what a
//! crash leaves. Time that tokio measures stands still while there is anything to do.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{Clock, Locality, Random, Time};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use store::{
    Batch, Blocks, Engine, EngineStats, MemoryEngine, Snapshot,
    kv::{KeyRange, Visit},
};
use tokio::task::{AbortHandle, LocalSet};
use wire::Token;

use super::client::Client;
use crate::{Core, Durability, FormatOptions, Limits, Offload, Server, ServerOptions, format};

const SIGNING_KEY: &[u8; 32] = b"the file system's own signing ke";

/// The properties in which worlds differ.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) shards: u16,
    pub(crate) locality: Locality,
    pub(crate) inline_bytes_max: u32,
    pub(crate) durability: Durability,
    pub(crate) cores: usize,
    /// Whether reclaim, compaction, syncs and leases run.
    pub(crate) background: bool,
    pub(crate) limits: Limits,
    pub(crate) offload: Offload,
    pub(crate) backup: Option<Arc<dyn crate::Backup>>,
    pub(crate) audit: Option<Arc<dyn crate::Audit>>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            shards: 8,
            locality: Locality::Directory,
            inline_bytes_max: 4096,
            durability: Durability::Relaxed,
            cores: 1,
            background: true,
            limits: Limits::default(),
            offload: Offload::Inline,
            backup: None,
            audit: None,
        }
    }
}

/// A file system and its server.
pub(crate) struct World {
    pub(crate) engine: Arc<Counting>,
    pub(crate) blocks: Blocks,
    pub(crate) clock: Arc<HandClock>,
    pub(crate) server: Server,
    pub(crate) core: Core,
    setup: Setup,
    random: Arc<Seeded>,
    tasks: Vec<AbortHandle>,
}

/// Runs a test in a world of its own, and checks the whole file system afterwards.
pub(crate) fn in_world(test: impl AsyncFnOnce(&mut World)) {
    in_world_of(Setup::default(), test);
}

/// Like [`in_world`], for a world of a certain kind.
pub(crate) fn in_world_of(setup: Setup, test: impl AsyncFnOnce(&mut World)) {
    alone(async {
        let mut world = World::new(setup);
        test(&mut world).await;
        let findings = world.findings().await;
        assert!(findings.is_empty(), "{findings:#?}");
    });
}

/// Like [`in_world`], but the test leaves damage behind.
pub(crate) fn in_damaged_world(test: impl AsyncFnOnce(&mut World)) {
    in_damaged_world_of(Setup::default(), test);
}

/// Like [`in_damaged_world`], for a world of a certain kind.
pub(crate) fn in_damaged_world_of(setup: Setup, test: impl AsyncFnOnce(&mut World)) {
    alone(async { test(&mut World::new(setup)).await });
}

/// Runs a future of any kind. The executor is compiled once and not for each of 400 tests, which
/// would be a fifth of this crate's test program.
fn alone(test: impl Future<Output = ()>) {
    run_alone(pin!(test));
}

fn run_alone(test: Pin<&mut dyn Future<Output = ()>>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// The parts that a thread needs to run one more core of a world's server.
#[derive(Clone)]
pub(crate) struct Parts {
    engine: Arc<Counting>,
    blocks: Blocks,
    clock: Arc<HandClock>,
    server: Server,
    setup: Setup,
    random: Arc<Seeded>,
}

/// Runs a test on another core, in this thread. The first such core does the background work, if
/// the world's own core does not.
pub(crate) fn on_core(parts: Parts, index: usize, test: impl AsyncFnOnce(&mut World)) {
    alone(async {
        let Parts { engine, blocks, clock, server, setup, random } = parts;
        let background = !setup.background && index == 1;
        let setup = Setup { background, ..setup };
        let core = server.core(index);
        let mut world = World { engine, blocks, clock, server, core, setup, random, tasks: vec![] };
        world.start();
        test(&mut world).await;
    });
}

impl World {
    /// The parts that another thread needs to run a core.
    pub(crate) fn parts(&self) -> Parts {
        Parts {
            engine: self.engine.clone(),
            blocks: self.blocks.clone(),
            clock: self.clock.clone(),
            server: self.server.clone(),
            setup: self.setup.clone(),
            random: self.random.clone(),
        }
    }

    fn new(setup: Setup) -> World {
        let engine = Arc::new(Counting::default());
        let clock = Arc::new(HandClock(Mutex::new(Time { sec: 1_000_000, nsec: 0 })));
        // With this seed /a is on the shard of the root, on which tests of fsck stand.
        let random = Arc::new(Seeded(AtomicU64::new(18)));
        let options = FormatOptions {
            name: "test".into(),
            shards: setup.shards,
            lanes: 1,
            servers: 1,
            locality: setup.locality,
            inline_bytes_max: setup.inline_bytes_max,
            blocks: "memory".into(),
            signing_key: SIGNING_KEY.to_vec(),
        };
        format(engine.as_ref(), &options, clock.as_ref(), random.as_ref()).unwrap();
        let blocks = Blocks::memory();
        let server = open(&engine, &blocks, &setup, &clock, &random);
        let core = server.core(0);
        let mut world = World { engine, blocks, clock, server, core, setup, random, tasks: vec![] };
        world.start();
        world
    }

    fn start(&mut self) {
        let core = self.core.clone();
        self.tasks.push(tokio::task::spawn_local(async move { core.run().await }).abort_handle());
        if self.setup.background {
            let core = self.core.clone();
            let background = async move { core.background().await };
            self.tasks.push(tokio::task::spawn_local(background).abort_handle());
        }
    }

    /// Ends the server as a crash of its process does, and starts another on what it left.
    pub(crate) async fn restart(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
        tokio::task::yield_now().await;
        self.server = open(&self.engine, &self.blocks, &self.setup, &self.clock, &self.random);
        self.core = self.server.core(0);
        self.start();
    }

    /// Like [`World::restart`], after a power cut: of the unsynced batches only the first `keep`
    /// are left.
    pub(crate) async fn power_cut(&mut self, keep: usize) {
        self.tasks.drain(..).for_each(|task| task.abort());
        self.engine.memory.power_cut(keep);
        self.restart().await;
    }

    /// A connection to the server.
    pub(crate) fn connect(&mut self) -> tokio::io::DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 << 20);
        let core = self.core.clone();
        let serve = async move { core.serve(theirs).await };
        self.tasks.push(tokio::task::spawn_local(serve).abort_handle());
        ours
    }

    /// A connection from a client in the server's process.
    pub(crate) fn connect_near(&mut self) -> tokio::io::DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 << 20);
        let core = self.core.clone();
        let serve = async move { core.serve_near(theirs).await };
        self.tasks.push(tokio::task::spawn_local(serve).abort_handle());
        ours
    }

    /// A client that may do everything, and that acts as root until it is told otherwise.
    pub(crate) async fn client(&mut self) -> Client {
        self.client_with(&Token::administrator()).await
    }

    /// A client with a certain token.
    pub(crate) async fn client_with(&mut self, token: &Token) -> Client {
        Client::open(self, token, false).await.expect("the token is valid")
    }

    /// The text of a token.
    pub(crate) fn sign(token: &Token) -> String {
        token.sign(SIGNING_KEY)
    }

    /// Lets a second pass on the server's clock.
    pub(crate) fn tick(&self) -> Time {
        let mut now = self.clock.0.lock();
        now.sec += 1;
        *now
    }

    /// Lets seconds pass on the server's clock.
    pub(crate) fn advance(&self, seconds: i64) {
        self.clock.0.lock().sec += seconds;
    }

    /// Lets tokio's time pass, and everything happen that is due meanwhile.
    pub(crate) async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until the background has nothing left to do.
    pub(crate) async fn settle(&self) {
        self.wait(Duration::from_millis(200)).await;
    }

    /// A counter of the server.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.server.counters();
        counters.into_iter().find(|(other, _)| other == name).expect("a counter's name").1
    }

    /// The findings of a check of the whole file system.
    pub(crate) async fn findings(&mut self) -> Vec<String> {
        let mut client = self.client().await;
        let findings = client.fsck(false).await.findings;
        client.bye().await;
        findings
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

fn open(
    engine: &Arc<Counting>,
    blocks: &Blocks,
    setup: &Setup,
    clock: &Arc<HandClock>,
    random: &Arc<Seeded>,
) -> Server {
    let options = ServerOptions {
        cores: setup.cores,
        durability: setup.durability,
        limits: setup.limits.clone(),
        offload: setup.offload.clone(),
        backup: setup.backup.clone(),
        audit: setup.audit.clone(),
        ..ServerOptions::simulated("memory:1")
    };
    Server::open(engine.clone(), blocks.clone(), options, clock.clone(), random.clone()).unwrap()
}

/// A clock that a test moves.
pub(crate) struct HandClock(Mutex<Time>);

impl Clock for HandClock {
    fn now(&self) -> Time {
        *self.0.lock()
    }
}

/// Random numbers that are the same in every run (splitmix64).
#[derive(Default)]
pub(crate) struct Seeded(AtomicU64);

impl Random for Seeded {
    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Numbers of requests to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    pub(crate) reads: u64,
    pub(crate) scans: u64,
    pub(crate) batches: u64,
    /// Changes in all batches.
    pub(crate) changes: u64,
}

/// An act between two reads.
pub(crate) type Meanwhile = Box<dyn FnOnce() + Send>;

/// The moment at which a write is held up: before its effect, or after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Before,
    After,
}

/// Longest time for which a write is held up.
const HELD_MAX: Duration = Duration::from_millis(400);

/// An engine in memory that counts.
#[derive(Default)]
pub(crate) struct Counting {
    pub(crate) memory: MemoryEngine,
    cost: Mutex<Cost>,
    /// An act before a read, and the number of reads before that.
    meanwhile: Mutex<Option<(u64, Meanwhile)>>,
    /// The way in which the next write is held up.
    hold: Mutex<Option<Hold>>,
    is_held: std::sync::atomic::AtomicBool,
    go_on: Condvar,
    /// Whether writes fail.
    broken: std::sync::atomic::AtomicBool,
}

impl Counting {
    /// The requests since the last call.
    pub(crate) fn take_cost(&self) -> Cost {
        std::mem::take(&mut self.cost.lock())
    }

    /// Has another thread act before a read, after `after` others from now on; the read waits for
    /// it.
    pub(crate) fn meanwhile(&self, after: u64, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock() = Some((after, Box::new(act)));
    }

    /// Takes back the act, if it has not happened yet.
    pub(crate) fn not_any_more(&self) -> Option<Meanwhile> {
        Some(self.meanwhile.lock().take()?.1)
    }

    fn reads(&self) {
        let mut meanwhile = self.meanwhile.lock();
        let happens = match &mut *meanwhile {
            Some((0, _)) => meanwhile.take(),
            Some((after, _)) => {
                *after -= 1;
                None
            }
            None => None,
        };
        drop(meanwhile);
        if let Some((_, act)) = happens {
            std::thread::scope(|scope| scope.spawn(act).join().expect("it goes well"));
        }
    }

    /// Makes the next write wait for [`Counting::go_on`], or [`HELD_MAX`].
    pub(crate) fn hold_next_write(&self, hold: Hold) {
        *self.hold.lock() = Some(hold);
    }

    /// Blocks this thread until a write is held up.
    pub(crate) fn until_held(&self) {
        while !self.is_held() {
            std::thread::yield_now();
        }
    }

    /// Whether a write is held up.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Lets the write end that is held up, if any is.
    pub(crate) fn go_on(&self) {
        let _hold = self.hold.lock();
        self.is_held.store(false, Ordering::Release);
        self.go_on.notify_all();
    }

    fn hold_up(&self) {
        let mut hold = self.hold.lock();
        self.is_held.store(true, Ordering::Release);
        let is_held = |_: &mut Option<Hold>| self.is_held.load(Ordering::Acquire);
        // If another thread waits for this very write, the time-out ends it.
        let _ = self.go_on.wait_while_for(&mut hold, is_held, HELD_MAX);
        self.is_held.store(false, Ordering::Release);
    }

    /// Makes every later write fail.
    pub(crate) fn break_down(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Makes writes succeed again.
    pub(crate) fn repair(&self) {
        self.broken.store(false, Ordering::Relaxed);
    }
}

impl Engine for Counting {
    fn get(&self, key: &[u8]) -> store::Result<Option<Bytes>> {
        self.reads();
        self.cost.lock().reads += 1;
        self.memory.get(key)
    }

    fn multi_get(&self, keys: &[&[u8]]) -> store::Result<Vec<Option<Bytes>>> {
        self.reads();
        self.cost.lock().reads += keys.len() as u64;
        self.memory.multi_get(keys)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> store::Result<()> {
        self.reads();
        self.cost.lock().scans += 1;
        self.memory.scan(from, to, visit)
    }

    fn write(&self, batch: Batch) -> store::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(store::Error::Io(std::io::Error::other("broken")));
        }
        let hold = self.hold.lock().take();
        if hold == Some(Hold::Before) {
            self.hold_up();
        }
        {
            let mut cost = self.cost.lock();
            cost.batches += 1;
            cost.changes += batch.len() as u64;
            self.memory.write(batch)?;
        }
        if hold == Some(Hold::After) {
            self.hold_up();
        }
        Ok(())
    }

    fn sync(&self) -> store::Result<()> {
        self.memory.sync()
    }

    fn ingest(&self, run: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>) -> store::Result<()> {
        self.memory.ingest(run)
    }

    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.memory.snapshot()
    }

    fn checkpoint(&self, to: &std::path::Path) -> store::Result<()> {
        self.memory.checkpoint(to)
    }

    fn sizes(&self, ranges: &[KeyRange<'_>]) -> store::Result<Vec<u64>> {
        self.memory.sizes(ranges)
    }

    fn position(&self) -> u64 {
        self.memory.position()
    }

    fn stats(&self) -> EngineStats {
        self.memory.stats()
    }
}
