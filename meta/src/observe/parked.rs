//! Durations for which requests wait for moving names.
//!
//! `core` and `transact` report waits for a handoff: for names that are frozen, for a switch that
//! is promised, or because the request was slowed. The sum is recorded once, when the request is
//! dropped.
//!
//! Always true: a request that does not wait costs nothing.

use std::{
    cell::{Cell, OnceCell},
    sync::Arc,
};

use super::Histogram;
use crate::server::{Counters, Shared};

/// Durations of these waits. The first bound, doubled eight times, is 20 ms. No more than one of a
/// thousand requests should wait longer.
pub(crate) type Waits = Histogram<78_125>;

/// Nanoseconds from which on a wait counts as long.
const LONG: u64 = 20_000_000;

/// Time that a request has waited for handoffs.
#[derive(Default)]
pub(crate) struct Parked(OnceCell<Box<Waited>>);

struct Waited {
    shared: Arc<Shared>,
    core: usize,
    nanos: Cell<u64>,
}

impl Parked {
    /// Adds nanoseconds of waiting.
    pub(crate) fn add(&self, shared: &Arc<Shared>, core: usize, nanos: u64) {
        let begin = || Box::new(Waited { shared: Arc::clone(shared), core, nanos: Cell::new(0) });
        let sum = &self.0.get_or_init(begin).nanos;
        sum.set(sum.get().saturating_add(nanos));
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        let nanos = self.nanos.get();
        self.shared.observed.core(self.core).handoff_waits.record(nanos);
        Counters::add(&self.shared.counters.handoff_waited);
        if nanos > LONG {
            Counters::add(&self.shared.counters.handoff_waited_long);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_20_ms_and_what_is_not_are_in_different_buckets() {
        let waits = Waits::default();
        [LONG - 1, LONG, LONG + 1].into_iter().for_each(|nanos| waits.record(nanos));
        let mut all = wire::Distribution::default();
        waits.add_to(&mut all);
        assert_eq!((all.unit << 8, &all.buckets[7..10]), (LONG, &[0, 2, 1][..]));
    }
}
