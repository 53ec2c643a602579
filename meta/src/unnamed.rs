//! Blocks that a session has put and that no write has named yet: only these may be named.
//!
//! No record knows these blocks and no quota counts them. So a session may have only a limited
//! number of bytes of them, and those that are left when it ends are deleted. A client whose write
//! has failed gives its blocks up before that. `data` reports puts, `txn` blocks that a committed
//! write names, `driver` the end of a session; `reclaim` deletes.
//!
//! Invariant: a block is named, or deleted, only if a put that this server carried out has made it,
//! and no write has named it since. A put that found the block stored proves nothing: it may be the
//! echo of one whose block was named long ago. So each block has one name, and is deleted with that
//! name's contents, and not before.
//!
//! The table is in memory only. Blocks put before a restart of the server are never named: the
//! client stores their contents anew, under other numbers. A power cut may have taken them, so
//! nobody need look. `pando fsck --gc` finds them, and also unnamed blocks that sessions put past
//! the server. Such sessions may name any block: they may write everything.

use base::{BlockId, HashMap};

/// Maximum number of unnamed blocks of a session, which bounds the memory for them.
const BLOCKS_MAX: usize = 1 << 18;

/// The unnamed blocks of one session.
#[derive(Debug, Default)]
pub(crate) struct Unnamed {
    blocks: HashMap<BlockId, Put>,
    bytes: u64,
    /// Whether the session has ended. Nothing would delete blocks that are stored after that.
    is_over: bool,
}

/// Puts of one block.
#[derive(Debug, Default)]
struct Put {
    bytes: u32,
    /// Number of requests to store the block that are not answered yet.
    under_way: u32,
    /// Whether one of these requests has made the block.
    made: bool,
    /// Whether a write has named the block meanwhile.
    named: bool,
    /// Whether the client has given the block up.
    given_up: bool,
}

impl Unnamed {
    /// Notes that a block is about to be stored; `false` if the session has too many unnamed blocks
    /// or bytes, or has ended.
    pub(crate) fn begin(&mut self, block: BlockId, bytes: u32, bytes_max: u64) -> bool {
        if self.is_over {
            return false;
        }
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

    /// Notes the end of a put: `made` is the number of bytes if this put has made the block. `true`
    /// if the caller must delete the block.
    pub(crate) fn end(&mut self, block: BlockId, made: Option<u32>) -> bool {
        let Some(put) = self.blocks.get_mut(&block) else { return false };
        put.under_way -= 1;
        if let Some(bytes) = made {
            // Another put of the same number may have brought other bytes, in vain.
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

    /// Whether a write may name a block of this length.
    pub(crate) fn has(&self, block: BlockId, bytes: u32) -> bool {
        let put = self.blocks.get(&block);
        put.is_some_and(|put| put.made && !put.named && !put.given_up && put.bytes == bytes)
    }

    /// Notes that a write has named a block.
    pub(crate) fn name(&mut self, block: BlockId) {
        match self.blocks.get_mut(&block) {
            // Race: an echo may be in progress, and may still turn out to have made the block.
            Some(put) if put.under_way > 0 => put.named = true,
            Some(_) => self.forget(block),
            None => {}
        }
    }

    /// Gives up blocks that the client will not name; returns those to be deleted.
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

    /// Gives up all blocks when the session has ended; like [`Unnamed::give_up`].
    pub(crate) fn give_up_all(&mut self) -> Vec<BlockId> {
        self.is_over = true;
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
    fn nothing_is_stored_for_a_session_that_has_ended() {
        let mut unnamed = Unnamed::default();
        begin(&mut unnamed, A);
        assert_eq!(unnamed.give_up_all(), []);
        assert!(!unnamed.begin(A, 10, 25) && !unnamed.begin(B, 10, 25));
        assert!(unnamed.end(A, Some(10)), "it was under way, and nobody will name it");
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
