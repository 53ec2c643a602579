//! The server as its process has it: everything that it is made of, put together.
//!
//! This is the top of the crate: it names every part, and nobody below imports it. The parts that
//! run beside requests are listed in `background`, those that follow writes in `followers`.

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::AtomicU64},
};

use base::{Clock, ClusterMap, HashMap, Random, SessionId};
use bytes::Bytes;
use parking_lot::Mutex;
use store::{Blocks, Engine};
use wire::{Secret, Token, TokenError};

use crate::{
    Core, OpenError, Problem,
    block_store::BlockStore,
    bugs::{Bug, Planted},
    cluster::Cluster,
    coordinator,
    deferred_truncations::DeferredTruncations,
    delegations::Delegations,
    feed::Feed,
    followers,
    gate::Gate,
    invalidation::Invalidations,
    keys::{Keys, ring::KeyRing},
    lag::Lag,
    lock::LockTable,
    moves::{self, ahead::NotingEngine},
    observe::{self, Observed},
    opens::Opens,
    placing::homes::Homes,
    problem::Then,
    quota::{self, Quotas},
    reclaim::{backlog::Backlog, marks},
    record::{Config, Record as _, SessionRecord, Settings, TrashSetting, key},
    record_cache::RecordCache,
    server::{Counters, InoCounters, Limits, ServerOptions, Shared},
    session::Session,
    settings::InForce,
    space_guard::{Level, SpaceGuard},
    transact::{early_mkdirs::table::EarlyMkdirs, locks::Prepared, recover},
    unsynced, upgrade,
};

/// A metadata server. Cloning shares it.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
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
    /// Fails as [`Server::open`] does.
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
        upgrade::bring_up_to_date(engine.as_ref())?;
        moves::arrival::settle(engine.as_ref())?;
        let moves = moves::state::Moves::default();
        let engine = match engine.get(&key::member())? {
            Some(_) => Arc::new(NotingEngine { engine, ahead: Arc::clone(&moves.ahead), bugs }),
            None => engine,
        };
        let position_at_start = engine.position();
        let config = engine.get(&key::config())?.ok_or(OpenError::NotFormatted)?;
        let config = Config::from_record(&config)?;
        let begun = tokio::time::Instant::now();
        unsynced::forget(engine.as_ref())?;
        let Limits { free, reserve, .. } = options.limits.clone();
        let space_guard = SpaceGuard::new(free, reserve, engine.as_ref());
        if options.cluster.as_ref().is_some_and(|cluster| cluster.word.restored) {
            InoCounters::skip(engine.as_ref())?;
            tracing::warn!(
                "an old copy is brought back (--restored): inode numbers go on 2^32 further, as \
                 the next ones may be in use; run `pando fsck --repair`"
            );
        }
        let inos = if space_guard.level() == Level::Enough {
            InoCounters::reserve(engine.as_ref(), bugs)?
        } else {
            InoCounters::none_yet(engine.as_ref())?
        };
        let several = engine.get(&key::member())?.is_some();
        if !several && inos.shards().count() != usize::from(config.shards) {
            // Without its counter a shard would give numbers out twice.
            return Err(OpenError::NotFormatted);
        }
        let sessions = load_sessions(engine.as_ref())?;
        let settings = match engine.get(&key::settings())? {
            Some(settings) => Settings::from_record(&settings)?,
            None => Settings {
                inline_bytes_max: config.inline_bytes_max,
                trash: TrashSetting::default(),
            },
        };
        let ring = engine.get(&key::key_ring())?;
        let ring = ring.map(|ring| KeyRing::from_record(&ring)).transpose()?.unwrap_or_default();
        let keys = Arc::new(Keys::new(config.signing_key.clone(), ring, bugs));
        quota::owners::count_once(engine.as_ref(), config.shards)?;
        let quotas = Quotas::load(engine.as_ref(), several)?;
        let backlog = Backlog::load(engine.as_ref())?;
        let deferred_truncations = DeferredTruncations::load(engine.as_ref())?;
        backlog.add(deferred_truncations.inos());
        let feed = Feed::load(engine.as_ref(), clock.now(), bugs)?;
        let delegations = match bugs.has(Bug::HoldersForgotten) {
            false => Delegations::load(engine.as_ref())?,
            true => Delegations::default(),
        };
        let opens = Opens::default();
        if !bugs.has(Bug::ClaimsNotAwaited) {
            opens.await_claims(sessions.keys().copied());
            sessions.values().for_each(|session| session.awaits_claims());
        }
        let prepared = Prepared::new(options.limits.doubt_max);
        let early_mkdirs = EarlyMkdirs::default();
        recover::load(engine.as_ref(), &prepared, &early_mkdirs, bugs)?;
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
            early_mkdirs.hear_of(cluster.others());
        }
        let shared = Shared {
            blocks,
            block_store: BlockStore::default(),
            refusals: Default::default(),
            cluster,
            alone: ClusterMap::single(&options.address, config.shards),
            incarnation,
            started,
            observed: Observed::new(started, options.cores),
            locks: LockTable::new(options.cores),
            gate: Gate::new(options.cores),
            prepared: Arc::new(prepared),
            initiated: Default::default(),
            early_mkdirs: Arc::new(early_mkdirs),
            handoffs: Arc::default(),
            homes: Arc::new(Homes::new(options.limits.home)),
            record_cache: Arc::new(RecordCache::new(options.limits.memory.record_cache)),
            layouts: Default::default(),
            remote_hints: Default::default(),
            inos,
            opens,
            file_locks: Arc::default(),
            delegations,
            sessions: Arc::new(Mutex::new(sessions)),
            evictions: AtomicU64::new(0),
            invalidations: Arc::new(Invalidations::new(version)),
            paths: Default::default(),
            tokens: Default::default(),
            sync: Default::default(),
            unsynced: Arc::default(),
            space_guard,
            lag: Lag::default(),
            backlog: Arc::new(backlog),
            deferred_truncations,
            compact: Default::default(),
            jobs: Default::default(),
            dumps: Default::default(),
            pauses: Default::default(),
            moves,
            loads: moves::loads::Loads::new(config.shards),
            feed: Arc::new(feed),
            counters: Counters::default(),
            bugs,
            position_at_start,
            stable_position: AtomicU64::new(0),
            halted: tokio::sync::watch::Sender::new(None),
            engine,
            config,
            settings: Arc::new(InForce::new(settings)),
            keys,
            quotas: Arc::new(quotas),
            trash: Default::default(),
            options,
            clock,
            random,
        };
        Ok(Server { shared: Arc::new(shared) })
    }

    /// Makes one core, which stays on the calling thread.
    #[must_use]
    pub fn core(&self, index: usize) -> Core {
        Core::new(self.shared.clone(), index, followers::of_core(&self.shared, index))
    }

    /// Returns when the server can no longer serve, with the reason.
    pub async fn halted(&self) -> Problem {
        let mut halted = self.shared.halted.subscribe();
        let is_final = |problem: &Option<Problem>| {
            problem.as_ref().is_some_and(|problem| problem.then != Then::Waits)
        };
        match halted.wait_for(is_final).await {
            Ok(problem) => problem.clone().expect("waited for"),
            Err(_) => unreachable!("the sender lives as long as the server"),
        }
    }

    /// Reads and checks the text of a token, with the keys and the revoked tokens of this moment.
    ///
    /// # Errors
    /// Fails as [`Token::verify`] does.
    pub fn verify(&self, text: &str) -> Result<Token, TokenError> {
        Token::verify(text, &*self.shared.keys.get(), self.shared.clock.now())
    }

    /// The newest key that signs tokens: its number and its secret.
    #[must_use]
    pub fn newest_key(&self) -> (u32, Secret) {
        self.shared.keys.get().newest()
    }

    /// Calls `tell` with the newest key that signs tokens, and again whenever keys or revoked
    /// tokens change. The future never ends.
    pub async fn follow_newest_key(&self, mut tell: impl FnMut(u32, &Secret)) {
        let mut changes = self.shared.keys.subscribe();
        loop {
            let (number, secret) = changes.borrow_and_update().newest();
            tell(number, &secret);
            if changes.changed().await.is_err() {
                unreachable!("the sender lives as long as the server");
            }
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

    /// Says whether stable storage is so far behind that changes wait until it has caught up.
    pub fn stable_storage_lags(&self, is_long: bool) {
        self.shared.lag.set(is_long);
    }

    /// Stops serving for good, as this server's journal belongs to another process now.
    pub fn journal_is_lost(&self, why: &str) {
        self.shared.halt(Problem::because(why.to_owned()));
    }

    /// Notes that bases of the backup were made or removed: blocks may be deleted that were held.
    pub fn bases_changed(&self) {
        self.shared.backlog.look_again();
    }

    /// Makes what the next start of an old copy needs: inode numbers go on further, as the next ones
    /// may be in use in the original, and no block is marked with a base of the original.
    ///
    /// # Errors
    /// When the engine is not formatted, or cannot be read or written.
    pub fn prepare_copy(engine: &dyn Engine) -> Result<(), OpenError> {
        upgrade::bring_up_to_date(engine)?;
        engine.get(&key::config())?.ok_or(OpenError::NotFormatted)?;
        marks::clear(engine)?;
        InoCounters::skip(engine)
    }

    /// Number of the newest base of a backup that may name a block to delete; 0: none.
    ///
    /// # Errors
    /// When the engine cannot be read.
    pub fn newest_mark(engine: &dyn Engine) -> Result<u64, OpenError> {
        marks::newest(engine)
    }

    /// Id of the file system in an engine.
    ///
    /// # Errors
    /// When the engine is not formatted, or cannot be read.
    pub fn uuid(engine: &dyn Engine) -> Result<u128, OpenError> {
        let config = engine.get(&key::config())?.ok_or(OpenError::NotFormatted)?;
        Ok(Config::from_record(&config)?.uuid)
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

    /// Stops serving for good, and tells the coordinator of the cluster: then no process waits for
    /// the lease of this one. Answers that are not sent yet are lost.
    pub async fn resign(&self) {
        coordinator::run::resign(&self.shared).await;
    }

    /// Whether the server has a lease, or goes on for a while without one: what it answers counts.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        let may = |cluster: &Cluster| cluster.has_lease() || cluster.serves_alone();
        !self.shared.is_halted() && self.shared.cluster.as_ref().is_none_or(may)
    }

    /// The generation of this process of a server of a cluster; 0: none yet.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.cluster.as_ref().map_or(0, |cluster| cluster.own.generation())
    }

    /// Makes everything answered so far stable; the last act of a clean stop.
    ///
    /// # Errors
    /// When the blocks' directory or the engine cannot.
    pub fn sync(&self) -> Result<(), Problem> {
        self.shared.make_stable()
    }
}

fn load_sessions(engine: &dyn Engine) -> Result<HashMap<SessionId, Arc<Session>>, OpenError> {
    let mut sessions = HashMap::default();
    let prefix = key::own(b'S');
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
