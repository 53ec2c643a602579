//! Servers that die at one step, and start again.

use std::time::Duration;

use anyhow::Context as _;
use lab::sim::{server::Host, world::World};
use tokio::time::timeout;

/// Waits until `victims` are at the step at which they die, and starts them again one after the
/// other. With `power` they lose all that they have not synced.
pub(crate) async fn crash(
    world: &World,
    victims: &[usize],
    power: bool,
    step: u64,
    patience: Duration,
) -> anyhow::Result<()> {
    let hosts: Vec<&Host> = victims.iter().map(|server| &world.hosts()[*server]).collect();
    let dead = async {
        while hosts.iter().any(|host| host.is_alive()) {
            world.wait(Duration::from_millis(1)).await;
        }
    };
    timeout(patience, dead).await.context("the step is not reached")?;
    for host in &hosts {
        host.crash(power);
    }
    let pauses = [0, 300, 1500].map(Duration::from_millis);
    let mut again = hosts.clone();
    if step.is_multiple_of(2) {
        again.reverse();
    }
    for (pause, host) in pauses.iter().cycle().skip(usize::try_from(step % 3)?).zip(again) {
        world.wait(*pause).await;
        host.start()?;
    }
    Ok(())
}
