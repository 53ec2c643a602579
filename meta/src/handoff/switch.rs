//! The switch: names belong to the taker from here on.
//!
//! An operation of the server itself, which `transact` runs as it runs those of clients: its reads
//! and writes at the taker's server and its writes here are one transaction.

use std::hash::Hasher as _;

use base::{Ino, Layout, Shift, Spread, Time, hash::FixedHasher};
use wire::{Retry, Tally, TxnId};

use super::{HandoffRecord, Receiving, table::Partition};
use crate::{
    error::{Fault, Result},
    lock,
    record::{Content, ContentState, Times},
    txn::{Dir, Txn},
};

/// Thresholds of this many entries or more differ from partition to partition.
const VARIES_FROM: u64 = 1000;

/// Names that change their partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switch {
    pub(crate) txn: TxnId,
    pub(crate) giver: Partition,
    pub(crate) taker: Partition,
    pub(crate) ino: Ino,
    /// The way in which the directory is to be divided, if it is not divided yet.
    pub(crate) spread: Spread,
    /// Counts of the moved records, as the taker has them.
    pub(crate) tally: Tally,
}

impl Switch {
    fn shift(&self) -> Shift {
        Shift { giver: self.giver.number, taker: self.taker.number }
    }
}

/// Writes both shares, and the record of the work that is left.
pub(crate) fn run(txn: &mut Txn<'_>, switch: &Switch) -> Result<()> {
    let (giver, taker) = (switch.giver, switch.taker);
    txn.lock(lock::dir_lock(giver.dir))?;
    txn.want(&[taker.share(), taker.handoff()])?;
    let changed = Fault::Retry(Retry::Busy);
    let Some(mut own) = txn.get_content(&giver.share())?.filter(|own| own.ino == switch.ino) else {
        return Err(changed);
    };
    if txn.get::<HandoffRecord>(&giver.handoff())?.is_some() {
        return Err(changed);
    }
    let theirs = txn.get_content(&taker.share())?;
    if theirs.as_ref().is_some_and(|theirs| theirs.ino != switch.ino) {
        return Err(changed);
    }
    let is_ours = |what: Receiving| what.txn == switch.txn;
    match txn.get::<HandoffRecord>(&taker.handoff())? {
        Some(HandoffRecord::Receiving(what)) if is_ours(what) => {}
        Some(_) | None => return Err(changed),
    }
    let mut layout = own.layout.turned(switch.spread).unwrap_or_else(|| own.layout.clone());
    if let Some(theirs) = &theirs {
        layout.learn(&theirs.layout);
    }
    let Some(after) = layout.after(switch.shift()) else { return Err(changed) };

    let subdirs = u32::try_from(switch.tally.subdirs).unwrap_or(u32::MAX);
    // Operations go on in the names that stay, so a new share does not begin with the present
    // times. Readers see the latest times of all shares.
    let mut theirs = theirs.unwrap_or_else(|| {
        let times = Times { mtime: Time::default(), ctime: Time::default(), ..own.times };
        Content { times, ..own.share() }
    });
    if !after.is_active(giver.number) {
        // All names of the giver go, and they do not change meanwhile.
        theirs.times.mtime = theirs.times.mtime.max(own.times.mtime);
        theirs.times.ctime = theirs.times.ctime.max(own.times.ctime);
    }
    theirs.layout = after.clone();
    theirs.entries = theirs.entries.saturating_add(switch.tally.entries);
    theirs.subdirs = theirs.subdirs.saturating_add(subdirs);
    own.layout = after;
    if !own.layout.is_active(giver.number) {
        // The giver's share redirects requests until the master knows the layout.
        own.state = ContentState::Merged;
    }
    own.entries = own.entries.saturating_sub(switch.tally.entries);
    own.subdirs = own.subdirs.saturating_sub(subdirs);
    let dir = giver.dir;
    txn.put_dir(&Dir { id: dir, partition: taker.number, content: theirs });
    txn.delete(taker.handoff());
    txn.put_dir(&Dir { id: dir, partition: giver.number, content: own });
    // A master that gives need not be told.
    let left = match giver.number {
        0 => HandoffRecord::Sweeping(switch.ino),
        _ => HandoffRecord::Given(switch.ino),
    };
    txn.put(giver.handoff(), &left);
    Ok(())
}

/// A partition with fewer entries than this is never too large.
fn least(threshold: u64) -> u64 {
    threshold / 4 * 3
}

/// Number of entries from which partition `number` splits, in a directory with this inode number
/// that is divided already.
///
/// Partitions of one directory grow alike. So that they do not all split at once, each has a size
/// of its own, between three and five quarters of the threshold, which never changes. A threshold
/// below [`VARIES_FROM`] is used as it is.
fn splits_at(ino: Ino, number: u16, threshold: u64) -> u64 {
    if threshold < VARIES_FROM {
        return threshold;
    }
    let mut hasher = FixedHasher::default();
    hasher.write_u64(ino.0);
    hasher.write_u16(number);
    // Number of 512ths of the threshold to add: 0 to 255.
    let part = hasher.finish() >> 56;
    least(threshold).saturating_add(threshold / 512 * part)
}

impl Content {
    /// Whether the partition is live: it has not given all its names away.
    pub(crate) fn is_live(&self) -> bool {
        self.state != ContentState::Merged
    }

    /// Whether the partition has so few entries that it should be merged away.
    pub(super) fn is_small(&self, threshold: u64) -> bool {
        self.entries.saturating_mul(4) <= threshold
    }

    /// Whether partition `number`, whose share this is, has so many entries that it should give
    /// some away.
    pub(super) fn is_large(&self, number: u16, threshold: u64) -> bool {
        match self.layout {
            Layout::Extendible(_) => {
                self.entries >= least(threshold)
                    && self.entries >= splits_at(self.ino, number, threshold)
            }
            Layout::Whole | Layout::Subsets(_) => self.entries >= threshold,
        }
    }

    /// Whether the partition may have names to give, being too large or too small. `number` finds
    /// the number of the partition, and is called only when needed. A directory of one partition
    /// costs two comparisons.
    pub(crate) fn is_out_of_bounds(&self, number: impl FnOnce() -> u16, threshold: u64) -> bool {
        let threshold = self.policy.threshold(threshold);
        let is_small = || self.layout != Layout::Whole && self.is_small(threshold);
        let may_be_large = self.entries >= least(threshold);
        (may_be_large && self.is_large(number(), threshold)) || is_small()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_split_at_sizes_of_their_own_near_the_threshold() {
        let of = |threshold| (0..64).map(move |number| splits_at(Ino(77), number, threshold));
        let mut sizes: Vec<u64> = of(8000).collect();
        assert!(sizes.iter().all(|size| (6000..10_000).contains(size)), "{sizes:?}");
        assert_eq!(sizes.iter().max(), of(8000).max().as_ref(), "they stay");
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() > 32, "{sizes:?}");
        assert!((7600..8400).contains(&(sizes.iter().sum::<u64>() / sizes.len() as u64)));
        assert!(of(999).all(|size| size == 999));
        assert!(of(u64::MAX).all(|size| size > u64::MAX / 2), "never");
    }
}
