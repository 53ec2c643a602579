//! The record cache: records that were read or written lately, so that the engine is not
//! asked for them again.
//!
//! Transactions read through it, and every core has it follow its writes. It holds records under
//! names (entries with their embedded inodes) as bytes, and content records of directories as
//! values: every group of creates reads the record of its directory. Both parts have a bound. The
//! cache never holds that a record is missing.
//!
//! Invariant: a record here equals the engine's. So the keys that a batch changes are taken out
//! before the write, and nothing comes in until the write is done: a slow reader, between the
//! engine and this cache, could bring a value of before the write.

use std::{hash::Hasher as _, mem, sync::Arc};

use base::{HashMap, hash::FixedHasher};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    changes::{Changes, Facts},
    follow::{Follower, Write},
    record::{Content, Key, key},
};

/// The most memory for names, in bytes.
const NAMES_BYTES_MAX: usize = 16 << 20;
/// The most memory for directories, in bytes.
const DIRS_BYTES_MAX: usize = 8 << 20;
/// Bytes that a record takes besides its key and value: its place in a map, and an allocation.
const RECORD_BYTES: usize = 60;
/// Largest record that is kept, in bytes. Larger ones, such as names with much inline contents,
/// would push out too many others.
const RECORD_BYTES_MAX: usize = 8 << 10;
const STRIPES: usize = 16;

/// The record cache of a server.
pub(crate) struct RecordCache {
    names: Records<Name>,
    dirs: Records<Dir>,
}

/// Records that a batch changes, kept out of the cache from before its write until after it.
#[must_use = "nothing comes in until it is released"]
struct Excluded {
    names: ExcludedRecords<Name>,
    dirs: ExcludedRecords<Dir>,
}

/// Keeps the cache equal to the engine while a core writes.
pub(crate) struct Keeper {
    cache: Arc<RecordCache>,
    excluded: Option<Excluded>,
}

impl Keeper {
    pub(crate) fn new(cache: Arc<RecordCache>) -> Keeper {
        Keeper { cache, excluded: None }
    }
}

impl Follower for Keeper {
    fn writing(&mut self, changes: &mut Changes) {
        self.excluded = Some(self.cache.exclude(changes));
    }

    fn written(&mut self, _facts: &mut Facts, write: Write) {
        if let Some(excluded) = self.excluded.take() {
            self.cache.admit(excluded, write.is_done);
        }
    }
}

impl RecordCache {
    pub(crate) fn new() -> RecordCache {
        RecordCache { names: Records::new(NAMES_BYTES_MAX), dirs: Records::new(DIRS_BYTES_MAX) }
    }

    /// The bytes under the key of a name: from the cache, or from the engine, which `read` asks.
    pub(crate) fn name<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Bytes>, E>,
    ) -> Result<Option<Bytes>, E> {
        self.names.get(key, read, |value| Name::new(key, value))
    }

    /// The content record under its key: from the cache, or from the engine, which `read` asks.
    pub(crate) fn dir<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Content>, E>,
    ) -> Result<Option<Content>, E> {
        self.dirs.get(key, read, |content| Dir::new(key, content))
    }

    /// Takes out the records that a batch is about to change.
    fn exclude(&self, changes: &Changes) -> Excluded {
        let names = changes.all().filter(|(key, _)| key::is_name(key));
        let names = names.map(|(key, value)| (key, value.map(|value| Name::new(key, value))));
        let dirs = changes.contents();
        let dirs = dirs.map(|(key, content)| (key, content.map(|content| Dir::new(key, content))));
        Excluded { names: self.names.exclude(names), dirs: self.dirs.exclude(dirs) }
    }

    /// Lets in the records of a batch that is written. With `false` nobody knows whether it is, and
    /// none come in.
    fn admit(&self, excluded: Excluded, written: bool) {
        self.names.admit(excluded.names, written);
        self.dirs.admit(excluded.dirs, written);
    }

    /// Forgets all records.
    #[cfg(test)]
    pub(crate) fn clear(&self) {
        self.names.clear();
        self.dirs.clear();
    }
}

/// A record with its key.
trait Kept {
    type Value;
    fn value_of(&self, key: &[u8]) -> Option<Self::Value>;
    /// Memory of the record, in bytes.
    fn size(&self) -> usize;
}

/// A name's key and value in one piece.
struct Name {
    bytes: Box<[u8]>,
    key_len: usize,
}

/// A directory, or a partition of one.
struct Dir {
    key: Key,
    content: Content,
}

/// Cached records of one kind.
struct Records<R> {
    stripes: Vec<Mutex<Stripe<R>>>,
    /// Most bytes of one generation of a stripe.
    bytes_max: usize,
}

struct Stripe<R> {
    /// Records by the hash of their key; of two with the same hash only the later one is kept.
    /// `young` has those used since the generation began, `old` those used in the generation
    /// before. A full `young` takes the place of `old`: a whole map is dropped at once, and no
    /// record to evict is searched for.
    young: HashMap<u64, R>,
    old: HashMap<u64, R>,
    young_bytes: usize,
    /// Number of changes under way.
    writing: u32,
    /// Number of changes that have ended.
    written: u64,
}

struct ExcludedRecords<R>(Vec<(u64, Option<R>)>);

impl<R: Kept> Records<R> {
    fn new(bytes_max: usize) -> Records<R> {
        let stripe = || Stripe {
            young: HashMap::default(),
            old: HashMap::default(),
            young_bytes: 0,
            writing: 0,
            written: 0,
        };
        let stripes = (0..STRIPES).map(|_| Mutex::new(stripe())).collect();
        Records { stripes, bytes_max: bytes_max / STRIPES }
    }

    fn stripe(&self, hash: u64) -> MutexGuard<'_, Stripe<R>> {
        let stripe = hash % STRIPES as u64;
        self.stripes[usize::try_from(stripe).expect("a small number")].lock()
    }

    fn get<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<R::Value>, E>,
        keep: impl FnOnce(&R::Value) -> R,
    ) -> Result<Option<R::Value>, E> {
        let hash = hash(key);
        let written = {
            let mut stripe = self.stripe(hash);
            if let Some(value) = stripe.get(hash, key, self.bytes_max) {
                return Ok(Some(value));
            }
            stripe.written
        };
        let value = read()?;
        if let Some(value) = &value {
            let mut stripe = self.stripe(hash);
            if stripe.writing == 0 && stripe.written == written {
                stripe.insert(hash, keep(value), self.bytes_max);
            }
        }
        Ok(value)
    }

    /// Takes out records that are about to change. Each key comes once.
    fn exclude<'a>(
        &self,
        changes: impl Iterator<Item = (&'a Key, Option<R>)>,
    ) -> ExcludedRecords<R> {
        let excluded = changes.map(|(key, record)| {
            let hash = hash(key);
            let mut stripe = self.stripe(hash);
            stripe.remove(hash);
            stripe.writing += 1;
            (hash, record)
        });
        ExcludedRecords(excluded.collect())
    }

    fn admit(&self, excluded: ExcludedRecords<R>, written: bool) {
        for (hash, record) in excluded.0 {
            let mut stripe = self.stripe(hash);
            stripe.writing -= 1;
            stripe.written += 1;
            if let Some(record) = record.filter(|_| written) {
                stripe.insert(hash, record, self.bytes_max);
            }
        }
    }

    #[cfg(test)]
    fn clear(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            stripe.young.clear();
            stripe.old.clear();
            stripe.young_bytes = 0;
        }
    }
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = FixedHasher::default();
    hasher.write(key);
    hasher.finish()
}

impl Name {
    fn new(key: &[u8], value: &[u8]) -> Name {
        Name { bytes: [key, value].concat().into(), key_len: key.len() }
    }
}

impl Kept for Name {
    type Value = Bytes;

    fn value_of(&self, key: &[u8]) -> Option<Bytes> {
        let (found, value) = self.bytes.split_at(self.key_len);
        (found == key).then(|| Bytes::copy_from_slice(value))
    }

    fn size(&self) -> usize {
        self.bytes.len() + RECORD_BYTES
    }
}

impl Dir {
    fn new(key: &[u8], content: &Content) -> Dir {
        Dir { key: Key::from_slice(key), content: content.clone() }
    }
}

impl Kept for Dir {
    type Value = Content;

    fn value_of(&self, key: &[u8]) -> Option<Content> {
        (self.key[..] == *key).then(|| self.content.clone())
    }

    fn size(&self) -> usize {
        size_of::<Dir>() + self.content.bytes_beside() + RECORD_BYTES
    }
}

impl<R: Kept> Stripe<R> {
    fn get(&mut self, hash: u64, key: &[u8], bytes_max: usize) -> Option<R::Value> {
        if let Some(record) = self.young.get(&hash) {
            return record.value_of(key);
        }
        let record = self.old.remove(&hash)?;
        let value = record.value_of(key);
        self.insert(hash, record, bytes_max);
        value
    }

    fn insert(&mut self, hash: u64, record: R, bytes_max: usize) {
        self.remove(hash);
        if record.size() > RECORD_BYTES_MAX {
            return;
        }
        self.young_bytes += record.size();
        self.young.insert(hash, record);
        if self.young_bytes > bytes_max / 2 {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn remove(&mut self, hash: u64) {
        if let Some(record) = self.young.remove(&hash) {
            self.young_bytes -= record.size();
        }
        self.old.remove(&hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pos: u8) -> Key {
        let name = base::EntryName::new(b"name").unwrap();
        let (shard, dir) = (base::ShardId(1), base::DirId(300));
        key::name(shard, dir, u64::from(pos), &name, key::Part::Main)
    }

    fn names() -> Records<Name> {
        Records::new(NAMES_BYTES_MAX)
    }

    fn exclude(cache: &Records<Name>, key: &Key, value: Option<&[u8]>) -> ExcludedRecords<Name> {
        cache.exclude([(key, value.map(|value| Name::new(key, value)))].into_iter())
    }

    fn get(
        cache: &Records<Name>,
        key: &Key,
        stored: Result<Option<Bytes>, ()>,
    ) -> Result<Option<Bytes>, ()> {
        cache.get(key, || stored, |value| Name::new(key, value))
    }

    fn read(cache: &Records<Name>, key: &Key, stored: Option<&'static [u8]>) -> Option<Bytes> {
        get(cache, key, Ok(stored.map(Bytes::from_static))).unwrap()
    }

    fn is_cached(cache: &Records<Name>, key: &Key) -> bool {
        get(cache, key, Err(())).is_ok()
    }

    #[test]
    fn what_was_read_or_written_is_cached() {
        let cache = names();
        assert_eq!(read(&cache, &name(1), Some(b"one")).unwrap(), "one");
        assert_eq!(read(&cache, &name(1), None).unwrap(), "one");
        let excluded = exclude(&cache, &name(2), Some(b"two"));
        cache.admit(excluded, true);
        assert_eq!(read(&cache, &name(2), None).unwrap(), "two");
        assert_eq!(read(&cache, &name(3), None), None);
        assert!(!is_cached(&cache, &name(3)));
    }

    #[test]
    fn what_is_being_written_is_not_here_and_does_not_come_in() {
        let cache = names();
        assert!(read(&cache, &name(1), Some(b"old")).is_some());
        let excluded = exclude(&cache, &name(1), Some(b"new"));
        assert_eq!(read(&cache, &name(1), Some(b"old")).unwrap(), "old");
        assert!(!is_cached(&cache, &name(1)));
        cache.admit(excluded, true);
        assert_eq!(read(&cache, &name(1), None).unwrap(), "new");
    }

    #[test]
    fn a_reader_that_is_overtaken_by_a_write_leaves_nothing_here() {
        let cache = names();
        let overtaken = || {
            let excluded = exclude(&cache, &name(1), None);
            cache.admit(excluded, true);
            Ok::<_, ()>(Some(Bytes::from_static(b"old")))
        };
        let slow = cache.get(&name(1), overtaken, |value| Name::new(&name(1), value));
        assert_eq!(slow.unwrap().unwrap(), "old");
        assert!(!is_cached(&cache, &name(1)));
    }

    #[test]
    fn what_may_not_have_been_written_is_not_cached() {
        let cache = names();
        let excluded = exclude(&cache, &name(1), Some(b"new"));
        cache.admit(excluded, false);
        assert!(!is_cached(&cache, &name(1)));
    }

    #[test]
    fn only_so_much_is_cached_and_what_is_used_stays() {
        let cache = names();
        let value = Bytes::from(vec![0; 4096]);
        for number in 0..NAMES_BYTES_MAX / 2048 {
            let key = {
                let name = base::EntryName::new(format!("{number}").as_bytes()).unwrap();
                let (shard, dir) = (base::ShardId(1), base::DirId(300));
                key::name(shard, dir, number as u64, &name, key::Part::Main)
            };
            assert!(get(&cache, &key, Ok(Some(value.clone()))).unwrap().is_some());
            assert!(read(&cache, &name(7), Some(b"used")).is_some());
        }
        let cached: usize = cache.stripes.iter().map(|stripe| stripe.lock().young.len()).sum();
        assert!(cached * 4096 <= NAMES_BYTES_MAX / 2);
        assert!(is_cached(&cache, &name(7)));
    }
}
