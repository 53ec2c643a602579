//! `pando region`: a job's directory in the memory of its node.

mod run;

use std::process::ExitCode;

/// Run programs in a consistent region: a directory whose changes are answered from memory and
/// committed later to the file system that it is on, whichever that is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(run::Args),
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(args) => run::run(args),
        }
    }
}
