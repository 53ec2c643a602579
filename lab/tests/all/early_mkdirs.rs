//! Directories that are made on other servers, crashed at each step until they are confirmed.
//!
//! Of three servers the first has `/p`, the second a directory in it, and the third one in that,
//! with a file that is synced. As in `handoff.rs` a world is run once to count its steps
//! ([`Steps`]). Then it is run once more for each step and for each way in which some of the
//! servers die at it: killed, or with all that they had not synced.
//!
//! Every time all comes back in bounded time. What was answered is there, or, where the power may
//! take it, what was synced. Nothing is left of early mkdirs, a check finds nothing, and
//! directories can be made and removed in all existing directories.

use std::{cell::RefCell, collections::BTreeMap, ops::ControlFlow, time::Duration};

use anyhow::{Context as _, bail, ensure};
use base::{
    Cred, DirId, EntryName, FsError, Layout, Locality, NameVersion, Splits, placement::shard_of,
};
use client::{Client, Error, FileSystem, OpenOptions};
use lab::{
    check::{
        self,
        planted::{self, Pin},
    },
    sim::{disk::Steps, plan::Plan, play::in_world, world::World},
};
use meta::{Bug, Durability};
use store::Engine as _;
use tokio::time::timeout;
use wire::{NodeRef, XattrMode};

use crate::steps;

const SERVERS: u16 = 3;
/// In the time of the world. A longer wait counts as endless.
const PATIENCE: Duration = Duration::from_secs(120);

/// Operations of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// A directory in a directory, and a file in that.
    Chain,
    /// Like `Chain`, but the last directory is first removed and made again.
    Again,
    /// A file that is stable elsewhere is moved into the first directory.
    Rename,
}

/// How servers die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Kill,
    Power,
}

/// A run with a crash.
#[derive(Debug, Clone)]
struct Crash {
    step: u64,
    /// Servers that die, counted from the one that has `/p`, which is 0.
    victims: &'static [usize],
    death: Death,
    durability: Durability,
}

const VICTIMS: [&[usize]; 7] = [&[0], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]];

impl Scene {
    /// The server that has `/p`.
    fn first(self) -> usize {
        match self {
            Scene::Chain => 0,
            Scene::Again => 1,
            Scene::Rename => 2,
        }
    }
}

impl Crash {
    /// Whether answered changes may be lost.
    fn loses(&self) -> bool {
        self.death == Death::Power && self.durability == Durability::Relaxed
    }
}

struct Stage {
    world: World,
    scene: Scene,
    /// Two directories, the second in the first.
    dirs: [String; 2],
    /// Paths that must exist (`true`), and paths that must not.
    stable: RefCell<BTreeMap<String, bool>>,
}

/// Runs a world, with a crash or without; returns the number of steps.
fn run(
    scene: Scene,
    durability: Durability,
    crash: Option<&Crash>,
    bug: Option<Bug>,
) -> anyhow::Result<u64> {
    let plan = Plan { trash: false, ..steps::plan(SERVERS, durability) };
    steps::run(plan, bug, 10 * PATIENCE, async |world| Box::pin(play(world, scene, crash)).await)
}

async fn play(world: World, scene: Scene, crash: Option<&Crash>) -> anyhow::Result<u64> {
    let maker = world.connect("maker").await?;
    let stage = Stage::prepare(&world, &maker.client, scene).await?;
    let busy = world.connect("busy").await?;
    stage.settle().await.context("before it")?;
    for host in world.hosts() {
        host.settle()?;
    }

    let steps = Steps::new(crash.map_or(0, |crash| crash.step));
    let victims = crash.map_or(&[][..], |crash| crash.victims);
    let server = |victim: &usize| (victim + scene.first()) % usize::from(SERVERS);
    let victims: Vec<usize> = victims.iter().map(server).collect();
    for (server, host) in world.hosts().iter().enumerate() {
        host.count_steps(&steps, victims.contains(&server));
    }
    let makes = timeout(PATIENCE, stage.make(&busy.client, crash));
    let (made, crashed) = futures::join!(makes, stage.crash(crash, &victims));
    crashed?;
    made.context("it is never answered")??;
    stage.settle().await?;
    let taken = steps.taken();

    let looks = world.connect("looks").await?;
    timeout(PATIENCE, stage.compare(&looks.client, crash)).await.context("a look never ends")??;
    timeout(PATIENCE, stage.touch(&looks.client)).await.context("a change never ends")??;
    stage.settle().await.context("when all has been changed")?;
    for machine in [busy, looks, maker] {
        // The machine's session may be lost with the power.
        if let Err(error) = machine.close().await
            && !crash.is_some_and(Crash::loses)
        {
            return Err(error);
        }
    }
    check::run(&world).await?;
    Ok(taken)
}

async fn write_new(client: &Client, path: &str) -> Result<(), Error> {
    let file = client.open_with(path, OpenOptions::writing().create_new(0o644)).await?;
    file.write_at(0, path.as_bytes()).await?;
    file.sync_all().await?;
    file.close().await
}

impl Stage {
    async fn prepare(world: &World, client: &Client, scene: Scene) -> anyhow::Result<Stage> {
        let NodeRef::Dir(root) = client.resolve("/").await? else { bail!("a directory") };
        let servers = (0..3).map(|more| (scene.first() + more) % usize::from(SERVERS));
        let (mut path, mut id, mut paths) = (String::new(), root.id, Vec::new());
        for server in servers {
            let (name, next) = world.name_on(client, id, u16::try_from(server)?);
            path = format!("{path}/{name}");
            id = next;
            paths.push(path.clone());
        }
        let [parent, first, second] = &paths[..] else { bail!("three directories") };
        client.mkdir(parent, 0o755).await?;
        let mut stable = BTreeMap::new();
        if scene == Scene::Rename {
            let old = format!("{parent}/old");
            write_new(client, &old).await?;
            stable.insert(old, true);
        }
        if scene == Scene::Again {
            // A directory that was born in an earlier directory of this name lives on, and its
            // birth place knows of it.
            client.mkdir(first, 0o755).await?;
            client.mkdir(second, 0o755).await?;
            client.mkdir(&format!("{second}/moved"), 0o755).await?;
            client.rename(&format!("{second}/moved"), &format!("{parent}/moved")).await?;
            client.rmdir(second).await?;
            client.rmdir(first).await?;
        }
        client.sync().await?;
        Ok(Stage {
            world: world.clone(),
            scene,
            dirs: [first.clone(), second.clone()],
            stable: RefCell::new(stable),
        })
    }

    /// Makes everything; a loss by the power cut ends it.
    async fn make(&self, client: &Client, crash: Option<&Crash>) -> anyhow::Result<()> {
        match self.make_all(client).await {
            Err(
                Error::Fs(FsError::NotFound | FsError::Stale | FsError::Io) | Error::SessionLost,
            ) if crash.is_some_and(Crash::loses) => Ok(()),
            done => Ok(done?),
        }
    }

    async fn make_all(&self, client: &Client) -> Result<(), Error> {
        let [first, second] = &self.dirs;
        // An early mkdir that is confirmed at once would not be waited for, so others come first.
        for beside in 0..3 {
            client.mkdir(&format!("{first} beside {beside}"), 0o755).await?;
        }
        client.mkdir(first, 0o755).await?;
        client.mkdir(second, 0o755).await?;
        if self.scene == Scene::Again {
            client.rmdir(second).await?;
            client.mkdir(second, 0o755).await?;
        }
        if self.scene == Scene::Rename {
            let old = self.old();
            let new = format!("{first}/new");
            // The file is in one of the two places meanwhile.
            self.stable.borrow_mut().remove(&old);
            client.rename(&old, &new).await?;
            client.sync().await?;
            self.stable.borrow_mut().extend([(new, true), (old, false)]);
        }
        let file = format!("{second}/file");
        write_new(client, &file).await?;
        self.stable.borrow_mut().insert(file, true);
        Ok(())
    }

    /// Path of the file that is moved.
    fn old(&self) -> String {
        let (parent, _) = self.dirs[0].rsplit_once('/').unwrap_or_default();
        format!("{parent}/old")
    }

    async fn crash(&self, crash: Option<&Crash>, victims: &[usize]) -> anyhow::Result<()> {
        let Some(crash) = crash else { return Ok(()) };
        let power = crash.death == Death::Power;
        steps::crash(&self.world, victims, power, crash.step, PATIENCE).await
    }

    /// Waits until nothing is left of early mkdirs, nor of other transactions.
    async fn settle(&self) -> anyhow::Result<()> {
        let settled = async {
            while self.left()? > 0 {
                self.world.wait(Duration::from_millis(20)).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, settled).await.context("early mkdirs do not end")?
    }

    fn left(&self) -> anyhow::Result<usize> {
        let mut left = 0;
        for host in self.world.hosts() {
            host.engine().scan(&[], &[u8::MAX; 16], &mut |key, _| {
                left += usize::from(matches!(key[2], b'P' | b'X'));
                ControlFlow::Continue(())
            })?;
        }
        Ok(left)
    }

    async fn compare(&self, client: &Client, crash: Option<&Crash>) -> anyhow::Result<()> {
        let stable = self.stable.borrow().clone();
        for (path, is_there) in &stable {
            match client.read(path).await {
                // A file holds the path with which it was made, at its end.
                Ok(found) if *is_there => {
                    let moved = self.old();
                    let named = found[..] == *path.as_bytes() || found[..] == *moved.as_bytes();
                    ensure!(named, "stable: {path} has {found:?}");
                }
                Err(Error::Fs(FsError::NotFound)) if !is_there => {}
                // Directories above the file were lost before it was made.
                Err(Error::Fs(FsError::NotFound)) if crash.is_some_and(Crash::loses) => {
                    let rescued = check::rescued::files(client).await?;
                    let is_there = rescued.iter().any(|file| file == path.as_bytes());
                    ensure!(is_there, "stable: {path} is nowhere");
                }
                Ok(_) => bail!("{path} is back"),
                Err(error) => return Err(error).with_context(|| format!("stable: {path}")),
            }
        }
        if self.scene == Scene::Rename {
            let (old, new) = (self.old(), format!("{}/new", self.dirs[0]));
            let there = [client.stat(&old).await.is_ok(), client.stat(&new).await.is_ok()];
            ensure!(there[0] != there[1], "what was moved is at {there:?}");
        }
        Ok(())
    }

    /// Makes and removes directories in all existing directories. A directory that is gone is made
    /// again.
    async fn touch(&self, client: &Client) -> anyhow::Result<()> {
        let (parent, _) = self.dirs[0].rsplit_once('/').context("it is in another one")?;
        for dir in [parent, &self.dirs[0], &self.dirs[1]] {
            match client.mkdir(dir, 0o755).await {
                Ok(_) | Err(Error::Fs(FsError::Exists)) => {}
                Err(error) => return Err(error).with_context(|| format!("mkdir {dir}")),
            }
            let held = [0, 1, 2].map(|number| format!("{dir}/more {number}"));
            for more in &held {
                client.mkdir(more, 0o755).await.with_context(|| format!("mkdir {more}"))?;
                write_new(client, &format!("{more}/file")).await?;
            }
            for more in &held {
                client.unlink(format!("{more}/file")).await?;
                client.rmdir(more).await.with_context(|| format!("rmdir {more}"))?;
            }
        }
        Ok(())
    }
}

/// All crashes of a scene of one kind.
fn crashes(
    scene: Scene,
    death: Death,
    durability: Durability,
    bug: Option<Bug>,
) -> anyhow::Result<Vec<Crash>> {
    let steps = run(scene, durability, None, bug)?;
    println!("{scene:?}, {death:?}, {durability:?}: {steps} steps");
    let crashes = |step| VICTIMS.map(|victims| Crash { step, victims, death, durability });
    Ok((1..=steps).flat_map(crashes).collect())
}

/// Crashes a scene at each of its steps, on two threads.
fn crash_everywhere(scene: Scene) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for (death, durability) in [
        (Death::Kill, Durability::Relaxed),
        (Death::Power, Durability::Relaxed),
        (Death::Power, Durability::Strict),
    ] {
        all.extend(crashes(scene, death, durability, None)?);
    }
    let failures = steps::failures(&all, |crash| run(scene, crash.durability, Some(crash), None));
    println!("{scene:?}: {} crashes", all.len());
    failures.iter().take(12).for_each(|failure| println!("{failure}"));
    ensure!(failures.is_empty(), "{} of {} went wrong", failures.len(), all.len());
    Ok(())
}

#[test]
fn a_chain_of_new_directories_outlives_each_crash() -> anyhow::Result<()> {
    crash_everywhere(Scene::Chain)
}

#[test]
fn a_directory_that_is_made_again_outlives_each_crash() -> anyhow::Result<()> {
    crash_everywhere(Scene::Again)
}

#[test]
fn a_file_that_is_moved_into_a_new_directory_outlives_each_crash() -> anyhow::Result<()> {
    crash_everywhere(Scene::Rename)
}

#[test]
fn crashes_find_what_is_wrong() -> anyhow::Result<()> {
    for (bug, seed, word) in [
        (Bug::ConfirmedEarly, Some(77), "is not there, but its contents are"),
        (Bug::LostBirthForgotten, Some(57), "stale file handle"),
    ] {
        let all = crashes(Scene::Chain, Death::Power, Durability::Relaxed, Some(bug))?;
        let pin = Pin { seed, word, seeds: 0..all.len() as u64 };
        let found = planted::find(&pin, |number, planted| {
            let crash = all.get(usize::try_from(number)?).context("there are fewer crashes")?;
            run(Scene::Chain, crash.durability, Some(crash), planted.then_some(bug)).map(drop)
        });
        println!("{bug:?}: {}", found.with_context(|| format!("{bug:?}"))?);
    }
    Ok(())
}

#[test]
fn nothing_is_called_damaged_before_all_servers_have_reported_their_directories() {
    let plan = Plan { trash: false, ..steps::plan(SERVERS, Durability::Relaxed) };
    let played = steps::run(plan, None, 10 * PATIENCE, async |world| {
        let client = world.connect("looks").await?.client;
        let NodeRef::Dir(root) = client.resolve("/").await? else { bail!("a directory") };
        // Server 2 makes the directory, and server 1 has its record.
        let (parent, id) = world.name_on(&client, root.id, 2);
        let path = format!("{parent}/{}", world.name_on(&client, id, 1).0);
        client.mkdir(&parent, 0o755).await?;
        client.mkdir(&path, 0o755).await?;
        let node = client.resolve(&path).await?;
        client.rmdir(&path).await?;
        client.sync().await?;
        let (one, two) = (&world.hosts()[1], &world.hosts()[2]);
        two.crash(false);
        one.crash(true);
        one.start()?;
        let cred = Cred::ROOT;
        let mut asks = std::pin::pin!(FileSystem::xattrs(&client, &cred, &node));
        let early = timeout(Duration::from_secs(4), &mut asks).await;
        ensure!(early.is_err(), "server 2 may still report it: {early:?}");
        two.start()?;
        let asked = timeout(PATIENCE, asks).await;
        let asked = asked.context("it is never answered")?;
        ensure!(asked == Err(FsError::Stale.into()), "{asked:?}");
        Ok(())
    });
    played.unwrap();
}

/// Makes a directory under the id of one that was removed, and cuts the power of the server that has
/// removed it, before that is stable. The entry of the new one is another server's, and stable there.
fn made_again_before_its_removal_is_stable(bug: Option<Bug>) -> anyhow::Result<()> {
    let plan = Plan {
        trash: false,
        locality: Locality::Directory,
        shards: 2,
        id_bits: None,
        split_threshold: u64::MAX,
        commit_interval: PATIENCE,
        disk_ms_max: 1,
        ..steps::plan(2, Durability::Relaxed)
    };
    in_world(plan, bug, 10 * PATIENCE, async |world| {
        let machine = world.connect("maker").await?;
        let client = &machine.client;
        let (name, id) = world.name_on(client, DirId::ROOT, 0);
        let dir = format!("/{name}");
        client.mkdir(&dir, 0o755).await?;
        client.set_xattr(&dir, "pando.large_dir", b"2", XattrMode::Set).await?;
        let (key, two) = (client.fs_info().hash_key, Layout::Extendible(Splits::started(1, 2)));
        let partition =
            |name: &str| two.partition(key.pos(&EntryName::new(name.as_bytes()).unwrap()));
        let names = || (0..).map(|number| format!("name {number}"));
        // The first server has the directory, and all that is known of it but this name.
        let apart = |name: &String| {
            let below = key.dir_id(id, &EntryName::new(name.as_bytes()).unwrap(), NameVersion(0));
            partition(name) == 1 && shard_of(below, 0, 2).0 == 0
        };
        let there = names().find(apart).context("there is always another name")?;
        let here = names().find(|name| partition(name) == 0).context("there is another name")?;
        let (there, here) = (format!("{dir}/{there}"), format!("{dir}/{here}"));
        client.mkdir(&there, 0o755).await?;
        client.rename(&there, &here).await?;
        client.sync().await?;
        for host in world.hosts() {
            host.settle()?;
        }
        let first = &world.hosts()[0];
        first.slow_down_disk(5000);
        client.rmdir(&here).await?;
        let crash = async {
            world.wait(Duration::from_millis(500)).await;
            first.crash(true);
            first.slow_down_disk(0);
            first.start()
        };
        let (made, crashed) = futures::join!(client.mkdir(&there, 0o755), crash);
        crashed?;
        made?;
        client.write(format!("{there}/file"), b"x").await?;
        ensure!(client.read(format!("{there}/file")).await? == b"x"[..]);
        check::fsck(&world, client).await?;
        machine.close().await
    })
}

#[test]
fn a_directory_is_made_again_when_the_removal_of_the_one_before_is_stable() {
    made_again_before_its_removal_is_stable(None).unwrap();
    made_again_before_its_removal_is_stable(Some(Bug::RemovalNotAwaited)).unwrap_err();
}
