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
mod ground;
mod listen;
mod opening;
mod options;

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use meta::Server;
use store::{Blocks, RocksEngine};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use self::{
    cores::{Core, STOP_TIMEOUT, runtime, spawn},
    ground::Ground,
    opening::{Besides, Opened, open},
};
pub(crate) use self::{
    listen::{Listen, Tls, port_after},
    opening::{try_bind, try_listen},
    options::{ALONE, CLUSTER_LEASE, Options, Role},
};
use crate::{
    accept::Acceptor,
    audit,
    backups::{self, Backups},
    block_trial,
    data::{self, DataDir, Kept, KeptBackup},
    http::Phase,
    journal::{self, Journal, Journaled, Ship},
    near::Near,
    panics,
};

/// The error of a stop when the disk fails.
const NOT_STABLE: &str = "cannot make the last changes stable";
/// Pause between two looks whether a run has ended everywhere.
const ENDED_LOOK_PERIOD: Duration = Duration::from_millis(1);

/// A server that is serving. It must be stopped, not dropped.
pub(crate) struct Running {
    ground: Ground,
    server: Server,
    engine: Arc<RocksEngine>,
    /// The index of the core for this thread.
    near: Option<usize>,
    stop: watch::Sender<bool>,
    threads: Vec<thread::JoinHandle<()>>,
    backups: Option<Backups>,
    journal: Option<Journaling>,
}

/// The journal of a server, which goes on from one run to the next.
struct Journaling {
    /// The engine as the server has it.
    journaled: Arc<Journaled>,
    ship: Arc<Ship>,
    thread: Journal,
}

/// Parts of a run that go on in the one that follows in the same process.
struct Left {
    engine: Arc<RocksEngine>,
    journal: Option<Journaling>,
}

/// Opens the file system in `data` and serves it.
pub(crate) fn start(data: DataDir, options: &Options) -> anyhow::Result<Running> {
    let ground = Ground::prepare(data, options)?;
    let data = &ground.data;
    let trial = block_trial::run(&data.blocks()?)?;
    if options.kept.backup.is_some() {
        backups::for_one_server(data.server(), options.kept.journal().is_some())?;
    }
    // A crash may have left it, and it keeps tables that compaction has replaced.
    if let Err(error) = data::end_copy(data.path()) {
        tracing::warn!(error = format!("{error:#}"), "an old copy for the backup is left");
    }
    if let Some(kept) = options.kept.journal() {
        journal::start::know_bases(data.path(), &kept.url)?;
    }
    let running = serve(ground, options, None)?;
    if let Err(cause) = trial {
        running.server.block_store_failed(&cause);
    }
    Ok(running)
}

/// Serves on what was prepared, or what an earlier run has left with its engine.
fn serve(ground: Ground, options: &Options, left: Option<Left>) -> anyhow::Result<Running> {
    let begun = Instant::now();
    let data = &ground.data;
    let backup = options.kept.backup.as_ref();
    let state = backups::State::new(data.path(), backup, data.has_local_blocks());
    let beside = state.clone().map(|state| state as Arc<dyn meta::Backup>);
    let audit = ground.audit.as_ref().map(audit::Writing::log);
    let beside = Besides { backup: beside, audit };
    let Opened { server, engine, journal } = open(&ground, options, beside, left)?;
    if let (Some(state), Some(journal)) = (&state, &journal) {
        state.belongs_to(&journal.ship);
    }
    let (stop, stopped) = watch::channel(false);
    let near = options.near.then_some(options.cores.get());
    let serving = Phase::Serving(server.clone());
    let (threads, backups) = (Vec::new(), None);
    let mut running = Running { ground, server, engine, near, stop, threads, backups, journal };
    let started = running
        .start_threads(options, &stopped)
        .and_then(|()| running.start_backups(options.kept.backup.as_ref(), state));
    running.ground.tell(serving);
    if let Err(error) = started.and_then(|()| running.write_address(&options.kept)) {
        let _ = running.stop();
        return Err(error);
    }
    tracing::info!(
        name = running.name(),
        version = env!("CARGO_PKG_VERSION"),
        data = %running.ground.data.path().display(),
        address = %running.ground.address,
        page = running.ground.page_url,
        cores = options.cores,
        durability = ?options.durability,
        role = ?options.role,
        took = ?begun.elapsed(),
        "serving"
    );
    Ok(running)
}

impl Running {
    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.ground.address
    }

    /// The address of the status page, if there is one.
    pub(crate) fn http(&self) -> Option<SocketAddr> {
        self.ground.http
    }

    /// URL of the status page, if there is one.
    pub(crate) fn page_url(&self) -> Option<&str> {
        self.ground.page_url.as_deref()
    }

    /// Name of the file system.
    pub(crate) fn name(&self) -> &str {
        self.ground.data.name()
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
        self.ground.blocks.clone()
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
        self.end_threads(Phase::Stopping);
        self.ground.data.remove_address();
        let halted = self.server.halted().now_or_never();
        let is_wrong = |then| !matches!(then, meta::Then::BeginsAnew | meta::Then::Leaves);
        let halted = halted.is_some_and(|problem| is_wrong(problem.then));
        let synced = self.server.sync();
        if halted || synced.is_err() {
            // No thread notes it any more.
            DataDir::forget_boot(self.ground.data.path());
        }
        if let Some(backups) = self.backups.take() {
            // A standby takes over only when this is done.
            let has_lease = self.journal.as_ref().is_some_and(|journal| journal.ship.has_lease());
            backups.stop(!has_lease);
        }
        if let Some(journal) = self.journal.take() {
            journal.thread.stop(synced.is_ok() && !halted);
        }
        self.ground.audit.take();
        synced.context(NOT_STABLE)?;
        tracing::info!("stopped: all that was answered is on stable storage");
        Ok(())
    }

    /// Ends this run of the server and begins the next one. Clients that connect meanwhile wait for
    /// it, and the engine stays open: opening it would read its log again. The journal goes on: a
    /// standby must not take this for an end.
    ///
    /// # Errors
    /// When what was executed cannot be made stable, or the next run cannot begin. The server has
    /// stopped then.
    pub(crate) async fn begin_anew(mut self, options: &Options) -> anyhow::Result<Running> {
        self.end_threads(Phase::Starting);
        if let Some(backups) = self.backups.take() {
            backups.stop(false);
        }
        if let Err(error) = self.server.sync() {
            let _ = self.stop();
            return Err(error).context(NOT_STABLE);
        }
        let Running { ground, server, engine, journal, .. } = self;
        drop(server);
        // Race: the page, or a task on another thread, may still look at the run that has ended. A
        // write of that run must not come after the first look of the next one.
        let until = Instant::now() + STOP_TIMEOUT;
        let users = || match &journal {
            Some(journal) => Arc::strong_count(&journal.journaled),
            None => Arc::strong_count(&engine),
        };
        while users() > 1 {
            anyhow::ensure!(Instant::now() < until, "the run that has ended still does something");
            tokio::time::sleep(ENDED_LOOK_PERIOD).await;
        }
        serve(ground.again()?, options, Some(Left { engine, journal }))
    }

    fn end_threads(&mut self, phase: Phase) {
        self.ground.tell(phase);
        tracing::info!("stopping");
        if let Some(journal) = &self.journal {
            // A core may wait for the journal.
            journal.ship.stops();
        }
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic was logged, and is an error of `failed`.
            let _ = thread.join();
        }
    }

    fn write_address(&self, kept: &Kept) -> anyhow::Result<()> {
        let Ground { data, address, page_url, .. } = &self.ground;
        let addresses: Vec<_> =
            std::iter::once(address.to_string()).chain(page_url.clone()).collect();
        data.write_address(&addresses)?;
        kept.write(data.path())
    }

    fn start_backups(
        &mut self,
        kept: Option<&KeptBackup>,
        state: Option<Arc<backups::State>>,
    ) -> anyhow::Result<()> {
        let (Some(kept), Some(state)) = (kept, state) else { return Ok(()) };
        let of = (self.ground.data.path(), self.ground.data.name());
        let ship = self.journal.as_ref().map(|journal| Arc::clone(&journal.ship));
        let serving = (Arc::clone(&self.engine), self.server.clone());
        self.backups = Some(Backups::start(kept, state, of, serving, ship)?);
        Ok(())
    }

    fn start_threads(
        &mut self,
        options: &Options,
        stopped: &watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let (inboxes, outboxes): (Vec<_>, Vec<_>) =
            (0..options.cores.get()).map(|_| mpsc::unbounded_channel()).unzip();
        let server = self.server.clone();
        let ground = &self.ground;
        let acceptor = Acceptor {
            listener: ground.listener.try_clone()?,
            connections: ground.connections.clone(),
            server,
            cores: inboxes,
        };
        let mut first = Some((acceptor, ground.certificates.clone()));
        for (index, connections) in outboxes.into_iter().enumerate() {
            let core = Core {
                server: self.server.clone(),
                index,
                data: ground.data.path().to_owned(),
                member: ground.data.server().map(|_| ground.data.path().to_owned()),
                connections,
                admission: ground.admission.clone(),
                first: first.take(),
                stopped: stopped.clone(),
            };
            let runtime = runtime()?;
            self.threads.push(spawn(format!("core-{index}"), move || core.run(runtime))?);
        }
        Ok(())
    }
}
