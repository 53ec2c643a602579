//! `pando format`: make a file system in a directory.

use std::{
    path::{self, PathBuf},
    process::ExitCode,
};

use base::limits::{INLINE_BYTES_MAX, SHARDS_MAX};
use clap::{ValueEnum, value_parser};

use crate::{
    data::{self, New},
    failure::usage,
    output,
};

/// Make a file system.
///
/// It leaves the administrator's token in DIR/admin.token, readable by its owner only. A directory that holds
/// a file system already, or anything else, is refused and left as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory for metadata, keys and (by default) contents. It is made when missing, else it must be empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    choices: Choices,
}

/// What is chosen once and for all.
#[derive(Debug, clap::Args)]
pub(crate) struct Choices {
    /// Number of shards: the units in which a file system can later be spread over servers.
    #[arg(long, default_value_t = 64, value_name = "N",
          value_parser = value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: u16,
    /// A name for people [default: that of the data directory].
    #[arg(long)]
    name: Option<String>,
    /// Where contents of files go: a directory, file:///DIRECTORY or s3://BUCKET/PREFIX?region=R&endpoint=URL
    /// (keys come from AWS_* variables of the server) [default: DIR/blocks].
    #[arg(long, value_name = "URL")]
    blocks: Option<String>,
    /// Files up to this many bytes are kept with their metadata; 0: none.
    #[arg(long, default_value_t = INLINE_BYTES_MAX, value_name = "BYTES",
          value_parser = value_parser!(u32).range(0..=i64::from(INLINE_BYTES_MAX)))]
    inline_max: u32,
    /// Where a new directory goes.
    #[arg(long, value_enum, default_value_t = Locality::Directory)]
    locality: Locality,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Locality {
    /// To a shard of its own choice, by hash.
    Directory,
    /// To the shard of its parent.
    Subtree,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let new = args.choices.to_new(&args.data)?;
    data::format(&args.data, &new)?;
    output::print(&format!("formatted {} in {}", new.name, args.data.display()))?;
    Ok(ExitCode::SUCCESS)
}

impl Choices {
    /// What to make in `data`.
    pub(crate) fn to_new(&self, data: &path::Path) -> anyhow::Result<New> {
        let own_name = || {
            let data = path::absolute(data).ok()?;
            Some(data.file_name()?.to_string_lossy().into_owned())
        };
        let name = self.name.clone().or_else(own_name).unwrap_or_else(|| "pando".to_owned());
        Ok(New {
            name,
            shards: self.shards,
            locality: match self.locality {
                Locality::Directory => base::Locality::Directory,
                Locality::Subtree => base::Locality::Subtree,
            },
            inline_bytes_max: self.inline_max,
            blocks: self.blocks.as_deref().map(blocks_url).transpose()?,
        })
    }
}

/// The address of a block store; a plain path is a directory.
fn blocks_url(text: &str) -> anyhow::Result<String> {
    match text.split_once("://") {
        Some(("s3", _)) => Ok(text.to_owned()),
        Some(("file", path)) if path.starts_with('/') => Ok(text.to_owned()),
        Some(_) => {
            Err(usage(format!("--blocks {text}: neither a directory, nor file:///, nor s3://")))
        }
        None => Ok(format!("file://{}", path::absolute(text)?.display())),
    }
}
