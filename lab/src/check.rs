//! What must be true at the end of every world: a file for each sentence of DESIGN.md §12 that
//! applies to one server.
//!
//! `durable`, `visible` and `linear` are what workloads compare answers with; the others look at
//! what is left when it ends. `planted` shows that they can fail.

pub mod durable;
pub mod errors;
pub mod linear;
pub mod owned;
pub mod planted;
pub mod quota;
pub mod rescued;
pub mod trash;
pub mod tree;
pub mod visible;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use client::{Client, Fsck};
use wire::FsckProgress;

use crate::sim::world::World;

/// So often, and so long apart, it is looked whether all work has ended.
const LOOKS: u32 = 1000;
const LOOK: Duration = Duration::from_millis(10);

/// Checks a world whose workloads are done and whose servers run. They do not run afterwards.
///
/// # Errors
/// The first thing that is not so.
pub async fn run(world: &World) -> anyhow::Result<()> {
    let lease = world.plan().lease;
    // Whoever died is given up, and everything that can be done in the background is.
    world.wait(lease * 3).await;
    let machine = world.connect("check").await?;
    let status = machine.client.status().await?;
    ensure!(status.sessions.len() == 1, "sessions are left: {:?}", status.sessions);
    quota::fill(world, &machine.client).await?;
    if world.plan().trash {
        tree::check(&machine.client).await?;
        fsck(world, &machine.client).await.context("with what is in the trash")?;
        trash::check(world, &machine.client).await?;
    }
    let tree = tree::check(&machine.client).await?;
    quota::check(world, &machine.client, &tree).await?;
    fsck(world, &machine.client).await?;
    machine.close().await?;
    world.wait(lease * 2).await;
    // A merge that was put off may just have begun.
    for _ in 0..LOOKS {
        if !is_at_work(world)? {
            break;
        }
        world.wait(LOOK).await;
    }
    let mut engines = Vec::new();
    for host in world.hosts() {
        host.kill();
        engines.push(host.engine());
    }
    owned::check(&engines, world.plan().shards, &tree)?;
    if world.plan().servers > 1 {
        united(world).await.context("all servers taken together")?;
    }
    errors::check(world.trace())
}

fn is_at_work(world: &World) -> store::Result<bool> {
    for host in world.hosts() {
        if owned::is_at_work(host.engine())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What all servers of a cluster have together is a file system of one server, which checks itself:
/// that the cluster's own check has found nothing is worth as much as that check.
async fn united(world: &World) -> anyhow::Result<()> {
    let host = world.unite().await?;
    let machine = world.connect("check").await?;
    fsck(world, &machine.client).await?;
    machine.close().await?;
    host.kill();
    Ok(())
}

/// Has all servers check what they have, together, as `pando fsck` does.
///
/// # Errors
/// What is found.
pub async fn fsck(world: &World, client: &Client) -> anyhow::Result<()> {
    let progress = follow(world, client, client.fsck_start_everywhere(false).await?).await?;
    ensure!(progress.findings_total == 0, "fsck: {:?}", progress.findings);
    Ok(())
}

/// What a check of all servers has come to in the end.
///
/// # Errors
/// When it cannot go on.
pub async fn follow(
    world: &World,
    client: &Client,
    mut check: Fsck,
) -> client::Result<FsckProgress> {
    loop {
        let progress = check.poll(client, false).await?;
        if progress.done {
            return Ok(progress);
        }
        world.wait(Duration::from_millis(10)).await;
    }
}
