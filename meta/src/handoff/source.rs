//! The source's side: what to do next.
//!
//! Pure. Whoever drives it does one thing after the other, as it says, and tells how that ended. It
//! copies what is stored while everything goes on, then what was written meanwhile, round by round,
//! until little is left; only then are the moving names frozen, and only for the last round and the
//! switch. Where it is to be compared with, names are frozen before anything is copied
//! ([`Scan::Locked`]).
//!
//! Always true: nothing is asked of the target that it was not asked to begin; the switch is asked
//! for once, frozen, when the target has taken everything; who froze thaws.

use wire::Tally;

use super::Change;

/// Records in one message.
const RUN_RECORDS: usize = 1000;
/// When a round has no more than so many changes, the names are frozen.
const LITTLE: usize = 256;
/// When so many more come until they are, they thaw again.
const TOO_MANY: usize = 4 * LITTLE;
/// The target is asked so often before it is given up.
const ATTEMPTS: u32 = 8;
/// So often it is tried to freeze names of which some are prepared.
const HELD_MAX: u32 = 100;
/// After so many rounds without an end it is given up.
const ROUNDS: u32 = 1000;
/// Who writes moving names waits no longer than this.
const SLOW_MS_MAX: u32 = 16;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Tell the target what will come. Ends with `Taken`, `Refused` or `Lost`.
    Begin,
    /// Remember from now on which moving names change. Ends with `Watching`, or with `Refused`
    /// where they cannot be read.
    Watch,
    /// Read on in what is stored; it may have changed since. Ends with `Copied`.
    Copy { records_max: usize },
    /// Send this. The first number is 0; what is sent again has its number again. With `stable`, it
    /// is answered when it is on stable storage. Ends with `Taken`, `Refused` or `Lost`.
    Put { number: u64, changes: Vec<Change>, stable: bool },
    /// Take what was remembered, as it is now. Writers of moving names wait for so long each: 0
    /// mostly. Ends with `Collected`.
    Collect { slow_ms: u32 },
    /// Let nobody change moving names any more, and let those end who do; they are still read. Ends
    /// with `Frozen`, or with `Held` when a prepared transaction holds one of them: then nothing is
    /// frozen, and it is waited a little.
    Freeze,
    /// Commit: both layouts, both counts, and what is to be swept. Ends with `Switched`.
    Switch(Tally),
    /// Let everybody go on. Ends with `Thawed`.
    Thaw,
    /// It is over; whether the names have moved. The transaction ends with it.
    End(bool),
}

/// How that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The target has it; what it has of the handoff altogether.
    Taken(Tally),
    /// The target does not take it: it does not know of this handoff, or is not free for it.
    Refused,
    /// Nobody knows. It may be asked again.
    Lost,
    /// Changes are remembered.
    Watching,
    /// The next records that move, and whether there are no more.
    Copied(Vec<Change>, bool),
    /// What was remembered.
    Collected(Vec<Change>),
    /// Nobody changes moving names.
    Frozen,
    /// Somebody may still.
    Held,
    /// Whether it is committed.
    Switched(bool),
    /// Everybody goes on.
    Thawed,
}

/// When what is stored is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// While everything goes on.
    Open,
    /// While nobody changes any name of the partition: to compare with.
    Locked,
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Beginning,
    Watching,
    Copying,
    /// The same with names frozen.
    CopyingFrozen,
    /// The last page was sent, or a round.
    Catching,
    Freezing,
    Frozen,
    Switching,
    /// It thaws, and then goes on.
    Yielding,
    /// It thaws, and then ends.
    Ending(bool),
    Ended,
}

/// One handoff.
#[derive(Debug)]
pub(crate) struct Source {
    state: State,
    scan: Scan,
    /// The number of the next message.
    number: u64,
    /// What was sent, until it is taken.
    sent: Option<(Vec<Change>, bool)>,
    attempts: u32,
    /// What the target has.
    tally: Tally,
    /// There are no more pages.
    copied: bool,
    /// The latest round had little.
    little: bool,
    rounds: u32,
    /// So often the names could not be frozen.
    held: u32,
    slow_ms: u32,
    last_round: usize,
}

impl Source {
    /// A handoff begins.
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

    /// What was done has ended; what to do next.
    ///
    /// # Panics
    /// When it ended in a way that it cannot.
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
                    // What has changed is sent after what is copied, which may be older.
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
            // Who waits for frozen names does not wait for a target that is not there.
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

    /// Changes of the names while everything goes on. They are stable before the names are frozen,
    /// so that what is sent then has little to wait for.
    fn round(&mut self, changes: Vec<Change>) -> Action {
        self.rounds += 1;
        if self.rounds > ROUNDS {
            return self.end(false);
        }
        let len = changes.len();
        self.little = len <= LITTLE;
        // A round takes as long as it has changes: where they do not become fewer, writers are too
        // fast.
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

    /// A handoff of which everything was sent once.
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

    /// One whose names are frozen.
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
        // Who waits for frozen names does not wait for a target that is not there.
        let (mut source, _) = Source::begin(Scan::Locked);
        source.next(taken());
        source.next(Event::Watching);
        source.next(Event::Frozen);
        source.next(Event::Copied(changes(9), false));
        assert_eq!(source.next(Event::Lost), Action::Thaw);
        assert_eq!(source.next(Event::Thawed), Action::End(false));
    }
}
