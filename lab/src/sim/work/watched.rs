//! The change feed: clients make, rename, link and remove names in a few directories, while another
//! one watches them.
//!
//! Each name comes and goes as often as it is told: of each node under it as many arrivals are told
//! as departures, and one more if the name has the node at the end. Where one server has told all of
//! a name, the last of that says what is under it. The watcher is cut off now and then, and goes on
//! from its position, as another client does whose session is lost. Its position becomes text and
//! back.
//!
//! Where a power cut takes back what was told, the watcher is told of a gap, and what was told before
//! says nothing any more.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use base::{FsError, Ino};
use client::{Change, Client, Error, FileChange, News, Position, WatchOptions};
use futures::future::try_join_all;
use tokio::time::timeout;
use wire::RenameMode;

use crate::sim::{
    random::SimRandom,
    world::{Machine, World},
};

const CLIENTS: usize = 3;
const OPERATIONS: u64 = 60;
const TOP: &str = "/watched";
/// Directories whose names change, below the one that is watched.
const DIRS: [&str; 4] = ["a", "b", "a/below", "a/below/deep"];
const NAMES: u64 = 5;
/// Time in which the last changes reach all servers that have a part in them.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between two looks at what is told.
const PAUSE: Duration = Duration::from_millis(200);

struct Watched {
    world: World,
    random: SimRandom,
    over: Cell<bool>,
    told: RefCell<Told>,
}

/// All that was told of each name.
#[derive(Default)]
struct Told {
    /// Arrivals less departures of each node under each name.
    there: BTreeMap<(String, Ino), i64>,
    /// The node that each server last told of under a name.
    last: BTreeMap<String, BTreeMap<u16, Option<Ino>>>,
    /// Whether something is missing.
    has_gap: bool,
}

impl Told {
    fn add(&mut self, change: &FileChange) -> anyhow::Result<()> {
        let path = change.path.to_str().context("all names are text")?.to_owned();
        let comes = match change.change {
            Change::Created | Change::Linked | Change::MovedTo => true,
            Change::Removed | Change::MovedFrom => false,
            Change::Attributes | Change::Written => return Ok(()),
        };
        *self.there.entry((path.clone(), change.ino)).or_default() += if comes { 1 } else { -1 };
        let last = comes.then_some(change.ino);
        self.last.entry(path).or_default().insert(change.server, last);
        Ok(())
    }

    /// Compares what was told with the names that are there.
    fn is_of(&self, names: &BTreeMap<String, Ino>) -> anyhow::Result<()> {
        let there = self.there.iter().filter(|(_, count)| **count != 0);
        for ((path, ino), count) in there {
            let is_there = names.get(path) == Some(ino);
            ensure!(
                is_there && *count == 1,
                "{path} has inode {ino} {count} times, by what is told"
            );
        }
        for (path, ino) in names {
            let at = (path.clone(), *ino);
            ensure!(self.there.contains_key(&at), "{path} is there, and nobody has told of it");
            if let Some(last) = self.last.get(path).filter(|last| last.len() == 1) {
                let last = last.values().next().copied().flatten();
                ensure!(last == Some(*ino), "the last that is told of {path} is {last:?}");
            }
        }
        Ok(())
    }
}

pub(super) async fn set_up(
    world: &World,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = world.connect_all("changes", CLIENTS).await?;
    let watcher = world.connect("watches").await?;
    let first = &machines[0].client;
    for dir in [""].iter().chain(&DIRS) {
        let path = path_of(dir);
        first.mkdir(&path, 0o755).await?;
        world.divide(first, &path).await?;
    }
    let begin = watcher.client.watch(TOP, options(None, true)).await?.position().clone();
    let random = world.random("watched");
    let watched = Rc::new(Watched {
        world: world.clone(),
        random,
        over: Cell::new(false),
        told: RefCell::default(),
    });
    Ok(async move {
        let changes = machines.iter().enumerate().map(|(number, machine)| {
            let random = watched.random.stream(&format!("client {number}"));
            watched.change(&machine.client, random)
        });
        let changes = async {
            let changed = try_join_all(changes).await;
            watched.over.set(true);
            changed
        };
        let (changed, told) = futures::join!(changes, watched.watch(watcher, begin));
        changed?;
        let (watcher, position) = told?;
        let checked = watched.check(&machines[0].client, &watcher.client, position).await;
        for machine in machines.into_iter().chain([watcher]) {
            machine.close().await?;
        }
        checked
    })
}

fn path_of(below: &str) -> String {
    format!("{TOP}/{below}").trim_end_matches('/').to_owned()
}

fn options(since: Option<Position>, follow: bool) -> WatchOptions {
    WatchOptions { since, follow, keep: Duration::from_secs(3600) }
}

impl Watched {
    /// Changes names. What an operation answers does not matter.
    async fn change(&self, client: &Client, random: SimRandom) -> anyhow::Result<()> {
        let name = || {
            let dir = path_of(DIRS[random.index(DIRS.len())]);
            format!("{dir}/n{}", random.below(NAMES))
        };
        for _ in 0..OPERATIONS {
            let path = name();
            let done = match random.below(10) {
                0 | 1 => client.write(&path, b"some bytes").await,
                2 => client.mkdir(&path, 0o755).await.map(drop),
                3 => client.symlink("x", &path).await.map(drop),
                4 | 5 => client.rename(&path, name()).await,
                6 => client.link(&path, name()).await.map(drop),
                7 => client.unlink(&path).await,
                8 => client.rmdir(&path).await,
                _ if random.one_in(2) => {
                    client.rename_with(&path, name(), RenameMode::Exchange).await
                }
                _ => client.chmod(&path, 0o700).await.map(drop),
            };
            match done {
                Ok(()) | Err(Error::Fs(_) | Error::SessionLost) => {}
                Err(error) => return Err(error.into()),
            }
            self.world.count(|counts| counts.operations += 1);
            self.world.wait(random.ms(0..40)).await;
        }
        Ok(())
    }

    fn take(&self, news: &News) -> anyhow::Result<()> {
        let mut told = self.told.borrow_mut();
        match news {
            News::Change(change) => told.add(change)?,
            News::Gap { .. } => told.has_gap = true,
        }
        self.world.count(|counts| counts.watched += 1);
        Ok(())
    }

    /// Watches until all is changed. Returns how far it has come.
    async fn watch(
        &self,
        mut machine: Machine,
        mut position: Position,
    ) -> anyhow::Result<(Machine, Position)> {
        let random = self.random.stream("watcher");
        while !self.over.get() {
            let since = Some(position.to_string().parse()?);
            let begun = machine.client.watch(TOP, options(since, true));
            let mut watch = match timeout(PAUSE, begun).await {
                Err(_) => continue,
                Ok(Ok(watch)) => watch,
                Ok(Err(Error::SessionLost)) => {
                    machine = self.world.connect("watches again").await?;
                    continue;
                }
                Ok(Err(error)) => return Err(error.into()),
            };
            while !self.over.get() && !random.one_in(20) {
                match timeout(PAUSE, watch.next()).await {
                    Err(_) => {}
                    Ok(Some(Ok(news))) => self.take(&news)?,
                    Ok(Some(Err(Error::SessionLost))) => {
                        machine = self.world.connect("watches again").await?;
                        break;
                    }
                    Ok(Some(Err(error))) => return Err(error).context("a watch has ended"),
                    Ok(None) => bail!("a watch that follows has ended"),
                }
            }
            position = watch.position().clone();
        }
        Ok((machine, position))
    }

    /// Waits until what was told is what is there.
    async fn check(
        &self,
        client: &Client,
        watcher: &Client,
        mut position: Position,
    ) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        loop {
            let mut watch = watcher.watch(TOP, options(Some(position), false)).await?;
            while let Some(news) = watch.next().await {
                match news {
                    Ok(news) => self.take(&news)?,
                    Err(Error::Silent(..)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            position = watch.position().clone();
            if self.told.borrow().has_gap {
                ensure!(self.world.plan().power_cuts, "a gap, and no power was cut");
                self.world.count(|counts| counts.gaps += 1);
                return Ok(());
            }
            let names = self.names(client).await?;
            match self.told.borrow().is_of(&names) {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The names below the directory that is watched, without the directories themselves.
    async fn names(&self, client: &Client) -> anyhow::Result<BTreeMap<String, Ino>> {
        let own: BTreeSet<_> = DIRS.into_iter().collect();
        let mut names = BTreeMap::new();
        for dir in DIRS {
            let entries = match client.read_dir(path_of(dir)).await {
                Ok(entries) => entries.all().await,
                Err(error) => Err(error),
            };
            match entries {
                Ok(entries) => {
                    let paths =
                        entries.iter().map(|entry| (format!("{dir}/{}", entry.name), entry.ino));
                    names.extend(paths.filter(|(path, _)| !own.contains(&path[..])));
                }
                Err(Error::Fs(FsError::NotFound)) if self.world.plan().is_lossy() => {}
                Err(error) => return Err(error).context("cannot list what is watched"),
            }
        }
        Ok(names)
    }
}
