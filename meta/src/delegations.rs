//! Delegations: directories that one session looks at and changes without asking first.
//!
//! A mount is granted a directory with the answer to the mkdir that makes it, or when it asks for
//! one in which it works ([`grant`], [`existing`]). The session's later changes there arrive as
//! ordinary requests that name the delegation. Everybody else, the server's own steps included,
//! waits with a read or change of the directory's record and names until the session has given the
//! directory back ([`conflict`]). A session that is not heard of loses what others wait for
//! ([`run`]).
//!
//! * This file has the table, which is pure but for the waiting. `requests`: what sessions ask.
//!   `apply`: many changes of a session in one request.
//!
//! Always true: a directory has one holder or none. It gets one when it is made, or while
//! no other core has a group under way and no transaction has a part in it. While it has one, the
//! record of that is stored, so that a restart does not show what the holder has not sent.

pub(crate) mod apply;
pub(crate) mod conflict;
pub(crate) mod existing;
pub(crate) mod grant;
pub(crate) mod requests;
pub(crate) mod run;

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::{DirId, HashMap, SessionId, codec};
use bytes::Bytes;
use parking_lot::Mutex;
use store::Engine;
use tokio::{sync::Notify, time::Instant};
use wire::Grant;

pub(crate) use conflict::keeps_held;

use crate::{
    OpenError,
    record::{QuotaId, Record, key},
};

/// Most directories that one session holds.
const HELD_MAX: usize = 65_536;
/// Time for which nothing is granted after somebody has asked for all directories.
const QUIET: Duration = Duration::from_secs(30);

codec! {
    /// The session that holds a directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct DelegationRecord {
        pub session: SessionId,
    }
}

impl Record for DelegationRecord {}

/// A delegation that an operation is about to grant.
pub(crate) struct Granting {
    pub(crate) dir: DirId,
    pub(crate) grant: Grant,
}

/// The directories of this server that sessions hold.
#[derive(Default)]
pub(crate) struct Delegations {
    count: AtomicUsize,
    table: Mutex<Table>,
    /// Woken when a directory has no holder any more.
    ended: Notify,
    /// Woken when a directory is recalled.
    asked: Notify,
}

#[derive(Default)]
struct Table {
    dirs: HashMap<DirId, Holding>,
    sessions: HashMap<SessionId, Holder>,
    quiet_until: Option<Instant>,
}

/// A directory that is held.
struct Holding {
    session: SessionId,
    /// The time at which somebody first asked for the directory.
    recalled: Option<Instant>,
}

/// A session that holds directories, has held some, or asks for news.
///
/// Race: it stays until the session ends. A question for news that waits is woken by `told`, also
/// for directories that are granted and recalled after the session had given all back.
#[derive(Default)]
struct Holder {
    dirs: BTreeSet<DirId>,
    /// Directories that the session is to give back.
    recalled: BTreeSet<DirId>,
    /// Directories that were taken from it, until it says that it knows.
    revoked: BTreeSet<DirId>,
    /// Accounts whose limits were passed by what the session had done in its directories.
    passed: BTreeSet<QuotaId>,
    /// When the session last asked for news.
    asked: Option<Instant>,
    /// Whether the session was not told of some of them.
    is_news: bool,
    told: Arc<Notify>,
}

impl Delegations {
    /// Reads what sessions held when the server stopped.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Delegations, OpenError> {
        let held = Delegations::default();
        let prefix = key::delegations();
        engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
            let record = DelegationRecord::from_record(&Bytes::copy_from_slice(value));
            // The check reports a damaged record. Nobody can say what its holder has not sent.
            if let (Some(dir), Ok(record)) = (key::parse_delegation(key), record) {
                held.grant(dir, record.session);
            }
            ControlFlow::Continue(())
        })?;
        Ok(held)
    }

    /// Whether anybody holds anything.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The session that holds a directory.
    pub(crate) fn holder(&self, dir: DirId) -> Option<SessionId> {
        self.table.lock().dirs.get(&dir).map(|holding| holding.session)
    }

    /// Whether a session may be granted one more directory. `has_room` says whether an account has
    /// ample room.
    pub(crate) fn may_grant(&self, session: SessionId, has_room: impl Fn(QuotaId) -> bool) -> bool {
        let mut table = self.table.lock();
        let is_quiet = table.quiet_until.is_some_and(|until| Instant::now() < until);
        !is_quiet
            && table.sessions.get_mut(&session).is_none_or(|holder| {
                holder.passed.retain(|id| !has_room(*id));
                holder.dirs.len() < HELD_MAX && holder.passed.is_empty()
            })
    }

    /// A session has made more of an account than its limit allows, in directories that it holds: it
    /// is to give all of them back, and is granted none until there is room again.
    pub(crate) fn passed_limit(&self, session: SessionId, account: QuotaId) {
        self.table.lock().sessions.entry(session).or_default().passed.insert(account);
        self.of_session(session).into_iter().for_each(|dir| {
            self.recall(dir);
        });
    }

    /// A session holds a new directory.
    pub(crate) fn grant(&self, dir: DirId, session: SessionId) {
        let mut table = self.table.lock();
        table.dirs.insert(dir, Holding { session, recalled: None });
        let holder = table.sessions.entry(session).or_default();
        // News of one that had the id before is over.
        let was_wanted = holder.recalled.remove(&dir);
        holder.revoked.remove(&dir);
        if holder.dirs.is_empty() {
            // While it held nothing it had nothing to ask.
            holder.asked = None;
        }
        holder.dirs.insert(dir);
        self.count.store(table.dirs.len(), Ordering::Release);
        drop(table);
        if was_wanted {
            self.ended.notify_waiters();
        }
    }

    /// A directory is taken from a session, which is told so. Returns whether it had it.
    pub(crate) fn revoke(&self, dir: DirId, session: SessionId) -> bool {
        {
            let mut table = self.table.lock();
            let is_held = table.dirs.get(&dir).is_some_and(|holding| holding.session == session);
            if is_held && let Some(holder) = table.sessions.get_mut(&session) {
                holder.revoked.insert(dir);
                holder.is_news = true;
                holder.told.notify_waiters();
            }
        }
        self.end(dir, session)
    }

    /// A session says that it does not have a directory any more, or knows that it was taken.
    /// Returns whether it had it.
    pub(crate) fn given_back(&self, dir: DirId, session: SessionId) -> bool {
        {
            let mut table = self.table.lock();
            if let Some(holder) = table.sessions.get_mut(&session) {
                holder.revoked.remove(&dir);
            }
        }
        self.end(dir, session)
    }

    /// A session is over. Returns what it held.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<DirId> {
        let dirs = self.of_session(session);
        dirs.iter().for_each(|dir| {
            self.end(*dir, session);
        });
        if let Some(holder) = self.table.lock().sessions.remove(&session) {
            holder.told.notify_waiters();
        }
        dirs
    }

    /// A directory is not held by `session` any more. Returns whether it was.
    pub(crate) fn end(&self, dir: DirId, session: SessionId) -> bool {
        let mut table = self.table.lock();
        if table.dirs.get(&dir).is_none_or(|holding| holding.session != session) {
            return false;
        }
        table.dirs.remove(&dir);
        if let Some(holder) = table.sessions.get_mut(&session) {
            holder.dirs.remove(&dir);
            holder.recalled.remove(&dir);
        }
        self.count.store(table.dirs.len(), Ordering::Release);
        drop(table);
        self.ended.notify_waiters();
        true
    }

    /// The directories that a session holds.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<DirId> {
        let table = self.table.lock();
        table
            .sessions
            .get(&session)
            .map_or(Vec::new(), |holder| holder.dirs.iter().copied().collect())
    }

    /// The directories that a session is to give back, and those that were taken from it, if it was
    /// not told of some of them, or if `all` are asked for.
    pub(crate) fn recalled_from(&self, session: SessionId, all: bool) -> (Vec<DirId>, Vec<DirId>) {
        let mut table = self.table.lock();
        let Some(holder) = table.sessions.get_mut(&session) else { return Default::default() };
        holder.asked = Some(Instant::now());
        if !std::mem::take(&mut holder.is_news) && !all {
            return Default::default();
        }
        let list = |dirs: &BTreeSet<DirId>| dirs.iter().copied().collect();
        (list(&holder.recalled), list(&holder.revoked))
    }

    /// Time since a session last asked for news. `None`: it never has since the server started.
    fn silence_of(&self, session: SessionId) -> Option<Duration> {
        let table = self.table.lock();
        let asked = table.sessions.get(&session)?.asked?;
        Some(asked.elapsed())
    }

    /// Where a session is told that there are directories to give back; `None` when there are some
    /// already.
    fn news_of(&self, session: SessionId) -> Option<Arc<Notify>> {
        let mut table = self.table.lock();
        let holder = table.sessions.entry(session).or_default();
        (!holder.is_news).then(|| Arc::clone(&holder.told))
    }

    /// Asks the holder of a directory to give it back. Returns whether anybody holds it.
    pub(crate) fn recall(&self, dir: DirId) -> bool {
        let mut table = self.table.lock();
        let Table { dirs, sessions, .. } = &mut *table;
        let Some(holding) = dirs.get_mut(&dir) else { return false };
        if holding.recalled.is_none() {
            holding.recalled = Some(Instant::now());
            let holder = sessions.entry(holding.session).or_default();
            holder.recalled.insert(dir);
            holder.is_news = true;
            holder.told.notify_waiters();
            self.asked.notify_one();
        }
        true
    }

    /// Returns when nobody holds the directory, after it was recalled.
    pub(crate) async fn until_ended(&self, dir: DirId) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !self.recall(dir) {
                return;
            }
            ended.await;
        }
    }

    /// Recalls everything, and returns when nobody holds anything. Nothing is granted for a while.
    pub(crate) async fn gather(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let held: Vec<DirId> = {
                let mut table = self.table.lock();
                table.quiet_until = Some(Instant::now() + QUIET);
                table.dirs.keys().copied().collect()
            };
            if held.is_empty() {
                return;
            }
            held.into_iter().for_each(|dir| {
                self.recall(dir);
            });
            ended.await;
        }
    }

    /// The directories that were recalled, with their holders and since when.
    fn recalled(&self) -> Vec<(DirId, SessionId, Instant)> {
        let table = self.table.lock();
        let recalled = table
            .sessions
            .iter()
            .flat_map(|(session, holder)| holder.recalled.iter().map(move |dir| (*dir, *session)));
        let mut recalled: Vec<_> = recalled
            .filter_map(|(dir, session)| Some((dir, session, table.dirs.get(&dir)?.recalled?)))
            .collect();
        recalled.sort_unstable_by_key(|(dir, _, _)| *dir);
        recalled
    }

    /// Whether a directory was taken from a session, which has not said since that it knows.
    fn has_revoked(&self, session: SessionId) -> bool {
        let table = self.table.lock();
        table.sessions.get(&session).is_some_and(|holder| !holder.revoked.is_empty())
    }

    /// How many directories are held, and how many of them are recalled.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        let recalled = table.sessions.values().map(|holder| holder.recalled.len()).sum();
        (table.dirs.len(), recalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    #[tokio::test(start_paused = true)]
    async fn a_directory_is_recalled_once_and_told_until_it_is_given_back() {
        let held = Delegations::default();
        held.grant(DirId(7), ONE);
        held.grant(DirId(8), ONE);
        assert!(held.any() && held.holder(DirId(7)) == Some(ONE));
        let recalled = |all| held.recalled_from(ONE, all).0;
        assert!(recalled(true).is_empty());
        assert!(held.recall(DirId(7)) && held.recall(DirId(7)));
        assert_eq!(recalled(false), [DirId(7)]);
        assert!(recalled(false).is_empty(), "it was told");
        assert_eq!(recalled(true), [DirId(7)], "the answer may be lost");
        assert!(!held.end(DirId(7), OTHER));
        assert!(held.end(DirId(7), ONE) && !held.end(DirId(7), ONE));
        assert!(recalled(true).is_empty());
        assert_eq!(held.of_session(ONE), [DirId(8)]);
        assert!(held.end(DirId(8), ONE) && !held.any());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_is_told_until_the_session_knows() {
        let held = Delegations::default();
        held.grant(DirId(7), ONE);
        held.recall(DirId(7));
        assert!(!held.revoke(DirId(7), OTHER) && held.revoke(DirId(7), ONE));
        assert!(!held.any() && held.holder(DirId(7)).is_none());
        for all in [false, true] {
            assert_eq!(held.recalled_from(ONE, all), (Vec::new(), vec![DirId(7)]));
        }
        assert!(!held.given_back(DirId(7), ONE));
        assert_eq!(held.recalled_from(ONE, true), Default::default());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_when_the_directory_is_given_back() {
        let held = Delegations::default();
        held.grant(DirId(7), ONE);
        let waits = async {
            held.until_ended(DirId(7)).await;
            assert_eq!(held.holder(DirId(7)), None);
        };
        let gives_back = async {
            tokio::task::yield_now().await;
            assert_eq!(held.recalled_from(ONE, false).0, [DirId(7)]);
            held.end(DirId(7), ONE);
        };
        tokio::join!(waits, gives_back);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_waits_hears_of_what_came_after_everything_was_given_back() {
        let held = Delegations::default();
        held.grant(DirId(7), ONE);
        held.given_back(DirId(7), ONE);
        let told = held.news_of(ONE).expect("it waits also while the session holds nothing");
        let hears = told.notified();
        held.grant(DirId(8), ONE);
        assert_eq!(held.silence_of(ONE), None);
        held.recall(DirId(8));
        assert!(tokio::time::timeout(Duration::from_millis(1), hears).await.is_ok());
        assert_eq!(held.recalled_from(ONE, false).0, [DirId(8)]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_granted_for_a_while_after_everything_was_asked_for() {
        let held = Delegations::default();
        assert!(held.may_grant(ONE, |_| true));
        held.gather().await;
        assert!(!held.may_grant(ONE, |_| true));
        tokio::time::sleep(QUIET).await;
        assert!(held.may_grant(ONE, |_| true));
    }
}
