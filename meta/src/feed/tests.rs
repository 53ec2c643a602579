//! The numbers of changes, and what a feed forgets.

use base::DirId;
use store::MemoryEngine;

use super::*;

fn at(sec: i64) -> Time {
    Time { sec, nsec: 0 }
}

/// A feed that somebody watches, and that was stored.
fn feed(engine: &MemoryEngine) -> Feed {
    let stored = FeedState { run: 5, until: at(100), pruned: 0, count: 0, whole: begin_of(5) };
    let mut batch = Batch::new();
    batch.put(&key::feed(), &stored.to_record());
    engine.write(batch).unwrap();
    Feed::load(engine, at(10), Planted::default()).unwrap()
}

#[test]
fn changes_are_told_only_after_all_older_ones_are_written() {
    let feed = feed(&MemoryEngine::default());
    let begin = begin_of(10);
    assert_eq!(feed.told(), begin, "a run is numbered by the time of its start");
    assert_eq!((feed.number(0, 2), feed.number(1, 3)), (begin + 1, begin + 3));
    feed.written(1);
    assert_eq!(feed.told(), begin, "core 0 has not written its own yet");
    assert_eq!(feed.number(1, 1), begin + 6);
    feed.written(0);
    assert_eq!(feed.told(), begin + 5);
    feed.written(1);
    assert_eq!(feed.told(), begin + 6);
}

#[test]
fn a_position_reaches_as_far_as_changes_are_kept() {
    let engine = MemoryEngine::default();
    let feed = feed(&engine);
    let begin = begin_of(10);
    feed.number(0, 4);
    feed.written(0);
    assert_eq!(feed.reach(begin), Reach::Whole);
    assert_eq!(feed.reach(begin + 4), Reach::Whole);
    assert_eq!(feed.reach(begin + 5), Reach::Gap, "nobody was told of so much");
    // Of an earlier run: the change with that number must be there, or the power has failed.
    assert_eq!(feed.reach(begin_of(9)), Reach::Whole);
    assert_eq!(feed.reach(begin_of(9) + 7), Reach::IfKept);
    feed.state.lock().stored.pruned = begin + 2;
    assert_eq!(feed.reach(begin + 1), Reach::Gap);
    assert_eq!(feed.reach(begin + 2), Reach::Whole);
    assert_eq!(feed.reach(begin_of(9)), Reach::Gap);
}

#[test]
fn a_run_has_a_greater_number_than_all_before() {
    let engine = MemoryEngine::default();
    assert!(feed(&engine).is_on());
    for (now, run) in [(20, 20), (15, 21), (15, 22)] {
        let feed = Feed::load(&engine, at(now), Planted::default()).unwrap();
        assert_eq!((feed.is_on(), feed.state.lock().stored.run), (true, run));
    }
    let late = Feed::load(&engine, at(100), Planted::default()).unwrap();
    assert!(!late.is_on(), "nobody comes back any more");
}

#[test]
fn a_file_is_closed_by_the_name_that_it_has_then() {
    let feed = feed(&MemoryEngine::default());
    let named = |text: &str| Named {
        dir: DirId(300),
        dir_ino: Ino(7),
        dir_home: DirId(300),
        name: EntryName::new(text.as_bytes()).unwrap(),
    };
    let (one, two) = (SessionId(1), SessionId(2));
    for session in [one, two] {
        assert!(feed.opened(session, Ino(9), named("old"), true));
    }
    assert!(feed.opened(one, Ino(10), named("other"), true));
    feed.renamed(Ino(9), &named("new"));
    // The client may not know it yet.
    assert!(feed.opened(one, Ino(9), named("old"), false));
    assert_eq!(feed.closed(one, Ino(9)), Some(named("new")));
    assert_eq!(feed.closed(one, Ino(9)), None, "it is told once");
    assert_eq!(feed.ended(one), [(Ino(10), named("other"))]);
    assert_eq!(feed.ended(two), [(Ino(9), named("new"))]);
    assert!(feed.open_files.lock().is_empty());
}

#[test]
fn only_so_many_open_files_are_remembered() {
    let feed = feed(&MemoryEngine::default());
    let name = EntryName::new(b"name").unwrap();
    let named = Named { dir: DirId(300), dir_ino: Ino(7), dir_home: DirId(300), name };
    let most = OPEN_MAX as u64;
    for ino in 0..most {
        assert!(feed.opened(SessionId(1), Ino(ino), named.clone(), true));
    }
    assert!(!feed.opened(SessionId(1), Ino(most), named.clone(), true), "it is told at once");
    assert!(feed.opened(SessionId(1), Ino(1), named, true));
}

#[test]
fn nothing_is_told_under_a_name_that_is_gone() {
    let feed = feed(&MemoryEngine::default());
    let name = |text: &str| EntryName::new(text.as_bytes()).unwrap();
    let named = Named { dir: DirId(300), dir_ino: Ino(7), dir_home: DirId(300), name: name("a") };
    feed.opened(SessionId(1), Ino(9), named.clone(), true);
    feed.removed(Ino(9), &Named { name: name("another"), ..named.clone() });
    feed.removed(Ino(10), &named);
    assert_eq!(feed.closed(SessionId(1), Ino(9)), Some(named.clone()));
    feed.opened(SessionId(1), Ino(9), named.clone(), true);
    feed.removed(Ino(9), &named);
    assert_eq!(feed.closed(SessionId(1), Ino(9)), None);
}

/// A power failure has taken back the change of one core, and not a later one of another core.
#[test]
fn changes_after_one_that_is_lost_are_told_anew() {
    let engine = MemoryEngine::default();
    let before = feed(&engine);
    let begin = begin_of(10);
    let mut batch = Batch::new();
    for position in [1, 2, 4, 5] {
        batch.put(&key::feed_event(begin + position), &[7, u8::try_from(position).unwrap()]);
    }
    engine.write(batch).unwrap();
    assert_eq!(before.reach(begin), Reach::Whole);
    let after = Feed::load(&engine, at(30), Planted::default()).unwrap();
    let again = begin_of(30);
    assert_eq!(after.told(), again + 2);
    let mut found = Vec::new();
    let (from, to) = (key::feed_event(0), key::end_of(&key::feed()));
    let scanned = engine.scan(&from, &to, &mut |at, value| {
        found.extend(key::parse_feed_event(at).map(|position| (position, value[1])));
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    assert_eq!(found, [(begin + 1, 1), (begin + 2, 2), (again + 1, 4), (again + 2, 5)]);
    // Somebody who was told of all five has seen a change that never was.
    assert_eq!(after.reach(begin + 5), Reach::IfKept);
    assert!(engine.get(&key::feed_event(begin + 5)).unwrap().is_none());
}
