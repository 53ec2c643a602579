//! A server in memory and the way to it, for the tests and examples of this crate.
//!
//! Everything is on one thread: the server's tasks on the `LocalSet` that `World::run` makes,
//! clients wherever they are polled. Killing the server drops all it had in memory but its engine
//! and its blocks.

use std::{
    cell::{Cell, RefCell},
    io,
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use base::{Clock, FsError, Locality, Random, Time};
use client::{Client, Config, Dial, Dialled, Error, Result};
use futures::future::BoxFuture;
use meta::{FormatOptions, Limits, Server, ServerOptions};
use store::{Blocks, MemoryEngine};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::mpsc,
    task::{JoinHandle, LocalSet},
};
use wire::Token;

const KEY: &[u8] = b"a signing key of thirty-two bytes";
/// Most changes that are kept for those who watch.
pub(crate) const FEED_EVENTS_MAX: u64 = 500;
const PIPE_BYTES: usize = 256 << 10;

/// A clock that moves a little whenever it is read.
#[derive(Default)]
pub(crate) struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Time {
        let ms = self.0.fetch_add(1, Ordering::Relaxed);
        Time { sec: 1_700_000_000, nsec: 0 }.plus_ms(ms)
    }
}

impl Ticks {
    /// Lets time pass at once.
    pub(crate) fn forward(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).expect("it is not that long");
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

/// Numbers from a seed.
pub(crate) struct Seeded(AtomicU64);

impl Random for Seeded {
    fn next(&self) -> u64 {
        let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// Connections to whatever server is up.
struct Pipes {
    dialled: mpsc::UnboundedSender<DuplexStream>,
    /// How many servers were killed.
    kills: Arc<AtomicU64>,
}

/// A connection that loses what is on its way when the server is killed.
struct Pipe {
    stream: DuplexStream,
    kills: Arc<AtomicU64>,
    kills_before: u64,
}

impl Pipe {
    fn check(&self) -> io::Result<()> {
        let whole = self.kills.load(Ordering::Relaxed) == self.kills_before;
        if whole { Ok(()) } else { Err(io::ErrorKind::ConnectionReset.into()) }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Dial for Pipes {
    fn dial<'a>(&'a self, _: &'a str, _: Option<u16>) -> BoxFuture<'a, io::Result<Dialled>> {
        Box::pin(async {
            let (stream, theirs) = tokio::io::duplex(PIPE_BYTES);
            self.dialled.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            let kills_before = self.kills.load(Ordering::Relaxed);
            let pipe = Pipe { stream, kills: Arc::clone(&self.kills), kills_before };
            Ok(Dialled::plain(pipe))
        })
    }
}

/// The error of the file system that something failed with.
pub(crate) fn fs<T: std::fmt::Debug>(result: Result<T>) -> FsError {
    match result {
        Err(Error::Fs(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// A server, up or down, and what outlives it.
#[derive(Clone)]
pub(crate) struct World {
    engine: Arc<MemoryEngine>,
    blocks: Blocks,
    pub(crate) clock: Arc<Ticks>,
    pub(crate) random: Arc<Seeded>,
    dial: Arc<Pipes>,
    running: Rc<RefCell<Option<Running>>>,
    /// Whether no client can connect.
    cut: Rc<Cell<bool>>,
    /// Whether new sessions may reach the store of blocks themselves.
    near: Rc<Cell<bool>>,
}

struct Running {
    core: meta::Core,
    server: Server,
    tasks: Vec<JoinHandle<()>>,
}

impl World {
    /// Runs `test` in a new world whose server is up.
    pub(crate) async fn run<T>(test: impl AsyncFnOnce(World) -> T) -> T {
        World::run_with(Blocks::memory(), test).await
    }

    /// Runs a world as [`World::run`] does, with these blocks.
    pub(crate) async fn run_with<T>(blocks: Blocks, test: impl AsyncFnOnce(World) -> T) -> T {
        let mut ended = None;
        {
            let run = pin!(async { ended = Some(test(World::begin(blocks)).await) });
            LocalSet::new().run_until(run as Pin<&mut dyn Future<Output = ()>>).await;
        }
        ended.expect("the test has ended")
    }

    /// A new world whose server is up. Not generic, as it is compiled for each kind of test
    /// otherwise, of which there are a hundred.
    fn begin(blocks: Blocks) -> World {
        let (sender, mut accepted) = mpsc::unbounded_channel();
        let world = World {
            engine: Arc::new(MemoryEngine::new()),
            blocks,
            clock: Arc::default(),
            random: Arc::new(Seeded(AtomicU64::new(7))),
            dial: Arc::new(Pipes { dialled: sender, kills: Arc::default() }),
            running: Rc::default(),
            cut: Rc::default(),
            near: Rc::default(),
        };
        let options = FormatOptions {
            name: "world".into(),
            shards: 8,
            lanes: 16,
            servers: 1,
            locality: Locality::Directory,
            inline_bytes_max: 4096,
            blocks: "server".into(),
            signing_key: KEY.to_vec(),
        };
        meta::format(world.engine.as_ref(), &options, &*world.clock, &*world.random)
            .expect("the engine is empty");
        let accepting = world.clone();
        tokio::task::spawn_local(async move {
            while let Some(stream) = accepted.recv().await {
                // Otherwise the stream is dropped: the connection is refused.
                if let Some(running) = accepting.running.borrow_mut().as_mut()
                    && !accepting.cut.get()
                {
                    let (core, near) = (running.core.clone(), accepting.near.get());
                    let serve = async move {
                        if near { core.serve_near(stream).await } else { core.serve(stream).await }
                    };
                    running.tasks.push(tokio::task::spawn_local(serve));
                }
            }
        });
        world.start();
        world
    }

    /// Starts a server on what is stored.
    pub(crate) fn start(&self) {
        let limits = Limits { feed_events_max: FEED_EVENTS_MAX, ..Limits::default() };
        let lease = Duration::from_secs(30);
        let options = ServerOptions { lease, limits, ..ServerOptions::simulated("world:1") };
        let server = Server::open(
            self.engine.clone(),
            self.blocks.clone(),
            options,
            self.clock.clone(),
            self.random.clone(),
        )
        .expect("it is formatted");
        let core = server.core(0);
        let (run, background) = (core.clone(), core.clone());
        let tasks = vec![
            tokio::task::spawn_local(async move { run.run().await }),
            tokio::task::spawn_local(async move { background.background().await }),
        ];
        *self.running.borrow_mut() = Some(Running { core, server, tasks });
    }

    /// Kills the server: nothing that it has not answered will be answered.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running.borrow_mut().take() {
            running.tasks.iter().for_each(JoinHandle::abort);
            self.dial.kills.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Kills the server, and what it had not synced is gone; blocks are the caller's.
    pub(crate) fn power_cut(&self) {
        self.kill();
        self.engine.power_cut(0);
    }

    /// Lets nobody connect any more, or lets them again.
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.set(cut);
    }

    /// From now on clients are taken to be in the server's process.
    pub(crate) fn near(&self) {
        self.near.set(true);
    }

    /// A counter of the server that is up.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let running = self.running.borrow();
        let counters = running.as_ref().map(|running| running.server.counters());
        let found = counters.into_iter().flatten().find(|(found, _)| found == name);
        found.map_or(0, |(_, value)| value)
    }

    /// How an administrator connects.
    pub(crate) fn config(&self) -> Config {
        self.config_with(&Token::administrator())
    }

    /// How somebody with this token connects.
    pub(crate) fn config_with(&self, token: &Token) -> Config {
        Config {
            dial: self.dial.clone(),
            clock: self.clock.clone(),
            random: self.random.clone(),
            ..Config::new(vec!["world:1".into()], token.sign(KEY))
        }
    }

    /// A new client of an administrator.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.config()).await.expect("the server is up and the token is good")
    }
}
