//! The bytes of a stored block: pieces of its data, each followed by a checksum.
//!
//! Persisted: the data is cut into pieces of 64 KiB, the last one shorter, and each piece is
//! followed by 4 bytes (LE) of CRC-32C over the block's id (16 bytes BE), the piece's number (4
//! bytes BE) and the piece. So any range is covered by one contiguous range of the object, which
//! can be checked alone, and a piece in the wrong place or block is found out.

use std::ops::Range;

use base::BlockId;
use bytes::{Bytes, BytesMut};

use super::BLOCK_BYTES_MAX;

/// Data bytes between two checksums.
pub(super) const PIECE_BYTES: u32 = 64 << 10;
const SUM_BYTES: u32 = 4;
const STORED_PIECE_BYTES: u32 = PIECE_BYTES + SUM_BYTES;

// Lengths of objects fit a u32, as those of blocks do.
const _: () = assert!(BLOCK_BYTES_MAX < u32::MAX / 2);

/// Whether a block may have this much data.
pub(super) fn is_block_len(len: u32) -> bool {
    (1..=BLOCK_BYTES_MAX).contains(&len)
}

/// The object for a block: slices of the data, and the checksums between them.
pub(super) fn encode(id: BlockId, data: &Bytes, len: u32) -> Vec<Bytes> {
    debug_assert_eq!(data.len(), len as usize);
    let pieces = pieces(len);
    let mut sums = BytesMut::with_capacity((pieces * SUM_BYTES) as usize);
    for (number, piece) in (0..).zip(data.chunks(PIECE_BYTES as usize)) {
        sums.extend_from_slice(&sum(id, number, piece));
    }
    let mut sums = sums.freeze();
    let mut object = Vec::with_capacity(2 * pieces as usize);
    for start in (0..data.len()).step_by(PIECE_BYTES as usize) {
        object.push(data.slice(start..data.len().min(start + PIECE_BYTES as usize)));
        object.push(sums.split_to(SUM_BYTES as usize));
    }
    object
}

/// The part of the object to read for a range that is not empty.
pub(super) fn covering(len: u32, range: &Range<u32>) -> Range<u64> {
    let (first, end) = (range.start / PIECE_BYTES, range.end.div_ceil(PIECE_BYTES));
    let stop = (end * STORED_PIECE_BYTES).min(object_len(len));
    u64::from(first * STORED_PIECE_BYTES)..u64::from(stop)
}

/// The data in `range`, from the part of the object that `covering` named; `None` when it is not
/// what `encode` made.
pub(super) fn decode(id: BlockId, len: u32, range: Range<u32>, stored: Bytes) -> Option<Bytes> {
    let want = covering(len, &range);
    if stored.len() as u64 != want.end - want.start {
        return None;
    }
    let first = range.start / PIECE_BYTES;
    for (number, stored) in (first..).zip(stored.chunks(STORED_PIECE_BYTES as usize)) {
        let (piece, found) = stored.split_last_chunk()?;
        if *found != sum(id, number, piece) {
            return None;
        }
    }
    let skip = (range.start - first * PIECE_BYTES) as usize;
    let wanted = (range.end - range.start) as usize;
    Some(without_sums(stored).slice(skip..skip + wanted))
}

/// The data in an object of this size; `None` when no block has such an object.
pub(super) fn data_len(object: u64) -> Option<u32> {
    let object = u32::try_from(object).ok()?;
    let len = object.checked_sub(object.div_ceil(STORED_PIECE_BYTES) * SUM_BYTES)?;
    (is_block_len(len) && object_len(len) == object).then_some(len)
}

/// How long the object of a block is.
pub(super) fn object_len(len: u32) -> u32 {
    len + pieces(len) * SUM_BYTES
}

pub(super) fn pieces(len: u32) -> u32 {
    len.div_ceil(PIECE_BYTES)
}

/// The checksum of a piece in its place.
pub(super) fn sum(id: BlockId, number: u32, piece: &[u8]) -> [u8; 4] {
    let mut place = [0; 20];
    place[..16].copy_from_slice(&id.0.to_be_bytes());
    place[16..].copy_from_slice(&number.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), piece).to_le_bytes()
}

/// Moves the pieces together, in place where the buffer is ours alone.
fn without_sums(stored: Bytes) -> Bytes {
    if stored.len() <= STORED_PIECE_BYTES as usize {
        return stored.slice(..stored.len() - SUM_BYTES as usize);
    }
    let mut buf = stored.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let mut end = 0;
    for start in (0..buf.len()).step_by(STORED_PIECE_BYTES as usize) {
        let stop = buf.len().min(start + STORED_PIECE_BYTES as usize) - SUM_BYTES as usize;
        buf.copy_within(start..stop, end);
        end += stop - start;
    }
    buf.truncate(end);
    buf.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: BlockId = BlockId(0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10);

    fn data(len: u32) -> Bytes {
        (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect()
    }

    fn object(len: u32) -> Bytes {
        encode(ID, &data(len), len).concat().into()
    }

    #[test]
    fn stored_bytes_are_the_golden_ones() {
        assert_eq!(&encode(ID, &Bytes::from_static(b"pando"), 5).concat()[..], GOLDEN_SMALL);
        let two = object(PIECE_BYTES + 3);
        assert_eq!(two.len(), 65_536 + 4 + 3 + 4);
        assert_eq!(&two[65_530..], GOLDEN_SEAM);
    }

    const GOLDEN_SMALL: &[u8] = b"pando\xFC\xA6\xD2\x70";
    const GOLDEN_SEAM: &[u8] = &[
        0xC4, 0x62, 0x00, 0x9F, 0x3D, 0xDB, 0xE9, 0x12, 0xB3, 0x3B, 0x79, 0x17, 0xB6, 0x9C, 0x20,
        0xA2, 0x4E,
    ];

    #[test]
    fn every_range_reads_back_from_what_covers_it() {
        for len in [1, 2, 65_535, 65_536, 65_537, 200_000, BLOCK_BYTES_MAX] {
            let (data, object) = (data(len), object(len));
            assert_eq!(data_len(object.len() as u64), Some(len));
            let edges = [0, 1, 65_535, 65_536, 65_537, 131_072, len - 1, len];
            for (start, end) in edges.iter().flat_map(|s| edges.map(|e| (*s, e))) {
                if start >= end || end > len {
                    continue;
                }
                let covering = covering(len, &(start..end));
                let stored = object.slice(
                    usize::try_from(covering.start).unwrap()
                        ..usize::try_from(covering.end).unwrap(),
                );
                let read = decode(ID, len, start..end, stored).expect("sums are right");
                assert_eq!(
                    read,
                    data.slice(start as usize..end as usize),
                    "{start}..{end} of {len}"
                );
            }
        }
    }

    #[test]
    fn any_flipped_bit_any_swap_and_any_other_length_is_found_out() {
        let len = 2 * PIECE_BYTES + 100;
        let whole = object(len);
        for at in [0, 65_535, 65_536, 65_539, 65_540, whole.len() - 5, whole.len() - 1] {
            let mut bad = whole.to_vec();
            bad[at] ^= 0x10;
            assert_eq!(decode(ID, len, 0..len, bad.into()), None, "at={at}");
        }
        let mut swapped = whole.to_vec();
        swapped[..2 * 65_540].rotate_left(65_540);
        assert_eq!(decode(ID, len, 0..len, swapped.into()), None);
        assert_eq!(decode(BlockId(ID.0 + 1), len, 0..len, whole.clone()), None);
        assert_eq!(decode(ID, len, 0..len, whole.slice(..whole.len() - 1)), None);
    }

    #[test]
    fn no_block_is_empty_or_larger_than_the_limit() {
        assert_eq!(data_len(0), None);
        assert_eq!(data_len(4), None);
        assert_eq!(data_len(65_540 + 4), None);
        assert_eq!(data_len(u64::from(object_len(BLOCK_BYTES_MAX))), Some(BLOCK_BYTES_MAX));
        assert_eq!(data_len(u64::from(object_len(BLOCK_BYTES_MAX)) + 5), None);
        assert_eq!(data_len(u64::MAX), None);
    }
}
