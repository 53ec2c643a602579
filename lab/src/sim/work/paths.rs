//! Visibility: clients take turns in one tree, by paths, and each finds the changes of all.
//!
//! Directories are moved, closed to others and opened again under clients that have them in their
//! caches.

use anyhow::{Context as _, ensure};
use base::{Cred, FsError, Ino};
use client::{Client, Error};

use crate::{
    check::visible::{CLOSED, Node, OPEN, Paths},
    sim::{random::SimRandom, world::World},
};

const OPERATIONS: u64 = 250;
const CLIENTS: usize = 3;

struct Turns {
    clients: Vec<Client>,
    random: SimRandom,
    world: World,
    root: String,
    paths: Paths,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = world.connect_all("paths", CLIENTS).await?;
    let root = format!("/paths-{number}");
    machines[0].client.mkdir(&root, 0o755).await?;
    world.divide(&machines[0].client, &root).await?;
    let mut turns = Turns {
        clients: machines.iter().map(|machine| machine.client.clone()).collect(),
        random: world.random(&root),
        world: world.clone(),
        root,
        paths: Paths::default(),
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            turns.step().await?;
            turns.world.count(|counts| counts.operations += 1);
        }
        drop(turns);
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

impl Turns {
    async fn step(&mut self) -> anyhow::Result<()> {
        let client = self.clients[self.random.index(self.clients.len())].clone();
        let choice = self.random.below(20);
        match choice {
            0..=1 => self.make(&client, true).await,
            2..=3 => self.make(&client, false).await,
            4..=6 => self.rename(&client).await,
            7 => self.remove(&client).await,
            8 => self.chmod(&client).await,
            _ => self.find(&client).await,
        }
    }

    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    /// A directory of the tree, or its root.
    fn some_dir(&self) -> String {
        let dirs = self.paths.all(true);
        match self.random.index(dirs.len() + 1) {
            0 => String::new(),
            index => format!("{}/", dirs[index - 1]),
        }
    }

    /// A path in some directory of the tree, which may exist or not.
    fn some_path(&self) -> String {
        let name = format!("{}{}", self.random.pick(&["d", "f"]), self.random.below(3));
        format!("{}{name}", self.some_dir())
    }

    fn some_of(&self, directories: bool) -> Option<String> {
        let all = self.paths.all(directories);
        (!all.is_empty()).then(|| all[self.random.index(all.len())].to_owned())
    }

    async fn make(&mut self, client: &Client, directory: bool) -> anyhow::Result<()> {
        let kind = if directory { "d" } else { "f" };
        let path = format!("{}{kind}{}", self.some_dir(), self.random.below(3));
        if path.matches('/').count() > 5 {
            return Ok(());
        }
        let full = self.path(&path);
        let made = if directory {
            client.mkdir(&full, OPEN).await
        } else {
            let new = client::New { kind: base::FileKind::File, mode: 0o644, rdev: 0 };
            client.mknod(&full, new).await
        };
        let is_there = self.paths.find(&path, true).is_ok();
        self.world.trace().say(format_args!("{} make {path} {made:?}", self.root));
        match made {
            Ok(attr) if !is_there => {
                let mode = directory.then_some(OPEN);
                self.paths.make(&path, Node { ino: attr.ino, mode });
                Ok(())
            }
            Err(Error::Fs(FsError::Exists)) if is_there => Ok(()),
            other => anyhow::bail!("{full}: made {other:?}, is there: {is_there}"),
        }
    }

    async fn rename(&mut self, client: &Client) -> anyhow::Result<()> {
        let directory = !self.random.one_in(4);
        let Some(from) = self.some_of(directory) else { return Ok(()) };
        let kind = if directory { "d" } else { "f" };
        let to = format!("{}{kind}{}", self.some_dir(), self.random.below(3));
        let below_itself = to.starts_with(&format!("{from}/"));
        if from == to || below_itself || self.paths.find(&to, true).is_ok() {
            return Ok(());
        }
        let moved = client.rename(self.path(&from), self.path(&to)).await;
        self.world.trace().say(format_args!("{} rename {from} {to} {moved:?}", self.root));
        moved.with_context(|| format!("rename {from} {to}"))?;
        self.paths.rename(&from, &to);
        Ok(())
    }

    async fn remove(&mut self, client: &Client) -> anyhow::Result<()> {
        let directory = self.random.one_in(2);
        let Some(path) = self.some_of(directory) else { return Ok(()) };
        let full = self.path(&path);
        let removed =
            if directory { client.rmdir(&full).await } else { client.unlink(&full).await };
        self.world.trace().say(format_args!("{} remove {path} {removed:?}", self.root));
        match removed {
            Ok(()) if !self.paths.has_below(&path) => self.paths.remove(&path),
            Err(Error::Fs(FsError::NotEmpty)) if self.paths.has_below(&path) => {}
            other => anyhow::bail!("{full}: removed {other:?}"),
        }
        Ok(())
    }

    async fn chmod(&mut self, client: &Client) -> anyhow::Result<()> {
        let Some(path) = self.some_of(true) else { return Ok(()) };
        let mode = self.random.pick(&[OPEN, CLOSED]);
        let changed = client.chmod(self.path(&path), mode).await;
        self.world.trace().say(format_args!("{} chmod {path} {mode:o}", self.root));
        let attr = changed.with_context(|| format!("chmod {path}"))?;
        ensure!(attr.mode == mode, "{path}: mode {:o} after chmod {mode:o}", attr.mode);
        self.paths.chmod(&path, mode);
        Ok(())
    }

    async fn find(&self, client: &Client) -> anyhow::Result<()> {
        let superuser = self.random.one_in(2);
        let existing =
            if self.random.one_in(2) { self.some_of(self.random.one_in(2)) } else { None };
        let path = existing.unwrap_or_else(|| self.some_path());
        let user = Cred { uid: 100, gid: 100, groups: Vec::new() };
        let client = if superuser { client.clone() } else { client.as_user(user) };
        let found = match client.lstat(self.path(&path)).await {
            Ok(attr) => Ok(attr.ino),
            Err(Error::Fs(error)) => Err(error),
            Err(error) => return Err(error.into()),
        };
        let should: Result<Ino, FsError> = self.paths.find(&path, superuser).map(|node| node.ino);
        self.world.trace().say(format_args!("{} find {path} {superuser} {found:?}", self.root));
        ensure!(found == should, "{path} (superuser: {superuser}): {found:?}, not {should:?}");
        Ok(())
    }
}
