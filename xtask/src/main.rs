//! `cargo xtask`: the checks of this project, as code.
//!
//! `make test` calls `cargo xtask ci`; each check can also be run by itself. This program is never
//! part of what is delivered, and uses none of the other crates.

mod ci;
mod circles;
mod fsx;
mod layers;
mod matrix;
mod pjdfstest;
mod promises;
mod prose;
mod python;
mod served;
mod step;
mod tidy;
mod tools;
mod waits;
mod words;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "The checks of this project")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything: format, tidy, layers, clippy, tests, doc tests, POSIX suites
    Ci,
    /// Compare the table of layers with the crates' dependencies
    Layers,
    /// Check file headers, sizes, forbidden words, decision pages and links
    Tidy,
    /// Run pjdfstest on a mount and compare with testdata/posix/pjdfstest.txt (needs root)
    Pjdfstest {
        /// Run in this directory, of any file system, in place of a mount of ours
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Write the results to the list in place of comparing
        #[arg(long)]
        bless: bool,
    },
    /// Run fsx on a mount (needs root)
    Fsx {
        /// Run in this directory, of any file system, in place of a mount of ours
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Run both suites on every configuration: durability, processes, blocks, inline contents
    /// (needs root)
    Matrix {
        /// Only configurations with this in their name
        #[arg(default_value = "")]
        part: String,
    },
    /// Build a part of RocksDB on a mount whose server is killed meanwhile (needs root)
    BuildOnMount,
}

fn main() -> ExitCode {
    run(Args::parse().task).unwrap_or_else(|error| {
        step::say(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    let root = workspace_root()?;
    match task {
        Task::Ci => return Ok(ci::run(root)),
        Task::Layers => layers::run(root)?,
        Task::Tidy => tidy::run(root)?,
        Task::Pjdfstest { dir, bless } => {
            served::on_a_mount_or_in(root, dir, |dir| pjdfstest::run(root, dir, bless))?;
        }
        Task::BuildOnMount => {
            let script = &mut Command::new(root.join("scripts/build-on-mount"));
            let status = script.status().context("scripts/build-on-mount cannot be started")?;
            anyhow::ensure!(status.success(), "scripts/build-on-mount failed");
        }
        Task::Fsx { dir } => {
            served::on_a_mount_or_in(root, dir, |dir| fsx::run(root, dir, fsx::Part::Full))?;
        }
        Task::Matrix { part } => matrix::run(root, &part)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder of the workspace, wherever the caller stands.
fn workspace_root() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")
}
