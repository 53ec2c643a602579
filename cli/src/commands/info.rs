//! `pando info`: where something on a mount is, and what the server knows of it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use rustix::{fs::lgetxattr, io::Errno};

use crate::output;

/// The attribute in which a mount tells it: one JSON object.
const ATTRIBUTE: &str = "pando.info";
const BYTES_MAX: usize = 64 << 10;

/// Print what the server knows of a file or directory on a mount: its ids, shard, layout and blocks.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file or directory on a mount; a symbolic link is not followed.
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let facts = facts(&args.path)?;
    if args.json {
        output::print_json(&facts)?;
    } else {
        let text = |value: &serde_json::Value| {
            value.as_str().map_or_else(|| value.to_string(), str::to_owned)
        };
        let rows: Vec<_> = facts.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
        output::print(&output::rows(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the mount of `path` tells of it.
pub(crate) fn facts(path: &Path) -> anyhow::Result<serde_json::Map<String, serde_json::Value>> {
    let mut bytes = vec![0; BYTES_MAX];
    let len = match lgetxattr(path, ATTRIBUTE, &mut bytes[..]) {
        Ok(len) => len,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            bail!("{} is not on a mount of pando", path.display())
        }
        Err(errno) => {
            return Err(errno).with_context(|| format!("cannot ask about {}", path.display()));
        }
    };
    serde_json::from_slice(&bytes[..len]).context("the mount's answer cannot be read")
}
