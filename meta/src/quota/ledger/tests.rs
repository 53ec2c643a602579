//! The ledger with its servers, and messages between them that come late, in any order, or never.

use base::{DirId, Ino, ShardId};
use proptest::{collection::vec, prelude::*};
use store::MemoryEngine;
use wire::GiveRoom;

use super::*;
use crate::{
    bugs::Planted,
    quota::{Limits, Quotas, grant::NeedsGrant},
    record::{Accounts, QuotaId, QuotaState},
};

const SERVERS: u16 = 3;
const LIMIT: i64 = 40;

fn root() -> QuotaId {
    QuotaId(Ino::new(ShardId(1), 7))
}

fn record() -> QuotaRecord {
    QuotaRecord {
        state: QuotaState::Active,
        dir: DirId(7),
        home: DirId(7),
        parent: Ino(0),
        bytes_max: Some(crate::record::UNLIMITED),
        entries_max: Some(LIMIT.unsigned_abs()),
    }
}

fn entries(count: i64) -> Usage {
    Usage::of(count, 0)
}

/// A message on its way.
#[derive(Debug, Clone, Copy)]
enum Message {
    Asks(u16, AskRoom),
    Allows(u16, Allowed),
    Give(u16, u64),
    Gave(u16, u64, Usage),
}

/// A round that is under way.
struct Round {
    number: u64,
    /// Usage of all servers when the round began.
    used: i64,
    said: Vec<(u16, Usage)>,
    waits_for: Vec<u16>,
}

struct Model {
    bugs: Planted,
    servers: Vec<Quotas>,
    ledger: Ledger,
    rounds: u64,
    under_way: Option<Round>,
    /// Usage when the last round began, if all servers have said what they use.
    known: Option<i64>,
    /// Questions that the coordinator has, each with the last round at its arrival.
    waiting: Vec<(u16, AskRoom, u64)>,
    messages: Vec<Message>,
    refused: u64,
}

impl Model {
    fn new(bugs: Planted) -> Model {
        Model {
            bugs,
            servers: (0..SERVERS).map(|_| Model::server(0)).collect(),
            ledger: Ledger::new(SERVERS, record(), 0),
            rounds: 0,
            under_way: None,
            known: None,
            waiting: Vec::new(),
            messages: Vec::new(),
            refused: 0,
        }
    }

    fn server(used: i64) -> Quotas {
        let quotas = Quotas::load(&MemoryEngine::new(), true).unwrap();
        quotas.put(root(), Some(record()));
        quotas.charge(Accounts::root(root()), entries(used), Limits::Pass, &[]).unwrap();
        quotas
    }

    fn used_by(&self, server: u16) -> i64 {
        self.servers[usize::from(server)].told(root()).usage.entries
    }

    fn used(&self) -> i64 {
        (0..SERVERS).map(|server| self.used_by(server)).sum()
    }

    /// Charges, or asks for room; `true` if it charged.
    fn charge(&mut self, server: u16, more: i64) -> bool {
        let quotas = &self.servers[usize::from(server)];
        let Err(short) = quotas.charge(Accounts::root(root()), entries(more), Limits::Hold, &[])
        else {
            return true;
        };
        assert_eq!(short, NeedsGrant { root: root(), more: entries(more) });
        let ask = quotas.wants(short).expect("there was no room");
        self.messages.push(Message::Asks(server, ask));
        false
    }

    fn release(&mut self, server: u16, less: i64) {
        // The server that releases usage need not have charged it, but some server must have.
        if less <= self.used() {
            let quotas = &self.servers[usize::from(server)];
            quotas
                .charge(Accounts::root(root()), entries(less).minus(), Limits::Hold, &[])
                .unwrap();
        }
    }

    fn deliver(&mut self, index: usize) {
        if self.messages.is_empty() {
            return;
        }
        match self.messages.swap_remove(index % self.messages.len()) {
            Message::Asks(from, ask) => self.waiting.push((from, ask, self.ledger.round())),
            Message::Allows(to, allowed) => self.servers[usize::from(to)].allow(root(), allowed),
            Message::Give(to, round) => {
                let give = GiveRoom { root: root().0, round };
                let gave = self.servers[usize::from(to)].give(&give, self.bugs);
                self.messages.push(Message::Gave(to, round, gave.used.into()));
            }
            Message::Gave(from, round, used) => self.gave(from, round, Some(used)),
        }
        self.answer();
    }

    /// Loses a message. The coordinator waits for its answer no more; a lost question may still
    /// arrive.
    fn lose(&mut self, index: usize) {
        if self.messages.is_empty() {
            return;
        }
        let index = index % self.messages.len();
        match self.messages[index] {
            Message::Give(to, round) => self.gave(to, round, None),
            Message::Gave(from, round, _) => {
                self.messages.swap_remove(index);
                self.gave(from, round, None);
            }
            Message::Asks(..) | Message::Allows(..) => drop(self.messages.swap_remove(index)),
        }
        self.answer();
    }

    fn gave(&mut self, from: u16, round: u64, used: Option<Usage>) {
        let Some(under_way) = self.under_way.as_mut().filter(|now| now.number == round) else {
            return;
        };
        if !under_way.waits_for.contains(&from) {
            return;
        }
        under_way.waits_for.retain(|server| *server != from);
        under_way.said.extend(used.map(|used| (from, used)));
        if under_way.waits_for.is_empty() {
            let Round { number, used, said, .. } = self.under_way.take().unwrap();
            self.known = (said.len() == usize::from(SERVERS)).then_some(used);
            self.ledger.end(number, &said, false);
        }
    }

    /// The coordinator answers all questions that it can.
    fn answer(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|(from, ask, then)| match self.ledger.ask(*from, ask, *then) {
            Next::Wait => true,
            Next::Gather => {
                self.rounds += 1;
                let number = self.rounds;
                self.ledger.begin(number);
                let waits_for: Vec<u16> = (0..SERVERS).collect();
                self.messages.extend(waits_for.iter().map(|to| Message::Give(*to, number)));
                let used = self.used();
                self.under_way = Some(Round { number, used, said: Vec::new(), waits_for });
                true
            }
            Next::Answer(Room::Allowed(allowed)) => {
                self.messages.push(Message::Allows(*from, allowed));
                false
            }
            Next::Answer(Room::Full) => {
                self.refused += 1;
                if let Some(used) = self.known {
                    let more = Usage::from(ask.more).entries;
                    assert!(used + more > LIMIT, "{more} were refused, though {used} were used");
                }
                false
            }
            Next::Answer(Room::Unknown) => false,
        });
        self.waiting = waiting;
    }

    fn restart_server(&mut self, server: u16) {
        let used = self.used_by(server);
        self.servers[usize::from(server)] = Model::server(used);
        // Messages to and from the server of before the restart are dropped.
        self.messages.retain(|message| match message {
            Message::Asks(of, _)
            | Message::Allows(of, _)
            | Message::Give(of, _)
            | Message::Gave(of, ..) => *of != server,
        });
        if let Some(round) = self.under_way.as_ref().map(|round| round.number) {
            self.gave(server, round, None);
            self.answer();
        }
    }

    /// Restarts the coordinator. Messages that it has sent may still arrive.
    fn restart_coordinator(&mut self) {
        self.ledger = Ledger::new(SERVERS, record(), 0);
        (self.under_way, self.known) = (None, None);
        self.waiting.clear();
        let to_it = |message: &Message| matches!(message, Message::Asks(..) | Message::Gave(..));
        self.messages.retain(|message| !to_it(message));
    }

    fn settle(&mut self) {
        while !self.messages.is_empty() {
            self.deliver(0);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Charge(u16, i64),
    Release(u16, i64),
    Deliver(usize),
    Lose(usize),
    RestartServer(u16),
    RestartCoordinator,
}

fn step() -> BoxedStrategy<Step> {
    let (server, amount) = (0..SERVERS, 1..6_i64);
    prop_oneof![
        10 => (server.clone(), amount.clone()).prop_map(|(at, more)| Step::Charge(at, more)),
        3 => (server.clone(), amount).prop_map(|(at, less)| Step::Release(at, less)),
        30 => any::<usize>().prop_map(Step::Deliver),
        2 => any::<usize>().prop_map(Step::Lose),
        1 => server.prop_map(Step::RestartServer),
        1 => Just(Step::RestartCoordinator),
    ]
    .boxed()
}

/// Whether the servers came to use more than the limit.
fn exceeds(model: &mut Model, steps: &[Step]) -> bool {
    steps.iter().any(|step| {
        match step {
            Step::Charge(server, more) => drop(model.charge(*server, *more)),
            Step::Release(server, less) => model.release(*server, *less),
            Step::Deliver(index) => model.deliver(*index),
            Step::Lose(index) => model.lose(*index),
            Step::RestartServer(server) => model.restart_server(*server),
            Step::RestartCoordinator => model.restart_coordinator(),
        }
        model.used() > LIMIT
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn never_is_more_used_than_may_be_and_in_the_end_all_of_it_can_be(steps in vec(step(), 1..300)) {
        let mut model = Model::new(Planted::default());
        prop_assert!(!exceeds(&mut model, &steps));
        model.settle();
        for server in 0..SERVERS {
            let full = model.refused;
            while model.refused == full {
                model.charge(server, 1);
                model.settle();
                prop_assert!(model.used() <= LIMIT);
            }
            prop_assert_eq!(model.used(), LIMIT);
        }
    }
}

#[test]
#[cfg(feature = "bugs")]
fn who_keeps_what_it_has_given_back_is_found() {
    use proptest::{strategy::ValueTree as _, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let bugs = Planted { bug: Some(crate::bugs::Bug::AllowanceKept) };
    let found = (0..500).any(|_| {
        let steps: Vec<Step> = vec(step(), 300).new_tree(&mut runner).unwrap().current();
        exceeds(&mut Model::new(bugs), &steps)
    });
    assert!(found, "it does not find a fault that was planted");
}

#[test]
fn a_server_gets_more_than_it_asks_for_while_there_is_much_left() {
    let mut model = Model::new(Planted::default());
    assert!(!model.charge(0, 1));
    model.settle();
    // Two rounds and one answer later.
    assert!(model.charge(0, 1));
    let spare = (LIMIT - 1) / i64::from(SERVERS) / SPARE_PART;
    assert!(model.charge(0, spare) && !model.charge(0, 1));
}

#[test]
fn of_two_limits_only_those_that_are_there_are_looked_at() {
    let mut ledger = Ledger::new(1, record(), 0);
    ledger.begin(1);
    ledger.end(1, &[(0, entries(2))], false);
    let used = Usage { bytes: i64::MAX - 1, entries: 2 }.into();
    let ask = AskRoom { root: root().0, round: 1, used, more: Usage::of(1, 1 << 50).into() };
    let Next::Answer(Room::Allowed(allowed)) = ledger.ask(0, &ask, 1) else { panic!("no room") };
    assert_eq!((allowed.amounts.bytes, allowed.amounts.entries), (i64::MAX, 3 + 37 / 2));
}

#[test]
fn nobody_is_refused_for_what_a_server_took_that_was_silent_before() {
    let mut ledger = Ledger::new(2, record(), 0);
    let ask = |round, used| {
        let (used, more) = (entries(used).into(), entries(5).into());
        AskRoom { root: root().0, round, used, more }
    };
    ledger.begin(1);
    ledger.end(1, &[(0, entries(10))], false);
    // Server 1 still has what it was allowed before, and takes what server 0 releases in the middle
    // of the round: 30 of both are used at any moment.
    ledger.begin(2);
    ledger.end(2, &[(0, entries(10)), (1, entries(30))], false);
    assert_eq!(ledger.ask(0, &ask(2, 10), 1), Next::Gather);
    ledger.begin(3);
    ledger.end(3, &[(0, entries(5)), (1, entries(30))], false);
    let Next::Answer(Room::Allowed(_)) = ledger.ask(0, &ask(3, 5), 2) else { panic!("no room") };
    // A server that stays silent is not waited for.
    ledger.begin(4);
    ledger.end(4, &[(0, entries(10))], false);
    ledger.begin(5);
    ledger.end(5, &[(0, entries(10))], false);
    assert_eq!(ledger.ask(0, &ask(5, 10), 4), Next::Answer(Room::Full));
}

#[test]
fn a_server_that_is_back_is_asked_once_more_while_another_one_stays_away() {
    let mut ledger = Ledger::new(3, record(), 0);
    ledger.begin(1);
    ledger.end(1, &[(0, entries(10)), (1, entries(25)), (2, entries(0))], false);
    ledger.begin(2);
    ledger.end(2, &[(0, entries(10))], false);
    // Server 1 has taken what server 0 releases in the middle of this round.
    ledger.begin(3);
    ledger.end(3, &[(0, entries(10)), (1, entries(30))], false);
    let (used, more) = (entries(10).into(), entries(5).into());
    let ask = AskRoom { root: root().0, round: 3, used, more };
    assert_eq!(ledger.ask(0, &ask, 2), Next::Gather);
}

#[test]
fn nobody_is_refused_while_a_server_has_not_heard_of_all_roots() {
    let mut ledger = Ledger::new(1, record(), 0);
    let used = entries(LIMIT);
    let ask = AskRoom { root: root().0, round: 2, used: used.into(), more: entries(1).into() };
    for (behind, answer) in [(true, Room::Unknown), (false, Room::Full)] {
        for round in [1, 2] {
            ledger.begin(round);
            ledger.end(round, &[(0, used)], behind);
        }
        assert_eq!(ledger.ask(0, &ask, 0), Next::Answer(answer));
    }
}
