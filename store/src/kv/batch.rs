//! A group of changes that is applied as a whole: one flat buffer, no allocation per change.
//!
//! Transactions fill it, an engine consumes it. Changes apply in the order they were added, so a
//! later one wins.
//!
//! Persisted: the buffer has the format of LevelDB's write batch, which is also RocksDB's (their
//! `write_batch.cc`): 8 bytes of sequence number (0 here), the number of changes as u32 (LE), then
//! for each a tag byte and one or two strings, each with its length before it as a varint. So the
//! RocksDB engine hands it on without looking at it, and the memory engine's checkpoint is one.

use std::fmt;

use super::error::{Error, Result};

const HEADER_BYTES: usize = 12;
const TAG_DELETE: u8 = 0x00;
const TAG_PUT: u8 = 0x01;
const TAG_DELETE_RANGE: u8 = 0x0F;

/// Changes to apply together.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Empty, or a header and at least one change.
    buf: Vec<u8>,
}

/// One change of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Set the value of a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// New value of the key.
        value: &'a [u8],
    },
    /// Remove a key; fine when it is not there.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Remove all keys with `from <= key < to`.
    DeleteRange {
        /// The first key to go.
        from: &'a [u8],
        /// The first key, in order, to stay.
        to: &'a [u8],
    },
}

impl Batch {
    /// No changes.
    #[must_use]
    pub const fn new() -> Self {
        Self { buf: Vec::new() }
    }

    /// No changes, with room for about `bytes` of keys and values.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buf: Vec::with_capacity(HEADER_BYTES + bytes) }
    }

    /// Sets the value of `key`.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.begin(TAG_PUT, 1);
        self.push_string(key);
        self.push_string(value);
    }

    /// Removes `key`; fine when it is not there.
    pub fn delete(&mut self, key: &[u8]) {
        self.begin(TAG_DELETE, 1);
        self.push_string(key);
    }

    /// Removes all keys with `from <= key < to`. An empty range is no change.
    ///
    /// Cost: one marker, whatever the range holds; but reads near many of them are slower until
    /// compaction, so remove a handful of keys one by one.
    pub fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        if from >= to {
            return;
        }
        self.begin(TAG_DELETE_RANGE, 1);
        self.push_string(from);
        self.push_string(to);
    }

    /// Adds all changes of `other` after those already here.
    pub fn append(&mut self, other: &Batch) {
        let Some(changes) = other.buf.get(HEADER_BYTES..) else { return };
        self.count_up(other.count());
        self.buf.extend_from_slice(changes);
    }

    /// Forgets all changes, and keeps the room.
    pub fn clear(&mut self) {
        self.buf.clear();
    }

    /// The number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count() as usize
    }

    /// Whether there is no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// The size of the whole batch in bytes, as it goes to the log.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }

    /// The changes, in order.
    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        Ops { rest: self.buf.get(HEADER_BYTES..).unwrap_or_default() }
            .map(|op| op.expect("a batch holds only what its methods or `decode` let in"))
    }

    /// The batch in its stored form; empty when there is no change.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.buf
    }

    /// Takes back what [`Batch::encoded`] gave; `Error::Corrupt` when the bytes are not a batch.
    pub fn decode(buf: Vec<u8>) -> Result<Self> {
        let batch = Self { buf };
        if batch.buf.is_empty() {
            return Ok(batch);
        }
        if batch.buf.len() < HEADER_BYTES {
            return Err(Error::Corrupt("batch header is short".to_owned()));
        }
        let mut ops = Ops { rest: &batch.buf[HEADER_BYTES..] };
        let seen = ops.try_fold(0_u64, |seen, op| op.map(|_| seen + 1));
        if seen != Some(u64::from(batch.count())) {
            return Err(Error::Corrupt("batch does not hold the changes it counts".to_owned()));
        }
        Ok(batch)
    }

    fn count(&self) -> u32 {
        let count = self.buf.get(8..HEADER_BYTES).and_then(|bytes| bytes.try_into().ok());
        count.map_or(0, u32::from_le_bytes)
    }

    fn begin(&mut self, tag: u8, changes: u32) {
        self.count_up(changes);
        self.buf.push(tag);
    }

    fn count_up(&mut self, changes: u32) {
        if self.buf.is_empty() {
            self.buf.resize(HEADER_BYTES, 0);
        }
        let count = self.count().checked_add(changes).expect("a batch has under 2^32 changes");
        self.buf[8..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
    }

    fn push_string(&mut self, string: &[u8]) {
        let mut left = u32::try_from(string.len()).expect("keys and values are under 4 GiB");
        while left >= 0x80 {
            self.buf.push(left.to_le_bytes()[0] | 0x80);
            left >>= 7;
        }
        self.buf.push(left.to_le_bytes()[0]);
        self.buf.extend_from_slice(string);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ops()).finish()
    }
}

/// Decodes changes; `None` as an item says that the bytes are none.
struct Ops<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Ops<'a> {
    type Item = Option<Op<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&tag, rest) = self.rest.split_first()?;
        self.rest = rest;
        let op = self.op(tag);
        if op.is_none() {
            self.rest = &[];
        }
        Some(op)
    }
}

impl<'a> Ops<'a> {
    fn op(&mut self, tag: u8) -> Option<Op<'a>> {
        match tag {
            TAG_PUT => Some(Op::Put { key: self.string()?, value: self.string()? }),
            TAG_DELETE => Some(Op::Delete { key: self.string()? }),
            TAG_DELETE_RANGE => Some(Op::DeleteRange { from: self.string()?, to: self.string()? }),
            _ => None,
        }
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let mut len = 0_u64;
        for shift in [0, 7, 14, 21, 28] {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            len |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                let (string, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
                self.rest = rest;
                return Some(string);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Batch {
        let mut batch = Batch::new();
        batch.put(b"key", &[7; 200]);
        batch.delete(b"");
        batch.delete_range(b"a", b"b");
        batch
    }

    #[test]
    fn the_buffer_is_a_leveldb_write_batch() {
        let mut golden = vec![0; 8];
        golden.extend_from_slice(&[3, 0, 0, 0]);
        golden.extend_from_slice(b"\x01\x03key\xC8\x01");
        golden.extend_from_slice(&[7; 200]);
        golden.extend_from_slice(b"\x00\x00");
        golden.extend_from_slice(b"\x0F\x01a\x01b");
        assert_eq!(three().encoded(), golden);
    }

    #[test]
    fn changes_come_back_in_order() {
        let batch = three();
        let ops: Vec<_> = batch.ops().collect();
        assert_eq!(ops.len(), batch.len());
        assert_eq!(ops[0], Op::Put { key: b"key", value: &[7; 200] });
        assert_eq!(ops[1], Op::Delete { key: b"" });
        assert_eq!(ops[2], Op::DeleteRange { from: b"a", to: b"b" });
    }

    #[test]
    fn appending_is_the_same_as_adding_one_by_one() {
        let mut sum = Batch::new();
        sum.append(&Batch::new());
        assert!(sum.is_empty());
        sum.append(&three());
        sum.append(&three());
        assert_eq!(sum.len(), 6);
        let again: Vec<_> = sum.ops().skip(3).map(|op| format!("{op:?}")).collect();
        assert_eq!(again, three().ops().map(|op| format!("{op:?}")).collect::<Vec<_>>());
    }

    #[test]
    fn an_empty_range_is_no_change() {
        let mut batch = Batch::new();
        batch.delete_range(b"b", b"b");
        batch.delete_range(b"b", b"a");
        assert!(batch.is_empty());
    }

    #[test]
    fn cut_or_damaged_bytes_are_refused() {
        let whole = three().encoded().to_vec();
        assert_eq!(Batch::decode(whole.clone()).expect("whole"), three());
        for cut in 1..whole.len() {
            assert!(Batch::decode(whole[..cut].to_vec()).is_err(), "cut={cut}");
        }
        let mut tagged = whole.clone();
        tagged[HEADER_BYTES] = 9;
        assert!(Batch::decode(tagged).is_err());
    }
}
