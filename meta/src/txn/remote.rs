//! What a transaction knows, and wants, of other servers.
//!
//! An operation does not ask where a record is. Where it reads one that another server has, what was read there before
//! is here, or it ends with [`Fault::Remote`] and is run again when it is (`transact::run`). What it writes there is
//! kept here, for the other servers to prepare.
//!
//! Always true: what an operation has seen of other servers is in `known`, and all that it saw in its latest run in
//! `seen`; a transaction commits only when their servers have promised that it stays so.
//!
//! What was read of several servers need not be of one moment. What does not fit together is read anew; when the same
//! does not fit again and again, it is damaged.

use std::collections::BTreeMap;

use base::{DirId, HashMap, HashSet, Ino, Time};
use bytes::Bytes;
use wire::{ContentPatch, Expected, PeerWrite, Stands};

use crate::{
    bugs::{Bug, Planted},
    cluster::Cluster,
    error::{Fault, Result},
    record::{Content, Key, Record, key},
};

/// What is torn so often in a row, and is the same each time, is damaged.
const TEARS_MAX: u32 = 12;

/// The view.
#[derive(Default)]
pub(crate) struct Remote {
    /// Records as they were read.
    known: HashMap<Key, Option<Bytes>>,
    /// What the latest run has read or assumed of them.
    seen: HashSet<Key>,
    /// What it lacks, in the order in which that came to light, and to look it up.
    missing: Vec<Key>,
    lacks: HashSet<Key>,
    /// The inode numbers of the directories that are meant by keys of content records; 0: of several.
    meant: HashMap<Key, Ino>,
    /// What of it the operation can do without.
    spared: HashSet<Key>,
    /// What was spared when it was asked for: its server was silent.
    untold: HashSet<Key>,
    /// What others are not to see from when it is read: a directory may move with it.
    held: Vec<Key>,
    /// What it writes, in order; a later write of a key takes the place of an earlier one.
    writes: Vec<(Key, Write)>,
    /// The directories among them whose times may go back.
    exact: HashSet<Key>,
    /// Those that must count what they counted when they were read.
    counted: HashSet<Key>,
    /// Inode numbers that were drawn: each run gets the same.
    inos: Vec<Ino>,
    drawn: usize,
    /// Something was not as it had been taken for granted: nothing is any more.
    reads_all: bool,
    /// The share of a directory that was taken for granted as it was met before.
    presumed: Option<Key>,
    /// What is read may change meanwhile ([`crate::bugs::Bug::GraphIgnored`]).
    pub(super) careless: bool,
    /// In the latest run something did not fit together.
    torn: bool,
    /// What was known the last time that this was so, and how often it was the same.
    tears: (HashMap<Key, Option<Bytes>>, u32),
    /// What does not fit together is damaged.
    damaged: bool,
    /// To where the list of moved directories had come before anything was read.
    moved: Option<u64>,
    /// The time of the operation.
    pub(crate) now: Option<Time>,
    /// Of a session that begins: how many evictions this server had seen before anything was read.
    pub(crate) evictions: u64,
    /// The latest run lacked nothing, and moves no directory.
    pub(crate) complete: bool,
    /// The coordinator runs it: it may move directories.
    pub(crate) coordinated: bool,
    /// The directories that it moves, or whose permissions it changes,
    pub(crate) moves: Vec<DirId>,
    /// and those that must stay where they are meanwhile.
    pub(crate) chain: Vec<DirId>,
}

#[derive(Clone, PartialEq, Eq)]
enum Write {
    Put(Bytes),
    Dir(Box<Content>),
    Delete,
}

/// What one server has to prepare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) expects: Vec<Expected>,
    pub(crate) writes: Vec<PeerWrite>,
}

/// What each server has to prepare.
pub(crate) type Plan = BTreeMap<u16, Part>;

impl Remote {
    /// Another run begins.
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

    /// What was read may not be so any more.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.meant.clear();
        self.presumed = None;
        self.inos.clear();
        self.reads_all = true;
        self.damaged = false;
        self.moved = None;
        self.now = None;
        self.begin();
    }

    /// Something does not fit together; `false`: it is damaged.
    pub(super) fn tears(&mut self) -> bool {
        self.torn |= !self.damaged;
        !self.damaged
    }

    /// Whether something did not fit together in the latest run.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }

    /// After a run that was torn: whether to run it once more with what is known, as it is damaged. Otherwise it is
    /// forgotten, to be read anew.
    ///
    /// Race: whoever removes a directory, or the slot of an inode, removes what leads to it in the same transaction,
    /// and neither comes back under the same number. What is renamed back and forth can look the same each time it is looked
    /// at from the wrong side; the pauses between looks are drawn at random, so that this does not go on.
    pub(crate) fn is_damaged(&mut self) -> bool {
        let (was, times) = &mut self.tears;
        let same = was.len() == self.known.len()
            && was.iter().all(|(key, value)| {
                self.known.get(key).is_some_and(|now| is_same(key, value.as_ref(), now.as_ref()))
            });
        *times = if same { *times + 1 } else { 1 };
        if *times >= TEARS_MAX {
            self.damaged = true;
            return true;
        }
        *was = std::mem::take(&mut self.known);
        self.forget();
        false
    }

    /// What the latest run lacked.
    pub(crate) fn missing(&self) -> &[Key] {
        &self.missing
    }

    /// Whether the latest run has read or written anything of other servers.
    pub(crate) fn is_involved(&self) -> bool {
        !self.seen.is_empty() || !self.writes.is_empty()
    }

    /// Whether the latest run has read anything of other servers.
    pub(crate) fn has_seen(&self) -> bool {
        !self.seen.is_empty()
    }

    /// The latest run was refused: what it had written by then is not to be.
    pub(crate) fn refuses(&mut self) {
        self.writes.clear();
        self.moves.clear();
        self.chain.clear();
    }

    /// A record was read. Before it was asked for, the list of moved directories had come to `moved`.
    pub(crate) fn learn(&mut self, key: Key, value: Option<Bytes>, moved: u64) {
        // What is read later is not older: the first holds for all.
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

    /// What was read, without standing on it, and to where the list of moved directories had come before. What was only
    /// presumed is read: nobody else would say that it has changed.
    pub(super) fn glance(&mut self, key: &[u8]) -> Result<(Option<Bytes>, u64)> {
        if self.presumed.as_ref().is_some_and(|share| share[..] == *key) {
            self.presumed = None;
            self.known.remove(key);
        }
        match self.known.get(key) {
            // Where nothing was read, a record is at most assumed to be absent, and nobody learns from it.
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

    /// The operation will need this record: it may as well be read with others.
    pub(super) fn want(&mut self, key: &[u8]) {
        if !self.known.contains_key(key) && !self.lacks.contains(key) {
            self.missing.push(Key::from_slice(key));
            self.lacks.insert(Key::from_slice(key));
        }
    }

    /// The directory that is meant by the key of a content record: its server knows for more certain that this one is
    /// gone than that none is there.
    pub(super) fn means(&mut self, key: &[u8], ino: Ino) {
        if self.known.contains_key(key) {
            return;
        }
        let meant = self.meant.entry(Key::from_slice(key)).or_insert(ino);
        if *meant != ino {
            *meant = Ino(0);
        }
    }

    /// For each of these keys the directory that is meant; 0: none, or whichever is there.
    pub(crate) fn meant(&self, keys: &[Bytes]) -> Vec<Ino> {
        keys.iter().map(|key| self.meant.get(&key[..]).copied().unwrap_or(Ino(0))).collect()
    }

    /// As [`Remote::want`], if it can be had soon.
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

    /// The server of a record that can be spared does not say what it is.
    pub(crate) fn goes_without(&mut self, key: Key) {
        self.untold.insert(key);
    }

    /// Whether the operation has to do without a record.
    pub(super) fn is_untold(&self, key: &[u8]) -> bool {
        self.untold.contains(key)
    }

    /// As [`Remote::want`], and a directory may move with it.
    pub(super) fn want_held(&mut self, key: &[u8]) {
        self.want(key);
        // What was in the way once may be so again, and then it is better waited for.
        if !self.reads_all && self.lacks.contains(key) {
            self.held.push(Key::from_slice(key));
        }
    }

    /// What of [`Remote::missing`] others are not to see from when it is read.
    pub(crate) fn held(&self) -> &[Key] {
        &self.held
    }

    /// Takes for granted that there is no such record; whoever has it will say.
    pub(super) fn assume_absent(&mut self, key: &[u8]) {
        if !self.reads_all {
            self.known.entry(Key::from_slice(key)).or_insert(None);
        }
    }

    /// Takes for granted that a share is as it was met before, and a name in it free; whoever has them will say.
    pub(super) fn presume(&mut self, share: &Key, record: Bytes, name: &Key) {
        if !self.reads_all && !self.known.contains_key(share) && !self.known.contains_key(name) {
            self.known.insert(share.clone(), Some(record));
            self.known.insert(name.clone(), None);
            self.presumed = Some(share.clone());
        }
    }

    /// The share that was taken for granted as it was met before, if one was.
    pub(crate) fn presumed(&self) -> Option<&Key> {
        self.presumed.as_ref()
    }

    pub(super) fn put(&mut self, key: Key, value: Bytes) {
        self.write(key, Write::Put(value));
    }

    pub(super) fn put_dir(&mut self, key: Key, content: Content) {
        self.write(key, Write::Dir(Box::new(content)));
    }

    /// The times of a directory that it writes are set, and not only moved forward.
    pub(super) fn set_times(&mut self, key: Key) {
        self.exact.insert(key);
    }

    /// Nothing may come into a directory that it changes, nor go.
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

    /// An inode number: that of the run before, or a new one.
    pub(super) fn ino(&mut self, draw: impl FnOnce() -> Result<Ino>) -> Result<Ino> {
        if self.drawn == self.inos.len() {
            self.inos.push(draw()?);
        }
        self.drawn += 1;
        Ok(self.inos[self.drawn - 1])
    }

    /// What each server has to prepare for what the latest run has read and written.
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

/// Whether nothing but times and counts has changed.
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

/// What makes `new` of a content record, and leaves room for what others add meanwhile. If it is to be `exact`, times are
/// what they are in `new`.
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
    /// Whether another one differs in nothing but times and counts.
    pub(crate) fn is_stable_as(&self, mut other: Content) -> bool {
        other.times = crate::record::Times { btime: other.times.btime, ..self.times };
        (other.entries, other.subdirs) = (self.entries, self.subdirs);
        *self == other
    }

    /// Changes it as a patch says.
    pub(crate) fn apply(&mut self, patch: &ContentPatch, stable: Option<Content>) {
        if let Some(new) = stable {
            *self =
                Content { entries: self.entries, subdirs: self.subdirs, times: self.times, ..new };
        }
        self.entries = self.entries.saturating_add_signed(patch.entries);
        let subdirs = u64::from(self.subdirs).saturating_add_signed(patch.subdirs);
        self.subdirs = u32::try_from(subdirs).unwrap_or(u32::MAX);
        let later = |old: Time, new: Option<Time>| match new {
            Some(new) if patch.exact => new,
            Some(new) => new.max(old),
            None => old,
        };
        self.times.mtime = later(self.times.mtime, patch.mtime);
        self.times.ctime = later(self.times.ctime, patch.ctime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::from_slice(text.as_bytes())
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
        // All is read anew.
        remote.forget();
        assert!(remote.glance(b"dir").is_err());
        remote.learn(key("dir"), None, 9);
        assert_eq!(remote.glance(b"dir").unwrap(), (None, 9));
    }

    #[test]
    fn what_is_presumed_is_read_before_it_is_glanced_at() {
        let (mut remote, old) = (Remote::default(), Bytes::from_static(b"as it was met"));
        remote.begin();
        remote.presume(&key("share"), old.clone(), &key("name"));
        assert_eq!(remote.get(b"share").unwrap(), Some(old.clone()));
        assert!(remote.glance(b"share").is_err());
        assert_eq!(remote.missing(), [key("share")]);
        assert_eq!(remote.presumed(), None);
        remote.learn(key("share"), None, 7);
        remote.begin();
        remote.presume(&key("share"), old, &key("name"));
        assert_eq!(remote.glance(b"share").unwrap(), (None, 7));
    }
}
