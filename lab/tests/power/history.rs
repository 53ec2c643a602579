//! What was done before a cut, and what of it must be there afterwards.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use client::Client;
use tokio::time::Instant;

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Thing {
    Directory,
    File(Vec<u8>),
}

/// A directory.
pub(crate) type Things = BTreeMap<String, Thing>;

/// One change, whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put(String, Thing),
    Remove(String),
    Move(String, String),
}

/// What must be there after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Everything that was answered.
    Answered,
    /// Everything that was answered before a sync that was answered.
    Synced,
}

#[derive(Debug, Clone)]
struct Record {
    step: Step,
    started: Instant,
    answered: Option<Instant>,
}

/// What one worker did, one step after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lane {
    records: Vec<Record>,
    /// So many steps are on stable storage.
    synced: usize,
    now: Things,
}

/// What all of them did in a directory, where each had its own, by its number.
#[derive(Debug)]
pub(crate) struct History {
    dir: String,
    lanes: Vec<Lane>,
    /// What was there after the cut, by worker.
    left: Vec<Things>,
}

impl Lane {
    /// Its directory when every step is done.
    pub(crate) fn state(&self) -> Things {
        self.now.clone()
    }

    /// A step begins; its number.
    pub(crate) fn start(&mut self, step: Step) -> usize {
        apply(&mut self.now, &step);
        self.records.push(Record { step, started: Instant::now(), answered: None });
        self.records.len() - 1
    }

    /// A step was answered.
    pub(crate) fn answer(&mut self, number: usize) {
        self.records[number].answered = Some(Instant::now());
    }

    /// How many steps were answered.
    pub(crate) fn answered(&self) -> usize {
        self.records.iter().take_while(|record| record.answered.is_some()).count()
    }

    /// So many steps were answered before a sync that has been answered.
    pub(crate) fn synced(&mut self, steps: usize) {
        self.synced = steps;
    }

    /// How many steps were done, when this is what they left.
    fn survived(&self, found: &Things, demand: Demand) -> anyhow::Result<usize> {
        let demanded = match demand {
            Demand::Answered => self.answered(),
            Demand::Synced => self.synced,
        };
        let mut things = Things::new();
        // What was made and removed again leaves what was there before: the last step that fits counts.
        let mut fits = None;
        for steps in 0..=self.records.len() {
            if steps > 0 {
                apply(&mut things, &self.records[steps - 1].step);
            }
            if things == *found {
                fits = Some(steps);
            }
        }
        if let Some(steps) = fits {
            ensure!(steps >= demanded, "{steps} steps are left, and {demanded} must be");
            return Ok(steps);
        }
        let names: Vec<_> = found.keys().collect();
        bail!("after no step was it like this: {names:?}, {:?}", self.records.last())
    }
}

impl History {
    pub(crate) fn new(dir: String, lanes: Vec<Lane>) -> History {
        History { dir, lanes, left: Vec::new() }
    }

    /// How many steps were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.answered() as u64).sum()
    }

    /// Compares with what is there: what is demanded, and of the rest whole steps, in order, each worker's
    /// own and all together.
    ///
    /// # Errors
    /// What is not so.
    pub(crate) async fn check(&mut self, client: &Client, demand: Demand) -> anyhow::Result<()> {
        let mut survived = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            let found = read(client, &format!("{}/{number}", self.dir)).await?;
            let steps = lane.survived(&found, demand);
            survived.push(steps.with_context(|| format!("worker {number}"))?);
            self.left.push(found);
        }
        let last = self.lanes.iter().zip(&survived);
        let last = last.filter_map(|(lane, steps)| lane.records[..*steps].last());
        let Some(last) = last.map(|record| record.started).max() else { return Ok(()) };
        for (lane, steps) in self.lanes.iter().zip(&survived) {
            let Some(lost) = lane.records.get(*steps) else { continue };
            let before = lost.answered.is_some_and(|answered| answered < last);
            ensure!(!before, "{:?} is lost, and was answered before another one began", lost.step);
        }
        Ok(())
    }

    /// Nothing has changed since [`check`](Self::check).
    ///
    /// # Errors
    /// What has.
    pub(crate) async fn check_same(&self, client: &Client) -> anyhow::Result<()> {
        for (number, left) in self.left.iter().enumerate() {
            let found = read(client, &format!("{}/{number}", self.dir)).await?;
            ensure!(found == *left, "worker {number} left {left:?}, and now it is {found:?}");
        }
        Ok(())
    }
}

fn apply(things: &mut Things, step: &Step) {
    match step {
        Step::Put(name, thing) => {
            things.insert(name.clone(), thing.clone());
        }
        Step::Remove(name) => {
            things.remove(name);
        }
        Step::Move(from, to) => {
            if let Some(thing) = things.remove(from) {
                things.insert(to.clone(), thing);
            }
        }
    }
}

async fn read(client: &Client, dir: &str) -> anyhow::Result<Things> {
    let mut things = Things::new();
    let listing = client.read_dir(dir).await.with_context(|| dir.to_owned())?;
    for entry in listing.all().await? {
        let name = entry.name.to_string();
        let path = format!("{dir}/{name}");
        let thing = match entry.kind {
            base::FileKind::Directory => Thing::Directory,
            _ => Thing::File(client.read(&path).await.with_context(|| path.clone())?.to_vec()),
        };
        things.insert(name, thing);
    }
    Ok(things)
}
