//! `pando bench fill`: many files, and what they take on all servers.

use std::{num::NonZeroU64, ops::Range, path::Path, process::ExitCode};

use anyhow::Context as _;
use client::{Client, New};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Serialize;

use crate::{
    connect::{self, Servers, TokenArgs},
    output,
};

/// Files of a directory.
const DIRECTORY_FILES: u64 = 10_000;
/// Creates under way at a time.
const IN_FLIGHT: usize = 128;

/// Make many empty files, and print what they take on the servers. They stay.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A server of the file system.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// How many files.
    #[arg(long, default_value = "10000000", value_name = "N")]
    files: NonZeroU64,
    /// The directory to make for them; it must not exist.
    #[arg(long, default_value = "/fill", value_name = "PATH")]
    directory: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of a fill.
#[derive(Debug, Serialize)]
struct Filled {
    files: u64,
    seconds: f64,
    files_per_s: f64,
    servers: u16,
    /// Resident bytes of all servers; the numbers below are of all servers, too.
    server_resident_bytes: u64,
    store_bytes: u64,
    store_bytes_per_file: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando bench fill");
    let filled = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let filled = Box::pin(fill(&client, args)).await;
        client.close().await?;
        filled
    })?;
    if args.json {
        output::print(&serde_json::to_string(&filled)?)?;
    } else {
        output::print(&output::rows(&[
            ("files", filled.files.to_string()),
            ("made", format!("{:.1} s, {:.0}/s", filled.seconds, filled.files_per_s)),
            ("servers", filled.servers.to_string()),
            ("their memory", output::bytes(filled.server_resident_bytes)),
            ("metadata", output::bytes(filled.store_bytes)),
            ("for each file", format!("{:.0} B", filled.store_bytes_per_file)),
        ]))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::cast_precision_loss, reason = "what is measured has no 53 significant bits")]
async fn fill(client: &Client, args: &Args) -> anyhow::Result<Filled> {
    let directory = Path::new(&args.directory);
    let files = args.files.get();
    client.mkdir(directory, 0o755).await.context("cannot make the directory")?;
    let start = bench::monotonic();
    for (number, first) in (0..files).step_by(usize::try_from(DIRECTORY_FILES)?).enumerate() {
        let below = directory.join(format!("d{number}"));
        client.mkdir(&below, 0o755).await?;
        create(client, &below, first..files.min(first + DIRECTORY_FILES)).await?;
    }
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64().max(1e-9);
    let statuses = connect::for_administrators(client.statuses().await)?;
    let store_bytes = statuses.iter().map(|status| status.store_bytes).sum();
    Ok(Filled {
        files,
        seconds,
        files_per_s: files as f64 / seconds,
        servers: client.servers(),
        server_resident_bytes: statuses.iter().map(|status| status.process.resident_bytes).sum(),
        store_bytes,
        store_bytes_per_file: store_bytes as f64 / files as f64,
    })
}

/// Name of a file, from its number.
pub(crate) fn name(file: u64) -> String {
    format!("file.{file:08}")
}

/// Makes empty files in a directory, many at a time.
pub(crate) async fn create(
    client: &Client,
    directory: &Path,
    files: Range<u64>,
) -> anyhow::Result<()> {
    create_all(client, files.map(|file| directory.join(name(file)))).await
}

/// Makes empty files, many at a time.
pub(crate) async fn create_all(
    client: &Client,
    paths: impl Iterator<Item = impl AsRef<Path>>,
) -> anyhow::Result<()> {
    let create = |path| async move {
        let new = New { kind: base::FileKind::File, mode: 0o644, rdev: 0 };
        client.mknod(path, new).await.map(|_| ())
    };
    let made = stream::iter(paths).map(create).buffer_unordered(IN_FLIGHT);
    made.try_collect::<()>().await.context("cannot create a file")
}
