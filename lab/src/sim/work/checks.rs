//! Checks of all servers together, as `pando fsck` does them, and dumps, while other workloads
//! change everything and servers die. A check that comes to its end finds nothing wrong, and a dump
//! that does can be loaded.

use anyhow::{Context as _, ensure};
use base::FsError;
use client::{Client, DumpError, Error};

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
            if number % 3 == 2 {
                dump(&world, &machine.client).await.context("a dump")?;
                continue;
            }
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

/// Makes a dump, and loads it.
async fn dump(world: &World, client: &Client) -> anyhow::Result<()> {
    let dumped = async {
        let dump = client.dump_start().await?;
        world.read_dump(client, dump, 1).await
    };
    let dumped = dumped.await;
    // The text of an error, as an error that is shown for debugging has a backtrace.
    let records = dumped.as_ref().map(|dumped| dumped.records).map_err(ToString::to_string);
    world.trace().say(format_args!("dump {records:?}"));
    match dumped {
        Ok(dumped) => {
            ensure!(dumped.records > 0, "it has no root");
            world.count(|counts| counts.dumps += 1);
            Ok(())
        }
        Err(error) if error.downcast_ref().is_some_and(|error| is_of_a_fault(world, error)) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Whether a dump may end so where servers die. One that was started anew has forgotten the dump,
/// and may have removed blocks since that it names.
fn is_of_a_fault(world: &World, error: &DumpError) -> bool {
    match error {
        DumpError::Silent(_) | DumpError::Failed(Error::Refused(_)) => true,
        DumpError::Failed(Error::Fs(error)) => {
            matches!(error, FsError::NotFound | FsError::Stale | FsError::Busy | FsError::Io)
        }
        DumpError::Failed(Error::SessionLost) => world.plan().is_lossy(),
        DumpError::Failed(_) => false,
    }
}
