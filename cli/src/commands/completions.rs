//! `pando completions`: what a shell needs to complete our command line.

use std::{io::Write as _, process::ExitCode};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

/// Print the completions of a shell, for its startup or `make install`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pando", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
