//! `pando info`: where something is, and what the server knows of it.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use base::Ino;
use rustix::{fs::lgetxattr, io::Errno};
use serde_json::json;

use super::{
    inode,
    place::{Place, Served},
};
use crate::{
    connect::{self, TokenArgs},
    failure::usage,
    output,
};

/// The attribute in which a mount tells it: one JSON object.
const ATTRIBUTE: &str = "pando.info";
const BYTES_MAX: usize = 64 << 10;

/// Print what the server knows of a file or directory: ids, shard, layout and blocks.
///
/// With --inode, print the paths of an inode. The command lists all directories that the token
/// allows until it has found every name, which takes as long as a `find` of everything.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file or directory on a mount, or HOST:PORT/PATH; symbolic links are not followed. With
    /// --inode: HOST:PORT.
    #[arg(value_name = "PATH")]
    place: OsString,
    /// Number of the inode, as `pando fsck`, `pando opens` and `ls -i` print it.
    #[arg(long, value_name = "N")]
    inode: Option<u64>,
    #[command(flatten)]
    token: TokenArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = Path::new(&args.place);
    let facts = if let Some(ino) = args.inode {
        let place = Place::open(&args.place, &args.token, "pando info")?;
        let facts = of_inode(&place, Ino(ino));
        place.close(facts)?
    } else if path.symlink_metadata().is_ok() || !is_served(&args.place) {
        facts(path)?
    } else {
        let place = Place::open(&args.place, &args.token, "pando info")?;
        let facts = place.facts();
        place.close(facts)?.into_iter().map(|(name, value)| (name, value.into())).collect()
    };
    if args.json {
        output::print_json(&facts)?;
    } else {
        let rows: Vec<_> = facts.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
        output::print(&output::rows(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the place may be an object at a server.
fn is_served(place: &OsStr) -> bool {
    let text = place.to_string_lossy();
    connect::servers(text.split_once('/').map_or(&*text, |(servers, _)| servers)).is_ok()
}

/// A value as people read it.
pub(super) fn text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The paths of an inode, and what the server knows of it.
fn of_inode(place: &Place, ino: Ino) -> anyhow::Result<serde_json::Map<String, serde_json::Value>> {
    let Place::Served(Served { runtime, client, path }) = place else {
        return Err(usage("--inode takes HOST:PORT: on a mount, use `find PATH -inum N`"));
    };
    if path != "/" {
        return Err(usage("--inode looks through the whole file system: give HOST:PORT alone"));
    }
    runtime.block_on(async {
        let names = inode::names(client, ino).await?;
        let Some(first) = names.paths.first() else {
            let unread = match names.unread {
                0 => String::new(),
                unread => format!(" ({unread} directories cannot be read with this token)"),
            };
            bail!("inode {ino} has no name: no such inode exists, or its last name was removed{unread}");
        };
        let lines = client.info(first).await.context("cannot ask about it")?;
        let mut facts: serde_json::Map<_, _> =
            lines.into_iter().map(|(name, value)| (name, value.into())).collect();
        let paths: Vec<_> = names.paths.iter().map(|path| path.to_string_lossy()).collect();
        facts.insert("paths".to_owned(), json!(paths));
        Ok(facts)
    })
}

/// Reads the facts that the mount of `path` knows of it.
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
    serde_json::from_slice(&bytes[..len]).context("cannot decode the mount's answer")
}
