//! Requests in hand, and interrupts of the kernel that end some of them early.
//!
//! Shared by all descriptors of a connection, because the kernel may hand an INTERRUPT to another
//! descriptor than the one that read the request. Every request is registered before its handler
//! runs and taken out with its answer, so an INTERRUPT finds it whatever the handler does in
//! between.
//!
//! Race: another runtime may have read a request and not yet registered it when its INTERRUPT is
//! handled here, and over io_uring an INTERRUPT comes another way than its request. Such interrupts
//! are remembered, those of the newest requests, and found by `register`. One whose request has been
//! answered already is never found: uniques are not used again.

use std::{
    collections::BTreeSet,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use slab::Slab;

use crate::types::Unique;

/// Interrupts remembered for requests that are not registered yet; that race lasts microseconds.
/// Over io_uring an INTERRUPT cannot be given back to the kernel, so this must be enough for all
/// requests of a queue.
const EARLY_MAX: usize = 4096;

/// The table of requests in hand.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    in_hand: Slab<InHand>,
    early: BTreeSet<Unique>,
    /// Number of requests in hand, by the thread that took them.
    counts: Vec<usize>,
}

#[derive(Debug)]
struct InHand {
    unique: Unique,
    by: Reader,
    interrupted: bool,
    waker: Option<Waker>,
}

/// A thread that takes requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader(usize);

/// A request's place in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot(usize);

impl Interrupts {
    /// One more thread takes requests.
    pub(crate) fn reader(&self) -> Reader {
        let mut table = self.0.lock();
        table.counts.push(0);
        Reader(table.counts.len() - 1)
    }

    pub(crate) fn register(&self, unique: Unique, by: Reader) -> Slot {
        let mut table = self.0.lock();
        let interrupted = table.early.remove(&unique);
        table.counts[by.0] += 1;
        Slot(table.in_hand.insert(InHand { unique, by, interrupted, waker: None }))
    }

    pub(crate) fn unregister(&self, slot: Slot) {
        let mut table = self.0.lock();
        let by = table.in_hand.remove(slot.0).by;
        table.counts[by.0] -= 1;
    }

    /// How many requests are in hand that this thread took.
    pub(crate) fn in_hand(&self, by: Reader) -> usize {
        self.0.lock().counts[by.0]
    }

    /// Marks a request and wakes its task. False when the request is not in hand.
    pub(crate) fn interrupt(&self, unique: Unique) -> bool {
        let mut table = self.0.lock();
        let found = table.in_hand.iter_mut().find(|(_, in_hand)| in_hand.unique == unique);
        if let Some((_, in_hand)) = found {
            in_hand.interrupted = true;
            let waker = in_hand.waker.take();
            drop(table);
            waker.into_iter().for_each(Waker::wake);
            return true;
        }
        table.early.insert(unique);
        if table.early.len() > EARLY_MAX {
            // Uniques grow: the first is that of the oldest request.
            table.early.pop_first();
        }
        false
    }

    pub(crate) fn is_interrupted(&self, slot: Slot) -> bool {
        self.0.lock().in_hand[slot.0].interrupted
    }

    pub(crate) fn poll(&self, slot: Slot, cx: &mut Context<'_>) -> Poll<()> {
        let mut table = self.0.lock();
        let in_hand = &mut table.in_hand[slot.0];
        if in_hand.interrupted {
            return Poll::Ready(());
        }
        match &mut in_hand.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => in_hand.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_finds_a_request_in_hand_and_wakes_it() {
        let interrupts = Interrupts::default();
        let by = interrupts.reader();
        let slot = interrupts.register(Unique(8), by);
        let mut cx = Context::from_waker(Waker::noop());

        assert!(interrupts.poll(slot, &mut cx).is_pending());
        assert!(interrupts.interrupt(Unique(8)));
        assert!(interrupts.poll(slot, &mut cx).is_ready());
        assert!(interrupts.is_interrupted(slot));
    }

    #[test]
    fn an_interrupt_that_comes_before_its_request_is_registered_is_not_lost() {
        let interrupts = Interrupts::default();
        let by = interrupts.reader();

        assert!(!interrupts.interrupt(Unique(8)));
        let other = interrupts.register(Unique(6), by);
        let slot = interrupts.register(Unique(8), by);

        assert!(interrupts.is_interrupted(slot));
        assert!(!interrupts.is_interrupted(other));
    }

    #[test]
    fn an_interrupt_of_an_answered_request_touches_no_other() {
        let interrupts = Interrupts::default();
        let by = interrupts.reader();
        let answered = interrupts.register(Unique(8), by);
        interrupts.unregister(answered);
        assert!(!interrupts.interrupt(Unique(8)));
        let next = interrupts.register(Unique(10), by);
        assert!(!interrupts.is_interrupted(next));
    }

    #[test]
    fn requests_in_hand_are_counted_by_the_thread_that_took_them() {
        let interrupts = Interrupts::default();
        let (one, other) = (interrupts.reader(), interrupts.reader());
        let first = interrupts.register(Unique(2), one);
        interrupts.register(Unique(4), one);
        interrupts.register(Unique(6), other);
        assert_eq!((interrupts.in_hand(one), interrupts.in_hand(other)), (2, 1));
        interrupts.unregister(first);
        assert_eq!((interrupts.in_hand(one), interrupts.in_hand(other)), (1, 1));
    }

    #[test]
    fn interrupts_without_a_request_are_bounded() {
        let interrupts = Interrupts::default();
        let by = interrupts.reader();
        for unique in 0..5000 {
            interrupts.interrupt(Unique(unique * 2));
        }
        assert_eq!(interrupts.0.lock().early.len(), EARLY_MAX);
        let newest = interrupts.register(Unique(9998), by);
        assert!(interrupts.is_interrupted(newest));
    }
}
