//! Targets, and the figures that were reached.
//!
//! The commands that measure make the rows; the tables and lines of results hold them. Nothing is
//! measured here.

use serde::{Deserialize, Serialize};

use super::spread;

/// Comparison of a figure with a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The figure is at least this.
    AtLeast(f64),
    /// The figure is below this.
    Below(f64),
    /// The figure is no more than this.
    AtMost(f64),
    /// The figure is at least so much of what it stands beside.
    PartOf(Against, f64),
    /// The figure is below so many times the other one.
    Times(Against, f64),
    /// There is no goal: the figure is shown for comparison.
    Shown,
}

/// Factor by which a figure may be better than its floor by chance. A greater one shows that the
/// floor was wrong.
const FLOOR_NOISE: f64 = 1.1;

/// Thing that a figure is compared with, as its goal calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The same load without a file system.
    Floor,
    /// Another figure of the file system.
    Beside,
}

impl Against {
    fn words(self) -> &'static str {
        match self {
            Against::Floor => "the floor",
            Against::Beside => "that beside",
        }
    }
}

/// A target, and what was reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetRow {
    /// Subject of the target.
    pub target: String,
    /// Value that should be reached, in words.
    pub goal: String,
    /// Whether the goal was reached; `None` where there is no goal.
    pub met: Option<bool>,
    /// The figure is better than what nothing could beat: something was left out of the floor, or
    /// the two were not measured alike. Such a target is not met.
    #[serde(default)]
    pub floor_beaten: bool,
    /// The unit of the figures.
    pub unit: String,
    /// The median.
    pub reached: f64,
    /// The least and the most of the iterations.
    pub spread: (f64, f64),
    /// Number of iterations; 0 in results of programs that did not say it.
    #[serde(default)]
    pub runs: usize,
    /// The floor of the same run or the figure beside it, in the same unit.
    pub floor: Option<f64>,
    /// Figure that was reached, divided by the one of `floor`.
    pub ratio: Option<f64>,
    /// Command that shows it.
    pub command: String,
}

impl TargetRow {
    /// A row about figures in `unit`, beside another one; none when nothing was measured.
    #[must_use]
    pub fn of(
        target: &str,
        (unit, goal): (&str, Goal),
        values: Vec<f64>,
        beside: Option<f64>,
        command: &str,
    ) -> Option<TargetRow> {
        let runs = values.len();
        let (reached, least, most) = spread(values)?;
        let ratio = beside.filter(|beside| *beside > 0.0).map(|beside| reached / beside);
        let floor_beaten = ratio.is_some_and(|ratio| match goal {
            Goal::PartOf(Against::Floor, _) => ratio > FLOOR_NOISE,
            Goal::Times(Against::Floor, _) => ratio < 1.0 / FLOOR_NOISE,
            Goal::PartOf(Against::Beside, _)
            | Goal::Times(Against::Beside, _)
            | Goal::AtLeast(_)
            | Goal::Below(_)
            | Goal::AtMost(_)
            | Goal::Shown => false,
        });
        let (goal, met) = match goal {
            Goal::Shown => ("–".to_owned(), None),
            Goal::AtLeast(least) => (format!("at least {least} {unit}"), Some(reached >= least)),
            Goal::Below(most) => (format!("under {most} {unit}"), Some(reached < most)),
            Goal::AtMost(most) => (format!("at most {most} {unit}"), Some(reached <= most)),
            Goal::PartOf(against, part) => (
                format!("at least {part} of {}", against.words()),
                Some(ratio.is_some_and(|ratio| ratio >= part)),
            ),
            Goal::Times(against, times) => (
                format!("under {times} times {}", against.words()),
                Some(ratio.is_some_and(|ratio| ratio < times)),
            ),
        };
        Some(TargetRow {
            target: target.to_owned(),
            goal,
            met: met.map(|met| met && !floor_beaten),
            floor_beaten,
            unit: unit.to_owned(),
            reached,
            spread: (least, most),
            runs,
            floor: beside,
            ratio,
            command: command.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(goal: Goal, beside: Option<f64>) -> TargetRow {
        TargetRow::of("a rate", ("/s", goal), vec![1.0, 3.0, 2.0], beside, "pando").unwrap()
    }

    #[test]
    fn a_goal_beside_another_figure_is_met_by_the_ratio() {
        let half = row(Goal::PartOf(Against::Floor, 0.5), Some(4.0));
        assert_eq!((half.goal.as_str(), half.met), ("at least 0.5 of the floor", Some(true)));
        assert_eq!((half.ratio, half.spread), (Some(0.5), (1.0, 3.0)));
        let times = row(Goal::Times(Against::Beside, 2.0), Some(1.0));
        assert_eq!((times.goal.as_str(), times.met), ("under 2 times that beside", Some(false)));
    }

    #[test]
    fn beside_nothing_no_ratio_is_reached() {
        assert_eq!(row(Goal::PartOf(Against::Floor, 0.5), None).met, Some(false));
        assert_eq!(row(Goal::Times(Against::Beside, 2.0), Some(0.0)).ratio, None);
        let met = [Goal::Below(2.5), Goal::AtLeast(2.5), Goal::AtMost(2.0), Goal::Below(2.0)]
            .map(|goal| row(goal, None).met);
        assert_eq!(met, [true, false, true, false].map(Some));
    }

    #[test]
    fn what_beats_its_floor_meets_nothing() {
        let judged = |goal, beside| {
            let row = row(goal, Some(beside));
            (row.met, row.floor_beaten)
        };
        let (cpu, rate) = (Goal::Times(Against::Floor, 2.0), Goal::PartOf(Against::Floor, 0.5));
        assert_eq!(judged(cpu, 5.0), (Some(false), true));
        assert_eq!(judged(cpu, 2.1), (Some(true), false));
        assert_eq!(judged(rate, 1.5), (Some(false), true));
        assert_eq!(judged(rate, 1.9), (Some(true), false));
        // Another figure of the file system may well be worse.
        assert_eq!(judged(Goal::Times(Against::Beside, 2.0), 5.0), (Some(true), false));
    }

    #[test]
    fn what_is_only_shown_is_neither_met_nor_missed() {
        let shown = row(Goal::Shown, None);
        assert_eq!((shown.goal.as_str(), shown.met, shown.runs), ("–", None, 3));
    }

    #[test]
    fn what_was_not_measured_has_no_row() {
        assert!(TargetRow::of("x", ("", Goal::Below(1.0)), Vec::new(), None, "pando").is_none());
    }
}
