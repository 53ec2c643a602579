//! `pando region run`: start a region, run a program in it, and commit everything at its end.

use std::{
    ffi::OsString,
    fs::File,
    io::{IsTerminal as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use client::SystemClock;
use indicatif::{ProgressBar, ProgressStyle};
use mount::{Mounted, Options, Unmount};
use region::{Calls, Progress, Region, Report, Settings, Verify};
use rustix::{
    fs::FlockOperation,
    mount::MountPropagationFlags,
    process::{Pid, Signal, kill_process},
    thread::UnshareFlags,
};
use serde::Serialize;
use tokio::{task::LocalSet, time::Instant};

use crate::{connect, failure, mounting, signals::Stop, system::SystemRandom};

/// Tasks that commit at the same time.
const WORKERS: usize = 4;

/// Paths that are compared at the end, unless all are to be, or none.
const VERIFIED: usize = 1_000;

/// Differences that are named.
const NAMED_MAX: usize = 20;

/// Run a program in a consistent region, and commit what it changed.
///
/// The program, and what it starts, see DIR as a file system in the memory of this machine:
/// creates, writes, removals and renames there are answered before the file system of DIR has them,
/// which gets each path as it is some moments later. Others see the changes late. When the program
/// has ended, everything is committed and compared; then the command ends with the program's exit
/// code, or with 1 if something could not be committed, which it names.
///
/// If this process is killed, changes of which the program has not waited for an fsync may be lost.
/// Run by root, only the program sees the region; run by others, all processes of the user do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory, on any file system. Only one region may be on it.
    dir: PathBuf,
    /// The program, and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
    /// Keep files up to this size in memory, and write larger ones at once: at most 64K.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = inline)]
    inline_max: usize,
    /// Memory for what the region knows; what is committed is forgotten to keep to it.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = crate::values::size)]
    memory: u64,
    /// Changes that may wait to be committed; then the program waits.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    dirty_max: usize,
    /// Compare nothing at the end, 1,000 paths, or everything.
    #[arg(long, value_enum, default_value_t = Compared::Some)]
    verify: Compared,
    /// Give up changes that the file system refuses for so long, as a full one does, when the
    /// program has ended.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::values::length)]
    patience: Duration,
    /// Write contents that could not be committed to this directory, which is not in DIR.
    #[arg(long, value_name = "PATH")]
    spill: Option<PathBuf>,
    /// Mount options: noexec, dev, suid, allow_other, io_uring=auto|on|off and others of
    /// `pando mount`.
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = options)]
    options: Vec<String>,
    /// Print what was committed, also where all went well.
    #[arg(long, short)]
    verbose: bool,
    /// Print the report as JSON on standard error.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Compared {
    No,
    Some,
    Full,
}

/// The largest file that may be kept in memory.
const INLINE_MAX: u64 = 64 << 10;

fn inline(text: &str) -> Result<usize, String> {
    let size = crate::values::size(text)?;
    let size = usize::try_from(size).ok().filter(|_| size <= INLINE_MAX);
    size.ok_or_else(|| "it is more than 64K".to_owned())
}

fn options(text: &str) -> Result<String, String> {
    Options::default().set(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// The report, for programs.
#[derive(Debug, Serialize)]
struct Printed {
    acknowledged: u64,
    committed: u64,
    superseded: u64,
    failed: u64,
    commits: u64,
    retried: u64,
    outside: u64,
    loads: u64,
    compared: &'static str,
    differences: usize,
    flushed_ms: u128,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let dir =
        args.dir.canonicalize().with_context(|| format!("cannot use {}", args.dir.display()))?;
    let spill = args.spill.as_deref().map(spilled).transpose()?;
    if let Some(spill) = &spill {
        ensure!(!spill.starts_with(&dir), "{} is in the region", spill.display());
    }
    let below = region::Mounted::open(&dir)?;
    let _lock = lock(&dir)?;
    let work_dir = std::env::current_dir().ok();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        hide_mounts().context("cannot make a mount namespace")?;
    }
    // The region must not work in itself.
    std::env::set_current_dir("/")?;

    let settings = Settings {
        inline_max: args.inline_max,
        memory_max: usize::try_from(args.memory).unwrap_or(usize::MAX),
        dirty_max: args.dirty_max.max(1),
        ..Settings::default()
    };
    let mut options = Options { fsname: "pando-region".to_owned(), ..Options::default() };
    // The kernel checks what programs may do, so other users may be let in where it lets us.
    options.allow_other = is_root;
    options.over_mounts = true;
    for list in &args.options {
        options.set(list)?;
    }
    crate::system::raise_open_files();
    let runtime = connect::runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?;
        let random = SystemRandom::default();
        let key = base::HashKey::new(base::Random::next(&random), base::Random::next(&random));
        let clock = Arc::new(SystemClock);
        let region = Region::new(Arc::new(below), Calls::OnThreads, settings, clock, key)
            .map_err(|error| anyhow::anyhow!("cannot use {}: {error}", dir.display()))?;
        for _ in 0..WORKERS {
            tokio::spawn(region.clone().work());
        }
        let turns = mounting::turns(&options);
        let mounted = Box::pin(mount::run(region.clone(), &dir, &options, &turns)).await?;
        let ran = program(&args.program, work_dir.as_deref(), &mut stop).await;
        unmount(&dir, mounted).await;
        let finished = Box::pin(finish(&region, &args, spill.as_deref(), &mut stop)).await;
        // The program's own failure is the first one to tell.
        let status = ran?;
        Ok(if finished? || !status.success() { exit_code(status) } else { failure::failed() })
    })
}

/// The directory for what cannot be committed, which is there when this returns.
fn spilled(path: &Path) -> anyhow::Result<PathBuf> {
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.with_context(|| format!("cannot use {}", path.display()))
}

/// Lets nobody else begin a region on the directory, as long as this lives.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let file = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => bail!("a region is on {} already", dir.display()),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", dir.display())),
    }
}

/// Mounts of this process and its children are seen by them only.
fn hide_mounts() -> rustix::io::Result<()> {
    #[expect(deprecated, reason = "unsafe are file descriptors, and these stay shared")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", follow)
}

/// Runs the program in the region, and returns how it ended.
async fn program(
    words: &[OsString],
    work_dir: Option<&Path>,
    stop: &mut Stop,
) -> anyhow::Result<ExitStatus> {
    let (name, args) = words.split_first().expect("clap asks for one");
    let mut command = Command::new(name);
    command.args(args);
    if let Some(work_dir) = work_dir {
        // The same path, which may lead into the region by now.
        command.current_dir(work_dir);
        command.env("PWD", work_dir);
    }
    let name = name.clone();
    let shown = || format!("cannot run {}", Path::new(&name).display());
    // Before the program begins, its process looks up its folder and itself, perhaps in the region:
    // so this thread must go on with serving it.
    let spawned = tokio::task::spawn_blocking(move || command.spawn()).await?;
    let mut child = spawned.with_context(shown)?;
    let pid = Pid::from_child(&child);
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    loop {
        tokio::select! {
            status = &mut ended => return status?.with_context(shown),
            // Ctrl-C reaches the program by itself; being told to end reaches only us. It may have
            // ended just now.
            () = stop.asked() => drop(kill_process(pid, Signal::TERM)),
        }
    }
}

/// Takes the mount away. What still uses it loses it.
async fn unmount(dir: &Path, mounted: Mounted) {
    if let Err(error) = mount::unmount(dir, Unmount::WhenIdle).await {
        tracing::warn!(%error, "programs still use the region; they lose it");
        if let Err(error) = mount::unmount(dir, Unmount::Lazy).await {
            tracing::warn!(%error, "cannot unmount");
        }
        return;
    }
    if let Err(error) = mounted.ended().await {
        tracing::warn!(%error, "the mount ended with an error");
    }
}

/// Commits everything, compares it, and says what went wrong; whether nothing did.
async fn finish(
    region: &Region,
    args: &Args,
    spill: Option<&Path>,
    stop: &mut Stop,
) -> anyhow::Result<bool> {
    let since = Instant::now();
    let bar = bar();
    let told = |progress: &Progress| bar.set_message(message(progress));
    let mut ending = std::pin::pin!(region.finish(args.patience, told));
    let mut asked = false;
    let finished = loop {
        tokio::select! {
            report = &mut ending => break report,
            () = stop.asked() => {
                let left = region.progress();
                let left = left.dirty + left.failed;
                ensure!(!asked, "interrupted: {left} changed paths were not committed");
                asked = true;
                warn(&format!("{left} changed paths are not committed yet; interrupt again to lose them"));
            }
        }
    };
    bar.finish_and_clear();
    let report = finished.context("cannot make the region stable")?;
    let flushed = since.elapsed();
    let verify = match args.verify {
        Compared::No => Verify::No,
        Compared::Some => Verify::Some(VERIFIED),
        Compared::Full => Verify::All,
    };
    let differences = region.verify(verify).await.context("cannot compare the region")?;
    for (path, error) in report.failed.iter().take(NAMED_MAX) {
        warn(&format!("not committed: {path}: {error}"));
    }
    for difference in differences.iter().take(NAMED_MAX) {
        warn(&format!("differs: {}: {}", difference.path, difference.what));
    }
    if let Some(spill) = spill.filter(|_| !report.failed.is_empty()) {
        let files =
            region.spill(spill).with_context(|| format!("cannot write to {}", spill.display()))?;
        warn(&format!("contents of {files} files are in {}", spill.display()));
    }
    if !report.counts.add_up() {
        warn("changes are missing from the account; please report this");
    }
    say(args, &report, differences.len(), flushed);
    Ok(report.failed.is_empty() && differences.is_empty() && report.counts.add_up())
}

fn say(args: &Args, report: &Report, differences: usize, flushed: Duration) {
    let counts = report.counts;
    if args.json {
        let printed = Printed {
            acknowledged: counts.acknowledged,
            committed: counts.committed,
            superseded: counts.superseded,
            failed: counts.failed,
            commits: counts.commits,
            retried: counts.retried,
            outside: counts.outside,
            loads: counts.loads,
            compared: match args.verify {
                Compared::No => "no",
                Compared::Some => "some",
                Compared::Full => "full",
            },
            differences,
            flushed_ms: flushed.as_millis(),
        };
        warn(&serde_json::to_string(&printed).expect("numbers and words"));
    } else if args.verbose || !report.failed.is_empty() || differences > 0 {
        warn(&format!(
            "{} changes: {} committed in {} calls, {} superseded, {} refused; the end took {}",
            counts.acknowledged,
            counts.committed,
            counts.commits,
            counts.superseded,
            counts.failed,
            humantime::format_duration(Duration::from_millis(
                u64::try_from(flushed.as_millis()).unwrap_or(u64::MAX)
            )),
        ));
    }
}

/// A line for people, beside what the program prints.
fn warn(text: &str) {
    // Without stderr there is no place for it.
    let _ = writeln!(std::io::stderr(), "pando: {text}");
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{spinner} {msg}").expect("the template is well-formed");
    ProgressBar::new_spinner().with_style(style)
}

fn message(progress: &Progress) -> String {
    let left = format!("{} paths to commit", progress.dirty + progress.late);
    match progress.trouble {
        Some(error) => format!("{left}: {error}; trying again"),
        None => left,
    }
}

/// The program's own exit code, as a shell has it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
