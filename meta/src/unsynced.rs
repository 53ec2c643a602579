//! Blocks that are named and not yet known to be on stable storage.
//!
//! A block in a local directory is put without a sync, so a write is answered at the speed of the page cache. The
//! write that names it leaves a note beside the name, in the same batch. Whoever syncs makes the blocks stable first, then
//! the log, and then forgets the notes; `sync`, `ops::write` and the server's start call this.
//!
//! The kernel may write the log back on its own, before the block: then a power cut leaves a name without a block,
//! and its note. The start looks at each noted block and stores zeros in the place of one that was lost, as a
//! file system shows zeros for what was written and never synced. A block that was synced is never touched.
//!
//! Invariants: a note is forgotten only when its block is stable or deleted. A note without a `G` record beside it is of
//! a block that is named.

use std::ops::ControlFlow;

use base::{BlockId, Ino, ShardId};
use bytes::Bytes;
use futures::executor::block_on;
use parking_lot::Mutex;
use store::{Batch, Blocks, BlocksError, Engine};
use wire::{Slice, SliceSource};

use crate::{
    OpenError,
    error::Problem,
    record::{Key, Record, key},
    room::Level,
    server::Shared,
    txn::Txn,
};

base::codec! {
    /// A block that may not be stable.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Unsynced {
        /// Its length.
        pub bytes: u32,
    }
}

impl Record for Unsynced {}

/// Notes that were written since the last sync.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<Key>>);

impl Notes {
    /// These are written.
    pub(crate) fn add(&self, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.0.lock().extend(keys);
        }
    }
}

/// Notes the blocks that slices of an inode name.
pub(crate) fn note(txn: &mut Txn<'_>, ino: Ino, slices: &[Slice]) {
    if txn.shared.blocks.puts_are_stable() {
        return;
    }
    let mut last = None;
    for slice in slices {
        let SliceSource::Block(part) = &slice.source else { continue };
        if last.replace(part.block) != Some(part.block) {
            let key = key::unsynced(ino.shard(), part.block);
            txn.put(key.clone(), &Unsynced { bytes: part.block_bytes });
            txn.unsynced.push(key);
        }
    }
}

/// Makes stable what was written before this call: blocks, and then the records that name them.
pub(crate) fn sync(shared: &Shared) -> Result<(), Problem> {
    let notes = std::mem::take(&mut *shared.unsynced.0.lock());
    shared.blocks.sync().map_err(|error| Problem::of_blocks(&error))?;
    shared.engine.sync().map_err(|error| Problem::of(&error))?;
    if notes.is_empty() {
        return Ok(());
    }
    if shared.room.has(Level::Low).is_err() {
        // They are forgotten when there is room to write that down.
        shared.unsynced.add(notes);
        return Ok(());
    }
    let mut forget = Batch::new();
    notes.iter().for_each(|key| forget.delete(key));
    // Should a power cut bring them back, their blocks are found to be whole.
    shared.engine.write(forget).map_err(|error| Problem::of(&error))
}

/// Looks at the blocks that were noted when the server ended, before anything is served.
pub(crate) fn restore(engine: &dyn Engine, blocks: &Blocks, shards: u16) -> Result<(), OpenError> {
    if blocks.puts_are_stable() {
        return Ok(());
    }
    let mut forget = Batch::new();
    for shard in (0..shards).map(ShardId) {
        for (key, block, bytes) in noted(engine, shard)? {
            let deleted = engine.get(&key::garbage(shard, block))?.is_some();
            if !deleted {
                restore_block(blocks, block, bytes)?;
            }
            forget.delete(&key);
        }
    }
    if forget.is_empty() {
        return Ok(());
    }
    blocks.sync()?;
    Ok(engine.write(forget)?)
}

fn noted(engine: &dyn Engine, shard: ShardId) -> Result<Vec<(Key, BlockId, u32)>, OpenError> {
    let prefix = key::kind(shard, b'U');
    let mut found = Vec::new();
    engine.scan(&prefix, &key::end_of(&prefix), &mut |key, value| {
        let note = Unsynced::from_record(&Bytes::copy_from_slice(value));
        let note = note.map(|note| (Key::from_slice(key), key::parse_garbage(key), note.bytes));
        found.push(note);
        ControlFlow::Continue(())
    })?;
    let notes = found.into_iter().map(|note| match note? {
        (key, Some(block), bytes) => Ok((key, block, bytes)),
        (_, None, _) => Err(base::DecodeError::Trailing.into()),
    });
    notes.collect()
}

fn restore_block(blocks: &Blocks, block: BlockId, bytes: u32) -> Result<(), BlocksError> {
    match block_on(blocks.get(block, bytes, 0..bytes)) {
        Err(BlocksError::Missing { .. } | BlocksError::Corrupt { .. }) => {
            tracing::warn!(%block, bytes, "a power cut took what was written and not synced");
            let zeros = Bytes::from(vec![0; bytes as usize]);
            block_on(blocks.put(block, zeros))
        }
        read => {
            blocks.suspect(block);
            read.map(|_| ())
        }
    }
}
