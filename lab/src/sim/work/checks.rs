//! Checks of all servers together, as `pando fsck` does them, while other workloads change
//! everything and servers die. A check that comes to its end finds nothing wrong.

use anyhow::{Context as _, ensure};
use base::FsError;
use client::{Client, Error};

use crate::{check::follow, sim::world::World};

/// The workload ends after this many checks, whether they came to their end or not.
const CHECKS: u64 = 6;

pub(super) async fn set_up(
    world: &World,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machine = world.connect("checks").await?;
    let (world, random) = (world.clone(), world.random("checks"));
    Ok(async move {
        for number in 0..CHECKS {
            world.wait(random.ms(0..300)).await;
            let checked = check(&world, &machine.client).await;
            world.trace().say(format_args!("check {number} {checked:?}"));
            match checked {
                Ok(found) => {
                    ensure!(found.is_empty(), "a check of what is in use finds {found:?}");
                    world.count(|counts| counts.checks += 1);
                }
                // A server was started anew, or an earlier check has not ended yet.
                Err(Error::Fs(FsError::NotFound | FsError::Busy)) => {}
                // A server is away.
                Err(Error::Silent(..)) => {}
                // A power cut has lost the session.
                Err(Error::SessionLost) if world.plan().is_lossy() => break,
                Err(error) => return Err(error).context("a check"),
            }
        }
        machine.close().await
    })
}

async fn check(world: &World, client: &Client) -> client::Result<Vec<String>> {
    let check = client.fsck_start_everywhere(false).await?;
    Ok(follow(world, client, check).await?.findings)
}
