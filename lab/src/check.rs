//! Checks what must be true at the end of every world: the rules of docs/DESIGN.md, section "Always
//! true", and some more, with a file for each.
//!
//! Workloads compare answers with `durable`, `visible` and `linear`. The other checks look at the
//! state that a world leaves when it ends. `planted` shows that the checks can fail.

pub mod durable;
pub mod errors;
pub mod full;
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

/// How often, at most, and how far apart the check looks whether all background work has ended.
const LOOKS: u32 = 1000;
const LOOK: Duration = Duration::from_millis(10);

/// Checks a world whose workloads are done and whose servers run. Kills the servers.
///
/// # Errors
/// Returns the first violation.
pub async fn run(world: &World) -> anyhow::Result<()> {
    let lease = world.plan().lease;
    // After three leases the sessions of dead clients have expired and background work has run.
    world.wait(lease * 3).await;
    let machine = world.connect("check").await?;
    let status = machine.client.status().await?;
    ensure!(status.sessions.len() == 1, "sessions are left: {:?}", status.sessions);
    quota::fill(world, &machine.client).await?;
    if world.plan().has_small_disks() {
        full::check(world, &machine.client).await?;
    }
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
    // A postponed merge may just have begun.
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
    owned::check(
        &engines.iter().map(|engine| &**engine).collect::<Vec<_>>(),
        world.plan().shards,
        &tree,
    )?;
    if world.plan().servers > 1 {
        united(world).await.context("all servers taken together")?;
    }
    errors::check(world.trace())
}

fn is_at_work(world: &World) -> store::Result<bool> {
    for host in world.hosts() {
        if owned::is_at_work(&host.engine())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Merges the stores of all servers into one file system of a single server, and checks that. So
/// the check of a whole cluster, when it finds nothing, is compared with the check of one server.
async fn united(world: &World) -> anyhow::Result<()> {
    let host = world.unite().await?;
    let machine = world.connect("check").await?;
    fsck(world, &machine.client).await?;
    machine.close().await?;
    host.kill();
    Ok(())
}

/// Checks all servers together, as `pando fsck` does, without repairing anything.
///
/// # Errors
/// Returns the findings, if there are any.
pub async fn fsck(world: &World, client: &Client) -> anyhow::Result<()> {
    let progress = follow(world, client, client.fsck_start_everywhere(false).await?).await?;
    ensure!(progress.findings_total == 0, "fsck: {:?}", progress.findings);
    Ok(())
}

/// Polls a check of all servers until it is done. Returns its final progress.
///
/// # Errors
/// When the check cannot go on.
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
