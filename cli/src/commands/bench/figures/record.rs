//! Files of an experiment's results: the data with the facts needed to judge it, and the drawing.
//!
//! A record says by which command, from which commit and on which machine it came; those of
//! `docs/figures` are kept.

use std::{fs, path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;
use base::Clock as _;
use bench::{
    figure::Figure,
    report::{self, Line, TargetRow},
};
use client::SystemClock;
use serde::Serialize;

use super::outcome::Outcome;
use crate::output;

/// Options whose value says only where something is on one machine.
const PLACES: [&str; 2] = ["--out", "--directory"];

/// Origin of a figure.
#[derive(Debug, Serialize)]
pub(in super::super) struct Record {
    command: String,
    /// The commit that the program was built from; debug builds do not know theirs.
    commit: Option<&'static str>,
    version: &'static str,
    build: &'static str,
    machine: Machine,
    seconds: f64,
    unix_time: i64,
}

/// Machine on which a figure was measured.
#[derive(Debug, Serialize)]
struct Machine {
    processor: Option<String>,
    cores: usize,
    memory_bytes: Option<u64>,
    kernel: Option<String>,
}

/// A figure as it is kept.
#[derive(Serialize)]
struct Kept<'a> {
    record: Record,
    #[serde(flatten)]
    figure: &'a Figure,
    targets: &'a [TargetRow],
}

impl Record {
    /// Record of the measurement that this program has just done, in so many seconds.
    pub(in super::super) fn of_now(seconds: f64) -> Record {
        Record {
            command: command(std::env::args().skip(1)),
            commit: option_env!("PANDO_REVISION"),
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            machine: Machine::this(),
            seconds,
            unix_time: SystemClock.now().sec,
        }
    }
}

impl Machine {
    fn this() -> Machine {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kib = field("/proc/meminfo", "MemTotal");
        let kib = kib.and_then(|kib| kib.trim_end_matches("kB").trim().parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Machine {
            processor: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.map(|kib| kib * 1024),
            kernel: kernel.map(|release| release.trim().to_owned()),
        }
    }
}

/// The command that was given, without places of this machine.
fn command(args: impl Iterator<Item = String>) -> String {
    let mut words = vec!["pando".to_owned()];
    let mut args = args;
    while let Some(arg) = args.next() {
        if PLACES.contains(&arg.as_str()) {
            args.next();
        } else if !PLACES.iter().any(|place| arg.starts_with(&format!("{place}="))) {
            words.push(arg);
        }
    }
    words.join(" ")
}

pub(in super::super) fn make_folder(out: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))
}

pub(super) fn write(out: &Path, name: &str, of: &Outcome, seconds: f64) -> anyhow::Result<()> {
    let kept = Kept { record: Record::of_now(seconds), figure: &of.figure, targets: &of.reach };
    let data = serde_json::to_string_pretty(&kept)? + "\n";
    // The drawing comes first: where there is data, all of the record is there.
    write_file(out, &format!("{name}.svg"), &of.figure.svg())?;
    write_file(out, &format!("{name}.json"), &data)
}

pub(super) fn write_reach(out: &Path, reach: &[Line]) -> anyhow::Result<()> {
    let lines = reach.iter().map(|line| Ok(serde_json::to_string(line)? + "\n"));
    write_file(out, "reach.jsonl", &lines.collect::<anyhow::Result<String>>()?)
}

/// Writes a whole file or none.
pub(in super::super) fn write_file(out: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let (file, new) = (out.join(name), out.join(format!("{name}.new")));
    fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))
}

/// Writes and prints what the only experiment of a command found, which began at `start`.
pub(super) fn single(out: &Path, start: Duration, outcome: Outcome) -> anyhow::Result<ExitCode> {
    make_folder(out)?;
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
    write(out, &outcome.figure.name, &outcome, seconds)?;
    let Outcome { figure, reach } = outcome;
    let reach: Vec<_> = reach.into_iter().map(Line::Target).collect();
    write_reach(out, &reach)?;
    output::print(&format!("{}\n{}", figure.text(), report::targets(&reach)))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_kept_without_the_places_of_its_machine() {
        let given = "bench figures sfs --out /a/b --only fig4 --directory=/tmp --rounds 1";
        let kept = command(given.split(' ').map(str::to_owned));
        assert_eq!(kept, "pando bench figures sfs --only fig4 --rounds 1");
    }
}
