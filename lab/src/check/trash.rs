//! "What is removed is kept for some days": where each thing in the trash was is known, and when
//! its days are over it goes.
//!
//! That it is in the trash at all is what the workload `thrown` shows.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use client::Client;
use wire::XattrMode;

use crate::sim::world::World;

/// Longer than two hours: what is too old must have begun an hour before.
const SKIPPED_SECONDS: i64 = 3 * 3600;
/// How often a server looks for what is too old, and a little more.
const INTERVAL: Duration = Duration::from_secs(65);
/// Servers that were busy look again.
const INTERVALS_MAX: u32 = 5;

/// Something in the trash.
#[derive(Debug)]
pub struct Thrown {
    /// Where it is.
    pub at: String,
    /// Where it was.
    pub path: String,
}

/// Sets for how many days what is removed is kept, and waits until all servers know.
///
/// # Errors
/// When it is refused.
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

/// The directories of all hours.
async fn hours(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut hours = Vec::new();
    for path in names(client, "/.trash").await? {
        // On several servers each has a directory of its own.
        match path.contains('-') {
            true => hours.push(path),
            false => hours.extend(names(client, &path).await?),
        }
    }
    Ok(hours)
}

/// All that is in the trash.
///
/// # Errors
/// When where something was is not known.
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

/// Looks through the trash, and has it emptied.
///
/// # Errors
/// When something is not known, or stays.
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
