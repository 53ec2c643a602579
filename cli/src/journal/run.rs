//! The thread that ships: it reads the engine's log, and puts one segment after the other.

use std::{
    future::pending,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use ::journal::{Error, Header, Lease, Record, SEGMENT_BYTES, Trouble, Writer};
use anyhow::Context as _;
use store::{LogFollower, LogRecord};
use tokio::{sync::watch, time::sleep};

use super::{Based, Phase, Ship};
use crate::{data::JournalNote, system};

/// Interval at which it is looked whether the journal is too far behind.
const LAG_LOOK: Duration = Duration::from_millis(100);
/// Pause between two rounds of the removal of old segments.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// Idle time after which it is looked whether the journal belongs to another process.
const IDLE_LOOK: Duration = Duration::from_secs(5);
/// Time that the thread has at its end for a segment under way.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Part of a lease after which it is renewed.
const RENEWED_AFTER: u32 = 3;

/// The thread.
pub(crate) struct Journal {
    stop: watch::Sender<Stop>,
    thread: thread::JoinHandle<()>,
}

/// Whether the thread ends, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    No,
    /// Another server may begin at once.
    Resigning,
    /// The journal does not have all that was answered.
    Keeping,
}

/// The thread's belongings.
pub(super) struct Work {
    pub(super) ship: Arc<Ship>,
    pub(super) writer: Writer,
    pub(super) follower: LogFollower,
    pub(super) path: PathBuf,
    pub(super) note: JournalNote,
    /// Where this server is reached, for those who read the journal.
    pub(super) address: String,
    /// When the last segment was begun that renewed the lease, by the time since boot.
    pub(super) renewed: Duration,
}

impl Journal {
    pub(super) fn start(work: Work) -> anyhow::Result<Journal> {
        let (stop, mut stopped) = watch::channel(Stop::No);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("journal-io")
            .build()
            .context("cannot start a runtime")?;
        let run = move || {
            runtime.block_on(async move {
                let lag = Arc::clone(&work.ship);
                let watch = async {
                    loop {
                        sleep(LAG_LOOK).await;
                        lag.watch_lag();
                    }
                };
                let swept = Arc::clone(&work.ship);
                let sweep = async {
                    loop {
                        sleep(SWEEP_PERIOD).await;
                        swept.collect().await;
                    }
                };
                let work = work.run(stopped.clone());
                tokio::select! {
                    () = work => {}
                    () = watch => {}
                    () = sweep => {}
                    () = async {
                        // Everything was waited for, or is not to be had now.
                        let _ = stopped.wait_for(|stop| *stop != Stop::No).await;
                        sleep(END_TIMEOUT).await;
                    } => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("journal".to_owned()).spawn(run);
        Ok(Journal { stop, thread: thread.context("cannot start a thread")? })
    }

    /// Ends the thread. The server was stopped before, so nothing is written any more; where the
    /// journal has all that was answered, it `resigns`.
    pub(crate) fn stop(self, resigns: bool) {
        self.stop.send_replace(if resigns { Stop::Resigning } else { Stop::Keeping });
        // A panic was logged.
        let _ = self.thread.join();
    }
}

impl Work {
    /// Ships for as long as the journal belongs to this process, and until the thread ends.
    async fn run(mut self, mut stopped: watch::Receiver<Stop>) {
        let mut based = self.ship.based.subscribe();
        based.mark_unchanged();
        loop {
            let stop = *stopped.borrow_and_update();
            if stop != Stop::No {
                return self.end(stop).await;
            }
            let done = self.round(&mut based, &mut stopped).await;
            if let Err(error) = done {
                self.ship.is_lost(&error);
                return pending().await;
            }
        }
    }

    /// Gives the lease up.
    async fn end(&mut self, stop: Stop) {
        if stop != Stop::Resigning || self.ship.tenure.millis() == 0 {
            return;
        }
        self.tell_lease(true);
        self.ship.tenure.resign();
        let renewed = self.writer.renew(&|_| ()).await;
        if let Err(error) = renewed {
            tracing::debug!(error = base::error::describe(&error), "the lease was not given up");
        }
    }

    /// Has segments tell of the lease as it is.
    fn tell_lease(&mut self, resigned: bool) {
        let (millis, address) = (self.ship.tenure.millis(), self.address.clone());
        self.writer.set_lease(Lease { millis, resigned, address });
    }

    /// Renews the lease when a part of it has passed.
    async fn renewal_is_due(&self) {
        match self.ship.tenure.lease().filter(|_| self.ship.tenure.millis() > 0) {
            Some(lease) => {
                let due = self.renewed + lease / RENEWED_AFTER;
                sleep(due.saturating_sub(system::since_boot())).await;
            }
            None => pending().await,
        }
    }

    async fn renew(&mut self) -> Result<(), Fault> {
        let begun = system::since_boot();
        self.tell_lease(false);
        let ship = Arc::clone(&self.ship);
        let told = |trouble: Trouble<'_>| ship.tell(&trouble);
        let appended = self.writer.renew(&told).await?;
        self.is_stored(begun, appended.renews);
        self.ship.shipped(appended.last, self.writer.status());
        Ok(())
    }

    /// A segment is stored by a call that began then.
    fn is_stored(&mut self, begun: Duration, renews: bool) {
        if renews {
            self.renewed = begun;
            self.ship.tenure.extend(begun);
        }
    }

    async fn round(
        &mut self,
        based: &mut watch::Receiver<Based>,
        stopped: &mut watch::Receiver<Stop>,
    ) -> Result<(), Fault> {
        if based.has_changed().unwrap_or(false) {
            let based = *based.borrow_and_update();
            self.base_made(based)?;
        }
        if let Some(target) = self.ship.target() {
            return self.step(target).await;
        }
        // Logs are kept for as long as they are not read.
        while let Some(to) = self.ship.unneeded().filter(|to| *to >= self.follower.next()) {
            self.follower.read(to, SEGMENT_BYTES)?;
        }
        let ship = Arc::clone(&self.ship);
        let renewed = tokio::select! {
            biased;
            () = ship.wake.notified() => false,
            _ = stopped.changed() => {
                stopped.mark_changed();
                false
            }
            _ = based.changed() => {
                based.mark_changed();
                false
            }
            () = self.renewal_is_due() => true,
            looked = async {
                sleep(IDLE_LOOK).await;
                self.look().await
            } => {
                looked?;
                false
            }
        };
        if renewed { self.renew().await } else { Ok(()) }
    }

    /// Puts the next segment.
    async fn step(&mut self, target: u64) -> Result<(), Fault> {
        let records = records(self.follower.read(target, SEGMENT_BYTES)?);
        let ship = Arc::clone(&self.ship);
        let told = |trouble: Trouble<'_>| ship.tell(&trouble);
        let begun = system::since_boot();
        self.tell_lease(false);
        let appended = self.writer.append(&records, &told).await?;
        self.is_stored(begun, appended.renews);
        // Records that were applied at the start were in the journal before, and in the log after.
        let reached = appended.last.max(self.follower.next() - 1);
        self.ship.shipped(reached, self.writer.status());
        Ok(())
    }

    /// A base of this generation is complete: the journal may begin after it.
    fn base_made(&mut self, based: Based) -> Result<(), Fault> {
        let Based { covered, segment } = based;
        self.writer.base_made(covered);
        (self.note.note.segment, self.note.note.base) = (segment, covered.base);
        self.note.note.position = covered.position;
        if let Err(error) = self.note.write(&self.path) {
            tracing::warn!(
                error = format!("{error:#}"),
                "the journal is kept from an older base on"
            );
        } else {
            self.ship.noted.store(segment, Ordering::Release);
        }
        if self.ship.course.lock().phase == Phase::Begins {
            while self.follower.next() <= covered.position {
                self.follower.read(covered.position, SEGMENT_BYTES)?;
            }
            self.ship.begins_after(covered.position);
        }
        Ok(())
    }

    /// Looks whether another process has put the next segment.
    async fn look(&self) -> Result<(), Fault> {
        let next = self.writer.end().number + 1;
        match self.writer.journal().read(next).await {
            Ok(Some(found)) => {
                let Header { number, generation, run, .. } = found.header;
                Err(Error::Fenced { number, generation, run }.into())
            }
            Ok(None) => Ok(()),
            // An absent store is seen by who needs it.
            Err(error) if error.is_passing() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why a process cannot go on with its journal.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Journal(#[from] Error),
    #[error(transparent)]
    Log(#[from] store::Error),
}

/// The records of a log as a segment has them.
pub(super) fn records(read: Vec<LogRecord>) -> Vec<Record> {
    let record = |read: LogRecord| Record {
        sequence: read.first,
        count: read.count,
        batch: read.bytes.into(),
    };
    read.into_iter().map(record).collect()
}
