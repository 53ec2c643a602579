//! The steps that were done before a cut, and which of them must be there afterwards.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use client::Client;
use tokio::time::Instant;

/// The target of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Thing {
    Directory,
    File(Vec<u8>),
}

/// Contents of a directory.
pub(crate) type Things = BTreeMap<String, Thing>;

/// One change, which happens whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put(String, Thing),
    Remove(String),
    Move(String, String),
}

/// Steps that must be there after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Every step that was answered.
    Answered,
    /// Every step that was answered before a sync that was answered.
    Synced,
}

#[derive(Debug, Clone)]
struct Record {
    step: Step,
    started: Instant,
    answered: Option<Instant>,
}

/// Steps of one worker, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lane {
    records: Vec<Record>,
    /// Number of steps that are on stable storage.
    synced: usize,
    now: Things,
}

/// Steps of all workers in a directory, where each had its own, by its number.
#[derive(Debug)]
pub(crate) struct History {
    dir: String,
    lanes: Vec<Lane>,
    /// Things left after the cut, by worker.
    left: Vec<Things>,
}

impl Lane {
    /// The worker's directory when every step is done.
    pub(crate) fn state(&self) -> Things {
        self.now.clone()
    }

    /// Begins a step; returns its number.
    pub(crate) fn start(&mut self, step: Step) -> usize {
        apply(&mut self.now, &step);
        self.records.push(Record { step, started: Instant::now(), answered: None });
        self.records.len() - 1
    }

    /// Notes that a step was answered.
    pub(crate) fn answer(&mut self, number: usize) {
        self.records[number].answered = Some(Instant::now());
    }

    /// Number of steps that were answered.
    pub(crate) fn answered(&self) -> usize {
        self.records.iter().take_while(|record| record.answered.is_some()).count()
    }

    /// Notes that this many steps were answered before a sync that has been answered.
    pub(crate) fn synced(&mut self, steps: usize) {
        self.synced = steps;
    }

    /// Numbers of steps after which the directory was like `found`, with all that was demanded.
    /// There may be several: making and removing a thing leaves the same as before.
    fn survived(&self, found: &Things, demand: Demand) -> anyhow::Result<Vec<usize>> {
        let demanded = match demand {
            Demand::Answered => self.answered(),
            Demand::Synced => self.synced,
        };
        let mut things = Things::new();
        let mut fits = Vec::new();
        for steps in 0..=self.records.len() {
            if steps > 0 {
                apply(&mut things, &self.records[steps - 1].step);
            }
            if things == *found {
                fits.push(steps);
            }
        }
        let Some(last) = fits.last() else {
            let names: Vec<_> = found.keys().collect();
            bail!("after no step was it like this: {names:?}, {:?}", self.records.last())
        };
        ensure!(*last >= demanded, "{last} steps are left, and {demanded} must be");
        fits.retain(|steps| *steps >= demanded);
        Ok(fits)
    }

    /// Time when the last of the first `steps` steps began.
    fn began(&self, steps: usize) -> Option<Instant> {
        self.records[..steps].last().map(|record| record.started)
    }

    /// The step after the first `steps`, if it was answered before `began`.
    fn lost_before(&self, steps: usize, began: Option<Instant>) -> Option<&Step> {
        let lost = self.records.get(steps)?;
        let before = lost.answered? < began?;
        before.then_some(&lost.step)
    }
}

/// Checks that no lost step was answered before a surviving one began, of any worker. Of each
/// worker any number of steps in `survived` may be left; as few are assumed as the others allow.
fn in_order(lanes: &[Lane], survived: &[Vec<usize>]) -> anyhow::Result<()> {
    let mut left: Vec<_> = survived.iter().map(|fits| fits.iter().copied()).collect();
    let first = left.iter_mut().map(|fits| fits.next().context("nothing fits"));
    let mut taken = first.collect::<anyhow::Result<Vec<usize>>>()?;
    loop {
        let last = lanes.iter().zip(&taken).filter_map(|(lane, steps)| lane.began(*steps)).max();
        let mut lost = (0..).zip(lanes.iter().zip(&taken));
        let Some((at, step)) =
            lost.find_map(|(at, (lane, steps))| Some((at, lane.lost_before(*steps, last)?)))
        else {
            return Ok(());
        };
        let more = left[at].next();
        taken[at] = more.with_context(|| {
            format!("{step:?} is lost, and was answered before another one began")
        })?;
    }
}

impl History {
    pub(crate) fn new(dir: String, lanes: Vec<Lane>) -> History {
        History { dir, lanes, left: Vec::new() }
    }

    /// Number of steps that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.answered() as u64).sum()
    }

    /// Compares the history with the tree. What is demanded must be there, and of the rest whole
    /// steps, in order, of each worker and of all together.
    ///
    /// # Errors
    /// When something is missing or out of order.
    pub(crate) async fn check(&mut self, client: &Client, demand: Demand) -> anyhow::Result<()> {
        let mut survived = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            let found = read(client, &format!("{}/{number}", self.dir)).await?;
            let steps = lane.survived(&found, demand);
            survived.push(steps.with_context(|| format!("worker {number}"))?);
            self.left.push(found);
        }
        in_order(&self.lanes, &survived)
    }

    /// Checks that nothing has changed since [`check`](Self::check).
    ///
    /// # Errors
    /// When something has changed.
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
        let thing = match entry.is_dir() {
            true => Thing::Directory,
            false => Thing::File(client.read(&path).await.with_context(|| path.clone())?.to_vec()),
        };
        things.insert(name, thing);
    }
    Ok(things)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Steps of a worker: each began and was answered at these moments, in milliseconds.
    fn lane(zero: Instant, steps: &[(Step, u64, u64)]) -> Lane {
        let at = |ms: &u64| zero + Duration::from_millis(*ms);
        let records = steps.iter().map(|(step, started, answered)| Record {
            step: step.clone(),
            started: at(started),
            answered: Some(at(answered)),
        });
        Lane { records: records.collect(), ..Lane::default() }
    }

    fn put(name: &str) -> Step {
        Step::Put(name.into(), Thing::Directory)
    }

    fn left(names: &[&str]) -> Things {
        names.iter().map(|name| ((*name).to_owned(), Thing::Directory)).collect()
    }

    fn check(lanes: &[Lane], found: &[Things]) -> anyhow::Result<()> {
        let fits =
            lanes.iter().zip(found).map(|(lane, found)| lane.survived(found, Demand::Synced));
        in_order(lanes, &fits.collect::<anyhow::Result<Vec<_>>>()?)
    }

    #[test]
    fn what_was_made_and_removed_again_need_not_have_been_left() {
        let zero = Instant::now();
        let remove = Step::Remove("b".into());
        let lanes = [
            lane(zero, &[(put("a"), 0, 1), (put("b"), 5, 6), (remove, 7, 8)]),
            lane(zero, &[(put("c"), 0, 1), (put("d"), 2, 3)]),
        ];
        // The second worker has done one step or three.
        assert!(check(&lanes, &[left(&["a"]), left(&["c"])]).is_ok());
        assert!(check(&lanes, &[left(&["a"]), left(&["c", "d"])]).is_ok());
        let lost = check(&lanes, &[left(&["a", "b"]), left(&["c"])]).unwrap_err();
        assert!(lost.to_string().contains("is lost"), "{lost}");
    }

    #[test]
    fn what_is_left_of_one_worker_may_have_to_be_more_for_another() {
        let zero = Instant::now();
        let remove = Step::Remove("b".into());
        let lanes = [
            lane(zero, &[(put("a"), 0, 1), (put("b"), 2, 3), (remove, 4, 5), (put("e"), 11, 12)]),
            lane(zero, &[(put("c"), 0, 1), (put("d"), 8, 9)]),
            lane(zero, &[(put("f"), 0, 1), (put("g"), 6, 7)]),
        ];
        // For `d` to be left both `b` and its removal must be left, and `g`.
        let all = left(&["c", "d"]);
        assert!(check(&lanes, &[left(&["a"]), all.clone(), left(&["f", "g"])]).is_ok());
        assert!(check(&lanes, &[left(&["a"]), all, left(&["f"])]).is_err());
    }
}
