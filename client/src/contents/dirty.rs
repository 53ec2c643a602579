//! Data written to a file and not sent yet. Pure values; `state` owns one for each open file.
//!
//! Invariant: the segments of a chunk are in order, do not overlap and do not touch, so that what
//! is written in sequence becomes one block.

use std::{collections::BTreeMap, mem, ops::Range};

use base::limits::CHUNK_BYTES;
use bytes::Bytes;

const CHUNK: u64 = CHUNK_BYTES as u64;

/// A range of a chunk and its new bytes.
#[derive(Debug)]
struct Segment {
    start: u32,
    data: Vec<u8>,
}

impl Segment {
    fn end(&self) -> u32 {
        self.start + len_of(&self.data)
    }
}

fn len_of(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("a segment lies within a chunk")
}

/// A range of a chunk on its way to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset of the piece within the chunk, in bytes.
    pub(crate) start: u32,
    pub(crate) data: Bytes,
}

/// New contents of a file.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    chunks: BTreeMap<u32, Vec<Segment>>,
    bytes: u64,
}

/// Cuts a range of a file at the borders of chunks: for each chunk its number, the range within it,
/// and where that starts in the whole.
pub(crate) fn by_chunk(offset: u64, len: u64) -> impl Iterator<Item = (u32, Range<u32>, usize)> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let chunk = u32::try_from(at / CHUNK).ok()?;
        let start = at % CHUNK;
        let taken = (CHUNK - start).min(end - at);
        let done = usize::try_from(at - offset).ok()?;
        at += taken;
        let range = u32::try_from(start).ok()?..u32::try_from(start + taken).ok()?;
        Some((chunk, range, done))
    })
}

impl Dirty {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// How much memory it takes, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the offset in the file at which the last segment ends.
    pub(crate) fn end(&self) -> u64 {
        let last = self.chunks.last_key_value();
        last.and_then(|(chunk, segments)| {
            segments.last().map(|segment| u64::from(*chunk) * CHUNK + u64::from(segment.end()))
        })
        .unwrap_or(0)
    }

    /// Takes in a write; `true` when it has filled a chunk.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let mut filled = false;
        for (chunk, range, at) in by_chunk(offset, data.len() as u64) {
            let part = &data[at..at + range.len()];
            let segments = self.chunks.entry(chunk).or_default();
            let before = segments.iter().map(|segment| segment.data.len() as u64).sum::<u64>();
            put(segments, range.start, part);
            let after = segments.iter().map(|segment| segment.data.len() as u64).sum::<u64>();
            self.bytes += after - before;
            filled |= after == CHUNK;
        }
        filled
    }

    /// Returns the data held of a range of a chunk: offsets and bytes.
    pub(crate) fn within(
        &self,
        chunk: u32,
        range: Range<u32>,
    ) -> impl Iterator<Item = (u32, &[u8])> {
        let segments = self.chunks.get(&chunk).map_or(&[][..], Vec::as_slice);
        let from = segments.partition_point(|segment| segment.end() <= range.start);
        let reached = segments[from..].iter().take_while(move |segment| segment.start < range.end);
        reached.map(move |segment| {
            let start = segment.start.max(range.start);
            let end = segment.end().min(range.end);
            let bytes = (start - segment.start) as usize..(end - segment.start) as usize;
            (start, &segment.data[bytes])
        })
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> Vec<(u32, Vec<Piece>)> {
        self.bytes = 0;
        mem::take(&mut self.chunks)
            .into_iter()
            .map(|(chunk, taken)| (chunk, pieces(taken)))
            .collect()
    }

    /// Takes out the chunks that are full: what is written in sequence does not come back to them.
    pub(crate) fn take_full(&mut self) -> Vec<(u32, Vec<Piece>)> {
        let is_full = |segments: &Vec<Segment>| segments[0].data.len() as u64 == CHUNK;
        let full: Vec<u32> =
            self.chunks.iter().filter(|(_, s)| is_full(s)).map(|(chunk, _)| *chunk).collect();
        let taken = full.into_iter().filter_map(|chunk| {
            let segments = self.chunks.remove(&chunk)?;
            self.bytes -= CHUNK;
            Some((chunk, pieces(segments)))
        });
        taken.collect()
    }
}

fn pieces(segments: Vec<Segment>) -> Vec<Piece> {
    let pieces = segments.into_iter();
    pieces.map(|segment| Piece { start: segment.start, data: segment.data.into() }).collect()
}

/// Puts bytes over the segments of one chunk.
fn put(segments: &mut Vec<Segment>, start: u32, data: &[u8]) {
    let end = start + len_of(data);
    // Segments that overlap or touch become one.
    let from = segments.partition_point(|segment| segment.end() < start);
    let to = segments.partition_point(|segment| segment.start <= end);
    if from == to {
        segments.insert(from, Segment { start, data: data.to_vec() });
        return;
    }
    if segments[from].start > start {
        let mut widened = Vec::with_capacity((segments[to - 1].end().max(end) - start) as usize);
        widened.extend_from_slice(data);
        let old = mem::replace(&mut segments[from], Segment { start, data: widened });
        let kept = end.saturating_sub(old.start) as usize;
        segments[from].data.extend_from_slice(old.data.get(kept..).unwrap_or_default());
    } else {
        overwrite(&mut segments[from], start, data);
    }
    for absorbed in segments.drain(from + 1..to).collect::<Vec<_>>() {
        let kept = (segments[from].end() - absorbed.start) as usize;
        let rest = absorbed.data.get(kept..).unwrap_or_default();
        segments[from].data.extend_from_slice(rest);
    }
}

/// Puts bytes over a segment that starts no later than they do and reaches them.
fn overwrite(segment: &mut Segment, start: u32, data: &[u8]) {
    let at = (start - segment.start) as usize;
    let inside = (segment.data.len() - at).min(data.len());
    segment.data[at..at + inside].copy_from_slice(&data[..inside]);
    grow(&mut segment.data, data.len() - inside);
    segment.data.extend_from_slice(&data[inside..]);
}

/// Makes room for a file that is written in sequence without copying it again and again.
fn grow(data: &mut Vec<u8>, more: usize) {
    let chunk = CHUNK_BYTES as usize;
    if data.len() + more > data.capacity() && data.len() >= chunk / 8 {
        data.reserve_exact(chunk.saturating_sub(data.len()).max(more));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_is_found(
            writes in proptest::collection::vec((0u32..200, 1usize..60, any::<u8>()), 0..30),
            from in 0u32..200,
            len in 0u32..100,
        ) {
            // Around a border between two chunks.
            let origin = CHUNK - 128;
            let mut expected: Vec<Option<u8>> = vec![None; 400];
            let mut dirty = Dirty::default();
            for (at, len, byte) in writes {
                dirty.write(origin + u64::from(at), &vec![byte; len]);
                expected[at as usize..at as usize + len].fill(Some(byte));
            }
            let mut found = vec![None; 400];
            for (chunk, range, done) in by_chunk(origin + u64::from(from), u64::from(len)) {
                for (start, bytes) in dirty.within(chunk, range.clone()) {
                    let at = from as usize + done + (start - range.start) as usize;
                    for (slot, byte) in found[at..].iter_mut().zip(bytes) {
                        *slot = Some(*byte);
                    }
                }
            }
            let range = from as usize..(from + len) as usize;
            prop_assert_eq!(&found[range.clone()], &expected[range]);
            let last = expected.iter().rposition(Option::is_some);
            prop_assert_eq!(dirty.end(), last.map_or(0, |last| origin + last as u64 + 1));
            let count = expected.iter().flatten().count() as u64;
            prop_assert_eq!(dirty.bytes(), count);
            for segments in dirty.chunks.values() {
                for pair in segments.windows(2) {
                    prop_assert!(pair[0].end() < pair[1].start);
                }
            }
        }
    }

    #[test]
    fn full_chunks_are_taken_and_the_rest_stays() {
        let mut dirty = Dirty::default();
        assert!(!dirty.write(0, &vec![1; 3 << 20]));
        assert!(dirty.write(3 << 20, &vec![2; 3 << 20]));
        let full = dirty.take_full();
        assert_eq!(full.len(), 1);
        assert_eq!((full[0].0, full[0].1[0].data.len()), (0, 4 << 20));
        assert_eq!(dirty.bytes(), 2 << 20);
        assert_eq!(dirty.take().len(), 1);
        assert!(dirty.is_empty());
    }
}
