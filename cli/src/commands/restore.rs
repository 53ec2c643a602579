//! `pando restore`: put back what was removed, while it is in the trash.

use std::{cmp::Reverse, process::ExitCode};

use anyhow::{Context as _, bail};
use base::FsError;
use client::Client;
use wire::RenameMode;

use crate::{
    connect::{self, Servers, TokenArgs},
    failure, output,
};

/// Where the trash is.
const TRASH: &str = "/.trash";

/// Put back what was removed, with all that was below it, where it was. Needs the administrator's token.
///
/// It works while `pando set PLACE trash_days=N` keeps what is removed. Directories that are gone are made anew. Of
/// what was removed several times the latest comes back; the others, and what would replace something that is there,
/// stay in the trash, and are told. The exit code is 1 when something of what was asked for stays there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    /// What to put back, as it was called: from the root of the file system.
    #[arg(value_name = "PATH", required_unless_present = "list")]
    paths: Vec<String>,
    /// Only print what is in the trash: the hour of its removal, in UTC, and where it was.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    token: TokenArgs,
}

/// Something in the trash.
struct Found {
    /// Where it is.
    at: String,
    hour: String,
    /// Where it was.
    path: String,
    is_dir: bool,
    /// When, in seconds and nanoseconds.
    removed: (i64, i64),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando restore");
    connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let found = find(&client, &args.paths).await?;
        let left = if args.list { list(found)? } else { put_back(&client, found).await? };
        client.close().await?;
        Ok(if left == 0 { ExitCode::SUCCESS } else { failure::failed() })
    })
}

fn list(mut found: Vec<Found>) -> anyhow::Result<u64> {
    found.sort_by(|one, other| (&one.hour, &one.path).cmp(&(&other.hour, &other.path)));
    let lines = found.iter().map(|found| format!("{}  {}\n", found.hour, found.path));
    output::print(lines.collect::<String>().trim_end())?;
    Ok(0)
}

/// Everything in the trash that was at one of `paths`, or below; everything, if there are none.
async fn find(client: &Client, paths: &[String]) -> anyhow::Result<Vec<Found>> {
    let mut all = Vec::new();
    let hours = match client.read_dir(TRASH).await {
        Err(client::Error::Fs(FsError::NotFound)) => bail!("there is no trash: see `pando set`"),
        hours => hours.context("cannot read the trash")?.all().await?,
    };
    let mut dirs = Vec::new();
    for entry in hours {
        let name = entry.name.to_string();
        let dir = format!("{TRASH}/{name}");
        if name.contains('-') {
            dirs.push((dir, name));
            continue;
        }
        if !entry.is_dir() {
            continue;
        }
        // Of several servers each has a directory of its own, with those of hours.
        for hour in client.read_dir(&dir).await?.all().await? {
            dirs.push((format!("{dir}/{}", hour.name), hour.name.to_string()));
        }
    }
    for (dir, hour) in dirs {
        let entries = match client.read_dir(&dir).await {
            // Its days are over.
            Err(client::Error::Fs(FsError::NotFound)) => continue,
            entries => entries?.all().await?,
        };
        for entry in entries {
            let at = format!("{dir}/{}", entry.name);
            let is_dir = entry.is_dir();
            // It may just have been put back, or removed for good.
            let Some((path, removed)) = origin(client, &at).await? else { continue };
            all.push(Found { at, hour: hour.clone(), path, is_dir, removed });
        }
    }
    let wanted = |found: &Found| {
        let is_below = |path: &String| {
            let top = path.trim_end_matches('/');
            found
                .path
                .strip_prefix(top)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        paths.is_empty() || paths.iter().any(is_below)
    };
    all.retain(wanted);
    Ok(all)
}

/// Where something in the trash was, as the server knows it now, and when it was removed.
async fn origin(client: &Client, at: &str) -> anyhow::Result<Option<(String, (i64, i64))>> {
    let lines = match client.info(at).await {
        Err(client::Error::Fs(FsError::NotFound | FsError::Stale)) => return Ok(None),
        lines => lines.with_context(|| format!("cannot ask about {at}"))?,
    };
    let line = |name| lines.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
    let number = |digits: &str| digits.parse::<i64>().ok();
    let removed = line("trash.removed").and_then(|removed| {
        let (seconds, nanoseconds) = removed.split_once('.')?;
        Some((number(seconds)?, number(nanoseconds)?))
    });
    Ok(line("trash.path").zip(removed))
}

/// Puts them back; how many are still there.
async fn put_back(client: &Client, mut found: Vec<Found>) -> anyhow::Result<u64> {
    if found.is_empty() {
        bail!("nothing of that is in the trash");
    }
    // Directories first, and of them those that were removed last: what others were in.
    found.sort_by_key(|found| {
        (!found.is_dir, Reverse(found.removed), found.path.len(), found.at.clone())
    });
    let (mut done, mut left) = (0, 0);
    for Found { at, hour, .. } in found {
        // Where its directory is now, which may just have come back.
        let Some((path, _)) = origin(client, &at).await? else { continue };
        let outcome = if path.contains('\u{fffd}') {
            Err("its name is no text: move it by hand".to_owned())
        } else {
            restore(client, &at, &path).await
        };
        match outcome {
            Ok(()) => {
                done += 1;
                output::print(&format!("restored {path}"))?;
            }
            Err(why) => {
                left += 1;
                output::print(&format!("left in the trash: {path} of {hour}: {why}"))?;
            }
        }
    }
    output::print(&format!("{done} restored, {left} left in the trash"))?;
    Ok(left)
}

async fn restore(client: &Client, at: &str, path: &str) -> Result<(), String> {
    if let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
        let made = client.create_dir_all(above, 0o755).await;
        made.map_err(|error| format!("cannot make {above}: {error}"))?;
    }
    match client.rename_with(at, path, RenameMode::NoReplace).await {
        Ok(()) => Ok(()),
        Err(client::Error::Fs(FsError::Exists)) => Err("something is there".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
