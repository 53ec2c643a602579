//! The table of prepared keys: which transactions are in the way of which uses.

use super::*;

fn txn(number: u64) -> TxnId {
    TxnId { server: 1, run: 7, number }
}

fn waits_for(number: u64) -> Option<Doubt> {
    Some(Doubt { txn: txn(number), born: false, until: None })
}

fn key(text: &str) -> Key {
    Key::from_slice(text.as_bytes())
}

#[test]
fn what_is_about_to_change_is_neither_read_nor_changed_by_others() {
    let table = Prepared::default();
    assert!(!table.any());
    assert!(table.take(txn(1), vec![(key("a"), Mode::Exclusive), (key("b"), Mode::Shared)]));
    assert!(!table.take(txn(2), vec![(key("c"), Mode::Exclusive), (key("a"), Mode::Shared)]));
    assert_eq!(table.in_the_way(b"c", Want::Change, None), None, "all or nothing is taken");
    assert_eq!(table.in_the_way(b"a", Want::Read, None), waits_for(1));
    assert_eq!(table.in_the_way(b"a", Want::Read, Some(txn(1))), None);
    assert_eq!(table.in_the_way(b"b", Want::ReadCounts, None), None);
    assert_eq!(table.in_the_way(b"b", Want::Change, None), waits_for(1));
    table.free(txn(1));
    assert!(!table.any());
    assert!(table.take(txn(2), vec![(key("a"), Mode::Exclusive)]));
}

#[test]
fn several_add_to_the_counts_of_one_directory_and_whoever_reads_them_waits() {
    let table = Prepared::default();
    assert!(table.take(txn(1), vec![(key("d"), Mode::Increment)]));
    assert!(table.take(txn(2), vec![(key("d"), Mode::Increment)]));
    assert!(table.take(txn(3), vec![(key("d"), Mode::Shared)]));
    assert!(!table.take(txn(4), vec![(key("d"), Mode::Exclusive)]));
    assert_eq!(table.in_the_way(b"d", Want::Read, None), None);
    assert_eq!(table.in_the_way(b"d", Want::ReadCounts, None), waits_for(1));
    table.free(txn(1));
    table.free(txn(2));
    assert_eq!(table.in_the_way(b"d", Want::ReadCounts, None), None);
}

#[test]
fn a_listing_waits_for_what_changes_within_it() {
    let table = Prepared::default();
    table.take(txn(1), vec![(key("n5"), Mode::Exclusive), (key("n7"), Mode::Shared)]);
    assert_eq!(table.in_range(b"n0", b"n5", Want::Read, None), None);
    assert_eq!(table.in_range(b"n5", b"n6", Want::Read, None), waits_for(1));
    assert_eq!(table.in_range(b"n6", b"n9", Want::Read, None), None);
}

#[test]
fn what_is_held_is_prepared_later_and_read_by_nobody_until_the_end() {
    let table = Prepared::default();
    assert!(table.hold(txn(1), vec![key("a"), key("b")]));
    assert!(table.is_holding(txn(1)) && !table.is_prepared(txn(1)));
    assert!(!table.hold(txn(2), vec![key("c"), key("b")]));
    assert_eq!(table.in_the_way(b"c", Want::Read, None), None, "all or nothing is held");
    assert!(table.take(txn(1), vec![(key("a"), Mode::Shared), (key("d"), Mode::Shared)]));
    assert!(!table.is_holding(txn(1)) && table.is_prepared(txn(1)));
    for held in [&b"a"[..], b"b"] {
        assert_eq!(table.in_the_way(held, Want::Read, None), waits_for(1));
    }
    assert!(!table.hold(txn(1), vec![key("e")]), "it is too late");
    table.free(txn(1));
    assert!(!table.any());
    let all = ["a", "b", "d"].map(|at| (key(at), Mode::Exclusive));
    assert!(table.take(txn(2), all.to_vec()));
}

#[test]
fn it_is_known_whether_anything_of_a_run_is_held() {
    let table = Prepared::default();
    assert_eq!(table.holds(b"n0", b"n9"), None);
    table.take(txn(1), vec![(key("n5"), Mode::Shared)]);
    assert_eq!(table.holds(b"n0", b"n4"), None);
    assert_eq!([(b"n0", b"n5"), (b"n5", b"n9")].map(|(a, z)| table.holds(a, z)), [waits_for(1); 2]);
    assert_eq!(table.holds(b"n6", b"n9"), None);
}

#[test]
fn frozen_names_are_read_and_not_changed() {
    use base::{DirId, EntryName, ShardId};
    let name_in = |dir: u128, pos: u64| {
        let name = EntryName::new(b"n").unwrap();
        key::name(ShardId(3), DirId(dir), pos, &name, key::Part::Main)
    };
    let name = |pos: u64| name_in(77, pos);
    let share = || key::content(ShardId(3), DirId(77), 5, key::Part::Main);
    let moving = Moving::Range((100, 200));
    let table = Prepared::default();
    for held in [name(150), share()] {
        assert!(table.take(txn(1), vec![(held, Mode::Shared), (name(90), Mode::Exclusive)]));
        assert!(
            !table.freeze(txn(2), share(), moving, Instant::now()),
            "what is held does not freeze"
        );
        table.free(txn(1));
    }
    assert!(!table.any());
    assert!(table.freeze(txn(2), share(), moving, Instant::now()));
    assert!(table.any());
    let waits = |key: &Key, want| table.in_the_way(key, want, None);
    for pos in [100, 150, 200] {
        assert_eq!(waits(&name(pos), Want::Change), waits_for(2));
        assert_eq!(waits(&name(pos), Want::Read), None);
    }
    assert_eq!([name(99), name(201)].map(|key| waits(&key, Want::Change)), [None; 2]);
    assert_eq!(waits(&name_in(78, 150), Want::Change), None);
    assert_eq!(table.in_the_way(&name(150), Want::Change, Some(txn(2))), None);
    assert_eq!([Want::Read, Want::ReadCounts].map(|want| waits(&share(), want)), [None; 2]);
    // No other transaction prepares a change of a frozen name, nor stands on the partition as it
    // is.
    assert!(!table.take(txn(3), vec![(name(150), Mode::Exclusive)]));
    assert!(!table.take(txn(3), vec![(share(), Mode::Shared)]));
    assert!(table.take(txn(4), vec![(name(150), Mode::Shared), (name(201), Mode::Exclusive)]));
    table.free(txn(2));
    assert_eq!(waits(&name(150), Want::Change), waits_for(4));
    assert!(table.take(txn(3), vec![(share(), Mode::Shared)]));
}

#[test]
fn what_is_to_be_frozen_is_held_by_those_only_who_hold_it_already() {
    use base::{DirId, EntryName, ShardId};
    let name = |pos: u64| {
        let name = EntryName::new(b"n").unwrap();
        key::name(ShardId(3), DirId(77), pos, &name, key::Part::Main)
    };
    let share = || key::content(ShardId(3), DirId(77), 5, key::Part::Main);
    let moving = Moving::Range((100, 200));
    let later = Instant::now() + Duration::from_secs(1000);
    let table = Prepared::default();
    let renames = |number: u64, pos: u64| {
        table.take(txn(number), vec![(share(), Mode::Increment), (name(pos), Mode::Exclusive)])
    };
    // One rename begins before the other ends, and so on: there is no moment for the freeze.
    assert!(renames(1, 90));
    assert!(!table.freeze(txn(9), share(), moving, Instant::now()));
    assert!(renames(2, 91));
    table.free(txn(1));
    assert!(!table.freeze(txn(9), share(), moving, later));
    assert!(!renames(3, 92), "it stands on the partition");
    assert!(!table.take(txn(3), vec![(name(150), Mode::Shared)]));
    assert!(table.take(txn(3), vec![(name(92), Mode::Exclusive)]), "what stays is free");
    assert!(!table.freeze(txn(9), share(), moving, later));
    table.free(txn(2));
    assert!(table.freeze(txn(9), share(), moving, later));
    table.free(txn(9));
    assert!(renames(4, 150));
    // A transaction that does not want to freeze any more keeps no others off.
    assert!(!table.freeze(txn(9), share(), moving, later));
    assert!(!renames(5, 151));
    table.no_longer_wanted(txn(9));
    assert!(renames(5, 151));
}

#[tokio::test]
async fn who_waits_goes_on_when_the_outcome_is_there() {
    let table = Prepared::default();
    table.take(txn(1), vec![(key("a"), Mode::Exclusive)]);
    let waits = table.until_ended(Doubt { txn: txn(1), born: false, until: None });
    tokio::pin!(waits);
    assert!(futures::poll!(waits.as_mut()).is_pending());
    table.free(txn(2));
    assert!(futures::poll!(waits.as_mut()).is_pending());
    table.free(txn(1));
    waits.await;
}

#[tokio::test]
async fn an_early_mkdir_is_seen_by_nobody_then_by_everybody_here_and_relied_upon_when_it_is_confirmed()
 {
    let table = Prepared::default();
    assert!(table.take_early_mkdir(txn(1), key("d")));
    assert!(!table.take_early_mkdir(txn(2), key("d")));
    let reads = table.in_the_way(b"d", Want::Read, None).unwrap();
    let waits = table.until_ended(reads);
    tokio::pin!(waits);
    assert!(futures::poll!(waits.as_mut()).is_pending());
    // A directory that nobody has seen is not waited for: nothing hangs on it.
    table.confirmed().await;

    table.is_born(txn(1));
    waits.await;
    let confirmed = table.confirmed();
    tokio::pin!(confirmed);
    assert!(futures::poll!(confirmed.as_mut()).is_pending());
    assert_eq!(
        [Want::Read, Want::ReadCounts].map(|want| table.in_the_way(b"d", want, None)),
        [None; 2]
    );
    for mode in [Mode::Shared, Mode::Increment, Mode::Exclusive] {
        assert!(!table.take(txn(2), vec![(key("d"), mode)]), "{mode:?}");
    }
    let born = table.early_mkdir_among([&key("d")].into_iter()).unwrap();
    assert_eq!(born, Doubt { txn: txn(1), born: true, until: None });
    let waits = table.until_ended(born);
    tokio::pin!(waits);
    assert!(futures::poll!(waits.as_mut()).is_pending());
    // A directory that is born later is not waited for.
    assert!(table.take_early_mkdir(txn(3), key("e")));
    table.is_born(txn(3));
    assert!(futures::poll!(confirmed.as_mut()).is_pending());
    table.free(txn(1));
    waits.await;
    confirmed.await;
    assert!(table.take(txn(2), vec![(key("d"), Mode::Exclusive)]));
}

#[tokio::test]
async fn the_entry_of_an_early_mkdir_is_read_and_not_changed() {
    let table = Prepared::default();
    assert!(table.take_entry(txn(1), key("n")));
    assert_eq!(table.in_the_way(b"n", Want::Read, None), None);
    assert_eq!(table.in_the_way(b"n", Want::Change, None), waits_for(1));
    assert!(!table.take(txn(2), vec![(key("n"), Mode::Exclusive)]));
    assert!(table.early_mkdir_among([&key("n")].into_iter()).is_some());
    assert_eq!(table.early_mkdir(txn(1)), Some(Has::Entry));
    assert!(table.all().is_empty(), "nobody else ends it");
    // No record here hangs on the entry.
    table.confirmed().await;
    table.free(txn(1));
    assert!(!table.any());
}

#[tokio::test(start_paused = true)]
async fn what_is_stable_waits_for_an_early_mkdir_until_the_server_of_its_entry_must_be_away() {
    let table = Prepared::default();
    assert!(table.take_old_early_mkdir(txn(1), key("d")));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(table.take_early_mkdir(txn(2), key("e")));
    table.is_born(txn(2));
    let began = Instant::now();
    table.confirmed().await;
    assert_eq!(began.elapsed().as_secs(), CONFIRMED_WITHIN.as_secs(), "for the younger one");
    table.confirmed().await;
    assert_eq!(began.elapsed().as_secs(), CONFIRMED_WITHIN.as_secs(), "for nobody twice");
}

#[test]
fn counts_and_listings_go_without_what_has_been_in_doubt_for_long() {
    for (patience, waits) in [(Duration::from_secs(3600), true), (Duration::ZERO, false)] {
        let table = Prepared::new(patience);
        assert!(
            table.take(txn(1), vec![(key("d"), Mode::Increment), (key("n5"), Mode::Exclusive)])
        );
        let waits_for_it = |found: Option<Doubt>| found.is_some_and(|doubt| doubt.txn == txn(1));
        let way = |key: &[u8], want| waits_for_it(table.in_the_way(key, want, None));
        assert_eq!(way(b"d", Want::ShowCounts(None)), waits);
        assert_eq!(waits_for_it(table.in_range(b"n0", b"n9", Want::List(None), None)), waits);
        assert_eq!(way(b"n5", Want::List(None)), waits);
        // Every other use waits for the outcome.
        assert!(way(b"d", Want::ReadCounts) && way(b"d", Want::Change));
        assert!(way(b"n5", Want::Read) && way(b"n5", Want::ShowCounts(None)));
        assert!(waits_for_it(table.in_range(b"n0", b"n9", Want::Read, None)));
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_go_without_a_transaction_is_woken_when_it_has_been_in_doubt_for_long() {
    let table = Prepared::new(Duration::from_millis(700));
    assert!(table.take(txn(1), vec![(key("d"), Mode::Increment)]));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    let doubt = table.in_the_way(b"d", Want::ShowCounts(None), None).unwrap();
    table.until_ended(doubt).await;
    assert_eq!(began.elapsed(), Duration::from_millis(400));
    assert_eq!(table.in_the_way(b"d", Want::ShowCounts(None), None), None);
}

#[test]
fn it_is_told_how_many_transactions_are_in_doubt() {
    let table = Prepared::default();
    let told = |for_long| table.in_doubt(0, for_long).map(|told| (told.count, told.server));
    assert_eq!(told(Duration::ZERO), None);
    assert!(table.take(txn(1), vec![(key("a"), Mode::Exclusive)]));
    assert!(table.take(txn(2), vec![(key("b"), Mode::Exclusive)]));
    assert_eq!(told(Duration::ZERO), Some((2, 1)));
    assert_eq!(told(Duration::from_secs(3600)), None);
    assert_eq!(table.in_doubt(1, Duration::ZERO), None, "its own are not in doubt");
    // The early mkdir of a directory is in doubt until everybody sees it.
    assert!(table.take_early_mkdir(txn(3), key("c")));
    assert_eq!(told(Duration::ZERO), Some((3, 1)));
    table.is_born(txn(3));
    assert_eq!(told(Duration::ZERO), Some((2, 1)));
    table.free(txn(1));
    table.free(txn(2));
    assert_eq!(told(Duration::ZERO), None);
}

#[tokio::test(start_paused = true)]
async fn who_has_waited_for_long_for_one_after_the_other_waits_for_no_more() {
    let patience = Duration::from_millis(700);
    let table = Prepared::new(patience);
    let began = Instant::now();
    for number in 0.. {
        // Each transaction is given up after a second, and another one comes before that.
        assert!(
            table.take(txn(number), vec![(key("d"), Mode::Increment), (key("n5"), Mode::Shared)])
        );
        if number >= 4 {
            table.free(txn(number - 4));
        }
        let shown = Want::ShowCounts(Some(began));
        match table.in_the_way(b"d", shown, None) {
            Some(doubt) => assert_eq!(doubt.until, Some(began + patience)),
            None => break,
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(began.elapsed().as_millis(), 750);
    assert!(table.in_the_way(b"d", Want::ShowCounts(Some(Instant::now())), None).is_some());
}
