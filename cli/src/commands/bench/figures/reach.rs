//! Rows of the table: what was aimed at, and what was reached.

use bench::report::{TargetRow, spread};

use super::Params;

/// What is compared with what.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    AtLeast(f64),
    Below(f64),
    /// At least so much of what it stands beside.
    OfBeside(f64),
    /// At most so many times what it stands beside.
    TimesBeside(f64),
}

/// A row about figures in `unit`, beside another one; none when nothing was measured.
pub(super) fn row(
    target: &str,
    (unit, goal): (&str, Goal),
    values: Vec<f64>,
    beside: Option<f64>,
    experiment: &str,
) -> Option<TargetRow> {
    let (reached, least, most) = spread(values)?;
    let ratio = beside.filter(|beside| *beside > 0.0).map(|beside| reached / beside);
    let (goal, met) = match goal {
        Goal::AtLeast(least) => (format!("at least {least} {unit}"), reached >= least),
        Goal::Below(most) => (format!("under {most} {unit}"), reached < most),
        Goal::OfBeside(part) => {
            (format!("at least {part} of that beside"), ratio.is_some_and(|ratio| ratio >= part))
        }
        Goal::TimesBeside(times) => {
            (format!("at most {times} of that beside"), ratio.is_some_and(|ratio| ratio <= times))
        }
    };
    Some(TargetRow {
        target: target.to_owned(),
        goal,
        met,
        unit: unit.to_owned(),
        reached,
        spread: (least, most),
        floor: beside,
        ratio,
        command: Params::command(experiment),
    })
}
