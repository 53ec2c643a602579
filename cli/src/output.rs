//! Output on stdout: text for people, JSON for programs.

use std::{
    fmt,
    io::{self, Write as _},
};

use serde::Serialize;

/// Stdout could not be written to.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) io::Error);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write to stdout")
    }
}

impl std::error::Error for Lost {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Prints text, which ends with a line feed or gets one.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    let written = write!(out, "{text}{end}").and_then(|()| out.flush());
    Ok(written.map_err(Lost)?)
}

/// Goes on where nobody reads what was printed.
pub(crate) fn or_log(printed: anyhow::Result<()>) {
    if let Err(error) = printed {
        tracing::debug!(error = format!("{error:#}"), "nobody reads what is printed");
    }
}

/// Prints one JSON value.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Rows of a name and a value, the values in one column.
pub(crate) fn rows(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// A table: heads and cells in columns, numbers to the right.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &Vec<String>, at: usize| row.get(at).map_or("", String::as_str).to_owned();
    let columns: Vec<(usize, bool)> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            let cells = rows.iter().map(|row| cell(row, at));
            let width = cells.map(|cell| cell.chars().count()).chain([head.len()]).max();
            let starts = |row| cell(row, at).starts_with(|c: char| c.is_ascii_digit());
            (width.unwrap_or(0), !rows.is_empty() && rows.iter().all(starts))
        })
        .collect();
    let line = |cells: Vec<String>| {
        let padded = cells.iter().zip(&columns).map(|(cell, (width, right))| {
            if *right { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(heads.iter().map(|head| (*head).to_owned()).collect());
    for row in rows {
        text += &line((0..heads.len()).map(|at| clean(&cell(row, at))).collect());
    }
    text
}

/// Replaces control characters, which a terminal would obey, in text that others chose.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Bytes for people: `1.5 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let tenths = |unit: usize| u128::from(bytes) * 10 / (1u128 << (10 * (unit + 1)));
    let unit = (0..UNITS.len()).rfind(|unit| tenths(*unit) >= 10).unwrap_or(0);
    format!("{}.{} {}", tenths(unit) / 10, tenths(unit) % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_nothing_commands_the_terminal() {
        let rows = [vec!["a\u{1b}[2J".to_owned(), "7".to_owned()], vec!["b".into(), "100".into()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME     N\na?[2J    7\nb      100\n");
    }

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_fits() {
        let shown = [0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 30, u64::MAX].map(bytes);
        assert_eq!(
            shown,
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 KiB", "1.0 GiB", "15.9 EiB"]
        );
    }
}
