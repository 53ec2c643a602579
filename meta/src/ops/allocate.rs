//! `allocate`: fallocate(2), which makes a file longer or a range of it zeros.
//!
//! Zeros are slices like any others where a chunk keeps something; a chunk that is all zeros has no
//! record. No space is reserved, but a range that would not fit is refused: the caller wants to
//! fill it.
//!
//! Cost: one locked read and one batch; a scan of the chunks that become zeros.
//! POSIX: posix_fallocate(3); Linux: fallocate(2). EINVAL, EFBIG, ENOSPC, EDQUOT, ENODEV for what
//! is no file.

use std::{iter, ops::ControlFlow};

use base::{
    Access, Attr, FileKind, FsError,
    limits::{CHUNK_BYTES, FILE_BYTES_MAX},
};
use bytes::{Bytes, BytesMut};
use wire::{Allocate, AllocateMode, Slice, SliceSource};

use super::write::{change_chunk, give_way, truncate};
use crate::{
    error::Result,
    record::{ChunkRecord, Contents, Inode, Record as _, Usage, key},
    txn::{Located, Txn},
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Allocate) -> Result<Attr> {
    let mut file = txn.file_locked(&req.file)?;
    if file.inode.kind != FileKind::File {
        return Err(FsError::NoSuchDevice.into());
    }
    if !txn.opened_for(file.inode.ino, Access::WRITE) {
        txn.inode_permits(&file.inode, Access::WRITE)?;
    }
    if req.len == 0 {
        return Err(FsError::Invalid.into());
    }
    let end = req.offset.checked_add(req.len).filter(|end| *end <= FILE_BYTES_MAX);
    let end = end.ok_or(FsError::FileTooBig)?;

    let within = end.min(file.inode.size);
    let (zeros, grows) = match req.mode {
        AllocateMode::Grow => (false, true),
        AllocateMode::Keep => (false, false),
        AllocateMode::Zero => (true, true),
        AllocateMode::ZeroWithin => (true, false),
    };
    if req.mode != AllocateMode::ZeroWithin {
        has_room(txn, &file.inode, req.len)?;
    }
    if zeros && req.offset < within {
        let was = file.inode.attr().allocated;
        zero(txn, &mut file, req.offset, within)?;
        txn.charge_change_freely(file.inode.accounts(), was, file.inode.attr().allocated);
    }
    if grows && end > file.inode.size {
        truncate(txn, &mut file, end)?;
    }
    txn.drop_capability(&mut file)?;
    file.inode.times.mtime = txn.now;
    file.inode.times.ctime = txn.now;
    if req.clear_set_id || txn.loses_set_id() {
        file.inode.clear_set_id();
    }
    txn.put_inode(&file);
    Ok(file.inode.attr())
}

/// Whether `bytes` of a file could be stored, on the disk and below its quotas. The bytes that the
/// file has already are taken to be among them.
fn has_room(txn: &mut Txn<'_>, inode: &Inode, bytes: u64) -> Result<()> {
    let new = bytes.saturating_sub(inode.attr().allocated);
    let (_, free) = (txn.shared.options.space)();
    if new > free.saturating_sub(txn.shared.options.limits.reserve) {
        return Err(FsError::NoSpace.into());
    }
    txn.charge(inode.accounts(), Usage::of(0, new))?;
    txn.charge_freely(inode.accounts(), Usage::of(0, new).minus());
    Ok(())
}

/// Makes the range `from` to `to` zeros, which is not beyond the end.
fn zero(txn: &mut Txn<'_>, file: &mut Located, from: u64, to: u64) -> Result<()> {
    if let Contents::Inline(data) = &file.inode.contents {
        let mut new = BytesMut::from(&data[..]);
        let at = |offset: u64| usize::try_from(offset).expect("within what is in memory");
        new[at(from)..at(to)].fill(0);
        file.inode.contents = Contents::Inline(new.freeze());
        return Ok(());
    }
    let chunk_bytes = u64::from(CHUNK_BYTES);
    let number = |offset: u64| u32::try_from(offset / chunk_bytes).map_err(|_| FsError::FileTooBig);
    let (ino, size) = (file.inode.ino, file.inode.size);
    let mut met: Vec<(u32, Bytes)> = Vec::new();
    let range = key::chunk(ino, number(from)?)..key::chunk(ino, number(to - 1)? + 1);
    txn.scan(&range.start, &range.end, &mut |key, value| {
        met.extend(key::parse_chunk(key).map(|(_, chunk)| (chunk, Bytes::copy_from_slice(value))));
        ControlFlow::Continue(())
    })?;
    for (chunk, value) in met {
        let start = u64::from(chunk) * chunk_bytes;
        let within = |offset: u64| {
            let offset = offset.clamp(start, start + chunk_bytes) - start;
            u32::try_from(offset).expect("at most a chunk")
        };
        // Behind the end of the file there is nothing to keep.
        let (first, end) = (within(from), if to == size { CHUNK_BYTES } else { within(to) });
        if first == 0 && end == CHUNK_BYTES {
            let record = ChunkRecord::from_record(&value)?;
            txn.drop_blocks(ino, &record.slices, &[]);
            file.inode.allocated = file.inode.allocated.saturating_sub(record.allocated());
            txn.delete(key::chunk(ino, chunk));
            continue;
        }
        let old = ChunkRecord::from_record(&value)?;
        if end < CHUNK_BYTES {
            // The zeros are one more slice.
            give_way(txn, file, chunk, &old)?;
        }
        change_chunk(txn, file, chunk, old, |record| hide(record, first, end));
    }
    Ok(())
}

/// Puts zeros over a part of a chunk.
fn hide(record: &mut ChunkRecord, first: u32, end: u32) {
    if end == CHUNK_BYTES {
        record.truncate(first);
        return;
    }
    let zeros = Slice { start: first, len: end - first, source: SliceSource::Zeros };
    record.paint(iter::once(zeros));
    if record.allocated() == 0 {
        record.slices.clear();
    }
}
