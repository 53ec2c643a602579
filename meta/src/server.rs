//! The state that all cores of a server share, and what stops it.
//!
//! [`Shared`] holds the state of every mechanism, each in a file of its own that knows neither
//! `Shared` nor the others. What acts on several of them is above. `assembly` puts them together.

mod counters;
mod inos;
mod options;
mod standing;
mod status;

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base::{Clock, ClusterMap, Random, SessionId, ShardId};
use bytes::Bytes;
use store::{Batch, Blocks, Engine};
use wire::FsInfo;

use crate::{
    Problem,
    block_store::BlockStore,
    bugs::{Bug, Planted},
    cluster::Cluster,
    compact::queue::CompactQueue,
    deferred_truncations::DeferredTruncations,
    delegations::Delegations,
    dump::{made::Dumps, pauses::Pauses},
    feed::Feed,
    file_locks::FileLocks,
    fsck::jobs::Jobs,
    gate::Gate,
    handoff::table::Handoffs,
    invalidation::Invalidations,
    keys::Keys,
    lag::Lag,
    layouts::Layouts,
    lock::LockTable,
    moves::{loads::Loads, state::Moves},
    observe::Observed,
    opens::Opens,
    paths::Paths,
    placing::homes::Homes,
    problem::Then,
    quota::Quotas,
    reclaim::backlog::Backlog,
    record::{Config, Record as _, key, system::StoredAnswers},
    record_cache::RecordCache,
    refusals::Refusals,
    remote_hints::RemoteHints,
    session::{Session, table::Sessions},
    settings::InForce,
    space_guard::{Level, SpaceGuard},
    sync::SyncQueue,
    tokens::Tokens,
    transact::{Initiated, early_mkdirs::table::EarlyMkdirs, locks::Prepared},
    trash::latest::Latest,
    unsynced,
};

pub(crate) use counters::Counters;
pub(crate) use inos::InoCounters;
pub use options::{
    Audit, Backup, Beside, Durability, Hold, Journal, Limits, MemoryBudget, Offload, Process,
    ServerOptions, Space,
};

/// The state that all cores share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) blocks: Blocks,
    pub(crate) block_store: BlockStore,
    pub(crate) refusals: Refusals,
    pub(crate) config: Config,
    pub(crate) settings: Arc<InForce>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) trash: Latest,
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    /// The cluster; `None` for the only server of a file system.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) alone: ClusterMap,
    pub(crate) incarnation: u64,
    pub(crate) started: tokio::time::Instant,
    pub(crate) record_cache: Arc<RecordCache>,
    pub(crate) observed: Observed,
    pub(crate) locks: LockTable,
    pub(crate) gate: Gate,
    pub(crate) prepared: Arc<Prepared>,
    /// Known layouts of directories.
    pub(crate) layouts: Layouts,
    /// Remembered directories of other servers.
    pub(crate) remote_hints: RemoteHints,
    pub(crate) initiated: Initiated,
    pub(crate) early_mkdirs: Arc<EarlyMkdirs>,
    pub(crate) handoffs: Arc<Handoffs>,
    pub(crate) homes: Arc<Homes>,
    pub(crate) inos: InoCounters,
    pub(crate) opens: Opens,
    pub(crate) file_locks: Arc<FileLocks>,
    /// Directories that sessions hold.
    pub(crate) delegations: Delegations,
    pub(crate) sessions: Arc<Sessions>,
    /// Number of evictions that were asked for, whether or not the session was here.
    pub(crate) evictions: AtomicU64,
    pub(crate) invalidations: Arc<Invalidations>,
    pub(crate) paths: Paths,
    /// For each token with which sessions were opened, the parts of it that they hold.
    pub(crate) tokens: Tokens,
    pub(crate) sync: SyncQueue,
    pub(crate) unsynced: Arc<unsynced::Notes>,
    pub(crate) space_guard: SpaceGuard,
    pub(crate) lag: Lag,
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) deferred_truncations: DeferredTruncations,
    pub(crate) compact: CompactQueue,
    pub(crate) jobs: Jobs,
    pub(crate) dumps: Dumps,
    pub(crate) pauses: Pauses,
    pub(crate) moves: Moves,
    pub(crate) loads: Loads,
    pub(crate) feed: Arc<Feed>,
    pub(crate) counters: Counters,
    pub(crate) bugs: Planted,
    /// Position of the engine when it was opened: nothing that this process writes counts for it.
    pub(crate) position_at_start: u64,
    /// Position of the engine up to which everything is stable, with the blocks that it names.
    pub(crate) stable_position: AtomicU64,
    pub(crate) halted: tokio::sync::watch::Sender<Option<Problem>>,
}

impl Shared {
    /// Stops serving: from now on every request is answered with `Halted`.
    pub(crate) fn halt(&self, why: Problem) {
        match why.then {
            Then::Ends => tracing::error!(reason = why.reason, "the server stops serving"),
            Then::Leaves => tracing::warn!(reason = why.reason, "the server ends"),
            Then::Waits => tracing::info!(reason = why.reason, "the server holds"),
            Then::BeginsAnew => tracing::info!(reason = why.reason, "the server begins anew"),
        }
        self.halted.send_if_modified(|problem| {
            let is_news = problem.as_ref().is_none_or(|known| {
                known.then == Then::Waits
                    || known.then == Then::BeginsAnew && why.then == Then::Ends
            });
            if is_news {
                *problem = Some(why);
            }
            is_news
        });
    }

    /// Writes a batch of a core. Returns whether it is in the engine. If nobody knows, the server
    /// stops serving.
    pub(crate) fn write(&self, batch: Batch) -> bool {
        self.space_guard.wrote(batch.bytes(), self.engine.as_ref());
        self.sync.writing();
        match self.engine.write(batch) {
            Ok(()) => self.sync.written(),
            Err(error) => {
                self.halt(Problem::of(&error));
                return false;
            }
        }
        true
    }

    /// Writes a batch of the server's own, which is stable soon.
    pub(crate) fn put(&self, batch: Batch) -> Result<(), store::Error> {
        self.sync.writing();
        self.engine.write(batch)?;
        self.sync.written();
        Ok(())
    }

    /// Makes everything stable that was written before this call: blocks, and then the records that
    /// name them.
    pub(crate) fn make_stable(&self) -> Result<(), Problem> {
        let position = self.engine.position();
        let notes = self.unsynced.take();
        let freed = self.early_mkdirs.freed.written_now();
        if !self.bugs.has(Bug::BlocksNotSynced) {
            self.blocks.sync().map_err(|error| Problem::of_blocks(&error))?;
        }
        self.engine.sync().map_err(|error| Problem::of(&error))?;
        self.stable_position.fetch_max(position, Ordering::AcqRel);
        self.early_mkdirs.freed.are_stable(&freed);
        if notes.is_empty() {
            return Ok(());
        }
        if self.space_guard.has(Level::Low).is_err() {
            // The notes are forgotten when the disk has room for that write.
            self.unsynced.add(notes);
            return Ok(());
        }
        let mut forget = Batch::new();
        notes.iter().for_each(|key| forget.delete(key));
        // A power cut may bring the notes back. Then their blocks are found to be whole, or are
        // garbage and deleted.
        self.engine.write(forget).map_err(|error| Problem::of(&error))
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted.borrow().is_some()
    }

    /// Whether this server must not serve anybody any more. The only server of a file system always
    /// may.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cluster.as_ref().is_some_and(Cluster::is_cut_off)
    }

    /// Whether answers must not leave that are ready: the server was held up for so long that
    /// another process may serve in its place. What was executed stays, untold.
    pub(crate) fn is_late(&self) -> bool {
        (self.is_cut_off() || self.may_be_replaced()) && !self.bugs.has(Bug::LateAnswersLeave)
    }

    /// Whether another process may serve in the place of this one by now: then this one is as one
    /// that has halted, until its journal says that nobody does.
    pub(crate) fn may_be_replaced(&self) -> bool {
        let ended = self.options.journal.as_ref().is_some_and(|journal| !journal.may_serve());
        ended && !self.bugs.has(Bug::TenureIgnored)
    }

    /// The settings of the whole file system.
    pub(crate) fn settings(&self) -> crate::record::Settings {
        self.settings.get()
    }

    /// Returns when all earlier writes are on stable storage: here, and at other servers where they
    /// rely on an early mkdir.
    pub(crate) async fn until_stable(&self) {
        let confirmed = async {
            if self.prepared.any() {
                self.early_mkdirs.want(self.prepared.unconfirmed());
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
        self.settings.set(settings);
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

    /// Whether sessions begin at this server: it is the only one, or the coordinator of a cluster
    /// that is complete.
    pub(crate) fn begins_sessions(&self) -> bool {
        let begins = |cluster: &Cluster| cluster.coordinates() && !cluster.map().servers.is_empty();
        self.cluster.as_ref().is_none_or(begins)
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

    /// The answers that a session was given before this server started, by the slots of their
    /// records.
    pub(crate) fn stored_answers(
        &self,
        session: SessionId,
    ) -> Result<Vec<(u16, StoredAnswers)>, store::Error> {
        let mut found = Vec::new();
        let prefix = key::answers(session);
        self.engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
            // Damaged answers are as good as none: the client asked long ago, or asks again.
            let stored = StoredAnswers::from_record(&Bytes::copy_from_slice(value));
            if let (Some(slot), Ok(stored)) = (key::parse_answer(key), stored) {
                found.push((slot, stored));
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}
