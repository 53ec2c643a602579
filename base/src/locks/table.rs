//! The locks of all files, and those who wait for one.

use std::collections::BTreeMap;

use super::{
    ByteRange, LockKind, LockOwner,
    held::{HeldLocks, LockHeld, Places, count_down, in_conflict, looks},
};
use crate::{HashMap, HashSet, Ino, SessionId};

/// Why a lock is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockDenied {
    /// Somebody else holds it.
    Held,
    /// To wait for it would be to wait for oneself.
    Deadlock,
    /// The session has, and waits for, as many as it may.
    TooMany,
}

/// A lock that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The lock is held now.
    Granted,
    /// The lock waits in the queue.
    Queued,
}

/// A waiting request: the session, and its number for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockWait {
    /// The session.
    pub session: SessionId,
    /// The session's number for the request.
    pub number: u64,
}

type File = (Ino, LockKind);

/// The locks of all files.
///
/// Cost: as [`HeldLocks`]. A change of a file that others wait for looks at each of these once, and
/// once more when any of them may go on.
///
/// Whatever may let others in returns those who have been let in, in order.
#[derive(Debug)]
pub struct LockTable {
    files: HashMap<File, Locks>,
    sessions: HashMap<SessionId, Standing>,
    /// Requests that each owner waits for.
    waits: HashMap<LockOwner, BTreeMap<LockWait, (File, LockHeld)>>,
    a_session_max: usize,
}

#[derive(Debug, Default)]
struct Locks {
    held: HeldLocks,
    queue: Vec<(LockWait, LockHeld)>,
    /// Number of requests in the queue of each session that has any.
    queued: HashMap<SessionId, usize>,
}

/// Locks that a session holds and waits for.
#[derive(Debug, Default)]
struct Standing {
    total: usize,
    files: HashMap<File, usize>,
}

impl LockTable {
    /// An empty table. A session may have `a_session_max` locks, those it waits for included.
    #[must_use]
    pub fn new(a_session_max: usize) -> LockTable {
        LockTable {
            files: HashMap::default(),
            sessions: HashMap::default(),
            waits: HashMap::default(),
            a_session_max,
        }
    }

    /// To be called before a lock of a whole file is asked for. As Linux does it, flock gives up
    /// the old mode before it asks for the new one: so two who share a lock and both want it for
    /// themselves do not wait for each other.
    pub fn give_up_mode(&mut self, (ino, kind): (Ino, LockKind), asked: LockHeld) -> Vec<LockWait> {
        let file = (ino, kind);
        let Some(locks) = self.files.get_mut(&file) else { return vec![] };
        let other_mode = |held: &LockHeld| held.owner == asked.owner && held.mode != asked.mode;
        let had = || locks.held.of(asked.owner, ByteRange::ALL).any(other_mode);
        if kind == LockKind::Range || !had() {
            return vec![];
        }
        locks.held.give_back(asked.owner, ByteRange::ALL);
        let granted = self.settle(file);
        self.tidy(file, asked.owner.session);
        granted
    }

    /// Takes a lock, or changes the mode of what its owner has there.
    ///
    /// # Errors
    /// `Held` when somebody else has it, `TooMany`.
    pub fn take(
        &mut self,
        (ino, kind): (Ino, LockKind),
        asked: LockHeld,
    ) -> Result<Vec<LockWait>, LockDenied> {
        let file = (ino, kind);
        self.room_for(asked.owner.session)?;
        if self.conflicts(file, asked).next().is_some() {
            return Err(LockDenied::Held);
        }
        self.files.entry(file).or_default().held.take(asked);
        let granted = self.settle(file);
        self.tidy(file, asked.owner.session);
        Ok(granted)
    }

    /// Takes a lock, or queues for it. Asked again under the same number, it takes the same place.
    ///
    /// # Errors
    /// `Deadlock` for byte ranges, `TooMany`.
    pub fn take_or_wait(
        &mut self,
        (ino, kind): (Ino, LockKind),
        asked: LockHeld,
        wait: LockWait,
    ) -> Result<(Waiting, Vec<LockWait>), LockDenied> {
        let file = (ino, kind);
        let queued = self.waits.get(&asked.owner).and_then(|waits| waits.get(&wait));
        if queued.is_some_and(|(at, _)| *at == file) {
            return Ok((Waiting::Queued, vec![]));
        }
        self.room_for(asked.owner.session)?;
        if kind == LockKind::Range && self.would_wait_for_itself(file, asked) {
            return Err(LockDenied::Deadlock);
        }
        let locks = self.files.entry(file).or_default();
        locks.queue.push((wait, asked));
        *locks.queued.entry(wait.session).or_default() += 1;
        self.waits.entry(asked.owner).or_default().insert(wait, (file, asked));
        // No other request can go on that could not before.
        let mut granted = if self.last_may_go_on(file) { self.settle(file) } else { vec![] };
        self.tidy(file, asked.owner.session);
        let own = granted.iter().position(|granted| *granted == wait);
        match own {
            Some(own) => {
                granted.remove(own);
                Ok((Waiting::Granted, granted))
            }
            None => Ok((Waiting::Queued, granted)),
        }
    }

    /// Gives back what `owner` has of the range.
    ///
    /// # Errors
    /// `TooMany` when that splits a lock of a session that has as many as it may.
    pub fn give_back(
        &mut self,
        (ino, kind): (Ino, LockKind),
        owner: LockOwner,
        range: ByteRange,
    ) -> Result<Vec<LockWait>, LockDenied> {
        let file = (ino, kind);
        let Some(locks) = self.files.get_mut(&file) else { return Ok(vec![]) };
        if locks.held.splits(owner, range) {
            self.room_for(owner.session)?;
        }
        let locks = self.files.entry(file).or_default();
        locks.held.give_back(owner, range);
        let granted = self.settle(file);
        self.tidy(file, owner.session);
        Ok(granted)
    }

    /// Gives up waiting; whether it was. Others may be let in: those who stood behind it.
    pub fn cancel(&mut self, wait: LockWait) -> Option<Vec<LockWait>> {
        let standing = self.sessions.get(&wait.session)?;
        let mut files = standing.files.keys().copied();
        let file = files.find(|file| self.is_queued(*file, wait))?;
        self.unqueue(file, |queued| queued == wait);
        let granted = self.settle(file);
        self.tidy(file, wait.session);
        Some(granted)
    }

    /// Returns a held lock that is in the way of `asked`, if any is.
    #[must_use]
    pub fn conflict(&self, (ino, kind): (Ino, LockKind), asked: LockHeld) -> Option<LockHeld> {
        // The first byte that cannot be had. What is shown of the lock does not depend on the order
        // of other sessions.
        let order = |held: &&LockHeld| {
            let is_others = held.owner.session != asked.owner.session;
            (held.range.first, held.range.last, held.mode, is_others, held.pid)
        };
        self.conflicts((ino, kind), asked).min_by_key(order).copied()
    }

    /// A session has closed a file: all that it has of it.
    pub fn close(&mut self, session: SessionId, ino: Ino) -> Vec<LockWait> {
        let families = [(ino, LockKind::Range), (ino, LockKind::Whole)];
        families.into_iter().flat_map(|file| self.leave(file, session)).collect()
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) -> Vec<LockWait> {
        let standing = self.sessions.get(&session);
        let mut files: Vec<File> =
            standing.into_iter().flat_map(|standing| standing.files.keys().copied()).collect();
        files.sort_unstable();
        files.into_iter().flat_map(|file| self.leave(file, session)).collect()
    }

    /// Number of locks that a session has and waits for.
    #[must_use]
    pub fn count(&self, session: SessionId) -> usize {
        self.sessions.get(&session).map_or(0, |standing| standing.total)
    }

    /// Numbers of files with locks, of locks, and of waiting requests.
    #[must_use]
    pub fn totals(&self) -> (usize, usize, usize) {
        let all = self.files.values();
        all.fold((self.files.len(), 0, 0), |(files, held, waiting), locks| {
            (files, held + locks.held.len(), waiting + locks.queue.len())
        })
    }

    /// The files that have locks, in no order.
    pub fn files(&self) -> impl Iterator<Item = (Ino, LockKind)> {
        self.files.keys().copied()
    }

    /// The locks of a file, and those that wait for one, in the order of asking.
    pub fn of_file(
        &self,
        ino: Ino,
        kind: LockKind,
    ) -> impl Iterator<Item = (LockHeld, Option<LockWait>)> {
        self.files.get(&(ino, kind)).into_iter().flat_map(|locks| {
            let held = locks.held.iter().map(|held| (*held, None));
            held.chain(locks.queue.iter().map(|(wait, asked)| (*asked, Some(*wait))))
        })
    }

    fn conflicts(&self, file: File, asked: LockHeld) -> impl Iterator<Item = &LockHeld> {
        self.files.get(&file).into_iter().flat_map(move |locks| locks.held.conflicts(asked))
    }

    #[cfg(test)]
    pub(super) fn conflicts_for_tests(&self, file: File, asked: LockHeld) -> Vec<LockHeld> {
        self.conflicts(file, asked).copied().collect()
    }

    fn room_for(&self, session: SessionId) -> Result<(), LockDenied> {
        if self.count(session) < self.a_session_max { Ok(()) } else { Err(LockDenied::TooMany) }
    }

    fn is_queued(&self, file: File, wait: LockWait) -> bool {
        let locks = self.files.get(&file);
        locks.is_some_and(|locks| locks.queue.iter().any(|(queued, _)| *queued == wait))
    }

    /// Whether `asked.owner` is among those who have to go on before it can.
    fn would_wait_for_itself(&self, file: File, asked: LockHeld) -> bool {
        let mut seen = HashSet::default();
        let mut ahead: Vec<LockOwner> =
            self.conflicts(file, asked).map(|held| held.owner).collect();
        while let Some(owner) = ahead.pop() {
            if owner == asked.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            let waits = self.waits.get(&owner).into_iter().flat_map(BTreeMap::values);
            for (file, wanted) in waits.filter(|(file, _)| file.1 == LockKind::Range) {
                ahead.extend(self.conflicts(*file, *wanted).map(|held| held.owner));
            }
        }
        false
    }

    /// Grants the queued requests that can go on now.
    fn settle(&mut self, file: File) -> Vec<LockWait> {
        let mut granted = Vec::new();
        loop {
            // A grant may let earlier ones on: those of its process, and, if the lock was
            // exclusive before, those who share.
            let before = granted.len();
            let queued = self.files.get(&file).map_or(0, |locks| locks.queue.len());
            let mut earlier = Places::default();
            for index in 0..queued {
                looks();
                let locks = &self.files[&file];
                let (wait, asked) = locks.queue[index];
                let behind = || earlier.conflicts(asked).next().is_some();
                if self.may_go_on(locks, asked, behind) {
                    self.files.entry(file).or_default().held.take(asked);
                    self.recount(file, wait.session);
                    granted.push(wait);
                } else {
                    earlier.insert(asked, index);
                }
            }
            if granted.len() == before {
                return granted;
            }
            let gone: HashSet<LockWait> = granted[before..].iter().copied().collect();
            self.unqueue(file, |queued| gone.contains(&queued));
            gone.iter().for_each(|wait| self.recount(file, wait.session));
        }
    }

    /// Whether a queued request can go on; `behind`: an earlier one that waits is in conflict with
    /// it.
    fn may_go_on(&self, locks: &Locks, asked: LockHeld, behind: impl FnOnce() -> bool) -> bool {
        let is_free = locks.held.conflicts(asked).next().is_none();
        is_free && (!behind() || self.holds_anything(asked))
    }

    fn last_may_go_on(&self, file: File) -> bool {
        let Some(locks) = self.files.get(&file) else { return false };
        let Some(((_, asked), earlier)) = locks.queue.split_last() else { return false };
        let is_behind = |(_, one): &(LockWait, LockHeld)| {
            looks();
            in_conflict(one, asked)
        };
        self.may_go_on(locks, *asked, || earlier.iter().any(is_behind))
    }

    /// Whether the process that asks has any lock already, or cannot be told from others.
    fn holds_anything(&self, asked: LockHeld) -> bool {
        let (session, pid) = (asked.owner.session, asked.pid);
        let files = self.sessions.get(&session).into_iter();
        let mut files = files.flat_map(|standing| standing.files.keys());
        let its = |file: &File| {
            looks();
            self.files.get(file).is_some_and(|locks| locks.held.are_of(session, pid))
        };
        pid == 0 || files.any(its)
    }

    /// A session has nothing to do with a file any more.
    fn leave(&mut self, file: File, session: SessionId) -> Vec<LockWait> {
        let Some(locks) = self.files.get_mut(&file) else { return vec![] };
        locks.held.retain(|held| held.owner.session != session);
        self.unqueue(file, |queued| queued.session == session);
        let granted = self.settle(file);
        self.tidy(file, session);
        granted
    }

    fn unqueue(&mut self, file: File, whom: impl Fn(LockWait) -> bool) {
        let Some(locks) = self.files.get_mut(&file) else { return };
        let gone = locks.queue.extract_if(.., |(wait, _)| whom(*wait));
        for (wait, asked) in gone {
            count_down(&mut locks.queued, wait.session);
            if let Some(waits) = self.waits.get_mut(&asked.owner) {
                waits.remove(&wait);
                if waits.is_empty() {
                    self.waits.remove(&asked.owner);
                }
            }
        }
    }

    /// Counts what a session has of a file, and forgets what is empty.
    fn tidy(&mut self, file: File, session: SessionId) {
        self.recount(file, session);
        if self.files.get(&file).is_some_and(|l| l.held.is_empty() && l.queue.is_empty()) {
            self.files.remove(&file);
        }
    }

    fn recount(&mut self, file: File, session: SessionId) {
        let now = self.files.get(&file).map_or(0, |locks| {
            locks.held.count(session) + locks.queued.get(&session).copied().unwrap_or_default()
        });
        let standing = self.sessions.entry(session).or_default();
        let before =
            if now == 0 { standing.files.remove(&file) } else { standing.files.insert(file, now) };
        standing.total = standing.total - before.unwrap_or(0) + now;
        if standing.total == 0 {
            self.sessions.remove(&session);
        }
    }

    /// Checks what is always true of the table.
    ///
    /// # Panics
    /// When it is not.
    pub fn check(&self) {
        let mut totals: HashMap<SessionId, usize> = HashMap::default();
        for locks in self.files.values() {
            assert!(!locks.held.is_empty() || !locks.queue.is_empty(), "nothing empty is kept");
            let held: Vec<&LockHeld> = locks.held.iter().collect();
            for (index, one) in held.iter().enumerate() {
                assert!(one.range.is_valid());
                *totals.entry(one.owner.session).or_default() += 1;
                for other in &held[index + 1..] {
                    assert!(!in_conflict(one, other), "{one:?} {other:?}");
                    let apart = one.owner != other.owner
                        || !one.range.overlaps(other.range)
                            && (one.mode != other.mode || !one.range.touches(other.range));
                    assert!(apart, "{one:?} {other:?}");
                }
            }
            for (index, (wait, asked)) in locks.queue.iter().enumerate() {
                *totals.entry(wait.session).or_default() += 1;
                let mut earlier = locks.queue[..index].iter();
                let behind = || earlier.any(|(_, one)| in_conflict(one, asked));
                assert!(!self.may_go_on(locks, *asked, behind), "{asked:?} waits for nobody");
            }
        }
        let counted = self.sessions.iter().map(|(session, standing)| (*session, standing.total));
        assert_eq!(totals, counted.collect(), "what each session has is counted");
        let waiting: usize = self.waits.values().map(BTreeMap::len).sum();
        assert_eq!(waiting, self.totals().2, "everyone who waits is known by its owner");
    }
}
