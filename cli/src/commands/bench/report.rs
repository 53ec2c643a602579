//! `pando bench report`: a table of targets and a drawing, from results in files or from a run of
//! its own.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use bench::report::{self, Line};

use super::suite::{self, Scale};
use crate::output;

/// Draw rates beside their floors, and print the table of targets.
///
/// Without files it first measures everything on this machine, with a server and mounts of its own
/// in a folder that it removes at the end: this needs /dev/fuse, takes less than five minutes on
/// two cores, and is what `make bench` does. What it measured goes to results.jsonl.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Results: what bench md --json, bench floor --json and this command have written.
    files: Vec<PathBuf>,
    /// The folder for report.svg and results.jsonl; it is made if need be.
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    out: PathBuf,
    /// Measure at the size of the targets (1 GiB, a million entries, ten million files), which
    /// takes half an hour, or with little of everything, which shows nothing but that it works.
    #[arg(long, value_enum, default_value_t = Size::Short, conflicts_with = "files")]
    size: Size,
    /// Where the server keeps its data, and the local file to compare with [default: the folder for
    /// temporary files].
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    directory: Option<PathBuf>,
    /// Threads that serve the null file system.
    #[arg(long, default_value = "1", value_name = "N", conflicts_with = "files")]
    fuse_threads: std::num::NonZeroUsize,
}

/// How much to do.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Size {
    Tiny,
    Short,
    Full,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let lines = if args.files.is_empty() {
        let scale = match args.size {
            Size::Tiny => Scale::TINY,
            Size::Short => Scale::SHORT,
            Size::Full => Scale::FULL,
        };
        let lines = suite::run(&scale, args.directory.as_deref(), args.fuse_threads)?;
        let results = lines.iter().map(|line| Ok(serde_json::to_string(line)? + "\n"));
        write(args, "results.jsonl", &results.collect::<anyhow::Result<String>>()?)?;
        lines
    } else {
        read(&args.files)?
    };
    write(args, "report.svg", &report::svg(&lines))?;
    output::print(&format!("{}\n{}", report::targets(&lines), report::floors(&lines)))?;
    Ok(ExitCode::SUCCESS)
}

fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for file in files {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        lines.extend(report::parse(&text).with_context(|| file.display().to_string())?);
    }
    Ok(lines)
}

fn write(args: &Args, name: &str, text: &str) -> anyhow::Result<()> {
    let file = args.out.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
