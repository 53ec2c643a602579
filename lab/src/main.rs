//! `lab`: simulated worlds from the command line.
//!
//! `lab sim --seeds N` runs worlds and prints what happened in them; `lab sim --seed X --trace`
//! replays one. `lab planted` runs the worlds that must find a bug. `lab load DIR` is a program for
//! others to run on a mount.
#![expect(clippy::print_stdout, reason = "a program prints what it found")]

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use lab::sim::{self, Options, plan::About};

/// Tests of the whole system.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run simulated worlds.
    Sim(Sim),
    /// Run the worlds that must find a planted bug, with the bug and without.
    Planted {
        /// Where a pinned seed finds its bug no more, search another one and write it to the table.
        #[arg(long)]
        pin: bool,
    },
    /// Work in a new directory of any file system until the standard input ends; then check it.
    Load {
        /// The directory to make.
        dir: PathBuf,
    },
}

#[derive(Args)]
struct Sim {
    /// Number of seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// Only this seed, twice, to see that both runs are the same.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event (once).
    #[arg(long)]
    trace: bool,
    /// Let nothing go wrong.
    #[arg(long)]
    calm: bool,
    /// Number of servers in every world.
    #[arg(long)]
    servers: Option<u16>,
    /// Have many clients use one directory that splits and merges.
    #[arg(long)]
    crowd: bool,
    /// Have clients watch a directory.
    #[arg(long, conflicts_with = "crowd")]
    watch: bool,
    /// Have mounts that hold directories.
    #[arg(long, conflicts_with_all = ["crowd", "watch"])]
    delegations: bool,
    /// Have machines that are lost, and others that take their places.
    #[arg(long, conflicts_with_all = ["crowd", "watch", "delegations"])]
    machines: bool,
    /// Give servers one to three cores, and let some be away for longer than a lease.
    #[arg(long)]
    wide: bool,
    /// Have disks that are nearly full now and then.
    #[arg(long)]
    full: bool,
    /// Plant a bug in the servers, by its name.
    #[arg(long)]
    bug: Option<String>,
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Sim(args) => simulate(&args),
        Command::Planted { pin } => planted(pin),
        Command::Load { dir } => load(&dir),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn load(dir: &Path) -> anyhow::Result<()> {
    let over = AtomicBool::new(false);
    let operations = thread::scope(|threads| {
        threads.spawn(|| {
            // The load ends with the input, even after an error.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            over.store(true, Ordering::Relaxed);
        });
        lab::load::run(dir, || over.load(Ordering::Relaxed))
    })?;
    println!("{operations} operations");
    Ok(())
}

fn planted(pin: bool) -> anyhow::Result<()> {
    let missed = sim::planted::run_all(pin, |planted, found| match found {
        Ok(failure) => println!("{:?}: {failure}\n", planted.bug),
        Err(missed) => println!("{:?}: MISSED: {missed}\n", planted.bug),
    })?;
    if missed == 0 || pin { Ok(()) } else { bail!("{missed} pinned seeds find their bug no more") }
}

fn simulate(args: &Sim) -> anyhow::Result<()> {
    let bug = match &args.bug {
        None => None,
        Some(name) => {
            let found = meta::Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == *name);
            let Some(bug) = found else { bail!("no such bug; there are {:?}", meta::Bug::ALL) };
            Some(bug)
        }
    };
    let Sim { trace: print, calm, servers, wide, full, .. } = *args;
    let about = match args {
        Sim { crowd: true, .. } => About::Crowd,
        Sim { watch: true, .. } => About::Watch,
        Sim { delegations: true, .. } => About::Delegations,
        Sim { machines: true, .. } => About::Machines,
        _ => About::Everything,
    };
    let options = Options { bug, print, calm, servers, about, wide, full };
    if let Some(seed) = args.seed {
        let report = sim::run(seed, options)?;
        println!("{report:#?}");
        if !args.trace && sim::run(seed, options)? != report {
            bail!("seed {seed}: the second run was another one");
        }
        return Ok(());
    }
    let (sum, failures) = sim::run_many(args.start..args.start + args.seeds, options);
    failures.iter().for_each(|failure| println!("{failure}"));
    println!("{} seeds: {sum:#?}", args.seeds);
    if failures.is_empty() { Ok(()) } else { bail!("{} worlds went wrong", failures.len()) }
}
