//! Slices of a chunk of a file, as the client knows them. Pure values.
//!
//! The server keeps slices newest first, and they overlap; here they are cut so that they do not,
//! because reads look them up again and again.
//!
//! Invariant: the pieces of a view are in order, do not overlap, and none of them is zeros: where
//! there is no piece, the bytes are zero.

use std::{collections::BTreeMap, ops::Range};

use wire::{ChunkSlices, Slice, SliceSource};

/// One chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChunkView {
    pieces: Vec<Slice>,
}

impl ChunkView {
    /// The view of slices that are newest first.
    pub(crate) fn of(newest_first: Vec<Slice>) -> ChunkView {
        let mut view = ChunkView::default();
        for slice in newest_first.into_iter().rev() {
            view.put(slice);
        }
        view
    }

    /// Puts a slice over what is there.
    pub(crate) fn put(&mut self, new: Slice) {
        let (start, end) = (new.start, slice_end(&new));
        let from = self.pieces.partition_point(|piece| slice_end(piece) <= start);
        let to = self.pieces.partition_point(|piece| piece.start < end);
        let mut instead = Vec::with_capacity(3);
        if from < to {
            instead.extend(cut(&self.pieces[from], self.pieces[from].start..start));
        }
        let left_over = (from < to).then(|| {
            let last = &self.pieces[to - 1];
            cut(last, end..slice_end(last))
        });
        if !matches!(new.source, SliceSource::Zeros) && new.len > 0 {
            instead.push(new);
        }
        instead.extend(left_over.flatten());
        self.pieces.splice(from..to, instead);
    }

    /// Returns the pieces in `range`, cut to it.
    pub(crate) fn within(&self, range: Range<u32>) -> impl Iterator<Item = Slice> {
        let from = self.pieces.partition_point(|piece| slice_end(piece) <= range.start);
        let reached = self.pieces[from..].iter().take_while(move |piece| piece.start < range.end);
        reached.filter_map(move |piece| cut(piece, range.clone()))
    }
}

fn slice_end(slice: &Slice) -> u32 {
    slice.start + slice.len
}

/// The part of a slice that lies in `range`.
fn cut(slice: &Slice, range: Range<u32>) -> Option<Slice> {
    let start = slice.start.max(range.start);
    let end = slice_end(slice).min(range.end);
    if start >= end {
        return None;
    }
    let skipped = start - slice.start;
    let len = end - start;
    let source = match &slice.source {
        SliceSource::Embedded(bytes) => {
            SliceSource::Embedded(bytes.slice(skipped as usize..(skipped + len) as usize))
        }
        SliceSource::Block(part) => {
            let mut part = *part;
            part.offset += skipped;
            SliceSource::Block(part)
        }
        SliceSource::Zeros => SliceSource::Zeros,
    };
    Some(Slice { start, len, source })
}

/// Whether all slices from the network are what slices can be. Those that are not came from no
/// server of ours, or from a damaged one; nothing is read by them.
pub(crate) fn are_sound(chunks: &[ChunkSlices]) -> bool {
    chunks.iter().flat_map(|chunk| &chunk.slices).all(is_sound)
}

/// Whether a slice from the network keeps to its chunk and its own bytes.
pub(crate) fn is_sound(slice: &Slice) -> bool {
    let len = slice.len as usize;
    let within =
        slice.start.checked_add(slice.len).is_some_and(|end| end <= base::limits::CHUNK_BYTES);
    within
        && match &slice.source {
            SliceSource::Embedded(bytes) => bytes.len() == len,
            SliceSource::Block(part) => {
                part.offset.checked_add(slice.len).is_some_and(|end| end <= part.block_bytes)
                    && part.block_bytes <= base::limits::CHUNK_BYTES
            }
            SliceSource::Zeros => true,
        }
}

/// Memory of a chunk or a piece of one without contents, roughly.
const PIECE_BYTES: u64 = 64;

/// The chunks of a file that are known.
#[derive(Debug, Default)]
pub(crate) struct SliceMap {
    known: BTreeMap<u32, ChunkView>,
    /// Whether chunks that are not in `known` are zeros.
    rest_is_zeros: bool,
}

impl SliceMap {
    /// A map that knows nothing.
    pub(crate) fn unknown() -> SliceMap {
        SliceMap::default()
    }

    /// A map of zeros.
    pub(crate) fn zeros() -> SliceMap {
        SliceMap { known: BTreeMap::new(), rest_is_zeros: true }
    }

    /// Whether a chunk is known.
    pub(crate) fn knows(&self, chunk: u32) -> bool {
        self.rest_is_zeros || self.known.contains_key(&chunk)
    }

    /// A chunk that is not all zeros, if it is known.
    pub(crate) fn get(&self, chunk: u32) -> Option<&ChunkView> {
        self.known.get(&chunk)
    }

    /// Roughly the memory that the map takes, with the contents in it.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let pieces = self.known.values().flat_map(|view| &view.pieces);
        let bytes = pieces.map(|piece| match &piece.source {
            SliceSource::Embedded(bytes) => bytes.len() as u64 + PIECE_BYTES,
            SliceSource::Block(_) | SliceSource::Zeros => PIECE_BYTES,
        });
        self.known.len() as u64 * PIECE_BYTES + bytes.sum::<u64>()
    }

    /// Takes in chunks `asked` as the server has them; those it did not name are zeros.
    pub(crate) fn learn(&mut self, asked: Range<u32>, chunks: Vec<ChunkSlices>) {
        for chunk in asked {
            self.known.insert(chunk, ChunkView::default());
        }
        for chunk in chunks {
            if chunk.slices.iter().all(is_sound) {
                self.known.insert(chunk.chunk, ChunkView::of(chunk.slices));
            } else {
                // A reader that needs the chunk asks for it, and gets the error.
                self.known.remove(&chunk.chunk);
                self.rest_is_zeros = false;
            }
        }
    }

    /// There is nothing but zeros in chunks that are not known yet.
    pub(crate) fn complete(&mut self) {
        self.rest_is_zeros = true;
    }

    /// Puts what was written, oldest first, over a chunk; a chunk that is not known stays so.
    pub(crate) fn put(&mut self, written: ChunkSlices) {
        if !self.knows(written.chunk) {
            return;
        }
        let view = self.known.entry(written.chunk).or_default();
        for slice in written.slices {
            view.put(slice);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::BlockId;
    use bytes::Bytes;
    use proptest::prelude::*;
    use wire::data::BlockPart;

    use super::*;

    const LEN: u32 = 64;

    #[test]
    fn slices_that_no_server_makes_are_not_taken_in() {
        let block = |start, len, offset, block_bytes| {
            let part = BlockPart { block: BlockId(1), block_bytes, offset, ticket: 0 };
            Slice { start, len, source: SliceSource::Block(part) }
        };
        let odd = [
            block(u32::MAX, 2, 0, 2),
            block(0, 1, u32::MAX, 1),
            block(0, 1, u32::MAX - 1, u32::MAX),
            block(0, base::limits::CHUNK_BYTES + 1, 0, u32::MAX),
        ];
        for slice in odd {
            let chunks = vec![ChunkSlices { chunk: 3, slices: vec![slice] }];
            assert!(!are_sound(&chunks), "{chunks:?}");
            let mut map = SliceMap::zeros();
            map.learn(3..4, chunks);
            assert!(!map.knows(3));
        }
    }

    /// Byte `at` of block `block` in these tests.
    fn block_byte(block: u8, at: u32) -> u8 {
        block.wrapping_mul(31).wrapping_add(u8::try_from(at).unwrap())
    }

    fn slice() -> impl Strategy<Value = Slice> {
        (0..LEN, 1..LEN, 0u8..3, 1u8..200).prop_map(|(start, len, kind, tag)| {
            let len = len.min(LEN - start);
            let source = match kind {
                0 => SliceSource::Zeros,
                1 => SliceSource::Embedded(Bytes::from(vec![tag; len as usize])),
                _ => SliceSource::Block(BlockPart {
                    block: BlockId(u128::from(tag)),
                    block_bytes: 200,
                    offset: 7,
                    ticket: 0,
                }),
            };
            Slice { start, len, source }
        })
    }

    fn paint(slice: &Slice, over: &mut [u8]) {
        for at in 0..slice.len {
            over[(slice.start + at) as usize] = match &slice.source {
                SliceSource::Zeros => 0,
                SliceSource::Embedded(bytes) => bytes[at as usize],
                SliceSource::Block(part) => {
                    block_byte(u8::try_from(part.block.0).unwrap(), part.offset + at)
                }
            };
        }
    }

    proptest! {
        #[test]
        fn a_view_reads_as_its_slices_painted_one_over_the_other(
            oldest_first in proptest::collection::vec(slice(), 0..20),
            from in 0..LEN,
            len in 0..LEN,
        ) {
            let mut expected = vec![0; LEN as usize];
            oldest_first.iter().for_each(|slice| paint(slice, &mut expected));
            let view = ChunkView::of(oldest_first.into_iter().rev().collect());
            for pair in view.pieces.windows(2) {
                prop_assert!(slice_end(&pair[0]) <= pair[1].start);
            }
            let range = from..(from + len).min(LEN);
            let mut read = vec![0; LEN as usize];
            for piece in view.within(range.clone()) {
                prop_assert!(is_sound(&piece));
                prop_assert!(range.start <= piece.start && slice_end(&piece) <= range.end);
                paint(&piece, &mut read);
            }
            let range = range.start as usize..range.end as usize;
            prop_assert_eq!(&read[range.clone()], &expected[range]);
        }
    }

    #[test]
    fn a_slice_that_reaches_beyond_its_block_is_not_sound() {
        let part = BlockPart { block: BlockId(1), block_bytes: 10, offset: 5, ticket: 0 };
        let slice = |len| Slice { start: 0, len, source: SliceSource::Block(part) };
        assert!(is_sound(&slice(5)));
        assert!(!is_sound(&slice(6)));
        assert!(!is_sound(&Slice { start: 0, len: u32::MAX, source: SliceSource::Zeros }));
    }

    #[test]
    fn what_is_written_to_an_unknown_chunk_leaves_it_unknown() {
        let mut map = SliceMap::unknown();
        let slice =
            Slice { start: 0, len: 1, source: SliceSource::Embedded(Bytes::from_static(b"x")) };
        map.put(ChunkSlices { chunk: 3, slices: vec![slice] });
        assert!(!map.knows(3));
        map.learn(3..5, Vec::new());
        assert!(map.knows(3) && map.knows(4) && !map.knows(5));
    }
}
