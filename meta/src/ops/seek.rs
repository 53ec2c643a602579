//! `seek`: the next data or the next hole of a file.
//!
//! A hole is a range that no slice stores. Contents that rest in the entry are data from end to
//! end.
//!
//! Cost: one read, and a scan of the chunks from the offset to what is looked for.
//! POSIX: lseek(2) with `SEEK_DATA` and `SEEK_HOLE`. ENXIO.

use std::ops::ControlFlow;

use base::{Access, FsError, Ino, limits::CHUNK_BYTES};
use wire::{Seek, SeekTo, SliceSource};

use crate::{
    error::Result,
    record::{ChunkRecord, Contents, Record as _, key},
    txn::Txn,
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Seek) -> Result<u64> {
    let inode = txn.file(&req.file)?.inode;
    if !txn.opened_for(inode.ino, Access::NONE) {
        txn.inode_permits(&inode, Access::READ)?;
    }
    if req.offset >= inode.size {
        return Err(FsError::NoSuchDevice.into());
    }
    match (&inode.contents, req.to) {
        (Contents::Inline(_), SeekTo::Data) => Ok(req.offset),
        (Contents::Inline(_), SeekTo::Hole) => Ok(inode.size),
        (Contents::Blocks, to) => {
            let found = look(txn, inode.ino, req.offset, to)?.unwrap_or(inode.size);
            let none = to == SeekTo::Data && found >= inode.size;
            if none { Err(FsError::NoSuchDevice.into()) } else { Ok(found.min(inode.size)) }
        }
        (Contents::Target(_) | Contents::Device(_), _) => Err(FsError::Invalid.into()),
    }
}

/// The first stored offset from `offset` on, or the first that is not stored; `None` if no data
/// follows.
fn look(txn: &Txn<'_>, ino: Ino, offset: u64, to: SeekTo) -> Result<Option<u64>> {
    let first =
        u32::try_from(offset / u64::from(CHUNK_BYTES)).map_err(|_| FsError::NoSuchDevice)?;
    let mut look = Look { at: offset, to, found: None };
    let mut failed = None;
    let end = key::end_of(&key::chunks(ino));
    txn.scan(&key::chunk(ino, first), &end, &mut |key, value| {
        let Some((_, chunk)) = key::parse_chunk(key) else { return ControlFlow::Continue(()) };
        match ChunkRecord::from_record(&bytes::Bytes::copy_from_slice(value)) {
            Ok(record) => look.visit(chunk, &record),
            Err(error) => failed = Some(error),
        }
        let over = look.found.is_some() || failed.is_some();
        if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match (failed, to) {
        (Some(error), _) => Err(error.into()),
        (None, SeekTo::Data) => Ok(look.found),
        (None, SeekTo::Hole) => Ok(Some(look.found.unwrap_or(look.at))),
    }
}

/// A walk along the chunks of a file.
struct Look {
    /// The offset up to which the search has found nothing.
    at: u64,
    to: SeekTo,
    found: Option<u64>,
}

impl Look {
    fn visit(&mut self, chunk: u32, record: &ChunkRecord) {
        let start = u64::from(chunk) * u64::from(CHUNK_BYTES);
        for (from, to, index) in record.segments() {
            if matches!(record.slices[index].source, SliceSource::Zeros) {
                continue;
            }
            let (from, to) = (start + u64::from(from), start + u64::from(to));
            match self.to {
                SeekTo::Data if to > self.at => {
                    self.found = Some(from.max(self.at));
                    return;
                }
                SeekTo::Hole if from > self.at => {
                    self.found = Some(self.at);
                    return;
                }
                SeekTo::Data | SeekTo::Hole => self.at = self.at.max(to),
            }
        }
    }
}
