//! Hot entries: names that were read or written lately, so that finding one again does not ask the engine.
//!
//! Transactions read through it, and `core` takes every batch around it. It holds only what is under names
//! (entries with their embedded inodes), as bytes, within a bound; it never holds that something is not there.
//!
//! Invariant: what is here is what the engine has. So what a batch changes is taken out before the write, and
//! until the write is done nothing comes in: a reader that is slow between the engine and here could bring a
//! value of before it.

use std::{hash::Hasher as _, mem};

use base::{HashMap, hash::FixedHasher};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::record::{Key, key};

/// The most memory for entries, in bytes.
const BYTES_MAX: usize = 16 << 20;
/// What an entry takes next to its key and value: its place in a map, and an allocation.
const ENTRY_BYTES: usize = 60;
/// Larger values, such as much inline contents, would push out too many others.
const VALUE_BYTES_MAX: usize = 8 << 10;
const STRIPES: usize = 16;

/// The hot entries of a server.
pub(crate) struct HotEntries {
    stripes: Vec<Mutex<Stripe>>,
}

/// A key and its value in one piece.
struct Entry {
    bytes: Box<[u8]>,
    key_len: usize,
}

#[derive(Default)]
struct Stripe {
    /// By the hashes of their keys; of two with the same hash only the later one is here. What was used since
    /// the generation began, and what was used in the one before: when the young one is full it takes the
    /// place of the old one, so that a map is dropped, and no entry is ever looked for.
    young: HashMap<u64, Entry>,
    old: HashMap<u64, Entry>,
    young_bytes: usize,
    /// Changes under way.
    writing: u32,
    /// How many there were.
    written: u64,
}

/// What a batch changes, from before its write until after it.
#[must_use = "nothing comes in until it is released"]
pub(crate) struct Held(Vec<(u64, Option<Entry>)>);

impl HotEntries {
    pub(crate) fn new() -> HotEntries {
        HotEntries { stripes: (0..STRIPES).map(|_| Mutex::default()).collect() }
    }

    fn stripe(&self, hash: u64) -> MutexGuard<'_, Stripe> {
        let stripe = hash % STRIPES as u64;
        self.stripes[usize::try_from(stripe).expect("a small number")].lock()
    }

    /// The bytes under the key of a name: from here, or from the engine, which `read` asks.
    pub(crate) fn get<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<Bytes>, E>,
    ) -> Result<Option<Bytes>, E> {
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
                stripe.insert(hash, Entry::new(key, value));
            }
        }
        Ok(value)
    }

    /// A batch is about to be written: takes out what it changes. Each key comes once.
    pub(crate) fn hold<'a>(
        &self,
        changes: impl Iterator<Item = (&'a Key, Option<&'a [u8]>)>,
    ) -> Held {
        let held = changes.filter(|(key, _)| key::is_name(key)).map(|(key, value)| {
            let hash = hash(key);
            let mut stripe = self.stripe(hash);
            stripe.remove(hash);
            stripe.writing += 1;
            (hash, value.map(|value| Entry::new(key, value)))
        });
        Held(held.collect())
    }

    /// The batch is written; or, with `false`, nobody knows whether it is.
    pub(crate) fn release(&self, held: Held, written: bool) {
        for (hash, entry) in held.0 {
            let mut stripe = self.stripe(hash);
            stripe.writing -= 1;
            stripe.written += 1;
            if let Some(entry) = entry.filter(|_| written) {
                stripe.insert(hash, entry);
            }
        }
    }

    /// Forgets everything.
    #[cfg(test)]
    pub(crate) fn clear(&self) {
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

impl Entry {
    fn new(key: &[u8], value: &[u8]) -> Entry {
        Entry { bytes: [key, value].concat().into(), key_len: key.len() }
    }

    fn value_of(&self, key: &[u8]) -> Option<Bytes> {
        let (found, value) = self.bytes.split_at(self.key_len);
        (found == key).then(|| Bytes::copy_from_slice(value))
    }

    fn size(&self) -> usize {
        self.bytes.len() + ENTRY_BYTES
    }
}

impl Stripe {
    fn get(&mut self, hash: u64, key: &[u8]) -> Option<Bytes> {
        if let Some(entry) = self.young.get(&hash) {
            return entry.value_of(key);
        }
        let entry = self.old.remove(&hash)?;
        let value = entry.value_of(key);
        self.insert(hash, entry);
        value
    }

    fn insert(&mut self, hash: u64, entry: Entry) {
        self.remove(hash);
        if entry.bytes.len() > VALUE_BYTES_MAX {
            return;
        }
        self.young_bytes += entry.size();
        self.young.insert(hash, entry);
        if self.young_bytes > BYTES_MAX / STRIPES / 2 {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn remove(&mut self, hash: u64) {
        if let Some(entry) = self.young.remove(&hash) {
            self.young_bytes -= entry.size();
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

    fn hold(hot: &HotEntries, key: &Key, value: Option<&[u8]>) -> Held {
        hot.hold([(key, value)].into_iter())
    }

    fn read(hot: &HotEntries, key: &Key, stored: Option<&'static [u8]>) -> Option<Bytes> {
        hot.get(key, || Ok::<_, ()>(stored.map(Bytes::from_static))).unwrap()
    }

    fn is_hot(hot: &HotEntries, key: &Key) -> bool {
        hot.get(key, || Err(())).is_ok()
    }

    #[test]
    fn what_was_read_or_written_is_hot() {
        let hot = HotEntries::new();
        assert_eq!(read(&hot, &name(1), Some(b"one")).unwrap(), "one");
        assert_eq!(read(&hot, &name(1), None).unwrap(), "one");
        let held = hold(&hot, &name(2), Some(b"two"));
        hot.release(held, true);
        assert_eq!(read(&hot, &name(2), None).unwrap(), "two");
        assert_eq!(read(&hot, &name(3), None), None);
        assert!(!is_hot(&hot, &name(3)));
    }

    #[test]
    fn what_is_being_written_is_not_here_and_does_not_come_in() {
        let hot = HotEntries::new();
        assert!(read(&hot, &name(1), Some(b"old")).is_some());
        let held = hold(&hot, &name(1), Some(b"new"));
        assert_eq!(read(&hot, &name(1), Some(b"old")).unwrap(), "old");
        assert!(!is_hot(&hot, &name(1)));
        hot.release(held, true);
        assert_eq!(read(&hot, &name(1), None).unwrap(), "new");
    }

    #[test]
    fn a_reader_that_is_overtaken_by_a_write_leaves_nothing_here() {
        let hot = HotEntries::new();
        let slow = hot.get(&name(1), || {
            let held = hold(&hot, &name(1), None);
            hot.release(held, true);
            Ok::<_, ()>(Some(Bytes::from_static(b"old")))
        });
        assert_eq!(slow.unwrap().unwrap(), "old");
        assert!(!is_hot(&hot, &name(1)));
    }

    #[test]
    fn what_may_not_have_been_written_is_not_hot() {
        let hot = HotEntries::new();
        let held = hold(&hot, &name(1), Some(b"new"));
        hot.release(held, false);
        assert!(!is_hot(&hot, &name(1)));
    }

    #[test]
    fn only_so_much_is_hot_and_what_is_used_stays() {
        let hot = HotEntries::new();
        let value = Bytes::from(vec![0; 4096]);
        for number in 0..BYTES_MAX / 2048 {
            let key = {
                let name = base::EntryName::new(format!("{number}").as_bytes()).unwrap();
                let (shard, dir) = (base::ShardId(1), base::DirId(300));
                key::name(shard, dir, number as u64, &name, key::Part::Main)
            };
            let found = hot.get(&key, || Ok::<_, ()>(Some(value.clone())));
            assert!(found.unwrap().is_some());
            assert!(read(&hot, &name(7), Some(b"used")).is_some());
        }
        let held: usize = hot.stripes.iter().map(|stripe| stripe.lock().young.len()).sum();
        assert!(held * 4096 <= BYTES_MAX / 2);
        assert!(is_hot(&hot, &name(7)));
    }
}
