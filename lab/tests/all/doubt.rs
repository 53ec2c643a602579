//! One server of three dies in the middle of a transaction, and stays away for longer than a lease.
//!
//! Requests about the shards of the other two are answered all the time: looks within a second,
//! changes within five. As in `early_mkdirs.rs` a world is run once to count its steps ([`Steps`]),
//! and once more for each step at which the initiator dies. When it is back, the transaction has
//! happened or not, and a check finds nothing.
//!
//! In other worlds the initiator does not reach another server for a while, from any moment on: the
//! coordinator reaches both, and nothing stays in doubt.

use std::{collections::BTreeSet, ops::ControlFlow, time::Duration};

use anyhow::{Context as _, bail, ensure};
use base::{DirId, FsError};
use client::{Client, Error, FileSystem as _, OpenOptions};
use lab::{
    check::{
        self,
        planted::{self, Pin},
    },
    sim::{
        disk::Steps,
        plan::{Plan, Weather},
        world::{Machine, World},
    },
};
use meta::{Bug, Durability};
use parking_lot::Mutex;
use store::Engine as _;
use tokio::time::{Instant, timeout};
use wire::NodeRef;

use crate::steps;

const SERVERS: u16 = 3;
/// The server that dies. It is not the coordinator.
const DEAD: u16 = 1;
/// A living server that takes part in the transaction, and the coordinator, which takes part in
/// some.
const ALIVE: u16 = 2;
const COORDINATOR: u16 = 0;
const LOOK_WITHIN: Duration = Duration::from_millis(1000);
const CHANGE_WITHIN: Duration = Duration::from_secs(5);
/// In the time of the world. A longer operation counts as endless.
const PATIENCE: Duration = Duration::from_secs(60);

/// Operation of the server that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// A file of its own moves to a directory of a living server.
    Rename,
    /// A file that was born on the coordinator moves there.
    RenameOfThird,
    /// A file of the living server gets a name in its own directory.
    Link,
    /// The name of `Link` is removed.
    Unlink,
    /// A directory of the living server, whose name it has, is removed.
    Rmdir,
    /// A directory is made whose group the living server has.
    Mkdir,
}

const SCENES: [Scene; 6] =
    [Scene::Rename, Scene::RenameOfThird, Scene::Link, Scene::Unlink, Scene::Rmdir, Scene::Mkdir];

struct Stage {
    world: World,
    /// A directory of the server that dies, one of the living server, and one of the coordinator.
    dead: String,
    alive: String,
    third: String,
    /// A directory that is made in `alive` meanwhile, with its group on the coordinator.
    beside: String,
    /// Directories of the living server with names in `dead`.
    removed: String,
    made: String,
}

/// A power cut of a participant, this long after the death of the initiator.
#[derive(Debug, Clone, Copy)]
struct PowerCut {
    server: u16,
    after: Duration,
}

fn run(scene: Scene, step: u64, doubt_max: Duration, cut: Option<PowerCut>) -> anyhow::Result<u64> {
    let plan = Plan { trash: false, doubt_max, ..steps::plan(SERVERS, Durability::Relaxed) };
    steps::run(plan, None, 10 * PATIENCE, async |world| {
        Box::pin(play(world, scene, step, cut)).await
    })
}

/// The clients of a scene.
struct Cast {
    /// The client that has made everything on the stage.
    maker: Machine,
    acts: Machine,
    looks: Machine,
}

impl Cast {
    /// Prepares a stage on which nothing is in progress.
    async fn begin(world: &World, scene: Scene) -> anyhow::Result<(Cast, Stage)> {
        let maker = world.connect("maker").await?;
        let stage = Stage::prepare(world, &maker.client, scene).await?;
        let (acts, looks) = (world.connect("acts").await?, world.connect("looks").await?);
        // A client that has looked before relies on its caches later.
        stage.look(&looks.client).await.context("before it")?;
        for host in world.hosts() {
            host.settle()?;
        }
        Ok((Cast { maker, acts, looks }, stage))
    }

    /// Compares the tree when all servers are back, and checks the world.
    async fn end(self, world: &World, stage: &Stage, scene: Scene) -> anyhow::Result<()> {
        world.wait(Duration::from_secs(2)).await;
        stage.compare(&self.maker.client, scene).await?;
        for machine in [self.maker, self.acts, self.looks] {
            machine.close().await?;
        }
        check::run(world).await
    }
}

async fn play(world: World, scene: Scene, step: u64, cut: Option<PowerCut>) -> anyhow::Result<u64> {
    let (cast, stage) = Cast::begin(&world, scene).await?;
    let steps = Steps::new(step);
    for (server, host) in (0..).zip(world.hosts()) {
        host.count_steps(&steps, server == DEAD);
    }
    let acting = stage.act(&cast.acts.client, scene);
    let meanwhile = async {
        if step > 0 {
            stage.outlast(&cast.looks.client, scene, cut).await?;
        }
        anyhow::Ok(())
    };
    let (acted, outlasted) = futures::join!(timeout(PATIENCE, acting), meanwhile);
    outlasted?;
    acted.context("it is never answered")??;
    let taken = steps.taken();
    cast.end(&world, &stage, scene).await?;
    Ok(taken)
}

async fn write_new(client: &Client, path: &str) -> Result<(), Error> {
    let file = client.open_with(path, OpenOptions::writing().create_new(0o644)).await?;
    file.write_at(0, path.as_bytes()).await?;
    file.close().await
}

impl Stage {
    async fn prepare(world: &World, client: &Client, scene: Scene) -> anyhow::Result<Stage> {
        let NodeRef::Dir(root) = client.resolve("/").await? else { bail!("a directory") };
        let name = |dir: DirId, server| world.name_on(client, dir, server);
        let [(dead, dead_id), (alive, alive_id), (third, _)] =
            [DEAD, ALIVE, COORDINATOR].map(|server| name(root.id, server));
        let [dead, alive, third] = [dead, alive, third].map(|name| format!("/{name}"));
        for dir in [&dead, &alive, &third] {
            client.mkdir(dir, 0o755).await?;
        }
        let beside = format!("{alive}/{}", name(alive_id, COORDINATOR).0);
        let child = format!("{dead}/{}", name(dead_id, ALIVE).0);
        let stage = Stage {
            world: world.clone(),
            removed: child.clone(),
            made: child,
            beside,
            dead,
            alive,
            third,
        };
        write_new(client, &stage.in_alive("other")).await?;
        client.mkdir(stage.in_alive("sub"), 0o755).await?;
        let third = format!("{}/file", stage.third);
        let (name, link) = (format!("{}/f", stage.dead), format!("{}/l", stage.dead));
        match scene {
            Scene::Rename => write_new(client, &name).await?,
            Scene::RenameOfThird => {
                write_new(client, &third).await?;
                client.rename(&third, &name).await?;
            }
            Scene::Link => write_new(client, &stage.in_alive("linked")).await?,
            Scene::Unlink => {
                write_new(client, &stage.in_alive("linked")).await?;
                client.link(stage.in_alive("linked"), &link).await?;
            }
            Scene::Rmdir => drop(client.mkdir(&stage.removed, 0o755).await?),
            Scene::Mkdir => {}
        }
        client.sync().await?;
        Ok(stage)
    }

    fn in_alive(&self, name: &str) -> String {
        format!("{}/{name}", self.alive)
    }

    async fn act(&self, client: &Client, scene: Scene) -> Result<(), Error> {
        let (name, link) = (format!("{}/f", self.dead), format!("{}/l", self.dead));
        match scene {
            Scene::Rename | Scene::RenameOfThird => {
                client.rename(&name, self.in_alive("moved")).await
            }
            Scene::Link => client.link(self.in_alive("linked"), &link).await,
            Scene::Unlink => client.unlink(&link).await,
            Scene::Rmdir => client.rmdir(&self.removed).await,
            Scene::Mkdir => client.mkdir(&self.made, 0o755).await.map(drop),
        }
    }

    /// Checks the operations that clients may do while a server is away.
    async fn outlast(
        &self,
        known: &Client,
        scene: Scene,
        cut: Option<PowerCut>,
    ) -> anyhow::Result<()> {
        let host = &self.world.hosts()[usize::from(DEAD)];
        while host.is_alive() {
            self.world.wait(Duration::from_millis(1)).await;
        }
        host.kill();
        if let Some(PowerCut { server, after }) = cut {
            self.world.wait(after).await;
            let cut = &self.world.hosts()[usize::from(server)];
            cut.crash(true);
            cut.start()?;
            self.world.wait(KNOWN_WITHIN).await;
            self.all_or_none_doubt()?;
            return host.start();
        }
        let began = Instant::now();
        let new = self.world.connect("new").await?;
        for (round, pause) in [0, 1000, 5000].into_iter().enumerate() {
            self.world.wait(Duration::from_millis(pause)).await;
            for client in [known, &new.client].into_iter().take(if round == 1 { 1 } else { 2 }) {
                let away = began.elapsed();
                self.look(client).await.with_context(|| format!("away for {away:?}"))?;
                self.change(client, round).await.with_context(|| format!("away for {away:?}"))?;
            }
        }
        if scene != Scene::Mkdir {
            self.is_told(&new.client).await?;
        }
        if scene == Scene::RenameOfThird {
            self.all_or_none_doubt()?;
        }
        host.start()?;
        new.close().await
    }

    /// Checks that the coordinator reports for each living server how many transactions are in
    /// doubt there.
    async fn is_told(&self, client: &Client) -> anyhow::Result<()> {
        for server in client.cluster().await?.servers.iter().filter(|told| told.server != DEAD) {
            let prepared = self.prepared(server.server)?.len();
            let told = server.in_doubt.map_or(0, |in_doubt| in_doubt.count);
            ensure!(
                usize::try_from(told)? == prepared,
                "{told} in doubt, and {prepared} are: {server:?}"
            );
        }
        Ok(())
    }

    /// Checks that both participants are in doubt about the same transactions.
    fn all_or_none_doubt(&self) -> anyhow::Result<()> {
        let [one, other] = [ALIVE, COORDINATOR].map(|server| self.prepared(server));
        ensure!(one? == other?, "it is in doubt at one participant, and the other one knows");
        Ok(())
    }

    /// Keys of the transactions of the server that dies that another one has prepared.
    fn prepared(&self, server: u16) -> anyhow::Result<BTreeSet<Vec<u8>>> {
        let mut prepared = BTreeSet::new();
        let engine = self.world.hosts()[usize::from(server)].engine();
        // Other servers' transactions are in progress.
        let [from, to] = [DEAD, DEAD + 1]
            .map(|server| [&[0xff, 0xff, b'P'][..], &server.to_be_bytes()].concat());
        engine.scan(&from, &to, &mut |key, _| {
            prepared.insert(key.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(prepared)
    }

    /// Looks at everything on living servers.
    async fn look(&self, client: &Client) -> anyhow::Result<()> {
        let sub = self.in_alive("sub");
        for path in ["/", &self.alive, &self.third, &sub, &self.in_alive("other")] {
            in_time(&format!("stat {path}"), LOOK_WITHIN, client.stat(path)).await?;
        }
        for path in ["/", &self.alive, &self.third, &sub] {
            let list = async { client.read_dir(path).await?.all().await };
            let listed = in_time(&format!("ls {path}"), LOOK_WITHIN, list).await?;
            if *path == self.alive {
                let names: BTreeSet<_> =
                    listed.iter().map(|entry| entry.name.to_string()).collect();
                ensure!(names.contains("other") && names.contains("sub"), "{names:?}");
            }
            // List it as a mount does.
            let NodeRef::Dir(dir) = client.resolve(path).await? else { bail!("a directory") };
            let cred = base::Cred::ROOT;
            let list = client.readdir(&cred, &dir, 0, 100, true);
            in_time(&format!("ls -l {path}"), LOOK_WITHIN, list).await?;
        }
        let read = client.read(self.in_alive("other"));
        let found = in_time("read", LOOK_WITHIN, read).await?;
        ensure!(found[..] == *self.in_alive("other").as_bytes());
        Ok(())
    }

    /// Changes directories on living servers.
    async fn change(&self, client: &Client, round: usize) -> anyhow::Result<()> {
        for dir in [&self.alive, &self.third, &self.in_alive("sub")] {
            let [one, two] = [1, 2].map(|number| format!("{dir}/new {round} {number}"));
            in_time(&format!("create {one}"), CHANGE_WITHIN, write_new(client, &one)).await?;
            in_time(&format!("rename {one}"), CHANGE_WITHIN, client.rename(&one, &two)).await?;
            in_time(&format!("unlink {two}"), CHANGE_WITHIN, client.unlink(&two)).await?;
        }
        in_time("mkdir", CHANGE_WITHIN, client.mkdir(&self.beside, 0o755)).await?;
        let (from, to) = (format!("{}/m", self.third), format!("{}/m", self.beside));
        in_time("create", CHANGE_WITHIN, write_new(client, &from)).await?;
        in_time("rename across", CHANGE_WITHIN, client.rename(&from, &to)).await?;
        in_time("unlink across", CHANGE_WITHIN, client.unlink(&to)).await?;
        in_time("rmdir", CHANGE_WITHIN, client.rmdir(&self.beside)).await
    }

    /// Checks that the scene's changes are complete when all servers are back.
    async fn compare(&self, client: &Client, scene: Scene) -> anyhow::Result<()> {
        for (path, is_there) in self.changed(scene) {
            ensure!(there(client, &path).await? == is_there, "{path}");
        }
        Ok(())
    }

    /// Names that a scene changes, and whether they exist after it.
    fn changed(&self, scene: Scene) -> Vec<(String, bool)> {
        match scene {
            Scene::Rename | Scene::RenameOfThird => {
                vec![(format!("{}/f", self.dead), false), (self.in_alive("moved"), true)]
            }
            Scene::Link => vec![(format!("{}/l", self.dead), true)],
            Scene::Unlink => vec![(format!("{}/l", self.dead), false)],
            Scene::Rmdir => vec![(self.removed.clone(), false)],
            Scene::Mkdir => vec![(self.made.clone(), true)],
        }
    }
}

async fn there(client: &Client, path: &str) -> Result<bool, Error> {
    match client.stat(path).await {
        Ok(_) => Ok(true),
        Err(Error::Fs(FsError::NotFound)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a name is listed in its directory.
async fn is_listed(client: &Client, path: &str) -> Result<bool, Error> {
    let (dir, name) = path.rsplit_once('/').expect("it is below a directory");
    let listed = client.read_dir(dir).await?.all().await?;
    Ok(listed.iter().any(|entry| entry.name.to_string() == name))
}

async fn in_time<T>(
    what: &str,
    within: Duration,
    done: impl Future<Output = Result<T, Error>>,
) -> anyhow::Result<T> {
    let done = timeout(within, done).await.with_context(|| format!("{what} takes too long"))?;
    done.with_context(|| what.to_owned())
}

/// How long a server does not reach the coordinator; messages on their way meanwhile arrive.
const ALONE: Duration = Duration::from_millis(2600);
/// Time in which servers have asked each other and answered.
const A_MOMENT: Duration = Duration::from_millis(20);
/// How long two servers do not reach each other.
const PARTED: Duration = Duration::from_secs(30);
/// Time within which transactions that one has prepared for the other have ended there.
const KNOWN_WITHIN: Duration = Duration::from_secs(6);
/// Number of moments in one order of messages, a millisecond apart: by then the transaction is
/// over.
const MOMENTS: u64 = 60;

/// State of a server's part of a transaction when it was parted from the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Parted {
    /// Whether the transaction was prepared and its outcome unknown.
    prepared: bool,
    /// Whether the transaction has happened, as seen while they are parted.
    happened: bool,
}

/// Parts the initiator of a transaction from another participant, at one of the moments after the
/// request; a little before that also from the coordinator, for `alone`.
fn part(scene: Scene, moment: u64, alone: Duration, bug: Option<Bug>) -> anyhow::Result<Parted> {
    let calm = steps::plan(SERVERS, Durability::Relaxed);
    let weather = Weather { delay_ms_max: 6, ..calm.weather };
    let server_lease = Duration::from_secs(20);
    // Timers of a world are exact to a millisecond. Further moments are those of other messages.
    let (seed, after) = (calm.seed + moment / MOMENTS, Duration::from_millis(moment % MOMENTS));
    let plan = Plan { seed, trash: false, weather, server_lease, ..calm };
    steps::run(plan, bug, 10 * PATIENCE, async |world| {
        let (cast, stage) = Cast::begin(&world, scene).await?;
        let meanwhile = async {
            world.wait(after).await;
            let place = |server: u16| world.hosts()[usize::from(server)].place();
            for (server, time) in [(COORDINATOR, alone), (ALIVE, PARTED)] {
                let (one, other) = (place(DEAD), place(server));
                for (from, to) in [(one, other), (other, one)] {
                    world.network().wall(from, to, time);
                }
                if server == COORDINATOR && !alone.is_zero() {
                    world.wait(A_MOMENT).await;
                }
            }
            world.wait(Duration::from_millis(500)).await;
            let prepared = !stage.prepared(ALIVE)?.is_empty();
            world.wait(KNOWN_WITHIN).await;
            if scene != Scene::Mkdir {
                ensure!(
                    stage.prepared(ALIVE)?.is_empty(),
                    "it is in doubt, and the initiator knows"
                );
            }
            stage.look(&cast.looks.client).await.context("parted")?;
            stage.change(&cast.looks.client, 0).await.context("parted")?;
            let mut happened = true;
            for (path, is_there) in stage.changed(scene) {
                // An existing name may be on both servers.
                let seen =
                    in_time(&path, LOOK_WITHIN, is_listed(&cast.looks.client, &path)).await?;
                happened &= seen == is_there;
            }
            if scene == Scene::Mkdir && happened {
                let made = async { cast.looks.client.read_dir(&stage.made).await?.all().await };
                in_time("ls of what is born", LOOK_WITHIN, made).await?;
            }
            world.wait(PARTED).await;
            anyhow::Ok(Parted { prepared, happened })
        };
        let (acted, parted) =
            futures::join!(timeout(PATIENCE, stage.act(&cast.acts.client, scene)), meanwhile);
        let parted = parted?;
        acted.context("it is never answered")??;
        cast.end(&world, &stage, scene).await?;
        Ok(parted)
    })
}

/// How long servers wait by default.
const DOUBT_MAX: Duration = Duration::from_millis(700);

/// Lets the initiator die at each step of a scene, on two threads.
fn die_everywhere(scene: Scene, doubt_max: Duration) -> anyhow::Result<Vec<String>> {
    let steps = run(scene, 0, doubt_max, None)?;
    println!("{scene:?}: {steps} steps");
    let all: Vec<u64> = (1..=steps).collect();
    Ok(steps::failures(&all, |step| run(scene, *step, doubt_max, None)))
}

#[test]
fn a_dead_server_stops_only_what_is_on_it() -> anyhow::Result<()> {
    for scene in SCENES {
        let failures = die_everywhere(scene, DOUBT_MAX)?;
        failures.iter().take(12).for_each(|failure| println!("{failure}"));
        ensure!(failures.is_empty(), "{scene:?}: {} went wrong", failures.len());
    }
    Ok(())
}

#[test]
fn it_finds_that_looks_wait_for_what_is_in_doubt() -> anyhow::Result<()> {
    let pin = Pin { seed: Some(5), word: "takes too long", seeds: 1..300 };
    let found = planted::find(&pin, |step, planted| {
        let doubt_max = if planted { Duration::from_secs(3600) } else { DOUBT_MAX };
        run(Scene::Rename, step, doubt_max, None).map(drop)
    })?;
    println!("{found}");
    Ok(())
}

#[test]
fn what_participants_tell_each_other_outlives_a_power_cut() -> anyhow::Result<()> {
    let steps = run(Scene::RenameOfThird, 0, DOUBT_MAX, None)?;
    let after = |step| Duration::from_millis(1000 + step * 131 % 2500);
    let cuts: Vec<(u64, PowerCut)> = (1..=steps)
        .flat_map(|step| [ALIVE, COORDINATOR].map(|server| (step, server)))
        .map(|(step, server)| (step, PowerCut { server, after: after(step) }))
        .collect();
    let failures = steps::failures(&cuts, |(step, cut)| {
        run(Scene::RenameOfThird, *step, DOUBT_MAX, Some(*cut))
    });
    failures.iter().take(12).for_each(|failure| println!("{failure}"));
    ensure!(failures.is_empty(), "{} of {} went wrong", failures.len(), cuts.len());
    Ok(())
}

/// Parts the servers at each moment of a scene, on two threads.
fn part_always(scene: Scene, alone: Duration) -> anyhow::Result<BTreeSet<Parted>> {
    let moments: Vec<u64> = (0..2 * MOMENTS).collect();
    let seen = Mutex::new(BTreeSet::new());
    let failures = steps::failures(&moments, |moment| {
        seen.lock().insert(part(scene, *moment, alone, None)?);
        Ok(*moment)
    });
    failures.iter().take(12).for_each(|failure| println!("{failure}"));
    ensure!(failures.is_empty(), "{scene:?}: {} went wrong", failures.len());
    let seen = seen.into_inner();
    println!("{scene:?}: {seen:?}");
    Ok(seen)
}

#[test]
fn what_two_servers_prepare_that_are_parted_ends_as_the_coordinator_hears() -> anyhow::Result<()> {
    for scene in SCENES {
        let seen = part_always(scene, Duration::ZERO)?;
        for happened in [false, true] {
            ensure!(seen.contains(&Parted { prepared: true, happened }), "{scene:?}: {seen:?}");
        }
    }
    Ok(())
}

#[test]
fn what_a_participant_has_refused_does_not_happen_when_it_arrives() -> anyhow::Result<()> {
    part_always(Scene::RenameOfThird, ALONE).map(drop)
}

#[test]
fn it_finds_that_a_refusal_is_not_kept() -> anyhow::Result<()> {
    let pin = Pin { seed: Some(33), word: "/moved", seeds: 0..MOMENTS };
    let found = planted::find(&pin, |moment, planted| {
        let bug = planted.then_some(Bug::RefusalNotKept);
        part(Scene::RenameOfThird, moment, ALONE, bug).map(drop)
    })?;
    println!("{found}");
    Ok(())
}

#[test]
fn a_directory_that_is_gone_is_told_so_while_a_third_server_is_away() -> anyhow::Result<()> {
    let plan = Plan { trash: false, ..steps::plan(SERVERS, Durability::Relaxed) };
    steps::run(plan, None, PATIENCE, async |world| {
        let machine = world.connect("looks").await?;
        let client = &machine.client;
        let NodeRef::Dir(root) = client.resolve("/").await? else { bail!("a directory") };
        let path = format!("/{}", world.name_on(client, root.id, ALIVE).0);
        client.mkdir(&path, 0o755).await?;
        write_new(client, "/file").await?;
        let node = client.resolve(&path).await?;
        client.rmdir(&path).await?;
        client.sync().await?;
        let hosts = world.hosts();
        hosts[usize::from(DEAD)].kill();
        hosts[usize::from(ALIVE)].kill();
        hosts[usize::from(ALIVE)].start()?;
        world.wait(Duration::from_secs(3)).await;
        let gone = timeout(LOOK_WITHIN, client.getattr(&base::Cred::ROOT, &node)).await;
        let gone = gone.context("it is not told")?;
        ensure!(matches!(gone, Err(Error::Fs(FsError::Stale))), "{gone:?}");
        // The coordinator hears that as well.
        let NodeRef::Dir(gone) = node else { bail!("a directory") };
        let [from, to] = [&b"file"[..], b"f"].map(base::EntryName::new);
        let (from, to) = (from?, to?);
        let (cred, mode) = (base::Cred::ROOT, wire::RenameMode::Replace);
        let rename = client::FileSystem::rename(client, &cred, (&root, &from), (&gone, &to), mode);
        let moved = timeout(LOOK_WITHIN, rename).await.context("it is not told")?;
        ensure!(matches!(moved, Err(Error::Fs(FsError::Stale))), "{moved:?}");
        hosts[usize::from(DEAD)].start()?;
        machine.close().await
    })
}
