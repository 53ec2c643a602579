//! A handoff between real servers, crashed at each of its steps.
//!
//! A step is whatever outlives a server or others rely on: a write or a sync that is done, or a
//! message that is sent to another server ([`Steps`]), on any of them. A world is run once to count
//! the steps from the change that sets a handoff off to its end. Then it is run again for each
//! step. The source dies at it, or the target, or both, or the master, by a kill or with all that
//! it had not synced, and starts again some time later. Meanwhile one client changes the directory
//! and another lists it.
//!
//! Every time it must end well. What was answered is there, each name once, in its partition. The
//! handoff has come to its end and left nothing, a check finds nothing, and the directory goes on
//! splitting.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use base::{EntryName, FileKind, Layout, Splits, placement::shard_of};
use client::{Client, New};
use lab::{
    check::{
        self,
        planted::{self, Pin},
    },
    sim::{disk::Steps, world::World},
};
use meta::{Bug, Durability};
use store::Engine as _;
use tokio::time::timeout;
use wire::{DirRef, NodeRef, XattrMode};

use crate::steps::{self, SHARDS};

/// Number of names in the directory that are stable before anything moves.
const NAMES: usize = 24;
/// Number of rounds of changes during the handoff.
const ROUNDS: usize = 2;
/// Duration of a sync of the source where syncs take time.
const SOURCE_DISK_MS: u64 = 20;
/// In the time of the world. A longer wait counts as endless.
const PATIENCE: Duration = Duration::from_secs(300);

/// Kind of handoff in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// Partition 1 comes to be: the source is the master.
    FirstSplit,
    /// Partition 3 is split off from 1, and the master is told.
    LaterSplit,
    /// Partition 3 goes back to 1, and its record stays until the master is told.
    Merge,
    /// A third subset comes to be: both existing ones give.
    Subsets,
    /// A third and a fourth do, at the same time.
    TwoSubsets,
}

/// How servers die.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The servers are killed, and much of what they have written is not stable yet.
    Kill,
    /// The power is cut, and everything that is not stable is lost. Answers are stable here.
    Power,
}

/// A run with a crash.
#[derive(Debug, Clone)]
struct Crash {
    step: u64,
    /// Partitions whose servers die.
    victims: &'static [u16],
    death: Death,
}

impl Death {
    fn durability(self) -> Durability {
        match self {
            Death::Power => Durability::Strict,
            Death::Kill => Durability::Relaxed,
        }
    }
}

impl Scene {
    fn servers(self) -> u16 {
        match self {
            Scene::FirstSplit | Scene::Subsets => 3,
            Scene::LaterSplit | Scene::Merge | Scene::TwoSubsets => 4,
        }
    }

    /// Groups of servers that die together, by their partitions.
    fn victims(self) -> &'static [&'static [u16]] {
        match self {
            Scene::FirstSplit => &[&[0], &[1], &[0, 1]],
            Scene::LaterSplit | Scene::Merge => &[&[1], &[3], &[1, 3], &[0]],
            Scene::Subsets => &[&[0], &[1], &[2], &[0, 1, 2]],
            Scene::TwoSubsets => &[&[1], &[3], &[0, 1, 2, 3]],
        }
    }

    /// Partition of the source.
    fn source(self) -> u16 {
        match self {
            Scene::FirstSplit | Scene::Subsets => 0,
            // The master is told by it.
            Scene::LaterSplit | Scene::TwoSubsets => 1,
            Scene::Merge => 3,
        }
    }

    /// Partitions before the handoff, and after it.
    fn partitions(self) -> [&'static [u16]; 2] {
        match self {
            Scene::FirstSplit => [&[0], &[0, 1]],
            Scene::LaterSplit => [&[0, 1], &[0, 1, 3]],
            Scene::Merge => [&[0, 1, 3], &[0, 1]],
            Scene::Subsets => [&[0, 1], &[0, 1, 2]],
            Scene::TwoSubsets => [&[0, 1], &[0, 1, 2, 3]],
        }
    }

    /// Whether there are more partitions than that with the least threshold.
    fn goes_on(self) -> bool {
        self != Scene::TwoSubsets
    }
}

/// A directory `/d` in a world.
struct Stage {
    world: World,
    scene: Scene,
    client: Client,
    dir: DirRef,
    /// Names that exist all the time.
    names: Vec<String>,
    over: Cell<bool>,
}

/// Runs a world, with a crash or without; returns the number of steps of the handoff.
fn run(
    scene: Scene,
    durability: Durability,
    crash: Option<&Crash>,
    bug: Option<Bug>,
) -> anyhow::Result<u64> {
    let plan = steps::plan(scene.servers(), durability);
    steps::run(plan, bug, 10 * PATIENCE, async |world| Box::pin(play(world, scene, crash)).await)
}

async fn play(world: World, scene: Scene, crash: Option<&Crash>) -> anyhow::Result<u64> {
    let maker = world.connect("maker").await?;
    maker.client.mkdir("/d", 0o755).await?;
    maker.client.mkdir("/links", 0o755).await?;
    let NodeRef::Dir(dir) = maker.client.resolve("/d").await? else { bail!("a directory") };
    let mut stage = Stage {
        world: world.clone(),
        scene,
        client: maker.client.clone(),
        dir,
        names: Vec::new(),
        over: Cell::new(false),
    };
    let [before, after] = scene.partitions();
    stage.prepare().await?;
    stage.settle(before).await.context("before the handoff")?;
    let (busy, lists) = (world.connect("busy").await?, world.connect("lists").await?);
    for host in world.hosts() {
        host.settle()?;
    }

    // Syncs of the source are slow: if it tells others something before that is stable, they have
    // stored it by then.
    world.hosts()[stage.server(scene.source())].slow_down_disk(SOURCE_DISK_MS);

    let steps = Steps::new(crash.map_or(0, |crash| crash.step));
    let victims = crash.map_or(&[][..], |crash| crash.victims);
    let victims: Vec<usize> = victims.iter().map(|victim| stage.server(*victim)).collect();
    for (server, host) in world.hosts().iter().enumerate() {
        host.count_steps(&steps, victims.contains(&server));
    }
    let moves = async {
        let moved = stage.moves(&busy.client, crash, &victims).await;
        stage.over.set(true);
        moved
    };
    let (moved, listed) = futures::join!(moves, stage.list(&lists.client));
    moved?;
    listed.context("a listing meanwhile")?;
    let taken = steps.taken();

    stage.compare_names(&lists.client).await?;
    if scene.goes_on() {
        stage.set("split_threshold", "8").await?;
        stage.touch().await?;
        stage.until("more partitions", |is| is.len() > after.len()).await?;
    }
    stage.compare_names(&lists.client).await.context("when it has split further")?;
    stage.compare_files(&lists.client).await?;
    for machine in [busy, lists, maker] {
        machine.close().await?;
    }
    check::run(&world).await?;
    Ok(taken)
}

impl Stage {
    async fn set(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let name = format!("pando.{name}");
        Ok(self.client.set_xattr("/d", &name, value.as_bytes(), XattrMode::Set).await?)
    }

    /// Names that belong to `partition` of two.
    fn names_of(&self, partition: u16) -> impl Iterator<Item = String> {
        let key = self.client.fs_info().hash_key;
        let two = Layout::Extendible(Splits::started(1, 2));
        let all = (0..).map(|number| format!("more {number}"));
        all.filter(move |name| {
            let name = EntryName::new(name.as_bytes()).unwrap();
            two.partition(key.pos(&name)) == partition
        })
    }

    /// Makes the names that exist all the time.
    async fn prepare(&mut self) -> anyhow::Result<()> {
        if matches!(self.scene, Scene::Subsets | Scene::TwoSubsets) {
            self.set("spread", "subsets").await?;
        }
        for number in 0..NAMES {
            self.make(format!("name {number}")).await?;
        }
        if self.scene != Scene::FirstSplit {
            self.set("split_threshold", "20").await?;
            self.settle(&[0, 1]).await?;
        }
        let fill = match self.scene {
            Scene::FirstSplit | Scene::Subsets | Scene::TwoSubsets => return Ok(()),
            Scene::LaterSplit => 19,
            Scene::Merge => 20,
        };
        let has = self.partitions().get(&1).copied().unwrap_or(0);
        let more: Vec<String> = self.names_of(1).take(fill - has).collect();
        for name in more {
            self.make(name).await?;
        }
        Ok(())
    }

    async fn make(&mut self, name: String) -> anyhow::Result<()> {
        let (path, number) = (format!("/d/{name}"), self.names.len());
        match number % 8 {
            0 => drop(self.client.mkdir(&path, 0o755).await?),
            1 => drop(self.client.symlink(&name, &path).await?),
            _ => self.client.write(&path, name.as_bytes()).await?,
        }
        match number % 8 {
            2 => self.client.link(&path, format!("/links/{name}")).await?,
            3 => self.client.set_xattr(&path, "user.is", b"it", XattrMode::Set).await?,
            _ => {}
        }
        self.names.push(name);
        Ok(())
    }

    /// Sets the handoff off.
    async fn set_off(&self) -> anyhow::Result<()> {
        match self.scene {
            Scene::FirstSplit => self.set("split_threshold", "20").await,
            // One name too many.
            Scene::LaterSplit => {
                Ok(self.client.write(format!("/d/{}", self.last()), b"it").await?)
            }
            Scene::Merge => self.set("split_threshold", "100").await,
            Scene::Subsets => self.set("split_threshold", "10").await,
            Scene::TwoSubsets => self.set("split_threshold", "8").await,
        }
    }

    /// The last name that comes to partition 1.
    fn last(&self) -> String {
        self.names_of(1).find(|name| !self.names.contains(name)).unwrap()
    }

    /// Sets the handoff off, changes names while they move, and does whatever the handoff needs to
    /// end.
    async fn moves(
        &self,
        client: &Client,
        crash: Option<&Crash>,
        victims: &[usize],
    ) -> anyhow::Result<()> {
        let (set, changed, crashed) =
            futures::join!(self.set_off(), self.change(client), self.crash(crash, victims));
        crashed?;
        set.context("what sets it off")?;
        changed.context("changes meanwhile")?;
        if crash.is_some() {
            // A server looks at a partition when it changes, and after a start nothing has changed
            // yet.
            self.touch().await?;
        }
        let [_, after] = self.scene.partitions();
        self.settle(after).await.context("the handoff does not end")
    }

    async fn change(&self, client: &Client) -> anyhow::Result<()> {
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        for round in 0..ROUNDS {
            let [kept, from, to] = ["kept", "from", "to"].map(|name| format!("/d/{name} {round}"));
            client.mknod(&kept, new).await?;
            client.mknod(&from, new).await?;
            client.rename(&from, &to).await?;
            client.unlink(&to).await?;
            client.stat("/d").await?;
        }
        Ok(())
    }

    /// Changes all partitions, of which there are few.
    async fn touch(&self) -> anyhow::Result<()> {
        let key = self.client.fs_info().hash_key;
        for eighth in 0..8 {
            let is_there =
                |name: &String| key.pos(&EntryName::new(name.as_bytes()).unwrap()) >> 60 == eighth;
            let name = (0..).map(|number| format!("touch {number}")).find(is_there).unwrap();
            self.client.write(format!("/d/{name}"), b"x").await?;
            self.client.unlink(format!("/d/{name}")).await?;
        }
        Ok(())
    }

    async fn crash(&self, crash: Option<&Crash>, victims: &[usize]) -> anyhow::Result<()> {
        let Some(crash) = crash else { return Ok(()) };
        let power = matches!(crash.death, Death::Power);
        steps::crash(&self.world, victims, power, crash.step, PATIENCE).await
    }

    /// Lists until it is over: names that exist all the time are always listed, once.
    async fn list(&self, client: &Client) -> anyhow::Result<()> {
        while !self.over.get() {
            self.listed(client).await?;
            self.world.wait(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn listed(&self, client: &Client) -> anyhow::Result<BTreeSet<String>> {
        let entries = client.read_dir("/d").await?.all().await?;
        let names: BTreeSet<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
        ensure!(names.len() == entries.len(), "a name is listed twice: {entries:?}");
        if let Some(lost) = self.names.iter().find(|name| !names.contains(*name)) {
            bail!("{lost} is not listed: {names:?}");
        }
        Ok(names)
    }

    /// Checks that the names are those that were answered.
    async fn compare_names(&self, client: &Client) -> anyhow::Result<()> {
        let names = self.listed(client).await?;
        let kept = (0..ROUNDS).map(|round| format!("kept {round}"));
        let last = (self.scene == Scene::LaterSplit).then(|| self.last());
        let all: BTreeSet<String> = self.names.iter().cloned().chain(kept).chain(last).collect();
        ensure!(names == all, "{:?}", names.symmetric_difference(&all));
        let attr = client.stat("/d").await?;
        ensure!(attr.size == names.len() as u64, "{} names, counted {}", names.len(), attr.size);
        Ok(())
    }

    /// Checks that the files that exist all the time are unchanged.
    async fn compare_files(&self, client: &Client) -> anyhow::Result<()> {
        for (number, name) in self.names.iter().enumerate() {
            let path = format!("/d/{name}");
            match number % 8 {
                0 => ensure!(client.stat(&path).await?.kind == FileKind::Directory),
                1 => ensure!(client.readlink(&path).await? == *name.as_bytes()),
                _ => ensure!(client.read(&path).await? == *name.as_bytes(), "{name} is another"),
            }
        }
        Ok(())
    }

    /// The server of a partition.
    fn server(&self, partition: u16) -> usize {
        usize::from(shard_of(self.dir.home, partition, SHARDS).0 % self.scene.servers())
    }

    /// All partitions, with the number of names they have stored. Empty while a handoff or a
    /// transaction is not over.
    fn partitions(&self) -> BTreeMap<u16, usize> {
        let mut found = BTreeMap::new();
        let (mut moving, master) = (false, shard_of(self.dir.home, 0, SHARDS).0);
        for host in self.world.hosts() {
            let scanned = host.engine().scan(&[], &[u8::MAX; 16], &mut |key, _| {
                let shard = u16::from_be_bytes([key[0], key[1]]) % SHARDS;
                let partition = (shard + SHARDS - master) % SHARDS;
                let is_ours = key.get(3..19) == Some(&self.dir.id.0.to_be_bytes()[..]);
                let is_main = key.last() == Some(&0);
                match key[2] {
                    b'H' | b'P' | b'X' => moving = true,
                    b'D' if is_ours && is_main => *found.entry(partition).or_insert(0) += 0,
                    b'N' if is_ours && is_main => *found.entry(partition).or_insert(0) += 1,
                    _ => {}
                }
                ControlFlow::Continue(())
            });
            scanned.unwrap();
        }
        if moving { BTreeMap::new() } else { found }
    }

    /// Waits until exactly these partitions exist, and nothing moves.
    async fn settle(&self, partitions: &[u16]) -> anyhow::Result<()> {
        let so = |is: &BTreeMap<u16, usize>| is.keys().eq(partitions);
        self.until(&format!("{partitions:?}"), so).await
    }

    async fn until(
        &self,
        what: &str,
        so: impl Fn(&BTreeMap<u16, usize>) -> bool,
    ) -> anyhow::Result<()> {
        let settled = async {
            while !so(&self.partitions()) {
                self.world.wait(Duration::from_millis(20)).await;
            }
        };
        let settled = timeout(PATIENCE, settled).await;
        settled.with_context(|| format!("not {what}: {:?}", self.partitions()))
    }
}

/// All crashes of a scene of one kind.
fn crashes(scene: Scene, death: Death, bug: Option<Bug>) -> anyhow::Result<Vec<Crash>> {
    let steps = run(scene, death.durability(), None, bug)?;
    println!("{scene:?}, {death:?}: {steps} steps");
    let crashes = |step| scene.victims().iter().map(move |victims| Crash { step, victims, death });
    Ok((1..=steps).flat_map(crashes).collect())
}

/// Crashes a scene at each of its steps, on two threads. Prints the first few failures.
fn crash_everywhere(scene: Scene) {
    let deaths = [Death::Kill, Death::Power].into_iter();
    let all: Vec<Crash> = deaths.flat_map(|death| crashes(scene, death, None).unwrap()).collect();
    let failures =
        steps::failures(&all, |crash| run(scene, crash.death.durability(), Some(crash), None));
    println!("{scene:?}: {} crashes", all.len());
    failures.iter().take(5).for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} of {} went wrong", failures.len(), all.len());
}

#[test]
fn a_split_outlives_each_crash() {
    crash_everywhere(Scene::FirstSplit);
}

#[test]
fn a_split_that_the_master_is_told_of_outlives_each_crash() {
    crash_everywhere(Scene::LaterSplit);
}

#[test]
fn a_merge_outlives_each_crash() {
    crash_everywhere(Scene::Merge);
}

#[test]
fn a_step_of_subsets_outlives_each_crash() {
    crash_everywhere(Scene::Subsets);
}

#[test]
fn a_step_of_two_subsets_outlives_each_crash() {
    crash_everywhere(Scene::TwoSubsets);
}

#[test]
fn crashes_find_what_is_wrong() {
    let mut missed = Vec::new();
    for (bug, scene, death, seed, word) in [
        (
            Bug::HandoffForgotten,
            Scene::FirstSplit,
            Death::Kill,
            Some(13),
            "the handoff does not end",
        ),
        (Bug::LayoutToldEarly, Scene::TwoSubsets, Death::Power, Some(186), "is not listed"),
        (
            Bug::PreparedForgotten,
            Scene::FirstSplit,
            Death::Kill,
            Some(67),
            "the handoff does not end",
        ),
        (Bug::CommitNotAwaited, Scene::FirstSplit, Death::Power, Some(66), "not more partitions"),
        (Bug::CommitNotNoted, Scene::FirstSplit, Death::Kill, Some(81), "it hangs"),
    ] {
        let all = crashes(scene, death, Some(bug)).unwrap();
        let pin = Pin { seed, word, seeds: 0..all.len() as u64 };
        let found = planted::find(&pin, |number, planted| {
            let crash = all.get(usize::try_from(number)?).context("there are fewer crashes")?;
            run(scene, death.durability(), Some(crash), planted.then_some(bug)).map(drop)
        });
        match found {
            Ok(found) => println!("{bug:?}: {found}"),
            Err(error) => missed.push(format!("{bug:?}: {error}")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
