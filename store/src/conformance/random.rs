//! Random histories on an engine and on an ordered map give the same answers.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::{Entries, Subject, all, all_of, entries, get, keys};
use crate::{Batch, Engine, Snapshot};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Change>),
    Sync,
    Ingest(Model),
    Get(Vec<u8>),
    Scan(Vec<u8>, Vec<u8>),
    Snapshot,
    Reopen,
    Checkpoint,
}

#[derive(Clone, Debug)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

pub(super) fn random_histories_match_an_ordered_map(subject: &Subject<'_>) {
    // The histories are the same in every run.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config =
        Config { cases: subject.histories, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let history = vec(step(), 1..40);
    let run = runner.run(&history, |steps| {
        History::new(subject).run(steps);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Keys that often meet, and that are prefixes of each other.
fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(prop::sample::select(vec![0, 1, 0x7F, 0x80, 0xFF]), 0..4)
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 1000..6000)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (key(), value()).prop_map(|(key, value)| Change::Put(key, value)),
        2 => key().prop_map(Change::Delete),
        1 => (key(), key()).prop_map(|(from, to)| Change::DeleteRange(from, to)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => vec(change(), 0..6).prop_map(Step::Write),
        2 => Just(Step::Sync),
        2 => btree_map(key(), value(), 0..6).prop_map(Step::Ingest),
        6 => key().prop_map(Step::Get),
        4 => (key(), key()).prop_map(|(from, to)| Step::Scan(from, to)),
        2 => Just(Step::Snapshot),
        1 => Just(Step::Reopen),
        1 => Just(Step::Checkpoint),
    ]
}

/// An engine, its model, and snapshots with what they must show.
struct History<'a> {
    subject: &'a Subject<'a>,
    dir: tempfile::TempDir,
    engine: Option<Arc<dyn Engine>>,
    model: Model,
    snapshots: Vec<(Box<dyn Snapshot>, Entries)>,
    checkpoints: usize,
}

impl<'a> History<'a> {
    fn new(subject: &'a Subject<'a>) -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let engine = Some((subject.open)(&dir.path().join("engine")));
        let (model, snapshots) = (Model::new(), Vec::new());
        Self { subject, dir, engine, model, snapshots, checkpoints: 0 }
    }

    fn run(mut self, steps: Vec<Step>) {
        for step in steps {
            self.step(step);
            assert_eq!(all(self.engine()), entries(&self.model));
        }
        for (snapshot, shows) in &self.snapshots {
            assert_eq!(all_of(&**snapshot), *shows);
        }
    }

    fn engine(&self) -> &dyn Engine {
        self.engine.as_deref().expect("open between steps")
    }

    fn path(&self, name: &str) -> impl AsRef<Path> + use<> {
        self.dir.path().join(name)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(changes) => self.write(changes),
            Step::Sync => self.engine().sync().expect("sync"),
            Step::Ingest(mut run) => {
                run.retain(|key, _| !self.model.contains_key(key));
                self.engine().ingest(&mut run.clone().into_iter()).expect("ingest");
                self.model.append(&mut run);
            }
            Step::Get(key) => {
                let value = self.model.get(&key).map(|value| value.clone().into());
                assert_eq!(get(self.engine(), &key), value);
                assert_eq!(self.engine().multi_get(&[&key]).expect("multi_get"), [value]);
            }
            Step::Scan(from, to) => {
                let within = self.model.keys().filter(|key| **key >= from && **key < to);
                let within: Vec<_> = within.map(|k| String::from_utf8_lossy(k)).collect();
                assert_eq!(keys(self.engine(), &from, &to), within);
            }
            Step::Snapshot => {
                let snapshot = self.engine().snapshot();
                self.snapshots.push((snapshot, entries(&self.model)));
            }
            Step::Reopen => self.reopen(),
            Step::Checkpoint => {
                self.checkpoints += 1;
                let to = self.path(&format!("copy{}", self.checkpoints));
                self.engine().checkpoint(to.as_ref()).expect("checkpoint");
                assert_eq!(all(&*(self.subject.open)(to.as_ref())), entries(&self.model));
            }
        }
    }

    fn write(&mut self, changes: Vec<Change>) {
        let mut batch = Batch::new();
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    batch.put(&key, &value);
                    self.model.insert(key, value);
                }
                Change::Delete(key) => {
                    batch.delete(&key);
                    self.model.remove(&key);
                }
                Change::DeleteRange(from, to) => {
                    batch.delete_range(&from, &to);
                    self.model.retain(|key, _| *key < from || *key >= to);
                }
            }
        }
        self.engine().write(batch).expect("write");
    }

    fn reopen(&mut self) {
        if self.subject.reopens {
            self.snapshots.clear();
            self.engine = None;
            self.engine = Some((self.subject.open)(self.path("engine").as_ref()));
        }
    }
}
