//! Results of experiments, and the experiments of a paper as they are asked for.

use std::{path::Path, time::Duration};

use bench::{figure::Figure, report::TargetRow};
use clap::ValueEnum;
use futures::future::LocalBoxFuture;

/// Results of an experiment.
pub(super) struct Outcome {
    pub(super) figure: Figure,
    pub(super) reach: Vec<TargetRow>,
}

/// Experiments of a paper, by their names, with how long they may take; each is done when it is
/// awaited.
pub(super) type Experiments<'a> =
    Vec<(String, Duration, LocalBoxFuture<'a, anyhow::Result<Outcome>>)>;

/// Experiments to run for a paper.
pub(super) struct Asked<'a> {
    pub(super) out: &'a Path,
    pub(super) experiments: Experiments<'a>,
}

impl<'a> Asked<'a> {
    /// The experiments of `only`, or all there are, all with one time-out.
    pub(super) fn of<E: ValueEnum + Copy>(
        out: &'a Path,
        only: &[E],
        timeout: Duration,
        run: impl Fn(E) -> LocalBoxFuture<'a, anyhow::Result<Outcome>>,
    ) -> Asked<'a> {
        let experiments = chosen(only).map(|(name, of)| (name, timeout, run(of)));
        Asked { out, experiments: experiments.collect() }
    }
}

/// Returns the experiments of `only`, or all there are, with their names.
pub(super) fn chosen<E: ValueEnum + Copy>(only: &[E]) -> impl Iterator<Item = (String, E)> {
    let chosen = if only.is_empty() { E::value_variants() } else { only };
    let name = |of: E| of.to_possible_value().map(|value| value.get_name().to_owned());
    chosen.iter().map(move |of| (name(*of).unwrap_or_default(), *of))
}
