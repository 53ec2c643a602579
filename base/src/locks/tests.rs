//! The lock table, by its rules and against a map of single bytes.

use std::{cell::Cell, collections::BTreeMap};

use super::*;
use crate::{HashKey, Ino, limits};

thread_local! {
    /// Number of places where locks are kept that were looked at.
    pub(super) static LOOKS: Cell<u64> = const { Cell::new(0) };
}

const FILE: (Ino, LockKind) = (Ino(5), LockKind::Range);
const OTHER: (Ino, LockKind) = (Ino(6), LockKind::Range);
const WHOLE: (Ino, LockKind) = (Ino(5), LockKind::Whole);

fn owner(owner: u64) -> LockOwner {
    LockOwner { session: SessionId(owner / 10), owner }
}

fn lock(who: u64, first: u64, last: u64, mode: LockMode) -> LockHeld {
    let pid = u32::try_from(who).unwrap();
    LockHeld { owner: owner(who), pid, range: ByteRange { first, last }, mode }
}

fn shared(who: u64, first: u64, last: u64) -> LockHeld {
    lock(who, first, last, LockMode::Shared)
}

fn exclusive(who: u64, first: u64, last: u64) -> LockHeld {
    lock(who, first, last, LockMode::Exclusive)
}

fn number(who: u64, number: u64) -> LockWait {
    LockWait { session: owner(who).session, number }
}

fn table() -> LockTable {
    LockTable::new(1000)
}

fn queue(table: &mut LockTable, file: (Ino, LockKind), asked: LockHeld, wait: u64) -> LockWait {
    let wait = number(asked.owner.owner, wait);
    assert_eq!(table.take_or_wait(file, asked, wait), Ok((Waiting::Queued, vec![])));
    table.check();
    wait
}

fn give_back(table: &mut LockTable, file: (Ino, LockKind), who: u64) -> Vec<LockWait> {
    let granted = table.give_back(file, owner(who), ByteRange::ALL).unwrap();
    table.check();
    granted
}

#[test]
fn locks_that_share_share_and_others_do_not() {
    let mut table = table();
    assert_eq!(table.take(FILE, shared(10, 0, 9)), Ok(vec![]));
    assert_eq!(table.take(FILE, shared(20, 5, 15)), Ok(vec![]));
    assert_eq!(table.take(FILE, exclusive(10, 0, 9)), Err(LockDenied::Held));
    assert_eq!(table.take(FILE, exclusive(10, 0, 4)), Ok(vec![]));
    assert_eq!(table.conflict(FILE, shared(20, 0, 100)), Some(exclusive(10, 0, 4)));
    assert_eq!(table.conflict(FILE, shared(10, 0, 100)), None);
    table.check();
}

#[test]
fn the_two_families_and_two_files_do_not_meet() {
    let mut table = table();
    table.take(FILE, exclusive(10, 0, ByteRange::END)).unwrap();
    table.take(WHOLE, exclusive(20, 0, ByteRange::END)).unwrap();
    table.take(OTHER, exclusive(30, 0, ByteRange::END)).unwrap();
    table.check();
}

#[test]
fn giving_back_the_middle_leaves_both_ends() {
    let mut table = table();
    table.take(FILE, exclusive(10, 0, 99)).unwrap();
    table.give_back(FILE, owner(10), ByteRange { first: 40, last: 59 }).unwrap();
    assert_eq!(table.count(owner(10).session), 2);
    assert_eq!(table.take(FILE, exclusive(20, 40, 59)), Ok(vec![]));
    assert_eq!(table.conflict(FILE, shared(30, 45, 99)), Some(exclusive(20, 40, 59)));
    give_back(&mut table, FILE, 20);
    table.take(FILE, exclusive(10, 40, 59)).unwrap();
    assert_eq!(table.count(owner(10).session), 1, "neighbours of one mode are one");
}

#[test]
fn who_waits_goes_on_when_the_lock_is_free_in_the_order_of_asking() {
    let mut table = table();
    table.take(FILE, exclusive(10, 0, 9)).unwrap();
    let one = queue(&mut table, FILE, exclusive(20, 0, 4), 1);
    let two = queue(&mut table, FILE, exclusive(30, 0, 4), 1);
    let three = queue(&mut table, FILE, exclusive(40, 5, 9), 1);
    assert_eq!(give_back(&mut table, FILE, 10), [one, three]);
    assert_eq!(give_back(&mut table, FILE, 20), [two]);
}

#[test]
fn those_who_share_do_not_pass_an_earlier_one_who_does_not() {
    let mut table = table();
    table.take(FILE, shared(10, 0, 9)).unwrap();
    let writer = queue(&mut table, FILE, exclusive(20, 0, 9), 1);
    let reader = queue(&mut table, FILE, shared(30, 0, 9), 1);
    assert_eq!(give_back(&mut table, FILE, 10), [writer]);
    assert_eq!(give_back(&mut table, FILE, 20), [reader]);
}

#[test]
fn a_process_that_holds_something_passes_where_only_fairness_would_stop_it() {
    let mut table = table();
    table.take(FILE, shared(10, 0, 9)).unwrap();
    table.take(OTHER, shared(30, 0, 9)).unwrap();
    queue(&mut table, FILE, exclusive(20, 0, 9), 1);
    let granted = table.take_or_wait(FILE, shared(30, 0, 9), number(30, 1));
    assert_eq!(granted, Ok((Waiting::Granted, vec![])));
    table.check();
}

#[test]
fn to_share_what_was_exclusive_lets_others_in() {
    let mut table = table();
    table.take(FILE, exclusive(10, 0, 9)).unwrap();
    let one = queue(&mut table, FILE, shared(20, 0, 9), 1);
    let two = queue(&mut table, FILE, shared(30, 0, 9), 1);
    assert_eq!(table.take(FILE, shared(10, 0, 9)), Ok(vec![one, two]));
    table.check();
}

#[test]
fn two_who_share_a_whole_file_and_want_it_alone_do_not_wait_for_each_other() {
    let mut table = table();
    table.take(WHOLE, shared(10, 0, ByteRange::END)).unwrap();
    table.take(WHOLE, shared(20, 0, ByteRange::END)).unwrap();
    let [one, other] = [10, 20].map(|who| exclusive(who, 0, ByteRange::END));
    assert_eq!(table.give_up_mode(WHOLE, one), []);
    let waits = queue(&mut table, WHOLE, one, 1);
    assert_eq!(table.give_up_mode(WHOLE, other), [waits]);
    let waits = queue(&mut table, WHOLE, other, 1);
    assert_eq!(give_back(&mut table, WHOLE, 10), [waits]);
    assert_eq!(table.give_up_mode(WHOLE, other), [], "it has this mode already");
}

#[test]
fn to_wait_for_oneself_is_refused() {
    let mut table = table();
    table.take(FILE, exclusive(10, 0, 0)).unwrap();
    table.take(FILE, exclusive(20, 1, 1)).unwrap();
    table.take(OTHER, exclusive(30, 0, 0)).unwrap();
    queue(&mut table, FILE, exclusive(10, 1, 1), 1);
    queue(&mut table, OTHER, exclusive(20, 0, 0), 1);
    let around = table.take_or_wait(FILE, shared(30, 0, 0), number(30, 1));
    assert_eq!(around, Err(LockDenied::Deadlock));
    let two = table.take_or_wait(FILE, shared(20, 0, 0), number(20, 2));
    assert_eq!(two, Err(LockDenied::Deadlock));
    table.check();
    // Two owners share the lock, and both want it alone.
    let mut table = self::table();
    table.take(FILE, shared(10, 0, 9)).unwrap();
    table.take(FILE, shared(20, 0, 9)).unwrap();
    queue(&mut table, FILE, exclusive(10, 0, 9), 1);
    let other = table.take_or_wait(FILE, exclusive(20, 0, 9), number(20, 1));
    assert_eq!(other, Err(LockDenied::Deadlock));
}

#[test]
fn asking_again_keeps_the_place_and_cancelling_gives_it_up() {
    let mut table = table();
    table.take(FILE, shared(10, 0, 9)).unwrap();
    let writer = queue(&mut table, FILE, exclusive(20, 0, 9), 1);
    let reader = queue(&mut table, FILE, shared(30, 0, 9), 1);
    assert_eq!(queue(&mut table, FILE, exclusive(20, 0, 9), 1), writer);
    assert_eq!(table.cancel(writer), Some(vec![reader]));
    assert_eq!(table.cancel(writer), None);
    table.check();
}

#[test]
fn the_end_of_a_session_and_a_close_let_others_in() {
    let mut table = table();
    table.take(FILE, exclusive(10, 0, 9)).unwrap();
    table.take(WHOLE, exclusive(11, 0, ByteRange::END)).unwrap();
    table.take(OTHER, exclusive(10, 0, 9)).unwrap();
    let one = queue(&mut table, FILE, exclusive(20, 0, 9), 1);
    let two = queue(&mut table, WHOLE, exclusive(20, 0, ByteRange::END), 2);
    let three = queue(&mut table, OTHER, exclusive(20, 0, 9), 3);
    assert_eq!(table.close(SessionId(1), Ino(5)), [one, two]);
    table.check();
    assert_eq!(table.end_session(SessionId(1)), [three]);
    table.check();
    table.end_session(SessionId(2));
    assert_eq!(table.totals(), (0, 0, 0), "nothing is left behind");
}

#[test]
fn a_session_has_no_more_locks_than_it_may() {
    let mut table = LockTable::new(3);
    table.take(OTHER, exclusive(20, 0, 9)).unwrap();
    table.take(FILE, exclusive(10, 0, 9)).unwrap();
    table.take(FILE, exclusive(10, 20, 29)).unwrap();
    queue(&mut table, OTHER, exclusive(11, 0, 9), 1);
    assert_eq!(table.take(FILE, exclusive(10, 40, 49)), Err(LockDenied::TooMany));
    let middle = ByteRange { first: 3, last: 3 };
    assert_eq!(table.give_back(FILE, owner(10), middle), Err(LockDenied::TooMany));
    assert_eq!(give_back(&mut table, FILE, 10), []);
    assert_eq!(table.take(FILE, exclusive(10, 40, 49)), Ok(vec![]));
    table.check();
}

#[test]
fn a_session_has_65_536_locks_and_no_more() {
    let mut table = LockTable::new(limits::LOCKS_A_SESSION_MAX);
    for ino in 0..65_536 {
        table.take((Ino(ino), LockKind::Range), exclusive(10, 0, 9)).unwrap();
    }
    assert_eq!(table.take(FILE, exclusive(10, 20, 29)), Err(LockDenied::TooMany));
    assert_eq!(table.take(FILE, exclusive(20, 20, 29)), Ok(vec![]));
}

/// How many places a step looks at.
fn looks(step: impl FnOnce()) -> u64 {
    LOOKS.set(0);
    step();
    LOOKS.get()
}

#[test]
fn a_lock_costs_no_more_where_its_owner_has_many_of_the_file() {
    let mut table = LockTable::new(limits::LOCKS_A_SESSION_MAX);
    let lengths = [1, 10, 100];
    let at = |index: u64| {
        let first = 1000 * index;
        exclusive(10 + index % 4, first, first + lengths[usize::try_from(index % 3).unwrap()] - 1)
    };
    let mut most = 0;
    for index in 0..65_536 {
        most = most.max(looks(|| drop(table.take(FILE, at(index)).unwrap())));
    }
    assert_eq!(table.count(SessionId(1)), 65_536);
    // Others ask in between, wait, and give up.
    for index in (0..65_536).step_by(1000) {
        let range = at(index).range;
        let other = exclusive(20, range.first, range.first);
        most = most.max(looks(|| assert!(table.conflict(FILE, other).is_some())));
        let wait = number(20, index);
        most = most.max(looks(|| {
            assert_eq!(table.take_or_wait(FILE, other, wait), Ok((Waiting::Queued, vec![])));
        }));
        most = most.max(looks(|| assert_eq!(table.cancel(wait), Some(vec![]))));
    }
    for index in 0..65_536 {
        let lock = at(index);
        most = most.max(looks(|| drop(table.give_back(FILE, lock.owner, lock.range).unwrap())));
    }
    assert_eq!(table.totals(), (0, 0, 0));
    assert!(most <= 50, "{most} places were looked at");
}

#[test]
fn those_who_wait_cost_no_more_where_many_do() {
    let mut table = LockTable::new(limits::LOCKS_A_SESSION_MAX);
    table.take(FILE, exclusive(10, 0, 9)).unwrap();
    for wait in 0..10_000 {
        let owner = LockOwner { session: SessionId(2), owner: wait };
        let asked = LockHeld { owner, ..exclusive(20, 0, 9) };
        let asking = || {
            let queued = table.take_or_wait(FILE, asked, number(20, wait));
            assert_eq!(queued, Ok((Waiting::Queued, vec![])));
        };
        let looked_at = looks(asking);
        assert!(looked_at <= 20, "{looked_at} places were looked at");
    }
    assert_eq!(table.count(SessionId(2)), 10_000);
    assert_eq!(table.end_session(SessionId(1)), [number(20, 0)]);
    assert_eq!(table.end_session(SessionId(2)), []);
    assert_eq!(table.totals(), (0, 0, 0));
}

#[test]
fn those_who_share_cost_no_more_where_many_do() {
    let mut table = LockTable::new(limits::LOCKS_A_SESSION_MAX);
    table.take(FILE, exclusive(10, 0, 9)).unwrap();
    let reader = |owner| {
        let owner = LockOwner { session: SessionId(2), owner };
        LockHeld { owner, ..shared(20, 0, 9) }
    };
    for wait in 0..10_000 {
        let queued = table.take_or_wait(FILE, reader(wait), number(20, wait));
        assert_eq!(queued, Ok((Waiting::Queued, vec![])));
    }
    let mut granted = vec![];
    let looked_at = looks(|| granted = table.end_session(SessionId(1)));
    assert_eq!(granted, Vec::from_iter((0..10_000).map(|wait| number(20, wait))));
    assert!(looked_at <= 20 * 10_000, "{looked_at} places were looked at");
    for owner in 10_000..20_000 {
        let looked_at = looks(|| drop(table.take(FILE, reader(owner)).unwrap()));
        assert!(looked_at <= 20, "{looked_at} places were looked at");
    }
    assert_eq!(table.count(SessionId(2)), 20_000);
    assert_eq!(table.take(FILE, exclusive(30, 9, 9)), Err(LockDenied::Held));
}

/// A file as a map of bytes, with waiting requests in no order: the test compares which requests
/// may go on.
#[derive(Default)]
struct Bytes(BTreeMap<(u64, LockOwner), LockMode>);

impl Bytes {
    fn free_for(&self, asked: LockHeld) -> bool {
        self.0.iter().all(|((byte, owner), mode)| {
            *owner == asked.owner
                || *byte < asked.range.first
                || *byte > asked.range.last
                || (*mode == LockMode::Shared && asked.mode == LockMode::Shared)
        })
    }

    fn paint(&mut self, owner: LockOwner, range: ByteRange, mode: Option<LockMode>) {
        for byte in range.first..=range.last {
            match mode {
                Some(mode) => self.0.insert((byte, owner), mode),
                None => self.0.remove(&(byte, owner)),
            };
        }
    }
}

fn bytes_of(held: impl Iterator<Item = LockHeld>) -> BTreeMap<(u64, LockOwner), LockMode> {
    let byte = |held: LockHeld| {
        (held.range.first..=held.range.last).map(move |byte| ((byte, held.owner), held.mode))
    };
    held.flat_map(byte).collect()
}

#[test]
fn random_operations_leave_what_a_map_of_single_bytes_has() {
    let key = HashKey::new(3, 4);
    for seed in 0..60u64 {
        let mut table = table();
        let mut bytes = Bytes::default();
        let mut waiting: BTreeMap<LockWait, LockHeld> = BTreeMap::new();
        for step in 0..120u64 {
            let drawn = key.mac(&[seed, step]);
            let part = |shift: u32, below: u64| (drawn >> shift) % below;
            let who = 10 * (1 + part(0, 3)) + part(8, 2);
            let first = part(16, 12);
            let mode = if part(24, 2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let asked = lock(who, first, first + part(32, 6), mode);
            let wait = number(who, step);
            let granted = match part(40, 8) {
                0..=2 => {
                    let free = bytes.free_for(asked);
                    let taken = table.take(FILE, asked);
                    assert_eq!(taken.is_ok(), free, "seed {seed} step {step}");
                    if free {
                        bytes.paint(asked.owner, asked.range, Some(mode));
                    }
                    taken.unwrap_or_default()
                }
                3 | 4 => match table.take_or_wait(FILE, asked, wait) {
                    Ok((Waiting::Granted, others)) => {
                        assert!(bytes.free_for(asked), "seed {seed} step {step}");
                        bytes.paint(asked.owner, asked.range, Some(mode));
                        others
                    }
                    Ok((Waiting::Queued, others)) => {
                        waiting.insert(wait, asked);
                        others
                    }
                    Err(LockDenied::Deadlock) => {
                        assert!(!bytes.free_for(asked), "seed {seed} step {step}");
                        vec![]
                    }
                    Err(denied) => panic!("{denied:?}"),
                },
                5 | 6 => {
                    bytes.paint(asked.owner, asked.range, None);
                    table.give_back(FILE, asked.owner, asked.range).unwrap()
                }
                _ => match waiting.pop_first() {
                    Some((wait, _)) => table.cancel(wait).unwrap(),
                    None => vec![],
                },
            };
            for wait in granted {
                let asked = waiting.remove(&wait).expect("it waited");
                assert!(bytes.free_for(asked), "seed {seed} step {step}");
                bytes.paint(asked.owner, asked.range, Some(asked.mode));
            }
            table.check();
            let everything = (1..4).flat_map(|session| [10 * session, 10 * session + 1]);
            let held = everything.flat_map(|who| {
                let spy = LockOwner { session: SessionId(99), owner: who };
                let asked = LockHeld { owner: spy, ..exclusive(who, 0, 30) };
                let conflicts = table.conflicts_for_tests(FILE, asked);
                conflicts.into_iter().filter(move |held| held.owner == owner(who))
            });
            assert_eq!(bytes_of(held), bytes.0, "seed {seed} step {step}");
        }
        // No owner waits for ever: when all have given back their locks, all have gone on.
        while let Some(who) = [10, 11, 20, 21, 30, 31]
            .into_iter()
            .find(|who| bytes.0.keys().any(|(_, owner)| *owner == self::owner(*who)))
        {
            bytes.paint(owner(who), ByteRange { first: 0, last: 40 }, None);
            for wait in give_back(&mut table, FILE, who) {
                let asked = waiting.remove(&wait).expect("it waited");
                bytes.paint(asked.owner, asked.range, Some(asked.mode));
            }
        }
        assert!(waiting.is_empty(), "seed {seed}");
        assert_eq!(table.totals(), (0, 0, 0));
    }
}
