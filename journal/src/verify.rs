//! The whole journal is read, and what it stands on is looked for.
//!
//! Segments are read and decoded completely. Of bases, the manifests are read and the objects
//! counted; `backup` reads the objects themselves.

use crate::{End, Error, Journal, Reader, Replica, Result};

/// The contents of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of segments.
    pub segments: u64,
    /// Number of records.
    pub records: u64,
    /// Bytes of the segments as they are stored.
    pub bytes: u64,
    /// Number of the first and of the last segment.
    pub numbers: (u64, u64),
    /// First and last sequence number.
    pub sequences: (u64, u64),
    /// First and last generation.
    pub generations: (u64, u64),
    /// Number of the newest complete base that leads to the end of the journal, 0 for none.
    pub base: u64,
}

impl Journal {
    /// Reads and verifies all segments, and calls `told` after each.
    ///
    /// # Errors
    /// The first fault. [`Error::NeedsBase`] when the journal does not begin at 1 and no complete
    /// base leads to its end.
    pub async fn verify(&self, told: &(dyn Fn(&Verified) + Sync)) -> Result<Verified> {
        let mut found = Verified::default();
        let mut reader = Reader::new(self.clone(), 0, Replica::default()).alone();
        let mut needed = 0;
        while let Some(segment) = reader.next().await? {
            let header = &segment.header;
            if found.segments == 0 {
                found.numbers.0 = header.number;
                found.sequences.0 = header.first;
                found.generations.0 = header.generation;
            }
            // A gap means that a base is needed which covers it.
            if header.first > found.sequences.1 + 1 {
                needed = header.first - 1;
            }
            found.segments += 1;
            found.records += segment.records.len() as u64;
            found.bytes += segment.stored_bytes;
            found.numbers.1 = header.number;
            found.sequences.1 = header.last;
            found.generations.1 = header.generation;
            told(&found);
        }
        let (first, end) = (found.numbers.0, reader.end());
        let leads = |base: &backup::Manifest| {
            base.position >= needed && base.segment + 1 >= first && base.segment <= end.number
        };
        found.base = self.bases(1, leads).await?.first().map_or(0, |base| base.number);
        if found.base == 0 && needed > 0 {
            let End { number, .. } = end;
            return Err(Error::NeedsBase { number, position: 0 });
        }
        Ok(found)
    }
}
