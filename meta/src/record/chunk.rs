//! The slices of a chunk, and how they cover it.
//!
//! A chunk's slices are kept newest first. Painting them from the oldest to the newest gives the
//! visible segments. A slice that is hidden entirely is dropped at once, so a list is never longer
//! than what can be seen of it.

use std::collections::BTreeMap;

use base::codec;
use bytes::Bytes;
use wire::{Slice, SliceSource};

use super::Record;

codec! {
    /// The slices of one chunk, newest first.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub(crate) struct ChunkRecord {
        pub slices: Vec<Slice>,
    }
}

impl Record for ChunkRecord {
    fn is_sound(&self) -> bool {
        self.slices.iter().all(is_sound)
    }
}

/// A range of a chunk that one slice shows: start, end, and the slice's place in the list.
type Segment = (u32, u32, usize);

impl ChunkRecord {
    /// Puts `slices`, oldest first, over the existing ones.
    pub(crate) fn paint(&mut self, slices: impl DoubleEndedIterator<Item = Slice>) {
        self.slices.splice(0..0, slices.rev());
        self.drop_hidden();
    }

    /// Cuts everything from `end` on.
    pub(crate) fn truncate(&mut self, end: u32) {
        self.slices.retain_mut(|slice| {
            let left = end.saturating_sub(slice.start);
            if left < slice.len {
                slice.len = left;
                if let SliceSource::Embedded(data) = &mut slice.source {
                    *data = Bytes::copy_from_slice(&data[..left as usize]);
                }
            }
            slice.len > 0
        });
    }

    /// The visible segments, from left to right.
    ///
    /// Cost: n log n for n slices, as each finds the ranges that newer ones cover, and joins those
    /// it meets.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let mut shown: Vec<Segment> = Vec::with_capacity(self.slices.len());
        let mut covered: BTreeMap<u32, u32> = BTreeMap::new();
        for (index, slice) in self.slices.iter().enumerate() {
            let (start, end) = (slice.start, slice.start + slice.len);
            let mut joined = (start, end);
            let mut at = start;
            let before = covered.range(..start).next_back().filter(|(_, stop)| **stop >= start);
            let met: Vec<(u32, u32)> = before
                .into_iter()
                .chain(covered.range(start..=end))
                .map(|(a, b)| (*a, *b))
                .collect();
            for (from, to) in met {
                if from > at {
                    shown.push((at, from, index));
                }
                at = at.max(to);
                joined = (joined.0.min(from), joined.1.max(to));
                covered.remove(&from);
            }
            if at < end {
                shown.push((at, end, index));
            }
            covered.insert(joined.0, joined.1);
        }
        shown.sort_unstable();
        shown
    }

    /// Number of bytes that are stored for the chunk.
    pub(crate) fn allocated(&self) -> u64 {
        let stored =
            |segment: &&Segment| !matches!(self.slices[segment.2].source, SliceSource::Zeros);
        self.segments().iter().filter(stored).map(|(start, end, _)| u64::from(end - start)).sum()
    }

    fn drop_hidden(&mut self) {
        let mut visible = vec![false; self.slices.len()];
        for (_, _, index) in self.segments() {
            visible[index] = true;
        }
        let mut index = 0;
        self.slices.retain(|_| {
            index += 1;
            visible[index - 1]
        });
    }
}

/// Number of bytes of slices that stand in the record itself.
pub(crate) fn embedded_bytes(slices: &[Slice]) -> usize {
    let embedded = |slice: &Slice| match &slice.source {
        SliceSource::Embedded(data) => data.len(),
        SliceSource::Block(_) | SliceSource::Zeros => 0,
    };
    slices.iter().map(embedded).sum()
}

/// Whether a slice from outside stays within its chunk and its source.
pub(crate) fn is_sound(slice: &Slice) -> bool {
    let Some(end) = slice.start.checked_add(slice.len) else { return false };
    let within = slice.len > 0 && end <= base::limits::CHUNK_BYTES;
    within
        && match &slice.source {
            SliceSource::Embedded(data) => data.len() == slice.len as usize,
            SliceSource::Block(part) => {
                part.offset.checked_add(slice.len).is_some_and(|end| end <= part.block_bytes)
                    && part.block_bytes <= base::limits::CHUNK_BYTES
            }
            SliceSource::Zeros => true,
        }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn embedded(start: u32, data: &[u8]) -> Slice {
        let len = u32::try_from(data.len()).unwrap();
        Slice { start, len, source: SliceSource::Embedded(Bytes::copy_from_slice(data)) }
    }

    fn read(chunk: &ChunkRecord, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (start, end, index) in chunk.segments() {
            let slice = &chunk.slices[index];
            let SliceSource::Embedded(data) = &slice.source else { continue };
            for at in start..end {
                out[at as usize] = data[(at - slice.start) as usize];
            }
        }
        out
    }

    proptest! {
        #[test]
        fn the_newest_slice_shows_and_what_is_cut_stays_cut(
            steps in prop::collection::vec(
                (0u32..90, 1usize..40, any::<u8>(), prop::option::of(0u32..120)),
                1..30,
            )
        ) {
            let mut chunk = ChunkRecord::default();
            let mut model = vec![0u8; 130];
            for (start, len, byte, cut) in steps {
                chunk.paint([embedded(start, &vec![byte; len])].into_iter());
                model[start as usize..start as usize + len].fill(byte);
                if let Some(cut) = cut {
                    chunk.truncate(cut);
                    model[cut as usize..].fill(0);
                }
                prop_assert_eq!(read(&chunk, 130), model.clone());
                prop_assert!(chunk.slices.iter().all(is_sound));
            }
            let covered: u64 = chunk.segments().iter().map(|(a, b, _)| u64::from(b - a)).sum();
            prop_assert_eq!(chunk.allocated(), covered);
        }
    }

    #[test]
    fn a_slice_that_is_hidden_is_dropped() {
        let mut chunk = ChunkRecord::default();
        chunk.paint([embedded(4, b"abcd"), embedded(0, b"0123456789")].into_iter());
        assert_eq!(chunk.slices.len(), 1);
    }

    #[test]
    fn thousands_of_slices_are_painted_at_once() {
        let mut chunk = ChunkRecord::default();
        for round in 0..8 {
            let slices = (0..1024).map(|index| embedded((index * 8 + round) * 16, &[1; 16]));
            chunk.paint(slices);
        }
        assert_eq!(chunk.slices.len(), 8192);
        assert_eq!(chunk.allocated(), 8192 * 16);
        chunk.paint([embedded(0, &[2; 8192 * 16])].into_iter());
        assert_eq!(chunk.slices.len(), 1);
    }
}
