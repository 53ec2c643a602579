//! `pando format`: make a file system in a directory.

use std::{
    path::{self, PathBuf},
    process::ExitCode,
};

use base::limits::{INLINE_BYTES_MAX, SHARDS_MAX};
use clap::{ValueEnum, value_parser};
use store::Compression;

use crate::{
    data::{self, New},
    failure::usage,
    output,
};

/// Shards of a file system, unless told otherwise: enough for dozens of servers later.
const SHARDS: u16 = 64;

/// Make a file system.
///
/// It leaves the administrator's token in DIR/admin.token, readable by its owner only. A directory
/// that holds a file system already, or anything else, is refused and left as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory for metadata, keys and (by default) contents. It is made when missing, else it
    /// must be empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    choices: Choices,
}

/// Choices that hold for the life of a file system.
#[derive(Debug, clap::Args)]
struct Choices {
    /// Number of shards: the units in which a file system can later be spread over servers.
    #[arg(long, default_value_t = SHARDS, value_name = "N",
          value_parser = value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: u16,
    /// Number of servers, at most one for each shard. With more than one, this directory is that of
    /// the coordinator (`pando serve --coordinator`), the others join it (`pando serve --join`),
    /// and nothing is served until all have.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    servers: u16,
    /// A name for people [default: that of the data directory].
    #[arg(long)]
    name: Option<String>,
    /// Where contents of files go: a directory, file:///DIRECTORY or
    /// s3://BUCKET/PREFIX?region=R&endpoint=URL (keys come from AWS_* variables of the server, and
    /// clients never get them) [default: DIR/blocks].
    #[arg(long, value_name = "URL")]
    blocks: Option<String>,
    /// Files up to this many bytes are kept with their metadata; 0: none.
    #[arg(long, default_value_t = INLINE_BYTES_MAX, value_name = "BYTES", value_parser = inline_max)]
    inline_max: u32,
    /// How contents are compressed that are not kept with their metadata. What would not become
    /// smaller is stored as it is.
    #[arg(long, default_value_t, value_name = "none|lz4|zstd", value_parser = compression)]
    compression: Compression,
    /// Where a new directory goes.
    #[arg(long, value_enum, default_value_t = Locality::Directory)]
    locality: Locality,
}

/// Parses a size as `pando set inline_max` takes it.
fn inline_max(text: &str) -> Result<u32, String> {
    let bytes = super::size(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes <= INLINE_BYTES_MAX);
    fits.ok_or_else(|| format!("it must be 0 to {INLINE_BYTES_MAX} bytes"))
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Locality {
    /// To a shard of its own choice, by hash.
    Directory,
    /// To the shard of its parent.
    Subtree,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    make(&args.data, &args.choices)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a file system in `data` with nothing chosen.
pub(crate) fn by_default(data: &path::Path) -> anyhow::Result<()> {
    of_servers(data, None, 1)
}

/// Formats as [`by_default`] does, for so many servers.
pub(crate) fn of_servers(
    data: &path::Path,
    name: Option<String>,
    servers: u16,
) -> anyhow::Result<()> {
    let choices = Choices {
        shards: SHARDS.max(servers),
        servers,
        name,
        blocks: None,
        inline_max: INLINE_BYTES_MAX,
        compression: Compression::None,
        locality: Locality::Directory,
    };
    make(data, &choices)
}

fn make(data: &path::Path, choices: &Choices) -> anyhow::Result<()> {
    let new = choices.to_new(data)?;
    data::format(data, &new)?;
    output::print(&format!("formatted {} in {}", new.name, data.display()))
}

impl Choices {
    /// Returns the description of the file system to make in `data`.
    fn to_new(&self, data: &path::Path) -> anyhow::Result<New> {
        if self.servers > self.shards {
            return Err(usage(format!(
                "--servers {}: {} shards are not enough for so many",
                self.servers, self.shards
            )));
        }
        let own_name = || {
            let data = path::absolute(data).ok()?;
            Some(data.file_name()?.to_string_lossy().into_owned())
        };
        let name = self.name.clone().or_else(own_name).unwrap_or_else(|| "pando".to_owned());
        Ok(New {
            name,
            shards: self.shards,
            servers: self.servers,
            locality: match self.locality {
                Locality::Directory => base::Locality::Directory,
                Locality::Subtree => base::Locality::Subtree,
            },
            inline_bytes_max: self.inline_max,
            compression: self.compression,
            blocks: self.blocks.as_deref().map(blocks_url).transpose()?,
        })
    }
}

/// Parses a compression, as it is written.
pub(super) fn compression(text: &str) -> Result<Compression, String> {
    text.parse().map_err(|()| "it is none of none, lz4 and zstd".to_owned())
}

/// Whether the options of an S3 address have what only servers may know.
fn has_keys(place: &str) -> bool {
    let options = place.split_once('?').map_or("", |(_, options)| options);
    let names = options.split('&').map(|option| option.split('=').next().unwrap_or_default());
    let secrets = ["secret_access_key", "session_token", "token", "sse_customer_key_base64"];
    names
        .map(str::to_ascii_lowercase)
        .any(|name| secrets.iter().any(|secret| name.ends_with(secret)))
}

/// The address of a block store; a plain path is a directory.
pub(super) fn blocks_url(text: &str) -> anyhow::Result<String> {
    match text.split_once("://") {
        Some(("s3", place)) if has_keys(place) => Err(usage(
            "--blocks: the address is shown to people, so it may have no keys; set AWS_* of the server"
                .to_owned(),
        )),
        Some(("s3", _)) => Ok(text.to_owned()),
        Some(("file", path)) if path.starts_with('/') => Ok(text.to_owned()),
        Some(_) => {
            Err(usage(format!("--blocks {text}: neither a directory, nor file:///, nor s3://")))
        }
        None => Ok(format!("file://{}", path::absolute(text)?.display())),
    }
}
