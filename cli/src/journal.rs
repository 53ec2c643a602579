//! The journal of a running server: what is stable is in an object store as well, before anybody
//! is told that it is stable.
//!
//! `server` starts it before the server opens ([`start`](start::start)), and hands the server an
//! engine ([`Journaled`]) whose `sync` returns when the journal has all that was written before. A
//! thread of its own reads the engine's log and puts segments ([`run`]). The crate `journal` has
//! everything that concerns the store, `backups` makes the bases that the journal begins with.
//!
//! Until the first base is complete, or after a start that found a gap between journal and log,
//! stable storage is the disk alone, and `pando status` says so ([`Phase::Begins`]).
//!
//! Always true: `sync` of a journal in force returns only after the segment with the last change
//! before it is known to be stored; once the journal belongs to another process, no `sync` returns
//! with success any more.

mod engine;
pub(crate) mod recover;
mod run;
pub(crate) mod start;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::journal::{Covered, Journal as Chain, Tenure, Trouble, WriterStatus};
use anyhow::ensure;
use base::error::describe;
use meta::Server;
use parking_lot::{Condvar, Mutex};
use store::Error;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

pub(crate) use self::{
    engine::Journaled,
    run::Journal,
    start::{Started, Terms, start},
};
use crate::{
    backups::{self, span},
    system,
};

/// Time for which a store may fail before changes wait, and bytes that it may lack.
const LAG_MAX: Duration = Duration::from_secs(10);
const LAG_BYTES_MAX: u64 = 256 << 20;
/// A put that takes longer is a problem in `pando status`.
const SLOW_PUT: Duration = Duration::from_secs(1);
/// Time that a start or a stop of the server waits for a segment.
const SEGMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// Shortest commit interval beside a journal: each is a put.
pub(crate) const COMMIT_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// How far the journal is, for all who wait for it.
pub(crate) struct Ship {
    /// The URL, without options.
    shown: String,
    generation: u64,
    course: Mutex<Course>,
    changed: Condvar,
    /// There is something to put.
    wake: Notify,
    /// Bytes of batches that were written, and that are in the journal.
    written: AtomicU64,
    /// How long this process may serve.
    tenure: Tenure,
    /// Newest complete base of this generation.
    based: watch::Sender<Based>,
    /// The server that is told when it must wait or halt; none between two runs.
    server: Mutex<Option<Server>>,
    chain: OnceLock<Chain>,
    /// The segment that the directory's note names.
    noted: AtomicU64,
}

/// A base that this server has made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Based {
    pub(crate) covered: Covered,
    /// The segment that its copy was made after.
    pub(crate) segment: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The journal waits for a base.
    Begins,
    /// The journal has all that is stable.
    InForce,
    /// The journal belongs to another process, or is broken.
    Lost,
}

/// A position that is being shipped.
#[derive(Clone, Copy)]
struct Target {
    position: u64,
    /// Bytes of batches that were written by then.
    bytes: u64,
    since: Instant,
}

struct Course {
    phase: Phase,
    /// Position that somebody waits for, and that the journal has.
    wanted: u64,
    /// Bytes of batches that were written when it was last asked for.
    wanted_bytes: u64,
    shipped: u64,
    /// Bytes of batches that the journal has.
    shipped_bytes: u64,
    /// The position that is being shipped.
    target: Option<Target>,
    /// The position up to which the journal must reach before a lease counts.
    binds_at: Option<u64>,
    /// A base is being made, and the bytes that were written before its copy.
    base: Option<u64>,
    /// Since when puts fail, and the last reason.
    fails: Option<(Instant, String)>,
    /// Why the journal is lost.
    lost: String,
    /// Whether those who wait do so for as long as it takes: not at a start, nor at a stop.
    is_patient: bool,
    status: WriterStatus,
}

impl Ship {
    fn new(shown: String, generation: u64, tenure: Tenure, (shipped, phase): (u64, Phase)) -> Ship {
        Ship {
            shown,
            generation,
            course: Mutex::new(Course {
                phase,
                wanted: shipped,
                wanted_bytes: 0,
                shipped,
                shipped_bytes: 0,
                target: None,
                binds_at: None,
                base: None,
                fails: None,
                lost: String::new(),
                is_patient: false,
                status: WriterStatus::default(),
            }),
            changed: Condvar::new(),
            wake: Notify::new(),
            written: AtomicU64::new(0),
            tenure,
            based: watch::Sender::new(Based::default()),
            server: Mutex::default(),
            chain: OnceLock::new(),
            noted: AtomicU64::new(0),
        }
    }

    /// Generation of this process in the journal.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of the last segment that is stored.
    pub(crate) fn segment(&self) -> u64 {
        self.course.lock().status.number
    }

    /// A base of this generation is complete.
    pub(crate) fn base_made(&self, based: Based) {
        self.based.send_replace(based);
    }

    /// Removes segments that no base needs, while the journal is this process'.
    async fn collect(&self) {
        let is_in_force = self.course.lock().phase == Phase::InForce;
        let Some(chain) = self.chain.get().filter(|_| is_in_force) else { return };
        match chain.collect(self.generation, self.noted.load(Ordering::Acquire)).await {
            Ok(swept) if swept.removed > 0 => {
                let (removed, first) = (swept.removed, swept.first);
                tracing::debug!(removed, first, "old segments are gone");
            }
            Ok(_) => {}
            Err(error) => {
                let error = describe(&error);
                tracing::warn!(error, "old segments of the journal cannot be removed yet");
            }
        }
    }

    /// Sees that the journal is this process', for who writes to its history.
    ///
    /// # Errors
    /// When another process has put a segment, or that cannot be seen.
    pub(crate) async fn still_owns(&self) -> anyhow::Result<()> {
        let (phase, lost, last) = {
            let course = self.course.lock();
            (course.phase, course.lost.clone(), course.status.number)
        };
        ensure!(phase != Phase::Lost, lost);
        let Some(chain) = self.chain.get() else { return Ok(()) };
        if let Some(beyond) = chain.beyond(last).await?
            && let Some(found) = chain.read(beyond).await?
        {
            let is_own = found.header.generation == self.generation;
            ensure!(is_own, "another server has taken the journal at {} over", self.shown);
        }
        Ok(())
    }

    /// Whether another server may stand by.
    pub(crate) fn has_lease(&self) -> bool {
        self.tenure.millis() > 0
    }

    /// Whether the journal has an end that this process has gone beyond: a recovery would give that,
    /// until the next base is complete.
    pub(crate) fn is_left_behind(&self) -> bool {
        self.course.lock().phase == Phase::Begins
    }

    /// The server that is told when it must wait or halt.
    pub(crate) fn serves(&self, server: Server) {
        *self.server.lock() = Some(server.clone());
        let mut course = self.course.lock();
        course.is_patient = true;
        let is_lost = course.phase == Phase::Lost;
        let why = course.lost.clone();
        drop(course);
        if is_lost {
            server.journal_is_lost(&why);
        }
    }

    /// A base is about to be made: changes from its position on are needed by a journal that begins
    /// with it. The position is taken after this call.
    pub(crate) fn base_begins(&self) {
        self.course.lock().base = Some(self.written.load(Ordering::Relaxed));
    }

    /// The base was not made.
    pub(crate) fn base_fails(&self) {
        self.course.lock().base = None;
    }

    /// The position up to which nothing is needed for a journal that begins with a later base.
    fn unneeded(&self) -> Option<u64> {
        let course = self.course.lock();
        (course.phase == Phase::Begins && course.base.is_none()).then_some(course.wanted)
    }

    /// From now on nobody waits for long: the server stops, and another run may follow.
    pub(crate) fn stops(&self) {
        *self.server.lock() = None;
        self.course.lock().is_patient = false;
        self.changed.notify_all();
    }

    /// Returns when the journal has everything up to a position, if it is in force.
    fn wait(&self, position: u64) -> store::Result<()> {
        let mut course = self.course.lock();
        if course.wanted < position {
            course.wanted = position;
            course.wanted_bytes = self.written.load(Ordering::Relaxed);
            self.wake.notify_one();
        }
        let mut until = None;
        loop {
            match course.phase {
                Phase::Begins => return Ok(()),
                Phase::Lost => return Err(failed(course.lost.clone())),
                Phase::InForce if course.shipped >= position => return Ok(()),
                Phase::InForce => {}
            }
            if course.is_patient {
                self.changed.wait(&mut course);
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + SEGMENT_TIMEOUT);
            let left = until.saturating_duration_since(Instant::now());
            if self.changed.wait_for(&mut course, left).timed_out() {
                let why = "the journal's store does not answer: the last changes are on this disk \
                           alone, and go to the journal at the next start";
                return Err(failed(why.to_owned()));
            }
        }
    }

    /// The position that is to be shipped, if the journal lacks something. The same one until the
    /// journal has it.
    fn target(&self) -> Option<u64> {
        let mut course = self.course.lock();
        if course.phase != Phase::InForce || course.wanted <= course.shipped {
            return None;
        }
        let (position, bytes) = (course.wanted, course.wanted_bytes);
        let next = Target { position, bytes, since: Instant::now() };
        Some(course.target.get_or_insert(next).position)
    }

    /// The journal has everything up to a position.
    fn shipped(&self, position: u64, status: WriterStatus) {
        let mut course = self.course.lock();
        course.shipped = course.shipped.max(position);
        let shipped = course.shipped;
        if let Some(target) = course.target.take_if(|target| target.position <= shipped) {
            course.shipped_bytes = target.bytes;
        }
        (course.fails, course.status) = (None, status);
        // Before a segment tells of it.
        if course.binds_at.take_if(|at| *at <= shipped).is_some() {
            self.tenure.bind(system::since_boot());
        }
        drop(course);
        self.changed.notify_all();
    }

    /// The journal is in force from this position on.
    fn begins_after(&self, position: u64) {
        let mut course = self.course.lock();
        (course.phase, course.shipped) = (Phase::InForce, position);
        course.shipped_bytes = course.base.take().unwrap_or_default();
        // Until then the disk has what was said to be stable, and the journal lacks it.
        if course.wanted > position {
            course.binds_at = Some(course.wanted);
        } else {
            self.tenure.bind(system::since_boot());
        }
        drop(course);
        tracing::info!(position, "the journal is in force");
        self.wake.notify_one();
    }

    /// The journal is lost for this process: it stops serving.
    fn is_lost(&self, error: &(dyn std::error::Error + 'static)) {
        let why = format!("the journal at {} is lost: {}", self.shown, describe(error));
        let mut course = self.course.lock();
        (course.phase, course.lost) = (Phase::Lost, why.clone());
        drop(course);
        self.changed.notify_all();
        let server = self.server.lock().clone();
        if let Some(server) = server {
            server.journal_is_lost(&why);
        }
    }

    fn tell(&self, trouble: &Trouble<'_>) {
        let mut course = self.course.lock();
        match trouble {
            Trouble::Failed { error, number, .. } => {
                let text = describe(*error);
                let is_new = course.fails.is_none();
                let since = course.fails.as_ref().map_or_else(Instant::now, |fails| fails.0);
                if is_new {
                    tracing::error!(segment = number, error = text, "the journal's store fails");
                }
                course.fails = Some((since, text));
            }
            Trouble::Over => {
                if course.fails.take().is_some() {
                    tracing::warn!("the journal's store works again");
                }
            }
        }
    }

    /// For how long, and by how many bytes, the journal is behind.
    fn lag(&self) -> (Duration, u64) {
        let course = self.course.lock();
        if course.phase != Phase::InForce {
            return (Duration::ZERO, 0);
        }
        let bytes = self.written.load(Ordering::Relaxed).saturating_sub(course.shipped_bytes);
        (course.target.map_or(Duration::ZERO, |target| target.since.elapsed()), bytes)
    }

    /// Has changes wait for as long as the journal is too far behind.
    fn watch_lag(&self) {
        let (time, bytes) = self.lag();
        if let Some(server) = &*self.server.lock() {
            server.stable_storage_lags(time > LAG_MAX || bytes > LAG_BYTES_MAX);
        }
    }
}

impl meta::Journal for Ship {
    fn may_serve(&self) -> bool {
        // Asked at each request: without a lease the clock is not read.
        !self.has_lease() || self.tenure.holds(system::since_boot())
    }
}

impl meta::Beside for Ship {
    fn problem(&self) -> Option<String> {
        let (time, _) = self.lag();
        let course = self.course.lock();
        let shown = &self.shown;
        let waits = if !self.tenure.holds(system::since_boot()) {
            "; the lease has ended: nobody is served"
        } else if time > LAG_MAX {
            "; changes wait for it"
        } else {
            ""
        };
        match (course.phase, &course.fails) {
            (Phase::Begins, _) => Some(format!(
                "the journal at {shown} begins with the first base: until then, what is stable is \
                 on this machine's disk alone"
            )),
            (Phase::Lost, _) => Some(course.lost.clone()),
            (Phase::InForce, Some((since, error))) => {
                let since = span(since.elapsed());
                Some(format!("the journal at {shown} fails for {since}: {error}{waits}"))
            }
            (Phase::InForce, None) if time > SLOW_PUT => {
                Some(format!("a put of the journal at {shown} takes {}{waits}", span(time)))
            }
            (Phase::InForce, None) => None,
        }
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let left = self.tenure.left(system::since_boot()).unwrap_or_default();
        let (time, bytes) = self.lag();
        let course = self.course.lock();
        let status = &course.status;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        vec![
            ("journal", u64::from(course.phase == Phase::InForce && course.fails.is_none())),
            ("journal_in_force", u64::from(course.phase == Phase::InForce)),
            ("journal_generation", self.generation),
            ("journal_segment", status.number),
            ("journal_lease_left_nanos", nanos(left)),
            ("journal_lag_nanos", nanos(time)),
            ("journal_lag_bytes", bytes),
            ("journal_puts", status.puts),
            ("journal_put_hedges", status.hedges),
            ("journal_put_retries", status.retries),
            ("journal_bytes", status.bytes),
            ("journal_put_p50_nanos", nanos(status.put_p50)),
            ("journal_put_p99_nanos", nanos(status.put_p99)),
        ]
    }
}

fn failed(why: String) -> Error {
    Error::Io(std::io::Error::other(why))
}

/// The URL of a journal for people.
pub(crate) fn shown(url: &str) -> String {
    backups::without_options(url)
}

#[cfg(test)]
mod tests {
    use std::{io, thread};

    use meta::Beside as _;

    use super::*;

    fn ship(phase: Phase) -> Ship {
        let ship = Ship::new(
            "file:///store".to_owned(),
            3,
            Tenure::unbound(Some(Duration::from_secs(600))),
            (10, phase),
        );
        ship.course.lock().is_patient = true;
        ship
    }

    fn shipped(ship: &Ship, position: u64) {
        ship.shipped(position, WriterStatus::default());
    }

    #[test]
    fn a_sync_returns_when_the_journal_has_what_was_written_before_it() {
        let ship = ship(Phase::InForce);
        ship.wait(10).unwrap();
        assert_eq!(ship.target(), None);
        thread::scope(|scope| {
            let waits = scope.spawn(|| ship.wait(12));
            while ship.target().is_none() {
                thread::yield_now();
            }
            shipped(&ship, 11);
            assert!(!waits.is_finished() && ship.target() == Some(12));
            shipped(&ship, 12);
            waits.join().unwrap().unwrap();
        });
        assert_eq!(ship.target(), None);
    }

    #[test]
    fn a_journal_that_begins_holds_nobody_up_and_one_that_is_lost_lets_nobody_through() {
        let ship = ship(Phase::Begins);
        ship.wait(12).unwrap();
        assert_eq!((ship.target(), ship.unneeded()), (None, Some(12)));
        assert!(ship.problem().is_some_and(|why| why.contains("begins with the first base")));
        // From the base's position on, the log is needed.
        ship.base_begins();
        ship.wait(20).unwrap();
        assert_eq!(ship.unneeded(), None);
        ship.begins_after(15);
        assert_eq!((ship.target(), ship.problem()), (Some(20), None));
        // The disk has what was said to be stable, and a standby would not.
        assert!(!ship.has_lease());
        shipped(&ship, 19);
        assert!(!ship.has_lease());
        shipped(&ship, 20);
        assert!(ship.has_lease());
        thread::scope(|scope| {
            let waits = scope.spawn(|| ship.wait(21));
            while ship.course.lock().wanted < 21 {
                thread::yield_now();
            }
            ship.is_lost(&io::Error::other("another server owns it"));
            assert!(waits.join().unwrap().is_err());
        });
        assert!(ship.wait(1).is_err());
        let problem = ship.problem().unwrap();
        assert_eq!(problem, "the journal at file:///store is lost: another server owns it");
    }

    #[test]
    fn the_lag_is_that_of_the_oldest_change_that_is_not_there_yet() {
        let ship = ship(Phase::InForce);
        ship.written.store(500, Ordering::Relaxed);
        ship.course.lock().wanted = 20;
        ship.course.lock().wanted_bytes = 400;
        assert_eq!(ship.target(), Some(20));
        let since = ship.course.lock().target.unwrap().since;
        ship.course.lock().wanted = 30;
        shipped(&ship, 15);
        assert_eq!(ship.target(), Some(20), "the same one until it is there");
        assert_eq!(ship.course.lock().target.unwrap().since, since);
        assert_eq!(ship.lag().1, 500);
        shipped(&ship, 20);
        assert_eq!(ship.lag(), (Duration::ZERO, 100));
        assert_eq!(ship.target(), Some(30));
    }
}
