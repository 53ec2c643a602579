//! Inodes in entries and slots, their chunks, and the notes to reclaim them.

use std::ops::ControlFlow;

use base::{
    Acl, AclKind, BlockId, FileKind, Ino, ShardId, Time,
    attr::MODE_BITS,
    limits::{CHUNK_BYTES, FILE_BYTES_MAX, INLINE_BYTES_MAX, XATTRS_EMBEDDED_BYTES_MAX},
};
use wire::SliceSource;

use super::{drop_record, lost, sound, unsound};
use crate::{
    error::Result,
    lock,
    record::{
        ChunkRecord, Contents, EntryRecord, Inode, Key, QuotaId, Reclaim, ReclaimKind, Record as _,
        Slot, Tail, XattrSet, Xattrs, inode::blocks_of, key, key::Part,
    },
    txn::{Located, Place, Txn},
    unsynced::is_whole,
};

/// Measurements of an inode's chunks.
#[derive(Default)]
pub(super) struct Measured {
    /// End of the last slice.
    pub(super) end: u64,
    pub(super) allocated: u64,
    empty: Vec<Key>,
    damaged: Vec<Key>,
}

/// Measures the chunks of an inode. To be called before anything is written.
pub(super) fn measure(txn: &Txn<'_>, ino: Ino) -> Result<Measured> {
    let mut found = Measured::default();
    super::is_here(txn, &key::chunks(ino))?;
    // Chunks that a truncate has cut off stay behind the file's end until they are removed.
    let tail = sound::<Tail>(txn, &key::tail(ino))?.map_or(u32::MAX, |tail| tail.first);
    let prefix = key::chunks(ino);
    txn.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        let Some((_, chunk)) = key::parse_chunk(key) else { return ControlFlow::Continue(()) };
        let start = u64::from(chunk) * u64::from(CHUNK_BYTES);
        let end = found.end;
        match crate::reclaim::notes::chunk_of(value) {
            Err(_) => {
                found.damaged.push(Key::from_slice(key));
                found.end = found.end.max(start + 1);
            }
            Ok(record) if record.slices.is_empty() => found.empty.push(Key::from_slice(key)),
            Ok(record) => {
                found.allocated += record.allocated();
                let ends = record.slices.iter().map(|slice| u64::from(slice.start + slice.len));
                found.end = found.end.max(start + ends.max().unwrap_or_default());
            }
        }
        if chunk >= tail {
            found.end = end;
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Makes an inode fit its contents, its quota and its extended attributes. Sets `mended` if
/// anything but the inode was written; the caller stores the inode. `false` when the inode is
/// beyond repair.
pub(super) fn mend(
    txn: &mut Txn<'_>,
    located: &mut Located,
    quota: Option<QuotaId>,
    lose: bool,
    mended: &mut bool,
) -> Result<bool> {
    let was = located.inode.clone();
    let in_blocks = was.contents == Contents::Blocks;
    let measured = if in_blocks { measure(txn, was.ino)? } else { Measured::default() };
    let inode = &mut located.inode;
    inode.mode &= MODE_BITS;
    if !fits_its_contents(inode) {
        return Ok(false);
    }
    if in_blocks {
        inode.size = inode.size.max(measured.end).min(FILE_BYTES_MAX);
        inode.allocated = measured.allocated;
        let given_up = measured.damaged.iter().filter(|_| lose);
        for key in measured.empty.iter().chain(given_up) {
            *mended |= drop_record(txn, key)?;
        }
    } else {
        inode.allocated = 0;
    }
    recharge(txn, &was, &mut located.inode, quota);
    let key = txn.xattrs_key(located);
    if let Some(right) = right_xattrs(txn, &located.inode.xattrs, &key)? {
        txn.put_file_xattrs(located, right);
        *mended = true;
    }
    Ok(true)
}

/// Fits kind and size to the contents. `false` when no file has such contents.
fn fits_its_contents(inode: &mut Inode) -> bool {
    match &inode.contents {
        Contents::Inline(data) => {
            (inode.kind, inode.size) = (FileKind::File, data.len() as u64);
            inode.size <= u64::from(INLINE_BYTES_MAX)
        }
        Contents::Blocks => {
            (inode.kind, inode.size) = (FileKind::File, inode.size.min(FILE_BYTES_MAX));
            true
        }
        Contents::Target(_) => {
            inode.kind = FileKind::Symlink;
            true
        }
        Contents::Device(_) => {
            if matches!(inode.kind, FileKind::File | FileKind::Symlink | FileKind::Directory) {
                inode.kind = FileKind::Fifo;
            }
            true
        }
    }
}

/// Charges an inode's actual size to the quota it belongs to.
fn recharge(txn: &mut Txn<'_>, was: &Inode, inode: &mut Inode, quota: Option<QuotaId>) {
    // With several servers only the coordinator knows all roots, and which of them are being
    // counted.
    let several = txn.shared.cluster.is_some();
    let known =
        several || inode.quota == QuotaId::NONE || txn.shared.quotas.get(inode.quota).is_some();
    let to = match quota {
        Some(quota) if !several && !txn.shared.quotas.is_moving(quota, inode.quota) => quota,
        Some(_) | None if known => inode.quota,
        Some(_) | None => QuotaId::NONE,
    };
    inode.quota = to;
    if was.accounts() != inode.accounts() || was.usage() != inode.usage() {
        txn.charge_freely(was.accounts(), was.usage().minus());
        txn.charge_freely(inode.accounts(), inode.usage());
    }
}

/// The right extended attributes; `None` if they are right already. `key` is that of the record
/// beside their owner.
pub(super) fn right_xattrs(txn: &Txn<'_>, xattrs: &Xattrs, key: &Key) -> Result<Option<XattrSet>> {
    let is_sorted =
        |list: &[(bytes::Bytes, bytes::Bytes)]| list.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let is_acl = |name: &[u8]| AclKind::of(name).is_some();
    let mut list = xattrs.here().to_vec();
    let mut wrong = !is_sorted(&list);
    let mut beside = 0;
    if xattrs.is_spilled() {
        match sound::<XattrSet>(txn, key)? {
            None => wrong = true,
            Some(set) => {
                beside = set.bytes();
                wrong |= !is_sorted(&set.list) || beside <= XATTRS_EMBEDDED_BYTES_MAX;
                list.extend(set.list);
            }
        }
    }
    let plain = list.iter().filter(|(name, _)| !is_acl(name)).cloned().collect();
    wrong |= beside == 0 && XattrSet { list: plain }.bytes() > XATTRS_EMBEDDED_BYTES_MAX;
    let before = list.len();
    list.retain(|(name, value)| !is_acl(name) || Acl::parse(value).is_ok());
    list.sort();
    list.dedup_by(|one, other| one.0 == other.0);
    wrong |= list.len() != before;
    Ok(wrong.then_some(XattrSet { list }))
}

/// Repairs an inode slot, or the extended attributes beside one.
pub(super) fn slot(txn: &mut Txn<'_>, key: &Key, lose: bool) -> Result<bool> {
    let (Some(ino), Some(part)) = (key::parse_ino(key), key.last()) else { return Ok(false) };
    let main = key::inode(ino, Part::Main);
    if main[..2] != key[..2] || !matches!(part, 0 | 2) {
        return drop_record(txn, key);
    }
    let Some(Slot::Moved(at)) = sound::<Slot>(txn, &main)? else {
        txn.lock(lock::ino_lock(ino))?;
        return in_slot(txn, ino, key, lose);
    };
    txn.lock(lock::dir_lock(at.dir))?;
    txn.lock(lock::ino_lock(ino))?;
    if *part != 0 {
        return drop_record(txn, key);
    }
    let there = txn.name_key(at.home, at.dir, &at.name, Part::Main);
    match sound(txn, &there)? {
        Some(EntryRecord::Node(inode)) if inode.ino == ino && inode.moved => Ok(false),
        Some(EntryRecord::Node(mut inode)) if inode.ino == ino => {
            inode.moved = true;
            txn.put(there, &EntryRecord::Node(inode));
            Ok(true)
        }
        Some(EntryRecord::Node(_) | EntryRecord::Link(_) | EntryRecord::Dir(_)) | None => {
            drop_record(txn, key)
        }
    }
}

/// Repairs an inode in its slot, locked; drops what cannot be read there.
fn in_slot(txn: &mut Txn<'_>, ino: Ino, key: &Key, lose: bool) -> Result<bool> {
    let main = key::inode(ino, Part::Main);
    let Some(value) = txn.get_bytes(&main)? else { return drop_record(txn, key) };
    let Some(Slot::Inode(inode)) = unsound(&value) else { return drop_record(txn, key) };
    let mut located = Located { place: Place::Slot, inode };
    let was = located.inode.clone();
    let mut mended = !was.is_sound();
    if !mend(txn, &mut located, None, lose, &mut mended)? {
        return drop_record(txn, &main);
    }
    located.inode.ino = ino;
    if located.inode.nlink == 0 && sound::<Reclaim>(txn, &key::reclaim(ino))?.is_none() {
        // If no session has the file open any more, it is removed at once.
        txn.put(key::reclaim(ino), &Reclaim { kind: ReclaimKind::Orphan });
        txn.facts.left.push(ino);
        mended = true;
    }
    if *key != main && !was.xattrs.is_spilled() {
        mended |= drop_record(txn, key)?;
    }
    if mended || located.inode != was {
        txn.put_inode(&located);
        mended = true;
    }
    Ok(mended)
}

/// Repairs a note to reclaim.
pub(super) fn reclaim(txn: &mut Txn<'_>, shard: ShardId, key: &Key) -> Result<bool> {
    let Some(ino) = key::parse_ino(key) else { return drop_record(txn, key) };
    txn.lock(lock::ino_lock(ino))?;
    let note: Option<Reclaim> = sound(txn, key)?;
    let Some(note) = note.filter(|_| ino.shard() == shard) else { return drop_record(txn, key) };
    if note.kind.chunks_from().is_some() {
        return Ok(false);
    }
    let slot: Option<Slot> = sound(txn, &key::inode(ino, Part::Main))?;
    let orphan = matches!(&slot, Some(Slot::Inode(inode)) if inode.nlink == 0);
    if orphan { Ok(false) } else { drop_record(txn, key) }
}

/// Removes the note to reclaim an inode that is in use at `at`.
pub(super) fn in_use(txn: &mut Txn<'_>, ino: Ino, at: &Key) -> Result<bool> {
    if let Some(dir) = key::parse_dir(at).filter(|_| key::is_name(at)) {
        txn.lock(lock::dir_lock(dir))?;
    }
    txn.lock(lock::ino_lock(ino))?;
    let there = if key::is_name(at) {
        matches!(sound(txn, at)?, Some(EntryRecord::Node(inode)) if inode.ino == ino)
    } else {
        matches!(sound(txn, at)?, Some(Slot::Inode(inode)) if inode.ino == ino)
    };
    // Race: the inode may have been removed since, and now the note is right.
    if !there {
        return Ok(false);
    }
    let key = key::reclaim(ino);
    let note: Option<Reclaim> = sound(txn, &key)?;
    match note {
        Some(Reclaim { kind: ReclaimKind::Contents | ReclaimKind::Rest(_) }) => {
            drop_record(txn, &key)
        }
        Some(Reclaim { kind: ReclaimKind::Orphan | ReclaimKind::Unnamed }) | None => Ok(false),
    }
}

/// Corrects the number of names of an inode in its slot.
pub(super) fn links(
    txn: &mut Txn<'_>,
    (ino, changed): (Ino, Option<Time>),
    found: u32,
    nlink: u32,
) -> Result<bool> {
    txn.lock(lock::ino_lock(ino))?;
    let Some(Slot::Inode(mut inode)) = sound(txn, &key::inode(ino, Part::Main))? else {
        return Ok(false);
    };
    if changed.is_some_and(|changed| changed != inode.times.ctime) {
        return Ok(false);
    }
    // The new time keeps a second repair by the same finding out.
    inode.times.ctime = txn.now;
    let names = i64::from(inode.nlink) + i64::from(found) - i64::from(nlink);
    if names <= 0 {
        return lost::linked(txn, inode);
    }
    inode.nlink = u32::try_from(names).unwrap_or(u32::MAX);
    txn.put_inode(&Located { place: Place::Slot, inode });
    Ok(true)
}

/// Removes the note to delete a block that is named.
pub(super) fn named(txn: &mut Txn<'_>, ino: Ino, chunk: u32, block: BlockId) -> Result<bool> {
    txn.lock(lock::ino_lock(ino))?;
    let record: Option<ChunkRecord> = sound(txn, &key::chunk(ino, chunk))?;
    if !record.is_some_and(|record| blocks_of(&record.slices).any(|named| named == block)) {
        return Ok(false);
    }
    let mut mended = false;
    for shard in (0..txn.shared.config.shards).map(ShardId) {
        mended |= drop_record(txn, &key::garbage(shard, block))?;
    }
    Ok(mended)
}

/// Gives up the contents of a lost block: zeros are read in its place. The block is read once more
/// first, as the store may only have been away.
pub(super) fn punch(txn: &mut Txn<'_>, ino: Ino, chunk: u32, block: BlockId) -> Result<bool> {
    txn.lock(lock::ino_lock(ino))?;
    let key = key::chunk(ino, chunk);
    let Some(mut record) = sound::<ChunkRecord>(txn, &key)? else { return Ok(false) };
    let mut punched = false;
    for slice in &mut record.slices {
        let SliceSource::Block(part) = &slice.source else { continue };
        if part.block == block {
            if is_whole(&txn.shared.blocks, block, part.block_bytes).unwrap_or(true) {
                return Ok(false);
            }
            slice.source = SliceSource::Zeros;
            punched = true;
        }
    }
    if punched {
        tracing::warn!(%ino, chunk, %block, bytes = record.to_record().len(), "contents given up");
        txn.put(key, &record);
    }
    Ok(punched)
}
