//! Compressed blocks: pieces that are each compressed alone, behind a table of their lengths.
//!
//! Persisted: 4 bytes for each piece of 64 KiB of data (LE: the low 24 bits its stored length, the
//! high 8 how it is stored: 0 as it is, 1 LZ4 block, 2 Zstandard frame), 4 bytes of checksum of
//! this table, then the stored pieces, each followed by its checksum. Checksums are those of
//! `format`, over what is stored; the table counts as piece 2³² - 1. How a block was compressed is
//! thus in the block, whatever the file system's setting is now.
//!
//! A piece that would not become smaller is stored as it is. So every block of a store that
//! compresses has one name, by which the store knows whether there is one.

use std::{fmt, ops::Range, str::FromStr};

use base::BlockId;
use bytes::{Bytes, BytesMut};

use super::{
    BLOCK_BYTES_MAX,
    format::{PIECE_BYTES, pieces, sum},
};

const SUM_BYTES: usize = 4;
const ENTRY_BYTES: usize = 4;
const TABLE: u32 = u32::MAX;
/// Zstandard level: fast, and not far from what more work would give.
const ZSTD_LEVEL: i32 = 3;

const PLAIN: u32 = 0;
const LZ4: u32 = 1;
const ZSTD: u32 = 2;
const HOW_SHIFT: u32 = 24;
const LEN_MASK: u32 = (1 << HOW_SHIFT) - 1;

/// How new blocks are compressed. Existing blocks are read whatever this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4: hardly any work.
    Lz4,
    /// Zstandard: smaller, with more work.
    Zstd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        })
    }
}

impl FromStr for Compression {
    type Err = ();

    fn from_str(text: &str) -> Result<Compression, ()> {
        let all = [Compression::None, Compression::Lz4, Compression::Zstd];
        all.into_iter().find(|compression| compression.to_string() == text).ok_or(())
    }
}

/// The object for a block.
pub(super) fn encode(id: BlockId, data: &[u8], len: u32, how: Compression) -> Bytes {
    debug_assert_eq!(data.len(), len as usize);
    let mut object = BytesMut::zeroed(table_len(len));
    for (number, piece) in (0..).zip(data.chunks(PIECE_BYTES as usize)) {
        let packed = match how {
            Compression::None => None,
            Compression::Lz4 => Some((LZ4, lz4_flex::block::compress(piece))),
            Compression::Zstd => {
                zstd::bulk::compress(piece, ZSTD_LEVEL).ok().map(|packed| (ZSTD, packed))
            }
        };
        let packed = packed.filter(|(_, packed)| packed.len() < piece.len());
        let (tag, stored) =
            packed.as_ref().map_or((PLAIN, piece), |(tag, packed)| (*tag, &packed[..]));
        let stored_len = u32::try_from(stored.len()).expect("at most a piece");
        let at = number as usize * ENTRY_BYTES;
        object[at..at + ENTRY_BYTES]
            .copy_from_slice(&(tag << HOW_SHIFT | stored_len).to_le_bytes());
        object.extend_from_slice(stored);
        object.extend_from_slice(&sum(id, number, stored));
    }
    let entries = table_len(len) - SUM_BYTES;
    let table_sum = sum(id, TABLE, &object[..entries]);
    object[entries..entries + SUM_BYTES].copy_from_slice(&table_sum);
    object.freeze()
}

/// The data of a block of this length, from its whole object; `None` when the object is no block,
/// or one of another length.
pub(super) fn read(id: BlockId, object: &[u8], len: u32) -> Option<Bytes> {
    let table = Table::read(id, len, object)?;
    table.decode(0..len, object.get(table_len(len)..)?)
}

/// Whether an object is a block, of any length.
pub(super) fn is_whole(id: BlockId, object: &[u8]) -> bool {
    let lens = (1..=pieces(BLOCK_BYTES_MAX)).map(|count| count * PIECE_BYTES);
    let table = lens.filter_map(|len| Table::read(id, len, object)).next();
    table.is_some_and(|table| table.is_before(&object[table_len(table.len)..]))
}

/// Number of bytes of the table at the start of the object.
pub(super) fn table_len(len: u32) -> usize {
    pieces(len) as usize * ENTRY_BYTES + SUM_BYTES
}

/// Places of the pieces of a block in its object.
pub(super) struct Table {
    id: BlockId,
    len: u32,
    /// For each piece, how it is stored, and its length in bytes without its checksum.
    pieces: Vec<(u32, u32)>,
}

impl Table {
    /// Reads the start of an object; `None` when that is not what `encode` made.
    pub(super) fn read(id: BlockId, len: u32, object: &[u8]) -> Option<Table> {
        let (entries, found) = object.get(..table_len(len))?.split_last_chunk::<SUM_BYTES>()?;
        if *found != sum(id, TABLE, entries) {
            return None;
        }
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        let pieces = entries.iter().map(|entry| {
            let entry = u32::from_le_bytes(*entry);
            (entry >> HOW_SHIFT, entry & LEN_MASK)
        });
        Some(Table { id, len, pieces: pieces.collect() })
    }

    /// Whether the bytes after the table are exactly the pieces.
    fn is_before(&self, mut stored: &[u8]) -> bool {
        for (number, (_, bytes)) in (0..).zip(&self.pieces) {
            let Some((piece, rest)) = stored.split_at_checked(*bytes as usize) else {
                return false;
            };
            let Some((found, rest)) = rest.split_first_chunk::<SUM_BYTES>() else { return false };
            if *found != sum(self.id, number, piece) {
                return false;
            }
            stored = rest;
        }
        stored.is_empty()
    }

    fn numbers(range: &Range<u32>) -> Range<usize> {
        (range.start / PIECE_BYTES) as usize..range.end.div_ceil(PIECE_BYTES) as usize
    }

    /// The part of the object that has the pieces of a range.
    pub(super) fn covering(&self, range: &Range<u32>) -> Range<u64> {
        let numbers = Table::numbers(range);
        let bytes = |pieces: &[(u32, u32)]| -> u64 {
            pieces.iter().map(|(_, stored)| u64::from(*stored) + SUM_BYTES as u64).sum()
        };
        let start = table_len(self.len) as u64 + bytes(&self.pieces[..numbers.start]);
        start..start + bytes(&self.pieces[numbers])
    }

    /// The data in `range`, from the part of the object that `covering` named; `None` when it is
    /// not what `encode` made.
    pub(super) fn decode(&self, range: Range<u32>, mut stored: &[u8]) -> Option<Bytes> {
        let numbers = Table::numbers(&range);
        let start = u32::try_from(numbers.start).ok()? * PIECE_BYTES;
        let mut data =
            Vec::with_capacity((range.end.next_multiple_of(PIECE_BYTES) - start) as usize);
        for number in numbers {
            let (how, bytes) = self.pieces[number];
            let (piece, rest) = stored.split_at_checked(bytes as usize)?;
            let (found, rest) = rest.split_first_chunk::<SUM_BYTES>()?;
            let number = u32::try_from(number).ok()?;
            if *found != sum(self.id, number, piece) {
                return None;
            }
            let want = (self.len - number * PIECE_BYTES).min(PIECE_BYTES) as usize;
            let before = data.len();
            match how {
                PLAIN => data.extend_from_slice(piece),
                LZ4 => data.extend(lz4_flex::block::decompress(piece, want).ok()?),
                ZSTD => data.extend(zstd::bulk::decompress(piece, want).ok()?),
                _ => return None,
            }
            if data.len() - before != want {
                return None;
            }
            stored = rest;
        }
        let skip = (range.start - start) as usize;
        let wanted = (range.end - range.start) as usize;
        stored.is_empty().then(|| Bytes::from(data).slice(skip..skip + wanted))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::{super::format::object_len, *};

    const ID: BlockId = BlockId(0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10);

    /// Text in all pieces but every third, which is noise.
    fn data(len: u32) -> Bytes {
        let mut noise = 1u32;
        let byte = |at: u32| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [.., high] = noise.to_le_bytes();
            if at / PIECE_BYTES % 3 == 2 { high } else { (at / 64 % 26).to_le_bytes()[0] + b'a' }
        };
        (0..len).map(byte).collect()
    }

    fn read(object: &Bytes, len: u32, range: Range<u32>) -> Option<Bytes> {
        let table = Table::read(ID, len, object)?;
        let part = table.covering(&range);
        let at = |offset: u64| usize::try_from(offset).unwrap();
        table.decode(range, object.get(at(part.start)..at(part.end))?)
    }

    #[test]
    fn every_range_of_packed_data_reads_back() {
        for how in [Compression::Lz4, Compression::Zstd] {
            for len in [1000, 65_536, 65_537, 300_000, BLOCK_BYTES_MAX] {
                let data = data(len);
                let object = encode(ID, &data, len, how);
                assert!(object.len() < object_len(len) as usize);
                assert!(is_whole(ID, &object));
                let edges = [0, 1, 65_535, 65_536, 65_537, 131_072, 200_000, len - 1, len];
                for (start, end) in edges.iter().flat_map(|s| edges.map(|e| (*s, e))) {
                    if start < end && end <= len {
                        let expected = data.slice(start as usize..end as usize);
                        assert_eq!(
                            read(&object, len, start..end),
                            Some(expected),
                            "{start}..{end}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn stored_bytes_are_the_golden_ones() {
        let data = [b'a'; 100];
        let lz4 = encode(ID, &data, 100, Compression::Lz4);
        assert_eq!(&lz4[..4], [u8::try_from(lz4.len() - 12).unwrap(), 0, 0, 1]);
        // The bytes of the compressors may change with their versions; what they read may not.
        let mut golden = BytesMut::zeroed(8);
        let stored = [0x1F, b'a', 1, 0, 75, 0x50, b'a', b'a', b'a', b'a', b'a'];
        golden[..4].copy_from_slice(&[11, 0, 0, 1]);
        let table_sum = sum(ID, TABLE, &golden[..4]);
        golden[4..].copy_from_slice(&table_sum);
        golden.extend_from_slice(&stored);
        golden.extend_from_slice(&sum(ID, 0, &stored));
        assert_eq!(read(&golden.freeze(), 100, 0..100).as_deref(), Some(&data[..]));
    }

    #[test]
    fn noise_is_stored_as_it_is() {
        let mut noise = 7u64;
        let byte = |_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise.to_le_bytes()[3]
        };
        let data: Vec<u8> = (0..200_000).map(byte).collect();
        for how in [Compression::Lz4, Compression::Zstd] {
            let object = encode(ID, &data, 200_000, how);
            assert_eq!(object.len(), object_len(200_000) as usize + table_len(200_000), "{how}");
            assert_eq!(super::read(ID, &object, 200_000).as_deref(), Some(&data[..]), "{how}");
        }
    }

    #[test]
    fn any_flipped_bit_is_found_out() {
        for how in [Compression::Lz4, Compression::Zstd] {
            let len = 2 * PIECE_BYTES + 100;
            let object = encode(ID, &data(len), len, how);
            for at in [0, 3, 8, 12, 16, 20, object.len() / 2, object.len() - 1] {
                let mut bad = object.to_vec();
                bad[at] ^= 0x10;
                assert!(!is_whole(ID, &bad), "at={at}");
                assert_eq!(read(&bad.into(), len, 0..len), None, "at={at}");
            }
            for cut in [0, 4, 20, object.len() / 2, object.len() - 1] {
                assert!(!is_whole(ID, &object[..cut]), "cut={cut}");
            }
            assert_eq!(read(&object, len + 1, 0..len), None);
            assert!(Table::read(BlockId(1), len, &object).is_none());
        }
    }

    /// Makes the checksums of an object right, wherever its table says that they are.
    fn sealed(mut object: Vec<u8>, len: u32) -> Vec<u8> {
        let entries = table_len(len) - SUM_BYTES;
        let table_sum = sum(ID, TABLE, &object[..entries]);
        object[entries..entries + SUM_BYTES].copy_from_slice(&table_sum);
        let Some(table) = Table::read(ID, len, &object) else { return object };
        let mut at = entries + SUM_BYTES;
        for (number, (_, bytes)) in (0..).zip(table.pieces) {
            let end = at + bytes as usize;
            let Some(piece) = object.get(at..end).map(<[u8]>::to_vec) else { return object };
            let Some(place) = object.get_mut(end..end + SUM_BYTES) else { return object };
            place.copy_from_slice(&sum(ID, number, &piece));
            at = end + SUM_BYTES;
        }
        object
    }

    proptest! {
        /// Anybody who can write to the store can make checksums, so the bytes behind them are not
        /// trusted either.
        #[test]
        fn no_bytes_of_a_block_make_a_panic(
            zstd in any::<bool>(),
            len in 1..200_000_u32,
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in option::of(any::<prop::sample::Index>()),
            range in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let data = data(len);
            let how = if zstd { Compression::Zstd } else { Compression::Lz4 };
            let mut object = encode(ID, &data, len, how).to_vec();
            for (at, byte) in changes {
                let at = at.index(object.len());
                object[at] = byte;
            }
            let mut object = sealed(object, len);
            if let Some(cut) = cut {
                object.truncate(cut.index(object.len()));
            }
            let (one, other) = (range.0.index(len as usize), range.1.index(len as usize));
            let range = u32::try_from(one.min(other)).unwrap()..u32::try_from(one.max(other) + 1).unwrap();
            let bytes = range.end - range.start;
            is_whole(ID, &object);
            if let Some(found) = read(&object.into(), len, range) {
                prop_assert_eq!(found.len(), bytes as usize);
            }
        }
    }

    #[test]
    fn settings_are_read_as_they_are_written() {
        for how in [Compression::None, Compression::Lz4, Compression::Zstd] {
            assert_eq!(how.to_string().parse(), Ok(how));
        }
        assert_eq!("gzip".parse::<Compression>(), Err(()));
    }
}
