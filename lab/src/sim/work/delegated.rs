//! Delegations: two mounts, of which one or both hold the directories that they make, work in one
//! tree in turns. Each operation is answered as the model answers it: so what one mount was told is
//! seen by the other, whatever dies or is cut off in between.
//!
//! A mount that cannot be reached for longer than its lease may lose what it had not sent, and says
//! so. Then the comparison ends, unless nothing was lost. Walls and other weather may follow each
//! other so closely that its session ends, too: then what was under way and what it had open fails.

use std::{cell::Cell, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use base::{Cred, EntryName, FileKind, FsError, HashKey, SetAttr};
use client::{Delegating, Error, FileSystem, New, model::Model};
use wire::{DirRef, NodeRef, SeekTo};

use super::model::{draw, lives_on};
use crate::{
    clock::HandClock,
    ops::{Answer, Difference, Rules, Step, Tallies, compare},
    sim::{
        jail::Jail,
        network::Place,
        random::SimRandom,
        world::{Machine, World},
    },
};

/// Time between two operations, at most: longer than a change waits until it is sent.
const PAUSE_MS_MAX: u64 = 40;

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let label = format!("delegated-{number}");
    let name = EntryName::new(label.as_bytes())?;
    let random = world.random(&label);
    let one = world.connect_as("holds", true).await?;
    let other = world.connect_as("asks", true).await?;
    let both_hold = random.one_in(2);
    // In some worlds the directories are those that exist, and asked for again and again.
    let eager = world.random(&format!("{label}-eager"));
    let of_mount = |client: &client::Client, holds: bool| match holds && eager.one_in(3) {
        true => Delegating::eager(client.clone()),
        false => Delegating::new(client.clone(), holds),
    };
    let works_together = eager.one_in(2);
    let mounts = [of_mount(&one.client, true), of_mount(&other.client, both_hold)];
    let real =
        [Jail::make(mounts[0].clone(), &name).await?, Jail::find(mounts[1].clone(), &name).await?];
    let clock = HandClock::at(1_000_000);
    let model = Model::new(Arc::new(clock.clone()), HashKey::new(1, number), true);
    let models =
        [Jail::make(model.clone(), &name).await?, Jail::find(model.client(true), &name).await?];
    let mut steps = draw(&random, 2)?;
    take_turns(&random, &mut steps);
    let world = world.clone();
    Ok(async move {
        let rules = Rules { page_entries: (2, 100), ..Rules::default() };
        let lease = world.plan().lease;
        let at = Cell::new(0);
        let settle = async || {
            world.count(|counts| counts.operations += 1);
            let step = at.replace(at.get() + 1);
            let comes = step > 0 && steps[step].client == 1 && steps[step - 1].client == 0;
            if !comes {
                // The client releases a closed file a moment after it was sent.
                return world.wait(random.ms(12..PAUSE_MS_MAX)).await;
            }
            // The other mount is about to ask for what this one may not have sent.
            match random.below(6) {
                0 | 1 => {
                    // Long enough to lose what is held, and too short to lose the session.
                    let time = lease.mul_f64(0.5) + random.ms(0..1 + ms(lease) / 4);
                    wall_off(&world, &one, time);
                }
                2 | 3 => {
                    let hosts = world.hosts();
                    let host =
                        &hosts[usize::try_from(random.below(hosts.len() as u64)).unwrap_or(0)];
                    if host.is_alive() {
                        host.kill();
                        world.count(|counts| counts.kills += 1);
                        host.start().expect("its disk is whole");
                    }
                }
                _ => {}
            }
        };
        if random.one_in(2) {
            let wall = || wall_off(&world, &one, lease.mul_f64(0.75));
            late(&world, &mounts, &format!("{label}-late"), wall).await?;
        }
        if random.one_in(2) {
            unsent(&world, &mounts, &format!("{label}-unsent")).await?;
        }
        if random.one_in(2) {
            removed(&world, &mounts, &format!("{label}-removed")).await?;
        }
        if works_together {
            let label = format!("{label}-together");
            Box::pin(together(&world, &mounts, &label)).await?;
            for mount in &mounts {
                mount.settle_all().await;
                // Tells of a loss, if there was one meanwhile.
                drop(FileSystem::sync(mount).await);
            }
        }
        let lost = || mounts.iter().map(Delegating::lost).sum::<usize>();
        let stats = || [one.client.stats(), other.client.stats()];
        let losses = || stats().map(|stats| stats.losses).iter().sum::<u64>();
        let sessions = || stats().map(|stats| stats.sessions_lost).iter().sum::<u64>();
        let (lost_before, losses_before, sessions_before) = (lost(), losses(), sessions());
        let mut tallies = Tallies::new();
        let compared = compare(&clock, rules, (&real, &models), &steps, &mut tallies, settle).await;
        for (granted, recalled) in mounts.iter().map(Delegating::grants_and_recalls) {
            world.count(|counts| counts.granted += granted as u64);
            world.count(|counts| counts.recalled += recalled as u64);
        }
        if compared.is_err() {
            // A mount that was cut off hears later than the other one that its changes are lost.
            world.wait(lease).await;
            for mount in &mounts {
                let settled = tokio::time::timeout(Duration::from_secs(300), mount.settle_all());
                ensure!(settled.await.is_ok(), "changes of a mount are never sent");
            }
        }
        match compared {
            Ok(()) => {}
            Err(difference) if is_told(&difference) && losses() > losses_before => {
                world.trace().say(format_args!("{label}: a server has lost changes"));
                world.count(|counts| counts.models_ended += 1);
            }
            Err(difference) if is_told(&difference) && sessions() > sessions_before => {
                world.trace().say(format_args!("{label}: a session was lost"));
                world.count(|counts| counts.models_ended += 1);
            }
            Err(difference) if lost() > lost_before => {
                world.trace().say(format_args!("{label}: changes are lost: {difference}"));
                world.count(|counts| counts.taken_back += 1);
            }
            // A listing leaves out what one of several servers that is silent would say.
            Err(difference) if format!("{:?}", difference.left).contains("kind: None") => {
                world.trace().say(format_args!("{label}: a server was silent"));
                world.count(|counts| counts.models_ended += 1);
            }
            Err(difference) if lives_on(&difference) => {
                world.trace().say(format_args!("{label}: a removed file lives on"));
                world.count(|counts| counts.models_ended += 1);
            }
            Err(difference) => return Err(difference).context(label),
        }
        world.count(|counts| counts.models += 1);
        for mount in &mounts {
            let settled = tokio::time::timeout(Duration::from_secs(300), mount.settle_all()).await;
            ensure!(settled.is_ok(), "changes of a mount are never sent");
        }
        drop((real, mounts));
        one.close().await?;
        other.close().await
    })
}

/// Whether an operation says that something is lost which was answered before, or that the session
/// is, with what was open or under way in it.
fn is_told(difference: &Difference) -> bool {
    match &*difference.left {
        Answer::Failed(FsError::Io) => true,
        // A file without a name goes with the session that has it open; others stay.
        Answer::Failed(FsError::Stale) => difference.names == Some(0),
        Answer::Broken(why) => *why == Error::SessionLost.to_string(),
        _ => false,
    }
}

fn wall_off(world: &World, machine: &Machine, time: Duration) {
    for server in 0..world.plan().servers {
        world.network().wall(machine.place(), Place::Server(server), time);
        world.network().wall(Place::Server(server), machine.place(), time);
    }
}

/// A directory that the first mount has made in the root, with a file in it, and how the second
/// one finds it.
async fn made(mount: &Delegating, name: &str) -> anyhow::Result<(DirRef, NodeRef)> {
    let (root, name) = (mount.root().0, EntryName::new(name.as_bytes())?);
    let entry = mount.mkdir(&Cred::ROOT, &root, &name, 0o755).await?;
    let dir = entry.dir.context("it is a directory")?;
    let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
    let file = EntryName::new(b"file")?;
    let made = mount.create(&Cred::ROOT, &dir, &file, new, true, false).await?;
    Ok((dir, made.entry.node(&dir, &file)))
}

/// A mount that is cut off changes a mode, and so does the other one, which has to wait: the later
/// change stays.
async fn late(
    world: &World,
    [one, other]: &[Delegating; 2],
    name: &str,
    wall: impl Fn(),
) -> anyhow::Result<()> {
    let lost = one.lost();
    let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let (dir, node) = made(one, name).await?;
    one.settle_all().await;
    wall();
    one.setattr(&Cred::ROOT, &node, set(0o600)).await?;
    let (root, name) = (other.root().0, EntryName::new(name.as_bytes())?);
    let found = other.lookup(&Cred::ROOT, &root, &name).await?.dir.context("it is there")?;
    ensure!(found.ino == dir.ino, "it is another directory");
    let file = EntryName::new(b"file")?;
    let node = other.lookup(&Cred::ROOT, &found, &file).await?.node(&found, &file);
    other.setattr(&Cred::ROOT, &node, set(0o640)).await?;
    let settled = tokio::time::timeout(Duration::from_secs(300), one.settle_all()).await;
    ensure!(settled.is_ok(), "changes of a mount that was cut off are never sent");
    world.wait(world.plan().lease).await;
    for mount in [other, one] {
        let mode = mount.getattr(&Cred::ROOT, &node).await?.mode & 0o777;
        ensure!(mode == 0o640, "{mode:o}: a change came late and was taken");
    }
    tells_of_losses(one, lost).await
}

/// A file that a mount has made and not sent is there for others, also when the server has died in
/// between.
async fn unsent(world: &World, [one, other]: &[Delegating; 2], name: &str) -> anyhow::Result<()> {
    let lost = one.lost();
    let (dir, _) = made(one, name).await?;
    if let [host] = world.hosts()
        && host.is_alive()
    {
        host.kill();
        world.count(|counts| counts.kills += 1);
        host.start()?;
    }
    let (root, name) = (other.root().0, EntryName::new(name.as_bytes())?);
    let found = other.lookup(&Cred::ROOT, &root, &name).await?.dir.context("it is there")?;
    ensure!(found.ino == dir.ino, "it is another directory");
    let seen = other.lookup(&Cred::ROOT, &found, &EntryName::new(b"file")?).await;
    ensure!(seen.is_ok() || one.lost() > lost, "a file that was made is not there: {seen:?}");
    tells_of_losses(one, lost).await
}

/// A file that a mount has opened without asking lives on when either mount removes its name.
async fn removed(world: &World, mounts: &[Delegating; 2], name: &str) -> anyhow::Result<()> {
    let one = &mounts[0];
    for (number, remover) in mounts.iter().enumerate() {
        let name = format!("{name}-{number}");
        let lost = one.lost();
        let (dir, node) = made(one, &name).await?;
        let NodeRef::File(file) = &node else { bail!("it is no file") };
        let handle = one.open(&Cred::ROOT, file, None).await?;
        one.write(handle, 0, "contents".into(), false).await?;
        one.release(handle).await?;
        one.settle_all().await;
        world.wait(Duration::from_millis(100)).await;
        let handle = one.open(&Cred::ROOT, file, None).await?;
        let (root, name) = (remover.root().0, EntryName::new(name.as_bytes())?);
        let found = remover.lookup(&Cred::ROOT, &root, &name).await?.dir.context("it is there")?;
        ensure!(found.ino == dir.ino, "it is another directory");
        remover.unlink(&Cred::ROOT, &found, &file.name).await?;
        world.wait(Duration::from_millis(100)).await;
        // Asks the server, where the file must still be.
        let held = one.seek(handle, 0, SeekTo::Data).await;
        ensure!(held.is_ok() || one.lost() > lost, "an open file is gone: {held:?}");
        one.release(handle).await?;
    }
    for mount in mounts {
        // Tells of a power cut, if there was one meanwhile.
        drop(FileSystem::sync(mount).await);
    }
    Ok(())
}

/// Programs of a mount that work in one directory at the same time, which another mount has made and
/// looks at now and then, find what they have done there.
async fn together(world: &World, [one, other]: &[Delegating; 2], name: &str) -> anyhow::Result<()> {
    const PROGRAMS: usize = 3;
    let stats = || one.stats().losses + one.stats().sessions_lost;
    let lost = || (one.lost(), stats());
    let before = lost();
    let (dir, _) = made(other, name).await?;
    let name = EntryName::new(name.as_bytes())?;
    let found = one.lookup(&Cred::ROOT, &one.root().0, &name).await?.dir.context("it is there")?;
    let programs = (0..PROGRAMS).map(|number| {
        let random = world.random(&format!("{name}-{number}"));
        async move { program(world, one, &found, number, &random).await }
    });
    let looks = async {
        for _ in 0..2 {
            world.wait(Duration::from_millis(150)).await;
            other.readdir(&Cred::ROOT, &dir, 0, 1000, true).await?;
        }
        anyhow::Ok(())
    };
    let (left, looked) = tokio::join!(futures::future::try_join_all(programs), looks);
    looked?;
    let mut left = match left {
        Ok(left) => left.concat(),
        Err(_) if lost() != before => return Ok(()),
        Err(error) => return Err(error.context("of what programs have done together")),
    };
    left.push("file".into());
    left.sort();
    for mount in [one, other] {
        let page = mount.readdir(&Cred::ROOT, &dir, 0, 1000, false).await?;
        let mut names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
        names.sort();
        let is_so = names == left || lost() != before;
        ensure!(is_so, "of what programs have done together, {names:?} is left, not {left:?}");
    }
    Ok(())
}

/// One of these programs. Returns the names that it has left there.
async fn program(
    world: &World,
    mount: &Delegating,
    dir: &DirRef,
    number: usize,
    random: &SimRandom,
) -> anyhow::Result<Vec<String>> {
    let mut left: Vec<String> = Vec::new();
    for round in 0..20 {
        world.wait(random.ms(0..6)).await;
        let text = format!("{number}-{round}");
        let name = EntryName::new(text.as_bytes())?;
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        let made = mount.create(&Cred::ROOT, dir, &name, new, true, false).await?;
        left.push(text);
        let node = made.entry.node(dir, &name);
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        mount.setattr(&Cred::ROOT, &node, set).await?;
        let shown = mount.lookup(&Cred::ROOT, dir, &name).await?.attr;
        ensure!(shown.mode & 0o777 == 0o600, "{name} has another mode");
        if random.one_in(2) {
            let at = usize::try_from(random.below(left.len() as u64)).unwrap_or(0);
            let gone = EntryName::new(left.remove(at).as_bytes())?;
            mount.unlink(&Cred::ROOT, dir, &gone).await.with_context(|| gone.to_string())?;
        }
    }
    Ok(left)
}

/// The next sync says that something was lost, if it was since `before`, and says so once.
async fn tells_of_losses(mount: &Delegating, before: usize) -> anyhow::Result<()> {
    mount.settle_all().await;
    let is_lost = mount.lost() > before;
    let told = FileSystem::sync(mount).await;
    ensure!(told.is_err() == is_lost, "{told:?}, and {} changes are lost", mount.lost() - before);
    Ok(FileSystem::sync(mount).await?)
}

/// Lets each mount do several operations in a row.
fn take_turns(random: &SimRandom, steps: &mut [Step]) {
    let (mut client, mut left) = (0, 0);
    for step in steps {
        if left == 0 {
            (client, left) = (1 - client, random.within(1..10));
        }
        step.client = client;
        left -= 1;
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(left: Answer, names: Option<u32>) -> bool {
        let (left, right) = (Box::new(left), Box::new(Answer::Done));
        is_told(&Difference { index: Some(1), step: "a step".into(), left, right, names })
    }

    #[test]
    fn a_lost_session_takes_what_was_open_and_under_way_and_no_file_with_a_name() {
        assert!(told(Answer::Failed(FsError::Io), Some(1)));
        assert!(told(Answer::Broken("session lost".into()), None));
        assert!(!told(Answer::Broken("no hole: 1..2".into()), None));
        assert!(told(Answer::Failed(FsError::Stale), Some(0)));
        assert!(!told(Answer::Failed(FsError::Stale), Some(1)));
        assert!(!told(Answer::Failed(FsError::Stale), None));
        assert!(!told(Answer::Failed(FsError::NotFound), Some(0)));
    }
}
