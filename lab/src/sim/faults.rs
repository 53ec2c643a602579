//! Injects all faults: kills, power cuts, cut connections, servers that stand still or are slow,
//! full disks, and machines that do not reach each other.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    network::Cut, plan::Aim, random::SimRandom, server::Host, show::Message, world::World,
};

/// Factor by which other faults are rarer in worlds with aimed faults.
const SELDOM: u64 = 4;
/// Within this time a client that waited for an unreachable server connects to it again.
const GAP: Duration = Duration::from_millis(200);
/// Number of unsynced writes that most likely include some with contents.
const UNSYNCED: usize = 6;

/// Injects faults until the future is dropped.
///
/// # Errors
/// When a server cannot be started again.
pub async fn run(world: World) -> anyhow::Result<()> {
    let random = world.random("aimed faults");
    let aimed = async {
        match world.plan().aim {
            Aim::Nothing => Ok(()),
            Aim::Promises => break_promises(&world, &random).await,
            Aim::Leases => outlast_leases(&world, &random).await,
            Aim::Answers => delay_answers(&world, &random).await,
            Aim::Away => stay_away(&world, &random).await,
            Aim::Machines => lose_machines(&world, &random).await,
        }
    };
    let full = async {
        match world.plan().has_small_disks() {
            true => fill_disks(&world).await,
            false => Ok(()),
        }
    };
    futures::try_join!(hit_anything(&world), aimed, full).map(|_| ())
}

/// The machine of a server.
fn one_of(world: &World, random: &SimRandom) -> Host {
    world.hosts()[random.index(world.hosts().len())].machine()
}

async fn hit_anything(world: &World) -> anyhow::Result<()> {
    let random = world.random("faults");
    let seldom = if world.plan().aim == Aim::Nothing { 1 } else { SELDOM };
    loop {
        let calm = u64::try_from(world.plan().calm.as_millis()).expect("a short time") * seldom;
        world.wait(random.ms(calm / 4..calm * 2)).await;
        let host = &one_of(world, &random);
        match random.below(12) {
            0..=3 => crash(world, host, &random).await?,
            4..=7 => cut(world, &random).await,
            8 => {
                doom(world, host, &random).await;
                crash(world, host, &random).await?;
            }
            9 => stop(world, host, &random).await,
            10 => part(world, host, &random),
            _ => slow(world, host, &random).await,
        }
    }
}

/// Kills servers that have just sent a message that others rely on, while it is on its way.
async fn break_promises(world: &World, random: &SimRandom) -> anyhow::Result<()> {
    loop {
        world.wait(random.ms(10..200)).await;
        let host = &one_of(world, random);
        host.doom_with(random.pick(&Message::ALL));
        until_dead(world, host, random).await;
        host.pardon();
        if !host.is_alive() {
            strike(world, host, random);
            world.wait(random.ms(0..300)).await;
            host.start()?;
        }
    }
}

/// Separates the coordinator and another server for up to three leases.
async fn outlast_leases(world: &World, random: &SimRandom) -> anyhow::Result<()> {
    let lease = u64::try_from(world.plan().server_lease.as_millis()).expect("a short time");
    loop {
        world.wait(random.ms(1..lease)).await;
        let (coordinator, others) = world.hosts().split_first().expect("there are several");
        let (one, other) = (coordinator.place(), others[random.index(others.len())].place());
        let time = random.ms(lease / 2..lease * 3);
        world.trace().say(format_args!("wall {one:?} {other:?} {time:?}"));
        world.count(|counts| counts.walls += 1);
        world.network().wall(one, other, time);
        world.network().wall(other, one, time);
        world.wait(time).await;
    }
}

/// Keeps a server, in one case of three the coordinator, dead for one to four leases.
async fn stay_away(world: &World, random: &SimRandom) -> anyhow::Result<()> {
    let lease = u64::try_from(world.plan().server_lease.as_millis()).expect("a short time");
    loop {
        world.wait(random.ms(lease / 2..lease * 2)).await;
        let (coordinator, others) = world.hosts().split_first().expect("there are several");
        let coordinates = random.one_in(3);
        let host = if coordinates { coordinator } else { &others[random.index(others.len())] };
        let host = &host.machine();
        let time = random.ms(lease..lease * 4);
        world.trace().say(format_args!("away {:?} {time:?}", host.place()));
        host.keep_away(true);
        strike(world, host, random);
        world.count(|counts| {
            counts.away += 1;
            counts.coordinators_away += u64::from(coordinates);
        });
        world.wait(time).await;
        host.keep_away(false);
        host.start()?;
    }
}

/// Loses machines with their disks, has them stand still for longer than their journal's lease, or
/// cuts their way to the store.
async fn lose_machines(world: &World, random: &SimRandom) -> anyhow::Result<()> {
    let lease = u64::try_from(world.plan().journal_lease.as_millis()).expect("a short time");
    loop {
        world.wait(random.ms(lease / 2..lease * 4)).await;
        let host = &one_of(world, random);
        let time = random.ms(lease / 2..lease * 3);
        match random.below(5) {
            0 => {
                host.stop(true);
                world.count(|counts| counts.stops += 1);
                world.wait(time).await;
                host.stop(false);
            }
            1 => host.cut_off_store(time),
            // Machines that stand by are hit as well.
            2 => {
                let machine = world.machine_of(host, random);
                machine.power_cut();
                world.count(|counts| counts.power_cuts += 1);
                machine.start()?;
            }
            _ => {
                if random.one_in(2) {
                    fall_silent(world, host, time);
                }
                world.count(|counts| counts.machines_lost += 1);
                host.lose_disk();
                world.wait(time).await;
                host.comes_back();
            }
        }
    }
}

/// Lets nothing get to a machine, or away from it, for some time: nobody hears that its connections
/// have ended.
fn fall_silent(world: &World, host: &Host, time: Duration) {
    let servers = world.hosts().iter().map(Host::place);
    for other in servers.chain(world.network().clients()) {
        if other != host.place() {
            world.network().wall(host.place(), other, time);
            world.network().wall(other, host.place(), time);
        }
    }
}

/// Fills the disk of a server, or of all of them, and makes room again some time later.
async fn fill_disks(world: &World) -> anyhow::Result<()> {
    let random = world.random("small disks");
    loop {
        world.wait(random.ms(0..800)).await;
        let one = random.index(world.hosts().len());
        let hosts = match random.one_in(4) {
            true => world.hosts(),
            false => &world.hosts()[one..=one],
        };
        hosts.iter().for_each(|host| host.fill_disk(random.one_in(3)));
        world.count(|counts| counts.full += 1);
        world.wait(random.ms(100..1500)).await;
        hosts.iter().for_each(Host::free_disk);
    }
}

/// Delays the messages of a server to clients, and no others.
async fn delay_answers(world: &World, random: &SimRandom) -> anyhow::Result<()> {
    let max = Duration::from_millis(short(world));
    let mut spells = vec![Spell::before(Instant::now()); world.hosts().len()];
    loop {
        world.wait(random.ms(1..150)).await;
        let index = random.index(world.hosts().len());
        let (server, time) = (world.hosts()[index].place(), random.ms(10..500));
        if !spells[index].goes_on(Instant::now(), time, max) {
            continue;
        }
        world.trace().say(format_args!("late answers of {server:?} {time:?}"));
        world.count(|counts| counts.walls += 1);
        for client in world.network().clients() {
            world.network().wall(server, client, time);
        }
    }
}

/// A time in which the answers of a server were late, nearly without a break. No client can connect
/// to the server meanwhile. If the server is killed in a spell as long as a lease, sessions end.
#[derive(Debug, Clone)]
struct Spell {
    begun: Instant,
    until: Instant,
}

impl Spell {
    /// A spell that is over.
    fn before(now: Instant) -> Spell {
        Spell { begun: now, until: now }
    }

    /// Makes answers late for `time` from now on, unless the spell would become longer than `max`.
    /// Returns whether it does.
    fn goes_on(&mut self, now: Instant, time: Duration, max: Duration) -> bool {
        let begun = if now > self.until + GAP { now } else { self.begun };
        let until = self.until.max(now + time);
        let goes_on = until - begun <= max;
        if goes_on {
            *self = Spell { begun, until };
        }
        goes_on
    }
}

/// Kills a server, or cuts its power, and starts it again some time later; now and then all servers
/// at once.
async fn crash(world: &World, host: &Host, random: &SimRandom) -> anyhow::Result<()> {
    let power = world.plan().power_cuts && random.one_in(2);
    let all = world.hosts().len() > 1 && random.one_in(5);
    let hosts = if all { world.hosts() } else { std::slice::from_ref(host) };
    let hosts: Vec<_> = hosts.iter().map(Host::machine).collect();
    if power && world.plan().volatile_blocks {
        until_unsynced(world, host).await;
    }
    hosts.iter().for_each(|host| end(host, power));
    count_crash(world, power);
    for host in &hosts {
        if !random.one_in(3) {
            world.wait(random.ms(0..300)).await;
        }
        host.start()?;
    }
    Ok(())
}

/// Waits until a power cut would take some of the newest writes, with a block where blocks can be
/// lost, though not for long.
async fn until_unsynced(world: &World, host: &Host) {
    for _ in 0..100 {
        let has_blocks = !world.plan().volatile_blocks || host.blocks().unsynced() > 0;
        if host.engine().unsynced() >= UNSYNCED && has_blocks {
            return;
        }
        world.wait(Duration::from_millis(2)).await;
    }
}

fn end(host: &Host, power: bool) {
    if power {
        host.power_cut();
    } else {
        host.kill();
    }
}

fn count_crash(world: &World, power: bool) {
    world.count(|counts| {
        counts.kills += 1;
        counts.power_cuts += u64::from(power);
    });
}

/// Kills a doomed server, or cuts its power.
fn strike(world: &World, host: &Host, random: &SimRandom) {
    let power = world.plan().power_cuts && !random.one_in(4);
    end(host, power);
    count_crash(world, power);
}

/// Dooms a server to die with one of its next writes, and waits for that.
async fn doom(world: &World, host: &Host, random: &SimRandom) {
    let writes = i64::try_from(random.within(1..12)).expect("a small number");
    host.doom(writes, random.one_in(2));
    until_dead(world, host, random).await;
}

/// Waits, at most 200 ms, until a doomed server has died.
async fn until_dead(world: &World, host: &Host, random: &SimRandom) {
    for _ in 0..100 {
        if !host.is_alive() {
            // The server stays dead for a moment.
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

/// A time in milliseconds short enough that no session ends: a quarter of a lease.
fn short(world: &World) -> u64 {
    u64::try_from(world.plan().lease.as_millis()).expect("a short time") / 4
}

/// Stops a server for less than a quarter of a lease.
async fn stop(world: &World, host: &Host, random: &SimRandom) {
    host.stop(true);
    world.count(|counts| counts.stops += 1);
    world.wait(random.ms(1..short(world))).await;
    host.stop(false);
}

/// Separates a server from a client or another server for less than a quarter of a lease, in one
/// direction or both.
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

/// Slows a server down for less than a quarter of a lease.
async fn slow(world: &World, host: &Host, random: &SimRandom) {
    host.slow_down(random.ms(1..30));
    world.count(|counts| counts.slow += 1);
    world.wait(random.ms(1..short(world))).await;
    host.slow_down(Duration::ZERO);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_late_no_longer_than_a_spell_and_then_a_gap_comes() {
        let ms = Duration::from_millis;
        let start = Instant::now();
        let mut spell = Spell::before(start);
        let mut goes_on = |at, time| spell.goes_on(start + ms(at), ms(time), ms(1000));
        assert!(goes_on(300, 400), "it begins at 300, and may take until 1300");
        assert!(goes_on(600, 700));
        assert!(!goes_on(1000, 301));
        assert!(!goes_on(1500, 10), "too soon after its end");
        assert!(goes_on(1501, 1000), "a new one");
    }
}
