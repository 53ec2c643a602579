//! Two processes of one server, with copies of one disk: never two that serve.
//!
//! The machine of a server stands still or is cut off, and a copy of its disk is started elsewhere;
//! later the machine is back. Each bug of the rules is planted, and found.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base::{Cred, EntryName};
use client::{Client, FileSystem};
use lab::sim::{plan::Plan, server::Host, world::World};
use meta::{Bug, Durability, Word};
use tokio::time::timeout;

use crate::steps::{self, finds, goes_well};

const SERVERS: u16 = 3;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn plan(seed: u64, durability: Durability, alone: Duration) -> Plan {
    Plan { seed, trash: false, alone, access_cache: true, ..steps::plan(SERVERS, durability) }
}

/// A file of before is read from a directory.
async fn is_served(client: &Client, path: &str) -> anyhow::Result<()> {
    let read = timeout(30 * SECOND, client.read(format!("{path}/before")));
    ensure!(&read.await.context("it is served")??[..] == b"it");
    Ok(())
}

/// Looks all the time that no two processes serve. Never ends otherwise.
async fn never_two(world: &World, one: &Host, other: &Host) -> anyhow::Result<()> {
    loop {
        ensure!(
            !(one.may_serve() && other.may_serve()),
            "two processes serve at once, of generations {} and {}",
            one.generation(),
            other.generation()
        );
        world.wait(MS).await;
    }
}

/// Ends the processes whose servers have halted, as the program does. Never ends otherwise.
async fn end_halted(world: &World, hosts: [&Host; 2]) {
    loop {
        hosts.iter().filter(|host| host.has_halted()).for_each(|host| host.kill());
        world.wait(MS).await;
    }
}

/// The copy of a disk is started while the machine stands still or is cut off from the
/// coordinator, and the machine comes back.
fn copied(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let replaces = seed.is_multiple_of(3);
    let alone = if seed % 3 == 1 { 4 * SECOND } else { Duration::ZERO };
    let plan = plan(seed, Durability::Relaxed, alone);
    steps::run(plan, bug, 400 * SECOND, async |world| {
        let served = "is being served by another process";
        for words in ["a newer process of server", "another server refuses this one", served] {
            world.trace().expect(words);
        }
        let random = world.random("copies");
        let client = world.connect("writes").await?.client;
        let path = steps::dir_on(&client, 1, SERVERS).await?.0;
        client.write(format!("{path}/before"), b"it").await?;
        let (coordinator, one) = (&world.hosts()[0], &world.hosts()[1]);
        world.wait(random.ms(0..1000)).await;
        let away = random.ms(500..12_000);
        let stands_still = random.one_in(2);
        match stands_still {
            true => one.stop(true),
            false => steps::part(&world, one.place(), coordinator.place(), away),
        }
        let other = one.copy(true);
        other.say(Word { replaces, restored: false });
        world.wait(random.ms(0..2000)).await;
        other.start()?;
        let story = async {
            if random.one_in(3) {
                world.wait(random.ms(0..1500)).await;
                coordinator.crash(true);
                coordinator.start()?;
            }
            world.wait(away).await;
            one.stop(false);
            world.wait(20 * SECOND).await;
            // The copy serves, or was refused because the machine was back before.
            ensure!(one.may_serve() != other.may_serve(), "one of the two serves");
            is_served(&client, &path).await?;
            Ok(())
        };
        tokio::select! {
            told = story => told,
            seen = never_two(&world, one, &other) => seen,
        }
    })
}

/// A server starts again in its place, and the coordinator loses its power.
fn again(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let plan = plan(seed, Durability::Relaxed, Duration::ZERO);
    steps::run(plan, bug, 400 * SECOND, async |world| {
        let random = world.random("again");
        let client = world.connect("writes").await?.client;
        let path = steps::dir_on(&client, 1, SERVERS).await?.0;
        let (coordinator, one) = (&world.hosts()[0], &world.hosts()[1]);
        let mut last = one.generation();
        for _ in 0..3 {
            one.crash(random.one_in(2));
            one.start()?;
            let began = tokio::time::Instant::now();
            while !one.may_serve() {
                ensure!(began.elapsed() < SECOND / 2, "a restart in place waits");
                world.wait(MS).await;
            }
            let generation = one.generation();
            ensure!(generation > last, "generation {generation} is given after {last}");
            last = generation;
            world.wait(random.ms(0..200)).await;
            if random.one_in(2) {
                coordinator.crash(true);
                coordinator.start()?;
                world.wait(2 * SECOND).await;
            }
        }
        let made = timeout(30 * SECOND, client.write(format!("{path}/after"), b"it"));
        made.await.context("it is served")??;
        Ok(())
    })
}

/// The operator is wrong: the machine that is replaced is not off, and reaches other servers and a
/// client.
fn wrongly_replaced(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let plan = plan(seed, Durability::Relaxed, 100 * SECOND);
    steps::run(plan, bug, 400 * SECOND, async |world| {
        for words in ["a newer process of server", "another server refuses this one"] {
            world.trace().expect(words);
        }
        let random = world.random("replaced");
        let machine = world.connect("knows only the old one").await?;
        let client = &machine.client;
        let (_, dir) = steps::dir_on(client, 1, SERVERS).await?;
        let (name, _) = world.name_on(client, dir.id, 2);
        let (coordinator, one) = (&world.hosts()[0], &world.hosts()[1]);
        world.wait(random.ms(0..1000)).await;
        steps::part(&world, one.place(), coordinator.place(), 100 * SECOND);
        let other = one.copy(true);
        other.say(Word { replaces: true, restored: false });
        other.start()?;
        steps::part(&world, machine.place(), other.place(), 200 * SECOND);
        while !other.may_serve() {
            world.wait(MS).await;
        }
        // The others hear of the new generation with their next lease.
        world.wait(SECOND).await;
        let name = EntryName::new(name.as_bytes())?;
        let cred = Cred::ROOT;
        let made = FileSystem::mkdir(client, &cred, &dir, &name, 0o755);
        match timeout(10 * SECOND, made).await {
            Ok(Ok(_)) => bail!("a process of an older generation is believed"),
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    })
}

/// A machine stands still with changes that are not stable, its disk goes on elsewhere without
/// them, and it is back.
fn late(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    // The client does not give the machine up while it stands still.
    let plan = Plan { lease: 60 * SECOND, ..plan(seed, Durability::Strict, Duration::ZERO) };
    steps::run(plan, bug, 400 * SECOND, async |world| {
        for words in ["a newer process of server", "another server refuses this one"] {
            world.trace().expect(words);
        }
        let random = world.random("late");
        let client = world.connect("writes").await?.client;
        let path = steps::dir_on(&client, 1, SERVERS).await?.0;
        let one = &world.hosts()[1];
        one.slow_down_disk(100);
        let writes = async {
            let mut written = Vec::new();
            for number in 0..40 {
                let file = format!("{path}/{number}");
                // One request, which only this server answers.
                let wrote = timeout(20 * SECOND, client.symlink("it", &file)).await;
                if matches!(wrote, Ok(Ok(()))) {
                    written.push(file);
                }
            }
            written
        };
        let fails = async {
            world.wait(random.ms(100..1500)).await;
            one.stop(true);
            let other = one.copy(false);
            other.say(Word { replaces: true, restored: false });
            other.start()?;
            while !other.may_serve() {
                world.wait(MS).await;
            }
            world.wait(random.ms(0..300)).await;
            one.stop(false);
            anyhow::Ok(other)
        };
        let (written, other) = futures::join!(writes, fails);
        let _other = other?;
        let reads = world.connect("reads").await?.client;
        for file in &written {
            let there = timeout(30 * SECOND, reads.lstat(file)).await.context("it is served")?;
            ensure!(there.is_ok(), "{file} was answered and is not there: {there:?}");
        }
        ensure!(written.len() > 10, "only {} were written", written.len());
        Ok(())
    })
}

/// A machine boots again after a power cut, and somebody has started a copy of its disk elsewhere.
fn rebooted(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let plan = plan(seed, Durability::Relaxed, 100 * SECOND);
    steps::run(plan, bug, 400 * SECOND, async |world| {
        for words in ["is being served by another process", "a newer process of server"] {
            world.trace().expect(words);
        }
        let random = world.random("reboots");
        let client = world.connect("writes").await?.client;
        let path = steps::dir_on(&client, 1, SERVERS).await?.0;
        client.write(format!("{path}/before"), b"it").await?;
        client.sync().await?;
        let one = &world.hosts()[1];
        world.wait(random.ms(0..1000)).await;
        let other = one.copy(true);
        one.crash(true);
        one.boot();
        let elsewhere_first = random.one_in(2);
        if elsewhere_first {
            other.start()?;
        }
        world.wait(random.ms(0..1500)).await;
        one.start()?;
        if !elsewhere_first {
            other.start()?;
        }
        let story = async {
            // The lease is a second.
            world.wait(3 * SECOND).await;
            ensure!(one.may_serve(), "a machine that has booted again waits for more than a lease");
            is_served(&client, &path).await?;
            world.wait(130 * SECOND).await;
            ensure!(one.may_serve(), "the machine that serves goes on");
            Ok(())
        };
        tokio::select! {
            told = story => told,
            seen = never_two(&world, one, &other) => seen,
        }
    })
}

/// The disk of the coordinator is copied, and the copy is started while the coordinator stands
/// still or is cut off. Members come to both, one after the other. A copy that is older than what
/// they know is not kept to.
fn two_coordinators(seed: u64, bug: Option<Bug>) -> anyhow::Result<()> {
    let plan = plan(seed, Durability::Relaxed, Duration::ZERO);
    steps::run(plan, bug, 400 * SECOND, async |world| {
        let newer = "a newer process of server 0";
        for words in ["two processes coordinate this cluster", "coordinator is an old copy", newer]
        {
            world.trace().expect(words);
        }
        let random = world.random("coordinators");
        let client = world.connect("writes").await?.client;
        let path = steps::dir_on(&client, 1, SERVERS).await?.0;
        client.write(format!("{path}/before"), b"it").await?;
        let [zero, members @ ..] = world.hosts() else { bail!("there is no server") };
        let old = random.one_in(3).then(|| zero.copy(true));
        // Each start stores a generation.
        for member in members {
            member.crash(false);
            member.look_also_at(zero.address_of_copy());
            member.start()?;
        }
        world.wait(random.ms(500..2000)).await;
        let begins_again = random.one_in(2);
        if begins_again {
            zero.crash(false);
        }
        let other = old.unwrap_or_else(|| zero.copy(true));
        if begins_again {
            // Both begin where the process before ended, with one number.
            zero.start()?;
        }
        let away = random.ms(500..6000);
        match random.one_in(2) {
            true => zero.stop(true),
            false => members
                .iter()
                .for_each(|member| steps::part(&world, member.place(), zero.place(), away)),
        }
        other.start()?;
        let story = async {
            world.wait(away).await;
            zero.stop(false);
            // A coordinator hears of the other one only from a member that has come to both.
            for coordinator in [zero, &other] {
                world.wait(random.ms(0..3000)).await;
                members.iter().for_each(|member| {
                    steps::part(&world, member.place(), coordinator.place(), 6 * SECOND)
                });
                world.wait(6 * SECOND).await;
            }
            world.wait(10 * SECOND).await;
        };
        tokio::select! {
            () = story => {}
            () = end_halted(&world, [zero, &other]) => {}
        }
        // Where each member has kept to another one, both have ended. The operator starts the one
        // with the newest data, which has a later number each time, and says at last that the other
        // one is given up.
        for restored in [false, false, true] {
            if !zero.may_serve() && !other.may_serve() {
                zero.kill();
                zero.say(Word { replaces: false, restored });
                zero.start()?;
                world.wait(5 * SECOND).await;
            }
        }
        ensure!(zero.may_serve() != other.may_serve(), "two coordinators serve, or none");
        ensure!(members.iter().all(Host::may_serve), "a member has no lease of the one that stays");
        is_served(&client, &path).await?;
        Ok(())
    })
}

#[test]
fn of_two_copies_of_a_disk_one_serves() {
    goes_well(copied);
    finds(copied, Bug::GenerationNotAwaited, 7, "two processes serve at once");
}

#[test]
fn a_machine_that_has_booted_again_waits_for_the_lease_and_a_copy_of_its_disk_for_longer() {
    goes_well(rebooted);
    finds(copied, Bug::HomeIgnored, 7, "two processes serve at once");
}

#[test]
fn of_two_coordinators_the_earlier_one_ends_when_a_member_comes_to_it() {
    goes_well(two_coordinators);
    finds(two_coordinators, Bug::OtherCoordinatorIgnored, 0, "two coordinators serve");
}

#[test]
fn where_members_keep_to_different_coordinators_both_end_and_one_is_started_again() {
    // Of 10,000 worlds these do.
    for seed in [743, 4432, 9389] {
        two_coordinators(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}

#[test]
fn a_restart_in_place_waits_for_nothing_and_has_a_generation_of_its_own() {
    goes_well(again);
    finds(again, Bug::GenerationNotStored, 0, "is an old copy");
}

#[test]
fn a_process_that_was_replaced_is_believed_by_no_server() {
    goes_well(wrongly_replaced);
    finds(wrongly_replaced, Bug::OlderGenerationTaken, 0, "older generation is believed");
}

#[test]
fn answers_that_are_ready_when_the_time_to_serve_is_over_are_not_given() {
    goes_well(late);
    finds(late, Bug::LateAnswersLeave, 0, "was answered and is not there");
}
