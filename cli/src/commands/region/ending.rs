//! The end of a region: everything is committed and compared, and what went wrong is said.

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use region::{Progress, Region, Verify};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::signals::Stop;

/// Paths that are compared at the end, unless all are to be, or none.
const VERIFIED: usize = 1_000;

/// Paths that are named.
const NAMED_MAX: usize = 20;

/// How a region ends.
#[derive(Debug, clap::Args)]
pub(super) struct EndingArgs {
    /// Compare nothing at the end, 1,000 paths, or everything.
    #[arg(long, value_enum, default_value_t = Compared::Some)]
    verify: Compared,
    /// Give up changes that the file system refuses for so long, as a full one does, at the end.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::values::length)]
    patience: Duration,
    /// Write contents that could not be committed to this directory, which is not in DIR.
    #[arg(long, value_name = "PATH")]
    spill: Option<PathBuf>,
}

/// How the end is reported.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct ReportArgs {
    /// Print what was committed, also where all went well.
    #[arg(long, short)]
    verbose: bool,
    /// Print the report as JSON on standard error.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Compared {
    No,
    Some,
    Full,
}

/// How a region ends, with the folder that it needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ending {
    verify: Compared,
    patience: Duration,
    spill: Option<PathBuf>,
}

/// The account of a region that has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Outcome {
    acknowledged: u64,
    committed: u64,
    superseded: u64,
    failed: u64,
    commits: u64,
    retried: u64,
    outside: u64,
    loads: u64,
    compared: Compared,
    differences: usize,
    flushed_ms: u64,
    /// Lines for people about what went wrong.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    wrong: Vec<String>,
}

impl EndingArgs {
    /// The end of a region on `dir`. The folder for what cannot be committed is there when this
    /// returns.
    pub(super) fn ending(&self, dir: &Path) -> anyhow::Result<Ending> {
        let spill = self.spill.as_deref().map(spilled).transpose()?;
        if let Some(spill) = &spill {
            ensure!(!spill.starts_with(dir), "{} is in the region", spill.display());
        }
        Ok(Ending { verify: self.verify, patience: self.patience, spill })
    }
}

fn spilled(path: &Path) -> anyhow::Result<PathBuf> {
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.with_context(|| format!("cannot use {}", path.display()))
}

/// Commits everything, compares it, and says what went wrong. The second signal that asks to stop
/// gives up what is not committed.
pub(super) async fn end(
    region: &Region,
    ending: &Ending,
    stop: &mut Stop,
    told: impl FnMut(&Progress),
) -> anyhow::Result<Outcome> {
    let since = Instant::now();
    let mut finishing = std::pin::pin!(region.finish(ending.patience, told));
    let mut asked = false;
    let finished = loop {
        tokio::select! {
            report = &mut finishing => break report.context("cannot make the region stable"),
            () = stop.hurried() => {
                let left = region.progress();
                let left = left.dirty + left.failed;
                ensure!(!asked, "interrupted: {left} changed paths were not committed");
                asked = true;
                warn(&format!("{left} changed paths are not committed yet; interrupt again to lose them"));
            }
        }
    };
    let flushed_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut wrong = Vec::new();
    // First of all, as nobody else has them.
    if let Some(spill) = ending.spill.as_deref().filter(|_| region.progress().failed > 0) {
        wrong.push(match region.spill(spill) {
            Ok(files) => format!("contents of {files} files are in {}", spill.display()),
            Err(error) => format!("cannot write to {}: {error}", spill.display()),
        });
    }
    let report = match finished {
        Ok(report) => report,
        Err(error) if wrong.is_empty() => return Err(error),
        Err(error) => return Err(error.context(wrong.join("; "))),
    };
    let verify = match ending.verify {
        Compared::No => Verify::No,
        Compared::Some => Verify::Some(VERIFIED),
        Compared::Full => Verify::All,
    };
    let differences = region.verify(verify).await.unwrap_or_else(|error| {
        wrong.push(format!("cannot compare the region: {error}"));
        Vec::new()
    });
    for (path, error) in report.failed.iter().take(NAMED_MAX) {
        wrong.push(format!("not committed: {path}: {error}"));
    }
    for difference in differences.iter().take(NAMED_MAX) {
        wrong.push(format!("differs: {}: {}", difference.path, difference.what));
    }
    if report.late > 0 {
        wrong.push(format!("mode and times of {} directories could not be set", report.late));
    }
    let counts = report.counts;
    if !counts.add_up() {
        wrong.push("changes are missing from the account; please report this".to_owned());
    }
    Ok(Outcome {
        acknowledged: counts.acknowledged,
        committed: counts.committed,
        superseded: counts.superseded,
        failed: counts.failed,
        commits: counts.commits,
        retried: counts.retried,
        outside: counts.outside,
        loads: counts.loads,
        compared: ending.verify,
        differences: differences.len(),
        flushed_ms,
        wrong,
    })
}

impl Outcome {
    /// Prints it, as far as it is asked for or something went wrong; whether nothing did.
    pub(super) fn report(mut self, args: ReportArgs) -> bool {
        let wrong = std::mem::take(&mut self.wrong);
        wrong.iter().for_each(|line| warn(line));
        if args.json {
            warn(&serde_json::to_string(&self).expect("numbers and words"));
        } else if args.verbose || !wrong.is_empty() {
            warn(&format!(
                "{} changes: {} committed in {} calls, {} superseded, {} refused; the end took {}",
                self.acknowledged,
                self.committed,
                self.commits,
                self.superseded,
                self.failed,
                humantime::format_duration(Duration::from_millis(self.flushed_ms)),
            ));
        }
        wrong.is_empty()
    }
}

/// A line for people, beside what the program prints.
pub(super) fn warn(text: &str) {
    // Without stderr there is no place for it.
    let _ = writeln!(std::io::stderr(), "pando: {text}");
}

/// How far commits are, on a terminal.
pub(super) fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{spinner} {msg}").expect("the template is well-formed");
    ProgressBar::new_spinner().with_style(style)
}

/// How far commits are, in words.
pub(super) fn message(progress: &Progress) -> String {
    let left = format!("{} paths to commit", progress.dirty + progress.late);
    match progress.trouble {
        Some(error) => format!("{left}: {error}; trying again"),
        None => left,
    }
}
