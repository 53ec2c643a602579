//! Finds a planted bug: by a pinned seed, by a word of the failure, and only with the bug.
//!
//! Tests that plant a bug call [`find`], and `lab planted` does for all bugs of the simulation. A
//! *seed* is any number by which a run can be repeated.
//!
//! Invariant: a seed shows a bug only if its run fails with the bug, the failure says the word, and
//! the run succeeds without the bug. A fault of the program itself is never taken for the planted
//! one.

use std::ops::Range;

/// How a planted bug is found.
#[derive(Debug, Clone)]
pub struct Pin<'a> {
    /// The seed to run. `None` while no seed is pinned: all of `seeds` are searched each time.
    pub seed: Option<u64>,
    /// A word that the failure must contain.
    pub word: &'a str,
    /// The seeds to search when none is pinned, or the pinned one no longer shows the bug.
    pub seeds: Range<u64>,
}

/// Why a pinned seed does not show its bug.
#[derive(Debug, thiserror::Error)]
pub enum Missed {
    /// The run fails without the bug as well: the program itself has a fault.
    #[error("seed {seed} goes wrong although no bug is planted: {failure}")]
    Unplanted {
        /// The seed.
        seed: u64,
        /// The failure of the run without the bug.
        failure: String,
    },
    /// Another seed shows the bug.
    #[error(
        "pin seed {found}, seed {pinned} finds the bug no more ({instead}); the other says: {failure}"
    )]
    Elsewhere {
        /// The first of the seeds that shows the bug.
        found: u64,
        /// The pinned seed.
        pinned: u64,
        /// The result of the pinned seed, which does not contain the word.
        instead: String,
        /// The failure of the found seed.
        failure: String,
    },
    /// No seed shows the bug.
    #[error("{pinned}, and none of {seeds:?} finds the bug with {word:?}")]
    Nowhere {
        /// The result of the pinned seed.
        pinned: String,
        /// The seeds that were searched.
        seeds: Range<u64>,
        /// The word of the failure.
        word: String,
    },
}

/// Runs a pinned seed with its bug (`true`) and without it. Returns the failure.
///
/// # Errors
/// When the pinned seed does not show the bug. All of `pin.seeds` are searched first.
pub fn find(
    pin: &Pin<'_>,
    run: impl Fn(u64, bool) -> anyhow::Result<()>,
) -> Result<String, Missed> {
    let (word, seeds) = (pin.word, pin.seeds.clone());
    let nowhere = |pinned| Missed::Nowhere { pinned, seeds: seeds.clone(), word: word.to_owned() };
    let Some(pinned) = pin.seed else {
        let found = search(word, seeds.clone(), run);
        return match found {
            Some((seed, failure)) => Ok(format!("pin seed {seed}: {failure}")),
            None => Err(nowhere("no seed is pinned".to_owned())),
        };
    };
    let instead = match run(pinned, true) {
        Err(failure) if says(&failure, word) => {
            return match run(pinned, false) {
                Ok(()) => Ok(format!("{failure:#}")),
                Err(failure) => {
                    Err(Missed::Unplanted { seed: pinned, failure: format!("{failure:#}") })
                }
            };
        }
        Err(failure) => format!("{failure:#}"),
        Ok(()) => "nothing goes wrong".to_owned(),
    };
    match search(word, seeds.clone(), run) {
        Some((found, failure)) => Err(Missed::Elsewhere { found, pinned, instead, failure }),
        None => Err(nowhere(format!("seed {pinned} finds the bug no more ({instead})"))),
    }
}

/// The first seed that shows a bug, and its failure.
pub fn search(
    word: &str,
    seeds: Range<u64>,
    run: impl Fn(u64, bool) -> anyhow::Result<()>,
) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let failure = run(seed, true).err().filter(|failure| says(failure, word))?;
        run(seed, false).is_ok().then(|| (seed, format!("{failure:#}")))
    })
}

fn says(failure: &anyhow::Error, word: &str) -> bool {
    format!("{failure:#}").contains(word)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    const PIN: Pin<'_> = Pin { seed: Some(3), word: "lost", seeds: 1..10 };

    #[test]
    fn a_pinned_seed_is_run_with_the_bug_and_without() {
        let runs = RefCell::new(Vec::new());
        let found = find(&PIN, |seed, planted| {
            runs.borrow_mut().push((seed, planted));
            if planted { bail!("it is lost") } else { Ok(()) }
        });
        assert_eq!(found.unwrap(), "it is lost");
        assert_eq!(runs.into_inner(), [(3, true), (3, false)]);
    }

    #[test]
    fn a_seed_that_fails_without_the_bug_shows_nothing() {
        let missed = find(&PIN, |_, _| bail!("it is lost")).unwrap_err();
        assert!(matches!(missed, Missed::Unplanted { seed: 3, .. }), "{missed}");
    }

    #[test]
    fn another_seed_is_named_that_goes_well_without_the_bug_and_says_the_word() {
        let missed = find(&PIN, |seed, planted| match (seed, planted) {
            (5, _) | (7, true) => bail!("it is lost"),
            (6, true) => bail!("it hangs"),
            _ => Ok(()),
        });
        let missed = missed.unwrap_err();
        assert!(matches!(missed, Missed::Elsewhere { found: 7, pinned: 3, .. }), "{missed}");
        assert!(missed.to_string().starts_with("pin seed 7"), "{missed}");
    }

    #[test]
    fn where_no_seed_is_pinned_all_are_searched() {
        let pin = Pin { seed: None, ..PIN };
        let found = find(&pin, |seed, planted| match (seed, planted) {
            (6, true) => bail!("it is lost"),
            _ => Ok(()),
        });
        assert_eq!(found.unwrap(), "pin seed 6: it is lost");
        let missed = find(&pin, |_, _| Ok(())).unwrap_err();
        assert!(matches!(missed, Missed::Nowhere { .. }), "{missed}");
    }

    #[test]
    fn another_failure_is_not_the_bug() {
        let run = |_, planted| if planted { bail!("it hangs") } else { Ok(()) };
        let missed = find(&PIN, run).unwrap_err();
        assert!(matches!(missed, Missed::Nowhere { .. }), "{missed}");
        assert!(missed.to_string().contains("seed 3 finds the bug no more"), "{missed}");
    }
}
