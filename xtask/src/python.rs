//! The Python package: its compiled module is checked, and it is tested with the libraries that use
//! it.

use std::{path::Path, process::Command, time::Duration};

use crate::step::{self, Counts};

const MINUTE: Duration = Duration::from_secs(60);

/// Checks the package's own workspace, builds it, and runs its tests.
pub(crate) fn run(root: &Path, mut cargo: Command, counts: &mut Counts) -> anyhow::Result<()> {
    let own = ["--manifest-path", "python/Cargo.toml"];
    let mut format = Command::new(cargo.get_program());
    format.current_dir(root).arg("fmt").args(own).arg("--check");
    step::run(&mut format, MINUTE, counts)?;
    let clippy = ["clippy", "--locked", "--target-dir", "target/python"];
    cargo.args(clippy).args(own).args(["--", "-D", "warnings"]);
    step::run(&mut cargo, 15 * MINUTE, counts)?;
    let mut tests = Command::new("scripts/python");
    step::run(tests.current_dir(root).arg("--test"), 20 * MINUTE, counts)
}
