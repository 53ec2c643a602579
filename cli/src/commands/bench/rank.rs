//! `pando bench rank`: a rank of `bench md` on a directory, as a process of its own. People do not
//! call it.
//!
//! A rank reads [`Order`]s from stdin, a JSON line each, and answers each step with a line on
//! stdout. When stdin ends, the process that gave the orders is gone: the rank removes what the run
//! made, and ends.

use std::{
    io::{self, BufRead as _},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use anyhow::Context as _;
use bench::{Plan, Step, Target, Timing, Work, Worker};
use serde::{Deserialize, Serialize};

use crate::output;

/// Do what is told on stdin.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory to work in.
    directory: PathBuf,
    /// Number of the rank.
    #[arg(long)]
    rank: usize,
    /// The plan, as JSON.
    #[arg(long, value_parser = plan)]
    plan: Plan,
}

fn plan(text: &str) -> Result<Plan, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Order to a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Do this, and answer.
    Step(Step),
    /// End the step that is being done.
    Stop,
}

/// Answer of a rank to a step: the measurements, or the reason of a failure. `None`: the rank was
/// told to stop.
pub(super) type Said = Result<Timing, Option<String>>;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    let worker = Worker {
        plan: &args.plan,
        ranks: vec![args.rank],
        target: Target::Directory(args.directory.clone()),
        stop: &stop,
    };
    let (give, steps) = mpsc::channel();
    let reader_stop = Arc::clone(&stop);
    thread::Builder::new()
        .name("orders".to_owned())
        .spawn(move || read_orders(&give, &reader_stop))
        .context("cannot start a thread")?;
    let mut cleared = false;
    for step in steps {
        let said = match futures::executor::block_on(worker.step(&step)) {
            Ok(timing) => Ok(timing),
            Err(bench::Error::Interrupted) => Err(None),
            Err(error) => Err(Some(format!("{:#}", anyhow::Error::from(error)))),
        };
        cleared = matches!(step.work, Work::Clear | Work::RemoveFolder);
        output::print(&serde_json::to_string::<Said>(&said)?)?;
    }
    if !cleared {
        futures::executor::block_on(worker.step(&Step { work: Work::Clear, files: 0 }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Hands on steps until stdin ends, and says at once when to stop.
fn read_orders(give: &mpsc::Sender<Step>, stop: &AtomicBool) {
    let lines = io::stdin().lock().lines().map_while(Result::ok);
    let orders = lines.map_while(|line| serde_json::from_str(&line).ok());
    for order in orders {
        match order {
            Order::Step(step) if give.send(step).is_ok() => {}
            Order::Step(_) => break,
            Order::Stop => stop.store(true, Ordering::Relaxed),
        }
    }
    stop.store(true, Ordering::Relaxed);
}
