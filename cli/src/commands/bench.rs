//! `pando bench`: time operations.

mod crew;
mod md;
mod meter;
mod rank;

use std::process::ExitCode;

use clap::Subcommand;

/// Time operations of a file system.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Md(md::Args),
    #[command(hide = true)]
    Rank(rank::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Md(args) => md::run(args),
        Command::Rank(args) => rank::run(args),
    }
}
