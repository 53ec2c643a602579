//! The latest slow operations, kept until an administrator looks.

use std::collections::VecDeque;

use base::SessionId;
use parking_lot::Mutex;

use super::{Nanos, Note, Stages, Subject, Verdict};

/// Number of operations that are kept.
const KEPT: usize = 512;

/// A slow operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlowNote {
    pub(crate) number: u64,
    pub(crate) kind: u8,
    pub(crate) verdict: Verdict,
    pub(crate) session: SessionId,
    pub(crate) subject: Option<Subject>,
    pub(crate) stages: Stages,
    pub(crate) answered: Nanos,
    pub(crate) group: usize,
}

/// The list of slow operations.
#[derive(Default)]
pub(crate) struct Slow {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<SlowNote>,
    total: u64,
}

impl Slow {
    /// Keeps an operation.
    pub(crate) fn keep(&self, note: &Note, stages: Stages, answered: Nanos, group: usize) {
        let mut state = self.state.lock();
        state.total += 1;
        let number = state.total;
        if state.kept.len() == KEPT {
            state.kept.pop_front();
        }
        let Note { kind, verdict, session, subject, .. } = *note;
        let slow = SlowNote { number, kind, verdict, session, subject, stages, answered, group };
        state.kept.push_back(slow);
    }

    /// Kept operations after number `after`, and the number of all there were.
    pub(crate) fn after(&self, after: u64) -> (Vec<SlowNote>, u64) {
        let state = self.state.lock();
        (state.kept.iter().filter(|slow| slow.number > after).copied().collect(), state.total)
    }
}
