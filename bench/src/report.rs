//! Results of several runs, put together: a table of targets, and a drawing of rates beside their
//! floors.
//!
//! The report reads the JSON lines of `bench md`, `bench floor` and of itself. It measures nothing
//! and opens no file.

mod svg;
mod target;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Row, floor::FloorRow, median};

pub(crate) use svg::escape;
pub use svg::svg;
pub use target::{Against, Goal, TargetRow};

/// One phase of one iteration, with the name of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Name of the run, such as `mount, caches off`; empty in results that `bench md` prints by
    /// itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// Result of the run.
    #[serde(flatten)]
    pub row: Row,
}

/// A line of results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A phase.
    Run(RunRow),
    /// A target.
    Target(TargetRow),
    /// A floor.
    Floor(FloorRow),
}

/// A line that is no result.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is no result of bench")]
pub struct NoResult {
    /// Number of the line, from 1.
    pub line: usize,
    /// Reason.
    #[source]
    source: serde_json::Error,
}

/// Reads lines of results.
///
/// # Errors
/// The first line that is none.
pub fn parse(text: &str) -> Result<Vec<Line>, NoResult> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(at, line)| {
        serde_json::from_str(line).map_err(|source| NoResult { line: at + 1, source })
    });
    parsed.collect()
}

/// The median of each floor, in the order in which they first came.
#[must_use]
pub fn medians(rows: &[FloorRow]) -> Vec<FloorRow> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.floor.as_str()) {
            names.push(&row.floor);
        }
    }
    let of_name = |name: &str| {
        let of_name: Vec<_> = rows.iter().filter(|row| row.floor == name).collect();
        let known = |value: fn(&FloorRow) -> Option<f64>| {
            of_name.iter().map(|row| value(row)).collect::<Option<Vec<_>>>().and_then(median)
        };
        Some(FloorRow {
            floor: name.to_owned(),
            ops: of_name.first()?.ops,
            ops_per_s: median(of_name.iter().map(|row| row.ops_per_s).collect())?,
            p50_us: known(|row| row.p50_us),
            client_cpu_us_per_op: known(|row| row.client_cpu_us_per_op),
            server_cpu_us_per_op: known(|row| row.server_cpu_us_per_op),
        })
    };
    names.into_iter().filter_map(of_name).collect()
}

/// Floors by their names.
#[derive(Debug, Clone, Default)]
pub struct Floors(BTreeMap<String, FloorRow>);

impl Floors {
    /// The medians of all floors among `lines`.
    #[must_use]
    pub fn of(lines: &[Line]) -> Floors {
        let rows = lines.iter().filter_map(|line| match line {
            Line::Floor(row) => Some(row.clone()),
            Line::Run(_) | Line::Target(_) => None,
        });
        let rows: Vec<_> = rows.collect();
        Floors(medians(&rows).into_iter().map(|row| (row.floor.clone(), row)).collect())
    }

    /// Operations per second.
    #[must_use]
    pub fn per_second(&self, name: &str) -> Option<f64> {
        Some(self.0.get(name)?.ops_per_s)
    }

    /// Median latency in microseconds.
    #[must_use]
    pub fn p50_us(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.p50_us
    }

    /// CPU microseconds of a server that does a phase with nothing but the floors in series: the
    /// frames, and the engine's part where the phase needs the engine.
    #[must_use]
    pub fn server_cpu_us(&self, echo: &str, phase: &str) -> Option<f64> {
        let engine = match phase {
            // The server keeps recently used records in memory and does not read them from the
            // engine.
            "file_stat" | "file_open" | "dir_stat" => None,
            "file_create" | "file_remove" | "file_rename" | "dir_create" | "dir_remove"
            | "dir_rename" => Some("engine_create"),
            // A listing has no floor of its own.
            _ => return None,
        };
        let cpu = |name| self.0.get(name)?.server_cpu_us_per_op;
        Some(cpu(echo)? + engine.map_or(Some(0.0), cpu)?)
    }

    /// The rate beside which a phase of a run is drawn: the null file system for a mount, and for
    /// the native client a server that does the floors in series on one core.
    #[must_use]
    pub fn beside(&self, run: &str, phase: &str) -> Option<f64> {
        if run.starts_with("mount") {
            // The kernel believes nothing of what the null file system says.
            let fits = run.contains("caches off");
            return fits.then(|| self.per_second(&format!("null_{phase}"))).flatten();
        }
        let echo = if run.contains("16 connections") { "echo_128_over_16" } else { "echo_128" };
        let fits = run.is_empty() || run.contains("128 in flight");
        fits.then(|| self.server_cpu_us(echo, phase)).flatten().map(|cpu| 1e6 / cpu)
    }
}

/// One run's phase over all its iterations: median, least and most operations per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// The run.
    pub run: String,
    /// The phase.
    pub phase: String,
    /// Operations per second: median, least, most.
    pub per_second: (f64, f64, f64),
    /// The rate of its floor.
    pub floor: Option<f64>,
}

/// All rates, in the order in which they first came.
#[must_use]
pub fn rates(lines: &[Line]) -> Vec<Rate> {
    let floors = Floors::of(lines);
    let mut found: Vec<((&str, &str), Vec<f64>)> = Vec::new();
    for line in lines {
        let Line::Run(RunRow { run, row }) = line else { continue };
        let of = (run.as_str(), row.phase.as_str());
        match found.iter_mut().find(|(other, _)| *other == of) {
            Some((_, values)) => values.push(row.ops_per_s),
            None => found.push((of, vec![row.ops_per_s])),
        }
    }
    let rate = |((run, phase), values): ((&str, &str), Vec<f64>)| {
        Some(Rate {
            run: run.to_owned(),
            phase: phase.to_owned(),
            floor: floors.beside(run, phase),
            per_second: spread(values)?,
        })
    };
    found.into_iter().filter_map(rate).collect()
}

/// Median, least and most.
#[must_use]
pub fn spread(values: Vec<f64>) -> Option<(f64, f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    Some((median(values)?, least, most))
}

/// All targets as a table for a page.
#[must_use]
pub fn targets(lines: &[Line]) -> String {
    let mut text = "| target | goal | reached | spread | floor | ratio | met | command |\n\
                    |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for line in lines {
        let Line::Target(row) = line else { continue };
        let (least, most) = row.spread;
        let spread = match row.runs {
            1 => "one run".to_owned(),
            _ => format!("{} to {}", figure(least), figure(most)),
        };
        let met = match row.met {
            _ if row.floor_beaten => "**no: the floor is wrong**",
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "–",
        };
        let floor = row.floor.map_or_else(|| "–".to_owned(), figure);
        let ratio = row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
        text += &format!(
            "| {} | {} | {} {} | {spread} | {floor} | {ratio} | {met} | `{}` |\n",
            row.target,
            row.goal,
            figure(row.reached),
            row.unit,
            row.command,
        );
    }
    text
}

/// All floors as a table for a page.
#[must_use]
pub fn floors(lines: &[Line]) -> String {
    let mut text = "| floor | per second | p50 µs | client CPU µs | server CPU µs |\n\
                    |---|---|---|---|---|\n"
        .to_owned();
    let known = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
    for row in Floors::of(lines).0.values() {
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            row.floor,
            figure(row.ops_per_s),
            known(row.p50_us),
            known(row.client_cpu_us_per_op),
            known(row.server_cpu_us_per_op)
        );
    }
    text
}

/// Formats a figure with as many digits as have meaning.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => {
            let digits = format!("{value:.0}");
            let (sign, digits) =
                digits.strip_prefix('-').map_or(("", &*digits), |rest| ("-", rest));
            let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
            let groups =
                groups.into_iter().map(|group| String::from_utf8_lossy(group).into_owned());
            format!("{sign}{}", groups.collect::<Vec<_>>().join(","))
        }
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests;
