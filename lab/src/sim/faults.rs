//! Everything that goes wrong: kills, power cuts, cut connections, servers that stand still or are slow, machines that do
//! not reach each other.

use std::time::Duration;

use super::{network::Cut, random::SimRandom, server::Host, world::World};

/// Lets things go wrong until it is dropped.
///
/// # Errors
/// When a server cannot be started again.
pub async fn run(world: World) -> anyhow::Result<()> {
    let random = world.random("faults");
    loop {
        let calm = u64::try_from(world.plan().calm.as_millis()).expect("a short time");
        world.wait(random.ms(calm / 4..calm * 2)).await;
        let host = &world.hosts()[random.index(world.hosts().len())];
        match random.below(12) {
            0..=3 => crash(&world, host, &random).await?,
            4..=7 => cut(&world, &random).await,
            8 => {
                doom(&world, host, &random).await;
                crash(&world, host, &random).await?;
            }
            9 => stop(&world, host, &random).await,
            10 => part(&world, host, &random),
            _ => slow(&world, host, &random).await,
        }
    }
}

/// A server is killed, or its power cut, and started again some time later; now and then all of them at once.
async fn crash(world: &World, host: &Host, random: &SimRandom) -> anyhow::Result<()> {
    let power = world.plan().power_cuts && random.one_in(2);
    let all = world.hosts().len() > 1 && random.one_in(5);
    let hosts = if all { world.hosts() } else { std::slice::from_ref(host) };
    for host in hosts {
        if power {
            host.power_cut();
        } else {
            host.kill();
        }
    }
    world.count(|counts| {
        counts.kills += 1;
        counts.power_cuts += u64::from(power);
    });
    for host in hosts {
        if !random.one_in(3) {
            world.wait(random.ms(0..300)).await;
        }
        host.start()?;
    }
    Ok(())
}

/// A server dies with one of its next writes, or is killed after a while.
async fn doom(world: &World, host: &Host, random: &SimRandom) {
    let writes = i64::try_from(random.within(1..12)).expect("a small number");
    host.doom(writes, random.one_in(2));
    for _ in 0..100 {
        if !host.is_alive() {
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

/// So long that no session ends of it, in milliseconds.
fn short(world: &World) -> u64 {
    u64::try_from(world.plan().lease.as_millis()).expect("a short time") / 4
}

/// A server stands still, for less than a lease.
async fn stop(world: &World, host: &Host, random: &SimRandom) {
    host.stop(true);
    world.count(|counts| counts.stops += 1);
    world.wait(random.ms(1..short(world))).await;
    host.stop(false);
}

/// A server does not reach a client, or another server, for less than a lease; or is not reached; or both.
fn part(world: &World, host: &Host, random: &SimRandom) {
    let mut others: Vec<_> = world.hosts().iter().map(Host::place).collect();
    others.retain(|place| *place != host.place());
    if others.is_empty() || random.one_in(2) {
        others = world.network().clients();
    }
    if others.is_empty() {
        return;
    }
    let (one, other) = (host.place(), random.pick(&others));
    let time = random.ms(1..short(world));
    let ways = random.below(3);
    world.trace().say(format_args!("wall {one:?} {other:?} {ways} {time:?}"));
    world.count(|counts| counts.walls += 1);
    if ways != 1 {
        world.network().wall(one, other, time);
    }
    if ways != 2 {
        world.network().wall(other, one, time);
    }
}

/// A server is slow for a while.
async fn slow(world: &World, host: &Host, random: &SimRandom) {
    host.slow_down(random.ms(1..30));
    world.count(|counts| counts.slow += 1);
    world.wait(random.ms(1..short(world))).await;
    host.slow_down(Duration::ZERO);
}
