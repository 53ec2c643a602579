//! Contention: several clients want the same names at once.
//!
//! * *Winners*: of all clients that make a name exclusively, exactly one succeeds, and the name has
//!   the winner's file.
//! * *Rename ring*: names in a ring are rotated by concurrent renames; at the end there are as many
//!   names, each inode once.
//! * *Links*: a file gets and loses names; at the end its link count is the number of its names.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use anyhow::{Context as _, ensure};
use base::{FsError, Ino};
use client::{Client, Error, OpenOptions};
use futures::future::try_join_all;
use wire::RenameMode;

use crate::sim::{random::SimRandom, world::World};

const CLIENTS: usize = 3;
const NAMES: u64 = 12;
const ROUNDS: u64 = 40;

/// State that all clients share.
struct Race {
    world: World,
    dir: String,
    /// The winner's inode for each name that was won.
    winners: RefCell<BTreeMap<u64, Ino>>,
    /// Number of names of the linked file.
    links: RefCell<u32>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = world.connect_all("race", CLIENTS).await?;
    let dir = format!("/race-{number}");
    let client = machines[0].client.clone();
    for path in ["", "/won", "/ring", "/ring/a", "/ring/b"] {
        let path = format!("{dir}{path}");
        client.mkdir(&path, 0o755).await?;
        world.divide(&client, &path).await?;
    }
    client.write(format!("{dir}/file"), b"shared").await?;
    for name in 0..NAMES {
        client.write(format!("{dir}/ring/a/{name}"), name.to_string().as_bytes()).await?;
    }
    let race = Rc::new(Race {
        world: world.clone(),
        dir,
        winners: RefCell::default(),
        links: RefCell::new(1),
    });
    Ok(async move {
        let runs = machines.iter().enumerate().map(|(number, machine)| {
            let random = race.world.random(&format!("{} {number}", race.dir));
            Rc::clone(&race).run(machine.client.clone(), number, random)
        });
        try_join_all(runs).await?;
        race.check(&client).await?;
        drop(client);
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

impl Race {
    async fn run(
        self: Rc<Self>,
        client: Client,
        number: usize,
        random: SimRandom,
    ) -> anyhow::Result<()> {
        for round in 0..ROUNDS {
            match random.below(4) {
                0 => self.win(&client, &random).await.context("win")?,
                1 => self
                    .link(&client, &format!("{number}-{round}"), &random)
                    .await
                    .context("link")?,
                _ => self.rotate(&client, &random).await.context("rotate")?,
            }
            self.world.count(|counts| counts.operations += 1);
        }
        Ok(())
    }

    async fn win(&self, client: &Client, random: &SimRandom) -> anyhow::Result<()> {
        let name = random.below(NAMES);
        let path = format!("{}/won/{name}", self.dir);
        match client.open_with(&path, OpenOptions::both().create_new(0o600)).await {
            Ok(file) => {
                let ino = file.metadata().await?.ino;
                self.world.trace().say(format_args!("{path} won {ino}"));
                let before = self.winners.borrow_mut().insert(name, ino);
                ensure!(before.is_none(), "{name} was won twice");
                file.close().await?;
                Ok(())
            }
            Err(Error::Fs(FsError::Exists)) => {
                let there = client.stat(&path).await.context("a name that was taken")?;
                let winner = self.winners.borrow().get(&name).copied();
                ensure!(winner.is_none_or(|ino| ino == there.ino), "{name} is not its winner's");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn link(&self, client: &Client, name: &str, random: &SimRandom) -> anyhow::Result<()> {
        let (file, path) = (format!("{}/file", self.dir), format!("{}/{name}", self.dir));
        client.link(&file, &path).await?;
        *self.links.borrow_mut() += 1;
        if random.one_in(2) {
            client.unlink(&path).await?;
            *self.links.borrow_mut() -= 1;
        }
        Ok(())
    }

    /// Moves a file of the ring to a free name, or exchanges two names.
    async fn rotate(&self, client: &Client, random: &SimRandom) -> anyhow::Result<()> {
        let place =
            || format!("{}/ring/{}/{}", self.dir, random.pick(&["a", "b"]), random.below(NAMES));
        let mode = random.pick(&[RenameMode::NoReplace, RenameMode::Exchange]);
        match client.rename_with(place(), place(), mode).await {
            Ok(()) | Err(Error::Fs(FsError::NotFound | FsError::Exists)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn check(&self, client: &Client) -> anyhow::Result<()> {
        let won = client.read_dir(format!("{}/won", self.dir)).await?.all().await?;
        let winners = self.winners.borrow().clone();
        ensure!(won.len() == winners.len(), "{} names, {} winners", won.len(), winners.len());
        for entry in won {
            let name: u64 = String::from_utf8_lossy(entry.name.as_bytes()).parse()?;
            ensure!(winners.get(&name) == Some(&entry.ino), "{name} is not its winner's");
        }
        let mut ring = BTreeMap::new();
        for half in ["a", "b"] {
            let half = format!("{}/ring/{half}", self.dir);
            for entry in client.read_dir(&half).await?.all().await? {
                let path = format!("{half}/{}", entry.name);
                let contents = client.read(&path).await?;
                let before = ring.insert(contents, entry.ino);
                ensure!(before.is_none(), "{path} is in the ring twice");
            }
        }
        ensure!(ring.len() as u64 == NAMES, "{} of {NAMES} files are in the ring", ring.len());
        let links = client.stat(format!("{}/file", self.dir)).await?.nlink;
        ensure!(links == *self.links.borrow(), "{links} links, not {}", self.links.borrow());
        Ok(())
    }
}
