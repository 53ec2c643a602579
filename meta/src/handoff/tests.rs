//! Two partitions on two servers that crash, with a network that loses messages and says some
//! twice, and clients that use the names meanwhile.
//!
//! Directed: one schedule, and at each of its steps either end or both are killed, or lose their
//! power. Random: many schedules, with several crashes. At the end every name has one owner, and is
//! there if and only if it should be.

mod disk;
mod world;

use world::{Crash, Ends, Flaw, Kind, Run};

/// Every step of a run without crashes, and some beyond.
fn crashes_everywhere(kind: Kind, flaw: Option<Flaw>) -> Result<u32, String> {
    let steps = Run::new(kind, 0, flaw).directed(None)?;
    for at in 0..steps + 10 {
        for ends in [Ends::Source, Ends::Target, Ends::Both] {
            for power in [false, true] {
                let crash = Crash { at, ends, power };
                let end = Run::new(kind, 0, flaw).directed(Some(crash));
                end.map_err(|error| format!("{kind:?} {crash:?}: {error}"))?;
            }
        }
    }
    Ok(steps)
}

fn random(kind: Kind, seeds: std::ops::Range<u64>, flaw: Option<Flaw>) -> Result<(), String> {
    for seed in seeds {
        let end = Run::new(kind, seed, flaw).random();
        end.map_err(|error| format!("{kind:?} seed {seed}: {error}"))?;
    }
    Ok(())
}

#[test]
fn a_crash_at_any_step_leaves_each_name_with_one_owner() {
    for kind in Kind::ALL {
        let steps = crashes_everywhere(kind, None).unwrap();
        assert!(steps > 20, "{kind:?} has {steps} steps");
    }
}

#[test]
fn so_do_many_crashes_and_lost_messages() {
    for kind in Kind::ALL {
        random(kind, 0..1500, None).unwrap();
    }
}

#[test]
fn names_thaw_when_the_target_does_not_promise_in_time() {
    for kind in Kind::ALL {
        let frozen = Run::new(kind, 0, None).target_away().unwrap();
        assert!((1..100).contains(&frozen), "{kind:?}: {frozen} steps");
    }
}

fn is_found(flaw: Flaw) {
    let everywhere = |kind: &Kind| crashes_everywhere(*kind, Some(flaw)).err();
    let somewhere = |kind: &Kind| random(*kind, 0..600, Some(flaw)).err();
    let found = Kind::ALL.iter().find_map(everywhere);
    let found = found.or_else(|| Kind::ALL.iter().find_map(somewhere));
    assert!(found.is_some(), "{flaw:?} was not found");
}

macro_rules! finds {
    ($($name:ident: $flaw:ident,)*) => {
        $(#[test]
        fn $name() {
            is_found(Flaw::$flaw);
        })*
    };
}

finds! {
    it_finds_changes_that_are_not_remembered: ChangesForgotten,
    it_finds_names_that_are_not_frozen: NotFrozen,
    it_finds_a_layout_that_is_published_too_early: PublishedEarly,
    it_finds_a_promise_that_is_not_stable: PromiseNotStable,
    it_finds_a_target_that_is_told_too_early: ToldEarly,
    it_finds_a_target_that_gives_up_what_it_promised: PromiseTimesOut,
    it_finds_what_was_promised_and_forgotten: PromiseForgotten,
    it_finds_echoes_that_are_taken: EchoTaken,
    it_finds_a_lost_part_that_is_not_missed: LossNotNoticed,
    it_finds_a_sweep_of_what_is_owned: OwnedSwept,
}
