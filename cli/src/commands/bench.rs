//! `pando bench`: time operations.

mod apps;
mod crew;
mod elastic;
mod figures;
mod fill;
mod floor;
mod folder;
mod interrupt;
mod io;
mod large;
mod list;
mod md;
mod meter;
mod rank;
mod report;
mod started;
mod suite;

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
    Apps(apps::Args),
    Floor(floor::Args),
    Io(io::Args),
    List(list::Args),
    Fill(fill::Args),
    Large(large::Args),
    Elastic(elastic::Args),
    Report(report::Args),
    Figures(figures::Args),
    Scale(figures::scale::Args),
    #[command(hide = true)]
    Rank(rank::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Md(args) => md::run(args),
        Command::Apps(args) => apps::run(args),
        Command::Floor(args) => floor::run(args),
        Command::Io(args) => io::run(args),
        Command::List(args) => list::run(args),
        Command::Fill(args) => fill::run(args),
        Command::Large(args) => large::run(args),
        Command::Elastic(args) => elastic::run(args),
        Command::Report(args) => report::run(args),
        Command::Figures(args) => figures::run(args),
        Command::Scale(args) => figures::scale::run(args),
        Command::Rank(args) => rank::run(args),
    }
}
