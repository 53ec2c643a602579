//! The graph of directory renames in flight: which of them may go on at the same time.
//!
//! Two renames, each of them sound by itself, can make a loop that no root reaches: `a` goes below
//! `b` while `b` goes below `a`. So a rename holds the directories that it moves exclusively. It
//! shares all directories above the place that they go to, that place included. A rename that
//! conflicts waits (InfiniFS §4.2). Initiators of renames call the graph, on the coordinator only.
//! It does no IO and keeps nothing when the coordinator ends: renames prepared then are settled
//! before anybody reads a chain through them.
//! reads a chain through it.
//! A rename (`transact::run`) reads the chain above the new parent, calls [`Graph::begin`], and
//! looks again. If the chain is unchanged, it is true until [`Graph::end`]: a move changes only the
//! chains below what it moves. Those contain the moved directory, so the graph keeps out every
//! rename that could change the chain. The second look is at the records of this server within the
//! group that commits, and at those of others when they prepare. If anything has changed, a rename
//! that ended meanwhile has changed it: end, and begin anew.
//!
//! A rename that waits has a turn, and later renames do not get what it waits for. Otherwise a
//! directory below which others move without a pause could never be moved itself. Some rename
//! always goes on, as the one that has waited longest waits only for renames in flight.
//!
//! Invariant: no directory that one rename moves is moved by another, or above the place where
//! another goes.

use std::collections::BTreeMap;

use base::{DirId, HashMap};

/// A rename that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(u64);

/// The place of a rename among those that wait: older ones come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Turn(u64);

/// Whether a rename may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Begun {
    /// The rename may go on, until [`Graph::end`] with this token.
    Granted(Token),
    /// Another rename conflicts. Nothing was kept: try again later.
    Wait,
}

/// The renames in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Graph {
    granted: u64,
    flights: BTreeMap<Token, Flight>,
    /// Each directory that is being moved, and the rename that moves it.
    moved: HashMap<DirId, Token>,
    /// Number of renames in flight that go to this directory or below it.
    above: HashMap<DirId, u32>,
    turns: u64,
    /// The directories that each waiting rename is to move.
    waiting: BTreeMap<Turn, Vec<DirId>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Flight {
    moved: Vec<DirId>,
    chain: Vec<DirId>,
}

impl Graph {
    /// Number of renames in flight.
    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Begins a rename of the directories `moved` to below the first of each `chain`, which are all
    /// directories from the new parent to the root (of an exchange: from both new parents). The
    /// operation itself sees in the chain whether a directory would go below itself; the graph does
    /// not check it. A change of permissions moves its directory and goes nowhere: its chain is
    /// empty.
    pub(crate) fn begin(&mut self, moved: &[DirId], chain: &[DirId]) -> Begun {
        let busy = |dir: &DirId| self.moved.contains_key(dir);
        let stood_on = |dir: &DirId| self.above.contains_key(dir);
        if moved.iter().any(|dir| busy(dir) || stood_on(dir)) || chain.iter().any(busy) {
            return Begun::Wait;
        }
        self.granted += 1;
        let token = Token(self.granted);
        self.moved.extend(moved.iter().map(|dir| (*dir, token)));
        for dir in chain {
            *self.above.entry(*dir).or_default() += 1;
        }
        self.flights.insert(token, Flight { moved: moved.to_vec(), chain: chain.to_vec() });
        Begun::Granted(token)
    }

    /// Gives a rename a turn, which it keeps until [`Graph::leave`].
    pub(crate) fn turn(&mut self) -> Turn {
        self.turns += 1;
        Turn(self.turns)
    }

    /// Begins a rename as [`Graph::begin`] does, in its turn. It also waits for what older turns
    /// wait for, and keeps what it waits for from younger ones.
    pub(crate) fn begin_in_turn(&mut self, turn: Turn, moved: &[DirId], chain: &[DirId]) -> Begun {
        let older = || self.waiting.range(..turn).flat_map(|(_, dirs)| dirs);
        let is_awaited = older().any(|dir| moved.contains(dir) || chain.contains(dir));
        let begun = if is_awaited { Begun::Wait } else { self.begin(moved, chain) };
        match begun {
            Begun::Granted(_) => self.leave(turn),
            Begun::Wait => {
                self.waiting.insert(turn, moved.to_vec());
            }
        }
        begun
    }

    /// Ends the wait of a rename that has a turn.
    pub(crate) fn leave(&mut self, turn: Turn) {
        self.waiting.remove(&turn);
    }

    /// Ends a rename: it was committed and every server has applied it, or it will never happen. A
    /// token that has ended already has no effect.
    pub(crate) fn end(&mut self, token: Token) {
        let Some(flight) = self.flights.remove(&token) else { return };
        for dir in &flight.moved {
            self.moved.remove(dir);
        }
        for dir in &flight.chain {
            if let Some(count) = self.above.get_mut(dir) {
                *count -= 1;
                if *count == 0 {
                    self.above.remove(dir);
                }
            }
        }
    }
}

#[cfg(test)]
mod orphans;

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: DirId = DirId::ROOT;
    const A: DirId = DirId(1001);
    const B: DirId = DirId(1002);
    const C: DirId = DirId(1003);
    const D: DirId = DirId(1004);

    fn granted(begun: Begun) -> Token {
        match begun {
            Begun::Granted(token) => token,
            Begun::Wait => panic!("it has to wait"),
        }
    }

    #[test]
    fn renames_that_would_make_a_loop_together_go_one_after_the_other() {
        let mut graph = Graph::default();
        let first = granted(graph.begin(&[A], &[B, ROOT]));
        assert_eq!(graph.begin(&[B], &[A, ROOT]), Begun::Wait);
        assert_eq!(graph.len(), 1);
        graph.end(first);
        assert_eq!(graph.len(), 0);
        granted(graph.begin(&[B], &[A, ROOT]));
    }

    #[test]
    fn a_loop_of_three_is_not_granted_either() {
        let mut graph = Graph::default();
        granted(graph.begin(&[A], &[B, ROOT]));
        granted(graph.begin(&[D], &[C, ROOT]));
        // C is above the place where D goes.
        assert_eq!(graph.begin(&[C], &[A, ROOT]), Begun::Wait);
        assert_eq!(graph.begin(&[B], &[C, ROOT]), Begun::Wait);
    }

    #[test]
    fn renames_below_one_directory_share_it() {
        let mut graph = Graph::default();
        let first = granted(graph.begin(&[A], &[C, ROOT]));
        let second = granted(graph.begin(&[B], &[C, ROOT]));
        graph.end(first);
        assert_eq!(graph.begin(&[C], &[ROOT]), Begun::Wait);
        graph.end(second);
        granted(graph.begin(&[C], &[ROOT]));
    }

    #[test]
    fn who_waits_is_not_overtaken_for_ever() {
        let mut graph = Graph::default();
        let below = granted(graph.begin(&[A], &[C, ROOT]));
        let (first, second) = (graph.turn(), graph.turn());
        assert_eq!(graph.begin_in_turn(first, &[C], &[ROOT]), Begun::Wait);
        assert_eq!(graph.begin_in_turn(second, &[B], &[C, ROOT]), Begun::Wait);
        // A rename of unrelated directories goes on.
        let third = graph.turn();
        let other = granted(graph.begin_in_turn(third, &[D], &[ROOT]));
        graph.end(other);
        graph.end(below);
        assert_eq!(graph.begin_in_turn(second, &[B], &[C, ROOT]), Begun::Wait);
        let moved = granted(graph.begin_in_turn(first, &[C], &[ROOT]));
        assert_eq!(graph.begin_in_turn(second, &[B], &[C, ROOT]), Begun::Wait);
        graph.end(moved);
        granted(graph.begin_in_turn(second, &[B], &[C, ROOT]));
    }

    #[test]
    fn who_has_waited_longest_waits_for_nobody_who_waits() {
        let mut graph = Graph::default();
        let (first, second) = (graph.turn(), graph.turn());
        let below = granted(graph.begin(&[C, D], &[A, B]));
        assert_eq!(graph.begin_in_turn(second, &[B], &[A]), Begun::Wait);
        assert_eq!(graph.begin_in_turn(first, &[A], &[B]), Begun::Wait);
        graph.end(below);
        assert_eq!(graph.begin_in_turn(second, &[B], &[A]), Begun::Wait);
        let moved = granted(graph.begin_in_turn(first, &[A], &[B]));
        graph.end(moved);
        granted(graph.begin_in_turn(second, &[B], &[A]));
    }

    #[test]
    fn who_gives_up_keeps_nobody_waiting() {
        let mut graph = Graph::default();
        granted(graph.begin(&[A], &[C, ROOT]));
        let (first, second) = (graph.turn(), graph.turn());
        assert_eq!(graph.begin_in_turn(first, &[C], &[]), Begun::Wait);
        assert_eq!(graph.begin_in_turn(second, &[B], &[C]), Begun::Wait);
        graph.leave(first);
        granted(graph.begin_in_turn(second, &[B], &[C]));
    }

    #[test]
    fn one_directory_is_moved_by_one_rename() {
        let mut graph = Graph::default();
        granted(graph.begin(&[A, B], &[C, D, ROOT]));
        assert_eq!(graph.begin(&[A], &[ROOT]), Begun::Wait);
        assert_eq!(graph.begin(&[B], &[]), Begun::Wait);
    }

    #[test]
    fn what_has_ended_leaves_nothing_and_ends_once() {
        let mut graph = Graph::default();
        let token = granted(graph.begin(&[A], &[B, B, ROOT]));
        graph.end(token);
        graph.end(token);
        assert!(graph.flights.is_empty() && graph.moved.is_empty() && graph.above.is_empty());
    }
}
