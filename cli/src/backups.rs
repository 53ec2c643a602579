//! Backups of a running server: a thread of its own that makes a base at times.
//!
//! `server` starts it beside the cores. Never: nobody waits for it, and its failures are told in
//! `pando status`, a metric and the log, and nowhere else. So the place and the key are opened in
//! the thread. It runs with less priority than the cores, and holds a few MiB of what it sends.
//!
//! Always true: the number of a base is on stable storage, and held for, before its copy is begun.
//! While it is not known which bases may name blocks, all are held.

mod maker;

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use ::backup::{Error, Made, Place};
use anyhow::Context as _;
use meta::{Hold, Server};
use parking_lot::Mutex;
use store::{Engine as _, RocksEngine};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

pub(crate) use self::maker::{Maker, address, turn};
use crate::{
    data::{self, BackupProgress, KeptBackup},
    failure::usage,
    journal::Ship,
    output,
};

/// Longest pause before a failed base is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(30);
/// Time that a stop of the server waits for the last base.
const LAST_BASE_TIMEOUT: Duration = Duration::from_secs(20);
/// How much nicer than the cores the thread is.
const NICE: i32 = 10;

/// State of the backups of a server, which `pando status` and metrics show.
pub(crate) struct State {
    /// The URL, without options.
    shown: Option<String>,
    every: Duration,
    /// The directory is a restored copy, whose original may use the same blocks.
    is_restored: bool,
    are_blocks_local: bool,
    bounds: Mutex<Bounds>,
    bases: AtomicU64,
    stored_bytes: AtomicU64,
    uploaded_bytes: AtomicU64,
    /// The engine, once it is open.
    engine: OnceLock<Arc<RocksEngine>>,
    /// The journal, once it is started.
    ship: OnceLock<Arc<Ship>>,
    course: Mutex<Course>,
}

/// Bases that may name blocks which nothing else names.
struct Bounds {
    /// Number of the newest base whose copy was begun; `None` while that is not known.
    begun: Option<u64>,
    /// Number of the oldest base that is kept; 0 while that is not known.
    oldest: u64,
}

#[derive(Default)]
struct Course {
    /// When the copy of the last base was taken.
    last: Option<Instant>,
    /// Number of the last base since the start; 0: none.
    number: u64,
    /// Position of the engine that the last base has at least.
    position: u64,
    /// Since when bases fail, and the last reason.
    fails: Option<(Instant, String)>,
    /// Since when a base is under way.
    under_way: Option<Instant>,
}

impl State {
    /// The state at a start. `None` where there are no backups and nothing is held.
    pub(crate) fn new(
        path: &Path,
        kept: Option<&KeptBackup>,
        are_blocks_local: bool,
    ) -> Option<Arc<State>> {
        let is_restored = data::is_restored(path) && !are_blocks_local;
        if kept.is_none() && !is_restored {
            return None;
        }
        let begun = match BackupProgress::read(path) {
            Ok(Some(progress)) => Some(progress.newest),
            Ok(None) => (!data::has_backup_key(path)).then_some(0),
            // The thread meets the same error, and tells it.
            Err(_) => None,
        };
        Some(Arc::new(State {
            shown: kept.map(|kept| without_options(&kept.url)),
            every: Duration::from_secs(kept.map_or(0, |kept| kept.every_seconds)),
            is_restored,
            are_blocks_local,
            bounds: Mutex::new(Bounds { begun, oldest: 0 }),
            bases: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            uploaded_bytes: AtomicU64::new(0),
            engine: OnceLock::new(),
            ship: OnceLock::new(),
            course: Mutex::default(),
        }))
    }

    /// Bases are those of a journal.
    pub(crate) fn belongs_to(&self, ship: &Arc<Ship>) {
        self.ship.get_or_init(|| Arc::clone(ship));
    }

    fn begins(&self) {
        self.course.lock().under_way = Some(Instant::now());
    }

    fn has_made(&self, made: Made, (copied, position): (Instant, u64)) {
        self.uploaded_bytes.fetch_add(made.uploaded, Ordering::Relaxed);
        let mut course = self.course.lock();
        let failed = course.fails.take().is_some();
        let number = made.number;
        *course = Course { last: Some(copied), number, position, ..Course::default() };
        drop(course);
        if failed {
            tracing::warn!(base = made.number, "the backup works again");
        }
    }

    fn has_failed(&self, error: &anyhow::Error) {
        if let Some(Error::NoDirectory(_) | Error::Empty { .. }) = error.downcast_ref() {
            // Bases of the place that should be there hold blocks.
            self.bounds.lock().oldest = 0;
        }
        let (error, mut course) = (format!("{error:#}"), self.course.lock());
        course.under_way = None;
        let is_new = course.fails.is_none();
        course.fails = Some((course.fails.as_ref().map_or_else(Instant::now, |it| it.0), error));
        if let (true, Some((_, error))) = (is_new, &course.fails) {
            tracing::error!(error, "no base of the backup could be made; it is tried again");
        }
    }

    fn is_failing(&self) -> bool {
        self.course.lock().fails.is_some()
    }
}

impl meta::Beside for State {
    fn problem(&self) -> Option<String> {
        let shown = self.shown.as_ref()?;
        let course = self.course.lock();
        let last = course.last.map_or_else(
            || "none was made since the start".to_owned(),
            |last| format!("the last base is {} old", span(last.elapsed())),
        );
        if let Some((since, error)) = &course.fails {
            let since = span(since.elapsed());
            return Some(format!("the backup to {shown} fails for {since}: {error}; {last}"));
        }
        let long = course.under_way?.elapsed();
        let is_slow = long > 3 * self.every.max(RETRY_PERIOD);
        is_slow.then(|| format!("a base is under way to {shown} for {}; {last}", span(long)))
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        if self.shown.is_none() {
            return vec![("backup_restored_copy", 1)];
        }
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let course = self.course.lock();
        let mut gauges = vec![
            ("backup", u64::from(course.fails.is_none())),
            ("backup_newest", course.number),
            ("backup_bases", load(&self.bases)),
            ("backup_stored_bytes", load(&self.stored_bytes)),
            ("backup_uploaded_bytes", load(&self.uploaded_bytes)),
            ("backup_restored_copy", u64::from(self.is_restored)),
        ];
        let age = course.last.map(|last| last.elapsed().as_nanos());
        let changes = self.engine.get().map(|engine| engine.position() - course.position);
        gauges.extend(changes.filter(|_| course.last.is_some()).map(|it| ("backup_changes", it)));
        gauges.extend(age.map(|age| ("backup_age_nanos", u64::try_from(age).unwrap_or(u64::MAX))));
        gauges
    }
}

impl meta::Backup for State {
    fn hold(&self) -> Hold {
        if self.are_blocks_local {
            return Hold::Nothing;
        }
        if self.ship.get().is_some_and(|ship| ship.is_left_behind()) {
            return Hold::Everything;
        }
        let Bounds { begun, oldest } = *self.bounds.lock();
        match begun.filter(|_| !self.is_restored) {
            Some(begun) => Hold::Bases { begun, oldest },
            None => Hold::Everything,
        }
    }
}

/// The thread that makes bases.
pub(crate) struct Backups {
    stop: watch::Sender<bool>,
    makes_last: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Backups {
    /// Starts the thread.
    pub(crate) fn start(
        kept: &KeptBackup,
        state: Arc<State>,
        (path, name): (&Path, &str),
        (engine, server): (Arc<RocksEngine>, Server),
        ship: Option<Arc<Ship>>,
    ) -> anyhow::Result<Backups> {
        state.engine.get_or_init(|| Arc::clone(&engine));
        let work = Work {
            maker: Maker::new(&kept.url, path, name).beside(ship),
            state,
            engine,
            server,
            keep_seconds: kept.keep_seconds,
            makes_last: Arc::default(),
        };
        let makes_last = Arc::clone(&work.makes_last);
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("backup-io")
            .build()
            .context("cannot start a runtime")?;
        let run = move || {
            // Without it the thread has the priority of the cores.
            let _ = rustix::process::nice(NICE);
            runtime.block_on(work.run(stopped));
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("backup".to_owned()).spawn(run);
        Ok(Backups { stop, makes_last, thread: thread.context("cannot start a thread")? })
    }

    /// Makes the last base, if that is soon done, and ends. Without a last base where another server
    /// waits for the end.
    pub(crate) fn stop(self, makes_last: bool) {
        self.makes_last.store(makes_last, Ordering::Release);
        self.stop.send_replace(true);
        // A panic was logged.
        let _ = self.thread.join();
    }
}

struct Work {
    maker: Maker,
    state: Arc<State>,
    engine: Arc<RocksEngine>,
    server: Server,
    keep_seconds: u64,
    makes_last: Arc<AtomicBool>,
}

/// The last base of a server that runs.
#[derive(Clone, Copy)]
struct BackedUp {
    /// Position of the engine before its copy.
    position: u64,
    copied: Instant,
    /// Whether the base before it has the same position.
    is_repeated: bool,
}

impl Work {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut backed_up = None;
        loop {
            let is_stopped = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = self.round(&mut backed_up) => false,
            };
            if is_stopped {
                break;
            }
        }
        let position = self.engine.position();
        if backed_up.is_some_and(|last| last.position == position) {
            tracing::debug!("the last base has everything");
        } else if !self.makes_last.load(Ordering::Acquire) {
            tracing::debug!("the journal has what no base has");
        } else if self.state.is_failing() {
            tracing::warn!("the server stops without a last base, as the backup fails");
        } else if timeout(LAST_BASE_TIMEOUT, self.once(&mut backed_up)).await.is_err() {
            tracing::warn!("the server stops without a last base, as the backup store is slow");
        }
        if let Err(error) = data::end_copy(&self.maker.path) {
            tracing::warn!(error = format!("{error:#}"), "the copy for the backup is left");
        }
    }

    /// Makes a base if something has changed, removes old ones, and pauses.
    async fn round(&mut self, backed_up: &mut Option<BackedUp>) {
        self.once(backed_up).await;
        let every = self.state.every;
        let pause = if self.state.is_failing() { every.min(RETRY_PERIOD) } else { every };
        sleep(pause).await;
    }

    /// The newest two bases are always kept. So that the older one does not hold blocks for ever
    /// where nothing changes any more, a base is repeated once when it is old.
    async fn once(&mut self, backed_up: &mut Option<BackedUp>) {
        let position = self.engine.position();
        let last = backed_up.filter(|last| last.position == position);
        let keep = Duration::from_secs(self.keep_seconds);
        if let Some(last) = last
            && (last.is_repeated || last.copied.elapsed() < keep)
        {
            return self.collect(last.copied.elapsed()).await;
        }
        self.state.begins();
        let copied = Instant::now();
        let begun = |number| self.state.bounds.lock().begun = Some(number);
        match self.maker.make(&self.engine, begun).await {
            Ok(made) => {
                *backed_up = Some(BackedUp { position, copied, is_repeated: last.is_some() });
                self.state.has_made(made, (copied, position));
                tracing::info!(
                    base = made.number,
                    bytes = made.bytes,
                    uploaded = made.uploaded,
                    took = ?copied.elapsed(),
                    "a base of the backup was made"
                );
                self.collect(Duration::ZERO).await;
            }
            Err(error) => self.state.has_failed(&error),
        }
    }

    /// Removes old bases, where nothing has changed for so long since the newest one.
    async fn collect(&mut self, quiet: Duration) {
        match self.maker.collect(self.keep_seconds, quiet).await {
            Ok((collected, oldest)) => {
                self.state.bounds.lock().oldest = oldest;
                self.state.bases.store(collected.bases, Ordering::Relaxed);
                self.state.stored_bytes.store(collected.bytes, Ordering::Relaxed);
                self.state.course.lock().fails = None;
                self.server.bases_changed();
            }
            Err(error) => {
                self.state.has_failed(&error.context("old bases cannot be removed"));
            }
        }
    }
}

/// Opens the place of backups that a URL names, with the credentials of the environment.
pub(crate) fn open_place(url: &str) -> anyhow::Result<Place> {
    Ok(Place::open(url, variables())?)
}

/// Variables of the environment, which may have credentials.
pub(crate) fn variables() -> Vec<(String, String)> {
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    variables.collect()
}

/// Whether bases are of use for a server of a cluster, or the only one: those of several servers are
/// of different moments, and only a journal brings each to where the others are.
pub(crate) fn for_one_server(server: Option<u16>, has_journal: bool) -> anyhow::Result<()> {
    if server.is_none() || has_journal {
        return Ok(());
    }
    Err(usage(
        "--backup is for a file system of one server: bases of several servers would not be of one \
         moment. `pando dump` makes a copy of a whole cluster, and --journal survives the loss of a \
         machine",
    ))
}

/// A URL without its options.
pub(crate) fn without_options(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

/// Seconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the time of a base is that of the machine's clock")]
pub(crate) fn now_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A span of time for people, to the second or minute.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let whole = if seconds < 600 { seconds } else { seconds / 60 * 60 };
    humantime::format_duration(Duration::from_secs(whole)).to_string()
}

/// Bytes of a base for people.
pub(crate) fn size(bytes: u64) -> String {
    output::bytes(bytes)
}
