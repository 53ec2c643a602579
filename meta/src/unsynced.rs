//! Blocks that are named and not yet known to be on stable storage.
//!
//! A block in a local directory is put without a sync, so a write is answered at the speed of the
//! page cache. The write that names the block leaves a note beside the name, in the same batch. A
//! sync makes the blocks stable first, then the log, and then forgets the notes
//! (`Shared::make_stable`). `ops::write` adds notes, and the server's start looks at them.
//!
//! The kernel may write the log back on its own, before the block. A power cut then leaves a name
//! without a block, and its note. Before the log is opened again, [`kept`] looks at each block that
//! it notes, and says how much of the log may be kept so that every name has its block. The rest is
//! cut off, as if the power had failed a moment earlier: the newest operations are lost, whole and
//! in order. What was synced is never cut.
//!
//! Invariants: a note is forgotten only when its block is stable or deleted. A note without a `G`
//! record beside it is of a block that is named. Only the end of the log notes blocks that are not
//! stable, never a table.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use base::{BlockId, error::describe};
use bytes::Bytes;
use futures::executor::block_on;
use parking_lot::Mutex;
use store::{Batch, Blocks, BlocksError, Engine, Op};
use tokio::task::unconstrained;

use crate::{
    OpenError,
    changes::Facts,
    follow::{Follower, Write},
    record::{Key, Record as _, key},
};

base::codec! {
    /// A block that may not be stable.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Unsynced {
        /// Length of the block.
        pub bytes: u32,
    }
}

impl crate::record::Record for Unsynced {}

/// Notes that were written since the last sync.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<Key>>);

impl Notes {
    /// Adds the keys of notes that are written.
    pub(crate) fn add(&self, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.0.lock().extend(keys);
        }
    }

    /// Takes the keys of all notes, before a sync.
    pub(crate) fn take(&self) -> Vec<Key> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Remembers the notes that a core's groups write.
pub(crate) struct Noting {
    notes: Arc<Notes>,
}

impl Noting {
    pub(crate) fn new(notes: Arc<Notes>) -> Noting {
        Noting { notes }
    }
}

impl Follower for Noting {
    fn answered(&mut self, facts: &mut Facts, _write: Write) {
        self.notes.add(std::mem::take(&mut facts.unsynced));
    }
}

/// Number of these batches, the end of a log, that may be kept after an unclean stop: the greatest
/// number at whose end all named blocks are whole. These blocks are stable when it returns.
///
/// # Errors
/// When the batches are not a server's, or blocks cannot be read.
pub fn kept(batches: &[Batch], blocks: &Blocks) -> Result<usize, OpenError> {
    if blocks.puts_are_stable() {
        return Ok(batches.len());
    }
    // Changes in the number of lost blocks that are named after that many batches. The log must not
    // end where their sum is not 0.
    let mut bad = vec![0_i64; batches.len() + 2];
    for (block, noted) in noted(batches)? {
        let whole = is_whole(blocks, block, noted.bytes).unwrap_or_else(|error| {
            // A disk that cannot read one block is no power cut: only its file is damaged.
            tracing::error!(%block, error = describe(&error), "a block cannot be read");
            true
        });
        if !whole {
            tracing::warn!(%block, bytes = noted.bytes, "a power cut took what was not synced");
            bad[noted.named] += 1;
            bad[noted.dropped.max(noted.named)] -= 1;
        }
    }
    blocks.sync()?;
    let mut lost = 0;
    let counted = bad.iter().map(|change| {
        lost += change;
        lost
    });
    let counted: Vec<i64> = counted.take(batches.len() + 1).collect();
    Ok(counted.iter().rposition(|lost| *lost == 0).expect("nothing is named before the first"))
}

/// A block that a log notes and does not forget.
struct Noted {
    bytes: u32,
    /// Number of batches after which the block is named.
    named: usize,
    /// Number of batches after which the block is not named any more.
    dropped: usize,
}

fn noted(batches: &[Batch]) -> Result<BTreeMap<BlockId, Noted>, OpenError> {
    let mut found = BTreeMap::new();
    for (batch, after) in batches.iter().zip(1..) {
        for op in batch.ops() {
            match op {
                Op::Put { key, value } => match key::block_noted(key) {
                    Some((b'U', block)) => {
                        let note = Unsynced::from_record(&Bytes::copy_from_slice(value))?;
                        let bytes = note.bytes;
                        let dropped = batches.len() + 1;
                        // Several writes may name the block; the first one counts.
                        found.entry(block).or_insert(Noted { bytes, named: after, dropped });
                    }
                    Some((_, block)) => {
                        if let Some(noted) = found.get_mut(&block) {
                            noted.dropped = after;
                        }
                    }
                    None => {}
                },
                Op::Delete { key } => {
                    // The block was stable, or deleted, when this was written.
                    if let Some((b'U', block)) = key::block_noted(key) {
                        found.remove(&block);
                    }
                }
                Op::DeleteRange { .. } => {}
            }
        }
    }
    Ok(found)
}

/// Reads a block to see whether it is whole. Waits for the store, also on a runtime's own thread.
/// The future runs without a budget: the runtime gives a new one only between tasks, and this is
/// within one.
pub(crate) fn is_whole(blocks: &Blocks, block: BlockId, bytes: u32) -> Result<bool, BlocksError> {
    match block_on(unconstrained(blocks.get(block, bytes, 0..bytes))) {
        Err(BlocksError::Missing { .. } | BlocksError::Corrupt { .. }) => Ok(false),
        read => {
            blocks.suspect(block);
            read.map(|_| true)
        }
    }
}

/// Forgets the notes of earlier runs: their blocks are stable since the store was opened.
pub(crate) fn forget(engine: &dyn Engine) -> Result<(), OpenError> {
    let mut forget = Batch::new();
    let prefix = key::works(b'U');
    engine.scan(&prefix, &key::end_of(&prefix), &mut |key, _| {
        forget.delete(key);
        ControlFlow::Continue(())
    })?;
    if forget.is_empty() { Ok(()) } else { Ok(engine.write(forget)?) }
}

#[cfg(test)]
mod tests {
    use base::{SessionId, ShardId};

    use super::*;

    const SHARD: ShardId = ShardId(3);

    fn id(number: u64) -> BlockId {
        BlockId::new(SessionId(1), number)
    }

    fn batch(fill: impl FnOnce(&mut Batch)) -> Batch {
        let mut batch = Batch::new();
        batch.put(b"something else", b"");
        fill(&mut batch);
        batch
    }

    fn names(number: u64) -> Batch {
        let note = Unsynced { bytes: 100 }.to_record();
        batch(|batch| batch.put(&key::unsynced(SHARD, id(number)), &note))
    }

    fn drops(number: u64) -> Batch {
        batch(|batch| batch.put(&key::garbage(SHARD, id(number)), &[1]))
    }

    fn forgets(number: u64) -> Batch {
        batch(|batch| batch.delete(&key::unsynced(SHARD, id(number))))
    }

    /// Number of batches that are kept when only these blocks are there.
    fn kept_with(there: &[u64], batches: &[Batch]) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let blocks = Blocks::directory(dir.path()).unwrap();
        for number in there {
            let put = blocks.put(id(*number), Bytes::from(vec![7; 100]));
            block_on(unconstrained(put)).unwrap();
        }
        kept(batches, &blocks).unwrap()
    }

    #[tokio::test]
    async fn any_number_of_blocks_is_looked_at_on_a_runtime() {
        let (there, batches): (Vec<_>, Vec<_>) = (0..300).map(|n| (n, names(n))).unzip();
        assert_eq!(kept_with(&there, &batches), batches.len());
    }

    #[test]
    fn a_log_is_kept_up_to_the_first_name_without_a_block() {
        let log = [names(1), batch(|_| ()), names(2), names(3), batch(|_| ())];
        assert_eq!(kept_with(&[1, 2, 3], &log), 5);
        assert_eq!(kept_with(&[1, 2], &log), 3);
        assert_eq!(kept_with(&[1, 3], &log), 2);
        assert_eq!(kept_with(&[2, 3], &log), 0);
        assert_eq!(kept_with(&[], &[]), 0);
    }

    #[test]
    fn a_block_that_nothing_names_any_more_may_be_missing() {
        let log = [names(1), names(2), drops(1), batch(|_| ())];
        assert_eq!(kept_with(&[2], &log), 4);
        let log = [names(1), names(2), drops(1), names(3)];
        assert_eq!(kept_with(&[2], &log), 3);
        let log = [names(1), batch(|_| ()), names(3), drops(1)];
        assert_eq!(kept_with(&[], &log), 0);
    }

    #[test]
    fn a_block_whose_note_is_forgotten_was_stable_and_may_be_deleted_since() {
        assert_eq!(kept_with(&[], &[names(1), forgets(1), batch(|_| ())]), 3);
        assert_eq!(kept_with(&[], &[names(1), drops(1), forgets(1), names(2)]), 3);
    }
}
