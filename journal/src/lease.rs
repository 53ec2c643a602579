//! The lease of the process that owns a journal, and the end of it as others see it.
//!
//! Each segment is a renewal. The owner may serve for the length of its lease from when it *began*
//! to put the last segment that is known to be stored ([`Tenure`]). Others may take over when the
//! journal has ended at one segment for that long and an eighth, from when they *saw* it there
//! ([`Vigil`]); they fence after that very segment ([`Known::ends_at`](crate::Known)). No clocks are
//! compared: each side measures a length of time, and the eighth is for clocks that run at different
//! rates.
//!
//! Always true: when a fence after the last segment is stored, the lease of its owner has ended. A
//! later segment of the owner would have the number of the fence.
//!
//! Times are those since any moment of the caller's; the clock must go on while the machine sleeps.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::Header;

/// A part of a lease that is waited for besides: two clocks differ by less.
const MARGIN: u32 = 8;
/// End of a lease that was given up, and of one that does not count yet.
const RESIGNED: u64 = 0;
const UNBOUND: u64 = u64::MAX;

/// How long a process may serve.
#[derive(Debug)]
pub struct Tenure {
    lease: Option<Duration>,
    /// When the lease ends, in nanoseconds; [`RESIGNED`] is for good.
    ends: AtomicU64,
}

impl Tenure {
    /// The tenure of a process that has told nobody of a lease: it may serve whatever the journal
    /// does. `lease` is the length of the one that it tells of later.
    #[must_use]
    pub fn unbound(lease: Option<Duration>) -> Tenure {
        Tenure { lease, ends: AtomicU64::new(UNBOUND) }
    }

    /// The length of the lease, if there is to be one.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Milliseconds of the lease that segments tell of from now on; 0 for none.
    #[must_use]
    pub fn millis(&self) -> u32 {
        if self.ends.load(Ordering::Acquire) == UNBOUND {
            return 0;
        }
        self.lease.map_or(0, |lease| u32::try_from(lease.as_millis()).unwrap_or(u32::MAX))
    }

    /// Has the lease count: before the first segment is put that tells of it.
    pub fn bind(&self, now: Duration) {
        if let Some(ends) = self.ends_after(now) {
            let is_unbound = |before: u64| (before == UNBOUND).then_some(ends);
            // One that counts already, or was given up, stays.
            let _ = self.ends.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_unbound);
        }
    }

    /// A segment is stored, by a call that began then and was the first to put it.
    pub fn extend(&self, begun: Duration) {
        if let Some(ends) = self.ends_after(begun) {
            let later = |before: u64| (before != RESIGNED && before < ends).then_some(ends);
            // A later end stays, and one that was given up.
            let _ = self.ends.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        }
    }

    fn ends_after(&self, begun: Duration) -> Option<u64> {
        let ends = begun + self.lease?;
        Some(u64::try_from(ends.as_nanos()).unwrap_or(UNBOUND - 1))
    }

    /// The process serves no more.
    pub fn resign(&self) {
        self.ends.store(RESIGNED, Ordering::Release);
    }

    /// Whether the process may serve.
    #[must_use]
    pub fn holds(&self, now: Duration) -> bool {
        now < Duration::from_nanos(self.ends.load(Ordering::Acquire))
    }

    /// How long the process may still serve; `None` while no lease counts.
    #[must_use]
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let ends = self.ends.load(Ordering::Acquire);
        (ends != UNBOUND).then(|| Duration::from_nanos(ends).saturating_sub(now))
    }
}

/// Whether a journal may be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The owner may serve for so long, at most.
    Held(Duration),
    /// The owner has no lease: somebody must say that it is gone.
    Unleased,
    /// The owner serves no more.
    Ended,
}

/// The watch over a journal whose owner may be gone.
#[derive(Debug)]
pub struct Vigil {
    last: Header,
    since: Duration,
}

impl Vigil {
    /// The journal was seen to end at this segment, by a look that began then.
    #[must_use]
    pub fn new(last: Header, now: Duration) -> Vigil {
        Vigil { last, since: now }
    }

    /// The last segment that was seen.
    #[must_use]
    pub fn last(&self) -> &Header {
        &self.last
    }

    /// Another segment was seen: the watch begins anew. `now` is after the look.
    pub fn saw(&mut self, last: Header, now: Duration) {
        *self = Vigil::new(last, now);
    }

    /// Whether the owner may serve still, if the last segment is the last one.
    #[must_use]
    pub fn verdict(&self, now: Duration) -> Verdict {
        let lease = &self.last.lease;
        if lease.resigned {
            return Verdict::Ended;
        }
        if lease.millis == 0 {
            return Verdict::Unleased;
        }
        let lease = Duration::from_millis(lease.millis.into());
        match (self.since + lease + lease / MARGIN).checked_sub(now) {
            None | Some(Duration::ZERO) => Verdict::Ended,
            Some(left) => Verdict::Held(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_tenure_ends_a_lease_after_the_last_segment_was_begun() {
        let tenure = Tenure::unbound(Some(3 * SECOND));
        tenure.extend(SECOND);
        assert_eq!((tenure.millis(), tenure.left(SECOND)), (0, None));
        tenure.bind(10 * SECOND);
        tenure.bind(12 * SECOND);
        assert_eq!(tenure.millis(), 3000);
        assert!(tenure.holds(12 * SECOND));
        assert!(!tenure.holds(13 * SECOND));
        tenure.extend(12 * SECOND);
        tenure.extend(11 * SECOND);
        assert_eq!(tenure.left(14 * SECOND), Some(SECOND));
        assert!(!tenure.holds(15 * SECOND));
        // The renewal was late, and nobody has taken over.
        tenure.extend(20 * SECOND);
        assert!(tenure.holds(22 * SECOND));
        tenure.resign();
        tenure.extend(22 * SECOND);
        assert!(!tenure.holds(22 * SECOND));
    }

    #[test]
    fn without_a_lease_a_process_serves_until_it_resigns() {
        let tenure = Tenure::unbound(None);
        tenure.bind(SECOND);
        assert!(tenure.holds(1000 * SECOND));
        assert_eq!(tenure.left(SECOND), None);
        tenure.resign();
        assert!(!tenure.holds(SECOND));
    }

    #[test]
    fn a_vigil_lasts_a_lease_and_an_eighth_from_the_last_segment_that_was_seen() {
        let lease = crate::Lease { millis: 8000, ..crate::Lease::default() };
        let header = |number, lease: &crate::Lease| {
            let owner = crate::Owner::default();
            let journal = crate::tests::any_journal();
            let base = crate::writer::header(&journal, owner, crate::Covered::default());
            Header { number, lease: lease.clone(), ..base }
        };
        let mut vigil = Vigil::new(header(1, &lease), 10 * SECOND);
        assert_eq!(vigil.verdict(18 * SECOND), Verdict::Held(SECOND));
        assert_eq!(vigil.verdict(19 * SECOND), Verdict::Ended);
        vigil.saw(header(2, &lease), 15 * SECOND);
        assert_eq!(vigil.verdict(19 * SECOND), Verdict::Held(5 * SECOND));
        vigil.saw(header(3, &crate::Lease::default()), 15 * SECOND);
        assert_eq!(vigil.verdict(1000 * SECOND), Verdict::Unleased);
        vigil.saw(header(4, &crate::Lease { resigned: true, ..lease }), 15 * SECOND);
        assert_eq!(vigil.verdict(15 * SECOND), Verdict::Ended);
        assert_eq!(vigil.last().number, 4);
    }
}
