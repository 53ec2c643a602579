//! The subcommands, one file each.

mod format;
mod serve;
mod token;
mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Pando: a metadata service for distributed file systems.
#[derive(Debug, Parser)]
#[command(name = "pando", version, propagate_version = false, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 it worked, 1 it did not, 2 the command line is wrong.")]
pub(crate) struct Cli {
    /// What goes into the log on stderr: error, warn, info, debug or trace, or pairs such as meta=debug.
    #[arg(long, global = true, env = "PANDO_LOG", default_value = "warn", value_name = "LEVEL")]
    pub(crate) log_level: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Format(format::Args),
    Serve(serve::Args),
    Token(token::Args),
    Version(version::Args),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Format(args) => format::run(&args),
            Command::Serve(args) => serve::run(&args),
            Command::Token(args) => token::run(&args),
            Command::Version(args) => version::run(&args),
        }
    }
}
