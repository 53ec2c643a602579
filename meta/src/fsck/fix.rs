//! Repairs, as values: what a finding says of where to look again.

use base::{BlockId, DirId, Ino, ShardId, Time};
use wire::TxnId;

use crate::record::{Key, QuotaId, Usage};

/// A repair: where to look again, and facts that cannot be seen there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Fix {
    /// Look at a record.
    Look(Key),
    /// Names of a directory whose content record is not on their shard.
    Group(ShardId, DirId),
    /// A directory's counts differ by this much from its names. `ino` tells it from a directory
    /// that was made anew under the same id.
    Counts { shard: ShardId, dir: DirId, ino: Ino, entries: i64, subdirs: i64 },
    /// An inode in its slot has `found` names and counted `nlink`, when it was `changed`, if that
    /// matters: on a cluster names are counted at different moments.
    Links { ino: Ino, found: u32, nlink: u32, changed: Option<Time> },
    /// The charges of a quota differ by this much from what it counts.
    Usage(QuotaId, Usage),
    /// Charges of cores to a quota that does not exist.
    Forget(QuotaId),
    /// An inode number beyond the reserved ones, in use at this record.
    Reserve(Ino, Key),
    /// The inode under a name has the number of another.
    Renumber(Key),
    /// Chunks without an inode; or, with `true`, of an inode that has other contents.
    Stray(Ino, bool),
    /// An inode is in use, at this record, and noted to be reclaimed.
    InUse(Ino, Key),
    /// A block is named by a chunk, and noted to be deleted.
    Named(Ino, u32, BlockId),
    /// A block that a chunk names is missing or damaged.
    Lost(Ino, u32, BlockId),
    /// A transaction stays prepared, and its initiator says whether it is committed.
    Decide(TxnId, bool),
}

impl Fix {
    /// Turn of the repair. Repairs that may restore a place come before those that would lose it,
    /// and transactions that hold others up come first.
    pub(super) fn turn(&self) -> u8 {
        match self {
            Fix::Decide(..) => 0,
            Fix::Look(key) => match key.get(2) {
                Some(b'D') => 2,
                Some(b'I') => 3,
                Some(_) | None => 1,
            },
            Fix::Counts { .. }
            | Fix::Usage(..)
            | Fix::Forget(_)
            | Fix::Reserve(..)
            | Fix::Renumber(_)
            | Fix::InUse(..)
            | Fix::Named(..) => 1,
            Fix::Group(..) => 2,
            Fix::Links { .. } | Fix::Stray(..) | Fix::Lost(..) => 3,
        }
    }
}
