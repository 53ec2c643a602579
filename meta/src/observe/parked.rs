//! How long requests wait for names that move.
//!
//! `core` and `transact` say when one has waited for a handoff: for names that are frozen, for a switch that is promised,
//! or because it was slowed. What it has waited altogether is recorded once, when nothing is left of it.
//!
//! Always true: a request that does not wait costs nothing.

use std::{
    cell::{Cell, OnceCell},
    sync::Arc,
};

use super::Histogram;
use crate::server::{Counters, Shared};

/// Durations of these waits. Doubled eight times the first bound is 20 ms, than which none should be longer but for one
/// of a thousand requests.
pub(crate) type Waits = Histogram<78_125>;

/// A request that has waited so long has waited for long, in nanoseconds.
const LONG: u64 = 20_000_000;

/// What a request has waited for handoffs.
#[derive(Default)]
pub(crate) struct Parked(OnceCell<Box<Waited>>);

struct Waited {
    shared: Arc<Shared>,
    core: usize,
    nanos: Cell<u64>,
}

impl Parked {
    /// It has waited for so many nanoseconds more.
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
