//! Shards that move between the servers of a cluster that is in use.
//!
//! In each world several clients make, rename and remove files, hold some open and locked, and note
//! what was answered. Meanwhile shards move from server to server. Nobody sees an error, what was
//! answered is there, what is open can be read although its name is gone, and locks exclude each
//! other.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use base::{FsError, LockMode};
use client::{Client, Error, File, MoveError, Moved, News, OpenOptions, WatchOptions};
use lab::check::{
    planted::{self, Pin},
    quota::{limit, used, walk},
};
use lab::sim::{
    plan::{Aim, Plan, Weather},
    play,
    world::World,
};
use meta::Bug;
use tokio::{
    task::{JoinHandle, spawn_local},
    time::Instant,
};

/// Time limit, in the time of the world. A longer wait counts as endless.
const PATIENCE: Duration = Duration::from_secs(3000);
/// Time after a move within which everything must go on. Locks wait for sessions that have not said
/// what they have locked, until their leases have ended.
const SETTLED_WITHIN: Duration = Duration::from_secs(16);
/// Directories of each client, which are on all servers.
const DIRS: u64 = 6;
/// Clients.
const CLIENTS: usize = 3;

/// A world of a seed in which nothing goes wrong by itself.
fn plan(seed: u64, servers: u16) -> Plan {
    let drawn = Plan::draw(seed, servers);
    Plan {
        moves: true,
        power_cuts: false,
        aim: Aim::Nothing,
        shards: 12,
        lease: Duration::from_secs(12),
        server_lease: Duration::from_secs(2),
        weather: Weather { stall_one_in: 200, ..drawn.weather },
        ..drawn
    }
}

/// The clients at work in a world.
struct Load {
    world: World,
    ends: Cell<bool>,
    /// Steps that each client has done.
    done: [Cell<u64>; CLIENTS],
    /// Files that there are, with what is in them.
    there: RefCell<BTreeMap<String, String>>,
    /// Files that are gone.
    gone: RefCell<BTreeSet<String>>,
    /// The client that has the lock.
    locked_by: Cell<Option<usize>>,
    /// Whether a client has seen an error.
    has_failed: Cell<bool>,
}

type Worked = JoinHandle<anyhow::Result<()>>;

impl Load {
    async fn begin(world: &World) -> anyhow::Result<(Rc<Load>, Vec<Worked>)> {
        let load = Rc::new(Load {
            world: world.clone(),
            ends: Cell::new(false),
            done: Default::default(),
            there: RefCell::default(),
            gone: RefCell::default(),
            locked_by: Cell::new(None),
            has_failed: Cell::new(false),
        });
        let machine = world.connect("prepares").await?;
        machine.client.write("/locked", b"locked").await?;
        for of in 0..CLIENTS {
            machine.client.mkdir(format!("/{of}"), 0o755).await?;
            for dir in 0..DIRS {
                machine.client.mkdir(format!("/{of}/{dir}"), 0o755).await?;
            }
        }
        machine.close().await?;
        let mut works = Vec::new();
        for of in 0..CLIENTS {
            let load = Rc::clone(&load);
            works.push(spawn_local(async move {
                let worked = Rc::clone(&load).work(of).await;
                load.has_failed.set(load.has_failed.get() || worked.is_err());
                worked
            }));
        }
        Ok((load, works))
    }

    async fn end(&self, works: Vec<Worked>) -> anyhow::Result<()> {
        self.ends.set(true);
        for work in works {
            work.await??;
        }
        Ok(())
    }

    async fn work(self: Rc<Load>, of: usize) -> anyhow::Result<()> {
        let machine = self.world.connect(&format!("works {of}")).await?;
        let (client, random) = (&machine.client, self.world.random(&format!("works {of}")));
        let lock = client.open_with("/locked", OpenOptions::writing()).await?;
        let mut held: Vec<(String, File)> = Vec::new();
        for number in 0.. {
            if self.ends.get() {
                break;
            }
            self.world.wait(random.ms(0..8)).await;
            let dir = format!("/{of}/{}", random.below(DIRS));
            let path = format!("{dir}/{number}");
            self.step(client, (of, &path), &lock, &mut held)
                .await
                .with_context(|| format!("client {of}, {path}"))?;
            let done = &self.done[of];
            done.set(done.get() + 1);
        }
        for (text, file) in held {
            ensure!(file.read_all().await? == text.as_bytes(), "what was open is lost: {text}");
            file.close().await?;
        }
        lock.close().await?;
        machine.close().await
    }

    async fn step(
        &self,
        client: &Client,
        (of, path): (usize, &str),
        lock: &File,
        held: &mut Vec<(String, File)>,
    ) -> anyhow::Result<()> {
        let random = self.world.random(path);
        let text = format!("in {path}");
        match random.below(6) {
            // Other contents, in other blocks.
            5 => {
                let known =
                    self.there.borrow().keys().find(|it| it.starts_with(&path[..3])).cloned();
                let Some(known) = known else { return Ok(()) };
                client.write(&known, text.as_bytes()).await?;
                self.there.borrow_mut().insert(known, text);
            }
            // A file that is made, and kept open without its name.
            0 => {
                let options = OpenOptions::both().create_new(0o644);
                let file = client.open_with(path, options).await?;
                file.write_at(0, text.as_bytes()).await?;
                file.sync_all().await?;
                client.unlink(path).await?;
                held.push((text, file));
                if held.len() > 4 {
                    let (text, file) = held.remove(0);
                    let read = file.read_all().await?;
                    ensure!(read == text.as_bytes(), "what was open is lost: {text}");
                    file.close().await?;
                }
            }
            1 => {
                lock.lock(LockMode::Exclusive).await?;
                let before = self.locked_by.replace(Some(of));
                ensure!(before.is_none(), "clients {before:?} and {of} have the lock");
                self.world.wait(Duration::from_millis(2)).await;
                self.locked_by.set(None);
                lock.unlock().await?;
            }
            2 => {
                let known =
                    self.there.borrow().keys().find(|it| it.starts_with(&path[..3])).cloned();
                let Some(known) = known else { return Ok(()) };
                client.unlink(&known).await?;
                self.there.borrow_mut().remove(&known);
                self.gone.borrow_mut().insert(known);
            }
            3 => {
                client.mkdir(path, 0o755).await?;
                let within = format!("{path}/within");
                client.write(&within, text.as_bytes()).await?;
                let to =
                    format!("/{of}/{}/moved-{of}-{}", random.below(DIRS), random.below(u64::MAX));
                client.rename(path, &to).await?;
                self.there.borrow_mut().insert(format!("{to}/within"), text);
                self.gone.borrow_mut().insert(path.to_owned());
            }
            _ => {
                client.write(path, text.as_bytes()).await?;
                self.there.borrow_mut().insert(path.to_owned(), text);
            }
        }
        Ok(())
    }

    /// Looks at everything with a client that knows nothing yet.
    async fn look(&self) -> anyhow::Result<()> {
        let machine = self.world.connect("looks").await?;
        for (path, text) in self.there.take() {
            let read = machine.client.read(&path).await.with_context(|| path.clone())?;
            ensure!(read == text.as_bytes(), "{path} has other contents");
        }
        for path in self.gone.take() {
            let there = machine.client.resolve(&path).await;
            ensure!(matches!(there, Err(Error::Fs(FsError::NotFound))), "{path} is there");
        }
        machine.close().await
    }
}

/// Moves shards away from these servers, or evenly to all, while everything goes on.
async fn move_once(
    (world, load): (&World, &Load),
    client: &Client,
    leave: &[u16],
    by_plan: bool,
) -> anyhow::Result<Result<Moved, MoveError>> {
    let moved = match client.plan_moves(leave).await {
        // The same, as if somebody else had made the plan, in another order.
        Ok(mut moves) if by_plan && !moves.is_empty() => {
            moves.reverse();
            client.move_these_shards(&moves, &|_| ()).await
        }
        _ => client.move_shards(leave).await,
    };
    let before = load.done.clone();
    let until = Instant::now() + SETTLED_WITHIN;
    let goes_on = || load.done.iter().zip(&before).all(|(now, before)| now > before);
    while !goes_on() {
        ensure!(Instant::now() < until, "a client does not go on after a move");
        world.wait(Duration::from_millis(20)).await;
    }
    Ok(moved)
}

/// Runs a world in which shards move. Returns how many have.
fn moves_of(seed: u64, servers: u16, bug: Option<Bug>) -> anyhow::Result<usize> {
    play::in_world(plan(seed, servers), bug, PATIENCE, async |world| {
        let (load, works) = Load::begin(&world).await?;
        let machine = world.connect("moves").await?;
        let random = world.random("moves");
        let mut moved = 0;
        for turn in 0..3 {
            world.wait(random.ms(20..300)).await;
            let leave = [u16::try_from(random.below(u64::from(servers)))?];
            let leave = if turn == 2 { &[][..] } else { &leave[..] };
            let at = (&world, &*load);
            let done = move_once(at, &machine.client, leave, turn == 1).await;
            if works.iter().any(JoinHandle::is_finished) {
                break;
            }
            // A server that is held up has the shards stay where they are.
            moved += done?.map_or(0, |done| done.moves.len());
        }
        load.end(works).await?;
        load.look().await?;
        machine.close().await?;
        Ok(moved)
    })
}

/// Runs a world that begins with so many servers, to which others come; each gets shards. Returns
/// how many have moved.
fn growth_of(seed: u64, begins: u16, servers: u16, bug: Option<Bug>) -> anyhow::Result<usize> {
    let plan = Plan { begins_with: Some(begins), ..plan(seed, servers) };
    play::in_world(plan, bug, PATIENCE, async |world| {
        let (load, works) = Load::begin(&world).await?;
        let random = world.random("grows");
        let mut moved = 0;
        for server in begins..servers {
            world.wait(random.ms(20..300)).await;
            world.grow(server).await.context("a server does not join")?;
            let machine = world.connect("moves").await?;
            let until = Instant::now() + SETTLED_WITHIN;
            let shards = loop {
                let done = move_once((&world, &load), &machine.client, &[], false).await?;
                if works.iter().any(JoinHandle::is_finished) {
                    break 0;
                }
                match done.map(|done| done.moves.len()) {
                    // The server has not served yet, or one was held up.
                    Ok(0) | Err(_) if Instant::now() < until => {
                        world.wait(Duration::from_millis(100)).await;
                    }
                    done => break done?,
                }
            };
            moved += shards;
            machine.close().await?;
        }
        load.end(works).await?;
        load.look().await?;
        Ok(moved)
    })
}

/// Runs a world in which a server dies while shards move, and moves them again. Returns whether the
/// death has ended the first move.
fn death_of(seed: u64) -> anyhow::Result<bool> {
    play::in_world(plan(seed, 3), None, PATIENCE, async |world| {
        let (load, works) = Load::begin(&world).await?;
        let machine = world.connect("moves").await?;
        let random = world.random("dies");
        let client = &machine.client;
        let leave = [u16::try_from(random.below(3))?];
        let victim = &world.hosts()[random.index(3)];
        let dies = async {
            world.wait(random.ms(0..60)).await;
            victim.kill();
            world.wait(random.ms(0..3000)).await;
            victim.start()
        };
        let (first, died) = futures::join!(client.move_shards(&leave), dies);
        died?;
        let ended = first.is_err();
        for leave in [&leave[..], &[]] {
            let mut tries = 0;
            // The servers that had stopped begin anew only after a while.
            while let Err(error) = move_once((&world, &load), client, leave, false).await? {
                tries += 1;
                ensure!(tries < 5, "shards do not move any more: {error}");
            }
        }
        load.end(works).await?;
        load.look().await?;
        machine.close().await?;
        Ok(ended)
    })
}

/// Has a server that has no shards leave, while everything goes on.
async fn let_leave(
    (world, load): (&World, &Load),
    client: &Client,
    server: u16,
    begins: &Cell<Option<Instant>>,
) -> anyhow::Result<Result<(), MoveError>> {
    let tell = |left| begins.set(Some(Instant::now() + left));
    let left = client.let_leave(server, &tell).await;
    let before = load.done.clone();
    let until = Instant::now() + SETTLED_WITHIN;
    let goes_on = || load.done.iter().zip(&before).all(|(now, before)| now > before);
    while !goes_on() {
        if load.has_failed.get() {
            // The error is told when the clients are awaited.
            break;
        }
        ensure!(Instant::now() < until, "a client does not go on after a server has left");
        world.wait(Duration::from_millis(20)).await;
    }
    Ok(left)
}

/// Checks that as much is charged to each client's directory as is in it.
async fn look_at_quotas((world, load): (&World, &Load)) -> anyhow::Result<()> {
    let machine = world.connect("counts").await?;
    for of in 0..CLIENTS {
        let path = format!("/{of}");
        let (until, there) = (Instant::now() + SETTLED_WITHIN, walk(&machine.client, &path).await?);
        // Files that clients had open without their names are still being removed.
        loop {
            let used = used(world, &machine.client, &path).await?;
            if used == there {
                break;
            }
            ensure!(Instant::now() < until, "{used:?} are charged to {path}, with {there:?} in it");
            world.wait(Duration::from_millis(100)).await;
        }
    }
    ensure!(load.ends.get(), "clients are still at work");
    machine.close().await
}

/// Runs a world in which a server gets no shards any more and leaves, and another one joins. With
/// `dies` a server dies meanwhile, perhaps the one that leaves. Returns whether that has ended an
/// attempt.
fn leaves_of(seed: u64, dies: bool, bug: Option<Bug>) -> anyhow::Result<bool> {
    let lease = Duration::from_secs(6);
    let plan = Plan { begins_with: Some(3), lease, ..plan(seed, 4) };
    play::in_world(plan, bug, PATIENCE, async |world| {
        let (load, works) = Load::begin(&world).await?;
        let machine = world.connect("moves").await?;
        let (client, random) = (&machine.client, world.random("leaves"));
        for of in 0..CLIENTS {
            limit(&world, client, &format!("/{of}"), "entries", 1_000_000).await?;
        }
        // A client that came before the cluster was complete has left a session behind, for whose
        // locks each start would wait.
        world.wait(world.plan().lease + random.ms(1000..1300)).await;
        let server = u16::try_from(1 + random.below(2))?;
        let at = (&world, &*load);
        let refused = client.let_leave(server, &|_| ()).await;
        ensure!(refused.is_err(), "a server with shards has left");
        let mut tries = 0;
        while let Err(error) = move_once(at, client, &[server], false).await? {
            tries += 1;
            ensure!(tries < 5, "shards do not leave server {server}: {error}");
        }
        let victim = &world.hosts()[random.index(3)];
        let begins = Cell::new(None);
        let dies = async {
            if dies {
                // Clients have asked for lost answers when their leases have ended.
                while begins.get().is_none_or(|begins| Instant::now() < begins) {
                    world.wait(Duration::from_millis(5)).await;
                }
                world.wait(random.ms(0..60)).await;
                victim.kill();
                world.wait(random.ms(0..1500)).await;
                victim.start()?;
            }
            anyhow::Ok(())
        };
        let (mut left, died) = futures::join!(let_leave(at, client, server, &begins), dies);
        died?;
        let mut has_ended = false;
        while let Err(error) = left? {
            ensure!(!client.members().is_empty());
            has_ended = true;
            tries += 1;
            ensure!(tries < 12, "server {server} does not leave: {error}");
            world.wait(Duration::from_millis(500)).await;
            left = if client.members().contains(&server) {
                let_leave(at, client, server, &begins).await
            } else {
                Ok(Ok(()))
            };
        }
        if load.has_failed.get() {
            load.end(works).await?;
            bail!("a client has seen an error");
        }
        let host = &world.hosts()[usize::from(server)];
        let until = Instant::now() + SETTLED_WITHIN;
        while !host.has_left() {
            ensure!(Instant::now() < until, "the process of a server that has left does not end");
            world.wait(Duration::from_millis(100)).await;
        }
        ensure!(client.members().len() == 2, "{:?} are members", client.members());
        world.grow(3).await.context("a server does not join after another has left")?;
        let until = Instant::now() + SETTLED_WITHIN;
        while !matches!(move_once(at, client, &[], false).await?, Ok(moved) if !moved.moves.is_empty())
        {
            ensure!(Instant::now() < until, "the server that has joined gets no shards");
            world.wait(Duration::from_millis(100)).await;
        }
        ensure!(client.members() == [0, 3 - server, 3], "{:?} are members", client.members());
        load.end(works).await?;
        look_at_quotas(at).await?;
        load.look().await?;
        machine.close().await?;
        Ok(has_ended)
    })
}

/// Moves shards, and asks meanwhile whether somebody does. Returns whether that was seen.
async fn seen_to_move(
    at: (&World, &Load),
    (leads, asks): (&Client, &Client),
    leave: &[u16],
) -> anyhow::Result<bool> {
    let (is_over, seen) = (Cell::new(false), Cell::new(false));
    let moves = async {
        let moved = move_once(at, leads, leave, false).await;
        is_over.set(true);
        moved
    };
    let looks = async {
        while !is_over.get() {
            // A server that begins anew may not answer.
            let is_busy = asks.any_is_busy().await.is_ok_and(|is_busy| is_busy);
            seen.set(seen.get() || is_busy);
            at.0.wait(Duration::from_millis(1)).await;
        }
    };
    let (moved, ()) = futures::join!(moves, looks);
    moved??;
    Ok(seen.get())
}

#[test]
fn a_move_is_seen_by_others_and_which_servers_were_drained_is_kept() {
    let seen = play::in_world(plan(3, 3), None, PATIENCE, async |world| {
        let (load, works) = Load::begin(&world).await?;
        let (machine, other) = (world.connect("moves").await?, world.connect("asks").await?);
        let (client, asks) = (&machine.client, &other.client);
        let drained = async || anyhow::Ok(client.cluster().await?.balance.drained);
        ensure!(!asks.any_is_busy().await?, "nobody moves anything yet");
        let seen = seen_to_move((&world, &load), (client, asks), &[1]).await?;
        ensure!(!asks.any_is_busy().await?, "the move is over");
        ensure!(drained().await? == [1], "server 1 was drained");
        let first = &world.hosts()[0];
        first.kill();
        first.start()?;
        ensure!(drained().await? == [1], "a start forgets which servers were drained");
        let mut tries = 0;
        // The servers have leases of the new run only after a while.
        while let Err(error) = seen_to_move((&world, &load), (client, asks), &[]).await {
            tries += 1;
            ensure!(tries < 5, "shards do not move any more: {error:#}");
        }
        first.kill();
        first.start()?;
        ensure!(drained().await?.is_empty(), "a start brings back which servers were drained");
        load.end(works).await?;
        load.look().await?;
        other.close().await?;
        machine.close().await?;
        Ok(seen)
    });
    assert!(seen.unwrap(), "a move is not seen by others");
}

#[test]
fn a_server_that_has_no_shards_leaves_and_nobody_sees_an_error() {
    for seed in 0..8 {
        if let Err(error) = leaves_of(seed, false, None) {
            panic!("seed {seed}: {error:#}");
        }
    }
}

#[test]
fn a_server_leaves_once_though_servers_die_meanwhile() {
    let mut ended = 0;
    for seed in 0..10 {
        match leaves_of(seed, true, None) {
            Ok(has_ended) => ended += u64::from(has_ended),
            Err(error) => panic!("seed {seed}: {error:#}"),
        }
    }
    println!("{ended} attempts were ended by a death");
    assert!(ended > 2, "{ended} attempts were ended by a death");
}

/// The gaps that a watch tells of until it has told of a change of `name`, by server.
async fn gaps_until(watch: &mut client::Watch, name: &str) -> anyhow::Result<BTreeSet<u16>> {
    let mut gaps = BTreeSet::new();
    loop {
        match watch.next().await.context("the watch has ended")?? {
            News::Gap { server } => {
                gaps.insert(server);
            }
            News::Change(change) if change.path.ends_with(name) => return Ok(gaps),
            News::Change(_) => {}
        }
    }
}

/// Runs a world in which a server leaves that a watch goes on with, and one that goes on from before.
fn gaps_of(seed: u64) -> anyhow::Result<()> {
    play::in_world(plan(seed, 3), None, PATIENCE, async |world| {
        let machine = world.connect("watches").await?;
        let client = &machine.client;
        let mut watch = client.watch("/", WatchOptions::default()).await?;
        client.write("/before", b"x").await?;
        ensure!(gaps_until(&mut watch, "before").await?.is_empty());
        let before = watch.position().clone();
        client.move_shards(&[1]).await?;
        client.let_leave(1, &|_| ()).await?;
        client.write("/after", b"x").await?;
        ensure!(gaps_until(&mut watch, "after").await?.contains(&1), "no gap is told");
        let now = watch.position().clone();
        for (since, owes_gap) in [(before, true), (now, false)] {
            let since = Some(since.to_string().parse()?);
            let mut watch =
                client.watch("/", WatchOptions { since, ..WatchOptions::default() }).await?;
            let name = format!("later {owes_gap}");
            client.write(format!("/{name}"), b"x").await?;
            let gaps = gaps_until(&mut watch, &name).await?;
            ensure!(gaps.contains(&1) == owes_gap, "gaps of {gaps:?}");
        }
        machine.close().await
    })
}

#[test]
fn a_watch_is_told_of_a_gap_once_when_a_server_leaves() {
    for seed in 0..6 {
        if let Err(error) = gaps_of(seed) {
            panic!("seed {seed}: {error:#}");
        }
    }
}

#[test]
fn charges_that_are_left_behind_are_found_out() {
    let pin = Pin { seed: None, word: "are charged to", seeds: 0..10 };
    let found = planted::find(&pin, |seed, planted| {
        leaves_of(seed, false, planted.then_some(Bug::ChargesLeftBehind)).map(drop)
    });
    println!("{}", found.unwrap());
}

#[test]
fn shards_move_while_they_are_used_and_nobody_sees_an_error() {
    let mut moved = 0;
    for seed in 0..18 {
        let servers = [2, 3, 4][usize::try_from(seed % 3).unwrap()];
        match moves_of(seed, servers, None) {
            Ok(shards) => moved += shards,
            Err(error) => panic!("seed {seed}, {servers} servers: {error:#}"),
        }
    }
    assert!(moved > 100, "{moved} shards have moved");
}

#[test]
fn servers_that_join_get_shards_also_beside_one_that_was_alone() {
    let mut moved = [0; 2];
    for seed in 0..16 {
        let begins = u16::try_from(seed % 2 + 1).unwrap();
        match growth_of(seed, begins, 3, None) {
            Ok(shards) => moved[usize::from(begins) - 1] += shards,
            Err(error) => panic!("seed {seed}, {begins} servers at first: {error:#}"),
        }
    }
    println!("{moved:?} shards have moved");
    // Of 12 shards 6 and then 4 go to others, or the last 4 alone.
    assert_eq!(moved, [8 * 10, 8 * 4], "shards have moved");
}

#[test]
fn a_server_that_dies_while_shards_move_loses_nothing() {
    let mut ended = 0;
    for seed in 0..24 {
        match death_of(seed) {
            Ok(has_ended) => ended += u64::from(has_ended),
            Err(error) => panic!("seed {seed}: {error:#}"),
        }
    }
    println!("{ended} moves were ended by a death");
    assert!(ended > 3, "{ended} moves were ended by a death");
}

#[test]
fn a_server_that_serves_while_its_shards_are_copied_is_found_out() {
    let pin = Pin { seed: None, word: "", seeds: 0..40 };
    let found = planted::find(&pin, |seed, planted| {
        moves_of(seed, 3, planted.then_some(Bug::ServesWhileMoving)).map(drop)
    });
    println!("{}", found.unwrap());
}

#[test]
fn sessions_that_stay_behind_are_found_out() {
    // Of two servers the one that was drained gets shards back: nobody else is left.
    let pin = Pin { seed: None, word: "bad file descriptor", seeds: 0..40 };
    let found = planted::find(&pin, |seed, planted| {
        moves_of(seed, 2, planted.then_some(Bug::SessionsStayBehind)).map(drop)
    });
    println!("{}", found.unwrap());
}

#[test]
fn changes_that_are_not_noted_while_shards_are_copied_ahead_are_found_out() {
    let pin = Pin { seed: None, word: "", seeds: 0..40 };
    let found = planted::find(&pin, |seed, planted| {
        moves_of(seed, 3, planted.then_some(Bug::AheadNotNoted)).map(drop)
    });
    println!("{}", found.unwrap());
}
