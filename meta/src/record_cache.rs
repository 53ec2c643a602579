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

mod packed;
mod shelf;

use std::{hash::Hasher as _, mem, sync::Arc};

use base::hash::FixedHasher;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use self::{
    packed::Packed,
    shelf::{Shelf, Values},
};
use crate::{
    changes::{Changes, Facts},
    follow::{Follower, Write},
    record::{Content, Key, key},
};

/// The part of the cache that is for directories, but for small caches: those have a third, up to
/// so many bytes.
const DIRS_SHARE: usize = 8;
const DIRS_BYTES_SMALL: usize = 8 << 20;
/// Largest record that is kept, in bytes. Larger ones, such as names with much inline contents,
/// would push out too many others.
const RECORD_BYTES_MAX: usize = 8 << 10;
/// About how many bytes a stripe has, so that a generation is dropped in a moment however large
/// the cache is.
const STRIPE_BYTES: usize = 2 << 20;
const STRIPES_MIN: usize = 16;
const STRIPES_MAX: usize = 1 << 16;

/// The record cache of a server.
pub(crate) struct RecordCache {
    names: Records<Packed>,
    dirs: Records<Values>,
}

/// Records that a batch changes, kept out of the cache from before its write until after it.
#[must_use = "nothing comes in until it is released"]
struct Excluded {
    names: ExcludedRecords<Packed>,
    dirs: ExcludedRecords<Values>,
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
    /// A cache of so many bytes at most.
    pub(crate) fn new(bytes_max: u64) -> RecordCache {
        let bytes = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let dirs = (bytes / 3).min(DIRS_BYTES_SMALL).max(bytes / DIRS_SHARE);
        RecordCache { names: Records::new(bytes - dirs), dirs: Records::new(dirs) }
    }

    /// The bytes under the key of a name: from the cache, or from the engine, which `read` asks.
    pub(crate) fn name<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Bytes>, E>,
    ) -> Result<Option<Bytes>, E> {
        self.names.get(key, read)
    }

    /// The content record under its key: from the cache, or from the engine, which `read` asks.
    pub(crate) fn dir<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Content>, E>,
    ) -> Result<Option<Content>, E> {
        self.dirs.get(key, read)
    }

    /// Memory that the cache has taken, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.names.bytes() + self.dirs.bytes();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Takes out the records that a batch is about to change.
    fn exclude(&self, changes: &Changes) -> Excluded {
        let names = changes.all().filter(|(key, _)| key::is_name(key));
        let names = names.map(|(key, value)| (key, value.map(Bytes::copy_from_slice)));
        let dirs = changes.contents().map(|(key, content)| (key, content.cloned()));
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

/// Cached records of one kind.
struct Records<S> {
    /// A power of two of them.
    stripes: Vec<Mutex<Stripe<S>>>,
}

struct Stripe<S> {
    /// Records by the hash of their key; of two with the same hash only the later one is kept.
    /// `young` has those used since the generation began, `old` those used in the generation
    /// before. A full `young` takes the place of `old`: a whole shelf is cleared at once, and no
    /// record to evict is searched for.
    young: S,
    old: S,
    /// Number of changes under way.
    writing: u32,
    /// Number of changes that have ended.
    written: u64,
}

/// By the hash of their key, what is to come in: `None` for a record that is deleted.
struct ExcludedRecords<S: Shelf>(Vec<(u64, Option<Incoming<S>>)>);

type Incoming<S> = (Key, <S as Shelf>::Value);

impl<S: Shelf> Records<S> {
    fn new(bytes_max: usize) -> Records<S> {
        let stripes = (bytes_max / STRIPE_BYTES).clamp(STRIPES_MIN, STRIPES_MAX);
        let stripes = stripes.next_power_of_two();
        let stripe = || {
            let shelf = || S::new(bytes_max / stripes / 2);
            Mutex::new(Stripe { young: shelf(), old: shelf(), writing: 0, written: 0 })
        };
        Records { stripes: (0..stripes).map(|_| stripe()).collect() }
    }

    fn stripe(&self, hash: u64) -> MutexGuard<'_, Stripe<S>> {
        let stripe = hash & (self.stripes.len() as u64 - 1);
        self.stripes[usize::try_from(stripe).expect("less than the stripes")].lock()
    }

    fn get<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<S::Value>, E>,
    ) -> Result<Option<S::Value>, E> {
        let hash = hash(key);
        let written = {
            let mut stripe = self.stripe(hash);
            if let Some(value) = stripe.get(hash, key) {
                return Ok(Some(value));
            }
            stripe.written
        };
        let value = read()?;
        if let Some(value) = &value {
            let mut stripe = self.stripe(hash);
            if stripe.writing == 0 && stripe.written == written {
                stripe.insert(hash, key, value);
            }
        }
        Ok(value)
    }

    /// Takes out records that are about to change. Each key comes once.
    fn exclude<'a>(
        &self,
        changes: impl Iterator<Item = (&'a Key, Option<S::Value>)>,
    ) -> ExcludedRecords<S> {
        let excluded = changes.map(|(key, value)| {
            let hash = hash(key);
            let mut stripe = self.stripe(hash);
            stripe.remove(hash);
            stripe.writing += 1;
            (hash, value.map(|value| (key.clone(), value)))
        });
        ExcludedRecords(excluded.collect())
    }

    fn admit(&self, excluded: ExcludedRecords<S>, written: bool) {
        for (hash, record) in excluded.0 {
            let mut stripe = self.stripe(hash);
            stripe.writing -= 1;
            stripe.written += 1;
            if let Some((key, value)) = record.filter(|_| written) {
                stripe.insert(hash, &key, &value);
            }
        }
    }

    fn bytes(&self) -> usize {
        let bytes = |stripe: &Mutex<Stripe<S>>| {
            let stripe = stripe.lock();
            stripe.young.bytes() + stripe.old.bytes()
        };
        self.stripes.iter().map(bytes).sum()
    }

    #[cfg(test)]
    fn clear(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            stripe.young.clear();
            stripe.old.clear();
        }
    }
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = FixedHasher::default();
    hasher.write(key);
    hasher.finish()
}

impl<S: Shelf> Stripe<S> {
    fn get(&mut self, hash: u64, key: &[u8]) -> Option<S::Value> {
        if let Some(value) = self.young.get(hash, key) {
            return Some(value);
        }
        let value = self.old.get(hash, key)?;
        self.insert(hash, key, &value);
        Some(value)
    }

    fn insert(&mut self, hash: u64, key: &[u8], value: &S::Value) {
        self.remove(hash);
        if key.len() + S::value_bytes(value) > RECORD_BYTES_MAX {
            return;
        }
        if !self.young.has_room(key, value) {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        // A cache of next to nothing has not even room for one.
        if self.young.has_room(key, value) {
            self.young.put(hash, key, value);
        }
    }

    fn remove(&mut self, hash: u64) {
        self.young.remove(hash);
        self.old.remove(hash);
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

    const BYTES_MAX: usize = 16 << 20;

    fn names() -> Records<Packed> {
        Records::new(BYTES_MAX)
    }

    fn exclude(
        cache: &Records<Packed>,
        key: &Key,
        value: Option<&[u8]>,
    ) -> ExcludedRecords<Packed> {
        cache.exclude([(key, value.map(Bytes::copy_from_slice))].into_iter())
    }

    fn get(
        cache: &Records<Packed>,
        key: &Key,
        stored: Result<Option<Bytes>, ()>,
    ) -> Result<Option<Bytes>, ()> {
        cache.get(key, || stored)
    }

    fn read(cache: &Records<Packed>, key: &Key, stored: Option<&'static [u8]>) -> Option<Bytes> {
        get(cache, key, Ok(stored.map(Bytes::from_static))).unwrap()
    }

    fn is_cached(cache: &Records<Packed>, key: &Key) -> bool {
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
        let slow = cache.get(&name(1), overtaken);
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

    fn numbered(number: usize) -> Key {
        let name = base::EntryName::new(format!("{number}").as_bytes()).unwrap();
        let (shard, dir) = (base::ShardId(1), base::DirId(300));
        key::name(shard, dir, number as u64, &name, key::Part::Main)
    }

    /// Fills a cache three times over with values of so many bytes, and uses one all the time.
    fn fill(cache: &Records<Packed>, bytes_max: usize, value: usize) {
        let value = Bytes::from(vec![0; value]);
        for number in 0..3 * bytes_max / value.len() {
            assert!(get(cache, &numbered(number), Ok(Some(value.clone()))).unwrap().is_some());
            assert!(read(cache, &name(7), Some(b"used")).is_some());
        }
    }

    #[test]
    fn only_so_much_is_cached_and_what_is_used_stays() {
        for value in [64, 500, 4096] {
            let cache = names();
            fill(&cache, BYTES_MAX, value);
            assert!(cache.bytes() <= BYTES_MAX, "{}", cache.bytes());
            assert!(cache.bytes() >= BYTES_MAX / 2, "{}", cache.bytes());
            assert!(is_cached(&cache, &name(7)));
            let last = 3 * BYTES_MAX / value - 1;
            assert!((last - 1000..last).all(|number| is_cached(&cache, &numbered(number))));
            assert!(!is_cached(&cache, &numbered(0)));
        }
    }

    #[test]
    fn large_caches_have_stripes_of_the_size_of_small_ones() {
        let cache: Records<Packed> = Records::new(1 << 30);
        assert_eq!(cache.stripes.len(), 512);
        assert_eq!(names().stripes.len(), STRIPES_MIN);
    }

    #[test]
    fn a_cache_of_nothing_keeps_nothing() {
        for bytes_max in [0, 100, 4096] {
            let cache: Records<Packed> = Records::new(bytes_max);
            fill(&cache, 1 << 16, 64);
            assert!(cache.bytes() <= bytes_max);
        }
        let cache = RecordCache::new(0);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn records_that_come_and_go_push_nothing_out() {
        let cache = names();
        assert!(read(&cache, &name(1), Some(b"stays")).is_some());
        for number in 0..300_000 {
            let key = numbered(number);
            let (made, removed) = (exclude(&cache, &key, Some(&[0; 100])), None);
            cache.admit(made, true);
            if number >= 3 {
                let excluded = exclude(&cache, &numbered(number - 3), removed);
                cache.admit(excluded, true);
            }
        }
        assert!(is_cached(&cache, &name(1)));
        assert!((299_997..300_000).all(|number| is_cached(&cache, &numbered(number))));
    }

    #[test]
    fn random_changes_leave_what_was_written_last() {
        // A generation has some tens of records, so all of this happens often.
        let bytes_max = STRIPES_MIN * (16 << 10);
        let cache: Records<Packed> = Records::new(bytes_max);
        let mut stored = std::collections::BTreeMap::new();
        let mut state = 7_u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let drawn = usize::try_from(state >> 33).unwrap();
            let (number, length) = (drawn % 5000, drawn / 5000 % 300);
            let key = numbered(number);
            match drawn % 7 {
                0 => {
                    let value = vec![u8::try_from(drawn % 251).unwrap(); length];
                    let excluded = exclude(&cache, &key, Some(&value));
                    cache.admit(excluded, true);
                    stored.insert(number, value);
                }
                1 => {
                    let excluded = exclude(&cache, &key, None);
                    cache.admit(excluded, true);
                    stored.remove(&number);
                }
                _ => {
                    let known = stored.get(&number).map(|value| Bytes::copy_from_slice(value));
                    assert_eq!(get(&cache, &key, Ok(known.clone())).unwrap(), known);
                }
            }
        }
        assert!(cache.bytes() <= bytes_max);
    }
}
