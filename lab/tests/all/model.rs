//! Random operations on two file systems give equal answers; and where they should not, that is
//! noticed.
//!
//! `real` compares the native client and a server with the model. Here the model is compared with
//! itself, and with file systems that have a bug.

mod delegated;
mod existing;
mod handles;
mod paths;
mod real;
mod region;
mod several;
mod tree;
mod world;
mod wrong;

use std::{cell::RefCell, sync::Arc};

use base::HashKey;
use client::model::Model;
use futures::executor::block_on;
use lab::{
    clock::HandClock,
    ops::{Difference, Rules, Step, Tallies, compare, search},
};

use wrong::{Bug, Wrong};

const KEY: HashKey = HashKey::new(11, 12);
const START: i64 = 1_000_000;
const STEPS_MAX: usize = 150;

/// Two clients of a model, and whether each is trusted.
fn model(clock: &HandClock, trusted: [bool; 2], page_bytes: u32) -> [Model; 2] {
    let model = Model::with_pages(Arc::new(clock.clone()), KEY, trusted[0], page_bytes);
    let other = model.client(trusted[1]);
    [model, other]
}

#[test]
fn the_model_answers_alike_with_pages_of_two_sizes() {
    let rules = Rules { page_entries: (2, 100), ..Rules::default() };
    let tallies = RefCell::new(Tallies::new());
    for trusted in [[false, false], [true, true]] {
        let found = search(300, 2, STEPS_MAX, |steps| {
            let clock = HandClock::at(START);
            let [left, right] = [7, 4096].map(|page_bytes| model(&clock, trusted, page_bytes));
            let (tallies, settle) = (&mut *tallies.borrow_mut(), async || ());
            let compared = compare(&clock, rules, (&left, &right), steps, tallies, settle);
            let compared = block_on(compared);
            left[0].check();
            compared
        });
        assert!(found.is_none(), "{}", found.expect("checked"));
    }
    println!("{:#?}", tallies.borrow());
    for (kind, tally) in tallies.borrow().iter() {
        assert!(tally.done > 0, "{kind} was never done");
    }
}

fn compare_with(bug: Bug, steps: &[Step]) -> Result<(), Difference> {
    let clock = HandClock::at(START);
    let [[right, _], [inner, _]] = [4096, 4096].map(|bytes| model(&clock, [false; 2], bytes));
    let sides = (&[right][..], &[Wrong { inner, bug }][..]);
    let rules = Rules { page_entries: (1, 1), ..Rules::default() };
    let settle = async || ();
    block_on(compare(&clock, rules, sides, steps, &mut Tallies::new(), settle))
}

#[test]
fn every_bug_is_noticed_in_a_few_steps() {
    for bug in Bug::ALL {
        let found = search(3_000, 1, STEPS_MAX, |steps| compare_with(bug, steps));
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not noticed"));
        println!("{bug:?}\n{found}\n");
        assert!(found.steps.len() <= 4, "{bug:?} needs fewer steps");
    }
}
