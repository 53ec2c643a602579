//! The records of other servers that a transaction knows, and wants.
//!
//! An operation does not ask where a record is. When it reads one that another server has, the
//! value that was read there before is here, or the operation ends with [`Fault::Remote`] and is
//! run again when it is (`transact::run`). Writes to other servers' records are kept here, for
//! those servers to prepare.
//!
//! Always true: all records that an operation has seen of other servers are in `known`, and those
//! of its latest run in `seen`. A transaction commits only when their servers have promised that
//! they stay so.
//!
//! Records of several servers need not be of one moment. Records that do not fit together are read
//! anew; when the same ones do not fit again and again, they are damaged.

use std::collections::BTreeMap;

use base::{DirId, HashMap, HashSet, Ino, SessionId, Time};
use bytes::Bytes;
use wire::{ContentPatch, Expected, PeerWrite, Stands};

use crate::{
    bugs::{Bug, Planted},
    cluster::Cluster,
    error::{Fault, Result},
    record::{Content, Key, Record, key},
    remote_hints::RemoteHints,
};

/// Number of times in a row after which records that do not fit together, and are the same each
/// time, are damaged.
const TORN_READS_MAX: u32 = 12;

/// A transaction's view of other servers.
#[derive(Default)]
pub(crate) struct Remote {
    /// Records as they were read.
    known: HashMap<Key, Option<Bytes>>,
    /// The keys that the latest run has read or assumed.
    seen: HashSet<Key>,
    /// The keys that the latest run lacks, in the order in which it asked; `lacks` has them for
    /// look-ups.
    missing: Vec<Key>,
    lacks: HashSet<Key>,
    /// Inode numbers of the directories that keys of content records mean; 0: several directories.
    meant: HashMap<Key, Ino>,
    /// Missing keys that the operation can do without.
    spared: HashSet<Key>,
    /// Keys that were spared when they were asked for: their server was silent.
    untold: HashSet<Key>,
    /// Keys of records that others must not see from when they are read: a directory may move with
    /// them.
    held: Vec<Key>,
    /// The operation's writes, in order; a later write of a key replaces an earlier one.
    writes: Vec<(Key, Write)>,
    /// Directories in `writes` whose times may go back.
    exact: HashSet<Key>,
    /// Directories whose counts must be the same as when they were read.
    counted: HashSet<Key>,
    /// Inode numbers that were drawn: each run gets the same.
    inos: Vec<Ino>,
    drawn: usize,
    /// Whether an assumption was wrong: nothing is assumed any more.
    reads_all: bool,
    /// The share of a directory that was assumed to be as it is remembered.
    assumed: Option<Key>,
    /// Whether records may change after they were read ([`crate::bugs::Bug::GraphIgnored`]).
    pub(super) careless: bool,
    /// Whether records did not fit together in the latest run.
    torn: bool,
    /// The known records of the last run that was torn, and how often in a row they were the same.
    torn_reads: (HashMap<Key, Option<Bytes>>, u32),
    /// Whether records that do not fit together are damaged.
    damaged: bool,
    /// The version of the list of moved directories before anything was read.
    moved: Option<u64>,
    /// The time of the operation.
    pub(crate) now: Option<Time>,
    /// The session whose directories need not be recalled for the operation.
    pub(crate) session: Option<SessionId>,
    /// For a session that begins: the number of evictions that this server had seen before anything
    /// was read.
    pub(crate) evictions: u64,
    /// Whether the latest run lacked nothing, and moves no directory.
    pub(crate) complete: bool,
    /// Whether the coordinator runs the operation: it may move directories.
    pub(crate) coordinated: bool,
    /// Whether directories whose entries may still be lost count as absent.
    pub(crate) wants_confirmed: bool,
    /// The directories that the operation moves, or whose permissions it changes.
    pub(crate) moves: Vec<DirId>,
    /// The directories that must stay where they are meanwhile.
    pub(crate) chain: Vec<DirId>,
}

#[derive(Clone, PartialEq, Eq)]
enum Write {
    Put(Bytes),
    Dir(Box<Content>),
    Delete,
}

/// The expectations and writes that one server has to prepare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) expects: Vec<Expected>,
    pub(crate) writes: Vec<PeerWrite>,
}

/// The part that each server has to prepare.
pub(crate) type Plan = BTreeMap<u16, Part>;

impl Remote {
    /// Begins another run.
    pub(crate) fn begin(&mut self) {
        self.seen.clear();
        self.missing.clear();
        self.lacks.clear();
        self.spared.clear();
        self.held.clear();
        self.writes.clear();
        self.exact.clear();
        self.counted.clear();
        self.moves.clear();
        self.chain.clear();
        self.drawn = 0;
        self.complete = false;
        self.torn = false;
        self.careless = false;
    }

    /// Forgets the records that were read, which may have changed.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.meant.clear();
        self.assumed = None;
        self.inos.clear();
        self.reads_all = true;
        self.damaged = false;
        self.moved = None;
        self.now = None;
        self.begin();
    }

    /// Notes that records do not fit together. `false`: they are damaged.
    pub(super) fn mark_torn(&mut self) -> bool {
        self.torn |= !self.damaged;
        !self.damaged
    }

    /// Whether records did not fit together in the latest run.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Whether the records of a torn run are damaged, and the operation is to run once more with
    /// them. Otherwise they are forgotten, to be read anew.
    ///
    /// Race: a transaction that removes a directory, or the slot of an inode, also removes the
    /// record that leads to it, and neither comes back under the same number. A record that is
    /// renamed back and forth can look the same each time it is read from the wrong side. The
    /// pauses between reads are drawn at random, so that this does not go on.
    pub(crate) fn is_damaged(&mut self) -> bool {
        let (was, times) = &mut self.torn_reads;
        let same = was.len() == self.known.len()
            && was.iter().all(|(key, value)| {
                self.known.get(key).is_some_and(|now| is_same(key, value.as_ref(), now.as_ref()))
            });
        *times = if same { *times + 1 } else { 1 };
        if *times >= TORN_READS_MAX {
            self.damaged = true;
            return true;
        }
        *was = std::mem::take(&mut self.known);
        self.forget();
        false
    }

    /// The keys that the latest run lacked.
    pub(crate) fn missing(&self) -> &[Key] {
        &self.missing
    }

    /// Whether the latest run has read or written records of other servers.
    pub(crate) fn is_involved(&self) -> bool {
        !self.seen.is_empty() || !self.writes.is_empty()
    }

    /// Whether the latest run has read records of other servers.
    pub(crate) fn has_seen(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Drops the writes of the latest run, which was refused.
    pub(crate) fn refuses(&mut self) {
        self.writes.clear();
        self.moves.clear();
        self.chain.clear();
    }

    /// Learns a record. `moved` is the version of the list of moved directories before it was asked
    /// for.
    pub(crate) fn learn(&mut self, key: Key, value: Option<Bytes>, moved: u64) {
        // Later reads are not older: the first version holds for all.
        self.moved.get_or_insert(moved);
        self.known.insert(key, value);
    }

    pub(super) fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        let written = self.writes.iter().rev().find(|(written, _)| written[..] == *key);
        if let Some((_, write)) = written {
            return Ok(match write {
                Write::Put(bytes) => Some(bytes.clone()),
                Write::Dir(content) => Some(content.to_record()),
                Write::Delete => None,
            });
        }
        if let Some(known) = self.known.get(key) {
            if !self.careless {
                self.seen.insert(Key::from_slice(key));
            }
            return Ok(known.clone());
        }
        self.want(key);
        Err(Fault::Remote)
    }

    /// A record as it was read, without standing on it, and the version of the list of moved
    /// directories from before. An assumed record is read: nobody else would report a change of it.
    pub(super) fn glance(&mut self, key: &[u8]) -> Result<(Option<Bytes>, u64)> {
        if self.assumed.as_ref().is_some_and(|share| share[..] == *key) {
            self.assumed = None;
            self.known.remove(key);
        }
        match self.known.get(key) {
            // Where nothing was read, a record is at most assumed to be absent, and nobody learns
            // from it.
            Some(known) => Ok((known.clone(), self.moved.unwrap_or_default())),
            None => {
                self.want(key);
                Err(Fault::Remote)
            }
        }
    }

    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.known.contains_key(key) || self.writes.iter().any(|(written, _)| written[..] == *key)
    }

    /// Asks for a record that the operation will need, so that it is read together with others.
    pub(super) fn want(&mut self, key: &[u8]) {
        if !self.known.contains_key(key) && !self.lacks.contains(key) {
            self.missing.push(Key::from_slice(key));
            self.lacks.insert(Key::from_slice(key));
        }
    }

    /// Notes the directory that the key of a content record means. Its server can tell with more
    /// certainty that this directory is gone than that none exists.
    pub(super) fn means(&mut self, key: &[u8], ino: Ino) {
        if self.known.contains_key(key) {
            return;
        }
        let meant = self.meant.entry(Key::from_slice(key)).or_insert(ino);
        if *meant != ino {
            *meant = Ino(0);
        }
    }

    /// The directory that each of these keys means; 0: none, or any.
    pub(crate) fn meant(&self, keys: &[Bytes]) -> Vec<Ino> {
        keys.iter().map(|key| self.meant.get(&key[..]).copied().unwrap_or(Ino(0))).collect()
    }

    /// Like [`Remote::want`], for a record that is wanted only if it can be had soon.
    pub(super) fn want_if_told(&mut self, key: &[u8]) {
        if !self.untold.contains(key) {
            self.want(key);
            self.spared.insert(Key::from_slice(key));
        }
    }

    /// Whether the operation can do without all of these.
    pub(crate) fn spares(&self, keys: &[Bytes]) -> bool {
        keys.iter().all(|key| self.spared.contains(&key[..]))
    }

    /// Notes that the server of a record that can be spared is silent.
    pub(crate) fn goes_without(&mut self, key: Key) {
        self.untold.insert(key);
    }

    /// Whether the operation has to do without a record.
    pub(super) fn is_untold(&self, key: &[u8]) -> bool {
        self.untold.contains(key)
    }

    /// Like [`Remote::want`], for a record with which a directory may move.
    pub(super) fn want_held(&mut self, key: &[u8]) {
        self.want(key);
        // After a failed attempt the record is not held: a transaction that was in the way may be
        // so again, and is better waited for.
        if !self.reads_all && self.lacks.contains(key) {
            self.held.push(Key::from_slice(key));
        }
    }

    /// The keys in [`Remote::missing`] whose records others must not see from when they are read.
    pub(crate) fn held(&self) -> &[Key] {
        &self.held
    }

    /// Assumes that there is no such record; its server checks that.
    pub(super) fn assume_absent(&mut self, key: &[u8]) {
        if !self.reads_all {
            self.known.entry(Key::from_slice(key)).or_insert(None);
        }
    }

    /// Assumes that a share is as it is remembered, and a name in it free; their server checks
    /// that.
    pub(super) fn assume(&mut self, share: &Key, record: Bytes, name: &Key) {
        if !self.reads_all && !self.known.contains_key(share) && !self.known.contains_key(name) {
            self.known.insert(share.clone(), Some(record));
            self.known.insert(name.clone(), None);
            self.assumed = Some(share.clone());
        }
    }

    /// The share that was assumed to be as it is remembered, if one was.
    pub(crate) fn assumed(&self) -> Option<&Key> {
        self.assumed.as_ref()
    }

    /// Forgets the memory that the assumption rests on, which may be wrong.
    pub(crate) fn unlearn_assumed(&self, remote_hints: &RemoteHints) {
        if let Some(share) = self.assumed() {
            remote_hints.forget(share);
        }
    }

    pub(super) fn put(&mut self, key: Key, value: Bytes) {
        self.write(key, Write::Put(value));
    }

    pub(super) fn put_dir(&mut self, key: Key, content: Content) {
        self.write(key, Write::Dir(Box::new(content)));
    }

    /// Makes the write of a directory set its times, instead of only moving them forward.
    pub(super) fn set_times(&mut self, key: Key) {
        self.exact.insert(key);
    }

    /// Makes the write of a directory depend on its counts: no entry may come or go.
    pub(super) fn keep_counts(&mut self, key: Key) {
        self.counted.insert(key);
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.write(key, Write::Delete);
    }

    fn write(&mut self, key: Key, write: Write) {
        self.writes.retain(|(written, _)| *written != key);
        self.writes.push((key, write));
    }

    /// An inode number: the one of the run before, or a new one.
    pub(super) fn ino(&mut self, draw: impl FnOnce() -> Result<Ino>) -> Result<Ino> {
        if self.drawn == self.inos.len() {
            self.inos.push(draw()?);
        }
        self.drawn += 1;
        Ok(self.inos[self.drawn - 1])
    }

    /// The parts that other servers have to prepare, by the reads and writes of the latest run.
    pub(crate) fn plan(&self, cluster: &Cluster, bugs: Planted) -> Result<Plan> {
        let mut plan = Plan::new();
        let careless = bugs.has(Bug::ShareNotExpected);
        let server = |key: &Key| cluster.server_of_key(key).ok_or(Fault::Retry(wire::Retry::Busy));
        let mut seen: Vec<_> = self.seen.iter().collect();
        seen.sort_unstable();
        for at in seen {
            if careless && key::is_content(at) {
                continue;
            }
            let was = self.known.get(at).cloned().flatten();
            let removes =
                self.writes.iter().any(|(key, write)| key == at && *write == Write::Delete);
            let stays = removes || self.counted.contains(at);
            let stable = key::is_content(at) && was.is_some() && !stays;
            let stands = if stable { Stands::Stable } else { Stands::Whole };
            let expected = Expected { key: Bytes::copy_from_slice(at), was, stands };
            plan.entry(server(at)?).or_default().expects.push(expected);
        }
        for (at, write) in &self.writes {
            let key = Bytes::copy_from_slice(at);
            let write = match write {
                Write::Put(value) => PeerWrite::Put((key, value.clone())),
                Write::Delete => PeerWrite::Delete(key),
                Write::Dir(content) => match self.known.get(at).cloned().flatten() {
                    Some(was) => {
                        let was = Content::from_record(&was)?;
                        PeerWrite::Patch((key, patch(was, content, self.exact.contains(at))))
                    }
                    None => PeerWrite::Put((key, content.to_record())),
                },
            };
            plan.entry(server(at)?).or_default().writes.push(write);
        }
        Ok(plan)
    }
}

/// Whether only times and counts have changed.
fn is_same(key: &[u8], was: Option<&Bytes>, now: Option<&Bytes>) -> bool {
    let content = |record: &Bytes| Content::from_record(record);
    match (was, now) {
        (Some(was), Some(now)) if was != now && key::is_content(key) => {
            let both = content(was).and_then(|was| Ok((was, content(now)?)));
            both.is_ok_and(|(was, now)| was.is_stable_as(now))
        }
        (was, now) => was == now,
    }
}

/// The patch that changes a content record to `new`, and leaves room for concurrent changes of
/// counts and times. With `exact`, times become those of `new`.
fn patch(was: Content, new: &Content, exact: bool) -> ContentPatch {
    let time = |was: Time, new: Time| (was != new).then_some(new);
    let difference = |was: u64, new: u64| new.cast_signed().wrapping_sub(was.cast_signed());
    ContentPatch {
        entries: difference(was.entries, new.entries),
        subdirs: difference(was.subdirs.into(), new.subdirs.into()),
        mtime: time(was.times.mtime, new.times.mtime),
        ctime: time(was.times.ctime, new.times.ctime),
        exact,
        stable: (exact || !new.is_stable_as(was)).then(|| new.to_record()),
    }
}

impl Content {
    /// Whether another content record differs only in times and counts.
    pub(crate) fn is_stable_as(&self, mut other: Content) -> bool {
        other.times = crate::record::Times { btime: other.times.btime, ..self.times };
        (other.entries, other.subdirs) = (self.entries, self.subdirs);
        *self == other
    }

    /// Applies a patch.
    pub(crate) fn apply(&mut self, patch: &ContentPatch, stable: Option<Content>) {
        if let Some(new) = stable {
            *self =
                Content { entries: self.entries, subdirs: self.subdirs, times: self.times, ..new };
        }
        self.entries = self.entries.saturating_add_signed(patch.entries);
        let subdirs = u64::from(self.subdirs).saturating_add_signed(patch.subdirs);
        self.subdirs = u32::try_from(subdirs).unwrap_or(u32::MAX);
        // A modification time that lies ahead of the last change was set by hand; a later change
        // sets it back.
        let is_last = patch.mtime.is_some_and(|mtime| mtime >= self.times.ctime);
        self.times.mtime = match patch.mtime {
            Some(new) if patch.exact || is_last => new,
            Some(new) => new.max(self.times.mtime),
            None => self.times.mtime,
        };
        self.times.ctime = match patch.ctime {
            Some(new) if patch.exact => new,
            Some(new) => new.max(self.times.ctime),
            None => self.times.ctime,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::from_slice(text.as_bytes())
    }

    #[test]
    fn changes_of_a_directory_leave_the_time_of_the_last_one_in_any_order() {
        let at = |sec| Time { sec, nsec: 0 };
        let touched = |sec| ContentPatch {
            stable: None,
            entries: 1,
            subdirs: 0,
            mtime: Some(at(sec)),
            ctime: Some(at(sec)),
            exact: false,
        };
        let after = |mtime, ctime, patches: &[i64]| {
            let mut content = crate::format::root_content(at(0));
            (content.times.mtime, content.times.ctime) = (at(mtime), at(ctime));
            patches.iter().for_each(|sec| content.apply(&touched(*sec), None));
            (content.times.mtime, content.times.ctime)
        };
        for order in [[20, 30], [30, 20]] {
            assert_eq!(after(10, 10, &order), (at(30), at(30)));
            assert_eq!(after(99, 10, &order), (at(30), at(30)), "it was set ahead at 10");
            assert_eq!(after(99, 25, &order), (at(30), at(30)), "it was set ahead at 25");
            assert_eq!(after(99, 40, &order), (at(99), at(40)), "it was set ahead at 40");
            assert_eq!(after(5, 40, &order), (at(30), at(40)), "its mode was changed at 40");
        }
        assert_eq!(after(99, 30, &[30]), (at(30), at(30)), "at the same moment");
    }

    #[test]
    fn what_is_glanced_at_is_as_old_as_what_was_read_first() {
        let (mut remote, record) = (Remote::default(), Bytes::from_static(b"below a"));
        // A run that glances at nothing, as the way up is known, but reads the directory.
        remote.begin();
        assert!(remote.get(b"dir").is_err());
        remote.learn(key("dir"), Some(record.clone()), 7);
        // The directory moves; the way up is not known any more.
        remote.begin();
        assert_eq!(remote.get(b"dir").unwrap(), Some(record.clone()));
        assert!(remote.glance(b"above").is_err());
        remote.learn(key("above"), None, 8);
        remote.begin();
        assert_eq!(remote.glance(b"dir").unwrap(), (Some(record), 7));
        assert_eq!(remote.glance(b"above").unwrap(), (None, 7), "it may be newer than that");
        // All records are read anew.
        remote.forget();
        assert!(remote.glance(b"dir").is_err());
        remote.learn(key("dir"), None, 9);
        assert_eq!(remote.glance(b"dir").unwrap(), (None, 9));
    }

    #[test]
    fn what_is_assumed_is_read_before_it_is_glanced_at() {
        let (mut remote, old) = (Remote::default(), Bytes::from_static(b"as it was met"));
        remote.begin();
        remote.assume(&key("share"), old.clone(), &key("name"));
        assert_eq!(remote.get(b"share").unwrap(), Some(old.clone()));
        assert!(remote.glance(b"share").is_err());
        assert_eq!(remote.missing(), [key("share")]);
        assert_eq!(remote.assumed(), None);
        remote.learn(key("share"), None, 7);
        remote.begin();
        remote.assume(&key("share"), old, &key("name"));
        assert_eq!(remote.glance(b"share").unwrap(), (None, 7));
    }
}
