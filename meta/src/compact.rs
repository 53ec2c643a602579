//! Compaction: rewrites a chunk as one block when its slices have become many, or show little of
//! their blocks.
//!
//! Each write adds a slice, and reading a chunk of many slices costs many reads. A write that
//! leaves a chunk with more than [`SLICES_MAX`] slices, or too many embedded bytes, notes the chunk
//! here. So does an operation that leaves a small part of large blocks visible: a block is stored
//! as long as a byte of it shows, and quotas count only what shows. The task reads the visible
//! bytes, stores them as one block, and replaces the list if it has not changed meanwhile.

pub(crate) mod queue;

use std::collections::BTreeMap;

use base::{BlockId, SessionId};
use bytes::BytesMut;
use store::BlocksError;
use wire::{BlockPart, Slice, SliceSource};

use crate::{
    Core,
    error::{Result, describe},
    lock,
    reclaim::notes::Garbage,
    record::{ChunkRecord, inode::blocks_of, key},
    server::{Counters, Shared},
    space_guard::Level,
    txn::Txn,
};
use queue::{DueChunk, has_many_slices, is_due};

/// A chunk that was rewritten, before its record is replaced.
pub(crate) struct Rewritten {
    at: DueChunk,
    was: ChunkRecord,
    now: ChunkRecord,
}

/// Rewrites chunks for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = &core.inner.shared;
    loop {
        let Some(due) = shared.compact.next() else {
            shared.compact.wake.notified().await;
            continue;
        };
        shared.space_guard.until(Level::Enough).await;
        let (ino, chunk) = (due.ino, due.chunk);
        let rewritten = rewrite(shared, due).await;
        let unreadable = matches!(&rewritten, Err(Failed { unreadable: true, .. }));
        shared.compact.tried(ino, chunk, unreadable);
        match rewritten {
            Ok(Some(rewritten)) => {
                core.step(move |txn| step(txn, &rewritten)).await;
            }
            Ok(None) => {}
            Err(Failed { reason, .. }) => {
                tracing::warn!(%ino, chunk, reason, "chunk not compacted");
            }
        }
    }
}

/// Why a chunk was not rewritten.
struct Failed {
    reason: String,
    /// Whether every later attempt will fail as well.
    unreadable: bool,
}

impl Failed {
    fn of_blocks(error: &BlocksError) -> Failed {
        let unreadable = matches!(
            error,
            BlocksError::Missing { .. } | BlocksError::Corrupt { .. } | BlocksError::Bounds { .. }
        );
        Failed { reason: describe(error), unreadable }
    }

    fn of_record(error: &dyn std::error::Error) -> Failed {
        Failed { reason: describe(error), unreadable: true }
    }
}

/// Reads the visible bytes of a chunk and stores them as one block.
async fn rewrite(shared: &Shared, at: DueChunk) -> std::result::Result<Option<Rewritten>, Failed> {
    let value = shared
        .engine
        .get(&key::chunk(at.ino, at.chunk))
        .map_err(|error| Failed::of_record(&error))?;
    let Some(value) = value else { return Ok(None) };
    let was = crate::reclaim::notes::chunk_of(&value).map_err(|error| Failed::of_record(&error))?;
    if !is_due(&was) {
        return Ok(None);
    }
    let segments = was.segments();
    let stretches = stretches(&was, &segments);
    let Some(last) = stretches.last() else { return Ok(None) };
    let block_bytes = last.offset + last.len;
    let mut data = BytesMut::zeroed(block_bytes as usize);
    let mut parts: BTreeMap<BlockId, Vec<Copied>> = BTreeMap::new();
    for (from, to, index) in segments {
        let slice = &was.slices[index];
        let (skip, len) = (from - slice.start, to - from);
        let at = stretches.partition_point(|stretch| stretch.start <= from);
        let Some(stretch) = at.checked_sub(1).map(|at| &stretches[at]) else { continue };
        let to = (stretch.offset + (from - stretch.start)) as usize;
        match &slice.source {
            SliceSource::Zeros => {}
            SliceSource::Embedded(bytes) => {
                let bytes = &bytes[skip as usize..(skip + len) as usize];
                data[to..to + bytes.len()].copy_from_slice(bytes);
            }
            SliceSource::Block(part) => {
                let copied = Copied { from: part.offset + skip, len, to, of: part.block_bytes };
                parts.entry(part.block).or_default().push(copied);
            }
        }
    }
    for (block, parts) in parts {
        copy_parts(shared, block, &parts, &mut data).await?;
    }
    // Blocks of the server carry its incarnation in place of a session's id.
    let block = BlockId::new(SessionId(shared.incarnation), shared.random.next());
    let put = shared.blocks.put(block, data.freeze()).await;
    put.map_err(|error| Failed { reason: describe(&error), unreadable: false })?;
    if !shared.blocks.puts_are_stable() {
        // The new block replaces stable ones.
        shared.sync.wait().await;
    }
    let slices = stretches.iter().map(|stretch| {
        let part = BlockPart { block, block_bytes, offset: stretch.offset, ticket: 0 };
        Slice { start: stretch.start, len: stretch.len, source: SliceSource::Block(part) }
    });
    let now = ChunkRecord { slices: slices.collect() };
    Ok(Some(Rewritten { at, was, now }))
}

/// A part of a chunk that becomes a slice of the new block.
struct Stretch {
    start: u32,
    len: u32,
    /// Offset of the part in the block.
    offset: u32,
}

/// Stretches of stored data in a chunk, from left to right. A chunk with many slices becomes one
/// stretch from the first to the last, with the holes filled; otherwise holes stay.
fn stretches(record: &ChunkRecord, segments: &[(u32, u32, usize)]) -> Vec<Stretch> {
    let fills = has_many_slices(record);
    let mut stretches: Vec<Stretch> = Vec::new();
    for (from, to, index) in segments {
        if !fills && matches!(record.slices[*index].source, SliceSource::Zeros) {
            continue;
        }
        match stretches.last_mut() {
            Some(last) if fills || last.start + last.len == *from => last.len = to - last.start,
            last => {
                let offset = last.map_or(0, |last| last.offset + last.len);
                stretches.push(Stretch { start: *from, len: to - from, offset });
            }
        }
    }
    stretches
}

/// A part of a block that is still visible, and its target.
struct Copied {
    from: u32,
    len: u32,
    to: usize,
    /// The length of the whole block.
    of: u32,
}

/// Copies parts of one block, which is read once: small writes that were sent together share a
/// block.
async fn copy_parts(
    shared: &Shared,
    block: BlockId,
    parts: &[Copied],
    data: &mut [u8],
) -> std::result::Result<(), Failed> {
    let first = parts.iter().map(|part| part.from).min().unwrap_or_default();
    let end = parts.iter().map(|part| part.from + part.len).max().unwrap_or_default();
    let of = parts.first().map_or(0, |part| part.of);
    let got = shared.blocks.get(block, of, first..end).await;
    let bytes = got.map_err(|error| Failed::of_blocks(&error))?;
    for part in parts {
        let start = (part.from - first) as usize;
        let part_bytes = &bytes[start..start + part.len as usize];
        data[part.to..part.to + part_bytes.len()].copy_from_slice(part_bytes);
    }
    Ok(())
}

/// Replaces the list of slices, or drops the new block if the list has changed.
pub(crate) fn step(txn: &mut Txn<'_>, rewritten: &Rewritten) -> Result<()> {
    let Rewritten { at: DueChunk { ino, chunk, place }, was, now } = rewritten;
    txn.lock(lock::ino_lock(*ino))?;
    let key = key::chunk(*ino, *chunk);
    let current: Option<ChunkRecord> = txn.get(&key)?;
    let file = txn.find(*ino, place.location())?;
    let replaced = file.filter(|_| current.as_ref() == Some(was));
    let unused = if replaced.is_some() { &was.slices } else { &now.slices };
    for block in blocks_of(unused) {
        txn.put(key::garbage(ino.shard(), block), &Garbage::default());
    }
    if let Some(mut file) = replaced {
        Counters::add(&txn.shared.counters.chunks_compacted);
        txn.put(key, now);
        // Holes between slices are stored now.
        let inode = &mut file.inode;
        let before = inode.allocated;
        inode.allocated = (inode.allocated + now.allocated()).saturating_sub(was.allocated());
        let (accounts, after) = (inode.accounts(), inode.allocated);
        txn.charge_change_freely(accounts, before, after);
        txn.put_inode(&file);
    }
    txn.facts.left.push(*ino);
    Ok(())
}
