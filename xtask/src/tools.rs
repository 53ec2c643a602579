//! The POSIX suites, installed from their crates once for this machine.
//!
//! `pjdfstest` and `fsx` call this. Where the binaries are kept says `scripts/tool`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

/// A program of a crate, in one version.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

pub(crate) const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2" };
pub(crate) const FSX: Tool = Tool { name: "fsx", version: "0.3.2" };

/// The program's path, after installing it where it is not there yet.
pub(crate) fn ensure(root: &Path, tool: &Tool) -> anyhow::Result<PathBuf> {
    let output = Command::new(root.join("scripts/tool"))
        .args([tool.name, tool.version])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start scripts/tool")?;
    ensure!(output.status.success(), "{} {}: {}", tool.name, tool.version, output.status);
    Ok(PathBuf::from(String::from_utf8(output.stdout).context("a path is text")?.trim_end()))
}
