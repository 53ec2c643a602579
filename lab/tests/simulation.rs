//! Simulated worlds: nothing goes wrong in them, whatever goes wrong; and a bug is found.
//!
//! `lab sim` runs more of them, and replays one.
#![expect(clippy::print_stdout, reason = "what happened in the worlds is a part of the result")]

use lab::sim::{Options, run, run_many};
use meta::Bug;

/// One server.
fn alone() -> Options {
    Options { servers: Some(1), ..Options::default() }
}

const SEEDS: u64 = 1000;
/// For each number of servers.
const CLUSTER_SEEDS: u64 = 120;
const CROWD_SEEDS: u64 = 20;

/// All that was to happen happened.
fn assert_happened(counts: &[(&str, u64)]) {
    for (what, count) in counts {
        assert!(*count > 0, "no {what}");
    }
}

#[test]
fn every_world_keeps_its_promises() {
    let (sum, failures) = run_many(1..SEEDS + 1, alone());
    println!("{SEEDS} seeds: {sum:#?}");
    failures.iter().take(5).for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} worlds went wrong", failures.len());
    assert_happened(&[
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
        ("changes that a quota refuses", sum.refused),
        ("locks", sum.locks),
        ("trash", sum.thrown),
    ]);
    assert!(sum.histories_given_up * 100 <= sum.histories, "too many histories were given up");
}

#[test]
fn one_seed_has_one_history() {
    for seed in 1..30 {
        let servers = if seed < 20 { 1 } else { 3 };
        let options = Options { servers: Some(servers), wide: true, ..Options::default() };
        let [one, other] = [run(seed, options), run(seed, options)];
        assert_eq!(one.expect("it goes well"), other.expect("it goes well"), "seed {seed}");
    }
}

#[test]
fn every_cluster_keeps_its_promises() {
    for servers in 2..=4 {
        let start = 1000 * u64::from(servers);
        let options = Options { servers: Some(servers), wide: true, ..Options::default() };
        let (sum, failures) = run_many(start..start + CLUSTER_SEEDS, options);
        println!("{CLUSTER_SEEDS} seeds of {servers} servers: {sum:#?}");
        failures.iter().take(3).for_each(|failure| println!("{failure}"));
        assert!(failures.is_empty(), "{} clusters went wrong", failures.len());
        assert_happened(&[
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
            ("names that moved", sum.handoffs_done),
            ("servers that were away", sum.away - sum.coordinators_away),
            ("coordinators that were away", sum.coordinators_away),
            ("leases of servers that ended", sum.leases_ended),
            ("transactions", sum.transactions_begun),
            ("aborted transactions", sum.transactions_aborted),
            ("transactions whose outcome was asked for", sum.transactions_recovered),
            ("changes that a quota refuses", sum.refused),
            ("locks", sum.locks),
            ("trash", sum.thrown),
        ]);
        assert!(sum.histories >= CLUSTER_SEEDS / 2);
        // Other faults go on meanwhile.
        let (asked, answered) = (sum.beside_asked, sum.beside_answered);
        assert!(asked > 10 && answered * 10 >= asked * 8, "{answered} of {asked} answered");
        assert!(sum.histories_given_up * 100 <= sum.histories, "too many histories were given up");
    }
}

#[test]
fn every_crowd_keeps_its_promises() {
    for servers in 2..=4 {
        let start = 1000 * u64::from(servers);
        let options =
            Options { servers: Some(servers), crowd: true, wide: true, ..Options::default() };
        let (sum, failures) = run_many(start..start + CROWD_SEEDS, options);
        println!("{CROWD_SEEDS} crowds of {servers} servers: {sum:#?}");
        failures.iter().take(3).for_each(|failure| println!("{failure}"));
        assert!(failures.is_empty(), "{} crowds went wrong", failures.len());
        assert!(sum.handoffs_done >= CROWD_SEEDS * 5, "few names have moved");
        assert_happened(&[
            ("kills", sum.kills),
            ("power cuts", sum.power_cuts),
            ("cut connections", sum.cuts),
            ("walls", sum.walls),
            ("retries", sum.retries),
            ("suppressed duplicates", sum.duplicates_suppressed),
            ("leases of servers that ended", sum.leases_ended),
            ("aborted transactions", sum.transactions_aborted),
            ("transactions whose outcome was asked for", sum.transactions_recovered),
        ]);
    }
}

/// How many seeds it takes to find a bug; in a `crowd` names are about to move all the time.
fn seeds_to_find(bug: Bug, servers: u16, crowd: bool, seeds_max: u64) {
    let options = Options { bug: Some(bug), servers: Some(servers), crowd, ..Options::default() };
    let found = (1..=seeds_max).find_map(|seed| run(seed, options).err());
    println!("{bug:?}: {}", found.expect("it is found"));
}

macro_rules! finds {
    ($($name:ident: $bug:ident of $servers:literal within $seeds:literal,)*) => {
        $(#[test]
        fn $name() {
            seeds_to_find(Bug::$bug, $servers, false, $seeds);
        })*
    };
}

macro_rules! finds_in_a_crowd {
    ($($name:ident: $bug:ident of $servers:literal within $seeds:literal,)*) => {
        $(#[test]
        fn $name() {
            seeds_to_find(Bug::$bug, $servers, true, $seeds);
        })*
    };
}

finds! {
    it_finds_that_answers_are_not_stored: AnswerNotStored of 1 within 10,
    it_finds_that_echoes_are_executed: EchoExecuted of 1 within 600,
    it_finds_that_answers_leave_before_the_write: AnswerBeforeWrite of 1 within 10,
    it_finds_that_nobody_waits_for_the_sync: SyncNotAwaited of 1 within 10,
    it_finds_that_inode_numbers_are_not_reserved: InosNotReserved of 1 within 10,
    it_finds_that_opens_are_ignored: OpensIgnored of 1 within 50,
    it_finds_that_the_number_of_a_release_is_ignored: ReleaseNumberIgnored of 1 within 300,
    it_finds_that_claims_are_not_awaited: ClaimsNotAwaited of 1 within 100,
    it_finds_that_moves_are_not_announced: MoveNotAnnounced of 1 within 300,
    it_finds_that_blocks_are_deleted_early: BlockDeletedEarly of 1 within 500,
    it_finds_that_claims_of_locks_are_not_awaited: LockClaimsNotAwaited of 1 within 300,
    it_finds_that_a_stale_inode_is_accepted: StaleInoAccepted of 1 within 300,
    it_finds_that_announcements_are_not_awaited: AnnounceNotAwaited of 3 within 1500,
    it_finds_versions_without_their_events: VersionWithoutEvent of 3 within 100,
    it_finds_that_what_is_prepared_is_not_held: PreparedNotHeld of 3 within 50,
    it_finds_that_what_is_held_is_seen: HoldNotKept of 3 within 1500,
    it_finds_that_what_is_prepared_is_forgotten: PreparedForgotten of 3 within 100,
    it_finds_that_expectations_are_ignored: ExpectationsIgnored of 3 within 150,
    it_finds_that_what_is_prepared_is_not_awaited: PreparedNotAwaited of 3 within 150,
    it_finds_that_a_commit_is_not_awaited: CommitNotAwaited of 3 within 600,
    it_finds_that_a_commit_is_not_noted: CommitNotNoted of 3 within 300,
    it_finds_that_a_charge_is_lost: ChargeLost of 3 within 50,
    it_finds_that_a_commit_is_forgotten_early: CommitForgottenEarly of 3 within 1000,
    it_finds_that_a_commit_is_applied_twice: CommitAppliedTwice of 3 within 50,
    it_finds_that_a_late_prepare_is_kept: LatePrepareKept of 3 within 50,
    it_finds_that_a_prepare_is_not_stored: PrepareNotStored of 3 within 50,
    it_finds_that_a_promise_is_not_stable: PromiseNotStable of 3 within 200,
    it_finds_that_an_outcome_is_acknowledged_early: AcknowledgedEarly of 3 within 400,
    it_finds_that_what_is_pending_is_said_to_be_aborted: PendingSaidAborted of 3 within 200,
    it_finds_that_the_end_of_a_lease_is_ignored: LeaseIgnored of 3 within 500,
    it_finds_that_renames_ignore_each_other: GraphIgnored of 3 within 200,
    it_finds_that_a_share_is_not_expected: ShareNotExpected of 3 within 100,
    it_finds_that_directories_are_confirmed_early: ConfirmedEarly of 3 within 200,
    it_finds_that_a_lost_birth_is_forgotten: LostBirthForgotten of 3 within 200,
    it_finds_that_what_is_given_back_below_a_quota_is_used: AllowanceKept of 3 within 100,
    it_finds_that_who_says_nothing_is_taken_to_use_nothing: UnheardHaveNone of 3 within 100,
    it_finds_that_a_merged_partition_is_forgotten: MergedForgotten of 3 within 50,
    it_finds_that_a_late_look_up_is_taken: LateLookupTaken of 3 within 400,
}

finds_in_a_crowd! {
    it_finds_a_layout_that_is_published_early: LayoutPublishedEarly of 3 within 5,
    it_finds_changes_that_are_not_sent_again: ChangesForgotten of 3 within 10,
    it_finds_names_that_move_while_they_are_changed: NotFrozen of 3 within 10,
    it_finds_a_sweep_of_what_is_owned: OwnedSwept of 3 within 10,
    it_finds_a_page_that_ends_within_a_run: PageEndsInRun of 3 within 30,
}
