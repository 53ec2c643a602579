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
/// End of a lease that was given up.
const RESIGNED: u64 = 0;

/// How long a process may serve.
#[derive(Debug)]
pub struct Tenure {
    /// `None`: whatever the journal does.
    lease: Option<Duration>,
    /// When the lease ends, in nanoseconds; [`RESIGNED`] is for good.
    ends: AtomicU64,
}

impl Tenure {
    /// The tenure of a process whose fence has told of a lease, and which began to put it then.
    #[must_use]
    pub fn new(lease: Option<Duration>, begun: Duration) -> Tenure {
        let tenure = Tenure { lease, ends: AtomicU64::new(1) };
        tenure.extend(begun);
        tenure
    }

    /// The length of the lease, if there is one.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// A segment is stored, by a call that began then and was the first to put it.
    pub fn extend(&self, begun: Duration) {
        let Some(lease) = self.lease else { return };
        let ends = u64::try_from((begun + lease).as_nanos()).unwrap_or(u64::MAX);
        let later = |before: u64| (before != RESIGNED && before < ends).then_some(ends);
        // It stays as it is where it is later, or was given up.
        let _ = self.ends.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// The process serves no more.
    pub fn resign(&self) {
        self.ends.store(RESIGNED, Ordering::Release);
    }

    /// Whether the process may serve.
    #[must_use]
    pub fn holds(&self, now: Duration) -> bool {
        let ends = self.ends.load(Ordering::Acquire);
        match self.lease {
            None => ends != RESIGNED,
            Some(_) => now < Duration::from_nanos(ends),
        }
    }

    /// How long the process may still serve; `None` without a lease.
    #[must_use]
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let ends = Duration::from_nanos(self.ends.load(Ordering::Acquire));
        self.lease.map(|_| ends.saturating_sub(now))
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
        let tenure = Tenure::new(Some(3 * SECOND), 10 * SECOND);
        assert!(tenure.holds(12 * SECOND));
        assert!(!tenure.holds(13 * SECOND));
        tenure.extend(12 * SECOND);
        tenure.extend(11 * SECOND);
        assert_eq!(tenure.left(14 * SECOND), Some(SECOND));
        assert!(!tenure.holds(15 * SECOND));
        // It was late, and nobody has taken over.
        tenure.extend(20 * SECOND);
        assert!(tenure.holds(22 * SECOND));
        tenure.resign();
        tenure.extend(22 * SECOND);
        assert!(!tenure.holds(22 * SECOND));
    }

    #[test]
    fn without_a_lease_a_process_serves_until_it_resigns() {
        let tenure = Tenure::new(None, SECOND);
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
