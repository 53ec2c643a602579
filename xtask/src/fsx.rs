//! The `fsx` suite: random reads and writes of one file, each read compared with what was written.
//!
//! `ci` and `cargo xtask fsx` call this. Seeds are fixed, so a failure is seen again by running
//! again.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    step::{self, now, say},
    tools,
};

const DEADLINE: Duration = Duration::from_secs(600);

/// One run: sizes in bytes, chosen to cross a border where contents change their form.
#[derive(Clone, Copy)]
struct Run {
    name: &'static str,
    seed: u32,
    operations: u32,
    file_max: u32,
    operation_max: u32,
}

const RUNS: [Run; 3] = [
    // Around 4 KiB, where contents leave the entry.
    Run { name: "small", seed: 1, operations: 5_000, file_max: 12 << 10, operation_max: 6 << 10 },
    // The suite's own sizes: many overwrites of few pages.
    Run {
        name: "usual",
        seed: 2,
        operations: 10_000,
        file_max: 256 << 10,
        operation_max: 64 << 10,
    },
    // Several blocks, with operations that span them.
    Run { name: "large", seed: 3, operations: 2_000, file_max: 32 << 20, operation_max: 6 << 20 },
];

/// Amount of the test to run.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// All.
    Full,
    /// A part of the operations, with seeds of this number's own.
    Short(u32),
}

/// Factor by which a short run is shorter.
const SHORTER: u32 = 8;
/// Between the seeds of two short runs.
const SEEDS_APART: u32 = 100;

/// Runs it on files in a directory.
pub(crate) fn run(root: &Path, dir: &Path, part: Part) -> anyhow::Result<()> {
    let program = tools::ensure(root, &tools::FSX)?;
    RUNS.iter().try_for_each(|run| {
        let run = match part {
            Part::Full => *run,
            Part::Short(number) => Run {
                seed: run.seed + SEEDS_APART * number,
                operations: run.operations / SHORTER,
                ..*run
            },
        };
        run_one(&program, dir, &run)
    })
}

fn run_one(program: &Path, dir: &Path, run: &Run) -> anyhow::Result<()> {
    let work = tempfile::tempdir()?;
    let config = work.path().join("fsx.toml");
    fs::write(&config, configuration(run))?;
    let file = dir.join(format!("fsx-{}", run.name));
    let log = work.path().join("output");
    let output = fs::File::create(&log)?;
    let start = now();
    let mut child = Command::new(program)
        .arg("-f")
        .arg(&config)
        .args(["-N", &run.operations.to_string(), "-S", &run.seed.to_string()])
        .arg("-P")
        .arg(work.path())
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let ended = step::wait(&mut child, DEADLINE);
    if ended.is_err() {
        say(&String::from_utf8_lossy(&fs::read(&log)?));
    }
    ended.with_context(|| format!("fsx {} (seed {})", run.name, run.seed))?;
    let seconds = start.elapsed().as_secs_f64();
    say(&format!("fsx {}: {} operations in {seconds:.1} s", run.name, run.operations));
    fs::remove_file(&file).with_context(|| file.display().to_string())
}

/// Every operation that the suite has.
fn configuration(run: &Run) -> String {
    format!(
        "flen = {}\n\
         [opsize]\n\
         max = {}\n\
         [weights]\n\
         close_open = 2\n\
         read = 10\n\
         write = 10\n\
         mapread = 10\n\
         mapwrite = 10\n\
         invalidate = 1\n\
         truncate = 5\n\
         fsync = 1\n\
         fdatasync = 1\n\
         sendfile = 5\n\
         posix_fadvise = 1\n\
         posix_fallocate = 3\n\
         punch_hole = 5\n\
         copy_file_range = 5\n",
        run.file_max, run.operation_max
    )
}
