//! `block_map`: where a file's contents are.
//!
//! Cost: one read for the inode, and one for a chunk or a scan for several.

use std::ops::ControlFlow;

use base::{BlockId, FsError, Ino, limits::CHUNK_BYTES};
use bytes::Bytes;
use wire::{BlockMap, BlockMapped, ChunkSlices, SliceSource};

use crate::{
    error::Result,
    record::{ChunkRecord, Contents, Record as _, key},
    session::{Session, halves},
    txn::Txn,
};

/// Most chunks in one answer.
const CHUNKS_MAX: u32 = 64;
/// An answer ends early after records of this many bytes.
const BYTES_MAX: usize = 1 << 20;

pub(crate) fn run(txn: &mut Txn<'_>, req: &BlockMap) -> Result<BlockMapped> {
    let file = txn.file(&req.file)?;
    if !txn.opened_for(file.inode.ino, base::Access::READ) {
        txn.inode_permits(&file.inode, base::Access::READ)?;
    }
    let end = req.first.saturating_add(req.count.clamp(1, CHUNKS_MAX));
    let mut answer = BlockMapped { attr: file.inode.attr(), inline: None, chunks: Vec::new(), end };
    match &file.inode.contents {
        Contents::Inline(data) => answer.inline = Some(data.clone()),
        Contents::Blocks => {
            // Chunks that a truncate cut off may still be stored, behind the file's end.
            let last = file.inode.size.div_ceil(u64::from(CHUNK_BYTES));
            let last = u32::try_from(last).unwrap_or(u32::MAX).min(end);
            if req.first < last {
                let (found, covered) = chunks(txn, file.inode.ino, req.first, last)?;
                answer.chunks = found;
                answer.end = if covered == last { end } else { covered };
            }
        }
        Contents::Target(_) | Contents::Device(_) => return Err(FsError::Invalid.into()),
    }
    Ok(answer)
}

/// Reads the stored chunks from `first`. The number is where they end: `end`, or earlier when they
/// are large.
fn chunks(txn: &Txn<'_>, ino: Ino, first: u32, end: u32) -> Result<(Vec<ChunkSlices>, u32)> {
    if end - first == 1 {
        return Ok((mapped(txn, ino, first)?.into_iter().collect(), end));
    }
    let mut found = Vec::new();
    let (mut bytes, mut covered) = (0, end);
    txn.scan(&key::chunk(ino, first), &key::chunk(ino, end), &mut |key, value| {
        let Some((_, chunk)) = key::parse_chunk(key) else { return ControlFlow::Continue(()) };
        if bytes >= BYTES_MAX {
            covered = chunk;
            return ControlFlow::Break(());
        }
        bytes += value.len();
        found.push((chunk, Bytes::copy_from_slice(value)));
        ControlFlow::Continue(())
    })?;
    let chunks = found.into_iter().map(|(chunk, value)| {
        let record = ChunkRecord::from_record(&value)?;
        Ok(with_tickets(txn, chunk, record))
    });
    Ok((chunks.collect::<Result<_>>()?, covered))
}

/// One chunk, if it is not all zeros.
pub(crate) fn mapped(txn: &Txn<'_>, ino: Ino, chunk: u32) -> Result<Option<ChunkSlices>> {
    let record: Option<ChunkRecord> = txn.get(&key::chunk(ino, chunk))?;
    Ok(record.map(|record| with_tickets(txn, chunk, record)))
}

fn with_tickets(txn: &Txn<'_>, chunk: u32, record: ChunkRecord) -> ChunkSlices {
    let mut slices = record.slices;
    for slice in &mut slices {
        if let SliceSource::Block(part) = &mut slice.source {
            part.ticket = txn.ticket(&block_parts(part.block));
        }
    }
    ChunkSlices { chunk, slices }
}

/// The ticket that lets a session read a block.
pub(crate) fn part_ticket(session: &Session, block: BlockId) -> u64 {
    session.ticket(&block_parts(block))
}

fn block_parts(block: BlockId) -> [u64; 3] {
    let [high, low] = halves(block.0);
    [u64::from_le_bytes(*b"read-blk"), high, low]
}
