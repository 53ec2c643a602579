//! Handoff: names of a directory move from one partition to another, while clients use them.
//!
//! A handoff has two ends. The *source* has the names and decides everything ([`source`]). The
//! *target* stores what it is sent at its final place, where no request looks for it yet
//! ([`target`]). The switch is a transaction over both (`transact`), which the source initiates.
//! Its write changes the layout of both partitions, so each name has one owner at every moment. The
//! transaction has its number from the beginning, and that names the handoff.
//!
//! | what | where | while |
//! |---|---|---|
//! | [`HandoffRecord::Receiving`] | target | it may get names; written before the first |
//! | `P` of the transaction | target | it has promised; with it all that it was sent is stable |
//! | `X` of the transaction | source | it is decided; the target may not know |
//! | [`HandoffRecord::Given`] | source | the same write; the master may not know, the names are still here |
//! | [`HandoffRecord::Sweeping`] | either | names may be stored that the partition does not have |
//!
//! What each crash leaves:
//! - of the source, before its write: nothing. A server that asks how the transaction ended hears
//!   that it did not happen;
//! - of the source, after its write: `X` and `Given`. So it tells the target and the master, and
//!   sweeps;
//! - of the target, before it has promised: `Receiving`, which becomes `Sweeping`. The source meets
//!   a target that does not know the handoff, or a record that has changed, and gives up;
//! - of the target, after it has promised: `P`. It keeps all that it was sent, and asks the source
//!   until it knows the outcome.
//!
//! SFS leaves the last case open (§3.6: a target that never hears of phase 2 deems that the split
//! failed, and the source that it did not). Here no time-out ends a promise.
//!
//! Always true: a partition shows only names that its own layout gives it; a sweep removes only
//! other names.
//!
//! Paper: SFS §3.4, §3.6.

pub(crate) mod finish;
pub(crate) mod give;
mod sizes;
pub(crate) mod source;
pub(crate) mod steps;
pub(crate) mod switch;
pub(crate) mod table;
pub(crate) mod take;
pub(crate) mod target;
#[cfg(test)]
mod tests;
mod when;

use base::{Ino, Moving, codec};
use bytes::Bytes;
use wire::TxnId;

use crate::record::Record;

/// A key, and its present value.
pub(crate) type Change = (Bytes, Option<Bytes>);

codec! {
    /// Work that a partition still has to do for a handoff. The key names the directory and the
    /// partition.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum HandoffRecord {
        /// The partition is the target: it receives names, and some may be stored already.
        Receiving(Receiving) = 1,
        /// The partition gave names away. They may still be stored, and the master may not know the
        /// layout.
        Given(Ino) = 2,
        /// Names that the partition does not own may be stored here, and are to be swept.
        Sweeping(Ino) = 3,
    }
}

codec! {
    /// A handoff, as its target stores it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Receiving {
        /// The transaction that will end the handoff.
        pub txn: TxnId,
        /// Inode number of the directory, whose id is in the key.
        pub ino: Ino,
        /// Number of the partition that gives.
        pub source: u16,
        /// The names that move.
        pub moving: Moving,
    }
}

impl Record for HandoffRecord {}
