//! The POSIX suites, installed from their crates once for this machine.
//!
//! `pjdfstest` and `fsx` call this. The binaries are kept outside the clone, beside the RocksDB
//! library, under their name and version; another version is another folder and never replaces one.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::step::say;

/// A program of a crate, in one version.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

pub(crate) const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2" };
pub(crate) const FSX: Tool = Tool { name: "fsx", version: "0.3.2" };

/// The program's path, after installing it where it is not there yet.
pub(crate) fn ensure(root: &Path, tool: &Tool) -> anyhow::Result<PathBuf> {
    let folder = cache(root).join(format!("{}-{}", tool.name, tool.version));
    let program = folder.join("bin").join(tool.name);
    if program.exists() {
        return Ok(program);
    }
    say(&format!("installing {} {}", tool.name, tool.version));
    let crate_version = format!("{}@{}", tool.name, tool.version);
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["install", "--quiet", "--locked", "--force", &crate_version, "--root"])
        .arg(&folder)
        .arg("--target-dir")
        .arg(root.join("target/tools"))
        .status()
        .context("cannot run cargo install")?;
    ensure!(status.success(), "cargo install {crate_version}: {status}");
    Ok(program)
}

/// A folder that outlives the clone; without one, a folder of the clone.
fn cache(root: &Path) -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let folder = base.map(|base| base.join("pando/tools"));
    let usable = folder.filter(|folder| fs::create_dir_all(folder).is_ok());
    usable.unwrap_or_else(|| root.join("target/tools"))
}
