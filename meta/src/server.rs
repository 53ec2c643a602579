//! What all cores of a server share.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{
    Clock, ClusterMap, HashMap, Ino, Random, Seq, SessionId, ShardId,
    limits::REQUESTS_IN_FLIGHT_MAX,
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use store::{Batch, Blocks, Engine};
use wire::FsInfo;

use crate::{
    Core, OpenError, Problem,
    bugs::{Bug, Planted},
    cluster::{Cluster, ClusterOptions},
    compact::CompactQueue,
    dump::Dumps,
    file_locks::FileLocks,
    fsck::Jobs,
    hot::HotEntries,
    invalidation::Invalidations,
    lock::LockTable,
    observe::{self, Observed},
    opens::Opens,
    quota::Quotas,
    reclaim::Backlog,
    record::{Config, Record as _, SessionRecord, key, system::Reserved, system::StoredAnswer},
    room::{FreeBytes, Level, Room},
    session::Session,
    sync::SyncQueue,
    tails::Tails,
    transact::{Initiated, locks::Prepared, recover},
    unsynced,
};

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When it is visible and survives a crash of the server; it is on stable storage after `fsync`, `sync`
    /// or the commit interval.
    Relaxed,
    /// When it is on stable storage.
    Strict,
}

/// Where work that blocks is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// On threads of the runtime, so that a core never waits for a disk.
    Threads,
    /// Where it is called: in a simulation nothing blocks.
    Inline,
}

impl Offload {
    /// Runs `work` and returns what it returned.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match self {
            Offload::Inline => {
                // Others go on meanwhile, as they do beside a thread.
                tokio::task::yield_now().await;
                work()
            }
            Offload::Threads => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is shutting down: whoever waits is dropped with it.
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }
}

/// Total and free bytes of the place where blocks and metadata are.
pub type Space = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// What the server's process uses of its machine.
pub type Process = Arc<dyn Fn() -> wire::ProcessStatus + Send + Sync>;

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// The address that clients are told.
    pub address: String,
    /// How many cores will be run. More than one makes the lock table real.
    pub cores: usize,
    /// When operations are answered.
    pub durability: Durability,
    /// Answered operations are on stable storage after so long at most.
    pub commit_interval: Duration,
    /// A session ends when nothing was heard of it for so long.
    pub lease: Duration,
    /// Where blocking work is done.
    pub offload: Offload,
    /// What clients must know to reach a shared block store themselves; empty: they go through the server.
    pub blocks_url: String,
    /// Options of the shared store (endpoint, region, keys).
    pub blocks_options: Vec<(String, String)>,
    /// Space of the file system.
    pub space: Space,
    /// What the server's process uses of its machine.
    pub process: Process,
    /// How much the server lets itself be given.
    pub limits: Limits,
    /// How it reaches the others, where the file system has several servers.
    pub cluster: Option<ClusterOptions>,
}

/// How much a server lets itself be given.
#[derive(Clone)]
pub struct Limits {
    /// Free bytes of the disks that its data is on.
    pub free: FreeBytes,
    /// So many of them are kept free: below it writes are refused. 0: nothing is, until the disk refuses.
    pub reserve: u64,
    /// More sessions than this are not opened; clients wait until others end.
    pub sessions_max: usize,
}

impl Default for Limits {
    /// No reserve, and more sessions than anybody has.
    fn default() -> Limits {
        Limits { free: Arc::new(|| u64::MAX), reserve: 0, sessions_max: 1 << 16 }
    }
}

/// A metadata server. Cloning shares it.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

/// What all cores share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) blocks: Blocks,
    pub(crate) config: Config,
    settings: RwLock<crate::record::Settings>,
    pub(crate) quotas: Quotas,
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    /// `None`: it is the only server of the file system.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) alone: ClusterMap,
    pub(crate) incarnation: u64,
    pub(crate) started: tokio::time::Instant,
    pub(crate) hot: HotEntries,
    pub(crate) observed: Observed,
    pub(crate) locks: LockTable,
    pub(crate) prepared: Prepared,
    pub(crate) initiated: Initiated,
    pub(crate) inos: InoCounters,
    pub(crate) opens: Opens,
    pub(crate) file_locks: FileLocks,
    pub(crate) sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    pub(crate) invalidations: Invalidations,
    pub(crate) sync: SyncQueue,
    pub(crate) unsynced: unsynced::Notes,
    pub(crate) room: Room,
    pub(crate) backlog: Backlog,
    pub(crate) tails: Tails,
    pub(crate) compact: CompactQueue,
    pub(crate) jobs: Jobs,
    pub(crate) dumps: Dumps,
    pub(crate) counters: Counters,
    pub(crate) bugs: Planted,
    halted: tokio::sync::watch::Sender<Option<Problem>>,
}

impl Server {
    /// Opens the file system in `engine`. Where blocks are stable only after a sync, the end of its log was looked at
    /// before ([`kept`](crate::kept)).
    ///
    /// Cost: a read for each session, each inode left to reclaim and each file left to be cut, and one synced write.
    /// It does not grow with the number of files.
    ///
    /// # Errors
    /// When it is not formatted, or cannot be read.
    pub fn open(
        engine: Arc<dyn Engine>,
        blocks: Blocks,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Server, OpenError> {
        Server::open_with(engine, blocks, options, (clock, random), Planted::default())
    }

    /// As [`Server::open`], with a deliberate bug.
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
        unsynced::forget(engine.as_ref(), config.shards)?;
        let Limits { free, reserve, .. } = options.limits.clone();
        let room = Room::new(free, reserve, engine.as_ref());
        let inos = if room.level() == Level::Enough {
            InoCounters::reserve(engine.as_ref(), config.shards, bugs)?
        } else {
            InoCounters::none_yet(engine.as_ref(), config.shards)?
        };
        let sessions = load_sessions(engine.as_ref(), &config.signing_key)?;
        let settings = match engine.get(&key::settings())? {
            Some(settings) => crate::record::Settings::from_record(&settings)?,
            None => crate::record::Settings {
                inline_bytes_max: config.inline_bytes_max,
                trash: crate::record::TrashSetting::default(),
            },
        };
        let quotas = Quotas::load(engine.as_ref(), config.shards)?;
        let backlog = Backlog::load(engine.as_ref(), config.shards)?;
        let tails = Tails::load(engine.as_ref(), config.shards)?;
        backlog.add(tails.inos());
        let opens = Opens::default();
        if !bugs.has(Bug::ClaimsNotAwaited) {
            opens.await_claims(sessions.keys().copied());
        }
        let prepared = Prepared::default();
        if !bugs.has(Bug::PreparedForgotten) {
            recover::load(engine.as_ref(), &prepared)?;
        }
        let started = tokio::time::Instant::now();
        let incarnation = random.next();
        let (cluster, version) =
            match Cluster::open(engine.as_ref(), incarnation, options.cluster.as_ref())? {
                Some((cluster, version)) => (Some(cluster), version),
                // Half of the range, so that it can count up; never 0, which means "by handle".
                None => (None, random.next() >> 1 | 1),
            };
        let shared = Shared {
            blocks,
            cluster,
            alone: ClusterMap::single(&options.address, config.shards),
            incarnation,
            started,
            observed: Observed::new(started, options.cores),
            locks: LockTable::new(options.cores),
            prepared,
            initiated: Initiated::default(),
            hot: HotEntries::new(),
            inos,
            opens,
            file_locks: FileLocks::default(),
            sessions: Mutex::new(sessions),
            invalidations: Invalidations::new(version),
            sync: SyncQueue::default(),
            unsynced: unsynced::Notes::default(),
            room,
            backlog,
            tails,
            compact: CompactQueue::default(),
            jobs: Jobs::default(),
            dumps: Dumps::default(),
            counters: Counters::default(),
            bugs,
            halted: tokio::sync::watch::Sender::new(None),
            engine,
            config,
            settings: RwLock::new(settings),
            quotas,
            options,
            clock,
            random,
        };
        Ok(Server { shared: Arc::new(shared) })
    }

    /// One core; it stays on the thread that makes it.
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

    /// A connection was not taken because there are too many.
    pub fn connection_refused(&self) {
        Counters::add(&self.shared.counters.connections_refused);
    }

    /// Whether the disks are so full that writes are refused.
    #[must_use]
    pub fn refuses_writes(&self) -> bool {
        self.shared.room.level() != Level::Enough
    }

    /// What the server is doing.
    #[must_use]
    pub fn status(&self) -> wire::Status {
        self.shared.status()
    }

    /// Where time goes and what waits, without who asks for what.
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

    /// What was set of the whole file system.
    pub(crate) fn settings(&self) -> crate::record::Settings {
        *self.settings.read()
    }

    /// Sets it; the caller stores it.
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

    /// What a client must know of the file system.
    pub(crate) fn fs_info(&self) -> FsInfo {
        let shared_store = !self.options.blocks_url.is_empty();
        FsInfo {
            name: self.config.name.clone(),
            uuid: self.config.uuid,
            hash_key: self.config.hash_key,
            locality: self.config.locality,
            inline_bytes_max: self.settings().inline_bytes_max,
            blocks: if shared_store { self.options.blocks_url.clone() } else { "server".into() },
            blocks_options: self.options.blocks_options.clone(),
        }
    }

    /// The answers that a session was given before this server started: the newest, as many as it may wait for. Each
    /// shard has as many.
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

    pub(crate) fn status(&self) -> wire::Status {
        let engine = self.engine.stats();
        let mut sessions: Vec<_> = self
            .sessions
            .lock()
            .values()
            .map(|session| wire::SessionStatus {
                session: session.id,
                client: session.client.clone(),
                idle_seconds: session.idle().as_secs(),
                open_files: self.opens.count(session.id),
            })
            .collect();
        sessions.sort_unstable_by_key(|status| status.session);
        wire::Status {
            name: self.config.name.clone(),
            uuid: self.config.uuid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            shards: self.config.shards,
            durability: match self.options.durability {
                Durability::Relaxed => "relaxed".to_owned(),
                Durability::Strict => "strict".to_owned(),
            },
            commit_interval_ms: u64::try_from(self.options.commit_interval.as_millis())
                .unwrap_or(u64::MAX),
            blocks: match self.blocks.compression() {
                store::Compression::None => self.config.blocks.clone(),
                how => format!("{} compressed={how}", self.config.blocks),
            },
            sessions,
            files: self.files_estimated(),
            counters: self.counters_and_locks(),
            store_bytes: engine.disk_bytes,
            store_records: engine.keys_estimated,
            process: (self.options.process)(),
        }
    }

    /// The counters, and how many locks there are now.
    fn counters_and_locks(&self) -> Vec<(String, u64)> {
        let (files, held, waiting) = self.file_locks.totals();
        let locks = [("files_locked", files), ("locks_held", held), ("locks_waiting", waiting)];
        let mut counters = self.counters.list();
        counters.extend(locks.map(|(name, count)| (name.to_owned(), count as u64)));
        counters
    }

    /// About how many inodes there are: the engine's estimate of its records, an entry or two for each.
    pub(crate) fn files_estimated(&self) -> u64 {
        self.engine.stats().keys_estimated
    }
}

fn load_sessions(
    engine: &dyn Engine,
    signing_key: &[u8],
) -> Result<HashMap<SessionId, Arc<Session>>, OpenError> {
    let mut sessions = HashMap::default();
    let prefix = key::kind(ShardId(0), b'S');
    let mut damaged = None;
    engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| match (
        key::parse_session(key),
        SessionRecord::from_record(&Bytes::copy_from_slice(value)),
    ) {
        (Some(id), Ok(record)) => {
            let session = Session::new(signing_key, id, record.secret, record.client);
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

/// How many inode numbers are reserved at a time on each shard.
const INOS_RESERVED: u64 = 1 << 16;

/// Gives out inode numbers. Ranges are reserved on stable storage before the first number of them is used, so
/// no power cut gives a number out twice.
pub(crate) struct InoCounters {
    shards: Vec<Mutex<Range>>,
}

struct Range {
    next: u64,
    end: u64,
}

impl InoCounters {
    /// Nothing reserved: each shard does it with its first number. For a start on a full disk.
    fn none_yet(engine: &dyn Engine, shards: u16) -> Result<InoCounters, OpenError> {
        let ranges = (0..shards).map(|shard| {
            let reserved = engine.get(&key::counter(ShardId(shard)))?;
            let end = Reserved::from_record(&reserved.ok_or(OpenError::NotFormatted)?)?.end;
            Ok(Mutex::new(Range { next: end, end }))
        });
        Ok(InoCounters { shards: ranges.collect::<Result<_, OpenError>>()? })
    }

    fn reserve(engine: &dyn Engine, shards: u16, bugs: Planted) -> Result<InoCounters, OpenError> {
        let mut batch = Batch::default();
        let mut ranges = Vec::with_capacity(usize::from(shards));
        for shard in (0..shards).map(ShardId) {
            let reserved = engine.get(&key::counter(shard))?.ok_or(OpenError::NotFormatted)?;
            let next = Reserved::from_record(&reserved)?.end;
            let end = next + INOS_RESERVED;
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
            ranges.push(Mutex::new(Range { next, end }));
        }
        if !bugs.has(Bug::InosNotReserved) {
            engine.write(batch)?;
            engine.sync()?;
        }
        Ok(InoCounters { shards: ranges })
    }

    /// The next number of `shard`. One in many thousands waits for a sync.
    pub(crate) fn next(&self, shard: ShardId, engine: &dyn Engine) -> crate::error::Result<Ino> {
        let mut range = self.shards[usize::from(shard.0)].lock();
        if range.next == range.end {
            let end = range.end + INOS_RESERVED;
            let mut batch = Batch::default();
            batch.put(&key::counter(shard), &Reserved { end }.to_record());
            engine.write(batch)?;
            engine.sync()?;
            range.end = end;
        }
        range.next += 1;
        Ok(Ino::new(shard, range.next - 1))
    }

    /// The first number of `shard` that is not reserved.
    pub(crate) fn end(&self, shard: ShardId) -> u64 {
        self.shards[usize::from(shard.0)].lock().end
    }

    /// Whether a number may have been given out.
    pub(crate) fn was_given_out(&self, ino: Ino) -> bool {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        let range = self.shards.get(usize::from(ino.shard().0)).map(|range| range.lock());
        counter > 0 && range.is_some_and(|range| counter < range.end)
    }

    /// Gives out only numbers after `ino` on its shard; the first one that is not reserved, which the caller
    /// stores. `None` when there is no such shard, or hardly a number after it.
    pub(crate) fn raise(&self, ino: Ino) -> Option<u64> {
        let counter = ino.0 & ((1 << Ino::COUNTER_BITS) - 1);
        let mut range = self.shards.get(usize::from(ino.shard().0))?.lock();
        if counter == 0 || counter > 1 << (Ino::COUNTER_BITS - 1) {
            return None;
        }
        if counter >= range.end {
            (range.next, range.end) = (counter + 1, counter + 1);
        }
        Some(range.end)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start.
        #[derive(Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Their names and values.
            pub(crate) fn list(&self) -> Vec<(String, u64)> {
                vec![$((stringify!($name).to_owned(), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections,
    /// Connections that were told to wait because there were too many.
    connections_refused,
    /// Requests read.
    requests,
    /// Engine writes; requests over groups is the size of a group.
    groups,
    /// Mutating requests that were asked again and got their stored answer.
    duplicates_suppressed,
    /// Requests refused because another core held a lock, and run again.
    lock_conflicts,
    /// Transactions over several servers that met another one, or something that had changed, and began anew.
    transactions_repeated,
    /// Syncs of the engine.
    syncs,
    /// Sessions opened.
    sessions_opened,
    /// Sessions resumed.
    sessions_resumed,
    /// Sessions ended by their lease.
    sessions_expired,
    /// Sessions ended by administrators.
    sessions_evicted,
    /// Hellos that were told to wait because there were too many sessions.
    sessions_refused,
    /// Sessions resumed whose client had answers that a power cut has taken.
    sessions_set_back,
    /// Look-ups, walks included.
    lookup,
    /// stat by handle.
    getattr,
    /// chmod, chown, utimes, truncate.
    setattr,
    /// Files made.
    create,
    /// Directories made.
    mkdir,
    /// Symbolic links made.
    symlink,
    /// Hard links made.
    link,
    /// Names removed.
    unlink,
    /// Directories removed.
    rmdir,
    /// Renames.
    rename,
    /// Pages of listings.
    readdir,
    /// Opens.
    open,
    /// Writes of contents.
    write,
    /// Look-ups of blocks.
    block_map,
    /// Extended attributes read or changed.
    xattr,
    /// Locks taken, changed and given back.
    lock,
    /// Blocks stored through the server.
    block_put,
    /// Blocks read through the server.
    block_get,
    /// Blocks deleted in the background.
    blocks_deleted,
    /// Chunks rewritten in the background.
    chunks_compacted,
    /// Inodes removed in the background.
    inodes_reclaimed,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
