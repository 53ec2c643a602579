//! Rules for every engine, as tests. The memory engine defines them, all others are held to them.
//!
//! An engine's own tests call [`check`]. Each rule stands alone, on a new engine, and panics when
//! it is broken. What a power cut may lose is not here: only the memory engine can be asked.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;

use crate::{Batch, Engine, Error, Snapshot};

mod random;
mod seeded;

/// The engine under test.
pub(crate) struct Subject<'a> {
    /// Opens the engine or the checkpoint at a path; a new engine when there is nothing.
    pub(crate) open: &'a dyn Fn(&Path) -> Arc<dyn Engine>,
    /// Whether an engine that is dropped can be opened again with all it had.
    pub(crate) reopens: bool,
    /// Number of random histories to try; opening an engine on disk takes a while.
    pub(crate) histories: u32,
}

/// Panics when the engine breaks a rule.
pub(crate) fn check(subject: &Subject<'_>) {
    for (_, rule) in RULES {
        rule(subject);
    }
}

/// The names of all rules that the engine breaks.
fn broken(subject: &Subject<'_>) -> Vec<&'static str> {
    let breaks = |rule: &Rule| catch_unwind(AssertUnwindSafe(|| rule(subject))).is_err();
    RULES.iter().filter(|(_, rule)| breaks(rule)).map(|(name, _)| *name).collect()
}

type Rule = fn(&Subject<'_>);

macro_rules! rules {
    ($($(#[$why:meta])* fn $name:ident($engine:ident: &dyn Engine) $body:block)*) => {
        $($(#[$why])* fn $name($engine: &dyn Engine) $body)*

        const RULES: &[(&str, Rule)] = &[
            $((stringify!($name), |subject| on_a_new_engine(subject, $name)),)*
            ("what_is_written_is_there_after_reopening", what_is_written_is_there_after_reopening),
            ("a_checkpoint_opens_and_is_a_copy", a_checkpoint_opens_and_is_a_copy),
            ("random_histories_match_an_ordered_map", random::random_histories_match_an_ordered_map),
        ];
    };
}

rules! {
    fn a_key_has_the_value_that_was_put_last(engine: &dyn Engine) {
        write(engine, |batch| {
            batch.put(b"k", b"1");
            batch.put(b"k", b"2");
            batch.put(b"", b"the empty key");
            batch.put(b"empty", b"");
        });
        assert_eq!(get(engine, b"k"), Some("2".into()));
        assert_eq!(get(engine, b""), Some("the empty key".into()));
        assert_eq!(get(engine, b"empty"), Some(Bytes::new()));
        assert_eq!(get(engine, b"K"), None);
        write(engine, |batch| batch.put(b"k", b"3"));
        assert_eq!(get(engine, b"k"), Some("3".into()));
    }

    fn a_deleted_key_is_gone_and_deleting_it_again_is_fine(engine: &dyn Engine) {
        write(engine, |batch| batch.put(b"k", b"1"));
        write(engine, |batch| batch.delete(b"k"));
        write(engine, |batch| batch.delete(b"k"));
        assert_eq!(get(engine, b"k"), None);
        assert_eq!(all(engine), []);
    }

    fn an_empty_batch_changes_nothing(engine: &dyn Engine) {
        engine.write(Batch::new()).expect("write");
        engine.sync().expect("sync");
        assert_eq!(all(engine), []);
    }

    fn many_keys_are_answered_in_the_order_asked(engine: &dyn Engine) {
        fill(engine, &["a", "b", "c"]);
        let values = engine.multi_get(&[b"c", b"no", b"a", b"c"]).expect("multi_get");
        assert_eq!(values, [Some("c".into()), None, Some("a".into()), Some("c".into())]);
        assert_eq!(engine.multi_get(&[]).expect("multi_get"), []);
    }

    fn a_scan_goes_from_its_first_key_up_to_its_last_and_not_to_it(engine: &dyn Engine) {
        fill(engine, &["a", "b", "bb", "c", "d"]);
        assert_eq!(keys(engine, b"b", b"d"), ["b", "bb", "c"]);
        assert_eq!(keys(engine, b"aa", b"cc"), ["b", "bb", "c"]);
        assert_eq!(keys(engine, b"", b"b"), ["a"]);
        assert_eq!(keys(engine, b"b", b"b"), [""; 0]);
        assert_eq!(keys(engine, b"c", b"a"), [""; 0]);
        assert_eq!(keys(engine, b"x", b"z"), [""; 0]);
    }

    fn keys_are_ordered_as_unsigned_bytes_and_short_before_long(engine: &dyn Engine) {
        let sorted: [&[u8]; 6] = [b"\x00", b"\x00\x00", b"\x7f", b"\x7f\xff", b"\x80", b"\xff"];
        write(engine, |batch| sorted.iter().rev().for_each(|key| batch.put(key, b"")));
        assert_eq!(all(engine).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), sorted);
    }

    fn a_scan_stops_when_told_to(engine: &dyn Engine) {
        fill(engine, &["a", "b", "c"]);
        let mut seen = 0;
        let mut stop = |_: &[u8], _: &[u8]| {
            seen += 1;
            if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        engine.scan(b"a", b"z", &mut stop).expect("scan");
        assert_eq!(seen, 2);
    }

    fn a_scan_sees_one_moment_and_its_visitor_may_call_the_engine(engine: &dyn Engine) {
        fill(engine, &["a", "b"]);
        let mut seen = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            assert_eq!(get(engine, key).as_deref(), Some(value));
            write(engine, |batch| batch.put(&[key, b"+"].concat(), b"new"));
            seen.push(key.to_vec());
            ControlFlow::Continue(())
        };
        engine.scan(b"", b"\xff", &mut visit).expect("scan");
        assert_eq!(seen, [b"a", b"b"]);
        assert_eq!(keys(engine, b"", b"\xff"), ["a", "a+", "b", "b+"]);
    }

    fn changes_of_a_batch_apply_in_their_order(engine: &dyn Engine) {
        fill(engine, &["a", "b", "c", "d"]);
        write(engine, |batch| {
            batch.put(b"bb", b"in the range, before it goes");
            batch.delete_range(b"b", b"d");
            batch.put(b"c", b"again");
            batch.put(b"d", b"x");
            batch.delete(b"d");
        });
        assert_eq!(keys(engine, b"", b"\xff"), ["a", "c"]);
        assert_eq!(get(engine, b"c"), Some("again".into()));
        assert_eq!(get(engine, b"b"), None);
        write(engine, |batch| batch.delete_range(b"x", b"z"));
        assert_eq!(keys(engine, b"", b"\xff"), ["a", "c"]);
    }

    fn a_batch_is_seen_whole_or_not_at_all(engine: &dyn Engine) {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..500_u32 {
                    write(engine, |batch| {
                        batch.put(b"left", &round.to_be_bytes());
                        batch.put(b"right", &round.to_be_bytes());
                    });
                }
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let seen = all(engine);
                assert!(seen.is_empty() || seen.len() == 2 && seen[0].1 == seen[1].1, "{seen:?}");
            }
        });
    }

    fn writers_do_not_lose_each_others_batches(engine: &dyn Engine) {
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                scope.spawn(move || {
                    for round in 0..100_u8 {
                        write(engine, |batch| batch.put(&[writer, round], &[round]));
                        if round % 25 == 0 {
                            engine.sync().expect("sync");
                        }
                    }
                });
            }
        });
        assert_eq!(all(engine).len(), 400);
    }

    fn a_snapshot_stays_as_it_was(engine: &dyn Engine) {
        fill(engine, &["a", "b", "c"]);
        let snapshot = engine.snapshot();
        write(engine, |batch| {
            batch.put(b"a", b"changed");
            batch.delete_range(b"b", b"z");
            batch.put(b"d", b"new");
        });
        assert_eq!(snapshot.get(b"a").expect("get"), Some("a".into()));
        assert_eq!(snapshot.get(b"d").expect("get"), None);
        assert_eq!(all_of(&*snapshot).len(), 3);
        let elsewhere = std::thread::scope(|scope| {
            scope.spawn(move || snapshot.get(b"b").expect("get")).join()
        });
        assert_eq!(elsewhere.expect("joined"), Some("b".into()));
        assert_eq!(keys(engine, b"", b"\xff"), ["a", "d"]);
    }

    fn an_ingested_run_is_there_among_what_was_there(engine: &dyn Engine) {
        fill(engine, &["a", "k0500x", "z"]);
        let run = (0..1000_u32).map(|i| (format!("k{i:04}").into_bytes(), vec![7; 100]));
        engine.ingest(&mut { run }).expect("ingest");
        assert_eq!(all(engine).len(), 1003);
        assert_eq!(keys(engine, b"k0500", b"k0502"), ["k0500", "k0500x", "k0501"]);
        assert_eq!(get(engine, b"k0999"), Some(vec![7; 100].into()));
        write(engine, |batch| batch.delete(b"k0999"));
        assert_eq!(get(engine, b"k0999"), None);
        engine.ingest(&mut std::iter::empty()).expect("an empty run");
    }

    fn a_run_that_is_not_ascending_is_refused_as_a_whole(engine: &dyn Engine) {
        for run in [["a", "c", "b"], ["a", "b", "b"]] {
            let mut run = run.into_iter().map(|key| (key.into(), Vec::new()));
            assert!(matches!(engine.ingest(&mut run), Err(Error::Unordered)));
            assert_eq!(all(engine), []);
        }
    }

    fn ranges_are_sized_in_their_order(engine: &dyn Engine) {
        let entry = |kind: char, i: u32| {
            // No table can store this in less.
            let noise = (0..100_u32).map(|at| (i * 100 + at).wrapping_mul(0x9e37_79b1).to_be_bytes()[0]);
            (format!("{kind}{i:05}").into_bytes(), noise.collect())
        };
        let run = (0..12_000).map(|i| entry('k', i)).chain((0..3000).map(|i| entry('l', i)));
        engine.ingest(&mut { run }).expect("ingest");
        let sizes = engine.sizes(&[(b"j", b"k"), (b"k", b"l"), (b"l", b"m"), (b"m", b"n")]);
        let [none, much, little, neither] = sizes.expect("sizes")[..] else { panic!("four ranges") };
        assert_eq!((none, neither), (0, 0));
        assert!(little > 100_000 && (2 * little..8 * little).contains(&much), "{much} {little}");
    }

    fn sizes_are_told(engine: &dyn Engine) {
        fill(engine, &["a", "b"]);
        assert_eq!(engine.stats().keys_estimated, 2);
    }
}

fn what_is_written_is_there_after_reopening(subject: &Subject<'_>) {
    if !subject.reopens {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("engine");
    let mut all_before = Vec::new();
    for round in ["synced", "not synced", "nothing new"] {
        let engine = (subject.open)(&path);
        assert_eq!(all(&*engine), all_before, "{round}");
        match round {
            "synced" => {
                fill(&*engine, &["a", "b"]);
                engine.sync().expect("sync");
            }
            "not synced" => write(&*engine, |batch| batch.delete_range(b"a", b"b")),
            _ => {}
        }
        all_before = all(&*engine);
    }
    assert_eq!(all_before.len(), 1);
}

fn a_checkpoint_opens_and_is_a_copy(subject: &Subject<'_>) {
    let dir = tempfile::tempdir().expect("tempdir");
    let engine = (subject.open)(&dir.path().join("engine"));
    fill(&*engine, &["a", "b"]);
    engine.ingest(&mut [(b"c".to_vec(), b"c".to_vec())].into_iter()).expect("ingest");
    write(&*engine, |batch| batch.delete(b"a"));
    let to = dir.path().join("copy");
    engine.checkpoint(&to).expect("checkpoint");
    assert!(engine.checkpoint(&to).is_err(), "something is there already");
    write(&*engine, |batch| batch.put(b"after", b""));

    let copy = (subject.open)(&to);
    assert_eq!(keys(&*copy, b"", b"\xff"), ["b", "c"]);
    write(&*copy, |batch| batch.delete(b"b"));
    assert_eq!(keys(&*engine, b"", b"\xff"), ["after", "b", "c"]);
}

fn on_a_new_engine(subject: &Subject<'_>, rule: impl FnOnce(&dyn Engine)) {
    let dir = tempfile::tempdir().expect("tempdir");
    rule(&*(subject.open)(&dir.path().join("engine")));
}

fn write(engine: &dyn Engine, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    engine.write(batch).expect("write");
}

/// Puts keys whose value is the key.
fn fill(engine: &dyn Engine, keys: &[&str]) {
    write(engine, |batch| keys.iter().for_each(|k| batch.put(k.as_bytes(), k.as_bytes())));
}

fn get(engine: &dyn Engine, key: &[u8]) -> Option<Bytes> {
    engine.get(key).expect("get")
}

fn keys(engine: &dyn Engine, from: &[u8], to: &[u8]) -> Vec<String> {
    let mut keys = Vec::new();
    let mut visit = |key: &[u8], _: &[u8]| {
        keys.push(String::from_utf8_lossy(key).into_owned());
        ControlFlow::Continue(())
    };
    engine.scan(from, to, &mut visit).expect("scan");
    keys
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Above all keys of the rules.
const END: &[u8] = &[0xFF; 8];

fn all(engine: &dyn Engine) -> Entries {
    let mut entries = Entries::new();
    engine.scan(b"", END, &mut collect(&mut entries)).expect("scan");
    entries
}

fn all_of(snapshot: &dyn Snapshot) -> Entries {
    let mut entries = Entries::new();
    snapshot.scan(b"", END, &mut collect(&mut entries)).expect("scan");
    entries
}

fn collect(entries: &mut Entries) -> impl FnMut(&[u8], &[u8]) -> ControlFlow<()> {
    |key, value| {
        entries.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    }
}

fn entries(map: &BTreeMap<Vec<u8>, Vec<u8>>) -> Entries {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
