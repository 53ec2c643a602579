//! The changes of a group, as facts: records that are put or removed, and what else has happened.
//!
//! Operations state facts in their transaction, which joins the group when it commits. `core`
//! writes the group, and its [followers](crate::follow) are told. This module does not know them.
//!
//! A busy directory changes with every create. So content records stay values here until the group
//! is written, and each is encoded once.
//!
//! Names that a partition does not have, because they come or went in a handoff, are many, and
//! nobody asks for them before the group is written: runs of these go only into the batch.
//!
//! Invariant: the overlay says what every key of the group will have when its batch is written, but
//! for runs.

use std::{ops::Range, sync::Arc};

use base::{DirId, HashMap, Ino, Seq, SessionId};
use bytes::Bytes;
use store::Batch;
use wire::TxnId;

use crate::{
    audit::Lines,
    feed::Logged,
    file_locks::LetIn,
    keys::ring::KeyRing,
    record::{Content, Key, QuotaId, Record as _, Settings, Usage, key, system::StoredAnswers},
    session::Session,
};

/// The changes that one core has made since its last write.
#[derive(Default)]
pub(crate) struct Changes {
    overlay: HashMap<Key, Change>,
    /// All changes in the overlay but those of directories.
    batch: Batch,
    /// Answers to store. Those of a session are one record.
    answers: Vec<StoresAnswer>,
    /// Bytes of the answers.
    answers_bytes: usize,
    /// Records of answers that are about to be written, by their slots.
    going: Vec<(Arc<Session>, u16)>,
    /// The keys of directories in the overlay.
    dirs: Vec<Key>,
    /// The first and last key of each run in the batch.
    spans: Vec<(Key, Key)>,
    /// The keys of runs, with the bytes of the batch that each gets, or none if it is removed.
    ran: Vec<(Key, Option<Range<usize>>)>,
    /// Content records are encoded here.
    encoded: Vec<u8>,
    /// Usage that is charged to quotas.
    charged: HashMap<QuotaId, Usage>,
    pub(crate) facts: Facts,
}

/// An answer to store with the change that it tells of.
struct StoresAnswer {
    session: Arc<Session>,
    seq: Seq,
    answer: Bytes,
}

/// Facts besides records, which operations state. All are true when the group is written.
#[derive(Default)]
pub(crate) struct Facts {
    /// Directories that were moved or changed permissions.
    pub(crate) moved: Vec<DirId>,
    /// Inodes that may have nothing left that needs them: orphans nobody has open, contents without
    /// an inode.
    pub(crate) left: Vec<Ino>,
    /// Keys of notes of blocks that are named and may not be stable.
    pub(crate) unsynced: Vec<Key>,
    /// Sessions that end.
    pub(crate) forgotten: Vec<SessionId>,
    /// Prepared transactions that end.
    pub(crate) ended: Vec<TxnId>,
    /// Content records of directories that are removed.
    pub(crate) freed: Vec<Key>,
    /// The new settings of the file system, if they change.
    pub(crate) settings: Option<Settings>,
    /// The new key ring, if it changes.
    pub(crate) keys: Option<Box<KeyRing>>,
    /// Whether accounting roots change.
    pub(crate) roots: bool,
    /// Requests that waited for a file lock and have it now.
    pub(crate) let_in: LetIn,
    /// Changes for the change feed, while somebody watches.
    pub(crate) events: Vec<Logged>,
    /// Lines for the audit log.
    pub(crate) audit: Lines,
}

impl Facts {
    /// Whether nothing was stated.
    fn are_none(&self) -> bool {
        let Facts {
            moved,
            left,
            unsynced,
            forgotten,
            ended,
            freed,
            settings,
            keys,
            roots,
            let_in,
            events,
            audit,
        } = self;
        moved.is_empty()
            && left.is_empty()
            && unsynced.is_empty()
            && forgotten.is_empty()
            && ended.is_empty()
            && freed.is_empty()
            && settings.is_none()
            && keys.is_none()
            && !roots
            && let_in.is_empty()
            && events.is_empty()
            && audit.are_none()
    }

    /// Adds the facts of an operation.
    pub(crate) fn add(&mut self, others: Facts) {
        self.moved.extend(others.moved);
        self.left.extend(others.left);
        self.unsynced.extend(others.unsynced);
        self.forgotten.extend(others.forgotten);
        self.ended.extend(others.ended);
        self.freed.extend(others.freed);
        self.settings = others.settings.or(self.settings);
        if others.keys.is_some() {
            self.keys = others.keys;
        }
        self.roots |= others.roots;
        self.let_in.extend(others.let_in);
        self.events.extend(others.events);
        self.audit.add(&others.audit);
    }
}

/// The change of a key.
enum Change {
    /// The key gets these bytes of the batch.
    Put(Range<usize>),
    Dir(Box<Content>),
    Delete,
}

/// The value that a key has after a change.
pub(crate) enum Found<'a> {
    Bytes(&'a [u8]),
    Dir(&'a Content),
    Deleted,
}

impl Changes {
    /// Whether nothing is written, and nothing else was stated.
    pub(crate) fn are_none(&self) -> bool {
        self.bytes() == 0
            && self.overlay.is_empty()
            && self.charged.is_empty()
            && self.facts.are_none()
    }

    /// Puts the bytes of a record.
    pub(crate) fn put(&mut self, key: Key, value: &[u8]) {
        let range = self.put_value(&key, value);
        self.overlay.insert(key, Change::Put(range));
    }

    /// Puts a content record.
    pub(crate) fn put_dir(&mut self, key: Key, content: Box<Content>) {
        if let Some(Change::Dir(before)) = self.overlay.get_mut(&key) {
            *before = content;
            return;
        }
        self.dirs.push(key.clone());
        self.overlay.insert(key, Change::Dir(content));
    }

    /// Removes a record.
    pub(crate) fn delete(&mut self, key: Key) {
        self.batch.delete(&key);
        self.overlay.insert(key, Change::Delete);
    }

    /// Removes all keys from `from` to before `to`, where the group has changed nothing. Nobody
    /// asks for them before the group is written.
    pub(crate) fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        self.batch.delete_range(from, to);
    }

    /// Puts a run of names, in order.
    pub(crate) fn put_run<'a>(&mut self, names: impl Iterator<Item = (Key, &'a [u8])>) {
        let start = self.ran.len();
        for (key, value) in names {
            let range = self.put_value(&key, value);
            self.ran.push((key, Some(range)));
        }
        let run = &self.ran[start..];
        let ends = run.first().zip(run.last());
        self.spans.extend(ends.map(|((first, _), (last, _))| (first.clone(), last.clone())));
    }

    /// Removes a run of names: all between the first and the last of them.
    pub(crate) fn delete_run(&mut self, names: Vec<Key>) {
        let Some((first, last)) = names.first().zip(names.last()) else { return };
        let after = [&last[..], &[0]].concat();
        self.batch.delete_range(first, &after);
        self.spans.push((first.clone(), last.clone()));
        self.ran.extend(names.into_iter().map(|key| (key, None)));
    }

    fn put_value(&mut self, key: &[u8], value: &[u8]) -> Range<usize> {
        self.batch.put(key, value);
        let end = self.batch.bytes();
        end - value.len()..end
    }

    /// Has the answer to a session's request stored.
    pub(crate) fn put_answer(&mut self, session: Arc<Session>, seq: Seq, answer: Bytes) {
        self.answers_bytes += answer.len();
        self.answers.push(StoresAnswer { session, seq, answer });
    }

    /// Adds the charges of an operation.
    pub(crate) fn charge(&mut self, charges: impl Iterator<Item = (QuotaId, Usage)>) {
        for (id, usage) in charges {
            let sum = self.charged.entry(id).or_default();
            *sum = sum.plus(usage);
        }
    }

    /// The charges, and the batch to store their sums in. Operations do not read sums.
    pub(crate) fn charged(&mut self) -> (&mut HashMap<QuotaId, Usage>, &mut Batch) {
        (&mut self.charged, &mut self.batch)
    }

    /// The value that the group has for `key`; `None` if it has not changed it.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Found<'_>> {
        // Most operations are in groups that have written nothing yet, or read keys that nobody has
        // written.
        if self.overlay.is_empty() {
            return None;
        }
        self.overlay.get(key).map(|change| change.found(self.batch.encoded()))
    }

    /// Whether anything in a range of keys is changed.
    pub(crate) fn are_in(&self, from: &[u8], to: &[u8]) -> bool {
        let within = |key: &[u8]| key >= from && key < to;
        self.overlay.keys().any(|key| within(key))
            || self.spans.iter().any(|(first, last)| last[..] >= *from && first[..] < *to)
            || self.answers.iter().any(|stores| {
                let records = key::answers(stores.session.id);
                to > &records[..] && from < &key::end_of(&records)[..]
            })
    }

    /// Approximate number of bytes of the write.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.bytes() + self.answers_bytes
    }

    /// All changes, each key once, but for directories.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, Option<&[u8]>)> {
        let bytes = self.batch.encoded();
        let ran = self.ran.iter();
        self.records().chain(ran.map(|(key, at)| (key, at.clone().map(|at| &bytes[at]))))
    }

    /// All changes, each key once, but for directories and runs.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&Key, Option<&[u8]>)> {
        self.overlay.iter().filter_map(|(key, change)| match change.found(self.batch.encoded()) {
            Found::Bytes(value) => Some((key, Some(value))),
            Found::Deleted => Some((key, None)),
            Found::Dir(_) => None,
        })
    }

    /// The content records that change, each key once, with their values. There is no value if the
    /// record is removed, or only its bytes are known.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (&Key, Option<&Content>)> {
        let changes = self.overlay.iter().filter(|(key, _)| key::is_content(key));
        changes.map(|(key, change)| match change {
            Change::Dir(content) => (key, Some(&**content)),
            Change::Put(_) | Change::Delete => (key, None),
        })
    }

    /// The content records that are put as values, in the order in which they came.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = (&Key, &Content)> {
        self.dirs.iter().filter_map(|key| match self.overlay.get(key) {
            Some(Change::Dir(content)) => Some((key, &**content)),
            Some(Change::Put(_) | Change::Delete) | None => None,
        })
    }

    /// Takes the batch to write. The facts stay for the followers.
    pub(crate) fn take_batch(&mut self) -> Batch {
        for key in self.dirs.drain(..) {
            if let Some(Change::Dir(content)) = self.overlay.get(&key) {
                self.encoded.clear();
                content.encode_record(&mut self.encoded);
                self.batch.put(&key, &self.encoded);
            }
        }
        self.put_answers();
        self.overlay.clear();
        self.spans.clear();
        self.ran.clear();
        let room = Batch::with_capacity(self.batch.bytes());
        std::mem::replace(&mut self.batch, room)
    }

    /// Puts a record with the answers to each session.
    fn put_answers(&mut self) {
        // Nearly always there is one session, or each has its requests in a row.
        self.answers.sort_by_key(|stores| stores.session.id);
        for of_one in self.answers.chunk_by(|one, next| Arc::ptr_eq(&one.session, &next.session)) {
            let session = &of_one[0].session;
            let last = of_one.iter().map(|stores| stores.seq).max().unwrap_or_default();
            let (slot, settled) = session.slot_for(last);
            self.encoded.clear();
            StoredAnswers::begin_record(settled, &mut self.encoded);
            for StoresAnswer { seq, answer, .. } in of_one {
                StoredAnswers::encode_answer(*seq, answer, &mut self.encoded);
            }
            self.batch.put(&key::answer(session.id, slot), &self.encoded);
            self.going.push((session.clone(), slot));
        }
        self.answers.clear();
        self.answers_bytes = 0;
    }

    /// Notes that the batch is written that was taken.
    pub(crate) fn written(&mut self) {
        self.going.drain(..).for_each(|(session, slot)| session.stored(slot));
    }
}

impl Change {
    fn found<'a>(&'a self, bytes: &'a [u8]) -> Found<'a> {
        match self {
            Change::Put(range) => Found::Bytes(&bytes[range.clone()]),
            Change::Dir(content) => Found::Dir(content),
            Change::Delete => Found::Deleted,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{EntryName, ShardId};
    use store::Op;

    use super::*;
    use crate::record::TrashSetting;

    fn name(pos: u8) -> Key {
        let name = EntryName::new(b"name").unwrap();
        key::name(ShardId(1), DirId(300), u64::from(pos), &name, key::Part::Main)
    }

    fn ops(batch: &Batch) -> usize {
        batch.ops().count()
    }

    #[test]
    fn what_is_changed_is_seen_until_it_is_taken() {
        let mut changes = Changes::default();
        assert!(changes.are_none());
        changes.put(name(1), b"one");
        changes.put(name(1), b"two");
        changes.delete(name(2));
        assert!(matches!(changes.find(&name(1)), Some(Found::Bytes(b"two"))));
        assert!(matches!(changes.find(&name(2)), Some(Found::Deleted)));
        assert!(changes.find(&name(3)).is_none());
        assert_eq!(changes.all().count(), 2, "each key comes once");
        assert_eq!(ops(&changes.take_batch()), 3);
        assert!(changes.are_none());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_a_group_are_one_record_for_each_session() {
        let [one, other] = [1, 2].map(|id| Arc::new(Session::new(SessionId(id), 0, "test".into())));
        let mut changes = Changes::default();
        for (session, seq) in [(&one, 7), (&other, 3), (&one, 5)] {
            assert!(session.begin(Seq(seq), Seq(2)).is_ok());
            changes.put_answer(session.clone(), Seq(seq), Bytes::from(format!("answer {seq}")));
        }
        assert!(!changes.are_none() && changes.bytes() > 0);
        let answers = |id| key::answers(SessionId(id));
        assert!(
            changes.are_in(&answers(1), &answers(2)) && !changes.are_in(&answers(3), &answers(4))
        );
        changes.put(name(1), b"one");
        let batch = changes.take_batch();
        let stored: Vec<_> = batch
            .ops()
            .filter_map(|op| match op {
                Op::Put { key, value } if *key != *name(1) => {
                    let stored = StoredAnswers::from_record(&Bytes::copy_from_slice(value));
                    Some((Key::from_slice(key), stored.unwrap()))
                }
                _ => None,
            })
            .collect();
        let of = |id, seqs: &[u64]| {
            let answers = seqs.iter().map(|seq| (Seq(*seq), Bytes::from(format!("answer {seq}"))));
            let stored = StoredAnswers { settled: Seq(2), answers: answers.collect() };
            (key::answer(SessionId(id), 0), stored)
        };
        assert_eq!(stored, [of(1, &[7, 5]), of(2, &[3])]);
        assert!(changes.are_none() && changes.bytes() == 0);
        assert_eq!(one.slot_for(Seq(8)).0, 1, "slots are not shared");
        // The client gives up 5 and 7; a slot is free when its record is written.
        assert!(one.begin(Seq(9), Seq(9)).is_ok());
        assert_eq!(one.slot_for(Seq(9)).0, 2);
        changes.written();
        assert!(one.begin(Seq(10), Seq(10)).is_ok());
        assert_eq!(one.slot_for(Seq(10)).0, 0);
    }

    #[test]
    fn a_run_is_in_the_batch_and_its_range_is_changed() {
        let mut changes = Changes::default();
        changes.put_run([1, 3].map(|pos| (name(pos), &b"value"[..])).into_iter());
        assert!(changes.find(&name(1)).is_none(), "nobody asks for it");
        assert!(changes.are_in(&name(2), &name(4)) && !changes.are_in(&name(4), &name(5)));
        let all: Vec<_> = changes.all().map(|(key, value)| (key.clone(), value)).collect();
        assert_eq!(all, [(name(1), Some(&b"value"[..])), (name(3), Some(&b"value"[..]))]);
        assert_eq!(changes.records().count(), 0);
        changes.put_run(std::iter::empty());
        changes.delete_run(vec![name(6), name(7)]);
        assert_eq!(ops(&changes.take_batch()), 3);
        assert!(changes.are_none());
    }

    #[test]
    fn facts_of_operations_add_up_and_the_latest_settings_count() {
        let settings =
            |inline_bytes_max| Some(Settings { inline_bytes_max, trash: TrashSetting::default() });
        let mut changes = Changes::default();
        let facts = &mut changes.facts;
        facts.add(Facts { moved: vec![DirId(7)], settings: settings(1), ..Facts::default() });
        facts.add(Facts { moved: vec![DirId(8)], settings: settings(2), ..Facts::default() });
        facts.add(Facts { roots: true, ..Facts::default() });
        assert_eq!((&facts.moved[..], facts.settings), (&[DirId(7), DirId(8)][..], settings(2)));
        assert!(facts.roots && !changes.are_none());
    }
}
