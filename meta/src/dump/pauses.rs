//! The pause of a server in memory, and what it waits for.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Time limit for moving names to arrive.
const GATHERED_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for changes to wait.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Why a step of a dump finds no pause of it.
#[derive(Debug)]
pub(crate) enum NoPause {
    /// Another dump is made.
    Busy,
    /// The pause has ended, or has not begun here.
    Over,
}

/// The pause of this server, if any, and what it waits for.
#[derive(Default)]
pub(crate) struct Pauses {
    /// Whether changes wait.
    pub(super) holds: AtomicBool,
    pub(super) table: Mutex<Table>,
    changed: Notify,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) current: Option<Pause>,
    pub(super) under_way: Counts,
    /// The latest dump that was ended here before it began: the request to begin may still arrive.
    ended: Option<u64>,
}

/// Numbers of things in progress that were begun here.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) transactions: usize,
    pub(super) handoffs: usize,
}

pub(super) struct Pause {
    pub(super) dump: u64,
    /// The time when the pause ends by itself.
    pub(super) until: Instant,
    /// Whether changes wait; before that only handoffs do.
    holds: bool,
}

/// Something that a pause waits for; it has ended when this is dropped.
pub(crate) struct UnderWay<'a> {
    pauses: &'a Pauses,
    count: fn(&mut Counts) -> &mut usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *(self.count)(&mut self.pauses.table.lock().under_way) -= 1;
        self.pauses.changed.notify_waiters();
    }
}

impl Pauses {
    /// Whether changes wait.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }

    /// Whether somebody has begun a pause, whether or not changes wait already.
    pub(crate) fn are_any(&self) -> bool {
        self.table.lock().current.is_some()
    }

    /// Returns when changes go on.
    pub(crate) async fn over(&self) {
        self.until(|_| !self.holds()).await;
    }

    /// Begins a transaction over several servers, as soon as it may.
    pub(crate) async fn transaction(&self) -> UnderWay<'_> {
        loop {
            if let Some(begun) = self.transaction_now() {
                return begun;
            }
            self.over().await;
        }
    }

    /// Like [`Pauses::transaction`]; `None` if changes wait.
    pub(crate) fn transaction_now(&self) -> Option<UnderWay<'_>> {
        let mut table = self.table.lock();
        // Race: a transaction that is counted before this lock is taken is waited for; a later one
        // sees that changes wait.
        (!self.holds()).then(|| self.begun(&mut table, |counts| &mut counts.transactions))
    }

    /// Begins a handoff; `None` if there is a pause.
    pub(crate) fn handoff(&self) -> Option<UnderWay<'_>> {
        let mut table = self.table.lock();
        let free = table.current.is_none();
        free.then(|| self.begun(&mut table, |counts| &mut counts.handoffs))
    }

    fn begun(&self, table: &mut Table, count: fn(&mut Counts) -> &mut usize) -> UnderWay<'_> {
        *count(&mut table.under_way) += 1;
        UnderWay { pauses: self, count }
    }

    /// Begins a pause: from now on no handoff begins. `Busy` when another dump is made.
    pub(crate) fn begin(&self, dump: u64) -> Result<Instant, NoPause> {
        let mut table = self.table.lock();
        if table.current.as_ref().is_some_and(|pause| pause.dump != dump) {
            return Err(NoPause::Busy);
        }
        if table.ended == Some(dump) {
            return Err(NoPause::Over);
        }
        let until = Instant::now() + GATHERED_WITHIN;
        let begun = Pause { dump, until, holds: false };
        Ok(table.current.get_or_insert(begun).until)
    }

    /// Makes changes wait from now on.
    pub(crate) fn hold(&self, dump: u64) -> Result<Instant, NoPause> {
        let mut table = self.table.lock();
        let pause =
            table.current.as_mut().filter(|pause| pause.dump == dump).ok_or(NoPause::Over)?;
        if !pause.holds {
            pause.holds = true;
            pause.until = Instant::now() + PAUSE_MAX;
            self.holds.store(true, Ordering::SeqCst);
        }
        Ok(pause.until)
    }

    /// The time until which changes wait for this dump.
    pub(crate) fn held_until(&self, dump: u64) -> Result<Instant, NoPause> {
        let table = self.table.lock();
        let held = table.current.as_ref().filter(|pause| pause.dump == dump && pause.holds);
        held.map(|pause| pause.until).ok_or(NoPause::Over)
    }

    /// Ends the pause; `true` if changes have waited until now.
    pub(crate) fn end(&self, dump: u64) -> bool {
        let mut table = self.table.lock();
        let Some(pause) = table.current.take_if(|pause| pause.dump == dump) else {
            table.ended = Some(dump);
            return false;
        };
        self.holds.store(false, Ordering::SeqCst);
        drop(table);
        self.changed.notify_waiters();
        pause.holds && Instant::now() < pause.until
    }

    pub(super) async fn until(&self, is_so: impl Fn(&Table) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&self.table.lock()) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_under_way_is_waited_for_and_nobody_else_begins() {
        let pauses = Pauses::default();
        let first = pauses.transaction().await;
        let names = pauses.handoff().unwrap();
        pauses.begin(7).unwrap();
        assert!(pauses.handoff().is_none(), "no names begin to move");
        drop(names);
        let second = pauses.transaction().await;
        assert!(!pauses.holds());
        assert!(pauses.held_until(7).is_err(), "nothing waits yet");

        pauses.hold(7).unwrap();
        assert!(pauses.holds() && pauses.transaction_now().is_none());
        let third = pauses.transaction();
        tokio::pin!(third);
        assert!(futures::poll!(third.as_mut()).is_pending());
        let quiet = pauses.until(|table| table.under_way.transactions == 0);
        tokio::pin!(quiet);
        drop(first);
        assert!(futures::poll!(quiet.as_mut()).is_pending());
        drop(second);
        quiet.await;
        assert!(futures::poll!(third.as_mut()).is_pending());
        assert!(pauses.end(7), "all has waited until now");
        drop(third.await);
        assert!(pauses.handoff().is_some());
        assert!(!pauses.end(7), "it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_late_hears_that_changes_have_not_waited() {
        let pauses = Pauses::default();
        assert!(pauses.hold(7).is_err(), "it has not begun here");
        pauses.begin(7).unwrap();
        assert!(matches!(pauses.begin(8), Err(NoPause::Busy)));
        let until = pauses.hold(7).unwrap();
        sleep(PAUSE_MAX / 2).await;
        assert_eq!(pauses.hold(7).unwrap(), until, "to be told again does not make it longer");
        sleep(PAUSE_MAX).await;
        assert!(!pauses.end(7) && !pauses.holds());
        // A dump that was given up before it began does not begin.
        assert!(!pauses.end(9));
        assert!(pauses.begin(9).is_err());
        assert!(pauses.begin(10).is_ok());
    }
}
