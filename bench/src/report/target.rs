//! What is aimed at, and what was reached.
//!
//! The commands that measure make the rows; the tables and lines of results hold them. Nothing is measured here.

use serde::{Deserialize, Serialize};

use super::spread;

/// What is compared with what.
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
    /// The figure is below so many times what it stands beside.
    Times(Against, f64),
}

/// What a figure stands beside, as its goal calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The same without a file system.
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
    /// What it is about.
    pub target: String,
    /// What should be reached, in words.
    pub goal: String,
    /// Whether it was.
    pub met: bool,
    /// The unit of the figures.
    pub unit: String,
    /// The median.
    pub reached: f64,
    /// The least and the most of the iterations.
    pub spread: (f64, f64),
    /// The floor of the same run or the figure beside it, in the same unit.
    pub floor: Option<f64>,
    /// What was reached, divided by it.
    pub ratio: Option<f64>,
    /// How to see it.
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
        let (reached, least, most) = spread(values)?;
        let ratio = beside.filter(|beside| *beside > 0.0).map(|beside| reached / beside);
        let (goal, met) = match goal {
            Goal::AtLeast(least) => (format!("at least {least} {unit}"), reached >= least),
            Goal::Below(most) => (format!("under {most} {unit}"), reached < most),
            Goal::AtMost(most) => (format!("at most {most} {unit}"), reached <= most),
            Goal::PartOf(against, part) => (
                format!("at least {part} of {}", against.words()),
                ratio.is_some_and(|ratio| ratio >= part),
            ),
            Goal::Times(against, times) => (
                format!("under {times} times {}", against.words()),
                ratio.is_some_and(|ratio| ratio < times),
            ),
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
        assert_eq!((half.goal.as_str(), half.met), ("at least 0.5 of the floor", true));
        assert_eq!((half.ratio, half.spread), (Some(0.5), (1.0, 3.0)));
        let times = row(Goal::Times(Against::Beside, 2.0), Some(1.0));
        assert_eq!((times.goal.as_str(), times.met), ("under 2 times that beside", false));
    }

    #[test]
    fn beside_nothing_no_ratio_is_reached() {
        assert!(!row(Goal::PartOf(Against::Floor, 0.5), None).met);
        assert_eq!(row(Goal::Times(Against::Beside, 2.0), Some(0.0)).ratio, None);
        assert!(row(Goal::Below(2.5), None).met && !row(Goal::AtLeast(2.5), None).met);
        assert!(row(Goal::AtMost(2.0), None).met && !row(Goal::Below(2.0), None).met);
    }

    #[test]
    fn what_was_not_measured_has_no_row() {
        assert!(TargetRow::of("x", ("", Goal::Below(1.0)), Vec::new(), None, "pando").is_none());
    }
}
