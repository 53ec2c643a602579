//! Old segments are removed.
//!
//! The caller owns the journal, and names its generation: only what lies below the older of two
//! complete bases of this generation goes. An old owner that still runs has no such bases beyond
//! the fence, and removes nothing that its successor needs.
//!
//! Always true: segments go in rising order, each is known to be gone before the next one goes, and
//! the segment that the older base names stays. So where a segment was removed, all before it were.

use crate::{Error, Journal, Result, bugs::Bug};

/// What a collection has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of segments that were removed.
    pub removed: u64,
    /// Number of the first segment that was kept on purpose; 0 when no base allows a removal.
    pub first: u64,
}

impl Journal {
    /// Removes the segments that no reader needs any more.
    ///
    /// # Errors
    /// When the store fails: the next call goes on. [`Error::Missing`] or [`Error::Malformed`] when
    /// the older base does not fit the journal: nothing is removed.
    pub async fn collect(&self, generation: u64) -> Result<Swept> {
        let own = |base: &backup::Manifest| base.generation == generation && base.segment > 0;
        let bases = self.bases(2, own).await?;
        let [newer, older] = &bases[..] else { return Ok(Swept::default()) };
        let first = older.segment.min(newer.segment);
        let boundary = self.read(first).await?.ok_or(Error::Missing(first))?;
        if boundary.header.last > older.position || boundary.header.generation > generation {
            let base = older.number;
            let reason = format!("it goes beyond base {base}, which says that it does not");
            return Err(Error::Malformed { number: first, reason });
        }
        let Some(mut lowest) = self.listed().await?.first().copied() else {
            return Err(Error::Missing(first));
        };
        while lowest > 1 && lowest <= first && self.has_segment(lowest - 1).await? {
            lowest -= 1;
        }
        let mut swept = Swept { removed: 0, first };
        if self.has(Bug::CollectedFalling) {
            for number in (lowest..=first).rev() {
                self.delete(number).await?;
            }
        }
        for number in lowest..first {
            self.delete(number).await?;
            swept.removed += 1;
        }
        Ok(swept)
    }
}
