//! A whole run on a directory of this machine.

use std::{path::Path, sync::atomic::AtomicBool};

use bench::{Crew, Error, Measured, Meter, Phase, Plan, Step, Target, Timing, Usage, Work, Worker};

fn plan(phases: &[Phase], shared: bool) -> Plan {
    Plan {
        ranks: 3,
        files: 5,
        shared,
        depth: 2,
        phases: phases.to_vec(),
        in_flight: 2,
        iterations: 2,
        folder: "run".to_owned(),
    }
}

/// Two workers, one of them with two ranks, who do their steps one after the other.
struct InTurn<'a> {
    workers: Vec<Worker<'a>>,
    /// Stops the workers before this.
    stop_before: Option<Work>,
    steps: Vec<Work>,
}

impl Crew for InTurn<'_> {
    async fn step(&mut self, step: Step) -> Result<Vec<Timing>, Error> {
        self.steps.push(step.work);
        let mut timings = Vec::new();
        for worker in &self.workers {
            let stopped = self.stop_before == Some(step.work);
            worker.stop.fetch_or(stopped, std::sync::atomic::Ordering::Relaxed);
            timings.push(worker.step(&step).await?);
        }
        Ok(timings)
    }
}

/// Counts its readings, as if each were a request.
struct Counter(u64);

impl Meter for Counter {
    async fn read(&mut self) -> Usage {
        self.0 += 1;
        Usage { requests: Some(self.0), ..Usage::default() }
    }
}

fn run(
    plan: &Plan,
    root: &Path,
    stop_before: Option<Work>,
) -> (Result<Vec<Measured>, Error>, Vec<Work>) {
    let stop = AtomicBool::new(false);
    let worker = |ranks: &[usize]| Worker {
        plan,
        ranks: ranks.to_vec(),
        target: Target::Directory(root.to_owned()),
        stop: &stop,
    };
    let mut crew =
        InTurn { workers: vec![worker(&[0, 2]), worker(&[1])], stop_before, steps: Vec::new() };
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("it needs no driver");
    let result = runtime.block_on(bench::run(plan, &mut crew, &mut Counter(0)));
    (result, crew.steps)
}

#[test]
fn every_phase_is_measured_and_nothing_is_left() {
    for shared in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let measured = run(&plan(&Phase::ALL, shared), root.path(), None).0.unwrap();
        let phases: Vec<_> = measured.iter().map(|measured| measured.phase).collect();
        assert_eq!(phases, [Phase::ALL, Phase::ALL].concat());
        for measured in measured {
            let listed = if shared { 3 * 10 * 15 } else { 3 * 10 * 5 };
            let expected = if measured.phase == Phase::Readdir { listed } else { 15 };
            assert_eq!(measured.operations, expected, "{}", measured.phase);
            assert!(measured.latencies.is_sorted());
            assert_eq!((measured.requests, measured.server_cpu), (Some(1), None));
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn only_what_was_asked_for_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let (measured, _) = run(&plan(&[Phase::FileStat], false), root.path(), None);
    let summaries = bench::summarize(&measured.unwrap());
    assert_eq!(summaries.len(), 1);
    assert!(summaries[0].per_second_min <= summaries[0].per_second_max);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_run_warms_up_before_it_counts() {
    let root = tempfile::tempdir().unwrap();
    let (_, steps) = run(&plan(&[Phase::FileStat], false), root.path(), None);
    let stats = steps.iter().filter(|work| **work == Work::Phase(Phase::FileStat)).count();
    assert_eq!(stats, 3);
}

#[test]
fn a_folder_that_was_there_stays() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("run/inside")).unwrap();
    let failed = run(&plan(&Phase::ALL, false), root.path(), None).0;
    assert!(matches!(failed, Err(Error::Directory { what: "dir_create", .. })), "{failed:?}");
    assert!(root.path().join("run/inside").exists());
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let at = Work::Phase(Phase::FileOpen);
    let (interrupted, _) = run(&plan(&Phase::ALL, false), root.path(), Some(at));
    assert!(matches!(interrupted, Err(Error::Interrupted)), "{interrupted:?}");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}
