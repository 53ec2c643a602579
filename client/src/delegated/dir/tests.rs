//! Tests of a held directory's queue.

use std::time::Duration;

use base::{DirId, FileKind};
use wire::InoRange;

use super::*;

fn held() -> HeldDir {
    let grant = Grant {
        inos: InoRange { first: Ino(100), count: 20 },
        now: Time::default(),
        lease_ms: 1000,
    };
    let dir = DirRef { id: DirId(7), ..DirRef::ROOT };
    let run = Run { server: 0, incarnation: 1, life: 0 };
    HeldDir::new(dir, Attr::blank(Ino(9), FileKind::Directory), Ino(1), &grant, run)
}

fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

fn update(state: &mut State, text: &str, ino: u64, due: Instant) -> usize {
    state.push(&name(text), What::Update(Ino(ino)), due, false)
}

/// The only change that may be sent now.
fn next(state: &mut State, now: Instant) -> Option<Op> {
    let mut taken = state.take_due(now);
    assert!(taken.len() <= 1, "{taken:?}");
    taken.pop()
}

fn unlink(state: &mut State, text: &str, due: Instant) {
    let what = What::Unlink { ino: Ino(1), cred: Cred::ROOT, at: Time::default() };
    state.push(&name(text), what, due, true);
}

fn is_idle(state: &mut State, text: &str, now: Instant) -> bool {
    state.hurry(Some(&[&name(text)]), u64::MAX, now)
}

#[tokio::test(start_paused = true)]
async fn changes_of_one_name_are_sent_in_order_and_others_meanwhile() {
    let (held, now) = (held(), Instant::now());
    let mut state = held.state.lock();
    assert_eq!(update(&mut state, "a", 1, now), 1);
    assert_eq!(update(&mut state, "a", 1, now), 0, "it says as much");
    unlink(&mut state, "a", now);
    assert_eq!(update(&mut state, "a", 2, now), 1, "another file");
    update(&mut state, "b", 3, now + Duration::from_secs(1));
    assert!(matches!(next(&mut state, now).unwrap().what, What::Update(Ino(1))));
    assert!(next(&mut state, now).is_none(), "a has one on its way, and b may wait");
    assert!(next(&mut state, now + Duration::from_secs(1)).is_some_and(|op| op.name == name("b")));
    state.done(&name("a"));
    assert!(matches!(next(&mut state, now).unwrap().what, What::Unlink { .. }));
    state.done(&name("a"));
    assert!(matches!(next(&mut state, now).unwrap().what, What::Update(Ino(2))));
    assert!(!state.is_idle() && !is_idle(&mut state, "a", now));
    state.done(&name("a"));
    assert!(is_idle(&mut state, "a", now) && !state.hurry(None, u64::MAX, now));
    assert!(state.hurry(None, 1, now), "what came later is not waited for");
    state.done(&name("b"));
    assert!(state.is_idle());
}

#[tokio::test(start_paused = true)]
async fn what_is_whole_goes_with_the_first_change_that_is_due() {
    let (held, now) = (held(), Instant::now());
    let mut state = held.state.lock();
    let at = |ms| now + Duration::from_millis(ms);
    update(&mut state, "a", 1, at(20));
    update(&mut state, "b", 2, at(21));
    unlink(&mut state, "c", at(22));
    update(&mut state, "d", 4, at(23));
    state.push(&name("d"), What::Update(Ino(4)), at(30), true);
    assert_eq!(state.next_due(now), Some(at(20)));
    assert!(state.take_due(at(19)).is_empty());
    state.gather(at(20));
    let sent: Vec<_> = state.take_due(at(20)).into_iter().map(|op| op.name).collect();
    assert_eq!(sent, [name("a"), name("c"), name("d")], "b may get more");
    assert_eq!(state.next_due(now), Some(at(21)));
}

#[tokio::test(start_paused = true)]
async fn what_is_made_and_removed_before_it_was_sent_is_never_sent() {
    let (held, now) = (held(), Instant::now());
    let mut state = held.state.lock();
    update(&mut state, "a", 1, now);
    assert_eq!(state.withdraw(&name("a"), Ino(1)), Some(1));
    assert!(state.is_idle());
    unlink(&mut state, "a", now);
    update(&mut state, "a", 2, now);
    assert_eq!(state.withdraw(&name("a"), Ino(2)), None, "the one before is still there");
    assert!(next(&mut state, now).is_some());
    assert_eq!(state.withdraw(&name("a"), Ino(2)), None);
}

#[tokio::test(start_paused = true)]
async fn times_of_the_directory_are_sent_after_what_came_before_and_before_what_came_after() {
    let (held, now) = (held(), Instant::now());
    let mut state = held.state.lock();
    let time = |sec| Some(SetTime::At(Time { sec, nsec: 0 }));
    let caller = Cred::ROOT;
    let set = |mtime| (SetAttr { mtime, ..SetAttr::default() }, &caller);
    let at = |sec| Time { sec, nsec: 0 };
    update(&mut state, "a", 1, now);
    assert_eq!(state.set_times(set(time(5)), at(100), now), Some(1));
    assert_eq!((state.attr.mtime, state.attr.ctime), (at(5), at(100)));
    assert!(!state.claim(&[&name("c")]) && !state.is_idle());
    // The change from before goes first, also if more of it comes.
    assert_eq!(update(&mut state, "a", 1, now), 0);
    assert!(state.times_must_wait());
    // One more name: it sets the times, too, and goes after them.
    update(&mut state, "b", 2, now);
    state.touch(1, 0, at(101));
    assert!(state.take_times(now).is_none(), "a is not sent");
    assert_eq!(next(&mut state, now).map(|op| op.name), Some(name("a")));
    assert!(state.take_times(now).is_none() && next(&mut state, now).is_none());
    assert_eq!(state.next_due(now), None, "a is on its way");
    state.done(&name("a"));
    assert_eq!(state.next_due(now), Some(now));
    let times = state.take_times(now).expect("they are due");
    assert_eq!((times.change.set.mtime, times.change.at), (time(101), at(101)));
    assert!(next(&mut state, now).is_none() && !state.hurry(None, u64::MAX, now));
    state.times_are_sent();
    assert_eq!(next(&mut state, now).map(|op| op.name), Some(name("b")));
    state.done(&name("b"));
    assert!(state.is_idle() && state.claim(&[&name("c")]));
    assert_eq!(state.set_times(set(time(6)), at(102), now), None, "c is being changed");
}

#[test]
fn numbers_are_asked_for_once_before_they_run_out() {
    let held = held();
    let mut state = held.state.lock();
    let taken: Vec<_> = (0..20).map(|_| state.take_ino()).collect();
    assert_eq!(taken.iter().filter(|(_, asks)| *asks).count(), 1);
    assert_eq!(taken.last().unwrap().0, Some(Ino(119)));
    assert_eq!(state.take_ino(), (None, false));
    state.give_inos(Some((Ino(500), 256)));
    assert_eq!(state.take_ino(), (Some(Ino(500)), false));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_file_waits_for_it_under_its_new_name_too() {
    let (held, now) = (held(), Instant::now());
    let mut state = held.state.lock();
    update(&mut state, "a", 1, now);
    update(&mut state, "b", 2, now);
    let upto = state.last();
    let number = state.first_of(&name("a")).unwrap();
    assert_eq!(state.withdraw(&name("a"), Ino(1)), Some(1));
    assert!(!state.is_wanted(&name("c")));
    update(&mut state, "c", 1, now);
    state.counts_as(&name("c"), number);
    assert!(state.is_wanted(&name("c")));
    for op in state.take_due(now) {
        assert!(!state.hurry(None, upto, now));
        state.done(&op.name);
    }
    assert!(state.hurry(None, upto, now));
}
