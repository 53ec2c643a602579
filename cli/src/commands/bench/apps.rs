//! `pando bench apps`: how long programs take on a tree of small files, at several places in turns.
//!
//! The programs are those of the machine: tar, find, grep, cp, git, make and rm. A place is a
//! directory that was named, or a file system that is made for the run ([`place`]). Each turn runs
//! all programs at each place, one after the other, on a tree that they make and remove.
//!
//! Always true: what a run has made is removed at its end, whatever the end.

mod place;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use bench::apps::{App, AppRow, Tree};
use clap::ValueEnum;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{fsync, syncfs},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};

use super::{figures, folder::Folder, interrupt::Interrupt};
use crate::{output, values};
use place::Place;

/// How often it is looked whether the run was interrupted while a program runs. The end of the
/// program is seen at once.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Longest time of one program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(1800);
/// Bytes of what a program said that an error shows.
const SAID_BYTES_MAX: usize = 2000;

/// Time programs on a tree of small files: tar, find, grep, cp, git, make and rm, at several places
/// in turns.
///
/// A place is a directory, or a file system that is made for the run (--with). Everything stands
/// beside the first place. Where a place is a mount of pando, the requests of the kernel to the
/// mount and of the mount to its server are counted, too.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directories to run in, after the places of --with.
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// File systems to make for the run [default: ext4,null,up,serve, without ext4 if not root;
    /// none if directories are given].
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    with: Vec<Own>,
    /// Round trip that is added for serve-far.
    #[arg(long, default_value = "200us", value_name = "TIME", value_parser = values::rtt)]
    rtt: Duration,
    /// Bytes up to which serve and serve-far keep files with their metadata, as of `pando format`.
    #[arg(long, value_name = "BYTES", value_parser = crate::commands::format::inline_max)]
    inline_max: Option<u32>,
    /// Files and directories of the tree.
    #[arg(
        long, default_value_t = 16_000, value_name = "N",
        value_parser = clap::value_parser!(u64).range(20..=10_000_000)
    )]
    entries: u64,
    /// Bytes in all files of the tree.
    #[arg(long, default_value = "168MiB", value_name = "SIZE", value_parser = values::size)]
    bytes: u64,
    /// Seed of the tree: the same seed makes the same tree.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// How many turns; the medians are printed.
    #[arg(
        long, default_value_t = 3, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    turns: u16,
    /// Options of the mounts that are made, as of `pando mount -o`.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Option<String>,
    /// Where to keep the archive of the tree, the data of servers and the mounts [default: the
    /// folder for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Also write the results to DIR: apps.jsonl, apps.json and the drawing apps.svg.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print a JSON object for each program, place and turn, a line each.
    #[arg(long)]
    json: bool,
}

/// A file system that is made for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Own {
    /// ext4 on a loop device in memory; root only.
    Ext4,
    /// A FUSE file system in memory with nothing behind it: the kernel's share.
    Null,
    /// The same over io_uring.
    NullIoUring,
    /// `pando up`: server and mount in one process.
    Up,
    /// A mount beside a server.
    Serve,
    /// The same with the round trip of --rtt.
    ServeFar,
}

impl Own {
    fn name(self) -> &'static str {
        match self {
            Own::Ext4 => "ext4",
            Own::Null => "null",
            Own::NullIoUring => "null-io-uring",
            Own::Up => "up",
            Own::Serve => "serve",
            Own::ServeFar => "serve-far",
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (start, interrupt) = (bench::monotonic(), Interrupt::watch()?);
    let folder = Folder::make(args.directory.as_deref())?;
    let tree = Tree::of(args.seed, args.entries, args.bytes);
    let archive = archive(&tree, folder.path(), &interrupt)?;
    let mut places = Vec::new();
    for own in args.own() {
        let path = folder.path().join(own.name());
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let made = Place::make(own, &path, args.options.as_deref(), (args.rtt, args.inline_max));
        places.push(made.with_context(|| {
            format!("cannot make the place {0}: leave it out with --with", own.name())
        })?);
        interrupt.check()?;
    }
    for directory in &args.directories {
        places.push(Place::given(directory)?);
    }
    ensure!(!places.is_empty(), "no place: name a directory, or a file system with --with");
    let work = Work {
        archive: &archive,
        tree: &tree,
        home: folder.path(),
        interrupt: &interrupt,
        said: &folder.path().join("said"),
    };
    let mut rows = Vec::new();
    for turn in 0..usize::from(args.turns) {
        for place in &mut places {
            tracing::info!(turn, place = place.name(), "running the programs");
            rows.extend(work.turn(place, turn)?);
        }
    }
    while let Some(place) = places.pop() {
        place.end()?;
    }
    args.tell(&rows, start)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Places to make.
    fn own(&self) -> Vec<Own> {
        if !self.with.is_empty() {
            return self.with.clone();
        }
        if !self.directories.is_empty() {
            return Vec::new();
        }
        let ext4 = rustix::process::geteuid().is_root().then_some(Own::Ext4);
        ext4.into_iter().chain([Own::Null, Own::Up, Own::Serve]).collect()
    }

    /// Prints and writes the results of a run that began at `start`.
    fn tell(&self, rows: &[AppRow], start: Duration) -> anyhow::Result<()> {
        let lines = rows.iter().map(|row| Ok(serde_json::to_string(row)? + "\n"));
        let lines = lines.collect::<anyhow::Result<String>>()?;
        if let Some(out) = &self.out {
            let parameters = [
                ("--entries", self.entries.to_string()),
                ("--bytes", output::bytes(self.bytes)),
                ("--seed", self.seed.to_string()),
                ("--turns", self.turns.to_string()),
                ("--rtt", humantime::format_duration(self.rtt).to_string()),
            ];
            let parameters =
                parameters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let figure = bench::apps::drawing(rows, parameters);
            figures::keep(out, start, figure, ("apps.jsonl", &lines))?;
        }
        let text = if self.json { lines } else { bench::apps::tables(rows) };
        output::print(text.trim_end_matches('\n'))
    }
}

/// Writes the tree and packs it.
fn archive(tree: &Tree, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let (root, archive) = (folder.join("tree"), folder.join("tree.tar"));
    fs::create_dir(&root)?;
    for directory in &tree.directories {
        fs::create_dir(root.join(directory))?;
    }
    let text = tree.text();
    for file in &tree.files {
        interrupt.check()?;
        fs::write(root.join(&file.path), file.content.bytes(&text))?;
    }
    let mut tar = Command::new("tar");
    tar.arg("-c").arg("-f").arg(&archive).arg("tree").current_dir(folder);
    let status = tar.stdin(Stdio::null()).status().context("cannot start tar")?;
    ensure!(status.success(), "tar has not packed the tree: {status}");
    fs::remove_dir_all(&root)?;
    Ok(archive)
}

/// Facts that all programs of a run need.
struct Work<'a> {
    archive: &'a Path,
    tree: &'a Tree,
    /// Home directory of the programs: nothing that a user has configured changes what they do.
    home: &'a Path,
    interrupt: &'a Interrupt,
    /// File for what a program says.
    said: &'a Path,
}

impl Work<'_> {
    /// Runs all programs at a place.
    fn turn(&self, place: &mut Place, turn: usize) -> anyhow::Result<Vec<AppRow>> {
        let folder = Folder::make(Some(place.root()))?;
        let tree = folder.path().join("tree");
        let mut rows = Vec::new();
        let mut before = place.requests();
        for app in App::ALL {
            if app == App::GitAdd {
                self.end_well(self.git(&tree, &["init", "--quiet"]), &[0])?;
                before = place.requests();
            }
            let at = format!("{} at {}", app.name(), place.name());
            let start = bench::monotonic();
            self.end_well(self.command(app, folder.path(), &tree), codes(app))
                .context(at.clone())?;
            let seconds = bench::monotonic().saturating_sub(start);
            let requests = place.requests();
            let syncing = bench::monotonic();
            if app.changes() {
                sync(folder.path()).context(at)?;
            }
            let synced = seconds + bench::monotonic().saturating_sub(syncing);
            rows.push(AppRow {
                app,
                place: place.name().to_owned(),
                turn,
                entries: self.tree.entries(),
                seconds: seconds.as_secs_f64(),
                synced_seconds: synced.as_secs_f64(),
                kernel_requests: grown(requests.kernel, before.kernel),
                server_requests: difference(requests.server, before.server),
            });
            before = place.requests();
        }
        Ok(rows)
    }

    fn command(&self, app: App, folder: &Path, tree: &Path) -> Command {
        let of = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args).current_dir(folder);
            command
        };
        match app {
            App::Untar => {
                let mut tar = of("tar", &["-x", "-f"]);
                tar.arg(self.archive);
                tar
            }
            App::Find | App::FindAgain => of("find", &["tree", "-type", "f", "-size", "+1k"]),
            App::Grep => of("grep", &["-r", "-l", "-F", "no such word", "tree"]),
            App::Copy => of("cp", &["-a", "tree", "copy"]),
            App::GitAdd => self.git(tree, &["add", "--all"]),
            App::GitCommit => self.git(tree, &["commit", "--quiet", "--message", "all"]),
            App::GitStatus => self.git(tree, &["status", "--porcelain"]),
            App::Make => of("make", &["--silent", "-j2", "-C", &self.in_tree(self.tree.program())]),
            App::RemoveCopy => of("rm", &["-r", "-f", "copy"]),
            App::RemoveTree => of("rm", &["-r", "-f", "tree"]),
        }
    }

    fn in_tree(&self, path: &str) -> String {
        format!("tree/{path}")
    }

    fn git(&self, tree: &Path, args: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]);
        git.args(["-c", "init.defaultBranch=main", "-c", "maintenance.auto=false"]);
        git.args(args).current_dir(tree);
        git
    }

    /// Runs a program to its end, which must be one of `codes`.
    fn end_well(&self, mut command: Command, codes: &[i32]) -> anyhow::Result<()> {
        // Most programs end before the first look of their own wait.
        self.interrupt.check()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let said = File::create(self.said)?;
        command.env("HOME", self.home).env("XDG_CONFIG_HOME", self.home).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
        // In a group of its own: the signals of a terminal are for us.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        if let Err(error) = self.wait(&child) {
            end_group(&mut child)?;
            return Err(error);
        }
        let status = child.wait()?;
        if status.code().is_some_and(|code| codes.contains(&code)) {
            return Ok(());
        }
        let said = fs::read(self.said)?;
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_BYTES_MAX)..]);
        bail!("{program} failed ({status}): {}", said.trim_end())
    }

    /// Waits until the child has ended, the run is interrupted or the time is over.
    fn wait(&self, child: &Child) -> anyhow::Result<()> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let start = bench::monotonic();
        loop {
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&LOOK)) {
                // A signal that is noted on another thread may end the wait of this one.
                Ok(0) | Err(Errno::INTR) => self.interrupt.check()?,
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            let taken = bench::monotonic().saturating_sub(start);
            ensure!(taken < PROGRAM_TIMEOUT, "not ended after {} s", taken.as_secs());
        }
    }
}

/// Exit codes with which a program has done its work.
fn codes(app: App) -> &'static [i32] {
    match app {
        // No file has the word: all of them are read.
        App::Grep => &[1],
        _ => &[0],
    }
}

/// Ends a program and those that it has started.
fn end_group(child: &mut Child) -> anyhow::Result<()> {
    // The group may have ended by itself.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait()?;
    Ok(())
}

/// Has everything below `folder` on stable storage. On a mount of pando the first call reaches the
/// servers, on other file systems the second one the disk.
fn sync(folder: &Path) -> anyhow::Result<()> {
    let folder = File::open(folder)?;
    fsync(&folder).context("cannot sync")?;
    syncfs(&folder).context("cannot sync")?;
    Ok(())
}

fn difference(after: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

fn grown(
    after: Option<BTreeMap<String, u64>>,
    before: Option<BTreeMap<String, u64>>,
) -> Option<BTreeMap<String, u64>> {
    let (mut after, before) = (after?, before?);
    for (kind, number) in &mut after {
        *number = number.saturating_sub(before.get(kind).copied().unwrap_or_default());
    }
    after.retain(|_, number| *number > 0);
    Some(after)
}
