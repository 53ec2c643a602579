//! The group: the effects of all that one core has executed since its last write.
//!
//! `core` has one and writes it; transactions read through it and join it. It never touches the
//! engine. [`Changes`] has what its operations have changed. The writes of the operation that is
//! being executed are here until it commits.

use std::{ops::Range, rc::Rc, sync::Arc};

use base::Seq;
use bytes::Bytes;
use wire::{Answer, ReplyHeader};

use crate::{
    audit,
    changes::{Changes, Found},
    error::Result,
    lock::{LockId, LockTable},
    record::{Content, Key},
    serve::connection::Connection,
    server::{Counters, Shared},
    session::Session,
    wait::WaitNow,
};

/// A group is written when it has so many bytes.
pub(crate) const GROUP_BYTES_MAX: usize = 1 << 20;

/// The effects of all that one core has executed since its last write.
pub(crate) struct CommitGroup {
    pub(crate) core: usize,
    pub(crate) changes: Changes,
    /// The writes of the operation that is being executed; `bytes` has their values.
    pending: Vec<(Key, Pending)>,
    runs: Vec<Sequence>,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
    pub(crate) locks: Vec<LockId>,
    /// Whether no other core has a group while this one is under way.
    pub(crate) is_alone: bool,
    /// Sessions with requests in the group: none of them ends before it is written.
    sessions: Vec<Arc<Session>>,
    pub(crate) after: After,
    /// Memory of the core for lines of the audit log.
    pub(crate) audit: audit::Memory,
}

/// A change of names that come one after the other, and that nobody reads before the group is
/// written.
enum Sequence {
    /// The names are put, with these bytes of the pending ones.
    Put(Vec<(Key, Range<usize>)>),
    /// The names are removed, with everything between them.
    Delete(Vec<Key>),
}

/// A write of the operation that is being executed.
enum Pending {
    /// The key gets these bytes of the pending ones.
    Put(Range<usize>),
    Dir(Box<Content>),
    Delete,
    /// The key, and all keys up to this one, are removed. The group has nothing else there, and
    /// nobody asks it.
    DeleteTo(Key),
}

/// An answer to another server that leaves when its content is stable.
pub(crate) struct Promise {
    pub(crate) connection: Rc<Connection>,
    pub(crate) reply: ReplyHeader,
    pub(crate) answer: Answer,
}

/// Another core's group holds this lock.
#[derive(Debug)]
struct Locked(LockId);

impl WaitNow for Locked {
    fn pass(&self, shared: &Shared) {
        Counters::add(&shared.counters.lock_conflicts);
        shared.locks.wait(self.0);
    }
}

/// The operation must see what this group has not written yet.
#[derive(Debug)]
pub(crate) struct Unwritten;

impl WaitNow for Unwritten {
    fn pass(&self, _shared: &Shared) {}
}

/// The operation must be run while no other core has a group under way.
#[derive(Debug)]
pub(super) struct Alone;

impl WaitNow for Alone {
    fn pass(&self, _shared: &Shared) {}

    fn wants_alone(&self) -> bool {
        true
    }
}

/// The answers to let go when the group is written.
#[derive(Default)]
pub(crate) struct After {
    /// Answers to remember after the write: before, another core could give one to a repeated
    /// request, and it could be lost.
    pub(crate) answers: Vec<(Arc<Session>, Seq, Bytes)>,
    /// Answers to other servers that leave when the batch is stable.
    pub(crate) promises: Vec<Promise>,
    /// Like `promises`, for answers that show records of this server.
    pub(crate) looks: Vec<Promise>,
    /// Like `promises`, for answers for which no sync need begin.
    pub(crate) acknowledgements: Vec<Promise>,
    /// Whether an answer tells of a change. With strict durability it waits for stable storage.
    pub(crate) tells_of_change: bool,
    /// Whether a session's answer is good only while the server may serve.
    pub(crate) serves: bool,
    /// Whether an answer to another server is good only while no other process has the journal.
    pub(crate) serves_servers: bool,
}

impl CommitGroup {
    pub(crate) fn new(core: usize) -> CommitGroup {
        CommitGroup {
            core,
            changes: Changes::default(),
            pending: Vec::new(),
            runs: Vec::new(),
            bytes: Vec::new(),
            scratch: Vec::new(),
            locks: Vec::new(),
            is_alone: false,
            sessions: Vec::new(),
            after: After::default(),
            audit: audit::Memory::default(),
        }
    }

    /// Takes a lock until the group is written. Returns `true` when it was free until now.
    pub(crate) fn lock(&mut self, locks: &LockTable, lock: LockId) -> Result<bool> {
        let taken = locks.try_lock(lock, self.core).map_err(Locked)?;
        self.locks.extend(taken);
        Ok(taken.is_some())
    }

    /// Notes that a request of `session` is about to be executed. `false`: the session is ending.
    pub(crate) fn enter(&mut self, session: &Arc<Session>) -> bool {
        // Requests of one connection come in a row.
        if self.sessions.last().is_some_and(|last| Arc::ptr_eq(last, session)) {
            return true;
        }
        let enters = session.enter();
        if enters {
            self.sessions.push(session.clone());
        }
        enters
    }

    /// Lets the sessions end: the group is written.
    pub(crate) fn leave_sessions(&mut self) {
        self.sessions.drain(..).for_each(|session| session.leave());
    }

    /// An empty buffer to encode an answer in.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scratch)
    }

    /// Gives the buffer back.
    pub(crate) fn give_scratch(&mut self, mut scratch: Vec<u8>) {
        scratch.clear();
        self.scratch = scratch;
    }

    /// The value of `key` by the operation's writes, or else by the group's.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Found<'_>> {
        let pending = self.pending.iter().rev().find(|(written, _)| written[..] == *key);
        match pending {
            Some((_, change)) => Some(change.found(&self.bytes)),
            None => self.changes.find(key),
        }
    }

    /// The keys that the operation has written.
    pub(crate) fn written(&self) -> Vec<Key> {
        self.pending.iter().map(|(key, _)| key.clone()).collect()
    }

    /// The keys that the operation has written, in order, and whether their records were removed; a
    /// key may come again.
    pub(crate) fn pending_keys(&self) -> impl Iterator<Item = (&Key, bool)> {
        self.pending.iter().map(|(key, change)| (key, matches!(change, Pending::Delete)))
    }

    /// Drops the writes of an operation that failed.
    pub(crate) fn begin(&mut self) {
        self.pending.clear();
        self.runs.clear();
        self.bytes.clear();
    }

    /// Whether the operation has written anything.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty() || !self.runs.is_empty()
    }

    /// Puts a record, whose bytes `encode` appends, for the operation.
    pub(crate) fn put(&mut self, key: Key, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        encode(&mut self.bytes);
        self.pending.push((key, Pending::Put(start..self.bytes.len())));
    }

    /// Puts a content record for the operation.
    pub(crate) fn put_dir(&mut self, key: Key, content: Content) {
        self.pending.push((key, Pending::Dir(Box::new(content))));
    }

    /// Removes a key for the operation.
    pub(crate) fn delete(&mut self, key: Key) {
        self.pending.push((key, Pending::Delete));
    }

    /// Removes all keys from `from` to before `to`, where the group has changed nothing, for the
    /// operation.
    pub(crate) fn delete_range(&mut self, from: Key, to: Key) {
        self.pending.push((from, Pending::DeleteTo(to)));
    }

    /// Puts names, for the operation, that nobody asks for before the group is written.
    pub(crate) fn put_run<'a>(&mut self, names: impl Iterator<Item = (Key, &'a [u8])>) {
        let put = names.map(|(key, value)| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(value);
            (key, start..self.bytes.len())
        });
        self.runs.push(Sequence::Put(put.collect()));
    }

    /// Removes names, for the operation, that nobody asks for: all between the first and the last
    /// of them.
    pub(crate) fn delete_run(&mut self, names: Vec<Key>) {
        self.runs.push(Sequence::Delete(names));
    }

    /// Adds the operation's writes to the group.
    pub(crate) fn commit(&mut self) {
        self.after.tells_of_change |= self.is_pending();
        for (key, change) in self.pending.drain(..) {
            match change {
                Pending::Put(range) => self.changes.put(key, &self.bytes[range]),
                Pending::Dir(content) => self.changes.put_dir(key, content),
                Pending::Delete => self.changes.delete(key),
                Pending::DeleteTo(to) => self.changes.delete_range(&key, &to),
            }
        }
        for run in self.runs.drain(..) {
            match run {
                Sequence::Put(names) => {
                    let names = names.into_iter();
                    self.changes.put_run(names.map(|(key, range)| (key, &self.bytes[range])));
                }
                Sequence::Delete(names) => self.changes.delete_run(names),
            }
        }
    }
}

impl Pending {
    fn found<'a>(&'a self, bytes: &'a [u8]) -> Found<'a> {
        match self {
            Pending::Put(range) => Found::Bytes(&bytes[range.clone()]),
            Pending::Dir(content) => Found::Dir(content),
            Pending::Delete | Pending::DeleteTo(_) => Found::Deleted,
        }
    }
}
