//! `pando bench figures`: the experiments of papers, on clusters of our own, as data and drawings.
//!
//! Each experiment is a file of `figures/`; it starts the servers that it needs (`site`), measures
//! (`load`), and gives a [`Figure`] and rows of the table of targets. One that fails leaves the
//! others as they are; the command then fails at its end. Servers end with the experiment that
//! started them, whatever the end.

mod cold;
mod duplex;
mod factors;
mod growth;
mod hsm2;
mod invalidation;
mod latency;
mod leases;
mod load;
mod mispredictions;
mod mix;
mod outcome;
mod pacon;
mod params;
mod placement;
mod rates;
mod reads;
mod record;
mod renames;
pub(super) mod scale;
mod scaling;
mod sfs;
mod site;
mod storm;

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::bail;
use bench::{
    figure::Figure,
    report::{self, Line},
};
use clap::Subcommand;
use futures::future::FutureExt as _;

use self::{
    outcome::{Asked, Outcome, chosen},
    params::{Experiment, Params},
};
use crate::{connect, output, signals::Stop};

/// Time-out of an experiment, in units of [`Params::seconds`]. One that takes longer waits for
/// something that will not come.
const TIMEOUT_SECONDS: u64 = 150;

/// Repeat the experiments of a paper on this machine, and draw them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    Infinifs(Params),
    DuplexBalance(duplex::Params),
    Hsm2(hsm2::Params),
    Pacon(pacon::Params),
    Reads(reads::Params),
    Sfs(sfs::Params),
}

impl Experiment {
    async fn run(self, params: &Params) -> anyhow::Result<Outcome> {
        match self {
            Experiment::Fig9 => scaling::run(params).await,
            Experiment::Fig10 => latency::run(params).await,
            Experiment::Fig11 => factors::run(params).await,
            Experiment::Fig12 => growth::run(params).await,
            Experiment::Fig13 => leases::run(params).await,
            Experiment::Fig14 => renames::run(params).await,
            Experiment::Fig15 => mispredictions::run(params).await,
            Experiment::Cold => cold::run(params).await,
            Experiment::Invalidation => invalidation::run(params).await,
            Experiment::Storm => storm::run(params).await,
            Experiment::Rates => rates::run(params).await,
            Experiment::Mix => mix::run(params).await,
            Experiment::Balance => Ok(placement::run()),
        }
    }

    /// Time-out of an experiment: one that takes longer waits for something that will not come.
    fn limit(self, params: &Params) -> Duration {
        let usual = Duration::from_secs(TIMEOUT_SECONDS * params.seconds);
        match self {
            Experiment::Fig12 => usual + params.growth_limit * 2,
            Experiment::Fig13 => {
                let of_a_size: Duration = params.leases.iter().map(|lease| *lease * 3).sum();
                usual + of_a_size * u32::try_from(params.caches.len()).unwrap_or(u32::MAX)
            }
            Experiment::Fig9
            | Experiment::Fig10
            | Experiment::Fig11
            | Experiment::Fig14
            | Experiment::Fig15
            | Experiment::Cold
            | Experiment::Invalidation
            | Experiment::Storm
            | Experiment::Rates
            | Experiment::Mix
            | Experiment::Balance => usual,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let asked = match &args.paper {
        Paper::Infinifs(params) => params.asked(),
        Paper::DuplexBalance(params) => return duplex::run(params),
        Paper::Hsm2(params) => params.asked(),
        Paper::Pacon(params) => params.asked(),
        Paper::Reads(params) => return reads::run(params),
        Paper::Sfs(params) => params.asked(),
    };
    record::make_folder(asked.out)?;
    connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        tokio::select! {
            ended = Box::pin(run_all(asked)) => ended,
            () = stop.asked() => bail!("interrupted"),
        }
    })
}

async fn run_all(asked: Asked<'_>) -> anyhow::Result<ExitCode> {
    let Asked { out, experiments } = asked;
    let (mut reach, mut failed) = (Vec::new(), Vec::new());
    for (name, limit, experiment) in experiments {
        let start = bench::monotonic();
        let ended = tokio::time::timeout(limit, experiment).await;
        let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
        match ended.unwrap_or_else(|_| bail!("it had not ended after {} s", limit.as_secs())) {
            Ok(outcome) => {
                record::write(out, &name, &outcome, seconds)?;
                output::print(&format!("{}\n(took {seconds:.1} s)\n", outcome.figure.text()))?;
                reach.extend(outcome.reach.into_iter().map(Line::Target));
            }
            Err(error) => {
                output::print(&format!("{name}: FAILED after {seconds:.1} s: {error:#}\n"))?;
                failed.push(format!("{name} ({error:#})"));
            }
        }
    }
    record::write_reach(out, &reach)?;
    output::print(&report::targets(&reach))?;
    if !failed.is_empty() {
        bail!("these failed: {}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a figure that another command of `bench` has measured since `start`, and the lines that
/// it was made of.
pub(super) fn keep(
    out: &Path,
    start: Duration,
    figure: Figure,
    (file, lines): (&str, &str),
) -> anyhow::Result<()> {
    record::make_folder(out)?;
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
    record::write_file(out, file, lines)?;
    let name = figure.name.clone();
    record::write(out, &name, &Outcome { figure, reach: Vec::new() }, seconds)
}

impl Params {
    fn asked(&self) -> Asked<'_> {
        let experiments =
            chosen(&self.only).map(|(name, of)| (name, of.limit(self), of.run(self).boxed_local()));
        Asked { out: &self.out, experiments: experiments.collect() }
    }
}
