//! Chunks that wait to be rewritten, and which ones are due.

use std::collections::VecDeque;

use base::{HashSet, Ino, limits::SMALL_BYTES_MAX};
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::SliceSource;

use crate::record::{
    ChunkRecord,
    chunk::embedded_bytes,
    located::{Located, Place},
};

/// A chunk with more slices than this is rewritten.
pub(crate) const SLICES_MAX: usize = 32;
/// A chunk with more embedded bytes than this in several slices is rewritten. One slice is what a
/// small file is.
pub(crate) const EMBEDDED_BYTES_MAX: usize = 32 << 10;
/// Blocks with more than this many times the visible bytes are rewritten, unless they have at most
/// [`WASTED_BYTES_MAX`].
const WASTE_MAX: u64 = 4;
/// Blocks of a chunk with this many bytes in all, or fewer, are never wasteful.
const WASTED_BYTES_MAX: u64 = 64 << 10;

/// Chunks to rewrite.
#[derive(Default)]
pub(crate) struct CompactQueue {
    noted: Mutex<Noted>,
    pub(super) wake: Notify,
}

#[derive(Default)]
struct Noted {
    queue: VecDeque<DueChunk>,
    /// Chunks in the queue.
    waiting: HashSet<(Ino, u32)>,
    /// Chunks that cannot be read, and therefore not rewritten.
    unreadable: HashSet<(Ino, u32)>,
}

/// A chunk to rewrite.
#[derive(Clone)]
pub(super) struct DueChunk {
    pub(super) ino: Ino,
    pub(super) chunk: u32,
    /// Place of the inode. If it moves, its shard of birth knows the new one.
    pub(super) place: Place,
}

impl CompactQueue {
    /// Number of chunks that wait.
    pub(crate) fn len(&self) -> usize {
        self.noted.lock().queue.len()
    }

    /// Adds a chunk to the queue, unless it waits already.
    pub(crate) fn add(&self, file: &Located, chunk: u32) {
        let (ino, place) = (file.inode.ino, file.place.clone());
        let mut noted = self.noted.lock();
        if noted.waiting.insert((ino, chunk)) {
            noted.queue.push_back(DueChunk { ino, chunk, place });
            self.wake.notify_one();
        }
    }

    /// Whether a chunk cannot be rewritten: a block of it is damaged or gone.
    pub(crate) fn is_unreadable(&self, ino: Ino, chunk: u32) -> bool {
        self.noted.lock().unreadable.contains(&(ino, chunk))
    }

    pub(super) fn next(&self) -> Option<DueChunk> {
        let mut noted = self.noted.lock();
        let next = noted.queue.pop_front()?;
        noted.waiting.remove(&(next.ino, next.chunk));
        Some(next)
    }

    /// Notes the result of an attempt to rewrite a chunk.
    pub(super) fn tried(&self, ino: Ino, chunk: u32, unreadable: bool) {
        let mut noted = self.noted.lock();
        if unreadable {
            noted.unreadable.insert((ino, chunk));
        } else {
            noted.unreadable.remove(&(ino, chunk));
        }
    }
}

/// Whether a chunk should be rewritten.
pub(crate) fn is_due(record: &ChunkRecord) -> bool {
    has_many_slices(record) || is_wasteful(record)
}

pub(super) fn has_many_slices(record: &ChunkRecord) -> bool {
    let (count, embedded) = (record.slices.len(), embedded_bytes(&record.slices));
    // One slice is how small contents are kept with their metadata, up to a limit.
    count > SLICES_MAX
        || count > 1 && embedded > EMBEDDED_BYTES_MAX
        || embedded > SMALL_BYTES_MAX as usize
}

/// Whether a chunk shows little of its blocks.
fn is_wasteful(record: &ChunkRecord) -> bool {
    let mut seen = HashSet::default();
    let parts = record.slices.iter().filter_map(|slice| match &slice.source {
        SliceSource::Block(part) => Some(part),
        SliceSource::Embedded(_) | SliceSource::Zeros => None,
    });
    let blocks = parts.filter(|part| seen.insert(part.block));
    let stored: u64 = blocks.map(|part| u64::from(part.block_bytes)).sum();
    stored > WASTED_BYTES_MAX && stored > WASTE_MAX * record.allocated()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use wire::Slice;

    use super::*;

    #[test]
    fn one_embedded_slice_stays_as_it_is_up_to_the_most_that_a_small_file_has() {
        let of = |lens: &[u32]| {
            let slices = lens.iter().map(|len| {
                let source = SliceSource::Embedded(Bytes::from(vec![1; *len as usize]));
                Slice { start: 0, len: *len, source }
            });
            is_due(&ChunkRecord { slices: slices.collect() })
        };
        assert!(!of(&[SMALL_BYTES_MAX]) && of(&[SMALL_BYTES_MAX + 1]));
        assert!(!of(&[16 << 10, 16 << 10]) && of(&[16 << 10, (16 << 10) + 1]));
    }
}
