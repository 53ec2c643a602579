//! Contents of the trash: where each thing was, when it was removed, whose it is. `restore` puts it
//! back, `set` counts it.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use base::{Attr, FsError};
use client::Client;
use wire::ReaddirEntry;

/// Where the trash is.
const TRASH: &str = "/.trash";

/// Something in the trash.
pub(super) struct Thrown {
    /// Path in the trash.
    pub(super) at: String,
    /// Path before the removal.
    pub(super) path: String,
    pub(super) attr: Attr,
    /// When, in seconds and nanoseconds.
    pub(super) removed: (i64, u32),
}

impl Thrown {
    /// Time of the removal, in UTC: `2026-11-21 17:30:05.123`.
    pub(super) fn removed(&self) -> String {
        let (seconds, nanoseconds) = self.removed;
        let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
        let time = humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + since).to_string();
        time.replace('T', " ").trim_end_matches('Z').to_owned()
    }
}

/// The directories of hours: of several servers each has those of its own.
async fn hours(client: &Client) -> anyhow::Result<Option<Vec<String>>> {
    let all = match client.read_dir(TRASH).await {
        Err(client::Error::Fs(FsError::NotFound)) => return Ok(None),
        all => all.context("cannot read the trash")?.all().await?,
    };
    let mut hours = Vec::new();
    for entry in all {
        let dir = format!("{TRASH}/{}", entry.name);
        if is_hour(&entry.name.to_string()) {
            hours.push(dir);
        } else if entry.is_dir() {
            let below = entries(client, &dir).await?;
            hours.extend(below.iter().map(|hour| format!("{dir}/{}", hour.name)));
        }
    }
    Ok(Some(hours))
}

/// Whether the name is that of an hour, and not that of a server's own directory.
fn is_hour(name: &str) -> bool {
    name.contains('-')
}

async fn entries(client: &Client, dir: &str) -> anyhow::Result<Vec<ReaddirEntry>> {
    match client.read_dir(dir).await {
        // The directory of that hour has expired.
        Err(client::Error::Fs(FsError::NotFound)) => Ok(Vec::new()),
        entries => Ok(entries?.all().await?),
    }
}

/// Counts the entries in the trash.
pub(super) async fn count(client: &Client) -> anyhow::Result<usize> {
    let mut things = 0;
    for hour in hours(client).await?.unwrap_or_default() {
        things += entries(client, &hour).await?.len();
    }
    Ok(things)
}

/// Counts as [`count`] does the trash in a directory on a mount, for a user who may look into it.
pub(super) fn count_mounted(root: &Path) -> io::Result<usize> {
    fn below(dir: &Path) -> io::Result<Vec<fs::DirEntry>> {
        match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => entries?.collect(),
        }
    }
    let mut things = 0;
    for entry in below(&root.join(&TRASH[1..]))? {
        if is_hour(&entry.file_name().to_string_lossy()) {
            things += below(&entry.path())?.len();
        } else if entry.file_type()?.is_dir() {
            for hour in below(&entry.path())? {
                things += below(&hour.path())?.len();
            }
        }
    }
    Ok(things)
}

/// Everything that was at one of `paths`, or below; everything, if there are none.
pub(super) async fn find(client: &Client, paths: &[String]) -> anyhow::Result<Vec<Thrown>> {
    let Some(hours) = hours(client).await? else {
        bail!("there is no trash: `pando set HOST:PORT trash_days=N` keeps one")
    };
    let mut all = Vec::new();
    for dir in hours {
        for entry in entries(client, &dir).await? {
            let at = format!("{dir}/{}", entry.name);
            // The entry may just have been put back, or removed for good.
            let Some((path, removed)) = origin(client, &at).await? else { continue };
            if !is_wanted(&path, paths) {
                continue;
            }
            let attr = match entry.entry {
                Some(entry) => entry.attr,
                None => match client.lstat(&at).await {
                    Err(client::Error::Fs(FsError::NotFound | FsError::Stale)) => continue,
                    attr => attr?,
                },
            };
            all.push(Thrown { at, path, attr, removed });
        }
    }
    Ok(all)
}

fn is_wanted(path: &str, paths: &[String]) -> bool {
    let is_below = |wanted: &String| {
        let top = wanted.trim_end_matches('/');
        path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    paths.is_empty() || paths.iter().any(is_below)
}

/// Where something in the trash was, as the server knows it now, and when it was removed.
pub(super) async fn origin(
    client: &Client,
    at: &str,
) -> anyhow::Result<Option<(String, (i64, u32))>> {
    let lines = match client.info(at).await {
        Err(client::Error::Fs(FsError::NotFound | FsError::Stale)) => return Ok(None),
        lines => lines.with_context(|| format!("cannot ask about {at}"))?,
    };
    let line = |name| lines.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
    let removed = line("trash.removed").and_then(|removed| {
        let (seconds, nanoseconds) = removed.split_once('.')?;
        Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
    });
    Ok(line("trash.path").zip(removed))
}
