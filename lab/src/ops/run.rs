//! Applies one sequence to two file systems, and reports where they differ.

use std::{collections::BTreeMap, fmt};

use client::FileSystem;

use super::{Answer, Seen, Step, apply::Side};
use crate::clock::HandClock;

/// Rules of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Number of entries in a page of a listing, on the left side and on the right.
    pub page_entries: (u32, u32),
    /// Whether writes are sent at once. Otherwise the client chooses the moment, which only a
    /// client that is alone should not notice. Each write that reaches a server has a `ctime` of
    /// its own, so nanoseconds of that are not compared then, nor modification times that were set.
    pub flush: bool,
    /// The part of attributes that is compared: the rest is made the same.
    pub compared: fn(Seen) -> Seen,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { page_entries: (100, 100), flush: true, compared: |seen| seen }
    }
}

/// The first step that two file systems answered differently.
#[derive(Debug, thiserror::Error)]
pub struct Difference {
    /// Index of the step in the sequence; `None` before the first step.
    pub index: Option<usize>,
    /// The step, as text.
    pub step: String,
    /// Answer of the left side.
    pub left: Box<Answer>,
    /// Answer of the right side.
    pub right: Box<Answer>,
    /// Number of names that the file of the step had on the right side before, where the step is
    /// about one file.
    pub names: Option<u32>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { index, step, left, right, .. } = self;
        match index {
            Some(index) => write!(f, "step {index}, ")?,
            None => write!(f, "before the first step, ")?,
        }
        write!(f, "{step}\n  left:  {left:?}\n  right: {right:?}")
    }
}

/// Results of the steps of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of steps that were done.
    pub done: u32,
    /// Number of steps that both sides refused alike.
    pub refused: u32,
    /// Number of steps that did not apply to what their slots held.
    pub skipped: u32,
}

/// A tally for each kind of operation.
pub type Tallies = BTreeMap<String, Tally>;

/// Applies `steps` to both sides, each with a client for every number that occurs in them, and
/// compares the answers. Both must be empty file systems, and take their time from `clock`. Results
/// of the steps are added to `tallies`. `settle` is awaited before the clock moves: meanwhile a
/// client does what it does shortly after an answer.
///
/// # Errors
/// The first difference, or the first answer that no file system should give.
pub async fn compare<L: FileSystem, R: FileSystem>(
    clock: &HandClock,
    rules: Rules,
    (left, right): (&[L], &[R]),
    steps: &[Step],
    tallies: &mut Tallies,
    settle: impl AsyncFn(),
) -> Result<(), Difference> {
    let mut left = Side::new(left, rules.page_entries.0, rules);
    let mut right = Side::new(right, rules.page_entries.1, rules);
    clock.tick();
    let broken = |error: client::Error| Answer::Broken(error.to_string());
    let opened = left.open_up().await.unwrap_or_else(broken);
    same(None, "chmod of the root", opened, right.open_up().await.unwrap_or_else(broken))?;
    for (index, step) in steps.iter().enumerate() {
        settle().await;
        clock.tick();
        let answers = (left.apply(step).await, right.apply(step).await);
        count(tallies, step, &answers.0);
        if let Err(difference) = same(Some(index), step, answers.0, answers.1) {
            let names = right.names_before(step, &difference.right).await;
            return Err(Difference { names, ..difference });
        }
    }
    Ok(())
}

fn count(tallies: &mut Tallies, step: &Step, answer: &Answer) {
    let text = format!("{:?}", step.op);
    let kind = text.split([' ', '{']).next().unwrap_or_default();
    let tally = tallies.entry(kind.to_owned()).or_default();
    match answer {
        Answer::Skipped => tally.skipped += 1,
        Answer::Failed(_) | Answer::Broken(_) => tally.refused += 1,
        Answer::Done
        | Answer::Attr(_)
        | Answer::Entry(_)
        | Answer::Made(..)
        | Answer::Ino(_)
        | Answer::Listing(..)
        | Answer::Data(_)
        | Answer::Copied(_)
        | Answer::Xattrs(_) => tally.done += 1,
    }
}

fn same(
    index: Option<usize>,
    step: impl fmt::Debug,
    left: Answer,
    right: Answer,
) -> Result<(), Difference> {
    let broken = matches!(left, Answer::Broken(_)) || matches!(right, Answer::Broken(_));
    if left == right && !broken {
        return Ok(());
    }
    let (left, right) = (Box::new(left), Box::new(right));
    Err(Difference { index, step: format!("{step:?}"), left, right, names: None })
}
