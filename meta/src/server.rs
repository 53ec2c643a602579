//! The state that all cores of a server share: how it is opened, and what stops it.
//!
//! [`Server`] is for its process; every other file here works on [`Shared`]. That holds the parts
//! and does nothing with them but open them: each part has a file of its own.

mod counters;
mod inos;
mod options;
mod standing;
mod status;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, atomic::AtomicU64},
};

use base::{
    Clock, ClusterMap, HashMap, Random, Seq, SessionId, ShardId, limits::REQUESTS_IN_FLIGHT_MAX,
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use store::{Blocks, Engine};
use wire::FsInfo;

use crate::{
    Core, OpenError, Problem,
    block_store::BlockStore,
    bugs::{Bug, Planted},
    cluster::Cluster,
    compact::CompactQueue,
    dump::{Dumps, pause::Pauses},
    file_locks::FileLocks,
    fsck::Jobs,
    gate::Gate,
    handoff::table::Handoffs,
    hot::Hot,
    invalidation::Invalidations,
    layouts::Layouts,
    lock::LockTable,
    met::Met,
    observe::{self, Observed},
    opens::Opens,
    paths::Paths,
    quota::Quotas,
    reclaim::Backlog,
    record::{Config, Record as _, SessionRecord, key, system::StoredAnswer},
    refusals::Refusals,
    room::{Level, Room},
    session::Session,
    sync::SyncQueue,
    tails::Tails,
    tokens::Tokens,
    transact::{Initiated, births::Births, locks::Prepared, recover},
    trash::latest::Latest,
    txn::Remote,
    unsynced,
};

pub(crate) use counters::Counters;
pub(crate) use inos::InoCounters;
pub use options::{Durability, Limits, Offload, Process, ServerOptions, Space};

/// A metadata server. Cloning shares it.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

/// The state that all cores share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) blocks: Blocks,
    pub(crate) block_store: BlockStore,
    pub(crate) refusals: Refusals,
    pub(crate) config: Config,
    settings: RwLock<crate::record::Settings>,
    pub(crate) quotas: Quotas,
    pub(crate) trash: Latest,
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    /// The cluster; `None` for the only server of a file system.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) alone: ClusterMap,
    pub(crate) incarnation: u64,
    pub(crate) started: tokio::time::Instant,
    pub(crate) hot: Hot,
    pub(crate) observed: Observed,
    pub(crate) locks: LockTable,
    pub(crate) gate: Gate,
    pub(crate) prepared: Prepared,
    /// Known layouts of directories.
    pub(crate) layouts: Layouts,
    /// Remembered directories of other servers.
    pub(crate) met: Met,
    pub(crate) initiated: Initiated,
    pub(crate) births: Births,
    pub(crate) handoffs: Handoffs,
    pub(crate) inos: InoCounters,
    pub(crate) opens: Opens,
    pub(crate) file_locks: FileLocks,
    pub(crate) sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// Number of evictions that were asked for, whether or not the session was here.
    pub(crate) evictions: AtomicU64,
    pub(crate) invalidations: Invalidations,
    pub(crate) paths: Paths,
    /// For each token with which sessions were opened, the parts of it that they hold.
    pub(crate) tokens: Tokens,
    pub(crate) sync: SyncQueue,
    pub(crate) unsynced: unsynced::Notes,
    pub(crate) room: Room,
    pub(crate) backlog: Backlog,
    pub(crate) tails: Tails,
    pub(crate) compact: CompactQueue,
    pub(crate) jobs: Jobs,
    pub(crate) dumps: Dumps,
    pub(crate) pauses: Pauses,
    pub(crate) counters: Counters,
    pub(crate) bugs: Planted,
    halted: tokio::sync::watch::Sender<Option<Problem>>,
}

impl Server {
    /// Opens the file system in `engine`. Where blocks are stable only after a sync, the end of the
    /// engine's log was looked at before ([`kept`](crate::kept)).
    ///
    /// Cost: a read for each session, each inode left to reclaim and each file left to be cut, and
    /// one synced write. The cost does not grow with the number of files.
    ///
    /// # Errors
    /// When the engine is not formatted, or cannot be read.
    pub fn open(
        engine: Arc<dyn Engine>,
        blocks: Blocks,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Server, OpenError> {
        Server::open_with(engine, blocks, options, (clock, random), Planted::default())
    }

    /// Like [`Server::open`], with a deliberate bug.
    ///
    /// # Errors
    /// As [`Server::open`].
    #[cfg(feature = "bugs")]
    pub fn open_wrong(
        engine: Arc<dyn Engine>,
        blocks: Blocks,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        bug: Option<Bug>,
    ) -> Result<Server, OpenError> {
        Server::open_with(engine, blocks, options, (clock, random), Planted { bug })
    }

    fn open_with(
        engine: Arc<dyn Engine>,
        blocks: Blocks,
        options: ServerOptions,
        (clock, random): (Arc<dyn Clock>, Arc<dyn Random>),
        bugs: Planted,
    ) -> Result<Server, OpenError> {
        let config = engine.get(&key::config())?.ok_or(OpenError::NotFormatted)?;
        let config = Config::from_record(&config)?;
        let begun = tokio::time::Instant::now();
        unsynced::forget(engine.as_ref(), config.shards)?;
        let Limits { free, reserve, .. } = options.limits.clone();
        let room = Room::new(free, reserve, engine.as_ref());
        let inos = if room.level() == Level::Enough {
            InoCounters::reserve(engine.as_ref(), config.shards, bugs)?
        } else {
            InoCounters::none_yet(engine.as_ref(), config.shards)?
        };
        let sessions = load_sessions(engine.as_ref())?;
        let settings = match engine.get(&key::settings())? {
            Some(settings) => crate::record::Settings::from_record(&settings)?,
            None => crate::record::Settings {
                inline_bytes_max: config.inline_bytes_max,
                trash: crate::record::TrashSetting::default(),
            },
        };
        let several = engine.get(&key::member())?.is_some();
        let quotas = Quotas::load(engine.as_ref(), config.shards, several)?;
        let backlog = Backlog::load(engine.as_ref(), config.shards)?;
        let tails = Tails::load(engine.as_ref(), config.shards)?;
        backlog.add(tails.inos());
        let opens = Opens::default();
        if !bugs.has(Bug::ClaimsNotAwaited) {
            opens.await_claims(sessions.keys().copied());
            sessions.values().for_each(|session| session.awaits_claims());
        }
        let prepared = Prepared::new(options.limits.doubt_max);
        let births = Births::default();
        recover::load(engine.as_ref(), &prepared, &births, bugs)?;
        let started = tokio::time::Instant::now();
        tracing::info!(
            sessions = sessions.len(),
            took = ?started.duration_since(begun),
            "what was there before the start is read; its sessions may come back"
        );
        let incarnation = random.next();
        let (cluster, version) =
            match Cluster::open(engine.as_ref(), incarnation, options.cluster.as_ref())? {
                Some((cluster, version)) => (Some(cluster), version),
                // Half of the range, so that the version can count up; never 0, which means "by
                // handle".
                None => (None, random.next() >> 1 | 1),
            };
        if let Some(cluster) = &cluster {
            if cluster.coordinates() {
                quotas.begin_versions(incarnation);
            }
            births.hear_of((0..cluster.servers).filter(|server| *server != cluster.me));
        }
        let shared = Shared {
            blocks,
            block_store: BlockStore::default(),
            refusals: Refusals::default(),
            cluster,
            alone: ClusterMap::single(&options.address, config.shards),
            incarnation,
            started,
            observed: Observed::new(started, options.cores),
            locks: LockTable::new(options.cores),
            gate: Gate::new(options.cores),
            prepared,
            initiated: Initiated::default(),
            births,
            handoffs: Handoffs::default(),
            hot: Hot::new(),
            layouts: Layouts::default(),
            met: Met::default(),
            inos,
            opens,
            file_locks: FileLocks::default(),
            sessions: Mutex::new(sessions),
            evictions: AtomicU64::new(0),
            invalidations: Invalidations::new(version),
            paths: Paths::default(),
            tokens: Tokens::default(),
            sync: SyncQueue::default(),
            unsynced: unsynced::Notes::default(),
            room,
            backlog,
            tails,
            compact: CompactQueue::default(),
            jobs: Jobs::default(),
            dumps: Dumps::default(),
            pauses: Pauses::default(),
            counters: Counters::default(),
            bugs,
            halted: tokio::sync::watch::Sender::new(None),
            engine,
            config,
            settings: RwLock::new(settings),
            quotas,
            trash: Latest::default(),
            options,
            clock,
            random,
        };
        Ok(Server { shared: Arc::new(shared) })
    }

    /// Makes one core, which stays on the calling thread.
    #[must_use]
    pub fn core(&self, index: usize) -> Core {
        Core::new(self.shared.clone(), index)
    }

    /// Returns when the server can no longer serve, with the reason.
    pub async fn halted(&self) -> Problem {
        let mut halted = self.shared.halted.subscribe();
        match halted.wait_for(Option::is_some).await {
            Ok(problem) => problem.clone().expect("waited for"),
            Err(_) => unreachable!("the sender lives as long as the server"),
        }
    }

    /// Counters since the start, for `--http`.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.shared.counters.list()
    }

    /// Counts a connection that was not taken because there are too many.
    pub fn connection_refused(&self) {
        Counters::add(&self.shared.counters.connections_refused);
    }

    /// Notes that a trial of the block store, before the server served, has failed: the trial is
    /// repeated until it works.
    pub fn block_store_failed(&self, cause: &str) {
        self.shared.block_store.has_failed_a_trial(cause);
    }

    /// Whether clients should be sent here, and what is wrong.
    #[must_use]
    pub fn standing(&self) -> wire::Standing {
        self.shared.standing()
    }

    /// Whether the server has had a lease since it was opened: by then the coordinator knows
    /// whether it had lost anything.
    #[must_use]
    pub fn has_had_lease(&self) -> bool {
        self.shared.cluster.as_ref().is_some_and(Cluster::had_lease)
    }

    /// A summary of the server's work and state.
    #[must_use]
    pub fn status(&self) -> wire::Status {
        self.shared.status()
    }

    /// Where time goes and what waits, without naming clients.
    #[must_use]
    pub fn load(&self) -> wire::Load {
        observe::load(&self.shared)
    }

    /// Makes everything answered so far stable; the last act of a clean stop.
    ///
    /// # Errors
    /// When the blocks' directory or the engine cannot.
    pub fn sync(&self) -> Result<(), Problem> {
        unsynced::sync(&self.shared)
    }
}

impl Shared {
    /// Stops serving: from now on every request is answered with `Halted`.
    pub(crate) fn halt(&self, why: Problem) {
        tracing::error!(reason = why.reason, "the server stops serving");
        self.halted.send_if_modified(|problem| {
            let first = problem.is_none();
            problem.get_or_insert(why);
            first
        });
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted.borrow().is_some()
    }

    /// Forgets a presumption of a transaction, which may be wrong.
    pub(crate) fn forget_presumed(&self, remote: &Remote) {
        if let Some(share) = remote.presumed() {
            self.met.forget(share);
        }
    }

    /// The settings of the whole file system.
    pub(crate) fn settings(&self) -> crate::record::Settings {
        *self.settings.read()
    }

    /// Returns when all earlier writes are on stable storage: here, and at other servers where they
    /// rely on a birth.
    pub(crate) async fn until_stable(&self) {
        let confirmed = async {
            if self.prepared.any() {
                self.births.want(self.prepared.unconfirmed());
                self.prepared.confirmed().await;
            }
        };
        tokio::join!(self.sync.wait(), confirmed);
    }

    /// Returns when everything is written that was checked under an older version of the
    /// invalidation list. The result is the present version.
    pub(crate) async fn settle_events(&self) -> u64 {
        let version = self.invalidations.version();
        if self.invalidations.settled() < version {
            self.gate.settled().await;
            self.invalidations.settle(version);
        }
        version
    }

    /// Returns when records that were read may be told. With strict durability, that is when no
    /// power cut can take them back.
    pub(crate) async fn until_told(&self) {
        if self.options.durability == Durability::Strict {
            self.sync.until_stable().await;
        }
    }

    /// Changes the settings in memory; the caller stores them.
    pub(crate) fn set_settings(&self, settings: crate::record::Settings) {
        *self.settings.write() = settings;
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        self.sessions.lock().get(&id).cloned()
    }

    /// The newest cluster map.
    pub(crate) fn map(&self) -> ClusterMap {
        self.cluster.as_ref().map_or_else(|| self.alone.clone(), |cluster| (*cluster.map()).clone())
    }

    /// Whether this server has `shard`. The only server of a file system has all.
    pub(crate) fn owns(&self, shard: ShardId) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.owns(shard))
    }

    /// The facts that a client must know of the file system.
    pub(crate) fn fs_info(&self) -> FsInfo {
        FsInfo {
            name: self.config.name.clone(),
            uuid: self.config.uuid,
            hash_key: self.config.hash_key,
            locality: self.config.locality,
            inline_bytes_max: self.settings().inline_bytes_max,
        }
    }

    /// The answers that a session was given before this server started: the newest, as many as a
    /// session may wait for. Each shard has as many.
    pub(crate) fn stored_answers(
        &self,
        session: SessionId,
    ) -> Result<Vec<(Seq, Bytes)>, store::Error> {
        let mut found = BTreeMap::new();
        for shard in (0..self.config.shards).map(ShardId) {
            let prefix = key::answers(shard, session);
            self.engine.scan(&prefix, &key::end_of(&prefix), &mut |_, value| {
                // A damaged answer is as good as none: the client asked long ago, or asks again.
                if let Ok(stored) = StoredAnswer::from_record(&Bytes::copy_from_slice(value)) {
                    found.insert(stored.seq, stored.answer);
                    if found.len() as u64 > REQUESTS_IN_FLIGHT_MAX {
                        found.pop_first();
                    }
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(found.into_iter().collect())
    }
}

fn load_sessions(engine: &dyn Engine) -> Result<HashMap<SessionId, Arc<Session>>, OpenError> {
    let mut sessions = HashMap::default();
    let prefix = key::kind(ShardId(0), b'S');
    let mut damaged = None;
    engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| match (
        key::parse_session(key),
        SessionRecord::from_record(&Bytes::copy_from_slice(value)),
    ) {
        (Some(id), Ok(record)) => {
            let session = Session::new(id, record.secret, record.client);
            sessions.insert(id, Arc::new(session));
            ControlFlow::Continue(())
        }
        (None, _) => {
            damaged = Some(base::DecodeError::Invalid("session key"));
            ControlFlow::Break(())
        }
        (_, Err(error)) => {
            damaged = Some(error);
            ControlFlow::Break(())
        }
    })?;
    damaged.map_or(Ok(sessions), |error| Err(error.into()))
}
