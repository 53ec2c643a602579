//! The disk of one end in the tests, and the records on it.

use std::collections::BTreeMap;

use base::Layout;
use bytes::Bytes;
use wire::{Tally, TxnId};

use super::world::{Batch, Key};

/// A disk: `now` outlives the process, and `stable` also outlives a power cut.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) now: BTreeMap<Key, Bytes>,
    pub(super) stable: BTreeMap<Key, Bytes>,
}

impl Disk {
    pub(super) fn write(&mut self, batch: Batch) {
        for (key, value) in batch {
            match value {
                Some(value) => self.now.insert(key, value),
                None => self.now.remove(&key),
            };
        }
    }

    pub(super) fn sync(&mut self) {
        self.stable = self.now.clone();
    }

    pub(super) fn get<T: base::Decode>(&self, key: &[u8]) -> Option<T> {
        self.now.get(key).map(|bytes| T::from_bytes(bytes).expect("it was written here"))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (&Key, &Bytes)> {
        self.now.iter().filter(|(key, _)| key[0] == b'N')
    }
}

base::codec! {
    /// A partition's content record, as far as the tests need it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Share {
        pub layout: Layout,
        pub entries: u64,
    }
}

base::codec! {
    /// The record of a prepared switch at the target.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Promise {
        pub txn: TxnId,
        pub layout: Layout,
        pub entries: u64,
    }
}

pub(super) fn name_key(name: u64) -> Key {
    [b"N".as_slice(), &pos_of(name).to_be_bytes(), &name.to_be_bytes()].concat()
}

/// Positions all over the listing, the same in each run.
pub(super) fn pos_of(name: u64) -> u64 {
    ((name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (name << 40)) & base::layout::POS_MAX
}

pub(super) fn pos_in(key: &[u8]) -> u64 {
    u64::from_be_bytes(*key[1..].first_chunk().expect("a position"))
}

pub(super) fn weigh(_: &[u8], value: &Bytes) -> Tally {
    Tally { entries: 1, subdirs: u64::from(value[..] == *b"d") }
}
