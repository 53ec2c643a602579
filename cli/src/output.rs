//! What is printed on stdout: text for people, JSON for programs.

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

/// Prints one JSON value.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Rows of a name and a value, the values in one column.
pub(crate) fn rows(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
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
    fn bytes_are_shown_in_the_largest_unit_that_fits() {
        let shown = [0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 30, u64::MAX].map(bytes);
        assert_eq!(
            shown,
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 KiB", "1.0 GiB", "15.9 EiB"]
        );
    }
}
