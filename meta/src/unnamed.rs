//! Blocks that a session has put and that no write has named yet: only these may be named.
//!
//! No record knows them and no quota counts them. So a session may have only so many bytes of them, and those that are left
//! when it ends are deleted; a client whose write has failed gives its blocks up before that. `data` tells of puts, `txn` of
//! blocks that a committed write names, `driver` of the end of a session; `reclaim` deletes.
//!
//! Invariant: a block is named, or deleted, only if a put that this server carried out has made it, and no write has named it
//! since. A put that has found the block stored proves nothing: it may be the echo of one whose block was named long ago.
//! So each block has one name, and what that name shows is deleted with it, and not before.
//!
//! This is memory. What a session had put before the server was restarted is not named any more: the client stores it anew,
//! under other numbers. A power cut may have taken it, so nobody need look. It is found by `pando fsck --gc`, as is what
//! sessions put past the server that nothing names. These name what they say: they may write everything.

use std::iter;

use base::{BlockId, FsError, HashMap};
use wire::{ChunkSlices, SliceSource};

use crate::{error::Result, lock, txn::Txn};

/// A session has no more unnamed blocks than this: it bounds the memory for them.
const BLOCKS_MAX: usize = 1 << 18;

/// The unnamed blocks of one session.
#[derive(Debug, Default)]
pub(crate) struct Unnamed {
    blocks: HashMap<BlockId, Put>,
    bytes: u64,
}

/// Refuses a write that names what its session has not put here, or what is named already.
pub(crate) fn may_be_named(txn: &mut Txn<'_>, chunks: &[ChunkSlices]) -> Result<()> {
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
    let mut parts = iter::once(first).chain(parts);
    if parts.all(|part| unnamed.has(part.block, part.block_bytes)) {
        Ok(())
    } else {
        Err(FsError::Exists.into())
    }
}

/// What is known of a block.
#[derive(Debug, Default)]
struct Put {
    bytes: u32,
    /// Requests to store it that are not answered yet.
    under_way: u32,
    /// One of them has made it.
    made: bool,
    /// A write has named it meanwhile.
    named: bool,
    /// Nobody will name it.
    given_up: bool,
}

impl Unnamed {
    /// A block is about to be stored; `false`: the session has too many bytes that nothing names.
    pub(crate) fn begin(&mut self, block: BlockId, bytes: u32, bytes_max: u64) -> bool {
        if let Some(put) = self.blocks.get_mut(&block) {
            put.under_way += 1;
            return true;
        }
        if self.bytes + u64::from(bytes) > bytes_max || self.blocks.len() >= BLOCKS_MAX {
            return false;
        }
        self.bytes += u64::from(bytes);
        self.blocks.insert(block, Put { bytes, under_way: 1, ..Put::default() });
        true
    }

    /// It is stored, or not; how many bytes this put has `made`, if it did. `true`: the caller deletes it.
    pub(crate) fn end(&mut self, block: BlockId, made: Option<u32>) -> bool {
        let Some(put) = self.blocks.get_mut(&block) else { return false };
        put.under_way -= 1;
        if let Some(bytes) = made {
            // Another put of the number may have brought others, in vain.
            self.bytes = self.bytes - u64::from(put.bytes) + u64::from(bytes);
            (put.bytes, put.made) = (bytes, true);
        }
        let is_kept = put.made && !put.named && !put.given_up;
        if put.under_way > 0 || is_kept {
            return false;
        }
        let is_left = put.made && !put.named;
        self.forget(block);
        is_left
    }

    /// Whether a write may name a block, of this length.
    pub(crate) fn has(&self, block: BlockId, bytes: u32) -> bool {
        let put = self.blocks.get(&block);
        put.is_some_and(|put| put.made && !put.named && !put.given_up && put.bytes == bytes)
    }

    /// A write has named a block.
    pub(crate) fn name(&mut self, block: BlockId) {
        match self.blocks.get_mut(&block) {
            // Race: an echo may be under way, and have made it for all that is known yet.
            Some(put) if put.under_way > 0 => put.named = true,
            Some(_) => self.forget(block),
            None => {}
        }
    }

    /// The client will not name these; those that are to be deleted.
    pub(crate) fn give_up(&mut self, blocks: &[BlockId]) -> Vec<BlockId> {
        let mut left = Vec::new();
        for block in blocks {
            match self.blocks.get_mut(block) {
                Some(put) if put.under_way > 0 => put.given_up = true,
                Some(_) => {
                    self.forget(*block);
                    left.push(*block);
                }
                None => {}
            }
        }
        left
    }

    /// As [`Unnamed::give_up`], of all: the session has ended.
    pub(crate) fn give_up_all(&mut self) -> Vec<BlockId> {
        let mut all: Vec<BlockId> = self.blocks.keys().copied().collect();
        all.sort_unstable();
        self.give_up(&all)
    }

    fn forget(&mut self, block: BlockId) {
        if let Some(put) = self.blocks.remove(&block) {
            self.bytes -= u64::from(put.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BlockId = BlockId(1);
    const B: BlockId = BlockId(2);

    fn begin(unnamed: &mut Unnamed, block: BlockId) {
        assert!(unnamed.begin(block, 10, 25));
    }

    #[test]
    fn only_what_is_not_named_counts_and_is_left() {
        let mut unnamed = Unnamed::default();
        for block in [A, B] {
            begin(&mut unnamed, block);
            assert!(!unnamed.end(block, Some(10)));
        }
        assert!(!unnamed.begin(BlockId(3), 10, 25));
        unnamed.name(A);
        begin(&mut unnamed, BlockId(3));
        assert!(!unnamed.end(BlockId(3), None), "it was not made");
        assert_eq!(unnamed.give_up_all(), [B]);
        assert_eq!(unnamed.bytes, 0);
    }

    #[test]
    fn a_block_is_named_once_and_by_its_length() {
        let mut unnamed = Unnamed::default();
        begin(&mut unnamed, A);
        assert!(!unnamed.has(A, 10), "it is not stored yet");
        assert!(!unnamed.end(A, Some(10)));
        assert!(unnamed.has(A, 10) && !unnamed.has(A, 9) && !unnamed.has(B, 10));
        begin(&mut unnamed, A);
        unnamed.name(A);
        assert!(!unnamed.has(A, 10), "an echo is under way");
        assert!(!unnamed.end(A, None));
        assert!(!unnamed.has(A, 10));
        begin(&mut unnamed, A);
        assert!(!unnamed.end(A, None));
        assert!(!unnamed.has(A, 10), "it was there");
    }

    #[test]
    fn of_two_puts_of_one_number_that_counts_which_is_stored() {
        let mut unnamed = Unnamed::default();
        begin(&mut unnamed, A);
        assert!(unnamed.begin(A, 20, 25));
        assert!(!unnamed.end(A, Some(20)));
        assert!(!unnamed.end(A, None));
        assert!(unnamed.has(A, 20) && !unnamed.has(A, 10));
        assert!(!unnamed.begin(B, 10, 25));
        unnamed.name(A);
        assert_eq!(unnamed.bytes, 0);
    }

    #[test]
    fn an_echo_of_a_put_whose_block_is_named_leaves_it_alone() {
        let mut unnamed = Unnamed::default();
        begin(&mut unnamed, A);
        assert!(!unnamed.end(A, Some(10)));
        unnamed.name(A);
        begin(&mut unnamed, A);
        assert!(!unnamed.end(A, None));
        assert_eq!(unnamed.give_up_all(), []);
    }

    #[test]
    fn a_block_that_is_named_while_its_first_put_is_under_way_is_left_alone() {
        let mut unnamed = Unnamed::default();
        begin(&mut unnamed, A);
        begin(&mut unnamed, A);
        assert!(!unnamed.end(A, None), "the second found it there");
        unnamed.name(A);
        assert!(!unnamed.end(A, Some(10)));
        assert_eq!(unnamed.give_up_all(), []);
    }

    #[test]
    fn what_is_given_up_while_it_is_put_is_deleted_by_the_put() {
        let mut unnamed = Unnamed::default();
        begin(&mut unnamed, A);
        assert_eq!(unnamed.give_up_all(), []);
        assert!(unnamed.end(A, Some(10)));
        assert_eq!(unnamed.bytes, 0);
    }
}
