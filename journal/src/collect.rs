//! Old segments are removed, but for fences.
//!
//! A machine that comes back late puts its next segment under the number of the fence that has cut
//! it off. As fences stay, it finds that one, however late it is.
//!
//! The caller owns the journal, and names its generation: only what lies below the older of two
//! complete bases of this generation goes. An old owner that still runs has no such bases beyond
//! the fence, and removes nothing that its successor needs.
//!
//! Always true: segments go in rising order, each is known to be gone before the next one goes, and
//! the segment that the older base names stays. So where a segment was removed, all before it were,
//! but for fences.

use std::time::Duration;

use backup::seal;
use tokio::time::Instant;

use crate::{Error, Journal, Result, bugs::Bug, segment};

/// Time after which the rest is left to the next call.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// The outcome of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of segments that were removed.
    pub removed: u64,
    /// Number of the first segment that was kept on purpose; 0 when no base allows a removal.
    pub first: u64,
}

impl Journal {
    /// Removes segments that no reader needs any more, for up to a minute. Those from `needed` on
    /// stay.
    ///
    /// # Errors
    /// When the store fails: the next call goes on. [`Error::Missing`] or [`Error::Malformed`] when
    /// the older base does not fit the journal: nothing is removed.
    pub async fn collect(&self, generation: u64, needed: u64) -> Result<Swept> {
        let own = |base: &backup::Manifest| base.generation == generation && base.segment > 0;
        let bases = self.bases(2, own).await?;
        let [newer, older] = &bases[..] else { return Ok(Swept::default()) };
        let first = older.segment.min(newer.segment).min(needed);
        let boundary = self.read(first).await?.ok_or(Error::Missing(first))?;
        if boundary.header.last > older.position || boundary.header.generation > generation {
            let base = older.number;
            let reason = format!("it goes beyond base {base}, which says that it does not");
            return Err(Error::Malformed { number: first, reason });
        }
        // Renewals of a lease have an address, and are longer.
        let fence_bytes = seal::sealed_bytes(segment::FENCE_BYTES as u64);
        let mut old = self.listed().await?;
        old.retain(|number, bytes| *number < first && *bytes > fence_bytes);
        let mut old: Vec<u64> = old.into_keys().collect();
        if self.has(Bug::CollectedFalling) {
            old.reverse();
        }
        let begun = Instant::now();
        let mut swept = Swept { removed: 0, first };
        for number in old {
            if begun.elapsed() > ROUND_MAX {
                break;
            }
            self.delete(number).await?;
            swept.removed += 1;
        }
        Ok(swept)
    }
}
