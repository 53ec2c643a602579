//! `pando region`: a job's directory in the memory of its node.

mod ask;
mod control;
mod ending;
mod exec;
mod join;
mod library;
mod machines;
mod nodes;
mod run;
mod site;
mod up;

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
    Up(up::Args),
    Join(join::Args),
    Exec(exec::Args),
    Status(ask::Status),
    Flush(ask::Flush),
    End(ask::End),
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(args) => run::run(args),
            Command::Up(args) => up::run(args),
            Command::Join(args) => join::run(args),
            Command::Exec(args) => exec::run(&args),
            Command::Status(args) => ask::status(&args),
            Command::Flush(args) => ask::flush(&args),
            Command::End(args) => ask::end(&args),
        }
    }
}
