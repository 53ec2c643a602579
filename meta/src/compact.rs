//! Compaction: a chunk whose slices have become many is rewritten as one block.
//!
//! Writes add a slice each; reading a chunk of many slices costs many reads. A write that leaves a chunk with
//! more than [`SLICES_MAX`] slices, or too many embedded bytes, notes it here. The task reads what is visible,
//! stores it as one block, and replaces the list if it is still the one it read.

use std::collections::VecDeque;

use base::{BlockId, Ino, SessionId};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::{BlockPart, Slice, SliceSource};

use crate::{
    Core,
    core::Step,
    error::{Result, describe},
    lock,
    reclaim::Garbage,
    record::{ChunkRecord, inode::blocks_of, key},
    server::{Counters, Shared},
    txn::Txn,
};

/// More slices than this are rewritten.
pub(crate) const SLICES_MAX: usize = 32;
/// More embedded bytes than this as well.
pub(crate) const EMBEDDED_BYTES_MAX: usize = 32 << 10;

/// Chunks to rewrite.
#[derive(Default)]
pub(crate) struct CompactQueue {
    queue: Mutex<VecDeque<(Ino, u32)>>,
    wake: Notify,
}

impl CompactQueue {
    /// Notes a chunk.
    pub(crate) fn add(&self, ino: Ino, chunk: u32) {
        let mut queue = self.queue.lock();
        if !queue.contains(&(ino, chunk)) {
            queue.push_back((ino, chunk));
            self.wake.notify_one();
        }
    }
}

/// A chunk that was rewritten.
pub(crate) struct Rewritten {
    ino: Ino,
    chunk: u32,
    was: ChunkRecord,
    now: ChunkRecord,
}

/// Whether a chunk should be rewritten.
pub(crate) fn is_ragged(record: &ChunkRecord) -> bool {
    record.slices.len() > SLICES_MAX || record.embedded_bytes() > EMBEDDED_BYTES_MAX
}

/// Works for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = &core.inner.shared;
    loop {
        let next = shared.compact.queue.lock().pop_front();
        let Some((ino, chunk)) = next else {
            shared.compact.wake.notified().await;
            continue;
        };
        match rewrite(shared, ino, chunk).await {
            Ok(Some(rewritten)) => core.step(Step::Compacted(Box::new(rewritten))).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(%ino, chunk, error, "chunk not compacted"),
        }
    }
}

/// Reads what is visible and stores it anew.
async fn rewrite(
    shared: &Shared,
    ino: Ino,
    chunk: u32,
) -> std::result::Result<Option<Rewritten>, String> {
    let value = shared.engine.get(&key::chunk(ino, chunk)).map_err(|error| describe(&error))?;
    let Some(value) = value else { return Ok(None) };
    let was = crate::reclaim::chunk_of(&value).map_err(|error| describe(&error))?;
    if !is_ragged(&was) {
        return Ok(None);
    }
    let segments = was.segments();
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Ok(None) };
    let (start, end) = (first.0, last.1);
    let mut data = BytesMut::zeroed((end - start) as usize);
    for (from, to, index) in &segments {
        let bytes = read_slice(shared, &was.slices[*index], *from, *to).await?;
        if let Some(bytes) = bytes {
            data[(from - start) as usize..(to - start) as usize].copy_from_slice(&bytes);
        }
    }
    // Blocks of the server itself carry its incarnation, which is no session's id.
    let block = BlockId::new(SessionId(shared.incarnation), shared.random.next());
    let block_bytes = end - start;
    shared.blocks.put(block, data.freeze()).await.map_err(|error| describe(&error))?;
    let part = BlockPart { block, block_bytes, offset: 0, ticket: 0 };
    let now = ChunkRecord {
        slices: vec![Slice { start, len: block_bytes, source: SliceSource::Block(part) }],
    };
    Ok(Some(Rewritten { ino, chunk, was, now }))
}

async fn read_slice(
    shared: &Shared,
    slice: &Slice,
    from: u32,
    to: u32,
) -> std::result::Result<Option<Bytes>, String> {
    let skip = from - slice.start;
    match &slice.source {
        SliceSource::Zeros => Ok(None),
        SliceSource::Embedded(data) => {
            Ok(Some(data.slice(skip as usize..(to - slice.start) as usize)))
        }
        SliceSource::Block(part) => {
            let range = part.offset + skip..part.offset + (to - slice.start);
            let bytes = shared.blocks.get(part.block, part.block_bytes, range).await;
            bytes.map(Some).map_err(|error| describe(&error))
        }
    }
}

/// Replaces the list, or drops the new block if the list has changed.
pub(crate) fn step(txn: &mut Txn<'_>, rewritten: &Rewritten) -> Result<()> {
    let Rewritten { ino, chunk, was, now } = rewritten;
    txn.lock(lock::ino_lock(*ino))?;
    let key = key::chunk(*ino, *chunk);
    let current: Option<ChunkRecord> = txn.get(&key)?;
    let replaced = current.as_ref() == Some(was);
    let unused = if replaced { &was.slices } else { &now.slices };
    for block in blocks_of(unused) {
        txn.put(key::garbage(ino.shard(), block), &Garbage {});
    }
    if replaced {
        Counters::add(&txn.shared.counters.chunks_compacted);
        txn.put(key, now);
    }
    txn.reclaim.push(*ino);
    Ok(())
}
