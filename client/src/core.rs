//! State that all clones of a client share, and its background tasks work on.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{Clock, Cred, FsError, HashSet, Ino, Random, Seq};
use parking_lot::{Mutex, MutexGuard};
use store::Blocks;
use tokio::{runtime, time::Instant};
use wire::{Dial, Welcome};

use crate::{
    Error, Handle, Result, Stats,
    cache::{AccessCache, CachedDir},
    changed::ChangedDirs,
    channel::PROBES_COUNTED,
    channels::Channels,
    contents::Files,
    inode_routes::InodeRoutes,
    layouts::Layouts,
    locks::Locks,
    mispredictions::{Learnt, Slow},
    system::{SystemClock, SystemRandom},
    tcp::Tcp,
    turns::Turns,
};

/// How to reach a file system, and as whom.
#[derive(Clone)]
pub struct Config {
    /// Servers (`HOST:PORT`), tried in turn.
    pub addresses: Vec<String>,
    /// The token, as text.
    pub token: String,
    /// Name of the client, for people to read.
    pub client_name: String,
    /// Credentials for operations that name no others.
    pub cred: Cred,
    /// The caller's kernel has checked the permissions of every request (a mount with
    /// `default_permissions`).
    pub kernel_checks: bool,
    /// The most memory for directories that paths were resolved through, in bytes; 0 keeps none.
    pub access_cache_bytes: u64,
    /// The most memory for contents that were read, in bytes; 0 keeps none and reads nothing ahead.
    pub read_cache_bytes: u64,
    /// The most memory for contents that were written and not sent yet, in bytes; writers wait at
    /// it.
    pub dirty_bytes_max: u64,
    /// The store of blocks, where the server of this very process has it; `None`: the server reads
    /// and writes them.
    pub blocks: Option<Blocks>,
    /// Where the client's background work runs.
    pub tasks: Tasks,
    /// The process that whole-file locks of [`File`](crate::File) are said to be of. This one,
    /// unless a simulation says otherwise.
    pub pid: u32,
    /// When reads bring access times up to date.
    pub access_times: AccessTimes,
    /// How paths are resolved where the cache does not reach, if there are several servers.
    pub resolution: Resolution,
    /// Time for which directories in the access cache are believed, from when they were asked for,
    /// without validation; `None`: until a server says otherwise. A lease is for comparison only:
    /// the client sees changes of others late.
    pub cache_lease: Option<Duration>,
    /// The network.
    pub dial: Arc<dyn Dial>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for pauses.
    pub random: Arc<dyn Random>,
}

impl Config {
    /// TCP to these servers, with TLS to other machines, the machine's clock and randomness, as the
    /// superuser, with caches on.
    #[must_use]
    pub fn new(addresses: Vec<String>, token: impl Into<String>) -> Config {
        let token = token.into();
        let dial = Arc::new(Tcp::of_token(&token));
        Config {
            addresses,
            token,
            client_name: String::new(),
            cred: Cred::ROOT,
            kernel_checks: false,
            access_cache_bytes: 64 << 20,
            read_cache_bytes: 32 << 20,
            dirty_bytes_max: 64 << 20,
            blocks: None,
            tasks: Tasks::Runtime,
            pid: std::process::id(),
            access_times: AccessTimes::Relative,
            resolution: Resolution::default(),
            cache_lease: None,
            dial,
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom::default()),
        }
    }
}

/// Where the background work of a client runs.
#[derive(Debug, Clone, Default)]
pub enum Tasks {
    /// In tasks of the runtime in which the client was made, wherever it is used.
    #[default]
    Runtime,
    /// In local tasks, beside whoever calls the client, without a way through the runtime between
    /// them: the client is made within a `LocalSet` and used on its thread alone.
    Local,
    /// In tasks of the runtime, in turns with the threads that use the client.
    InTurns(Turns),
}

/// When reads bring the access time of a file or directory up to date; shortly after the read, not
/// with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// When it is not newer than the other times, or older than a day (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`), for an open file at most once a second.
    Always,
    /// Never (`noatime`).
    Never,
}

/// How paths are resolved where the access cache does not reach, in a file system of several
/// servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolution {
    /// The id of the last directory is predicted, and its server asked for the whole path. A path
    /// that this server does not find so is resolved speculatively, or sequentially where the
    /// session is not trusted.
    #[default]
    Auto,
    /// The ids of all directories are predicted, and all servers asked at once. Sessions that are
    /// not trusted cannot, and ask sequentially.
    Speculative,
    /// One server after the other.
    Sequential,
}

/// Counts of resolved paths and found servers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    wrong_partitions: AtomicU64,
    probes: [AtomicU64; PROBES_COUNTED],
    resolutions: AtomicU64,
    rounds: AtomicU64,
    mispredictions: AtomicU64,
    stale: AtomicU64,
    fast_paths: AtomicU64,
    slow_paths: AtomicU64,
}

impl Counters {
    /// A path is resolved.
    pub(crate) fn resolves(&self) {
        self.resolutions.fetch_add(1, Ordering::Relaxed);
    }

    /// A round of guesses is sent.
    pub(crate) fn rounds(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// A directory has another id than was predicted.
    pub(crate) fn mispredicted(&self) {
        self.mispredictions.fetch_add(1, Ordering::Relaxed);
    }

    /// A path was asked of the server of its last directory, which found it or not.
    pub(crate) fn asked_at_end(&self, found: bool) {
        let counter = if found { &self.fast_paths } else { &self.slow_paths };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The cache was outdated.
    pub(crate) fn stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was sent to a partition without what it is about.
    pub(crate) fn wrong_partition(&self) {
        self.wrong_partitions.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call in a directory of several partitions that has met `probes` wrong ones.
    pub(crate) fn probed(&self, probes: usize) {
        self.probes[probes.min(PROBES_COUNTED - 1)].fetch_add(1, Ordering::Relaxed);
    }

    fn add_to(&self, stats: Stats) -> Stats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            wrong_partitions: count(&self.wrong_partitions),
            probes: self.probes.each_ref().map(count),
            resolutions: self.resolutions.load(Ordering::Relaxed),
            speculations: self.rounds.load(Ordering::Relaxed),
            mispredictions: self.mispredictions.load(Ordering::Relaxed),
            stale_caches: self.stale.load(Ordering::Relaxed),
            fast_paths: count(&self.fast_paths),
            slow_paths: count(&self.slow_paths),
            ..stats
        }
    }
}

/// The inside of a client.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) channels: Channels,
    pub(crate) inode_routes: Mutex<InodeRoutes>,
    pub(crate) layouts: Layouts,
    pub(crate) changed_dirs: ChangedDirs,
    pub(crate) learnt: Mutex<Learnt>,
    pub(crate) slow: Mutex<Slow>,
    pub(crate) counters: Counters,
    /// A server is being asked where another one is.
    pub(crate) asks_for_map: AtomicBool,
    /// Whether it was logged that the token has expired.
    expiry_told: AtomicBool,
    /// A reference to this core, for the tasks that it starts.
    pub(crate) me: Weak<Core>,
    pub(crate) cache: Mutex<AccessCache>,
    pub(crate) files: Arc<Files>,
    pub(crate) locks: Locks,
    welcome: Mutex<Arc<Welcome>>,
    runtime: runtime::Handle,
}

impl Core {
    /// `version` came with the welcome.
    pub(crate) fn new(config: Config, welcome: Welcome, version: u64, files: Files) -> Arc<Core> {
        let root = CachedDir { dir: welcome.root, attr: welcome.root_attr };
        // Without validation versions mean nothing.
        let version = if config.cache_lease.is_some() { 0 } else { version };
        let mut cache = AccessCache::new(root, version, config.access_cache_bytes);
        cache.expire_after(config.cache_lease, config.clock.now());
        let channels = Channels::new(&welcome.map);
        Arc::new_cyclic(|me| Core {
            config,
            cache: Mutex::new(cache),
            files: Arc::new(files),
            locks: Locks::new(channels.count()),
            channels,
            inode_routes: Mutex::default(),
            layouts: Layouts::default(),
            changed_dirs: ChangedDirs::default(),
            learnt: Mutex::default(),
            slow: Mutex::default(),
            counters: Counters::default(),
            asks_for_map: AtomicBool::new(false),
            expiry_told: AtomicBool::new(false),
            me: Weak::clone(me),
            welcome: Mutex::new(Arc::new(welcome)),
            runtime: runtime::Handle::current(),
        })
    }

    /// Runs background work where the client was made, from wherever this is called.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match &self.config.tasks {
            Tasks::Runtime => drop(self.runtime.spawn(work)),
            Tasks::Local => drop(tokio::task::spawn_local(work)),
            Tasks::InTurns(turns) => drop(self.runtime.spawn(turns.in_turn(work))),
        }
    }

    /// The servers' last welcome to the session and the file system: with several servers, what
    /// the first one said.
    pub(crate) fn welcome(&self) -> Arc<Welcome> {
        Arc::clone(&self.welcome.lock())
    }

    /// The access cache as of now: with a lease, what has expired is not there.
    pub(crate) fn cache(&self) -> MutexGuard<'_, AccessCache> {
        let mut cache = self.cache.lock();
        if self.config.cache_lease.is_some() {
            cache.set_now(self.config.clock.now());
        }
        cache
    }

    /// The version of what was found, as the cache counts: none where nothing is validated.
    pub(crate) fn valid_from(&self, version: u64) -> u64 {
        if self.config.cache_lease.is_some() { 0 } else { version }
    }

    /// Returns counts of what the client has sent and resolved.
    pub(crate) fn stats(&self) -> Stats {
        self.counters.add_to(self.channels.stats())
    }

    /// Whether a server has what is open of a file.
    pub(crate) fn has(&self, server: u16, ino: Ino) -> bool {
        self.channels.server_of(ino) == server
    }

    /// Fails where a user writes to a file who may have lost a lock on another server: others may
    /// have it.
    ///
    /// The lease of each session ends at its own server. One that cannot be reached for a lease may
    /// have given away the locks of this client, while the other servers still take what it writes.
    /// Nobody knows which files a lock is about, nor which processes rely on one that another has
    /// taken (`flock FILE COMMAND`). So no file is written any more for the users who hold such
    /// locks, until the server says that the session lives; if it does not, what they have open by
    /// then, as of count `since` of [`Files::stamp`], is not written again.
    pub(crate) fn may_write(&self, uid: u32, ino: Ino, since: u64) -> Result<()> {
        if !self.channels.are_several() {
            return Ok(());
        }
        if self.files.is_barred(uid, since) {
            return Err(Error::SessionLost);
        }
        let holders = self.locks.holders();
        if holders.is_empty() {
            return Ok(());
        }
        let (now, own) = (Instant::now(), self.channels.server_of(ino));
        let lost = |(ino, handle): &(Ino, Handle)| {
            let channel = self.channels.at(self.channels.server_of(*ino));
            channel.server != own
                && !channel.is_leased(now)
                && self.files.user_of(*handle) == Some(uid)
        };
        if holders.iter().any(lost) { Err(FsError::Io.into()) } else { Ok(()) }
    }

    /// Says once that nothing will be done any more; each request gets the error.
    pub(crate) fn note_refusal(&self, error: &Error) {
        let ended = matches!(error, Error::TokenExpired);
        if ended && !self.expiry_told.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "nothing works any more");
        }
    }

    /// Takes in what a server says of the session on a new connection, `again` where there was one
    /// to it before: whether it is another session, and whether changes are gone that were
    /// answered. Of another session at a server that has restarted nobody can tell, so they are, if
    /// there were any. What is lost is what belongs to that server.
    ///
    /// Versions of the invalidation list mean nothing to another run of a server that is alone, nor
    /// proofs to another session; so the cache starts anew with either. Servers of a cluster have
    /// one list, and sessions that were joined by proof are the same.
    pub(crate) fn adopt(
        &self,
        server: u16,
        welcome: &Welcome,
        version: u64,
        again: bool,
    ) -> (bool, bool) {
        let channel = self.channels.at(server);
        let lost = again && welcome.opened;
        let restarted = again && channel.incarnation() != welcome.incarnation;
        let forgot = welcome.forgot || lost && restarted && channel.answered() != Seq(0);
        if !self.channels.are_several() {
            *self.welcome.lock() = Arc::new(welcome.clone());
            if lost || restarted {
                let root = CachedDir { dir: welcome.root, attr: welcome.root_attr };
                self.cache().reset(root, self.valid_from(version));
            }
        }
        if !again {
            self.files.meet(server, welcome.incarnation);
            self.locks.meet(server, welcome.incarnation);
        }
        if forgot {
            if welcome.forgot {
                tracing::warn!(
                    server,
                    "the server has lost changes that it had answered: its power failed"
                );
            } else {
                tracing::warn!(
                    server,
                    "the server was started anew and has ended the session: what it had answered \
                     may be lost"
                );
            }
            self.files.forget_unstable(channel.stable_to(), |ino| self.has(server, ino));
        }
        if lost {
            tracing::warn!(server, "the session was lost; a new one is open");
            if self.channels.are_several() {
                let holders = self.locks.holders().into_iter();
                let lost = holders.filter(|(ino, _)| self.has(server, *ino));
                let users: HashSet<u32> =
                    lost.filter_map(|(_, handle)| self.files.user_of(handle)).collect();
                self.files.bar(&users);
            }
            self.files.lose(server, welcome.incarnation, |ino| self.has(server, ino));
            self.locks.lose(server, welcome.incarnation, |ino| self.has(server, ino));
        }
        (lost, forgot)
    }
}
