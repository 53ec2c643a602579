//! `write`: new contents, named after their blocks are stored.
//!
//! Small contents stay in the entry while everything written is embedded and the file is short
//! enough. Then they move to the first chunk's record, and slices are painted over them.
//!
//! A change of attributes that follows a write comes with it: one transaction, in that order. Small
//! blocks come with it as well, and are stored before it is executed: it waits for that as late as
//! it can, so that a write that goes elsewhere leaves no block here.
//!
//! Cost: one locked read and one for each chunk, and one batch.
//! POSIX: pwrite(2). EFBIG, EDQUOT. EEXIST, which no program sees: a block that it names is not one
//! that its session has just stored; the client stores the contents anew, under other numbers.

use base::{
    BlockId, FileKind, FsError, HashMap, HashSet, Ino, Time,
    limits::{
        CHUNK_BYTES, CHUNKS_A_WRITE_MAX, EMBEDDED_BYTES_A_CHUNK_MAX, EMBEDDED_BYTES_A_WRITE_MAX,
        FILE_BYTES_MAX, INLINE_BYTES_MAX, SLICES_A_CHUNK_MAX, SLICES_A_WRITE_MAX,
        WRITE_BLOCKS_BYTES_MAX, WRITE_BLOCKS_MAX,
    },
};
use bytes::{Bytes, BytesMut};
use wire::{ChunkSlices, Retry, Slice, SliceSource, Write, Written};

use super::setattr;
use crate::{
    compact::queue::is_due,
    data,
    deferred_truncations::cut,
    error::{Fault, Result},
    lock,
    reclaim::notes::CHUNKS_A_STEP,
    record::{
        ChunkRecord, Contents, Inode, Record as _, Times, chunk::embedded_bytes, chunk::is_sound,
        inode::blocks_of, key,
    },
    txn::{Located, Txn},
    unsynced::Unsynced,
};

pub(crate) fn run(txn: &mut Txn<'_>, req: &Write) -> Result<Written> {
    let mut file = txn.file_locked(&req.file)?;
    let session = txn.caller.session.ok_or(FsError::Invalid)?;
    if file.inode.kind != FileKind::File {
        return Err(FsError::Invalid.into());
    }
    if !txn.opened_for(file.inode.ino, base::Access::WRITE) {
        txn.inode_permits(&file.inode, base::Access::WRITE)?;
    }
    check(req, session.id)?;
    keep_off_tail(txn, &file.inode, req.end)?;
    data::are_stored(req, txn.brought)?;
    may_be_named(txn, &req.chunks)?;

    let was = file.inode.attr().allocated;
    txn.drop_capability(&mut file)?;
    let end = file.inode.size.max(req.end);
    if !write_inline(txn, &mut file.inode, req, end) {
        leave_inline(txn, &mut file.inode);
        for chunk in &req.chunks {
            paint(txn, &mut file, chunk)?;
        }
    }
    let inode = &mut file.inode;
    inode.size = end;
    note_time(&mut inode.times, req.at, txn.now);
    if req.clear_set_id || txn.loses_set_id() {
        inode.clear_set_id();
    }
    txn.charge_change(file.inode.accounts(), was, file.inode.attr().allocated)?;
    if let Some(set) = &req.set {
        let written = file.inode.times.ctime;
        setattr::change_file(txn, &mut file, set)?;
        // Race: an earlier change may have the same time as this group.
        file.inode.times.ctime = file.inode.times.ctime.max(written);
    }
    txn.put_inode(&file);
    Ok(Written { attr: file.inode.attr() })
}

/// Sets the times of a file that was written at `at`: earlier than now when the client kept it for
/// a while.
///
/// `ctime` always becomes a new one: a client sees by it that its cached contents are old.
fn note_time(times: &mut Times, at: Option<Time>, now: Time) {
    let at = at.map_or(now, |at| at.min(now));
    // Others may have written since. A time in the future was set by hand.
    times.mtime = if times.mtime <= now { times.mtime.max(at) } else { at };
    times.ctime = at.max(times.ctime.just_after());
}

/// Checks a write: it stays within the file, and names only blocks of its session, each in one
/// chunk. So a block that its chunk no longer shows can be deleted without looking at other chunks.
fn check(req: &Write, session: base::SessionId) -> Result<()> {
    if req.end > FILE_BYTES_MAX {
        return Err(FsError::FileTooBig.into());
    }
    if req.chunks.len() > CHUNKS_A_WRITE_MAX {
        return Err(FsError::Invalid.into());
    }
    if !req.blocks.is_empty() {
        check_brought(req)?;
    }
    // A truncation and an access have rules of their own.
    if req.set.is_some_and(|set| set.size.is_some() || set.access_only) {
        return Err(FsError::Invalid.into());
    }
    let mut named = HashMap::default();
    for (place, chunk) in req.chunks.iter().enumerate() {
        let start = u64::from(chunk.chunk) * u64::from(CHUNK_BYTES);
        let embedded = embedded_bytes(&chunk.slices);
        if chunk.slices.len() > SLICES_A_WRITE_MAX || embedded > EMBEDDED_BYTES_A_WRITE_MAX {
            return Err(FsError::Invalid.into());
        }
        for slice in &chunk.slices {
            let own = blocks_of(std::slice::from_ref(slice)).all(|block| {
                block.session() == session && *named.entry(block).or_insert(place) == place
            });
            if !is_sound(slice) || !own {
                return Err(FsError::Invalid.into());
            }
            if start + u64::from(slice.start) + u64::from(slice.len) > req.end {
                return Err(FsError::Invalid.into());
            }
        }
    }
    Ok(())
}

/// Checks that a write brings few blocks and little else, as it is kept until they are stored, and
/// names each of them.
fn check_brought(req: &Write) -> Result<()> {
    let slices = || req.chunks.iter().flat_map(|chunk| &chunk.slices);
    let parts = slices().filter_map(|slice| match &slice.source {
        SliceSource::Block(part) => Some((part.block, part.block_bytes as usize)),
        SliceSource::Embedded(_) | SliceSource::Zeros => None,
    });
    let named: HashMap<BlockId, usize> = parts.collect();
    let bytes: usize = req.blocks.iter().map(|put| put.data.len()).sum();
    let embedded: usize = req.chunks.iter().map(|chunk| embedded_bytes(&chunk.slices)).sum();
    // The request is kept while it waits, and a slice takes more memory than bytes of the message.
    let few = req.blocks.len() <= WRITE_BLOCKS_MAX
        && slices().count() <= SLICES_A_WRITE_MAX
        && bytes <= WRITE_BLOCKS_BYTES_MAX
        && embedded <= EMBEDDED_BYTES_A_WRITE_MAX;
    let mut seen = HashSet::default();
    let all_named = req.blocks.iter().all(|put| {
        let len = put.data.len();
        len > 0 && seen.insert(put.block) && named.get(&put.block) == Some(&len)
    });
    if few && all_named { Ok(()) } else { Err(FsError::Invalid.into()) }
}

/// Most bytes of a file's contents that rest in its entry. Longer ones that are kept with the
/// metadata are in the record of their chunk, so that listings stay short.
fn inline_max(txn: &Txn<'_>, inode: &Inode) -> u64 {
    let number = txn.shared.settings().inline_bytes_max.min(INLINE_BYTES_MAX);
    inode.inline_max.0.map_or(number, |own| own.min(number)).into()
}

/// Writes into the entry, if all of it can stay there.
fn write_inline(txn: &Txn<'_>, inode: &mut Inode, req: &Write, end: u64) -> bool {
    let Contents::Inline(old) = &inode.contents else { return false };
    let embedded = |slice: &Slice| matches!(slice.source, SliceSource::Embedded(_));
    let small = end <= inline_max(txn, inode);
    if !small || !req.chunks.iter().all(|c| c.chunk == 0 && c.slices.iter().all(embedded)) {
        return false;
    }
    let mut data = BytesMut::zeroed(usize::try_from(end).expect("at most inline_bytes_max"));
    data[..old.len()].copy_from_slice(old);
    for slice in req.chunks.iter().flat_map(|chunk| &chunk.slices) {
        if let SliceSource::Embedded(bytes) = &slice.source {
            let start = slice.start as usize;
            data[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }
    inode.contents = Contents::Inline(data.freeze());
    inode.allocated = 0;
    true
}

/// Moves the contents from the entry to the first chunk's record.
fn leave_inline(txn: &mut Txn<'_>, inode: &mut Inode) {
    let Contents::Inline(data) = &inode.contents else { return };
    if !data.is_empty() {
        let len = u32::try_from(data.len()).expect("at most inline_bytes_max");
        let slice = Slice { start: 0, len, source: SliceSource::Embedded(data.clone()) };
        txn.put(key::chunk(inode.ino, 0), &ChunkRecord { slices: vec![slice] });
    }
    inode.allocated = data.len() as u64;
    inode.contents = Contents::Blocks;
}

/// Puts slices over a chunk, oldest first.
fn paint(txn: &mut Txn<'_>, file: &mut Located, chunk: &ChunkSlices) -> Result<()> {
    let slices = chunk.slices.iter().cloned().map(|mut slice| {
        if let SliceSource::Block(part) = &mut slice.source {
            part.ticket = 0;
        }
        slice
    });
    let old = txn.get(&key::chunk(file.inode.ino, chunk.chunk))?.unwrap_or_default();
    give_way(txn, file, chunk.chunk, &old)?;
    let new = change_chunk(txn, file, chunk.chunk, old, |record| record.paint(slices));
    note(txn, file.inode.ino, &chunk.slices);
    txn.named.extend(blocks_of(&chunk.slices));
    // Drop blocks that newer slices of the same request hide.
    txn.drop_blocks(file.inode.ino, &chunk.slices, &new.slices);
    Ok(())
}

/// Refuses a write that names a block which its session has not put here, or which is named
/// already.
fn may_be_named(txn: &mut Txn<'_>, chunks: &[ChunkSlices]) -> Result<()> {
    let Some(session) = txn.caller.session else { return Ok(()) };
    let slices = chunks.iter().flat_map(|chunk| &chunk.slices);
    let mut parts = slices.filter_map(|slice| match &slice.source {
        SliceSource::Block(part) => Some(part),
        SliceSource::Embedded(_) | SliceSource::Zeros => None,
    });
    let Some(first) = parts.next().filter(|_| !session.reaches_store()) else { return Ok(()) };
    // Race: two cores must not find the same block unnamed.
    txn.lock(lock::session_lock(session.id))?;
    let unnamed = session.unnamed.lock();
    let mut parts = std::iter::once(first).chain(parts);
    if parts.all(|part| unnamed.has(part.block, part.block_bytes)) {
        Ok(())
    } else {
        Err(FsError::Exists.into())
    }
}

/// Adds a note for each block that slices of an inode name.
fn note(txn: &mut Txn<'_>, ino: Ino, slices: &[Slice]) {
    if txn.shared.blocks.puts_are_stable() {
        return;
    }
    let mut last = None;
    for slice in slices {
        let SliceSource::Block(part) = &slice.source else { continue };
        if last.replace(part.block) != Some(part.block) {
            let key = key::unsynced(ino.shard(), part.block);
            txn.put(key.clone(), &Unsynced { bytes: part.block_bytes });
            txn.facts.unsynced.push(key);
        }
    }
}

/// Refuses a write while the chunk has too many slices, so that it is rewritten before it gets
/// more.
pub(super) fn give_way(txn: &Txn<'_>, file: &Located, chunk: u32, old: &ChunkRecord) -> Result<()> {
    let many = old.slices.len() > SLICES_A_CHUNK_MAX;
    if !many && embedded_bytes(&old.slices) <= EMBEDDED_BYTES_A_CHUNK_MAX {
        return Ok(());
    }
    let (ino, compact) = (file.inode.ino, &txn.shared.compact);
    compact.add(file, chunk);
    if compact.is_unreadable(ino, chunk) {
        tracing::error!(%ino, chunk, "a chunk is full, and a block of it damaged; run `pando fsck`");
        return Err(FsError::Io.into());
    }
    Err(Fault::Retry(Retry::Busy))
}

/// Changes a chunk's slices. Blocks that no slice shows any more become garbage, and a chunk that
/// should be rewritten is noted.
pub(super) fn change_chunk(
    txn: &mut Txn<'_>,
    file: &mut Located,
    chunk: u32,
    old: ChunkRecord,
    change: impl FnOnce(&mut ChunkRecord),
) -> ChunkRecord {
    let ino = file.inode.ino;
    let key = key::chunk(ino, chunk);
    let mut new = old.clone();
    change(&mut new);
    txn.drop_blocks(ino, &old.slices, &new.slices);
    let inode = &mut file.inode;
    inode.allocated = (inode.allocated + new.allocated()).saturating_sub(old.allocated());
    if new.slices.is_empty() {
        txn.delete(key);
    } else {
        txn.put(key, &new);
    }
    if is_due(&new) {
        txn.shared.compact.add(file, chunk);
    }
    new
}

/// Cuts a file, or grows it with zeros.
pub(crate) fn truncate(txn: &mut Txn<'_>, file: &mut Located, size: u64) -> Result<()> {
    if size > FILE_BYTES_MAX {
        return Err(FsError::FileTooBig.into());
    }
    let was = file.inode.attr().allocated;
    let inode = &mut file.inode;
    if let Contents::Inline(data) = &inode.contents {
        if size <= inline_max(txn, inode) {
            let mut new = BytesMut::from(&data[..]);
            new.resize(usize::try_from(size).expect("at most inline_bytes_max"), 0);
            inode.contents = Contents::Inline(new.freeze());
        } else {
            leave_inline(txn, inode);
        }
    } else if size < inode.size {
        cut(txn, file, size)?;
    } else {
        keep_off_tail(txn, inode, size)?;
    }
    file.inode.size = size;
    txn.charge_change(file.inode.accounts(), was, file.inode.attr().allocated)
}

/// Refuses for now a write that would make a file reach contents that were cut off before.
fn keep_off_tail(txn: &Txn<'_>, inode: &Inode, end: u64) -> Result<()> {
    if !txn.shared.deferred_truncations.is_in_the_way(inode.ino, end) {
        return Ok(());
    }
    txn.shared.backlog.add(vec![inode.ino]);
    Err(Fault::Retry(Retry::Busy))
}

/// Drops the contents behind `size`; most of a huge file is left to the background. Nothing of it
/// shows again when the file grows.
fn cut(txn: &mut Txn<'_>, file: &mut Located, size: u64) -> Result<()> {
    let ino = file.inode.ino;
    let boundary = u32::try_from(size / u64::from(CHUNK_BYTES)).map_err(|_| FsError::FileTooBig)?;
    let within = u32::try_from(size % u64::from(CHUNK_BYTES)).expect("a remainder");
    let first_gone = if within == 0 { boundary } else { boundary + 1 };
    let gone = txn.scan_chunks(ino, first_gone, CHUNKS_A_STEP)?;
    let huge = gone.len() == CHUNKS_A_STEP || txn.shared.deferred_truncations.has(ino);
    if huge {
        cut::leave(txn, file, first_gone);
        txn.facts.left.push(ino);
    } else {
        for (chunk, value) in gone {
            let record = ChunkRecord::from_record(&value)?;
            txn.drop_blocks(ino, &record.slices, &[]);
            file.inode.allocated = file.inode.allocated.saturating_sub(record.allocated());
            txn.delete(key::chunk(ino, chunk));
        }
    }
    if within > 0 {
        let old = txn.get(&key::chunk(ino, boundary))?.unwrap_or_default();
        change_chunk(txn, file, boundary, old, |record| record.truncate(within));
    }
    if size == 0 && !huge {
        file.inode.contents = Contents::Inline(Bytes::new());
        file.inode.allocated = 0;
    }
    Ok(())
}
