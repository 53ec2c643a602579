//! The lease of what is held, recalls, and giving directories back.
//!
//! A client that holds anything of a server always has a question with it, which is answered when
//! directories are recalled, and after a second otherwise. The answer tells that the server knew of
//! this client after the question was sent: until a lease after that it takes nothing back. The
//! time is that of two clocks, of which one goes on while the machine sleeps.
//!
//! A directory is given back when everything of it is sent. That waits for nothing but the answers
//! to what is sent.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::{DirId, Time};
use futures::future::join_all;
use parking_lot::MutexGuard;
use tokio::time::{Instant, sleep};
use wire::{Reply, Request, Return};

use super::{
    Delegating, Table,
    dir::{HeldDir, Phase},
};
use crate::{Error, route::Route, runs::Run};

/// Pause before directories that nobody works in are given back: others may come to them.
const RETURN_PAUSE: Duration = Duration::from_millis(10);
/// Most directories that are given back at a time.
const RETURNS_MAX: usize = 1024;
/// Pause before a server is asked again that did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The time until which the server takes nothing back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    asked: Instant,
    asked_at: Time,
    lasts: Duration,
    /// By how many nanoseconds the server's clock is ahead of this one, at least.
    ahead: Option<i64>,
    /// A task asks the server for recalls.
    pub(super) polls: bool,
}

const NANOS: i128 = 1_000_000_000;

fn nanos(time: Time) -> i128 {
    i128::from(time.sec) * NANOS + i128::from(time.nsec)
}

impl Lease {
    /// A lease from now on, of unknown length.
    pub(super) fn begins(at: Time) -> Lease {
        let asked = Instant::now();
        Lease { asked, asked_at: at, lasts: Duration::ZERO, ahead: None, polls: false }
    }

    /// The lease that the server has told of in its answer. A part is left for clocks that do not
    /// run equally fast.
    pub(super) fn of(self, lease: Duration) -> Lease {
        Lease { lasts: lease - lease / 5, ..self }
    }

    /// Takes in a later one.
    pub(super) fn extend(&mut self, later: Lease) {
        if later.asked >= self.asked {
            *self = Lease { polls: self.polls, ahead: self.ahead, ..later };
        }
    }

    /// The server's clock was at `server` when it answered; now this one is at `own`.
    pub(super) fn hears(&mut self, server: Time, own: Time) {
        let ahead = i64::try_from(nanos(server) - nanos(own)).unwrap_or(0);
        self.ahead = Some(self.ahead.map_or(ahead, |known| known.max(ahead)));
    }

    /// The time at the server, or a little before, when this clock is at `own`.
    pub(super) fn time_of(&self, own: Time) -> Time {
        let at = nanos(own) + i128::from(self.ahead.unwrap_or(0));
        let (sec, nsec) = (at.div_euclid(NANOS), at.rem_euclid(NANOS));
        match (i64::try_from(sec), u32::try_from(nsec)) {
            (Ok(sec), Ok(nsec)) => Time { sec, nsec },
            _ => own,
        }
    }

    pub(super) fn is_over(&self, now: Time) -> bool {
        // A clock that was set back says nothing.
        let passed = (nanos(now) - nanos(self.asked_at)).max(0);
        let lasts = i128::try_from(self.lasts.as_nanos()).unwrap_or(i128::MAX);
        self.asked.elapsed() >= self.lasts || passed >= lasts
    }
}

impl Delegating {
    /// Whether a directory may be answered for from here. Waits while that is not known, and while
    /// the directory is given back.
    pub(super) async fn is_live(&self, held: &Arc<HeldDir>) -> bool {
        loop {
            let (changed, of_dir) = (self.shared.changed.notified(), held.changed.notified());
            tokio::pin!(changed, of_dir);
            changed.as_mut().enable();
            of_dir.as_mut().enable();
            let phase = held.state.lock().phase;
            match phase {
                Phase::Over => return false,
                Phase::Returning => {}
                Phase::Leaving => self.settles_removal(held),
                Phase::Held => {
                    let lease = self.shared.table.lock().leases.get(&held.run.server).copied();
                    if lease.is_some_and(|lease| !lease.is_over(self.now())) {
                        return true;
                    }
                }
            }
            tokio::select! {
                () = changed => {}
                () = of_dir => {}
            }
        }
    }

    /// Asks a server for recalls, for as long as anything of it is held.
    pub(super) fn listen(&self, server: u16) {
        let this = self.clone();
        self.core.spawn(async move {
            loop {
                let asked = Lease::begins(this.now());
                let request = Request::Recalls;
                let answer = this.core.ask(&this.cred, Route::Server(server), request).await;
                let (recalled, run) = match answer {
                    Ok(done) => match done.reply {
                        Reply::Recalled(recalled) => (recalled, done.run),
                        _ => return this.lose_all(server),
                    },
                    Err(Error::Closed | Error::Refused(_) | Error::TokenExpired) => {
                        return this.lose_all(server);
                    }
                    Err(_) => {
                        sleep(RETRY_PAUSE).await;
                        continue;
                    }
                };
                this.revoked(server, &recalled.revoked, asked.asked);
                this.heard(asked, run, recalled.now);
                this.recalled(server, &recalled.dirs);
                let mut table = this.shared.table.lock();
                if !table.dirs.values().any(|held| held.run.server == server) {
                    table.leases.remove(&server);
                    return;
                }
            }
        });
    }

    /// A server has answered: the lease is longer. What another session held is lost; what another
    /// run of the server has granted is given back, as that run may have lost what it had answered.
    fn heard(&self, asked: Lease, run: Run, now: Time) {
        let clock = self.now();
        let of_server: Vec<_> = {
            let mut table = self.shared.table.lock();
            if let Some(lease) = table.leases.get_mut(&run.server) {
                lease.extend(Lease { lasts: lease.lasts, ..asked });
                lease.hears(now, clock);
            }
            table.dirs.values().filter(|held| held.run.server == run.server).cloned().collect()
        };
        for held in of_server {
            if held.run.life != run.life {
                self.lose(&held);
            } else if held.run.incarnation != run.incarnation {
                self.give_back_soon(&held);
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Directories were taken from this client, as the answer to a question of `asked` tells.
    fn revoked(&self, server: u16, dirs: &[DirId], asked: Instant) {
        for dir in dirs {
            match self.held_or_granted(*dir) {
                // Race: one of the same id may have been taken that was before this one.
                Some(held) if held.granted >= asked => self.give_back_soon(&held),
                Some(held) => self.lose(&held),
                None => self.give_back_later(server, *dir),
            }
        }
    }

    /// A directory that the server has recalled or taken, if it is held. Otherwise its grant may be on
    /// its way, and is not taken.
    fn held_or_granted(&self, dir: DirId) -> Option<Arc<HeldDir>> {
        let mut table = self.shared.table.lock();
        let held = table.dirs.get(&dir).cloned();
        if held.is_none() {
            table.visits.spoil(dir);
            if table.wishes > 0 {
                table.touched.insert(dir);
            }
        }
        held
    }

    fn recalled(&self, server: u16, dirs: &[DirId]) {
        for dir in dirs {
            match self.held_or_granted(*dir) {
                Some(held) => {
                    if !self.shared.eager {
                        self.shared.table.lock().visits.recalled(*dir, Instant::now());
                    }
                    self.shared.counters.recalled.fetch_add(1, Ordering::Relaxed);
                    self.give_back_soon(&held);
                }
                // The directory was given back already, or its grant never came, or is on its way.
                None => {
                    let mut table = self.shared.table.lock();
                    if table.visits.is_asked_for(*dir) && !self.shared.eager {
                        table.visits.recalled(*dir, Instant::now());
                    }
                    self.queue_return(table, server, *dir);
                }
            }
        }
    }

    fn lose_all(&self, server: u16) {
        let of_server: Vec<_> = {
            let mut table = self.shared.table.lock();
            table.leases.remove(&server);
            table.dirs.values().filter(|held| held.run.server == server).cloned().collect()
        };
        of_server.iter().for_each(|held| self.lose(held));
    }

    /// Gives a directory back in the background. Programs wait from now on.
    pub(super) fn give_back_soon(&self, held: &Arc<HeldDir>) {
        if !self.begins_to_return(held) {
            return self.settles_removal(held);
        }
        let (this, held) = (self.clone(), Arc::clone(held));
        self.core.spawn(async move { this.give_back_now(&held).await });
    }

    /// Has the removal of a directory sent, if it is about to be.
    fn settles_removal(&self, held: &HeldDir) {
        let (this, ino) = (self.clone(), held.dir.ino);
        self.core.spawn(async move { this.settle_removal(ino).await });
    }

    fn begins_to_return(&self, held: &HeldDir) -> bool {
        let mut state = held.state.lock();
        let begins = state.phase == Phase::Held;
        if begins {
            state.phase = Phase::Returning;
        }
        begins
    }

    /// Gives a directory back, and returns when that is done.
    pub(super) async fn give_back(&self, held: &Arc<HeldDir>) {
        self.give_back_soon(held);
        held.until(|state| state.phase == Phase::Over).await;
    }

    /// Gives everything back, and asks for nothing more.
    pub(super) async fn stop(&self) {
        if !self.shared.stopped.swap(true, Ordering::AcqRel) && self.shared.on {
            tracing::warn!(
                "somebody uses file handles of this mount, perhaps an NFS server: each change is \
                 sent to the server at once from now on, as with delegations=off"
            );
            self.give_back_everything().await;
        }
    }

    /// Gives everything back, and returns when that is done.
    pub(super) async fn give_back_everything(&self) {
        let dirs: Vec<_> = self.shared.table.lock().dirs.values().cloned().collect();
        join_all(dirs.iter().map(|held| self.give_back(held))).await;
    }

    async fn give_back_now(&self, held: &Arc<HeldDir>) {
        self.settle_upto(held, None, u64::MAX).await;
        if held.state.lock().phase == Phase::Over {
            return;
        }
        // Programs that have files open go on writing; what they write stands on nothing from now
        // on, and what stands on the delegation is answered before it ends.
        let files = held.state.lock().files();
        for ino in files {
            if let Some(state) = self.core.files.unopened(ino) {
                self.open_there_or_lose(&state).await;
            }
            if let Some(state) = self.core.files.is_held(ino, None) {
                self.client.flush_state(&state).await;
            }
        }
        {
            let mut table = self.shared.table.lock();
            // Race: the directory may have been lost, and another one of its id may be held.
            if !table.has(held) {
                drop(table);
                return self.forget(held);
            }
            table.returns_begin(std::iter::once(held.dir.id));
        }
        self.send_returns(held.run.server, vec![held.dir.id]).await;
        self.forget(held);
    }

    /// Forgets a directory that is gone or lost, and has the server know.
    pub(super) fn gives_up(&self, held: &HeldDir) {
        self.forget(held);
        self.give_back_later(held.run.server, held.dir.id);
    }

    /// Gives a directory back that nobody works in, together with others.
    pub(super) fn give_back_later(&self, server: u16, dir: DirId) {
        self.queue_return(self.shared.table.lock(), server, dir);
    }

    /// Like [`Delegating::give_back_later`], for a caller that has looked at the table.
    pub(super) fn queue_return(&self, mut table: MutexGuard<'_, Table>, server: u16, dir: DirId) {
        if let Some(returns) = table.returns.get_mut(&server) {
            return returns.push(dir);
        }
        table.returns.insert(server, vec![dir]);
        drop(table);
        let this = self.clone();
        self.core.spawn(async move {
            loop {
                sleep(RETURN_PAUSE).await;
                let due = {
                    let mut table = this.shared.table.lock();
                    let due = table.returns.get_mut(&server).map(std::mem::take);
                    let Some(due) = due.filter(|due| !due.is_empty()) else {
                        table.returns.remove(&server);
                        return;
                    };
                    table.returns_begin(due.iter().copied());
                    due
                };
                for dirs in due.chunks(RETURNS_MAX) {
                    this.send_returns(server, dirs.to_vec()).await;
                }
            }
        });
    }

    /// Gives directories back, which `returns_begin` has noted.
    async fn send_returns(&self, server: u16, dirs: Vec<DirId>) {
        let request = Request::Return(Return { dirs: dirs.clone() });
        let answered = self.core.ask(&self.cred, Route::Server(server), request).await;
        self.shared.table.lock().returns_end(dirs);
        if let Err(error) = answered {
            // The end of the session gives them back.
            tracing::debug!(server, %error, "directories were not given back");
        }
    }
}
