//! `pando format`: make a file system in a directory.

use std::{
    path::{self, PathBuf},
    process::ExitCode,
};

use base::limits::{SHARDS_MAX, SMALL_BYTES_DEFAULT, SMALL_BYTES_MAX};
use clap::{ValueEnum, value_parser};
use store::Compression;

use crate::{
    data::{self, New},
    failure::usage,
    output,
};

/// Shards of a file system, unless told otherwise: enough for dozens of servers later.
const SHARDS: u16 = 1024;

/// Make a file system.
///
/// The administrator's token is written to DIR/admin.token, readable by its owner only. A directory
/// that is not empty is refused and left as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory for metadata, keys and (by default) contents. A missing one is created; an
    /// existing one must be empty.
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
    /// Number of servers, at most one per shard. With several, this directory is that of the
    /// coordinator (`pando serve --coordinator`), and the others join it (`pando serve --join`).
    /// The cluster serves once all have joined.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    servers: u16,
    /// A name for people [default: that of the data directory].
    #[arg(long)]
    name: Option<String>,
    /// Block store for contents of files: a directory, file:///DIRECTORY or
    /// s3://BUCKET/PREFIX?region=R&endpoint=URL. Keys of S3 come from AWS_* variables of the
    /// server, and clients never get them [default: DIR/blocks].
    #[arg(long, value_name = "URL")]
    blocks: Option<String>,
    /// Keep files of up to this many bytes with their metadata; 0: none.
    #[arg(long, default_value_t = SMALL_BYTES_DEFAULT, value_name = "BYTES", value_parser = inline_max)]
    inline_max: u32,
    /// Compression of contents that are not kept with their metadata. Blocks that would not become
    /// smaller are stored as they are.
    #[arg(long, default_value_t, value_name = "none|lz4|zstd", value_parser = compression)]
    compression: Compression,
    /// Shard of a new directory.
    #[arg(long, value_enum, default_value_t = Locality::Directory)]
    locality: Locality,
}

/// Parses a size as `pando set inline_max` takes it.
pub(crate) fn inline_max(text: &str) -> Result<u32, String> {
    let bytes = crate::values::size(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes <= SMALL_BYTES_MAX);
    fits.ok_or_else(|| format!("must be 0 to {SMALL_BYTES_MAX} bytes"))
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Locality {
    /// A shard chosen by hash.
    Directory,
    /// The shard of its parent: everything is on one server.
    Subtree,
    /// A shard chosen by hash for the first two levels of directories; further ones are on that of
    /// their parent, until it has much there.
    Hybrid,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    make(&args.data, &args.choices)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a file system in `data` with nothing chosen.
pub(crate) fn by_default(data: &path::Path) -> anyhow::Result<()> {
    of_servers(data, None, 1, (Locality::Directory, None))
}

/// Formats as [`by_default`] does, for this number of servers and with these places of directories.
pub(super) fn of_servers(
    data: &path::Path,
    name: Option<String>,
    servers: u16,
    (locality, blocks): (Locality, Option<String>),
) -> anyhow::Result<()> {
    let choices = Choices {
        shards: SHARDS.max(servers),
        servers,
        name,
        blocks,
        inline_max: SMALL_BYTES_DEFAULT,
        compression: Compression::None,
        locality,
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
                "--servers {}: there are only {} shards; --shards makes more",
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
                Locality::Hybrid => base::Locality::Hybrid,
            },
            inline_bytes_max: self.inline_max,
            compression: self.compression,
            blocks: self.blocks.as_deref().map(blocks_url).transpose()?,
        })
    }
}

/// Parses a compression, as it is written.
pub(super) fn compression(text: &str) -> Result<Compression, String> {
    text.parse().map_err(|()| "must be none, lz4 or zstd".to_owned())
}

/// Whether the options of an S3 address have what only servers may know.
pub(crate) fn has_keys(place: &str) -> bool {
    let options = place.split_once('?').map_or("", |(_, options)| options);
    let names = options.split('&').map(|option| option.split('=').next().unwrap_or_default());
    let secrets = ["secret_access_key", "session_token", "token", "sse_customer_key_base64"];
    names
        .map(str::to_ascii_lowercase)
        .any(|name| secrets.iter().any(|secret| name.ends_with(secret)))
}

/// The address of a block store; a plain path is a directory.
pub(crate) fn blocks_url(text: &str) -> anyhow::Result<String> {
    match text.split_once("://") {
        Some(("s3", place)) if has_keys(place) => Err(usage(
            "--blocks: the address is shown to users and must not hold keys; set AWS_* in the \
             server's environment"
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
