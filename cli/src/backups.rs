//! Backups of a running server: a thread of its own that makes a base at times.
//!
//! `server` starts it beside the cores. Never: nobody waits for it, and its failures are told in
//! `pando status`, a metric and the log, and nowhere else. The thread runs with less priority than
//! the cores, and holds a few MiB of what it sends.
//!
//! Always true: the number of a base is on stable storage, and held for, before its copy is begun.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use ::backup::{Error, History, Key, Made, Moment, Place};
use anyhow::Context as _;
use meta::{Hold, Server};
use parking_lot::Mutex;
use store::{Engine as _, RocksEngine};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    data::{self, BackupProgress, KeptBackup},
    failure::usage,
    output,
    system::SystemRandom,
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
    /// The directory is a restored copy.
    is_restored: bool,
    /// Whether the original may have blocks that bases hold.
    holds_blocks: bool,
    begun: AtomicU64,
    oldest: AtomicU64,
    bases: AtomicU64,
    stored_bytes: AtomicU64,
    uploaded_bytes: AtomicU64,
    /// The engine, once it is open.
    engine: OnceLock<Arc<RocksEngine>>,
    course: Mutex<Course>,
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
    ) -> anyhow::Result<Option<Arc<State>>> {
        let is_restored = data::is_restored(path);
        if kept.is_none() && !is_restored {
            return Ok(None);
        }
        let begun = BackupProgress::read(path)?.map_or(0, |progress| progress.newest);
        Ok(Some(Arc::new(State {
            shown: kept.map(|kept| without_options(&kept.url)),
            every: Duration::from_secs(kept.map_or(0, |kept| kept.every_seconds)),
            is_restored,
            holds_blocks: kept.is_some() && !are_blocks_local,
            begun: AtomicU64::new(begun),
            oldest: AtomicU64::new(0),
            bases: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            uploaded_bytes: AtomicU64::new(0),
            engine: OnceLock::new(),
            course: Mutex::default(),
        })))
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

impl meta::Backup for State {
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

    fn hold(&self) -> Hold {
        if self.is_restored {
            return Hold::Everything;
        }
        if !self.holds_blocks {
            return Hold::Nothing;
        }
        let (begun, oldest) =
            (self.begun.load(Ordering::Acquire), self.oldest.load(Ordering::Acquire));
        Hold::Bases { begun, oldest }
    }
}

/// The thread that makes bases.
pub(crate) struct Backups {
    stop: watch::Sender<bool>,
    thread: thread::JoinHandle<()>,
}

impl Backups {
    /// Starts the thread.
    pub(crate) fn start(
        kept: &KeptBackup,
        state: Arc<State>,
        (path, name): (&Path, &str),
        (engine, server): (Arc<RocksEngine>, Server),
    ) -> anyhow::Result<Backups> {
        state.engine.get_or_init(|| Arc::clone(&engine));
        let work = Work {
            maker: Maker::open(kept, path, name, &engine)?,
            state,
            engine,
            server,
            keep_seconds: kept.keep_seconds,
        };
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
        Ok(Backups { stop, thread: thread.context("cannot start a thread")? })
    }

    /// Makes the last base, if that is soon done, and ends.
    pub(crate) fn stop(self) {
        self.stop.send_replace(true);
        // A panic was logged.
        let _ = self.thread.join();
    }
}

/// Makes bases of one data directory.
pub(crate) struct Maker {
    path: PathBuf,
    name: String,
    place: Place,
    uuid: u128,
    key: Key,
    history: Option<History>,
    random: SystemRandom,
}

impl Maker {
    pub(crate) fn open(
        kept: &KeptBackup,
        path: &Path,
        name: &str,
        engine: &RocksEngine,
    ) -> anyhow::Result<Maker> {
        Ok(Maker {
            path: path.to_owned(),
            name: name.to_owned(),
            place: open_place(&kept.url)?,
            uuid: Server::uuid(engine)?,
            key: data::make_backup_key(path)?,
            history: None,
            random: SystemRandom::default(),
        })
    }

    /// Makes a base. `begun` is told its number before its copy is begun.
    pub(crate) async fn make(
        &mut self,
        engine: &RocksEngine,
        begun: impl Fn(u64),
    ) -> anyhow::Result<Made> {
        let mut history = match self.history.take() {
            Some(history) => history,
            None => self.history_of(BackupProgress::read(&self.path)?)?,
        };
        match history.check_owner().await {
            Err(Error::Foreign) => {
                tracing::warn!("{}: this one begins a history of its own", Error::Foreign);
                history = self.history_of(None)?;
                history.check_owner().await?;
            }
            checked => checked?,
        }
        let made = self.base(&mut history, engine, begun).await;
        let is_foreign =
            |error: &anyhow::Error| matches!(error.downcast_ref(), Some(Error::Foreign));
        self.history = Some(match &made {
            Err(error) if is_foreign(error) => self.history_of(None)?,
            Ok(_) | Err(_) => history,
        });
        data::end_copy(&self.path)?;
        made
    }

    /// The history that the directory has noted, or a new one.
    fn history_of(&self, noted: Option<BackupProgress>) -> anyhow::Result<History> {
        let progress = match noted {
            Some(progress) => progress,
            None => {
                // Blocks are held by numbers, so they go on in another history.
                let newest = BackupProgress::read(&self.path)?.map_or(0, |before| before.newest);
                let progress = BackupProgress { newest, ..BackupProgress::begin() };
                progress.write(&self.path)?;
                progress
            }
        };
        let of = (progress.history, progress.newest);
        Ok(History::new(self.place.clone(), self.uuid, of, self.key.clone()))
    }

    async fn base(
        &self,
        history: &mut History,
        engine: &RocksEngine,
        begun: impl Fn(u64),
    ) -> anyhow::Result<Made> {
        let number = history.next();
        let noted = BackupProgress::read(&self.path)?.context("backup.json is gone")?;
        BackupProgress { newest: number, ..noted }.write(&self.path)?;
        begun(number);
        let position = engine.position();
        let copy = data::begin_copy(&self.path, engine)?;
        let small = data::small_files(&self.path)?;
        let (made, name) = (now_seconds(), self.name.clone());
        let moment = Moment { made, position, journal: (0, 0), name };
        Ok(history.make((&copy, "meta"), &small, moment, &self.random).await?)
    }
}

struct Work {
    maker: Maker,
    state: Arc<State>,
    engine: Arc<RocksEngine>,
    server: Server,
    keep_seconds: u64,
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
        if self.state.is_failing() {
            tracing::warn!("the server stops without a last base, as the backup fails");
        } else if timeout(LAST_BASE_TIMEOUT, self.once(&mut backed_up)).await.is_err() {
            tracing::warn!("the server stops without a last base, as the backup store is slow");
        }
        if let Err(error) = data::end_copy(&self.maker.path) {
            tracing::warn!(error = format!("{error:#}"), "the copy for the backup is left");
        }
    }

    /// Makes a base if something has changed, and pauses.
    async fn round(&mut self, backed_up: &mut Option<u64>) {
        self.once(backed_up).await;
        let every = self.state.every;
        let pause = if self.state.is_failing() { every.min(RETRY_PERIOD) } else { every };
        sleep(pause).await;
    }

    async fn once(&mut self, backed_up: &mut Option<u64>) {
        let position = self.engine.position();
        if *backed_up == Some(position) {
            // Old bases could not be removed.
            if self.state.is_failing() {
                self.collect().await;
            }
            return;
        }
        self.state.begins();
        let copied = Instant::now();
        let begun = |number| self.state.begun.store(number, Ordering::Release);
        match self.maker.make(&self.engine, begun).await {
            Ok(made) => {
                *backed_up = Some(position);
                self.state.has_made(made, (copied, position));
                tracing::info!(
                    base = made.number,
                    bytes = made.bytes,
                    uploaded = made.uploaded,
                    took = ?copied.elapsed(),
                    "a base of the backup was made"
                );
                self.collect().await;
            }
            Err(error) => self.state.has_failed(&error),
        }
    }

    async fn collect(&mut self) {
        let Some(history) = &mut self.maker.history else { return };
        match history.collect(self.keep_seconds).await {
            Ok(collected) => {
                self.state.oldest.store(collected.oldest, Ordering::Release);
                self.state.bases.store(collected.bases, Ordering::Relaxed);
                self.state.stored_bytes.store(collected.bytes, Ordering::Relaxed);
                self.state.course.lock().fails = None;
                self.server.bases_changed();
            }
            Err(error) => {
                let error = anyhow::Error::from(error).context("old bases cannot be removed");
                self.state.has_failed(&error);
            }
        }
    }
}

/// Opens the place of backups that a URL names, with the credentials of the environment.
pub(crate) fn open_place(url: &str) -> anyhow::Result<Place> {
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Ok(Place::open(url, variables.collect())?)
}

/// Whether backups are possible for a server of a cluster, or the only one.
pub(crate) fn for_one_server(server: Option<u16>) -> anyhow::Result<()> {
    if server.is_none() {
        return Ok(());
    }
    Err(usage(
        "--backup is for a file system of one server: bases of several servers would not be of one \
         moment. `pando dump` makes a copy of a whole cluster",
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
