//! `pando bench figures sfs`: many clients make names in one directory, while it is divided.
//!
//! Each experiment is a file of `sfs/`; what they have in common is `crowd`.

mod clients;
mod crowd;
mod growth;
mod options;
mod params;
mod probes;

use std::time::Duration;

use futures::future::FutureExt as _;

use self::params::Experiment;
pub(super) use self::params::Params;
use super::outcome::{Asked, Outcome};

/// Time-out of an experiment. One that takes longer waits for something that will not come.
const TIMEOUT: Duration = Duration::from_secs(1200);

impl Experiment {
    async fn run(self, params: &Params) -> anyhow::Result<Outcome> {
        match self {
            Experiment::Fig4 => clients::run(params).await,
            Experiment::Fig5 => options::run(params).await,
            Experiment::Fig6 => growth::run(params).await,
            Experiment::Fig7 => probes::run(params).await,
        }
    }
}

impl Params {
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked::of(&self.out, &self.only, TIMEOUT, |of| of.run(self).boxed_local())
    }
}
