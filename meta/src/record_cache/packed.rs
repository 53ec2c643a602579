//! A shelf of names: keys and values one behind the other in one buffer.
//!
//! A record costs no allocation, and its memory is known to the byte: so the cache can be large
//! without more than it is given, and a generation is dropped without touching its records.
//!
//! Always true: the index names a place for each record that is there; buffer and index together
//! stay below the bound.

use base::HashMap;
use bytes::Bytes;

use super::shelf::Shelf;

/// The part of the bound that is for the index.
const INDEX_SHARE: usize = 8;
/// Memory of the index for each record that it has room for, in bytes: 9 for each of its slots, of
/// which it fills seven in eight.
const SLOT_BYTES: usize = 11;
/// Bytes of the first buffer.
const BUFFER_BYTES_MIN: usize = 4 << 10;

pub(super) struct Packed {
    /// Places in `buffer`, by the upper half of a key's hash: the lower half is that of a stripe.
    index: HashMap<u32, u32>,
    /// Most records that the index had room for so far: what it has taken.
    slots: usize,
    /// Each record: the lengths of key and value, key, value.
    buffer: Vec<u8>,
    /// Bytes of `buffer` that belong to records that are still there.
    live: usize,
    bytes_max: usize,
}

/// Lengths of key and value, in front of them.
const HEAD_BYTES: usize = 4;

fn slot(hash: u64) -> u32 {
    u32::try_from(hash >> 32).expect("32 bits are left")
}

impl Packed {
    /// The most bytes of `buffer`.
    fn buffer_max(&self) -> usize {
        let most = self.bytes_max - self.bytes_max / INDEX_SHARE;
        // Places have 32 bits.
        most.min(u32::MAX as usize)
    }

    /// Key and value of the record at a place.
    fn record(&self, at: u32) -> (&[u8], &[u8]) {
        let record = &self.buffer[at as usize..];
        let [k0, k1, v0, v1] = record[..HEAD_BYTES] else { unreachable!("as long as a head") };
        let [key, value] = [[k0, k1], [v0, v1]].map(|len| usize::from(u16::from_le_bytes(len)));
        record[HEAD_BYTES..HEAD_BYTES + key + value].split_at(key)
    }

    fn record_bytes(&self, at: u32) -> usize {
        let (key, value) = self.record(at);
        HEAD_BYTES + key.len() + value.len()
    }

    /// Whether the index can take one record more without becoming larger than it may.
    fn index_has_room(&self) -> bool {
        let grown = 2 * self.slots.max(4);
        self.index.len() < self.index.capacity()
            || grown * SLOT_BYTES <= self.bytes_max / INDEX_SHARE
    }

    /// Moves records together, over those that are gone.
    fn close_up(&mut self) {
        let mut buffer = Vec::with_capacity(self.live);
        let places: Vec<(u32, u32)> = self.index.drain().collect();
        for (slot, at) in places {
            let record = &self.buffer[at as usize..][..self.record_bytes(at)];
            let at = u32::try_from(buffer.len()).expect("less than the buffer had before");
            buffer.extend_from_slice(record);
            self.index.insert(slot, at);
        }
        self.buffer = buffer;
    }
}

impl Shelf for Packed {
    type Value = Bytes;

    fn new(bytes_max: usize) -> Packed {
        Packed { index: HashMap::default(), slots: 0, buffer: Vec::new(), live: 0, bytes_max }
    }

    fn value_bytes(value: &Bytes) -> usize {
        value.len()
    }

    fn get(&self, hash: u64, key: &[u8]) -> Option<Bytes> {
        let (found, value) = self.record(*self.index.get(&slot(hash))?);
        (found == key).then(|| Bytes::copy_from_slice(value))
    }

    fn has_room(&mut self, key: &[u8], value: &Bytes) -> bool {
        let bytes = HEAD_BYTES + key.len() + value.len();
        let fits = |packed: &Packed| {
            packed.buffer.len() + bytes <= packed.buffer_max() && packed.index_has_room()
        };
        // When few have been removed, it is cheaper to begin a generation.
        if !fits(self) && self.live < self.buffer.len() / 2 {
            self.close_up();
        }
        fits(self)
    }

    fn put(&mut self, hash: u64, key: &[u8], value: &Bytes) {
        let bytes = HEAD_BYTES + key.len() + value.len();
        let needed = self.buffer.len() + bytes;
        if needed > self.buffer.capacity() {
            let grown = (2 * self.buffer.capacity()).max(BUFFER_BYTES_MIN).min(self.buffer_max());
            self.buffer.reserve_exact(grown.max(needed) - self.buffer.len());
        }
        let at = u32::try_from(self.buffer.len()).expect("the buffer has a bound");
        let [key_len, value_len] =
            [key.len(), value.len()].map(|len| u16::try_from(len).expect("it is a small record"));
        self.buffer.extend_from_slice(&key_len.to_le_bytes());
        self.buffer.extend_from_slice(&value_len.to_le_bytes());
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
        self.live += bytes;
        let before = self.index.insert(slot(hash), at);
        debug_assert!(before.is_none(), "what was there is removed first");
        self.slots = self.slots.max(self.index.capacity());
    }

    fn remove(&mut self, hash: u64) {
        let Some(at) = self.index.remove(&slot(hash)) else { return };
        let bytes = self.record_bytes(at);
        self.live -= bytes;
        if at as usize + bytes == self.buffer.len() {
            self.buffer.truncate(at as usize);
        }
    }

    fn bytes(&self) -> usize {
        self.buffer.capacity() + self.slots * SLOT_BYTES
    }

    fn clear(&mut self) {
        self.index.clear();
        self.buffer.clear();
        self.live = 0;
    }
}
