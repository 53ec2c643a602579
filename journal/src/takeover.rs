//! A server takes its journal over, before it serves.
//!
//! ```text
//! read the chain                       it is these data's, or the lease of its owner has ended
//! note the next generation
//! fence                                the end of the chain, for this generation
//! apply                                what the chain has and the data lack
//! put                                  what the log has and the chain lacks
//! ```
//!
//! If the log does not reach back to the chain's end, or there is no base yet, the journal begins
//! with the next base: until then it has no lease, and nobody takes over.

use std::{sync::Arc, time::Duration};

use base::{Random, error::describe};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Covered, End, Error, Failure, Journal, Known, Note, Owner, Reader, Record, Replica, Result,
    Segment, Tenure, Times, Trouble, Verdict, Vigil, Writer, fence,
};

/// Pause before a store that failed is read again.
const READ_PAUSE: Duration = Duration::from_millis(500);

/// The data of who takes a journal over.
pub trait Data {
    /// Position of the engine.
    fn position(&self) -> u64;

    /// Whether the log follows this position, and reaches that of the engine.
    fn reaches(&self, position: u64) -> bool;

    /// The records of the log after this position, if it [reaches](Data::reaches) from there to the
    /// position of the engine before anything was applied.
    fn log_after(&self, position: u64) -> Option<Vec<Record>>;

    /// Writes the records of a segment that the engine lacks ([`missing`](crate::missing)).
    ///
    /// # Errors
    /// When they cannot be written, or do not follow.
    fn apply(&self, segment: Segment) -> std::result::Result<(), Failure>;

    /// Makes stable what was applied.
    ///
    /// # Errors
    /// When it cannot be.
    fn sync(&self) -> std::result::Result<(), Failure>;

    /// Keeps the note, on stable storage.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep(&self, note: &Note) -> std::result::Result<(), Failure>;
}

/// How a journal is taken over.
pub struct Claim<'a> {
    /// The server's lease.
    pub lease: Option<Duration>,
    /// The segment whose lease was seen to end.
    pub ends_at: Option<u64>,
    /// Whether the server has had a lease of its cluster since it took the journal over before.
    pub was_heard: bool,
    /// Time that each step may take.
    pub limit: Duration,
    /// The time since any moment, by a clock that goes on while the machine sleeps.
    pub now: &'a (dyn Fn() -> Duration + Sync),
    /// Is told of a store that fails.
    pub told: &'a (dyn Fn(Trouble<'_>) + Sync),
}

/// A journal that was taken over, for who serves.
pub struct TakenOver {
    /// Adds segments.
    pub writer: Writer,
    /// How long the process may serve.
    pub tenure: Tenure,
    /// When the fence was begun: the lease counts from then.
    pub begun: Duration,
    /// Whether the journal has all that the data have. Otherwise it begins with the next base.
    pub is_whole: bool,
}

/// Takes the journal over.
///
/// # Errors
/// The same as of [`fence`] and [`Reader::next`]; [`Error::Slow`] when a step takes longer than its
/// limit, [`Error::Data`] when the data fail, [`Error::Lost`] when they lack what was stable.
pub async fn take_over(
    journal: &Journal,
    note: &mut Note,
    data: &impl Data,
    claim: &Claim<'_>,
    random: &Arc<dyn Random>,
) -> Result<TakenOver> {
    let (position, told) = (data.position(), claim.told);
    let tenure = Tenure::unbound(claim.lease);
    let (owner, mut writer, begun, succeeds) = loop {
        let end = own(journal, note, claim.limit).await?;
        let ends_at = match claim.ends_at {
            None if note.follows => lease_ended(journal, end.number, claim.now).await?,
            seen => seen,
        };
        let last = end.last.unwrap_or_default();
        // Changes on this disk alone must not be lost to a server that stands by.
        let is_whole = note.base > 0 && (position <= last || data.reaches(last));
        let begun = (claim.now)();
        if is_whole {
            tenure.bind(begun);
        }
        let known = Known {
            segment: end.number,
            replica: Replica { generation: note.generation, position: position.max(last) },
            covered: Covered { base: note.base, position: note.position },
            stable: 0,
            // A later segment is looked at first: it may be another server's fence.
            ends_at: Some(ends_at.unwrap_or(end.number)),
            lease_millis: tenure.millis(),
        };
        let owner = Owner { generation: note.next_generation(), run: random.next() };
        note.asked.push(owner);
        data.keep(note).map_err(Error::Data)?;
        let fenced = fence(journal, owner, &known, Times::default(), Arc::clone(random), told);
        match within(claim.limit, fenced).await {
            Ok(taken) => break (owner, taken.writer, begun, note.follows && ends_at.is_some()),
            // A late segment of these data, if its end is not another server's.
            Err(Error::GoesOn { .. }) if ends_at.is_none() => {}
            Err(error) => return Err(error),
        }
    };
    // A start before the others have heard of these data says it again.
    note.succeeds = succeeds || note.succeeds && !claim.was_heard;
    (note.generation, note.asked, note.follows) = (owner.generation, Vec::new(), false);
    data.keep(note).map_err(Error::Data)?;
    let end = writer.end();
    let last = end.last.unwrap_or_default();
    if last > position {
        let all = Reader::new(journal.clone(), note.segment, Replica::default());
        let mut missing = all.alone().until(end.number);
        while let Some(segment) = next(&mut missing, claim.limit).await? {
            data.apply(segment).map_err(Error::Data)?;
        }
    }
    if data.position() < last {
        return Err(Error::Lost { position: data.position(), last });
    }
    data.sync().map_err(Error::Data)?;
    let rest = match position <= last {
        true => Some(Vec::new()),
        false => data.log_after(last),
    };
    let rest = rest.filter(|_| note.base > 0);
    if let Some(rest) = &rest {
        writer.append_all(rest, told, claim.limit).await?;
        // The chain may have been read when a late segment of these data was not there yet.
        tenure.bind(begun);
    }
    Ok(TakenOver { writer, tenure, begun, is_whole: rest.is_some() })
}

/// Sees that the chain is these data's up to its end: they have had the newest generation, or have
/// begun to fence for it.
///
/// # Errors
/// [`Error::Fenced`] and [`Error::NeedsBase`]: another process owns the journal. Others as of
/// [`Reader::next`].
pub async fn own(journal: &Journal, note: &mut Note, limit: Duration) -> Result<End> {
    // Changes that a fence of its own has cut off are in its log still, and are no fork.
    let mut reader = Reader::new(journal.clone(), note.segment, Replica::default()).alone();
    while next(&mut reader, limit).await?.is_some() {}
    let end = reader.end();
    let Owner { generation, run } = end.owner;
    if note.asked.contains(&end.owner) {
        note.generation = generation;
    }
    if generation > note.generation {
        return Err(Error::Fenced { number: end.number, generation, run });
    }
    // A successor has collected what came after a fence.
    if journal.beyond(end.number).await?.is_some() {
        let position = end.last.unwrap_or_default();
        return Err(Error::NeedsBase { number: end.number + 1, position });
    }
    Ok(end)
}

/// Ends a chain whose data turn away from it, so that nobody takes over what is not gone on with: by
/// a fence without a lease. `keep` keeps the note, on stable storage.
///
/// # Errors
/// The same as of [`take_over`].
pub async fn leave(
    journal: &Journal,
    end: &End,
    note: &mut Note,
    keep: impl FnOnce(&Note) -> std::result::Result<(), Failure>,
    limit: Duration,
    random: &Arc<dyn Random>,
) -> Result<()> {
    let last = journal.read(end.number).await?;
    if last.is_none_or(|last| last.header.lease.millis == 0) {
        return Ok(());
    }
    let position = end.last.unwrap_or_default();
    let known = Known {
        segment: end.number,
        replica: Replica { generation: note.generation, position },
        covered: Covered { base: note.base, position: note.position },
        ends_at: Some(end.number),
        ..Known::default()
    };
    let owner = Owner { generation: note.next_generation(), run: random.next() };
    note.asked.push(owner);
    keep(note).map_err(Error::Data)?;
    let fenced = fence(journal, owner, &known, Times::default(), Arc::clone(random), &|_| ());
    within(limit, fenced).await?;
    note.generation = owner.generation;
    Ok(())
}

/// The records of a segment that are beyond a position, if they follow it.
///
/// # Errors
/// [`Error::Gap`].
pub fn missing(segment: Segment, position: u64) -> Result<Vec<Record>> {
    let mut at = position;
    let mut missing = segment.records;
    missing.retain(|record| record.last() > position);
    for record in &missing {
        if record.sequence != at + 1 {
            return Err(Error::Gap { sequence: record.sequence, last: at });
        }
        at = record.last();
    }
    Ok(missing)
}

/// Waits until the lease of the server that wrote a journal's last segment has ended. Returns its
/// number, or nothing where it has no lease: then somebody has said that it is gone.
async fn lease_ended(
    journal: &Journal,
    number: u64,
    now: &(dyn Fn() -> Duration + Sync),
) -> Result<Option<u64>> {
    let Some(last) = journal.read(number).await? else { return Ok(None) };
    let vigil = Vigil::new(last.header, now());
    let address = &vigil.last().lease.address;
    loop {
        match vigil.verdict(now()) {
            Verdict::Ended => return Ok(Some(number)),
            Verdict::Unleased => return Ok(None),
            Verdict::Held(left) => {
                tracing::info!(address, ?left, "the lease of the server before must end first");
                sleep(left).await;
            }
        }
    }
}

/// The next segment; a store that fails for a moment is asked again.
async fn next(reader: &mut Reader, limit: Duration) -> Result<Option<Segment>> {
    let begun = Instant::now();
    loop {
        match reader.next().await {
            Err(error) if error.is_passing() && begun.elapsed() < limit => {
                tracing::warn!(error = describe(&error), "the journal cannot be read");
                sleep(READ_PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.unwrap_or(Err(Error::Slow(limit)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::writer::header;

    #[test]
    fn only_records_that_follow_are_applied() {
        let record = |sequence, count| Record { sequence, count, batch: Bytes::new() };
        let segment = || Segment {
            header: header(&crate::tests::any_journal(), Owner::default(), Covered::default()),
            records: vec![record(5, 2), record(7, 1), record(8, 3)],
            stored_bytes: 0,
        };
        let firsts = |position| {
            let missing = missing(segment(), position).ok()?;
            Some(missing.iter().map(|record| record.sequence).collect::<Vec<_>>())
        };
        assert_eq!(firsts(4), Some(vec![5, 7, 8]));
        assert_eq!(firsts(6), Some(vec![7, 8]));
        assert_eq!(firsts(12), Some(vec![]));
        assert_eq!(firsts(3), None, "change 4 is missing");
        assert_eq!(firsts(5), None, "it would be applied in part");
    }
}
