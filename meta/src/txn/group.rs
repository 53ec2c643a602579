//! The group: the effects of all that one core has executed since its last write.
//!
//! `core` has one and writes it; transactions read through it and join it. It never touches the
//! engine.
//!
//! A busy directory changes with every create. So content records stay values here until the group
//! is written, and each is encoded once.
//!
//! Names that a partition does not have, because they come or went in a handoff, are many, and
//! nobody asks for them before the group is written: runs of these go only into the batch.
//!
//! Invariant: the overlay says what every key of the group will have when its batch is written, but
//! for runs.

use std::{ops::Range, rc::Rc, sync::Arc};

use base::{DirId, HashMap, Ino, Seq, SessionId};
use bytes::Bytes;
use store::{Batch, Op};
use wire::{Answer, ReplyHeader, TxnId};

use crate::{
    error::Result,
    file_locks::LetIn,
    lock::{LockId, LockTable},
    quota::Quotas,
    record::{Content, Key, QuotaId, Record as _, Settings, Usage, key},
    serve::Connection,
    server::{Counters, Shared},
    session::Session,
    wait::WaitNow,
};

/// The effects of all that one core has executed since its last write.
pub(crate) struct Group {
    pub(crate) core: usize,
    overlay: HashMap<Key, Change>,
    /// All changes in the overlay but those of directories.
    batch: Batch,
    /// The stored answers. They are written after everything else: so their ascending keys come one
    /// after the other, and the engine finds the place of each beside the one before.
    answers: Batch,
    /// The keys of directories in the overlay.
    dirs: Vec<Key>,
    /// Charges to quotas that are not in the batch yet.
    charged: HashMap<QuotaId, Usage>,
    /// The writes of the operation that is being executed; `bytes` has their values.
    pending: Vec<(Key, Change)>,
    runs: Vec<Run>,
    bytes: Vec<u8>,
    /// The first and last key of each run in the batch.
    spans: Vec<(Key, Key)>,
    /// The keys of runs, with the bytes of the batch that each gets, or none if it is removed.
    ran: Vec<(Key, Option<Range<usize>>)>,
    scratch: Vec<u8>,
    pub(crate) locks: Vec<LockId>,
    /// Whether no other core has a group while this one is under way.
    pub(crate) is_alone: bool,
    /// Sessions with requests in the group: none of them ends before it is written.
    sessions: Vec<Arc<Session>>,
    pub(crate) after: After,
}

/// A change of names that come one after the other, and that nobody reads before the group is
/// written.
enum Run {
    /// The names are put, with these bytes of the pending ones.
    Put(Vec<(Key, Range<usize>)>),
    /// The names are removed, with everything between them.
    Delete(Vec<Key>),
}

/// The change of a key.
enum Change {
    /// The key gets these bytes, of the batch or of the pending ones.
    Put(Range<usize>),
    Dir(Box<Content>),
    Delete,
    /// The key, and all keys up to this one, are removed. The group has nothing else there, and
    /// nobody asks it.
    DeleteTo(Key),
}

/// The value that a group has for a key.
pub(crate) enum Found<'a> {
    Bytes(&'a [u8]),
    Dir(&'a Content),
    Deleted,
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

/// The things to do when the group is written.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) events: Vec<DirId>,
    pub(crate) reclaim: Vec<Ino>,
    /// Answers to remember after the write: before, another core could give one to a repeated
    /// request, and it could be lost.
    pub(crate) answers: Vec<(Arc<Session>, Seq, Bytes)>,
    /// Sessions that end with this batch.
    pub(crate) forgotten: Vec<SessionId>,
    /// Prepared transactions that end with this batch.
    pub(crate) ended: Vec<TxnId>,
    /// Answers to other servers that leave when the batch is stable.
    pub(crate) promises: Vec<Promise>,
    /// Like `promises`, for answers that show records of this server.
    pub(crate) looks: Vec<Promise>,
    /// Like `promises`, for answers for which no sync need begin.
    pub(crate) acknowledgements: Vec<Promise>,
    /// The new settings of the file system, if the batch has any.
    pub(crate) settings: Option<Settings>,
    /// Whether the batch changes accounting roots.
    pub(crate) roots: bool,
    /// Notes of blocks that the batch names.
    pub(crate) unsynced: Vec<Key>,
    /// The keys of content records of partitions that may have names to give away.
    pub(crate) out_of_bounds: Vec<Key>,
    /// Requests that waited for a file lock and have it now.
    pub(crate) let_in: LetIn,
    /// Whether an answer tells of a change. With strict durability it waits for stable storage.
    pub(crate) tells_of_change: bool,
}

impl Group {
    pub(crate) fn new(core: usize) -> Group {
        Group {
            core,
            overlay: HashMap::default(),
            batch: Batch::default(),
            answers: Batch::default(),
            dirs: Vec::new(),
            charged: HashMap::default(),
            pending: Vec::new(),
            runs: Vec::new(),
            bytes: Vec::new(),
            spans: Vec::new(),
            ran: Vec::new(),
            scratch: Vec::new(),
            locks: Vec::new(),
            is_alone: false,
            sessions: Vec::new(),
            after: After::default(),
        }
    }

    /// Takes the batch to write. The group is empty afterwards, but holds its locks until the write
    /// is done.
    pub(crate) fn take_batch(&mut self, quotas: &Quotas, split_threshold: u64) -> Batch {
        quotas.store(self.core, &mut self.charged, &mut self.batch);
        for key in self.dirs.drain(..) {
            if let Some(Change::Dir(content)) = self.overlay.get(&key) {
                self.bytes.clear();
                content.encode_record(&mut self.bytes);
                self.batch.put(&key, &self.bytes);
                let number = || key::parse_share(&key).map_or(0, |(number, _)| number);
                if content.is_out_of_bounds(number, split_threshold) {
                    self.after.out_of_bounds.push(key);
                }
            }
        }
        self.batch.append(&self.answers);
        self.answers.clear();
        self.overlay.clear();
        self.spans.clear();
        self.ran.clear();
        let room = Batch::with_capacity(self.batch.bytes());
        std::mem::replace(&mut self.batch, room)
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

    /// Adds the charges of an operation, to be stored with the batch.
    pub(crate) fn charge(&mut self, charges: impl Iterator<Item = (QuotaId, Usage)>) {
        for (id, usage) in charges {
            let sum = self.charged.entry(id).or_default();
            *sum = sum.plus(usage);
        }
    }

    /// All changes of the batch, each key once, but for directories.
    pub(crate) fn all_changes(&self) -> impl Iterator<Item = (&Key, Option<&[u8]>)> {
        let bytes = self.batch.encoded();
        let ran = self.ran.iter();
        self.changes().chain(ran.map(|(key, at)| (key, at.clone().map(|at| &bytes[at]))))
    }

    /// All changes of the batch, each key once, but for directories and runs.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&Key, Option<&[u8]>)> {
        self.overlay.iter().filter_map(|(key, change)| match change.found(self.batch.encoded()) {
            Found::Bytes(value) => Some((key, Some(value))),
            Found::Deleted => Some((key, None)),
            Found::Dir(_) => None,
        })
    }

    /// The content records that the batch will change, each key once, with their values. There is
    /// no value if the record is removed, or only its bytes are known.
    pub(crate) fn dirs_changed(&self) -> impl Iterator<Item = (&Key, Option<&Content>)> {
        let changes = self.overlay.iter().filter(|(key, _)| key::is_content(key));
        changes.map(|(key, change)| match change {
            Change::Dir(content) => (key, Some(&**content)),
            Change::Put(_) | Change::Delete | Change::DeleteTo(_) => (key, None),
        })
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

    /// Approximate number of bytes of the write.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.bytes() + self.answers.bytes()
    }

    /// The value of `key` by the operation's writes, or else by the group's.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Found<'_>> {
        let pending = self.pending.iter().rev().find(|(written, _)| written[..] == *key);
        if let Some((_, change)) = pending {
            return Some(change.found(&self.bytes));
        }
        // Most operations are in groups that have written nothing yet, or read keys that nobody has
        // written.
        if self.overlay.is_empty() {
            return None;
        }
        self.overlay.get(key).map(|change| change.found(self.batch.encoded()))
    }

    /// Whether the group, without the operation, has changed anything in a range of keys.
    pub(crate) fn changes_in(&self, from: &[u8], to: &[u8]) -> bool {
        let within = |key: &[u8]| key >= from && key < to;
        self.overlay.keys().any(|key| within(key))
            || self.spans.iter().any(|(first, last)| last[..] >= *from && first[..] < *to)
            || self.answers.ops().any(|op| match op {
                Op::Put { key, .. } | Op::Delete { key } => within(key),
                Op::DeleteRange { .. } => unreachable!("answers are put"),
            })
    }

    /// The keys that the operation has written.
    pub(crate) fn written(&self) -> Vec<Key> {
        self.pending.iter().map(|(key, _)| key.clone()).collect()
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
        self.pending.push((key, Change::Put(start..self.bytes.len())));
    }

    /// Puts the stored answer of the operation, which is about to join the group.
    pub(crate) fn put_answer(&mut self, key: &Key, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        encode(&mut self.bytes);
        self.answers.put(key, &self.bytes[start..]);
        self.bytes.truncate(start);
        self.after.tells_of_change = true;
    }

    /// Puts a content record for the operation.
    pub(crate) fn put_dir(&mut self, key: Key, content: Content) {
        self.pending.push((key, Change::Dir(Box::new(content))));
    }

    /// Removes a key for the operation.
    pub(crate) fn delete(&mut self, key: Key) {
        self.pending.push((key, Change::Delete));
    }

    /// Removes all keys from `from` to before `to`, where the group has changed nothing, for the
    /// operation.
    pub(crate) fn delete_range(&mut self, from: Key, to: Key) {
        self.pending.push((from, Change::DeleteTo(to)));
    }

    /// Puts names, for the operation, that nobody asks for before the group is written.
    pub(crate) fn put_run<'a>(&mut self, names: impl Iterator<Item = (Key, &'a [u8])>) {
        let put = names.map(|(key, value)| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(value);
            (key, start..self.bytes.len())
        });
        self.runs.push(Run::Put(put.collect()));
    }

    /// Removes names, for the operation, that nobody asks for: all between the first and the last
    /// of them.
    pub(crate) fn delete_run(&mut self, names: Vec<Key>) {
        self.runs.push(Run::Delete(names));
    }

    /// Adds the operation's writes to the group.
    pub(crate) fn commit(&mut self) {
        self.after.tells_of_change |= self.is_pending();
        for (key, change) in self.pending.drain(..) {
            let change = match change {
                Change::Put(range) => {
                    self.batch.put(&key, &self.bytes[range.clone()]);
                    let end = self.batch.bytes();
                    Change::Put(end - range.len()..end)
                }
                Change::Delete => {
                    self.batch.delete(&key);
                    Change::Delete
                }
                Change::DeleteTo(to) => {
                    self.batch.delete_range(&key, &to);
                    continue;
                }
                Change::Dir(content) => {
                    if let Some(Change::Dir(before)) = self.overlay.get_mut(&key) {
                        *before = content;
                        continue;
                    }
                    self.dirs.push(key.clone());
                    Change::Dir(content)
                }
            };
            self.overlay.insert(key, change);
        }
        for run in self.runs.drain(..) {
            match run {
                Run::Put(names) => {
                    let ends = names.first().zip(names.last());
                    let ends = ends.map(|((first, _), (last, _))| (first.clone(), last.clone()));
                    self.spans.extend(ends);
                    for (key, range) in names {
                        self.batch.put(&key, &self.bytes[range.clone()]);
                        let end = self.batch.bytes();
                        self.ran.push((key, Some(end - range.len()..end)));
                    }
                }
                Run::Delete(names) => {
                    let Some((first, last)) = names.first().zip(names.last()) else { continue };
                    let after = [&last[..], &[0]].concat();
                    self.batch.delete_range(first, &after);
                    self.spans.push((first.clone(), last.clone()));
                    self.ran.extend(names.into_iter().map(|key| (key, None)));
                }
            }
        }
    }
}

impl Change {
    fn found<'a>(&'a self, bytes: &'a [u8]) -> Found<'a> {
        match self {
            Change::Put(range) => Found::Bytes(&bytes[range.clone()]),
            Change::Dir(content) => Found::Dir(content),
            Change::Delete | Change::DeleteTo(_) => Found::Deleted,
        }
    }
}
