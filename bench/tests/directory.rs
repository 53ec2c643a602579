//! A whole run on a directory of this machine.

use bench::{Meeting, Phase, Plan, Rank, Target, summarize};

fn plan(phases: &[Phase], shared: bool) -> Plan {
    Plan {
        ranks: 2,
        files: 5,
        shared,
        phases: phases.to_vec(),
        in_flight: 1,
        iterations: 2,
        folder: "run".to_owned(),
    }
}

fn run(plan: &Plan, root: &std::path::Path) -> Vec<Result<Vec<Vec<bench::Timing>>, bench::Error>> {
    let meeting = Meeting::new(plan.ranks);
    let rank = |number| Rank {
        plan,
        number,
        meeting: &meeting,
        target: Target::Directory(root.to_owned()),
    };
    let (first, second) = (rank(0), rank(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let both = Box::pin(futures::future::join(first.run(), second.run()));
    let (first, second) = runtime.expect("it needs no driver").block_on(both);
    vec![first, second]
}

#[test]
fn every_phase_is_measured_and_nothing_is_left() {
    for shared in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let results = run(&plan(&Phase::ALL, shared), root.path());
        let ranks: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        let summaries = summarize(&ranks);
        let phases: Vec<_> = summaries.iter().map(|summary| summary.phase).collect();
        assert_eq!(phases, Phase::ALL);
        for summary in summaries {
            let entries = if shared { 10 } else { 5 };
            let expected = if summary.phase == Phase::Readdir { 2 * 2 * 10 * entries } else { 20 };
            assert_eq!(summary.operations, expected, "{}", summary.phase);
            assert!(summary.per_second_min <= summary.per_second_max && summary.p50 <= summary.p99);
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn only_what_was_asked_for_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let results = run(&plan(&[Phase::FileStat], false), root.path());
    let ranks: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(summarize(&ranks).len(), 1);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_failed_operation_ends_all_ranks() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("run")).unwrap();
    let results = run(&plan(&Phase::ALL, false), root.path());
    assert!(matches!(results[0], Err(bench::Error::Directory { .. })));
    assert!(matches!(results[1], Err(bench::Error::Other)));
}
