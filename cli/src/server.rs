//! A metadata server as threads: one per core, and one for the status page.
//!
//! `serve` and `up` call it. Each core thread has a single-threaded runtime and a `meta::Core` on
//! it, core 0 also accepts connections and does the background work. Connections are dealt to the
//! cores in turn and stay where they are. `up` has one core more, on its own thread, for the mount
//! beside it.
//!
//! Always true: what was executed when [`Running::stop`] was called is on stable storage when it
//! returns; the threads have ended by then.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _},
    num::NonZeroUsize,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use bench::Delayed;
use client::{SystemClock, Tcp};
use futures::FutureExt as _;
use meta::{
    ClusterOptions, Durability, Limits, MemoryBudget, Offload, Server, ServerOptions, Word,
};
use rustix::net::sockopt;
use store::{Blocks, Engine, RocksConfig, RocksEngine};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::LocalSet,
    time::Instant,
};

use crate::{
    accept::{Accepted, Acceptor, Slots},
    admission::{Admission, Clear},
    audit::{self, AuditLog, AuditOptions},
    backups::{self, Backups},
    block_trial,
    certificates::{self, Certificates, Files},
    data::{self, DataDir, Kept, KeptBackup},
    failure::usage,
    http::{self, Phase},
    journal::{self, Journal, Ship, Started, Terms},
    memory,
    near::Near,
    panics,
    system::{self, SystemRandom},
};

/// Kept free unasked, in bytes; a twentieth of the disk where that is less.
const RESERVE_BYTES: u64 = 256 << 20;
/// Size that a file system on a store without bounds reports, in bytes: a pebibyte.
const UNBOUNDED: u64 = 1 << 50;
/// Pause between two looks whether a server of a cluster has a lease, until it has.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Time that a stop waits for work that was handed to other threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of connections that may wait to be accepted, where the system allows it.
const BACKLOG: i32 = 4096;
/// Idle time after which the peer of a connection is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Number of such questions, and the pause between two of them.
const KEEPALIVE_TRIES: u32 = 4;
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(15);

/// Options of a server.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) listen: Listen,
    /// Address of the status page; `None`: there is none.
    pub(crate) http: Option<Listen>,
    pub(crate) tls: Tls,
    /// Address at which others reach the server, if it is not the one that it listens on.
    pub(crate) advertise: Option<String>,
    /// Addresses that the data directory keeps for later starts.
    pub(crate) kept: Kept,
    pub(crate) cores: NonZeroUsize,
    /// One core more runs on the thread that starts the server ([`Running::near`]).
    pub(crate) near: bool,
    pub(crate) durability: Durability,
    /// The audit log, if there is one.
    pub(crate) audit: Option<AuditOptions>,
    pub(crate) commit_interval: Duration,
    pub(crate) lease: Duration,
    /// Bytes of the disks that are kept free; `None`: what is sensible for their size.
    pub(crate) reserve: Option<u64>,
    /// More connections than this are refused; `None`: as many as leave files to be opened.
    pub(crate) connections_max: Option<usize>,
    /// More sessions than this are not opened.
    pub(crate) sessions_max: usize,
    /// More sessions than this are not opened with one token.
    pub(crate) sessions_a_token_max: usize,
    /// Partitions split by a locked scan, for measurements.
    pub(crate) split_by_locked_scan: bool,
    /// Memory of the process.
    pub(crate) memory: MemoryBudget,
    pub(crate) role: Role,
    /// Time for which a server of several serves, without a lease, operations that stand on no
    /// cached path.
    pub(crate) alone: Duration,
    /// The operator's word on the data directory.
    pub(crate) word: Word,
    /// The segment at which the journal was seen to end, of a server that has stood by.
    pub(crate) ends_at: Option<u64>,
    /// Added to round trips to other servers, for measurements.
    pub(crate) peer_rtt: Duration,
}

/// The role of a server among those of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only one.
    Alone,
    /// The first of several, which the others come to.
    Coordinator {
        /// Time for which a server of the cluster serves without hearing of the coordinator.
        lease: Duration,
    },
    /// A server other than the coordinator.
    Member {
        /// Where the coordinator may be, besides where it was last.
        coordinators: Vec<String>,
    },
}

/// [`Role::Coordinator`]'s `lease`, unless told otherwise.
pub(crate) const CLUSTER_LEASE: Duration = Duration::from_secs(3);

/// Default of the time for which servers of several go on without their coordinator.
pub(crate) const ALONE: Duration = Duration::from_secs(600);

/// An address to listen on.
#[derive(Clone)]
pub(crate) struct Listen {
    pub(crate) address: String,
    /// When the address is taken, a free port will do.
    pub(crate) or_free_port: bool,
    /// Everybody may talk to it without encryption.
    pub(crate) insecure: bool,
    /// The address is that of the last start, as the data directory keeps it.
    pub(crate) is_kept: bool,
}

/// How connections are encrypted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// No client talks in clear, this machine's programs neither.
    pub(crate) only: bool,
    /// The operator's own certificate; `None`: the file system's authority issues one.
    pub(crate) files: Option<Files>,
}

impl Listen {
    /// The clients that may talk to the address without encryption.
    fn clear(&self, tls: &Tls) -> Clear {
        if self.insecure {
            Clear::Everybody
        } else if tls.only {
            Clear::Nobody
        } else {
            Clear::ThisMachine
        }
    }
}

/// A server that is serving. It must be stopped, not dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) http: Option<SocketAddr>,
    /// URL of the status page, if there is one.
    pub(crate) page_url: Option<String>,
    /// Addresses that the directory keeps for later starts.
    kept: Kept,
    server: Server,
    /// The index of the core for this thread.
    near: Option<usize>,
    /// The blocks as the server has them.
    blocks: Blocks,
    data: DataDir,
    stop: watch::Sender<bool>,
    threads: Vec<thread::JoinHandle<()>>,
    page: Option<StatusPage>,
    backups: Option<Backups>,
    journal: Option<(Arc<Ship>, Journal)>,
    /// The end of what was executed is written when this is dropped.
    audit: Option<audit::Writing>,
}

/// The status page: it is there before the server is, and until the server has stopped.
struct StatusPage {
    /// `None` at its end.
    phase: Option<watch::Sender<Phase>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl StatusPage {
    fn start(listening: http::Listening) -> anyhow::Result<StatusPage> {
        let (phase, phases) = watch::channel(Phase::Starting);
        let runtime = runtime()?;
        let thread = spawn("http".to_owned(), move || http::run(&runtime, listening, phases))?;
        Ok(StatusPage { phase: Some(phase), thread: Some(thread) })
    }

    fn tell(&self, now: Phase) {
        if let Some(phase) = &self.phase {
            phase.send_replace(now);
        }
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        self.phase.take();
        if let Some(thread) = self.thread.take() {
            // A panic was logged.
            let _ = thread.join();
        }
    }
}

/// Opens the file system in `data` and serves it.
pub(crate) fn start(data: DataDir, options: &Options) -> anyhow::Result<Running> {
    let connections = Slots::new(options.connections_max, system::raise_open_files());
    let listener = bind(&options.listen)?;
    let page = options.http.as_ref().map(bind).transpose()?;
    let address = listener.local_addr()?;
    let http = page.as_ref().map(TcpListener::local_addr).transpose()?;
    data.renew_admin_token()?;
    let certificates = certificates(&data, options, (address, http))?;
    if options.listen.insecure {
        let kept = options.listen.is_kept;
        tracing::warn!(kept, "clients on other machines may talk in clear: --insecure");
    }
    let admit =
        |listen: &Listen| Admission::new(certificates.acceptor(), listen.clear(&options.tls));
    let admission = admit(&options.listen);
    let page_url = options.http.as_ref().zip(http).map(|(listen, address)| {
        let in_clear = match listen.clear(&options.tls) {
            Clear::Everybody => true,
            Clear::ThisMachine => address.ip().is_loopback(),
            Clear::Nobody => false,
        };
        format!("{}://{address}", if in_clear { "http" } else { "https" })
    });
    let page = options.http.as_ref().zip(page).map(|(listen, listener)| http::Listening {
        listener,
        admission: admit(listen),
        need_tokens: !listen.insecure,
    });
    let page = page.map(StatusPage::start).transpose()?;

    let begun = Instant::now();
    let blocks = data.blocks()?;
    let trial = block_trial::run(&data.blocks()?)?;
    if options.kept.backup.is_some() {
        backups::for_one_server(data.server())?;
    }
    // A crash may have left it, and it keeps tables that compaction has replaced.
    if let Err(error) = data::end_copy(data.path()) {
        tracing::warn!(error = format!("{error:#}"), "an old copy for the backup is left");
    }
    let backup = options.kept.backup.as_ref();
    if let Some(kept) = backup.filter(|kept| kept.journal) {
        journal::start::know_bases(data.path(), &kept.url)?;
    }
    let state = backups::State::new(data.path(), backup, data.has_local_blocks());
    let beside = state.clone().map(|state| state as Arc<dyn meta::Backup>);
    let cores = options.cores.get() + usize::from(options.near);
    let of = (data.server().unwrap_or_default(), cores);
    let audit = options.audit.as_ref().map(|audit| AuditLog::start(audit, of)).transpose()?;
    let beside = Besides { backup: beside, audit: audit.as_ref().map(audit::Writing::log) };
    let Opened { server, engine, journal } =
        open(&data, blocks.clone(), options, (address, &certificates), beside)?;
    if let (Some(state), Some((ship, _))) = (&state, &journal) {
        state.belongs_to(ship);
    }
    if let Err(cause) = trial {
        server.block_store_failed(&cause);
    }
    let (stop, stopped) = watch::channel(false);
    let near = options.near.then_some(options.cores.get());
    let threads = Vec::new();
    let serving = Phase::Serving(server.clone());
    let kept = options.kept.clone();
    let mut running = Running {
        address,
        http,
        page_url,
        kept,
        server,
        near,
        blocks,
        data,
        stop,
        threads,
        page,
        backups: None,
        journal,
        audit,
    };
    let door = Door { listener, connections, admission, certificates };
    let started = running
        .start_threads(options, door, &stopped)
        .and_then(|()| running.start_backups(state, engine));
    if let Some(page) = &running.page {
        page.tell(serving);
    }
    if let Err(error) = started.and_then(|()| running.write_address()) {
        let _ = running.stop();
        return Err(error);
    }
    tracing::info!(
        name = running.name(),
        version = env!("CARGO_PKG_VERSION"),
        data = %running.data.path().display(),
        %address,
        page = running.page_url,
        cores = options.cores,
        durability = ?options.durability,
        role = ?options.role,
        took = ?begun.elapsed(),
        "serving"
    );
    Ok(running)
}

impl Running {
    /// Name of the file system.
    pub(crate) fn name(&self) -> &str {
        self.data.name()
    }

    /// A way to this server for a client on this thread. `None` unless the server was started for
    /// it.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub(crate) fn near(&self) -> Option<Near> {
        self.near.map(|index| Near::start(self.server.core(index)))
    }

    /// The blocks of files, for a client in this process.
    pub(crate) fn blocks(&self) -> Blocks {
        self.blocks.clone()
    }

    /// Returns when the server cannot serve any more, with the reason.
    pub(crate) async fn failed(&self) -> anyhow::Error {
        tokio::select! {
            problem = self.server.halted() => problem.into(),
            () = panics::happened() => anyhow!("the server stopped after an internal error"),
        }
    }

    /// Ends all threads and makes what was executed stable.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        if let Some(page) = &self.page {
            page.tell(Phase::Stopping);
        }
        tracing::info!("stopping");
        if let Some((ship, _)) = &self.journal {
            // A core may wait for the journal.
            ship.stops();
        }
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic was logged, and is an error of `failed`.
            let _ = thread.join();
        }
        self.data.remove_address();
        let halted = self.server.halted().now_or_never();
        let halted = halted.is_some_and(|problem| problem.then != meta::Then::BeginsAnew);
        let synced = self.server.sync();
        if halted || synced.is_err() {
            // No thread notes it any more.
            DataDir::forget_boot(self.data.path());
        }
        if let Some(backups) = self.backups.take() {
            // A standby takes over only when this is done.
            let has_lease = self.journal.as_ref().is_some_and(|(ship, _)| ship.has_lease());
            backups.stop(!has_lease);
        }
        if let Some((_, journal)) = self.journal.take() {
            journal.stop(synced.is_ok() && !halted);
        }
        self.audit.take();
        synced.context("cannot make the last changes stable")?;
        tracing::info!("stopped: all that was answered is on stable storage");
        Ok(())
    }

    fn write_address(&self) -> anyhow::Result<()> {
        let page = self.page_url.clone();
        let addresses: Vec<_> = std::iter::once(self.address.to_string()).chain(page).collect();
        self.data.write_address(&addresses)?;
        self.kept.write(self.data.path())
    }

    fn start_backups(
        &mut self,
        state: Option<Arc<backups::State>>,
        engine: Arc<RocksEngine>,
    ) -> anyhow::Result<()> {
        let (Some(kept), Some(state)) = (&self.kept.backup, state) else { return Ok(()) };
        let of = (self.data.path(), self.data.name());
        let ship = self.journal.as_ref().map(|(ship, _)| Arc::clone(ship));
        let serving = (engine, self.server.clone());
        self.backups = Some(Backups::start(kept, state, of, serving, ship)?);
        Ok(())
    }

    fn start_threads(
        &mut self,
        options: &Options,
        door: Door,
        stopped: &watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let (inboxes, outboxes): (Vec<_>, Vec<_>) =
            (0..options.cores.get()).map(|_| mpsc::unbounded_channel()).unzip();
        let server = self.server.clone();
        let Door { listener, connections, admission, certificates } = door;
        let acceptor = Acceptor { listener, connections, server, cores: inboxes };
        let mut first = Some((acceptor, certificates));
        for (index, connections) in outboxes.into_iter().enumerate() {
            let core = Core {
                server: self.server.clone(),
                index,
                data: self.data.path().to_owned(),
                member: self.data.server().map(|_| self.data.path().to_owned()),
                connections,
                admission: admission.clone(),
                first: first.take(),
                stopped: stopped.clone(),
            };
            let runtime = runtime()?;
            self.threads.push(spawn(format!("core-{index}"), move || core.run(runtime))?);
        }
        Ok(())
    }
}

/// The way in to a server.
struct Door {
    listener: TcpListener,
    connections: Slots,
    admission: Admission,
    certificates: Certificates,
}

/// The certificate of the server that listens at `address`. The file system's authority is written
/// to the directory, for programs that must know it.
fn certificates(
    data: &DataDir,
    options: &Options,
    (address, page): (SocketAddr, Option<SocketAddr>),
) -> anyhow::Result<Certificates> {
    let key = data::signing_key(data.path())?;
    let server = data.server().unwrap_or_default();
    let names = certificates::names(server, (address, page), options.advertise.as_deref());
    let certificates = Certificates::open(&key, options.tls.files.as_ref(), names)?;
    if let Some(pem) = certificates.authority_pem()
        && let Err(error) = data.write_authority(pem)
    {
        tracing::warn!(error = format!("{error:#}"), "browsers and scrapers lack the authority");
    }
    Ok(certificates)
}

fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> anyhow::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(work).context("cannot start a thread")
}

fn open(
    data: &DataDir,
    blocks: Blocks,
    options: &Options,
    (address, certificates): (SocketAddr, &Certificates),
    beside: Besides,
) -> anyhow::Result<Opened> {
    let folder = data.blocks_folder();
    let store = RocksConfig {
        block_cache_bytes: usize::try_from(options.memory.block_cache)?,
        memtable_bytes: usize::try_from(memory::memtable(&options.memory))?,
        ..RocksConfig::default()
    };
    // The engine opens before `cluster` looks: losses that it finds make `kept_all` false.
    let journal = options.kept.backup.as_ref().filter(|kept| kept.journal);
    let (engine, journaled, journal) = match journal {
        Some(kept) => {
            let Started { engine, journaled, ship, journal } =
                journal::start(data, &blocks, &store, &terms(kept, options, address))?;
            (engine, journaled as Arc<dyn Engine>, Some((ship, journal)))
        }
        None => {
            journal::start::end(data.path())?;
            let engine = Arc::new(data.engine(&blocks, &store)?);
            (Arc::clone(&engine), engine as Arc<dyn Engine>, None)
        }
    };
    let ship = journal.as_ref().map(|(ship, _)| Arc::clone(ship));
    let shortest = ship.as_ref().map_or(Duration::ZERO, |_| journal::COMMIT_INTERVAL_MIN);
    let options = ServerOptions {
        address: options.advertise.clone().unwrap_or_else(|| address.to_string()),
        cores: options.cores.get() + usize::from(options.near),
        durability: options.durability,
        commit_interval: options.commit_interval.max(shortest),
        lease: options.lease,
        offload: Offload::Threads,
        space: Arc::new(move || match &folder {
            Some(folder) => system::space(folder),
            None => (UNBOUNDED, UNBOUNDED),
        }),
        process: Arc::new(system::process_status),
        limits: limits(data, options),
        cluster: cluster(data, options, (address, certificates))?,
        backup: beside.backup,
        journal: ship.clone().map(|ship| ship as Arc<dyn meta::Journal>),
        audit: beside.audit.map(|audit| audit as Arc<dyn meta::Audit>),
    };
    let (clock, random) = (Arc::new(SystemClock), Arc::new(SystemRandom::default()));
    let server = Server::open(journaled, blocks, options, clock, random)
        .with_context(|| format!("cannot serve {}", data.path().display()))?;
    if let Some(ship) = ship {
        ship.serves(server.clone());
    }
    Ok(Opened { server, engine, journal })
}

fn terms(kept: &KeptBackup, options: &Options, address: SocketAddr) -> Terms {
    Terms {
        url: kept.url.clone(),
        address: options.advertise.clone().unwrap_or_else(|| address.to_string()),
        lease: kept.journal_lease(),
        ends_at: options.ends_at,
    }
}

/// Work of the process beside its server.
struct Besides {
    backup: Option<Arc<dyn meta::Backup>>,
    audit: Option<Arc<AuditLog>>,
}

/// A server that was opened, and what it stands on.
struct Opened {
    server: Server,
    engine: Arc<RocksEngine>,
    journal: Option<(Arc<Ship>, Journal)>,
}

/// Returns how the server reaches the others of its cluster, if `data` and the options agree.
fn cluster(
    data: &DataDir,
    options: &Options,
    (address, certificates): (SocketAddr, &Certificates),
) -> anyhow::Result<Option<ClusterOptions>> {
    let dir = data.path().display();
    let (coordinators, lease) = match (data.server(), &options.role) {
        (None, Role::Alone) => return Ok(None),
        (None, Role::Coordinator { .. }) => {
            return Err(usage(format!(
                "{dir} holds a file system of one server, which has no coordinator: \
                 `pando serve --coordinator` makes it one of several"
            )));
        }
        (None, Role::Member { .. }) => {
            return Err(usage(format!(
                "{dir} holds a file system of its own: a server joins with an empty directory"
            )));
        }
        (Some(0), Role::Coordinator { lease }) => (Vec::new(), *lease),
        (Some(0), Role::Alone | Role::Member { .. }) => {
            return Err(usage(format!(
                "{dir} is that of a cluster's coordinator, which does not join: serve it with \
                 `pando serve --coordinator`"
            )));
        }
        (Some(server), Role::Coordinator { .. }) => {
            return Err(usage(format!(
                "{dir} is that of server {server} of a cluster, and not of its coordinator, server 0"
            )));
        }
        (Some(_), Role::Member { coordinators }) => (coordinators.clone(), CLUSTER_LEASE),
        (Some(server), Role::Alone) => {
            return Err(usage(format!(
                "{dir} is that of server {server} of a cluster: serve it with `pando serve`"
            )));
        }
    };
    is_reached(address, options)?;
    let encryption = certificates.encryption(options.tls.only);
    let dial = Arc::new(Delayed::new(Arc::new(Tcp::new(encryption)), options.peer_rtt));
    Ok(Some(ClusterOptions {
        dial,
        coordinators,
        lease,
        alone: options.alone,
        awake_or_not: Arc::new(system::since_boot),
        kept_all: data.ran_since_boot(),
        place: data.place(),
        word: options.word,
    }))
}

/// Whether other servers can reach this one at an address that they are told.
fn is_reached(address: SocketAddr, options: &Options) -> anyhow::Result<()> {
    if address.ip().is_unspecified() && options.advertise.is_none() {
        return Err(usage(format!(
            "other servers cannot reach {address}: give --listen an address of one interface, or \
             --advertise the address at which they reach this server"
        )));
    }
    Ok(())
}

fn limits(data: &DataDir, options: &Options) -> Limits {
    let folders: Vec<_> =
        data.blocks_folder().into_iter().chain([data.metadata_folder()]).collect();
    let smallest = folders.iter().map(|folder| system::space(folder).0).min().unwrap_or_default();
    let reserve = options.reserve.unwrap_or(RESERVE_BYTES.min(smallest / 20));
    let free = move || folders.iter().map(|folder| system::space(folder).1).min();
    let (sessions_max, sessions_a_token_max) = (options.sessions_max, options.sessions_a_token_max);
    Limits {
        free: Arc::new(move || free().unwrap_or(u64::MAX)),
        reserve,
        sessions_max,
        sessions_a_token_max,
        split_by_locked_scan: options.split_by_locked_scan,
        memory: options.memory,
        ..Limits::default()
    }
}

/// Returns the address with the port that is so many after that of `address`; port 0 stays 0.
pub(crate) fn port_after(address: &str, more: u16) -> anyhow::Result<String> {
    let parts = address.rsplit_once(':');
    let (host, port) = parts.with_context(|| format!("{address} is not HOST:PORT"))?;
    let port: u16 = port.parse().with_context(|| format!("{address} is not HOST:PORT"))?;
    let port = if port == 0 { Some(0) } else { port.checked_add(more) };
    let port = port.with_context(|| format!("too few ports follow {address}"))?;
    Ok(format!("{host}:{port}"))
}

/// Whether a server of several could listen where it is to: an error that comes before anything
/// else is done.
pub(crate) fn try_listen(options: &Options) -> anyhow::Result<()> {
    let address = try_bind(options)?;
    address.map_or(Ok(()), |address| is_reached(address, options))
}

/// Whether a server could listen where it is to. Returns the address for clients, for as long as
/// nobody else takes it.
pub(crate) fn try_bind(options: &Options) -> anyhow::Result<Option<SocketAddr>> {
    let addresses = std::iter::once(&options.listen).chain(&options.http);
    let bound: Vec<_> = addresses.map(bind).collect::<anyhow::Result<_>>()?;
    Ok(bound.first().map(TcpListener::local_addr).transpose()?)
}

fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
    let kept = if listen.is_kept {
        ", the address of the last start (--listen and --http name others)"
    } else {
        ""
    };
    let context = || format!("cannot listen on {}{kept}", listen.address);
    let addresses: Vec<SocketAddr> =
        listen.address.to_socket_addrs().with_context(context)?.collect();
    let bound = TcpListener::bind(addresses.as_slice());
    let listener = match (bound, addresses.first()) {
        (Err(error), Some(first))
            if listen.or_free_port && error.kind() == io::ErrorKind::AddrInUse =>
        {
            TcpListener::bind((first.ip(), 0))
        }
        (bound, _) => bound,
    };
    let listener = listener.with_context(context)?;
    // The standard library has room for 128 connections at once; a client that finds none tries
    // again a second later.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .build()
        .context("cannot start a runtime")
}

/// One core's part of the server, before its thread has it.
struct Core {
    server: Server,
    index: usize,
    data: PathBuf,
    /// The data directory, of a server of several.
    member: Option<PathBuf>,
    connections: mpsc::UnboundedReceiver<Accepted>,
    admission: Admission,
    /// Tasks that the first core has besides.
    first: Option<(Acceptor, Certificates)>,
    stopped: watch::Receiver<bool>,
}

impl Core {
    /// Serves until the server is stopped.
    fn run(mut self, runtime: Runtime) {
        let tasks = LocalSet::new();
        tasks.block_on(&runtime, async {
            let core = self.server.core(self.index);
            let executor = core.clone();
            tokio::task::spawn_local(async move { executor.run().await });
            if let Some((acceptor, certificates)) = self.first.take() {
                tokio::task::spawn_local(certificates.renew());
                let background = core.clone();
                tokio::task::spawn_local(async move { background.background().await });
                tokio::task::spawn_local(acceptor.run());
                tokio::task::spawn_local(keep_newest_key(self.server.clone(), self.data));
                if let Some(data) = self.member.take() {
                    tokio::task::spawn_local(note_boot(self.server.clone(), data));
                }
            }
            tokio::task::spawn_local(take_connections(core, self.connections, self.admission));
            // The sender lives as long as the server.
            let _ = self.stopped.wait_for(|stopped| *stopped).await;
            if self.index == 0 {
                self.server.resign().await;
            }
        });
        drop(tasks);
        runtime.shutdown_timeout(STOP_TIMEOUT);
    }
}

/// Keeps the newest signing key in the data directory, for `pando token create --data`.
async fn keep_newest_key(server: Server, folder: PathBuf) {
    let keep = |number, secret: &wire::Secret| {
        if let Err(error) = data::write_newest_key(&folder, number, &secret.0) {
            tracing::warn!(%error, "`pando token create --data` does not know the newest key");
        }
    };
    server.follow_newest_key(keep).await;
}

/// Notes once that the server has had a lease.
async fn note_boot(server: Server, data: PathBuf) {
    while !server.has_had_lease() {
        tokio::time::sleep(LOOK_PERIOD).await;
    }
    if let Err(error) = DataDir::note_boot(&data) {
        tracing::warn!(%error, "clients will drop their caches when this server is restarted");
    }
}

async fn take_connections(
    core: meta::Core,
    mut connections: mpsc::UnboundedReceiver<Accepted>,
    admission: Admission,
) {
    while let Some(Accepted { stream, slot }) = connections.recv().await {
        match prepare(stream) {
            Ok(stream) => {
                let (core, admission) = (core.clone(), admission.clone());
                let from = stream.peer_addr().ok();
                tokio::task::spawn_local(async move {
                    match admission.admit(stream).await {
                        Ok((link, binding)) => core.serve_bound(link, from, binding).await,
                        Err(closed) => tracing::debug!("{closed}"),
                    }
                    drop(slot);
                });
            }
            Err(error) => tracing::warn!(%error, "a connection was lost at once"),
        }
    }
}

fn prepare(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    // A client whose machine is gone says nothing, and would have its connection for ever.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_PAUSE)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_TRIES)?;
    tokio::net::TcpStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_of_a_machine_that_is_gone_does_not_last() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = prepare(ours).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_TRIES);
    }
}
