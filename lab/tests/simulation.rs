//! Simulated worlds: nothing goes wrong in them, whatever goes wrong; and a bug is found.
//!
//! `lab sim` runs more of them, and replays one.
#![expect(clippy::print_stdout, reason = "what happened in the worlds is a part of the result")]

use lab::sim::{Options, run, run_many};
use meta::Bug;

const SEEDS: u64 = 1000;

#[test]
fn every_world_keeps_its_promises() {
    let (sum, failures) = run_many(1..SEEDS + 1, Options::default());
    println!("{SEEDS} seeds: {sum:#?}");
    failures.iter().take(5).for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} worlds went wrong", failures.len());
    for (what, count) in [
        ("kills", sum.kills),
        ("power cuts", sum.power_cuts),
        ("cut connections", sum.cuts),
        ("stops", sum.stops),
        ("walls", sum.walls),
        ("slow machines", sum.slow),
        ("deaths of clients", sum.deaths),
        ("retries", sum.retries),
        ("suppressed duplicates", sum.duplicates_suppressed),
        ("sessions that expired", sum.sessions_expired),
        ("clients that were told of losses", sum.losses),
        ("inodes reclaimed", sum.inodes_reclaimed),
        ("histories of concurrent clients", sum.histories),
    ] {
        assert!(count > 0, "no {what}");
    }
    assert!(sum.histories_given_up * 100 <= sum.histories, "too many histories were given up");
}

#[test]
fn one_seed_has_one_history() {
    for seed in 1..30 {
        let [one, other] = [run(seed, Options::default()), run(seed, Options::default())];
        assert_eq!(one.expect("it goes well"), other.expect("it goes well"), "seed {seed}");
    }
}

/// How many seeds it takes to find a bug.
fn seeds_to_find(bug: Bug, seeds_max: u64) {
    let options = Options { bug: Some(bug), ..Options::default() };
    let found = (1..=seeds_max).find_map(|seed| run(seed, options).err());
    println!("{bug:?}: {}", found.expect("it is found"));
}

macro_rules! finds {
    ($($name:ident: $bug:ident within $seeds:literal,)*) => {
        $(#[test]
        fn $name() {
            seeds_to_find(Bug::$bug, $seeds);
        })*
    };
}

finds! {
    it_finds_that_answers_are_not_stored: AnswerNotStored within 10,
    it_finds_that_echoes_are_executed: EchoExecuted within 600,
    it_finds_that_answers_leave_before_the_write: AnswerBeforeWrite within 10,
    it_finds_that_nobody_waits_for_the_sync: SyncNotAwaited within 10,
    it_finds_that_inode_numbers_are_not_reserved: InosNotReserved within 10,
    it_finds_that_opens_are_ignored: OpensIgnored within 50,
    it_finds_that_the_number_of_a_release_is_ignored: ReleaseNumberIgnored within 300,
    it_finds_that_claims_are_not_awaited: ClaimsNotAwaited within 100,
    it_finds_that_moves_are_not_announced: MoveNotAnnounced within 300,
    it_finds_that_blocks_are_deleted_early: BlockDeletedEarly within 500,
    it_finds_that_claims_of_locks_are_not_awaited: LockClaimsNotAwaited within 300,
    it_finds_that_a_stale_inode_is_accepted: StaleInoAccepted within 300,
}
