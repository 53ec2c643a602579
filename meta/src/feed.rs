//! The change feed: a record of what has changed, for those who watch a directory.
//!
//! An operation that commits has its changes described ([`events`]) from the records that it has
//! written and the request that asked for it. They are facts of the group. A follower
//! ([`recorder`]) numbers them and has them written with it, so a change is in the feed when it is
//! in the tree, and at no other time. A watcher's request ([`watch`]) reads the records after a
//! position, finds the path of each, and leaves out what the caller may not see. [`run`] switches
//! the feed on and off, and removes its oldest records.
//!
//! Each server records what is stored on it: names with the partition that has them. So the order of
//! a server's feed is that of its commits, and changes of one name are in their order wherever the
//! name is looked at.
//!
//! A position is the number of a run of the feed and the number of a change in it. A run begins when
//! the server starts, or switches the feed on. A power failure may take back changes that a watcher
//! has seen already; their numbers are not used again, so the server can tell.
//!
//! Always true: a position up to which changes may be told has no change before it that is still to
//! be written.
//!
//! Cost: nothing while nobody watches but a look at a flag for each commit; otherwise a look at each
//! record that an operation writes and one record of some 60 bytes for each change, in the batch of
//! the group.

pub(crate) mod events;
pub(crate) mod record;
pub(crate) mod recorder;
pub(crate) mod run;
pub(crate) mod watch;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
};

use base::{DirId, EntryName, FileKind, Ino, SessionId, Time};
use bytes::Bytes;
use parking_lot::Mutex;
use store::{Batch, Engine};
use tokio::sync::{Notify, watch as channel};
use wire::{Change, FileRef};

pub(crate) use self::record::{Event, FeedState, Logged, Past};
use crate::{
    OpenError,
    bugs::{Bug, Planted},
    record::{Record as _, key},
};

/// Most files of which a server remembers that they were written and not closed. The close of any
/// other is told with each write.
const OPEN_MAX: usize = 1 << 16;

/// The feed of a server.
pub(crate) struct Feed {
    is_on: AtomicBool,
    /// Whether all that is committed from now on is recorded, so that watchers may be told.
    is_open: AtomicBool,
    state: Mutex<State>,
    /// The last position up to which changes may be told.
    told: channel::Sender<u64>,
    /// Somebody waits for the feed to be switched on.
    wanted: Notify,
    /// The files that sessions have written and not closed.
    open_files: Mutex<BTreeMap<(Ino, SessionId), Named>>,
}

#[derive(Default)]
struct State {
    stored: FeedState,
    /// The position that the next change gets.
    next: u64,
    /// The first position of each group that is being written, with its core.
    writing: Vec<(usize, u64)>,
}

/// A name in a directory, with the directory's number and home.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    dir: DirId,
    dir_ino: Ino,
    dir_home: DirId,
    name: EntryName,
}

impl Named {
    /// A change of the name.
    fn event(self, change: Change, time: Time, ino: Ino, kind: Option<FileKind>) -> Event {
        let Named { dir, dir_ino, dir_home, name } = self;
        Event { change, time, dir, dir_ino, dir_home, name: Some(name), ino, kind }
    }
}

/// The close of a file that was written, unless the file has no name.
fn close_of(ino: Ino, named: Named, time: Time) -> Option<Logged> {
    let event = named.event(Change::Written, time, ino, Some(FileKind::File));
    (!event.is_of_nothing()).then_some(Logged::Event(event))
}

impl From<&FileRef> for Named {
    fn from(file: &FileRef) -> Named {
        let FileRef { dir, name, .. } = file;
        Named { dir: dir.id, dir_ino: dir.ino, dir_home: dir.home, name: name.clone() }
    }
}

/// How a position stands to a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All changes after it are kept.
    Whole,
    /// Changes after it are gone, or it is a position of something else.
    Gap,
    /// All, if the change at that position is still there.
    IfKept,
}

/// The first position of a run; no change has it.
fn begin_of(run: u32) -> u64 {
    u64::from(run) << 32
}

/// The run of a position.
fn run_of(position: u64) -> u64 {
    position >> 32
}

/// The last position in the feed that is stored ([`Bug::FeedRunKept`]).
fn last_of(engine: &dyn Engine) -> store::Result<Option<u64>> {
    let (prefix, mut last) = (key::feed(), None);
    engine.scan(&prefix, &key::end_of(&prefix), &mut |at, _| {
        last = key::parse_feed_event(at).or(last);
        ControlFlow::Continue(())
    })?;
    Ok(last)
}

/// The changes of the last run that were written, and some before them were not: each core writes
/// for itself, and the power has failed. They get new positions: their old ones may have been told
/// with those that are lost.
fn after_holes(engine: &dyn Engine, stored: &FeedState) -> store::Result<Vec<(u64, Bytes)>> {
    let (mut next, mut found) = (stored.whole + 1, Vec::new());
    let to = key::feed_event(begin_of(stored.run.saturating_add(1)));
    engine.scan(&key::feed_event(next), &to, &mut |at, record| {
        let Some(position) = key::parse_feed_event(at) else { return ControlFlow::Continue(()) };
        if position == next {
            next += 1;
        } else {
            found.push((position, Bytes::copy_from_slice(record)));
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

impl Feed {
    /// Reads the state of the feed, and begins a run if it is on.
    ///
    /// Cost: a read, and while somebody watches a scan of the changes of the last seconds.
    pub(crate) fn load(engine: &dyn Engine, now: Time, bugs: Planted) -> Result<Feed, OpenError> {
        let feed = Feed {
            is_on: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            state: Mutex::default(),
            told: channel::Sender::new(0),
            wanted: Notify::new(),
            open_files: Mutex::default(),
        };
        let Some(stored) = engine.get(&key::feed())? else { return Ok(feed) };
        let stored = FeedState::from_record(&stored)?;
        if now >= stored.until {
            feed.begin(stored, begin_of(stored.run));
            return Ok(feed);
        }
        let (mut batch, mut begun) = (Batch::new(), stored.begun(now));
        let mut last = begin_of(begun.run);
        if bugs.has(Bug::FeedRunKept) {
            last = last_of(engine)?.unwrap_or(last);
            begun.run = u32::try_from(run_of(last)).unwrap_or_default();
        } else {
            for (position, record) in after_holes(engine, &stored)? {
                last += 1;
                batch.delete(&key::feed_event(position));
                batch.put(&key::feed_event(last), &record);
            }
        }
        begun.whole = last;
        batch.put(&key::feed(), &begun.to_record());
        engine.write(batch)?;
        feed.begin(begun, last);
        feed.record();
        feed.open();
        Ok(feed)
    }

    /// Whether changes are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether all changes are recorded, and told.
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Begins the run that is stored, in which `last` is the last position.
    fn begin(&self, stored: FeedState, last: u64) {
        let mut state = self.state.lock();
        *state = State { stored, next: last + 1, writing: Vec::new() };
        self.told.send_replace(last);
    }

    /// Records changes from now on. Commit groups that are under way may have some that are not
    /// recorded.
    fn record(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Lets watchers be told: all that is not recorded is written.
    fn open(&self) {
        self.is_open.store(true, Ordering::Release);
        self.told.send_modify(|_| ());
    }

    /// Stops recording. Groups that are under way may still write what they have.
    fn end(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.is_on.store(false, Ordering::Relaxed);
        self.open_files.lock().clear();
        self.told.send_modify(|_| ());
    }

    /// Gives the changes of a core positions; returns the first.
    fn number(&self, core: usize, count: usize) -> u64 {
        let mut state = self.state.lock();
        let first = state.next;
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        state.next += count;
        state.stored.count += count;
        state.writing.push((core, first));
        first
    }

    /// Notes that the changes of a core are written, and lets them be told.
    fn written(&self, core: usize) {
        let mut state = self.state.lock();
        state.writing.retain(|(writing, _)| *writing != core);
        let first = state.writing.iter().map(|(_, first)| *first).min();
        let told = first.unwrap_or(state.next) - 1;
        // Under the lock, so that it never goes back.
        self.told.send_if_modified(|before| {
            let is_later = told > *before;
            *before = told.max(*before);
            is_later
        });
    }

    /// The last position up to which changes may be told.
    fn told(&self) -> u64 {
        *self.told.borrow()
    }

    /// Whether the changes after a position are all kept.
    fn reach(&self, since: u64) -> Reach {
        let told = self.told();
        let state = self.state.lock();
        if since < state.stored.pruned || since > told {
            return Reach::Gap;
        }
        let is_begin = since == begin_of(u32::try_from(run_of(since)).unwrap_or(u32::MAX));
        let is_present = run_of(since) == u64::from(state.stored.run);
        if is_present || is_begin || since == state.stored.pruned {
            Reach::Whole
        } else {
            Reach::IfKept
        }
    }

    /// Notes that somebody watches at `now`, and may come back for `keep_secs`.
    fn watched(&self, now: Time, keep_secs: u32) {
        let until = Time { sec: now.sec.saturating_add(i64::from(keep_secs)), ..now };
        let mut state = self.state.lock();
        state.stored.until = state.stored.until.max(until);
    }

    /// Notes that a session has written a file, whose close it will tell this server. A name that
    /// `is_sure` takes the place of one that was noted before. Returns whether the close will be
    /// noticed.
    fn opened(&self, session: SessionId, ino: Ino, named: Named, is_sure: bool) -> bool {
        let mut open = self.open_files.lock();
        let at = (ino, session);
        if !open.contains_key(&at) {
            let has_room = open.len() < OPEN_MAX;
            if has_room {
                open.insert(at, named);
            }
            return has_room;
        }
        if is_sure {
            open.insert(at, named);
        }
        true
    }

    /// Notes that a name is gone for good: nothing is told under it any more.
    fn removed(&self, ino: Ino, named: &Named) {
        let mut open = self.open_files.lock();
        let all = (ino, SessionId(0))..=(ino, SessionId(u64::MAX));
        let of_name = open.range(all).filter(|(_, known)| *known == named);
        let of_name: Vec<_> = of_name.map(|(at, _)| *at).collect();
        of_name.iter().for_each(|at| drop(open.remove(at)));
    }

    /// Notes that a file that may have been written, and not closed, was renamed.
    fn renamed(&self, ino: Ino, named: &Named) {
        let mut open = self.open_files.lock();
        let all = (ino, SessionId(0))..=(ino, SessionId(u64::MAX));
        open.range_mut(all).for_each(|(_, known)| *known = named.clone());
    }

    /// Takes the name of a file that a session has written and closes now.
    fn closed(&self, session: SessionId, ino: Ino) -> Option<Named> {
        self.open_files.lock().remove(&(ino, session))
    }

    /// Takes the files that a session has written, and which its end closes.
    fn ended(&self, session: SessionId) -> Vec<(Ino, Named)> {
        let mut open = self.open_files.lock();
        let of_session: Vec<_> = open.keys().copied().filter(|(_, of)| *of == session).collect();
        let taken = of_session.into_iter().filter_map(|at| Some((at.0, open.remove(&at)?)));
        taken.collect()
    }
}

#[cfg(test)]
mod tests;
