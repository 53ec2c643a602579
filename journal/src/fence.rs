//! A process takes a journal over: it puts an empty segment of its generation at the end (J3).
//!
//! The caller was given the generation, and the lease of the one before has ended. It restores a
//! base, applies what a [`Reader`] finds, and then fences. What older generations added meanwhile
//! comes back in [`Taken::beyond`], and is applied before anything is served.
//!
//! Race: an old owner may still put its segment at the number of the fence. Then this segment is a
//! part of the chain, and the fence is put after it. Once the fence is there, an old owner finds it
//! under the number that it needs, and halts (J1, J2). A caller that nobody has told that the old
//! owner is gone takes over only where the chain ends at the segment whose lease it saw end.
//!
//! Race: the end of the chain may have been collected since the caller's base was made, and then
//! the number of the fence was free because of that. The segment before is gone in this case, as
//! segments are removed in rising order, and a base lies beyond it. Both are looked at after the
//! fence was put; the fence is then a stray object below the chain, and is never read.

use std::sync::Arc;

use base::Random;

use crate::{
    Covered, Error, Header, Journal, Lease, Owner, Reader, Replica, Result, Times, Trouble, Writer,
    bugs::Bug,
    place::random_id,
    put::{Outcome, Putter},
    writer::{header, parcel},
};

/// The knowledge of a caller before it fences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Number of the last segment that the caller has applied, or has written itself. From a base:
    /// its `segment`. 0: nothing is known, and the chain is read from its beginning.
    pub segment: u64,
    /// The extent of the caller's data.
    pub replica: Replica,
    /// The newest complete base that the caller's data are of, or that was made of them.
    pub covered: Covered,
    /// The highest stable position that the roster has: the journal reaches so far.
    pub stable: u64,
    /// The segment at which the journal must end for the caller to take it over: the lease that it
    /// tells of has ended ([`Vigil`](crate::Vigil)). `None`: wherever it ends.
    pub ends_at: Option<u64>,
    /// Milliseconds of the caller's own lease, 0 for none; the fence tells of it.
    pub lease_millis: u32,
}

/// A journal that was taken over.
pub struct Taken {
    /// Adds segments.
    pub writer: Writer,
    /// The segments after [`Known::segment`], up to the fence, verified.
    pub beyond: Reader,
}

/// Takes the journal over. Calls `told` when the store fails, and goes on without end.
///
/// # Errors
/// [`Error::Fenced`]: an equal or newer generation is there. [`Error::GoesOn`]: the journal does not
/// end where it must. [`Error::NeedsBase`]: the caller
/// restores a newer base and fences again. [`Error::Forked`]: the caller has more than the journal,
/// and a later generation went on without it. [`Error::Behind`], [`Error::Broken`] and others: the
/// store is a wrong or broken one.
pub async fn fence(
    journal: &Journal,
    owner: Owner,
    known: &Known,
    times: Times,
    random: Arc<dyn Random>,
    told: &(dyn Fn(Trouble<'_>) + Sync),
) -> Result<Taken> {
    let mut reader = Reader::new(journal.clone(), known.segment, known.replica);
    let mut putter = Putter::new(journal.clone(), times);
    loop {
        while let Some(segment) = reader.next().await? {
            refuse_newer(&segment.header, owner)?;
        }
        let end = reader.end();
        let last = end.last.unwrap_or(0).max(known.covered.position);
        if last < known.stable {
            return Err(Error::Behind { last, stable: known.stable });
        }
        let number = end.number + 1;
        if known.ends_at.is_some_and(|at| at != end.number) && !journal.has(Bug::RenewalIgnored) {
            return Err(Error::GoesOn { number: end.number });
        }
        let lease = Lease { millis: known.lease_millis, ..Lease::default() };
        let fence = Header {
            number,
            id: random_id(&*random),
            before: end.id.unwrap_or(0),
            first: last + 1,
            last,
            lease,
            ..header(journal, owner, known.covered)
        };
        let parcel = parcel(journal, &fence, &[], &*random);
        match putter.store(&parcel, &*random, told).await? {
            // Read and checked as part of the chain by the next round.
            Outcome::Foreign(found) => refuse_newer(&found.header, owner)?,
            Outcome::Stored => {
                check(journal, &fence, end.owner.generation, known, reader.replica()).await?;
                let beyond = Reader::new(journal.clone(), known.segment, known.replica);
                let writer = Writer {
                    putter,
                    owner,
                    random,
                    number,
                    id: fence.id,
                    last,
                    covered: known.covered,
                    lease: fence.lease,
                    pending: None,
                    fenced: None,
                };
                return Ok(Taken { writer, beyond: beyond.until(number) });
            }
        }
    }
}

fn refuse_newer(header: &Header, owner: Owner) -> Result<()> {
    let &Header { number, generation, run, .. } = header;
    if generation >= owner.generation {
        return Err(Error::Fenced { number, generation, run });
    }
    Ok(())
}

/// Whether a fence that is stored counts (J3).
async fn check(
    journal: &Journal,
    fence: &Header,
    generation: u64,
    known: &Known,
    replica: Replica,
) -> Result<()> {
    let needs_base = Err(Error::NeedsBase { number: fence.number, position: replica.position });
    let looks = !journal.has(Bug::PredecessorNotLookedAt);
    if looks && fence.number > 1 && !journal.has_segment(fence.number - 1).await? {
        return needs_base;
    }
    if journal.has(Bug::BasesNotLookedAt) {
        return Ok(());
    }
    if journal.beyond(fence.number).await?.is_some() {
        return needs_base;
    }
    // A base of a generation before the end of the chain has removed nothing of it.
    let beyond = |base: &backup::Manifest| {
        let has_more = base.position > replica.position || base.segment >= fence.number;
        base.generation >= generation.max(1) && base.number > known.covered.base && has_more
    };
    if journal.bases(1, beyond).await?.is_empty() { Ok(()) } else { needs_base }
}
