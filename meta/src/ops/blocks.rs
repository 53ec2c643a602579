//! `block_map`: where a file's contents are.
//!
//! Cost: one read for the inode and one for each chunk.

use std::ops::ControlFlow;

use base::{BlockId, FsError, Ino};
use wire::{BlockMap, BlockMapped, ChunkSlices, SliceSource};

use crate::{
    error::Result,
    record::{ChunkRecord, Contents, key},
    session::Session,
    txn::{Txn, halves},
};

/// How many chunks one answer holds.
const CHUNKS_MAX: u32 = 64;

pub(crate) fn run(txn: &mut Txn<'_>, req: &BlockMap) -> Result<BlockMapped> {
    let file = txn.file(&req.file)?;
    let open =
        txn.caller.session.is_some_and(|session| txn.shared.opens.has(file.inode.ino, session.id));
    if !open {
        txn.inode_permits(&file.inode, base::Access::READ)?;
    }
    let mut answer = BlockMapped { attr: file.inode.attr(), inline: None, chunks: Vec::new() };
    match &file.inode.contents {
        Contents::Inline(data) => answer.inline = Some(data.clone()),
        Contents::Blocks => {
            let end = req.first.saturating_add(req.count.clamp(1, CHUNKS_MAX));
            answer.chunks = chunks(txn, file.inode.ino, req.first, end)?;
        }
        Contents::Target(_) | Contents::Device(_) => return Err(FsError::Invalid.into()),
    }
    Ok(answer)
}

/// The chunks from `first` to before `end` that are there.
fn chunks(txn: &Txn<'_>, ino: Ino, first: u32, end: u32) -> Result<Vec<ChunkSlices>> {
    if end - first == 1 {
        return Ok(mapped(txn, ino, first)?.into_iter().collect());
    }
    let mut found = Vec::new();
    txn.scan(&key::chunk(ino, first), &key::chunk(ino, end), &mut |key, value| {
        found.extend(
            key::parse_chunk(key).map(|(_, chunk)| (chunk, bytes::Bytes::copy_from_slice(value))),
        );
        ControlFlow::Continue(())
    })?;
    found
        .into_iter()
        .map(|(chunk, value)| {
            let record = <ChunkRecord as crate::record::Record>::from_record(&value)?;
            Ok(with_tickets(txn, chunk, record))
        })
        .collect()
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
