//! Steps that leave a tail, and that remove it.

use base::Ino;
use bytes::Bytes;

use crate::{
    error::Result,
    reclaim::notes::CHUNKS_A_STEP,
    record::{ChunkRecord, Contents, Record as _, Tail, key},
    txn::{Located, Txn},
};

/// Leaves the chunks of `file` from `first` on to the background. The caller has locked the inode.
pub(crate) fn leave(txn: &mut Txn<'_>, file: &Located, first: u32) {
    let ino = file.inode.ino;
    let place = file.place.location().cloned();
    txn.put(key::tail(ino), &Tail { first, place });
    txn.shared.deferred_truncations.note(ino, first);
}

/// Removes a part of a tail; the rest is for the next step. `false` if there is no tail. The caller
/// has locked the inode.
pub(crate) fn step(txn: &mut Txn<'_>, ino: Ino) -> Result<bool> {
    if !txn.shared.deferred_truncations.has(ino) {
        return Ok(false);
    }
    let Some(Tail { first, place }) = txn.get::<Tail>(&key::tail(ino))? else {
        txn.shared.deferred_truncations.forget(ino);
        return Ok(false);
    };
    // The inode comes again: for what is left, for what became of the file since, and then for the
    // blocks.
    txn.facts.left.push(ino);
    let Some(mut file) = txn.find(ino, place.as_ref())? else {
        // The file was removed since, and all its contents with it.
        txn.delete(key::tail(ino));
        txn.shared.deferred_truncations.forget(ino);
        return Ok(true);
    };
    let was = file.inode.attr().allocated;
    let chunks = txn.scan_chunks(ino, first, CHUNKS_A_STEP)?;
    let next = chunks.last().map_or(first, |(chunk, _)| chunk.saturating_add(1));
    let last = chunks.len() < CHUNKS_A_STEP;
    for (chunk, value) in chunks {
        match ChunkRecord::from_record(&value) {
            Ok(record) => {
                txn.drop_blocks(ino, &record.slices, &[]);
                let allocated = record.allocated();
                file.inode.allocated = file.inode.allocated.saturating_sub(allocated);
            }
            Err(error) => {
                let tells = "what a file was cut by is damaged; run `pando fsck --gc`";
                tracing::error!(%ino, chunk, %error, tells);
            }
        }
        txn.delete(key::chunk(ino, chunk));
    }
    if last {
        if file.inode.size == 0 {
            file.inode.contents = Contents::Inline(Bytes::new());
            file.inode.allocated = 0;
        }
        txn.delete(key::tail(ino));
        txn.shared.deferred_truncations.forget(ino);
    } else {
        leave(txn, &file, next);
    }
    txn.charge_change_freely(file.inode.accounts(), was, file.inode.attr().allocated);
    txn.put_inode(&file);
    Ok(true)
}
