//! Searches for a sequence of operations that two file systems answer differently, and makes it
//! short.

use std::fmt;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use super::{Difference, Step, steps};

/// A sequence that tells two file systems apart, none of whose steps can be left out.
#[derive(Debug)]
pub struct Found {
    /// The sequence.
    pub steps: Vec<Step>,
    /// The first difference that the sequence causes.
    pub difference: Difference,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{index}: {step:?}")?;
        }
        write!(f, "{}", self.difference)
    }
}

/// Draws `cases` sequences of up to `steps_max` operations of `clients` clients, and runs each with
/// `compare`.
///
/// The same sequences are drawn in every run; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` ask for
/// others.
///
/// # Panics
/// When `compare` does, or does not give the same answer twice.
pub fn search(
    cases: u32,
    clients: usize,
    steps_max: usize,
    compare: impl Fn(&[Step]) -> Result<(), Difference>,
) -> Option<Found> {
    let asked = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { cases };
    let rng_seed = match asked.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        RngSeed::Fixed(seed) => RngSeed::Fixed(seed),
    };
    let config = Config { cases, rng_seed, failure_persistence: None, ..asked };
    let result = TestRunner::new(config).run(&steps(clients, steps_max), |steps| {
        compare(&steps).map_err(|difference| TestCaseError::fail(difference.to_string()))
    });
    match result {
        Ok(()) => None,
        Err(TestError::Fail(_, mut steps)) => {
            leave_out(&mut steps, |steps| compare(steps).is_err());
            let difference = compare(&steps).expect_err("the same sequence differs again");
            Some(Found { steps, difference })
        }
        Err(error @ TestError::Abort(_)) => unreachable!("no sequence is rejected: {error}"),
    }
}

/// Leaves out every step that is not needed. Proptest does so too, but only before it simplifies
/// steps.
fn leave_out(steps: &mut Vec<Step>, differs: impl Fn(&[Step]) -> bool) {
    let mut index = 0;
    while index < steps.len() {
        let left_out = steps.remove(index);
        if differs(steps) {
            index = 0;
        } else {
            steps.insert(index, left_out);
            index += 1;
        }
    }
}
