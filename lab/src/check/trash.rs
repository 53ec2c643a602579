//! Checks "What is removed is kept for some days": the original path of everything in the trash is
//! known, and the trash is emptied when the days are over.
//!
//! The workload `thrown` checks that removed files are in the trash.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use client::Client;
use wire::XattrMode;

use crate::sim::world::World;

/// Seconds that all clocks skip. They are more than two hours, because only an hour of the trash
/// that began an hour ago can be too old.
const SKIPPED_SECONDS: i64 = 3 * 3600;
/// A little more than the interval at which a server looks for things that are too old.
const INTERVAL: Duration = Duration::from_secs(65);
/// Number of intervals to wait, because busy servers look again later.
const INTERVALS_MAX: u32 = 5;

/// Something in the trash.
#[derive(Debug)]
pub struct Thrown {
    /// The path in the trash.
    pub at: String,
    /// The path that it had before.
    pub path: String,
}

/// Sets for how many days removed files are kept, and waits until all servers know.
///
/// # Errors
/// When the setting is refused.
pub async fn keep(world: &World, days: &str) -> anyhow::Result<()> {
    let machine = world.connect("keeps").await?;
    let set = ("pando.trash_days", days.as_bytes());
    machine.client.set_xattr("/", set.0, set.1, XattrMode::Set).await.context("trash_days")?;
    world.wait(world.plan().server_lease * 2).await;
    machine.close().await
}

async fn names(client: &Client, path: &str) -> anyhow::Result<Vec<String>> {
    let entries = client.read_dir(path).await?.all().await?;
    Ok(entries.iter().map(|entry| format!("{path}/{}", entry.name)).collect())
}

/// The directories of the trash, one for each hour (and server).
async fn hours(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut hours = Vec::new();
    for path in names(client, "/.trash").await? {
        // On several servers each server has a directory of its own, with the hours in it.
        match path.contains('-') {
            true => hours.push(path),
            false => hours.extend(names(client, &path).await?),
        }
    }
    Ok(hours)
}

/// Lists everything in the trash.
///
/// # Errors
/// When the original path of something is not known.
pub async fn all(client: &Client) -> anyhow::Result<Vec<Thrown>> {
    let mut found = Vec::new();
    for hour in hours(client).await? {
        for at in names(client, &hour).await? {
            let lines = client.info(&at).await.with_context(|| format!("info of {at}"))?;
            let path = lines.into_iter().find(|(line, _)| line == "trash.path");
            let (_, path) = path.with_context(|| format!("nobody knows where {at} was"))?;
            found.push(Thrown { at, path });
        }
    }
    Ok(found)
}

/// Checks everything in the trash, sets the days to 0, and checks that the trash is emptied.
///
/// # Errors
/// When an original path is not known, or something stays in the trash.
pub async fn check(world: &World, client: &Client) -> anyhow::Result<()> {
    all(client).await?;
    keep(world, "0").await?;
    world.skip(SKIPPED_SECONDS);
    let mut left = Vec::new();
    for _ in 0..INTERVALS_MAX {
        world.wait(INTERVAL).await;
        left = hours(client).await?;
        if left.is_empty() {
            return Ok(());
        }
    }
    ensure!(left.is_empty(), "still in the trash: {left:?}");
    Ok(())
}
