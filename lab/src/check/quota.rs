//! What is charged to a quota is what there is below it: of all servers together, after everything that happened.
//!
//! In some worlds `/` has a quota, from the beginning or from some moment on, and perhaps has lost it and got it again meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use base::{FileKind, FsError};
use client::{Client, Error};
use wire::XattrMode;

use super::tree::Tree;
use crate::sim::{plan::Quotas, work::filled, world::World};

const KEY: &str = "pando.quota.bytes";
/// How often it is looked whether everything was counted.
const PERIOD: Duration = Duration::from_millis(200);
/// And so often while servers die: a count begins anew with its coordinator, so where that never lives for long it stays as it is.
const LOOKS_MAX: u32 = 25;

/// Sets the quota, and counts again while everything goes on, as it is in the plan.
///
/// # Errors
/// When it is refused.
pub async fn run(world: World) -> anyhow::Result<()> {
    let random = world.random("quotas");
    let machine = world.connect("quotas").await?;
    let client = &machine.client;
    match world.plan().quotas {
        Quotas::None => {}
        Quotas::Before => set(&world, client, "unlimited", LOOKS_MAX).await?,
        Quotas::Meanwhile => {
            world.wait(random.ms(0..3000)).await;
            set(&world, client, "unlimited", LOOKS_MAX).await?;
        }
        Quotas::Again => {
            set(&world, client, "unlimited", LOOKS_MAX).await?;
            world.wait(random.ms(0..2000)).await;
            set(&world, client, "none", LOOKS_MAX).await?;
            world.wait(random.ms(0..2000)).await;
            set(&world, client, "unlimited", LOOKS_MAX).await?;
        }
    }
    machine.close().await
}

async fn set(world: &World, client: &Client, max: &str, looks_max: u32) -> anyhow::Result<()> {
    for _ in 0..looks_max {
        match client.set_xattr("/", KEY, max.as_bytes(), XattrMode::Set).await {
            Ok(()) => return Ok(()),
            // The one before is not counted yet.
            Err(Error::Fs(FsError::Busy)) => world.wait(PERIOD).await,
            Err(error) => return Err(error).context("a quota is refused"),
        }
    }
    Ok(())
}

/// What `pando get` tells.
///
/// # Errors
/// When nothing is told.
pub async fn facts(client: &Client, path: &str) -> anyhow::Result<BTreeMap<String, String>> {
    Ok(client.info(path).await.with_context(|| format!("info of {path}"))?.into_iter().collect())
}

/// What is used below a directory when all was counted: inodes and bytes.
///
/// # Errors
/// When it has no quota.
pub async fn used(world: &World, client: &Client, path: &str) -> anyhow::Result<(u64, u64)> {
    loop {
        let facts = facts(client, path).await?;
        let fact = |name: &str| facts.get(name).with_context(|| format!("{path} has no {name}"));
        if fact("quota.state")? == "active" {
            return Ok((fact("used.entries")?.parse()?, fact("used.bytes")?.parse()?));
        }
        world.wait(PERIOD).await;
    }
}

/// Fills the directory with a limit, if there is one: just so many inodes can be there as may be.
///
/// # Errors
/// When there are others.
pub async fn fill(client: &Client) -> anyhow::Result<()> {
    let top = filled::path(0);
    let max = match client.info(&top).await {
        Err(Error::Fs(FsError::NotFound)) => return Ok(()),
        info => info?.into_iter().find(|(name, _)| name == "quota.entries"),
    };
    // A power cut may have taken it.
    let Some(max) = max.and_then(|(_, max)| max.parse::<u64>().ok()) else { return Ok(()) };
    for number in 0..=max {
        match client.mkdir(format!("{top}/in-the-end-{number}"), 0o755).await {
            Ok(_) => {}
            Err(Error::Fs(FsError::QuotaExceeded)) => break,
            Err(error) => return Err(error).context("a limit"),
        }
    }
    let (mut inos, mut dirs) = (BTreeSet::new(), vec![top.clone()]);
    inos.insert(client.lstat(&top).await?.ino);
    while let Some(dir) = dirs.pop() {
        for entry in client.read_dir(&dir).await?.all().await? {
            inos.insert(entry.ino);
            if entry.kind == FileKind::Directory {
                dirs.push(format!("{dir}/{}", entry.name));
            }
        }
    }
    let there = inos.len() as u64;
    ensure!(there == max, "{there} are below {top} when it is full, and {max} may be");
    Ok(())
}

/// Compares what is counted with a walk.
///
/// # Errors
/// When it is something else.
pub async fn check(world: &World, client: &Client, tree: &Tree) -> anyhow::Result<()> {
    if world.plan().quotas == Quotas::None {
        return Ok(());
    }
    // A power cut may have taken it.
    set(world, client, "unlimited", u32::MAX).await?;
    let used = used(world, client, "/").await?;
    let bytes = tree.inodes.values().map(|(attr, _)| attr.allocated).sum::<u64>();
    let there = (tree.inodes.len() as u64, bytes);
    ensure!(used == there, "(entries, bytes) counted are {used:?}, but there are {there:?}");
    Ok(())
}
