//! Finishing what operations leave behind: orphans, contents of removed files, replaced blocks.
//!
//! An operation that drops the last name of a large file only notes that there is work (an `R`
//! record, or a `G` record for a block). This task does the work, in steps that are ordinary small
//! transactions; after a crash it finds the notes and goes on. A block is deleted before its `G`
//! record is.
//!
//! Blocks that bases of a backup may name stay ([`Hold`]): each note is marked with the newest base
//! begun, and the block goes when no base up to that one is kept. Numbers decide, no clock does.

pub(crate) mod backlog;
pub(crate) mod marks;
pub(crate) mod notes;

use std::ops::ControlFlow;

use base::{BlockId, Ino};
use bytes::Bytes;
use store::Engine;

use crate::{
    Core,
    bugs::Bug,
    deferred_truncations::cut,
    error::{Result, describe},
    lock, moves,
    record::{
        ChunkRecord, Key, Reclaim, ReclaimKind, Record as _, Slot, inode::blocks_of, key, key::Part,
    },
    server::{Counters, Hold, Shared},
    txn::{Located, Place, Txn},
};
use notes::{CHUNKS_A_STEP, Garbage, HeldFor};

/// Reclaims for as long as the server runs.
pub(crate) async fn run(core: Core) {
    let shared = &core.inner.shared;
    moves::until_owner(shared).await;
    let mut seen = None;
    // Blocks to delete may be left from before a crash.
    delete_garbage(&core, &mut seen).await;
    loop {
        while let Some(ino) = shared.backlog.next() {
            core.step(move |txn| step(txn, ino)).await;
        }
        delete_garbage(&core, &mut seen).await;
        delete_unnamed(shared).await;
        shared.backlog.wake.notified().await;
    }
}

/// Does one step for one inode. The rest of a large file is left to the next step.
pub(crate) fn step(txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
    txn.lock(lock::ino_lock(ino))?;
    if cut::step(txn, ino)? {
        return Ok(());
    }
    let Some(reclaim) = txn.get::<Reclaim>(&key::reclaim(ino))? else { return Ok(()) };
    match reclaim.kind.chunks_from() {
        None => orphan(txn, ino),
        Some(first) => contents(txn, ino, first),
    }
}

fn orphan(txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
    match txn.get::<Slot>(&key::inode(ino, Part::Main))? {
        Some(Slot::Inode(inode)) if inode.nlink == 0 => {
            if txn.shared.opens.maybe_open(ino) {
                txn.shared.backlog.keep(ino);
                // Race: the file may have been closed before it was kept.
                if !txn.shared.opens.maybe_open(ino) {
                    txn.shared.backlog.closed(ino);
                }
                return Ok(());
            }
            Counters::add(&txn.shared.counters.inodes_reclaimed);
            txn.delete_inode(&Located { place: Place::Slot, inode });
        }
        Some(Slot::Inode(_) | Slot::Moved(_)) | None => txn.delete(key::reclaim(ino)),
    }
    Ok(())
}

/// Removes chunks of a file that is gone. The note says how far it is, so that no step scans what
/// earlier steps have removed.
fn contents(txn: &mut Txn<'_>, ino: Ino, first: u32) -> Result<()> {
    let chunks = txn.scan_chunks(ino, first, CHUNKS_A_STEP)?;
    for (chunk, value) in &chunks {
        let record = ChunkRecord::from_record(value)?;
        for block in blocks_of(&record.slices) {
            txn.put(key::garbage(ino.shard(), block), &Garbage::default());
        }
        txn.delete(key::chunk(ino, *chunk));
    }
    match chunks.last() {
        Some((last, _)) if chunks.len() == CHUNKS_A_STEP => {
            let kind = ReclaimKind::Rest(last.saturating_add(1));
            txn.put(key::reclaim(ino), &Reclaim { kind });
        }
        Some(_) | None => {
            Counters::add(&txn.shared.counters.inodes_reclaimed);
            txn.delete(key::reclaim(ino));
        }
    }
    // The inode comes again: for the chunks that are left, and then for the blocks.
    txn.facts.left.push(ino);
    Ok(())
}

/// Deletes the blocks that nothing names any more, then their notes. Where bases hold blocks, all
/// notes are looked at once for each state of the bases: `seen` is the last one for which all were.
async fn delete_garbage(core: &Core, seen: &mut Option<Hold>) {
    let shared = &core.inner.shared;
    let hold = shared.options.hold();
    match hold {
        Hold::Nothing | Hold::Bases { begun: 0, .. } => {}
        Hold::Everything => return,
        Hold::Bases { .. } if *seen == Some(hold) => return,
        Hold::Bases { .. } => {}
    }
    let mut failed = false;
    let mut from = key::works(b'G');
    loop {
        let found = match garbage(shared.engine.as_ref(), &from) {
            Ok(found) => found,
            Err(error) => {
                return tracing::error!(error = describe(&error), "cannot list garbage");
            }
        };
        let Some(last) = found.last() else {
            *seen = (!failed).then_some(hold);
            return;
        };
        from = key::end_of(&last.key);
        if shared.dumps.is_making() {
            // Blocks that a dump names stay until they are copied. A dump that starts from now
            // on names none of these.
            return;
        }
        // Race: a base that begins after this look at the notes has them, and not the names.
        let found = release(core, found).await;
        if found.is_empty() {
            continue;
        }
        // Records that named the blocks are gone; that must be stable before the blocks are
        // deleted.
        if !shared.bugs.has(Bug::BlockDeletedEarly) {
            shared.sync.wait().await;
        }
        let mut gone = Vec::new();
        for Note { key, block, .. } in found {
            match shared.blocks.delete(block).await {
                Ok(()) => {
                    Counters::add(&shared.counters.blocks_deleted);
                    let unsynced = key::unsynced(key::shard_of(&key), block);
                    gone.extend([key, unsynced]);
                }
                // The next round tries again.
                Err(error) => {
                    failed = true;
                    tracing::warn!(error = describe(&error), "block not deleted");
                }
            }
        }
        if !gone.is_empty() {
            core.forget(gone).await;
        }
    }
}

/// Deletes the blocks that sessions have left without a name. Blocks that cannot be deleted are
/// left to `pando fsck --gc`.
async fn delete_unnamed(shared: &Shared) {
    while let Some(block) = shared.backlog.next_block() {
        match shared.blocks.delete(block).await {
            Ok(()) => Counters::add(&shared.counters.blocks_deleted),
            Err(error) => tracing::warn!(error = describe(&error), "block not deleted"),
        }
    }
}

/// A note of a block to delete.
struct Note {
    key: Key,
    block: BlockId,
    held_for: HeldFor,
}

/// Returns the notes whose blocks can go, and marks those that have no mark yet. Before the first
/// base nothing holds a note without a mark, and a mark is that of an earlier history.
async fn release(core: &Core, found: Vec<Note>) -> Vec<Note> {
    let (begun, oldest) = match core.inner.shared.options.hold() {
        Hold::Nothing => return found,
        Hold::Everything => return Vec::new(),
        Hold::Bases { begun, oldest } => (begun, oldest),
    };
    if begun == 0 {
        let is_free = |note: &Note| note.held_for.0.is_none_or(|base| base < oldest);
        return found.into_iter().filter(is_free).collect();
    }
    let (held, free): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|note| note.held_for.0.is_none_or(|base| base >= oldest));
    let unmarked = held.into_iter().filter(|note| note.held_for.0.is_none());
    let unmarked: Vec<Key> = unmarked.map(|note| note.key).collect();
    if !unmarked.is_empty() {
        core.step(move |txn| {
            for key in &unmarked {
                // A note that is gone meanwhile stays gone.
                if txn.get::<Garbage>(key)?.is_some() {
                    txn.put(key.clone(), &Garbage { held_for: HeldFor(Some(begun)) });
                }
            }
            Ok(())
        })
        .await;
    }
    free
}

/// Notes of blocks to delete, from a key on: as many as one step takes.
fn garbage(engine: &dyn Engine, from: &[u8]) -> store::Result<Vec<Note>> {
    let mut found = Vec::new();
    engine.scan(from, &key::end_of(&key::works(b'G')), &mut |key, value| {
        // A note that cannot be read has no mark; `pando fsck` finds it.
        let note = Garbage::from_record(&Bytes::copy_from_slice(value)).unwrap_or_default();
        let held_for = note.held_for;
        found.extend(key::parse_garbage(key).map(|block| Note {
            key: Key::from_slice(key),
            block,
            held_for,
        }));
        if found.len() < CHUNKS_A_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}
