//! Everything that goes wrong: kills, power cuts, cut connections, servers that stand still.

use std::time::Duration;

use super::{network::Cut, random::SimRandom, world::World};

/// Lets things go wrong until it is dropped.
///
/// # Errors
/// When a server cannot be started again.
pub async fn run(world: World) -> anyhow::Result<()> {
    let random = world.random("faults");
    loop {
        let calm = u64::try_from(world.plan().calm.as_millis()).expect("a short time");
        world.wait(random.ms(calm / 4..calm * 2)).await;
        match random.below(10) {
            0..=3 => crash(&world, &random).await?,
            4..=7 => cut(&world, &random).await,
            8 => {
                doom(&world, &random).await;
                crash(&world, &random).await?;
            }
            _ => stop(&world, &random).await,
        }
    }
}

/// The server is killed, or its power cut, and started again some time later.
async fn crash(world: &World, random: &SimRandom) -> anyhow::Result<()> {
    let power = world.plan().power_cuts && random.one_in(2);
    if power {
        world.host().power_cut();
    } else {
        world.host().kill();
    }
    world.count(|counts| {
        counts.kills += 1;
        counts.power_cuts += u64::from(power);
    });
    if !random.one_in(3) {
        world.wait(random.ms(0..300)).await;
    }
    world.host().start()
}

/// The server dies with one of its next writes, or is killed after a while.
async fn doom(world: &World, random: &SimRandom) {
    let writes = i64::try_from(random.within(1..12)).expect("a small number");
    world.host().doom(writes, random.one_in(2));
    for _ in 0..100 {
        if !world.host().is_alive() {
            // Nobody notices for a moment.
            world.wait(random.ms(0..20)).await;
            return;
        }
        world.wait(Duration::from_millis(2)).await;
    }
}

async fn cut(world: &World, random: &SimRandom) {
    for _ in 0..random.within(1..4) {
        let late = random.ms(1..400);
        let cut = random.pick(&[Cut::Both, Cut::LateAtServer(late), Cut::LateAtClient(late)]);
        if world.network().cut(cut) {
            world.trace().say(format_args!("{cut:?}"));
            world.count(|counts| counts.cuts += 1);
        }
    }
}

/// The server stands still, for less than a lease.
async fn stop(world: &World, random: &SimRandom) {
    let lease = u64::try_from(world.plan().lease.as_millis()).expect("a short time");
    world.host().stop(true);
    world.count(|counts| counts.stops += 1);
    world.wait(random.ms(1..lease / 4)).await;
    world.host().stop(false);
}
