//! The one process that owns a journal adds segments.
//!
//! [`fence`](crate::fence) makes a writer. Segments are put one at a time: the next one is built
//! only after the one before is known to be stored (J2). A call that was dropped leaves its segment
//! with the writer, and the next call stores it first.
//!
//! The writer does not know of leases: whether a success may be told is the caller's to decide.

use std::{sync::Arc, time::Duration};

use base::Random;
use tokio::time::timeout;

use crate::{
    Covered, End, Error, Header, Journal, Lease, Owner, RECORDS_BYTES_MAX, Record, Result, Trouble,
    WriterStatus,
    place::random_id,
    put::{Outcome, Parcel, Putter},
    segment,
};

/// Bytes of records that a segment has, about, where there are more.
pub const SEGMENT_BYTES: usize = 8 << 20;

/// The owner's end of a journal.
pub struct Writer {
    pub(crate) putter: Putter,
    pub(crate) owner: Owner,
    pub(crate) random: Arc<dyn Random>,
    /// The last segment that is known to be stored.
    pub(crate) number: u64,
    pub(crate) id: u128,
    pub(crate) last: u64,
    pub(crate) covered: Covered,
    pub(crate) lease: Lease,
    /// A segment whose call was dropped before its end was known, and its last sequence number.
    pub(crate) pending: Option<(Parcel, u64)>,
    /// Whether a foreign segment was met: nothing more is put.
    pub(crate) fenced: Option<(u64, Owner)>,
}

/// The journal's end after an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Number of the last segment.
    pub number: u64,
    /// Last sequence number that is stored.
    pub last: u64,
    /// Whether a segment was stored that this call was the first to put: a lease counts from when
    /// such a call began ([`Tenure`](crate::Tenure)).
    pub renews: bool,
}

impl Writer {
    /// Stores records as the next segment, and returns when it is known to be stored. Failing puts
    /// are repeated without end, and told of; the caller drops the future when that is too long.
    ///
    /// Records up to the journal's last sequence number are passed over, so a caller whose last
    /// call was dropped gives the same records again. The first of the others follows that number,
    /// or a base covers what is between ([`Writer::base_made`]).
    ///
    /// # Errors
    /// [`Error::Fenced`]: another process owns the journal, and so it stays. [`Error::Gap`] and
    /// [`Error::TooLong`]: nothing was put. Others mean that the store is broken.
    pub async fn append(
        &mut self,
        records: &[Record],
        told: &(dyn Fn(Trouble<'_>) + Sync),
    ) -> Result<Appended> {
        if let Some((parcel, last)) = self.pending.take() {
            self.store(parcel, last, told).await?;
        }
        let mut renews = false;
        let stored = records.iter().take_while(|record| record.last() <= self.last).count();
        let records = &records[stored..];
        if let (Some(first), Some(last)) = (records.first(), records.last()) {
            let parcel = self.parcel(first.sequence, last.last(), records)?;
            self.store(parcel, last.last(), told).await?;
            renews = true;
        }
        Ok(Appended { number: self.number, last: self.last, renews })
    }

    /// Stores any number of records as [`Writer::append`] does, some in each segment, within a time
    /// for each.
    ///
    /// # Errors
    /// The same, and [`Error::Slow`].
    pub async fn append_all(
        &mut self,
        records: &[Record],
        told: &(dyn Fn(Trouble<'_>) + Sync),
        limit: Duration,
    ) -> Result<()> {
        let mut rest = records;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|record| {
                let is_first = bytes == 0;
                bytes += record.bytes();
                is_first || bytes <= SEGMENT_BYTES
            });
            let (some, others) = rest.split_at(fits.count());
            let appended = timeout(limit, self.append(some, told)).await;
            appended.unwrap_or(Err(Error::Slow(limit)))?;
            rest = others;
        }
        Ok(())
    }

    fn parcel(&self, first: u64, last: u64, records: &[Record]) -> Result<Parcel> {
        let bytes: usize = records.iter().map(Record::bytes).sum();
        if bytes > RECORDS_BYTES_MAX {
            return Err(Error::TooLong(bytes));
        }
        let gap = |sequence, last| Err(Error::Gap { sequence, last });
        if first <= self.last || first - 1 > self.last.max(self.covered.position) {
            return gap(first, self.last);
        }
        let mut before = first - 1;
        for record in records {
            if record.sequence != before + 1 || record.count == 0 {
                return gap(record.sequence, before);
            }
            before = record.last();
        }
        let number = self.number + 1;
        let header = Header {
            number,
            id: random_id(&*self.random),
            before: self.id,
            first,
            last,
            lease: self.lease.clone(),
            ..header(self.journal(), self.owner, self.covered)
        };
        Ok(parcel(self.journal(), &header, records, &*self.random))
    }

    /// Says which lease segments tell of from now on.
    pub fn set_lease(&mut self, lease: Lease) {
        self.lease = lease;
    }

    /// Stores a segment without records, which tells of the lease. A segment that a dropped call has
    /// left is stored instead, if there is one. Otherwise as [`Writer::append`].
    ///
    /// # Errors
    /// The same as of [`Writer::append`].
    pub async fn renew(&mut self, told: &(dyn Fn(Trouble<'_>) + Sync)) -> Result<Appended> {
        let (parcel, last, renews) = match self.pending.take() {
            Some((parcel, last)) => (parcel, last, false),
            None => (self.empty(), self.last, true),
        };
        self.store(parcel, last, told).await?;
        Ok(Appended { number: self.number, last: self.last, renews })
    }

    fn empty(&self) -> Parcel {
        let header = Header {
            number: self.number + 1,
            id: random_id(&*self.random),
            before: self.id,
            first: self.last + 1,
            last: self.last,
            lease: self.lease.clone(),
            ..header(self.journal(), self.owner, self.covered)
        };
        parcel(self.journal(), &header, &[], &*self.random)
    }

    async fn store(
        &mut self,
        parcel: Parcel,
        last: u64,
        told: &(dyn Fn(Trouble<'_>) + Sync),
    ) -> Result<()> {
        if let Some((number, Owner { generation, run })) = self.fenced {
            return Err(Error::Fenced { number, generation, run });
        }
        // Kept here while the store is asked: the future may be dropped at any wait.
        let (parcel, _) = self.pending.insert((parcel, last));
        match self.putter.store(parcel, &*self.random, told).await? {
            Outcome::Stored => {
                (self.number, self.id, self.last) = (parcel.number, parcel.id, last);
                self.pending = None;
                Ok(())
            }
            Outcome::Foreign(found) => {
                let Header { number, generation, run, .. } = found.header;
                self.fenced = Some((number, Owner { generation, run }));
                Err(Error::Fenced { number, generation, run })
            }
        }
    }

    /// Says that a base was made: later segments name it, if it is newer, and records may begin
    /// after it.
    pub fn base_made(&mut self, covered: Covered) {
        if covered.base > self.covered.base {
            self.covered = covered;
        }
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.putter.journal
    }

    /// The end of the chain.
    #[must_use]
    pub fn end(&self) -> End {
        let last = Some(self.last);
        End { number: self.number, id: Some(self.id), owner: self.owner, last }
    }

    /// Counts and times.
    #[must_use]
    pub fn status(&self) -> WriterStatus {
        let Putter { counts, latency, .. } = &self.putter;
        WriterStatus {
            number: self.number,
            last: self.last,
            put_p50: latency.percentile(50),
            put_p99: latency.percentile(99),
            ..*counts
        }
    }
}

/// A header with what all segments of a process have.
pub(crate) fn header(journal: &Journal, owner: Owner, covered: Covered) -> Header {
    Header {
        uuid: journal.uuid,
        history: journal.history,
        member: journal.member,
        generation: owner.generation,
        run: owner.run,
        number: 0,
        id: 0,
        before: 0,
        first: 1,
        last: 0,
        covered,
        lease: Lease::default(),
    }
}

pub(crate) fn parcel(
    journal: &Journal,
    header: &Header,
    records: &[Record],
    random: &dyn Random,
) -> Parcel {
    let sealed = journal.seal(header.number, &segment::encode(header, records), random);
    Parcel { number: header.number, id: header.id, sealed }
}
