//! Dumps of clusters that are in use: each is the file system at one moment.
//!
//! In each world several clients change things on several servers, one after the other, and note
//! what they have begun and what was answered. Meanwhile dumps are taken, and loaded into one
//! server or several. A check finds nothing there. All that was answered before a dump was started
//! is in it, and nothing that began after the start was answered. Of two things that one client did
//! one after the other, the second is never there without the first.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use base::{FsError, Locality, placement::shard_of};
use client::{Client, DumpError, Error};
use lab::{
    check::{
        self,
        planted::{self, Pin},
    },
    sim::{
        dumped::Dumped,
        plan::{Aim, Plan, Weather},
        play,
        random::SimRandom,
        world::World,
    },
};
use meta::Bug;
use tokio::{
    task::{JoinHandle, spawn_local},
    time::{Instant, timeout},
};
use wire::NodeRef;

/// Maximum duration of a look in the weather of these worlds, while dumps are taken.
const LOOK_MAX: Duration = Duration::from_millis(400);
/// Time limit, in the time of the world. A longer wait counts as endless.
const PATIENCE: Duration = Duration::from_secs(3000);
/// Number of directories of one kind, which are on all servers.
const DIRS: u64 = 6;
/// Length of a chain of directories.
const CHAIN: u64 = 8;

/// A world of a seed in which nothing goes wrong by itself.
fn plan(seed: u64, servers: u16) -> Plan {
    let drawn = Plan::draw(seed, servers);
    Plan {
        power_cuts: false,
        aim: Aim::Nothing,
        shards: 12,
        trash: seed.is_multiple_of(2),
        lease: Duration::from_secs(12),
        server_lease: Duration::from_secs(2),
        weather: Weather { stall_one_in: 200, ..drawn.weather },
        ..drawn
    }
}

fn in_world<T>(
    plan: Plan,
    bug: Option<Bug>,
    act: impl AsyncFnOnce(World) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    play::in_world(plan, bug, PATIENCE, async |world| {
        if world.plan().trash {
            check::trash::keep(&world, "1").await?;
        }
        act(world).await
    })
}

/// Progress of operations that are done one after the other: how many were begun, and how many were
/// answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Done {
    begun: u64,
    answered: u64,
}

/// The clients at work in a world.
struct Load {
    world: World,
    ends: Cell<bool>,
    /// Duration of the longest look.
    longest_look: Cell<Duration>,
    done: RefCell<BTreeMap<&'static str, Done>>,
}

/// A dump that was taken.
struct Taken {
    dumped: Dumped,
    before: BTreeMap<&'static str, Done>,
    after: BTreeMap<&'static str, Done>,
}

type Worked = JoinHandle<anyhow::Result<()>>;

impl Load {
    /// Makes the directories, and starts the clients.
    async fn begin(world: &World) -> anyhow::Result<(Rc<Load>, Vec<Worked>)> {
        let machine = world.connect("prepares").await?;
        let client = &machine.client;
        for kind in ["pairs", "moved", "linked", "above", "thrown"] {
            client.mkdir(format!("/{kind}"), 0o755).await?;
            for dir in 0..DIRS {
                client.mkdir(format!("/{kind}/{dir}"), 0o755).await?;
            }
        }
        client.mkdir("/chains", 0o755).await?;
        for file in 0..4 {
            client.write(format!("/moved/0/{file}"), b"it moves").await?;
        }
        for dir in 0..3 {
            client.mkdir(format!("/above/0/{dir}"), 0o755).await?;
            client.write(format!("/above/0/{dir}/within"), b"it is moved").await?;
        }
        client.write("/linked/0/file", &[7; 300]).await?;
        // Every dump has something that was removed.
        client.write("/thrown/first", b"it is removed").await?;
        client.unlink("/thrown/first").await?;
        machine.close().await?;
        let done = RefCell::default();
        let (ends, longest_look) = (Cell::new(false), Cell::new(Duration::ZERO));
        let load = Rc::new(Load { world: world.clone(), ends, longest_look, done });
        let works = vec![
            spawn_local(Rc::clone(&load).work("pairs", pair)),
            spawn_local(Rc::clone(&load).work("chains", chain)),
            spawn_local(Rc::clone(&load).work("moved", move_file)),
            spawn_local(Rc::clone(&load).work("linked", link)),
            spawn_local(Rc::clone(&load).work("above", move_dir)),
            spawn_local(Rc::clone(&load).work("thrown", throw)),
            spawn_local(Rc::clone(&load).look()),
        ];
        Ok((load, works))
    }

    async fn work(
        self: Rc<Self>,
        name: &'static str,
        act: impl AsyncFn(&Client, &SimRandom, u64) -> Result<(), Error>,
    ) -> anyhow::Result<()> {
        let machine = self.world.connect(name).await?;
        let random = self.world.random(name);
        let mut number = 0;
        while !self.ends.get() {
            let of = Done { begun: number + 1, answered: number };
            self.done.borrow_mut().insert(name, of);
            act(&machine.client, &random, number)
                .await
                .with_context(|| format!("{name} {number}"))?;
            number += 1;
            self.done.borrow_mut().insert(name, Done { begun: number, answered: number });
            if random.one_in(4) {
                self.world.wait(random.ms(0..6)).await;
            }
        }
        machine.close().await
    }

    /// Looks at directories that never change, on all servers.
    async fn look(self: Rc<Self>) -> anyhow::Result<()> {
        let machine = self.world.connect("looks").await?;
        for dir in (0..DIRS).cycle() {
            if self.ends.get() {
                break;
            }
            let began = Instant::now();
            machine.client.stat(format!("/pairs/{dir}")).await?;
            self.longest_look.set(began.elapsed().max(self.longest_look.get()));
            self.world.wait(Duration::from_millis(1)).await;
        }
        machine.close().await
    }

    async fn end(&self, works: Vec<Worked>) -> anyhow::Result<()> {
        self.ends.set(true);
        for work in works {
            work.await.context("a workload panicked")??;
        }
        Ok(())
    }

    /// Takes a dump for this many servers.
    async fn dump(&self, client: &Client, servers: u16) -> anyhow::Result<Taken> {
        let before = self.done.borrow().clone();
        let dump = client.dump_start().await?;
        let after = self.done.borrow().clone();
        let dumped = self.world.read_dump(client, dump, servers).await?;
        Ok(Taken { dumped, before, after })
    }
}

/// Makes files one after the other, in directories of different servers.
async fn pair(client: &Client, _: &SimRandom, number: u64) -> Result<(), Error> {
    client.write(format!("/pairs/{}/{number}", number % DIRS), b"").await
}

/// Makes a directory in the one before, or begins a new chain.
async fn chain(client: &Client, _: &SimRandom, number: u64) -> Result<(), Error> {
    client.mkdir(link_of(number), 0o755).await.map(drop)
}

fn link_of(number: u64) -> String {
    let first = number - number % CHAIN;
    (first..=number).fold("/chains".to_owned(), |path, number| format!("{path}/{number}"))
}

async fn move_file(client: &Client, random: &SimRandom, number: u64) -> Result<(), Error> {
    let file = number % 4;
    let to = random.within(0..DIRS);
    for from in 0..DIRS {
        match client.rename(format!("/moved/{from}/{file}"), format!("/moved/{to}/{file}")).await {
            Err(Error::Fs(FsError::NotFound)) => {}
            moved => return moved,
        }
    }
    Err(FsError::Io.into())
}

/// Adds a name to a file; removes some of these names.
async fn link(client: &Client, random: &SimRandom, number: u64) -> Result<(), Error> {
    let dir = random.within(0..DIRS);
    client.link("/linked/0/file", format!("/linked/{dir}/{number}")).await?;
    if random.one_in(2) {
        client.unlink(format!("/linked/{dir}/{number}")).await?;
    }
    Ok(())
}

/// Makes something and removes it at once.
async fn throw(client: &Client, _: &SimRandom, number: u64) -> Result<(), Error> {
    let path = format!("/thrown/{}/{number}", number % DIRS);
    if number.is_multiple_of(3) {
        client.mkdir(&path, 0o755).await?;
        return client.rmdir(&path).await;
    }
    client.write(&path, b"not for long").await?;
    client.unlink(&path).await
}

async fn move_dir(client: &Client, random: &SimRandom, number: u64) -> Result<(), Error> {
    let dir = number % 3;
    let to = random.within(0..DIRS);
    for from in 0..DIRS {
        match client.rename(format!("/above/{from}/{dir}"), format!("/above/{to}/{dir}")).await {
            Err(Error::Fs(FsError::NotFound)) => {}
            moved => return moved,
        }
    }
    Err(FsError::Io.into())
}

async fn names(client: &Client, path: &str) -> anyhow::Result<Vec<String>> {
    let entries = client.read_dir(path).await.with_context(|| path.to_owned())?.all().await?;
    Ok(entries.iter().map(|entry| entry.name.to_string()).collect())
}

/// Names in all directories of a kind, each with its directory.
async fn all(client: &Client, kind: &str) -> anyhow::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for dir in 0..DIRS {
        let names = names(client, &format!("/{kind}/{dir}")).await?;
        found.extend(names.into_iter().map(|name| (name, dir)));
    }
    found.sort();
    Ok(found)
}

/// Checks a dump that was taken.
async fn look(world: &World, taken: Taken) -> anyhow::Result<()> {
    let Taken { dumped, before, after } = taken;
    let hosts = world.serve(dumped)?;
    let machine = world.connect("looks").await?;
    let client = &machine.client;
    check::fsck(world, client).await?;
    check::tree::check(client).await?;

    // The dump has all operations up to one of those in progress at its start.
    let in_order = |kind: &str, numbers: Vec<u64>| {
        let count = numbers.len() as u64;
        ensure!(numbers.iter().copied().eq(0..count), "{kind}: some are missing of {numbers:?}");
        let of = |done: &BTreeMap<&str, Done>| done.get(kind).copied().unwrap_or_default();
        let (least, most) = (of(&before).answered, of(&after).begun);
        ensure!((least..=most).contains(&count), "{kind}: {count} of {least} to {most}");
        Ok(())
    };
    let mut pairs = Vec::new();
    for (name, _) in all(client, "pairs").await? {
        pairs.push(name.parse()?);
    }
    pairs.sort_unstable();
    in_order("pairs", pairs)?;
    let mut count = 0;
    let mut chains = Vec::new();
    while client.stat(link_of(count)).await.is_ok() {
        chains.push(count);
        count += 1;
    }
    in_order("chains", chains)?;

    let moved: Vec<_> = all(client, "moved").await?.into_iter().map(|(name, _)| name).collect();
    ensure!(moved == ["0", "1", "2", "3"], "files that move: {moved:?}");
    let above = all(client, "above").await?;
    let called: Vec<_> = above.iter().map(|(name, _)| &name[..]).collect();
    ensure!(called == ["0", "1", "2"], "directories that move: {above:?}");
    for (name, dir) in &above {
        let within = client.read(format!("/above/{dir}/{name}/within")).await?;
        ensure!(within[..] == *b"it is moved", "{within:?}");
    }
    ensure!(client.read("/linked/0/file").await?[..] == [7; 300], "the contents are others");
    // The loaded file system can be used.
    client.write("/later", b"later").await?;
    client.mkdir("/pairs/new", 0o755).await?;
    client.rename("/moved/0", "/pairs/new/moved").await?;
    check::fsck(world, client).await?;
    let emptied = hosts.len() == 1 || hosts.len() == world.hosts().len();
    if world.plan().trash && emptied {
        ensure!(!check::trash::all(client).await?.is_empty(), "nothing is in the trash");
        check::trash::check(world, client).await?;
        check::fsck(world, client).await?;
    }
    machine.close().await?;
    for host in hosts {
        host.kill();
    }
    Ok(())
}

/// The longest waits of changes and of looks.
#[derive(Debug, Clone, Copy)]
struct Waited {
    changes: Duration,
    looks: Duration,
}

/// Runs a world in which dumps are taken.
fn dumps_of(seed: u64, servers: u16, bug: Option<Bug>) -> anyhow::Result<Waited> {
    in_world(plan(seed, servers), bug, async |world| {
        let (load, works) = Load::begin(&world).await?;
        let machine = world.connect("dumps").await?;
        let random = world.random("dumps");
        let mut taken = Vec::new();
        for into in [1, 2, servers] {
            world.wait(random.ms(20..300)).await;
            taken.push(load.dump(&machine.client, into).await?);
        }
        load.end(works).await?;
        machine.close().await?;
        for host in world.hosts() {
            host.kill();
        }
        let changes = taken.iter().map(|taken| taken.dumped.paused).max().unwrap_or_default();
        let waited = Waited { changes, looks: load.longest_look.get() };
        for (number, taken) in (1..).zip(taken) {
            look(&world, taken).await.with_context(|| format!("dump {number}"))?;
        }
        Ok(waited)
    })
}

#[test]
fn a_dump_of_a_cluster_is_its_tree_at_one_moment() {
    let mut waited = Vec::new();
    for seed in 0..24 {
        let servers = [2, 3, 4][usize::try_from(seed % 3).unwrap()];
        match dumps_of(seed, servers, None) {
            Ok(longest) => waited.push(longest),
            Err(error) => panic!("seed {seed}, {servers} servers: {error:#}"),
        }
    }
    println!("of all dumps of a world the longest: {waited:?}");
    assert!(waited.iter().any(|waited| !waited.changes.is_zero()), "changes never wait");
    for Waited { changes, looks } in waited {
        assert!(changes <= Duration::from_secs(3), "changes waited for {changes:?}");
        assert!(looks < LOOK_MAX, "a look waited for {looks:?}");
    }
}

#[test]
fn a_dump_for_which_nobody_waits_is_found_out() {
    let pin = Pin { seed: Some(0), word: "dump ", seeds: 0..40 };
    let found = planted::find(&pin, |seed, planted| {
        dumps_of(seed, 3, planted.then_some(Bug::PauseIgnored)).map(drop)
    });
    println!("{}", found.unwrap());
}

#[test]
fn a_server_that_dies_ends_the_dump_and_everybody_goes_on() {
    let interrupted = Cell::new(0);
    for seed in 0..6 {
        let ended = in_world(plan(seed, 3), None, async |world| {
            let (load, works) = Load::begin(&world).await?;
            let machine = world.connect("dumps").await?;
            let (client, random) = (&machine.client, world.random("dies"));
            let victim = &world.hosts()[random.index(3)];
            world.wait(random.ms(20..200)).await;
            let dies = async {
                world.wait(random.ms(0..25)).await;
                victim.kill();
                world.wait(Duration::from_secs(seed)).await;
                victim.start()
            };
            let (dumped, died) = futures::join!(load.dump(client, 1), dies);
            died?;
            if let Err(error) = dumped {
                println!("seed {seed}: {error:#}");
                interrupted.set(interrupted.get() + 1);
                let known = |error: &DumpError| match error {
                    DumpError::Silent(_) | DumpError::Failed(Error::Refused(_)) => true,
                    DumpError::Failed(Error::Fs(error)) => *error == FsError::NotFound,
                    DumpError::Failed(_) => false,
                };
                ensure!(error.downcast_ref().is_some_and(known), "{error:#}");
            }
            // No client waits for the dumps that have ended, and the next one is whole.
            world.wait(Duration::from_secs(20)).await;
            let before = load.done.borrow().clone();
            world.wait(Duration::from_secs(3)).await;
            for (kind, done) in &*load.done.borrow() {
                ensure!(done.answered > before[kind].answered, "{kind} does not go on");
            }
            let again = load.dump(client, 1).await.context("the next one")?;
            load.end(works).await?;
            machine.close().await?;
            world.hosts().iter().for_each(lab::sim::server::Host::kill);
            look(&world, again).await
        });
        ended.map_err(|error| format!("seed {seed}: {error:#}")).unwrap();
    }
    assert!(interrupted.get() > 0, "no death has ended a dump");
}

#[test]
fn a_server_that_dies_while_a_dump_is_read_ends_it() {
    let ended = in_world(plan(1, 3), None, async |world| {
        let (load, works) = Load::begin(&world).await?;
        load.end(works).await?;
        let machine = world.connect("dumps").await?;
        let client = &machine.client;
        let mut dump = client.dump_start().await?;
        world.hosts()[2].kill();
        // By now the reader tells the other servers to keep their dumps.
        world.wait(Duration::from_secs(70)).await;
        let failed = timeout(Duration::from_secs(30), dump.next(client)).await;
        let failed = failed.context("it waits for one that is not there")?;
        ensure!(matches!(failed, Err(DumpError::Silent(2))), "{:?}", failed.err());
        world.hosts()[2].start()
    });
    ended.map_err(|error| format!("{error:#}")).unwrap();
}

#[test]
fn a_server_that_has_given_all_is_not_forgotten_before_the_end() {
    let plan = Plan {
        locality: Locality::Directory,
        inline_bytes_max: 4096,
        split_threshold: u64::MAX,
        ..plan(1, 2)
    };
    let ended = in_world(plan, None, async |world| {
        let machine = world.connect("dumps").await?;
        let client = &machine.client;
        let shards = world.plan().shards;
        let mut last = String::new();
        for number in 0..1000 {
            last = format!("/{number}");
            client.mkdir(&last, 0o755).await?;
            let NodeRef::Dir(dir) = client.resolve(&last).await? else { continue };
            if shard_of(dir.home, 0, shards).0 == shards - 1 {
                break;
            }
        }
        // The pages of its shard all come after those of the other server.
        for number in 0..700 {
            client.write(format!("{last}/{number}"), &[7; 4000]).await?;
        }
        let mut dump = client.dump_start().await?;
        let mut pages = 0;
        while let Some(page) = dump.next(client).await? {
            let is_last =
                page.records.first().is_some_and(|(key, _)| u16::from(key[1]) == shards - 1);
            pages += u32::from(is_last);
            if is_last {
                // The client that writes the pages is slow.
                world.wait(Duration::from_secs(100)).await;
            }
        }
        ensure!(pages > 4, "{pages}");
        dump.end(client).await?;
        machine.close().await
    });
    ended.map_err(|error| format!("{error:#}")).unwrap();
}
