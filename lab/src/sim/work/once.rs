//! Exactly once: each operation of a client that is alone in its directory is done exactly once.
//!
//! A name that no other client uses is made: `EEXIST` would mean that it was made before. It is
//! removed: `ENOENT` would mean that it was removed before. At the end the directory has exactly
//! the expected names: no late request on an old connection has made anything anew.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use base::{FileKind, Ino};
use client::{Client, OpenOptions};
use wire::RenameMode;

use crate::sim::{random::SimRandom, world::World};

const OPERATIONS: u64 = 150;

/// The inode that a name should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thing {
    ino: Ino,
    kind: FileKind,
}

struct Once {
    world: World,
    client: Client,
    random: SimRandom,
    dir: String,
    there: BTreeMap<String, Thing>,
    made: u64,
    /// All inode numbers seen. None is given out twice while anything may still bear it.
    inos: BTreeSet<Ino>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machine = world.connect("once").await?;
    let dir = format!("/once-{number}");
    machine.client.mkdir(&dir, 0o755).await?;
    world.divide(&machine.client, &dir).await?;
    let mut once = Once {
        world: world.clone(),
        client: machine.client.clone(),
        random: world.random(&dir),
        dir,
        there: BTreeMap::new(),
        made: 0,
        inos: BTreeSet::new(),
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            once.step().await?;
            once.world.count(|counts| counts.operations += 1);
            if once.random.one_in(8) {
                once.world.wait(once.random.ms(0..60)).await;
            }
        }
        once.check().await?;
        machine.close().await
    })
}

impl Once {
    async fn step(&mut self) -> anyhow::Result<()> {
        let choice = self.random.below(10);
        if self.there.is_empty() || choice < 4 {
            return self.make().await;
        }
        let names: Vec<String> = self.there.keys().cloned().collect();
        let name = names[self.random.index(names.len())].clone();
        let thing = self.there[&name];
        match (choice, thing.kind) {
            (4..=6, FileKind::Directory) => {
                self.client
                    .rmdir(self.path(&name))
                    .await
                    .with_context(|| format!("rmdir {name}"))?;
                self.there.remove(&name);
            }
            (4..=6, _) => {
                self.client
                    .unlink(self.path(&name))
                    .await
                    .with_context(|| format!("unlink {name}"))?;
                self.there.remove(&name);
            }
            (7, FileKind::Directory) | (8 | 9, _) => self.rename(&name, thing).await?,
            (_, _) => {
                let new = self.fresh();
                let linked = self.client.link(self.path(&name), self.path(&new)).await;
                linked.with_context(|| format!("link {name} {new}"))?;
                self.there.insert(new, thing);
            }
        }
        self.world.trace().say(format_args!("{} {name}", self.dir));
        Ok(())
    }

    async fn make(&mut self) -> anyhow::Result<()> {
        let name = self.fresh();
        let path = self.path(&name);
        let thing = match self.random.below(3) {
            0 => {
                let made = self.client.mkdir(&path, 0o755).await;
                let attr = made.with_context(|| format!("mkdir {name}"))?;
                Thing { ino: attr.ino, kind: attr.kind }
            }
            1 => {
                let options = OpenOptions::both().create_new(0o644);
                let made = self.client.open_with(&path, options).await;
                let file = made.with_context(|| format!("create {name}"))?;
                let ino = file.metadata().await?.ino;
                file.close().await?;
                Thing { ino, kind: FileKind::File }
            }
            _ => {
                let made = self.client.symlink("nowhere", &path).await;
                made.with_context(|| format!("symlink {name}"))?;
                let attr = self.client.lstat(&path).await?;
                Thing { ino: attr.ino, kind: attr.kind }
            }
        };
        ensure!(self.inos.insert(thing.ino), "inode {} was given out twice", thing.ino);
        self.world.trace().say(format_args!("{} made {name} {}", self.dir, thing.ino));
        self.there.insert(name, thing);
        Ok(())
    }

    /// Renames to a free name: only the first execution can succeed.
    async fn rename(&mut self, name: &str, thing: Thing) -> anyhow::Result<()> {
        let new = self.fresh();
        let mode = self.random.pick(&[RenameMode::NoReplace, RenameMode::Replace]);
        let moved = self.client.rename_with(self.path(name), self.path(&new), mode).await;
        moved.with_context(|| format!("rename {name} {new}"))?;
        self.there.remove(name);
        self.there.insert(new, thing);
        Ok(())
    }

    fn fresh(&mut self) -> String {
        self.made += 1;
        self.made.to_string()
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    async fn check(&self) -> anyhow::Result<()> {
        let mut found = BTreeMap::new();
        for entry in self.client.read_dir(&self.dir).await?.all().await? {
            let name = String::from_utf8(entry.name.as_bytes().to_vec())?;
            let kind = match entry.kind {
                Some(kind) => kind,
                None => self.client.lstat(self.path(&name)).await?.kind,
            };
            found.insert(name, Thing { ino: entry.ino, kind });
        }
        ensure!(found == self.there, "{}: {found:?}, but should be {:?}", self.dir, self.there);
        Ok(())
    }
}
