//! The numbers of a session's mutating requests: which is next, and which are still unanswered.
//!
//! Invariant: never more than [`REQUESTS_IN_FLIGHT_MAX`] numbers lie between the lowest unanswered
//! one and the next, because the server remembers the answers to that many.

use std::collections::VecDeque;

use base::{Seq, limits::REQUESTS_IN_FLIGHT_MAX};

/// The window of one session.
#[derive(Debug)]
pub(crate) struct Window {
    /// The lowest number that is not answered.
    lowest: u64,
    /// From `lowest` on: whether each number given out is answered.
    answered: VecDeque<bool>,
}

impl Window {
    pub(crate) fn new() -> Window {
        Window { lowest: 1, answered: VecDeque::new() }
    }

    /// The next number; `None` when the window is full.
    pub(crate) fn take(&mut self) -> Option<Seq> {
        let taken = self.answered.len() as u64;
        if taken == REQUESTS_IN_FLIGHT_MAX {
            return None;
        }
        self.answered.push_back(false);
        Some(Seq(self.lowest + taken))
    }

    /// The client has the answer to `seq`.
    ///
    /// # Panics
    /// When the number was not given out, or was answered long ago.
    pub(crate) fn finish(&mut self, seq: Seq) {
        let index = seq.0.checked_sub(self.lowest).and_then(|index| usize::try_from(index).ok());
        let slot = index.and_then(|index| self.answered.get_mut(index));
        *slot.expect("a number is finished once, by the slot that took it") = true;
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.lowest += 1;
        }
    }

    /// The lowest number still unanswered: the server may forget what it answered before.
    pub(crate) fn unanswered(&self) -> Seq {
        Seq(self.lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_unanswered_number_waits_for_the_slowest() {
        let mut window = Window::new();
        let seqs: Vec<Seq> = (0..3).map(|_| window.take().unwrap()).collect();
        assert_eq!(seqs, [Seq(1), Seq(2), Seq(3)]);
        window.finish(Seq(2));
        assert_eq!(window.unanswered(), Seq(1));
        window.finish(Seq(1));
        assert_eq!(window.unanswered(), Seq(3));
    }

    #[test]
    fn a_full_window_gives_no_number_until_the_lowest_is_answered() {
        let mut window = Window::new();
        for _ in 0..REQUESTS_IN_FLIGHT_MAX {
            assert!(window.take().is_some());
        }
        window.finish(Seq(2));
        assert_eq!(window.take(), None);
        window.finish(Seq(1));
        assert_eq!(window.take(), Some(Seq(REQUESTS_IN_FLIGHT_MAX + 1)));
    }
}
