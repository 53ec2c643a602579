//! Programs that people run on a file system: what `pando bench apps` runs, and how its results are
//! put together.
//!
//! A [`Tree`] is what the programs work on: made from a seed, so that two machines measure the same
//! work. [`App`] lists the programs in the order in which they run. Rows of one run become a table
//! and a drawing, each place beside the first one.
//!
//! Nothing is started, written or measured here.

mod tree;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    figure::{Chart, Figure, Marks},
    median,
    report::figure,
};

pub use tree::{Content, File, Tree};

/// A program, or one of its commands, that is timed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum App {
    /// `tar -x` of the tree.
    Untar,
    /// `find` that looks at each file's size.
    Find,
    /// The same once more.
    FindAgain,
    /// `grep -r` for a word that no file has: reads all contents.
    Grep,
    /// `cp -a` of the tree.
    Copy,
    /// `git add` of the tree.
    GitAdd,
    /// `git commit`.
    GitCommit,
    /// `git status`.
    GitStatus,
    /// `make` of the program in the tree, with the compiler.
    Make,
    /// `rm -r` of the copy.
    RemoveCopy,
    /// `rm -r` of the tree, its repository included.
    RemoveTree,
}

impl App {
    /// All of them, in the order in which they run.
    pub const ALL: [App; 11] = [
        App::Untar,
        App::Find,
        App::FindAgain,
        App::Grep,
        App::Copy,
        App::GitAdd,
        App::GitCommit,
        App::GitStatus,
        App::Make,
        App::RemoveCopy,
        App::RemoveTree,
    ];

    /// Name in tables and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            App::Untar => "untar",
            App::Find => "find",
            App::FindAgain => "find-again",
            App::Grep => "grep",
            App::Copy => "copy",
            App::GitAdd => "git-add",
            App::GitCommit => "git-commit",
            App::GitStatus => "git-status",
            App::Make => "make",
            App::RemoveCopy => "remove-copy",
            App::RemoveTree => "remove-tree",
        }
    }

    /// Whether the program changes files, so that a sync after it takes time.
    #[must_use]
    pub fn changes(self) -> bool {
        match self {
            App::Untar
            | App::Copy
            | App::GitAdd
            | App::GitCommit
            | App::Make
            | App::RemoveCopy
            | App::RemoveTree => true,
            App::Find | App::FindAgain | App::Grep | App::GitStatus => false,
        }
    }
}

/// One program at one place in one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppRow {
    /// The program.
    pub app: App,
    /// Name of the place.
    pub place: String,
    /// Turn, from 0.
    pub turn: usize,
    /// Entries of the tree: files and directories.
    pub entries: u64,
    /// Seconds until the program had ended.
    pub seconds: f64,
    /// Seconds until all that it wrote was on stable storage, too.
    pub synced_seconds: f64,
    /// Requests of the kernel to the mount, by kind; `None` where they cannot be read.
    pub kernel_requests: Option<BTreeMap<String, u64>>,
    /// Requests that the server got; `None` where there is none, or it does not tell.
    pub server_requests: Option<u64>,
}

/// Medians of one program at one place.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Summed {
    seconds: f64,
    synced_seconds: f64,
    kernel_per_entry: Option<f64>,
    server_per_entry: Option<f64>,
}

/// Names of all places, in the order in which they first came.
fn places(rows: &[AppRow]) -> Vec<&str> {
    let mut names = Vec::new();
    for row in rows {
        if !names.contains(&row.place.as_str()) {
            names.push(row.place.as_str());
        }
    }
    names
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
fn summed(rows: &[AppRow], app: App, place: &str) -> Option<Summed> {
    let of: Vec<_> = rows.iter().filter(|row| row.app == app && row.place == place).collect();
    let middle = |value: &dyn Fn(&AppRow) -> Option<f64>| {
        of.iter().map(|row| value(row)).collect::<Option<Vec<_>>>().and_then(median)
    };
    let per_entry = |requests: u64, row: &AppRow| requests as f64 / row.entries as f64;
    Some(Summed {
        seconds: middle(&|row| Some(row.seconds))?,
        synced_seconds: middle(&|row| Some(row.synced_seconds))?,
        kernel_per_entry: middle(&|row| {
            row.kernel_requests.as_ref().map(|kinds| {
                // A FORGET has no answer, and no program waits for it.
                let waited = kinds.iter().filter(|(kind, _)| *kind != "FORGET");
                per_entry(waited.map(|(_, number)| number).sum(), row)
            })
        }),
        server_per_entry: middle(&|row| row.server_requests.map(|n| per_entry(n, row))),
    })
}

/// The tables of a run, for people: seconds beside those of the first place, and requests.
#[must_use]
pub fn tables(rows: &[AppRow]) -> String {
    let places = places(rows);
    let mut text = String::new();
    let mut table = |title: &str, cell: &dyn Fn(App, &str) -> Option<String>| {
        let cells = |app| places.iter().map(|place| cell(app, place)).collect::<Vec<_>>();
        let lines: Vec<_> = App::ALL.into_iter().map(|app| (app, cells(app))).collect();
        if lines.iter().all(|(_, cells)| cells.iter().all(Option::is_none)) {
            return;
        }
        let dash = || "–".to_owned();
        text += &format!("{title}\n\n| program | {} |\n", places.join(" | "));
        text += &format!("|{}\n", "---|".repeat(places.len() + 1));
        for (app, cells) in lines.into_iter().filter(|(_, cells)| cells.iter().any(Option::is_some))
        {
            let cells: Vec<_> = cells.into_iter().map(|cell| cell.unwrap_or_else(dash)).collect();
            text += &format!("| {} | {} |\n", app.name(), cells.join(" | "));
        }
        text += "\n";
    };
    let first = places.first().copied().unwrap_or_default();
    let beside = |app, place: &str, of: fn(&Summed) -> f64| {
        let value = of(&summed(rows, app, place)?);
        let reference = summed(rows, app, first).map(|reference| of(&reference));
        let ratio = reference.filter(|_| place != first).filter(|reference| *reference > 0.0);
        let ratio = ratio
            .map_or_else(String::new, |reference| format!(" ({} x)", figure(value / reference)));
        Some(format!("{value:.3}{ratio}"))
    };
    let first_is = format!("in brackets: times {first}");
    table(&format!("Seconds until the program has ended ({first_is})"), &|app, place| {
        beside(app, place, |summed| summed.seconds)
    });
    table(&format!("Seconds until all is on stable storage ({first_is})"), &|app, place| {
        app.changes().then(|| beside(app, place, |summed| summed.synced_seconds)).flatten()
    });
    table("Requests of the kernel for each entry of the tree", &|app, place| {
        summed(rows, app, place)?.kernel_per_entry.map(figure)
    });
    table("Requests to the server for each entry of the tree", &|app, place| {
        summed(rows, app, place)?.server_per_entry.map(figure)
    });
    text
}

/// The drawing of a run, with all its medians as data.
#[must_use]
pub fn drawing(rows: &[AppRow], parameters: Vec<(String, String)>) -> Figure {
    let places = places(rows);
    let mut charts = [
        Chart::new("times the seconds of the first place", "program", Marks::Bars),
        Chart::new("seconds until the program has ended", "program", Marks::Bars),
        Chart::new("seconds until all is on stable storage", "program", Marks::Bars),
        Chart::new("requests of the kernel for an entry", "program", Marks::Bars),
        Chart::new("requests to the server for an entry", "program", Marks::Bars),
    ];
    for app in App::ALL {
        let first = places.first().and_then(|place| summed(rows, app, place));
        for place in &places {
            let Some(value) = summed(rows, app, place) else { continue };
            let ratio = first.map(|first| value.seconds / first.seconds);
            let [times, seconds, synced, kernel, server] = &mut charts;
            for (chart, value) in [
                (times, ratio.filter(|ratio| ratio.is_finite())),
                (seconds, Some(value.seconds)),
                (synced, app.changes().then_some(value.synced_seconds)),
                (kernel, value.kernel_per_entry),
                (server, value.server_per_entry),
            ] {
                if let Some(value) = value {
                    chart.add(app.name(), place, value);
                }
            }
        }
    }
    Figure {
        name: "apps".to_owned(),
        title: "programs on a tree of small files".to_owned(),
        how:
            "the programs themselves, one after the other, in turns at all places; medians of the \
              turns; a sync is fsync of the directory and syncfs"
                .to_owned(),
        parameters,
        charts: charts.into_iter().filter(|chart| !chart.series.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "these are tests")]

    use super::*;

    fn row(app: App, place: &str, turn: usize, seconds: f64) -> AppRow {
        let kinds = [("LOOKUP".to_owned(), 30), ("FORGET".to_owned(), 100)];
        AppRow {
            app,
            place: place.to_owned(),
            turn,
            entries: 10,
            seconds,
            synced_seconds: seconds + 1.0,
            kernel_requests: (place == "mount").then(|| kinds.into_iter().collect()),
            server_requests: (place == "mount").then_some(25),
        }
    }

    fn rows() -> Vec<AppRow> {
        let mut rows = Vec::new();
        for (turn, seconds) in [1.0, 9.0, 2.0].into_iter().enumerate() {
            rows.push(row(App::Untar, "disk", turn, seconds));
            rows.push(row(App::Untar, "mount", turn, seconds * 3.0));
            rows.push(row(App::Find, "mount", turn, 0.5));
        }
        rows
    }

    #[test]
    fn each_place_stands_beside_the_first_one() {
        let tables = tables(&rows());
        assert!(tables.contains("| program | disk | mount |"), "{tables}");
        assert!(tables.contains("| untar | 2.000 | 6.000 (3.00 x) |"), "{tables}");
        assert!(tables.contains("| untar | 3.000 | 7.000 (2.33 x) |"), "{tables}");
        // Programs that were not measured are left out.
        assert!(tables.contains("| find | – | 0.500 |") && !tables.contains("grep"), "{tables}");
        assert!(tables.contains("| untar | – | 3.00 |"), "forgets do not count: {tables}");
        assert!(tables.contains("| untar | – | 2.50 |"), "{tables}");
    }

    #[test]
    fn a_drawing_has_the_ratios_and_what_they_are_of() {
        let figure = drawing(&rows(), Vec::new());
        assert_eq!(figure.charts.len(), 5);
        assert_eq!(figure.charts[0].value("untar", "mount"), Some(3.0));
        assert_eq!(figure.charts[2].value("untar", "mount"), Some(7.0));
        assert_eq!(figure.charts[2].value("find", "mount"), None);
        assert_eq!(figure.charts[4].value("find", "mount"), Some(2.5));
        assert!(figure.svg().contains("untar"));
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let row = row(App::RemoveCopy, "mount", 1, 0.25);
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.contains("\"app\":\"remove-copy\""), "{text}");
        assert_eq!(serde_json::from_str::<AppRow>(&text).unwrap(), row);
    }
}
