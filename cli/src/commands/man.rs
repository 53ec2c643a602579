//! `pando man`: the manual pages, made from what `--help` prints, so that both say the same.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::{Cli, mount_helper};

/// Write the manual pages into a directory, as `make install` does.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An existing directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let context = || format!("cannot write to {}", args.dir.display());
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(context)?;
    for command in mount_helper::commands() {
        let file = args.dir.join(format!("{}.8", command.get_name()));
        let mut text = Vec::new();
        clap_mangen::Man::new(command).section("8").render(&mut text)?;
        fs::write(file, text).with_context(context)?;
    }
    Ok(ExitCode::SUCCESS)
}
