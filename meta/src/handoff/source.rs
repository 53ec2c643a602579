//! The source's side: what to do next.
//!
//! Pure. The caller executes one action after the other and reports how each ended. The source
//! copies what is stored while requests go on, then sends what was written meanwhile, round by
//! round, until little is left. Only then are the moving names frozen, for the last round and the
//! switch. With [`Scan::Locked`], which is there for comparison, names are frozen before anything
//! is copied.
//!
//! Always true: the target is asked for nothing before it was asked to begin; the switch is asked
//! for once, with names frozen, when the target has taken everything; a source that froze names
//! thaws them.

use wire::Tally;

use super::Change;

/// Number of records in one message.
const RUN_RECORDS: usize = 1000;
/// A round of at most so many changes is followed by the freeze.
const LITTLE: usize = 256;
/// When more changes than this have come before the freeze, the names thaw again.
const TOO_MANY: usize = 4 * LITTLE;
/// Number of times that the target is asked before the handoff is given up.
const ATTEMPTS: u32 = 8;
/// Number of attempts to freeze names of which some are prepared.
const HELD_MAX: u32 = 100;
/// Number of rounds after which a handoff is given up.
const ROUNDS: u32 = 1000;
/// Longest wait imposed on a request that changes moving names.
const SLOW_MS_MAX: u32 = 16;

/// The next step of a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Tell the target what will come. Ends with `Taken`, `Refused` or `Lost`.
    Begin,
    /// Note from now on which moving names change. Ends with `Watching`, or with `Refused` where
    /// they cannot be read.
    Watch,
    /// Read on in what is stored, which may have changed since. Ends with `Copied`.
    Copy { records_max: usize },
    /// Send these changes. Messages are numbered from 0; a message that is sent again keeps its
    /// number. With `stable`, the answer comes when the changes are on stable storage. Ends with
    /// `Taken`, `Refused` or `Lost`.
    Put { number: u64, changes: Vec<Change>, stable: bool },
    /// Take the noted changes, with their present values. From now on each writer of moving names
    /// waits for `slow_ms`, which is mostly 0. Ends with `Collected`.
    Collect { slow_ms: u32 },
    /// Let nobody change moving names any more, and let present changes end; the names can still be
    /// read. Ends with `Frozen`, or with `Held` when a prepared transaction holds one of them. Then
    /// nothing is frozen, and the caller waits a little.
    Freeze,
    /// Commit both layouts, both counts, and the record of what is to be swept. Ends with
    /// `Switched`.
    Switch(Tally),
    /// Let writers of the moving names go on. Ends with `Thawed`.
    Thaw,
    /// The handoff and its transaction are over. The value says whether the names have moved.
    End(bool),
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The target has taken it. The tally counts all that it has of the handoff.
    Taken(Tally),
    /// The target does not take it: it does not know this handoff, or is not free for it.
    Refused,
    /// The answer was lost, so the outcome is unknown. The same may be asked again.
    Lost,
    /// Changes are noted from now on.
    Watching,
    /// The next records that move, and whether there are no more.
    Copied(Vec<Change>, bool),
    /// The noted changes.
    Collected(Vec<Change>),
    /// The names are frozen.
    Frozen,
    /// A prepared transaction holds some of the names, so nothing is frozen.
    Held,
    /// Whether the switch is committed.
    Switched(bool),
    /// The names are not frozen any more.
    Thawed,
}

/// When the source copies what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// While requests go on.
    Open,
    /// While all names of the partition are frozen, for comparison.
    Locked,
}

/// Where a handoff stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Beginning,
    Watching,
    Copying,
    /// Copying, with names frozen.
    CopyingFrozen,
    /// The last page was sent; rounds of changes follow.
    Catching,
    Freezing,
    Frozen,
    Switching,
    /// The names thaw, and then the handoff goes on.
    Yielding,
    /// The names thaw, and then the handoff ends.
    Ending(bool),
    Ended,
}

/// One handoff.
#[derive(Debug)]
pub(crate) struct Source {
    state: State,
    scan: Scan,
    /// Number of the next message.
    number: u64,
    /// The last message, its changes and its `stable`, until the target has taken it.
    sent: Option<(Vec<Change>, bool)>,
    attempts: u32,
    /// Counts of the records that the target has.
    tally: Tally,
    /// Whether all pages are copied.
    copied: bool,
    /// Whether the latest round had at most [`LITTLE`] changes.
    little: bool,
    rounds: u32,
    /// Number of attempts at freezing that failed.
    held: u32,
    slow_ms: u32,
    last_round: usize,
}

impl Source {
    /// Begins a handoff, and returns its first action.
    pub(crate) fn begin(scan: Scan) -> (Source, Action) {
        let source = Source {
            state: State::Beginning,
            scan,
            number: 0,
            sent: None,
            attempts: 0,
            tally: Tally::default(),
            copied: false,
            little: false,
            rounds: 0,
            held: 0,
            slow_ms: 0,
            last_round: usize::MAX,
        };
        (source, Action::Begin)
    }

    /// Takes how the last action ended, and returns the next action.
    ///
    /// # Panics
    /// When the action cannot end in this way.
    pub(crate) fn next(&mut self, event: Event) -> Action {
        match (self.state, event) {
            (State::Beginning, Event::Taken(_)) => self.go(State::Watching, Action::Watch),
            (State::Watching, Event::Watching) => match self.scan {
                Scan::Open => self.copy(State::Copying),
                Scan::Locked => self.go(State::Freezing, Action::Freeze),
            },
            (State::Copying | State::CopyingFrozen, Event::Copied(changes, end)) => {
                self.copied = end;
                self.put(changes, false)
            }
            (state @ (State::Copying | State::CopyingFrozen), Event::Taken(tally)) => {
                self.taken(tally);
                if !self.copied {
                    self.copy(state)
                } else if state == State::CopyingFrozen {
                    self.collect(State::Frozen)
                } else {
                    self.collect(State::Catching)
                }
            }
            (State::Catching, Event::Collected(changes)) => self.round(changes),
            (State::Catching, Event::Taken(tally)) => {
                self.taken(tally);
                if self.little {
                    self.go(State::Freezing, Action::Freeze)
                } else {
                    self.collect(State::Catching)
                }
            }
            (State::Freezing, Event::Frozen) if !self.copied => self.copy(State::CopyingFrozen),
            (State::Freezing, Event::Frozen) => self.collect(State::Frozen),
            (State::Freezing, Event::Held) => {
                self.held += 1;
                if self.held > HELD_MAX {
                    self.end(false)
                } else if self.copied {
                    self.collect(State::Catching)
                } else {
                    // A page that is copied later may be older than these changes, so none are sent
                    // yet.
                    self.go(State::Freezing, Action::Freeze)
                }
            }
            (State::Frozen, Event::Collected(changes)) if changes.is_empty() => self.switch(),
            (State::Frozen, Event::Collected(changes)) if changes.len() > TOO_MANY => {
                self.little = false;
                self.sent = Some((changes, true));
                self.go(State::Yielding, Action::Thaw)
            }
            (State::Frozen, Event::Collected(changes)) => self.put(changes, false),
            (State::Frozen, Event::Taken(tally)) => {
                self.taken(tally);
                self.switch()
            }
            (State::Yielding, Event::Thawed) => {
                let (changes, stable) = self.sent.take().expect("it was kept when it yielded");
                self.state = State::Catching;
                self.put(changes, stable)
            }
            (State::Switching, Event::Switched(committed)) => self.thaw_and_end(committed),
            (State::Ending(committed), Event::Thawed) => self.end(committed),
            // Requests that wait for frozen names do not also wait for a target that does not
            // answer.
            (State::Frozen | State::CopyingFrozen, Event::Refused | Event::Lost) => {
                self.thaw_and_end(false)
            }
            (State::Beginning | State::Copying | State::Catching, Event::Refused)
            | (State::Watching, Event::Refused | Event::Lost) => self.end(false),
            (State::Beginning | State::Copying | State::Catching, Event::Lost) => self.ask_again(),
            (state, event) => unreachable!("{event:?} in state {state:?}"),
        }
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        action
    }

    fn copy(&mut self, state: State) -> Action {
        self.go(state, Action::Copy { records_max: RUN_RECORDS })
    }

    fn collect(&mut self, state: State) -> Action {
        let slow_ms = if state == State::Frozen { 0 } else { self.slow_ms };
        self.go(state, Action::Collect { slow_ms })
    }

    fn put(&mut self, changes: Vec<Change>, stable: bool) -> Action {
        self.sent = Some((changes.clone(), stable));
        Action::Put { number: self.number, changes, stable }
    }

    fn taken(&mut self, tally: Tally) {
        self.tally = tally;
        self.sent = None;
        self.attempts = 0;
        self.number += 1;
    }

    /// Sends a round of changes while requests go on. The round is stable before the names are
    /// frozen, so that the last message has little to wait for.
    fn round(&mut self, changes: Vec<Change>) -> Action {
        self.rounds += 1;
        if self.rounds > ROUNDS {
            return self.end(false);
        }
        let len = changes.len();
        self.little = len <= LITTLE;
        // A round takes time in proportion to its changes. Where rounds do not shrink, writers are
        // too fast.
        self.slow_ms = match len {
            0..=LITTLE => 0,
            _ if len > self.last_round / 2 => (self.slow_ms * 2).clamp(1, SLOW_MS_MAX),
            _ => self.slow_ms,
        };
        self.last_round = len;
        self.put(changes, true)
    }

    fn switch(&mut self) -> Action {
        let tally = self.tally;
        self.go(State::Switching, Action::Switch(tally))
    }

    fn ask_again(&mut self) -> Action {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS {
            return self.end(false);
        }
        match &self.sent {
            Some((changes, stable)) => {
                Action::Put { number: self.number, changes: changes.clone(), stable: *stable }
            }
            None => Action::Begin,
        }
    }

    fn thaw_and_end(&mut self, committed: bool) -> Action {
        self.go(State::Ending(committed), Action::Thaw)
    }

    fn end(&mut self, committed: bool) -> Action {
        self.go(State::Ended, Action::End(committed))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn changes(count: usize) -> Vec<Change> {
        (0..count).map(|at| (Bytes::from(at.to_string()), None)).collect()
    }

    fn taken() -> Event {
        Event::Taken(Tally { entries: 5, subdirs: 1 })
    }

    /// A handoff that has sent all pages once.
    fn copied() -> Source {
        let (mut source, begin) = Source::begin(Scan::Open);
        assert_eq!(begin, Action::Begin);
        assert_eq!(source.next(taken()), Action::Watch);
        assert!(matches!(source.next(Event::Watching), Action::Copy { .. }));
        let put = source.next(Event::Copied(changes(9), true));
        assert_eq!(put, Action::Put { number: 0, changes: changes(9), stable: false });
        assert_eq!(source.next(taken()), Action::Collect { slow_ms: 0 });
        source
    }

    /// A handoff whose names are frozen.
    fn frozen() -> Source {
        let mut source = copied();
        let put = source.next(Event::Collected(changes(1)));
        assert_eq!(put, Action::Put { number: 1, changes: changes(1), stable: true });
        assert_eq!(source.next(taken()), Action::Freeze);
        assert_eq!(source.next(Event::Frozen), Action::Collect { slow_ms: 0 });
        source
    }

    #[test]
    fn names_are_frozen_only_when_little_is_left_and_nothing_is_sent_for_nothing() {
        let mut source = frozen();
        let switch = source.next(Event::Collected(Vec::new()));
        assert_eq!(switch, Action::Switch(Tally { entries: 5, subdirs: 1 }));
        assert_eq!(source.next(Event::Switched(true)), Action::Thaw);
        assert_eq!(source.next(Event::Thawed), Action::End(true));
    }

    #[test]
    fn writers_that_are_too_fast_are_slowed_until_they_are_not() {
        let mut source = copied();
        let mut slowed = Vec::new();
        for left in [5000, 5000, 5000, 1000] {
            assert!(matches!(source.next(Event::Collected(changes(left))), Action::Put { .. }));
            let Action::Collect { slow_ms } = source.next(taken()) else { panic!("much is left") };
            slowed.push(slow_ms);
        }
        assert_eq!(slowed, [0, 1, 2, 2]);
        assert!(matches!(source.next(Event::Collected(changes(LITTLE))), Action::Put { .. }));
        assert_eq!(source.next(taken()), Action::Freeze);
    }

    #[test]
    fn names_that_a_transaction_holds_are_frozen_later() {
        let mut source = copied();
        source.next(Event::Collected(Vec::new()));
        assert_eq!(source.next(taken()), Action::Freeze);
        for _ in 0..HELD_MAX {
            assert_eq!(source.next(Event::Held), Action::Collect { slow_ms: 0 });
            source.next(Event::Collected(Vec::new()));
            assert_eq!(source.next(taken()), Action::Freeze);
        }
        assert_eq!(source.next(Event::Held), Action::End(false), "and not for ever");
    }

    #[test]
    fn who_waits_for_frozen_names_does_not_wait_for_much() {
        let mut source = frozen();
        let much = changes(TOO_MANY + 1);
        assert_eq!(source.next(Event::Collected(much.clone())), Action::Thaw);
        let put = source.next(Event::Thawed);
        assert_eq!(put, Action::Put { number: 2, changes: much, stable: true }, "nothing is lost");
        assert!(matches!(source.next(taken()), Action::Collect { .. }));
        // Nor for a target that is not there.
        let mut source = frozen();
        assert!(matches!(source.next(Event::Collected(changes(2))), Action::Put { .. }));
        assert_eq!(source.next(Event::Lost), Action::Thaw);
        assert_eq!(source.next(Event::Thawed), Action::End(false));
    }

    #[test]
    fn a_target_that_does_not_answer_is_asked_the_same_again_and_then_given_up() {
        let mut source = copied();
        let put = source.next(Event::Collected(changes(3)));
        for _ in 1..ATTEMPTS {
            assert_eq!(source.next(Event::Lost), put);
        }
        assert_eq!(source.next(Event::Lost), Action::End(false));
        let (mut source, _) = Source::begin(Scan::Open);
        assert_eq!(source.next(Event::Lost), Action::Begin);
        assert_eq!(source.next(Event::Refused), Action::End(false));
    }

    #[test]
    fn a_locked_scan_copies_nothing_before_names_are_frozen() {
        let (mut source, _) = Source::begin(Scan::Locked);
        assert_eq!(source.next(taken()), Action::Watch);
        assert_eq!(source.next(Event::Watching), Action::Freeze);
        assert_eq!(source.next(Event::Held), Action::Freeze, "nothing is sent before");
        assert!(matches!(source.next(Event::Frozen), Action::Copy { .. }));
        source.next(Event::Copied(changes(9), false));
        assert!(matches!(source.next(taken()), Action::Copy { .. }));
        source.next(Event::Copied(changes(3), true));
        assert!(matches!(source.next(taken()), Action::Collect { .. }));
        assert!(matches!(source.next(Event::Collected(Vec::new())), Action::Switch(_)));
        // Requests that wait for frozen names do not also wait for a target that does not answer.
        let (mut source, _) = Source::begin(Scan::Locked);
        source.next(taken());
        source.next(Event::Watching);
        source.next(Event::Frozen);
        source.next(Event::Copied(changes(9), false));
        assert_eq!(source.next(Event::Lost), Action::Thaw);
        assert_eq!(source.next(Event::Thawed), Action::End(false));
    }
}
