//! A metadata server as threads: one per core, and one for the status page.
//!
//! `serve` and `up` call it. Each core thread has a single-threaded runtime and a `meta::Core` on
//! it, core 0 also accepts connections and does the background work. Connections are dealt to the
//! cores in turn and stay where they are. `up` has one core more, on its own thread, for the mount
//! beside it.
//!
//! Always true: what was executed when [`Running::stop`] was called is on stable storage when it
//! returns; the threads have ended by then.

mod cores;
mod listen;
mod opening;

use std::{
    net::{SocketAddr, TcpListener},
    num::NonZeroUsize,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use meta::{Durability, MemoryBudget, Server, Word};
use store::{Blocks, RocksEngine};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    time::Instant,
};

pub(crate) use self::listen::{Listen, Tls, port_after, try_bind, try_listen};
use self::{
    cores::Core,
    listen::bind,
    opening::{Besides, Opened, open},
};
use crate::{
    accept::{Acceptor, Slots},
    admission::{Admission, Clear},
    audit::{self, AuditLog, AuditOptions},
    backups::{self, Backups},
    block_trial,
    certificates::{self, Certificates},
    data::{self, DataDir, Kept},
    http::{self, Phase},
    journal::{self, Journal, Ship},
    near::Near,
    panics, system,
};

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

fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .build()
        .context("cannot start a runtime")
}
