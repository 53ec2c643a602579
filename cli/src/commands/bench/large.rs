//! `pando bench large`: one large directory by the native client, a part of it at a time.
//!
//! Each part is a process of its own, so that its memory is its own; `scripts/bench-large-dir`
//! calls them one after the other.

use std::{num::NonZeroU64, path::Path, process::ExitCode};

use anyhow::{Context as _, ensure};
use client::Client;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Serialize;

use super::fill;
use crate::{
    connect::{self, Servers, TokenArgs},
    output, system,
};

/// Requests under way at a time.
const IN_FLIGHT: usize = 128;

/// Time one large directory: make its files, list it, look at some of them, or remove it. What is
/// listed must be what was made.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A server of the file system.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    /// Operation to time.
    #[arg(value_enum)]
    part: Part,
    #[command(flatten)]
    token: TokenArgs,
    /// How many files the directory has.
    #[arg(long, default_value = "10000000", value_name = "N")]
    entries: NonZeroU64,
    /// How many of them to look at.
    #[arg(long, default_value = "100000", value_name = "N")]
    stats: NonZeroU64,
    /// The directory.
    #[arg(long, default_value = "/large", value_name = "PATH")]
    directory: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// Make the directory, which must not exist, and empty files in it.
    Make,
    /// List it with all attributes, once.
    List,
    /// Look at files drawn from all, many at a time.
    Stat,
    /// Remove the files, and the directory.
    Remove,
}

/// Result of one part. Bytes are of this process.
#[derive(Debug, Serialize)]
struct Took {
    part: Part,
    entries: u64,
    seconds: f64,
    per_s: f64,
    resident_bytes_before: Option<u64>,
    resident_bytes_peak: Option<u64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando bench large");
    let took = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let took = Box::pin(args.take(&client)).await;
        client.close().await?;
        took
    })?;
    if args.json {
        output::print(&serde_json::to_string(&took)?)?;
    } else {
        output::print(&took.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    #[expect(clippy::cast_precision_loss, reason = "what is measured has no 53 significant bits")]
    async fn take(&self, client: &Client) -> anyhow::Result<Took> {
        let memory = || system::memory(std::process::id());
        let (path, before) = (Path::new(&self.directory), memory());
        let start = bench::monotonic();
        let entries = match self.part {
            Part::Make => {
                client.mkdir(path, 0o755).await.context("cannot make the directory")?;
                fill::create(client, path, 0..self.entries.get()).await?;
                self.entries.get()
            }
            Part::List => list(client, path).await?,
            Part::Stat => self.stat(client, path).await?,
            Part::Remove => self.remove(client, path).await?,
        };
        let seconds = bench::monotonic().saturating_sub(start).as_secs_f64().max(1e-9);
        let wanted = if self.part == Part::Stat { entries } else { self.entries.get() };
        ensure!(entries == wanted, "{entries} entries are there in place of {wanted}");
        Ok(Took {
            part: self.part,
            entries,
            seconds,
            per_s: entries as f64 / seconds,
            resident_bytes_before: before.map(|memory| memory.resident),
            resident_bytes_peak: memory().map(|memory| memory.peak),
        })
    }

    async fn stat(&self, client: &Client, directory: &Path) -> anyhow::Result<u64> {
        let stat = |number: u64| {
            // One from anywhere.
            let file = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.entries;
            let path = directory.join(fill::name(file));
            async move { client.lstat(path).await.map(drop) }
        };
        let done = stream::iter(0..self.stats.get()).map(stat).buffer_unordered(IN_FLIGHT);
        done.try_collect::<()>().await.context("cannot look at a file")?;
        Ok(self.stats.get())
    }

    async fn remove(&self, client: &Client, directory: &Path) -> anyhow::Result<u64> {
        let unlink = |number| {
            let path = directory.join(fill::name(number));
            async move { client.unlink(path).await }
        };
        let done = stream::iter(0..self.entries.get()).map(unlink).buffer_unordered(IN_FLIGHT);
        done.try_collect::<()>().await.context("cannot remove a file")?;
        client.rmdir(directory).await.context("cannot remove the directory")?;
        Ok(self.entries.get())
    }
}

async fn list(client: &Client, path: &Path) -> anyhow::Result<u64> {
    let mut listing = client.read_dir(path).await?;
    let mut entries = 0;
    while listing.next().await?.is_some() {
        entries += 1;
    }
    Ok(entries)
}

impl Took {
    fn to_text(&self) -> String {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), output::bytes);
        let what = match self.part {
            Part::Make => "made",
            Part::List => "listed",
            Part::Stat => "looked at",
            Part::Remove => "removed",
        };
        output::rows(&[
            (what, self.entries.to_string()),
            ("took", format!("{:.2} s, {:.0}/s", self.seconds, self.per_s)),
            ("memory before", bytes(self.resident_bytes_before)),
            ("memory at most", bytes(self.resident_bytes_peak)),
        ])
    }
}
