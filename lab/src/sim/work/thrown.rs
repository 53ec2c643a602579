//! The trash: everything that a client removes is in the trash, once and unchanged, and can be put
//! back.
//!
//! A client alone in its directory makes, moves and removes files and directories. At the end the
//! trash has each thing that has lost its last name, by its path, and nothing else from that
//! directory. Each of them whose place is free is put back.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use base::{FileKind, FsError, Ino};
use client::{Client, Error};
use wire::RenameMode;

use crate::{
    check::trash,
    sim::{random::SimRandom, world::World},
};

const OPERATIONS: u64 = 80;
/// Few names, so that they are used again. On one server at most 16 directories of one name are
/// kept.
const NAMES: u64 = 12;
const DEPTH_MAX: usize = 3;
/// Pause before something that a full disk has refused is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// A file or a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    /// The inode number and the contents.
    File(Ino, Vec<u8>),
    Directory,
}

struct Workload {
    world: World,
    client: Client,
    random: SimRandom,
    dir: String,
    there: BTreeMap<String, Thing>,
    thrown: Vec<(String, Thing)>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machine = world.connect("thrown").await?;
    let dir = format!("/thrown-{number}");
    machine.client.mkdir(&dir, 0o755).await?;
    world.divide(&machine.client, &dir).await?;
    let mut work = Workload {
        world: world.clone(),
        client: machine.client.clone(),
        random: world.random(&dir),
        dir,
        there: BTreeMap::new(),
        thrown: Vec::new(),
    };
    Ok(async move {
        for _ in 0..OPERATIONS {
            work.step().await?;
            work.world.count(|counts| counts.operations += 1);
        }
        work.compare().await?;
        work.put_back().await?;
        machine.close().await
    })
}

impl Workload {
    async fn step(&mut self) -> anyhow::Result<()> {
        let free = self.free_path();
        let taken: Vec<String> = self.there.keys().cloned().collect();
        if taken.is_empty() || self.random.one_in(2) {
            return match free {
                Some(path) => self.make(path).await,
                None => Ok(()),
            };
        }
        let path = taken[self.random.index(taken.len())].clone();
        match &self.there[&path] {
            Thing::Directory if !self.is_empty(&path) => Ok(()),
            Thing::Directory => {
                let removed = self.client.rmdir(&path).await;
                match self.is_done(removed).with_context(|| format!("rmdir {path}"))? {
                    true => self.throw(&path),
                    false => Ok(()),
                }
            }
            Thing::File(..) => {
                let over = &taken[self.random.index(taken.len())];
                let is_other = *over != path && matches!(self.there[over], Thing::File(..));
                if is_other && self.random.one_in(3) {
                    let moved = self.client.rename(&path, over).await;
                    if !self.is_done(moved).with_context(|| format!("rename {path} {over}"))? {
                        return Ok(());
                    }
                    self.throw(over)?;
                    let moved = self.there.remove(&path).context("it is there")?;
                    self.there.insert(over.clone(), moved);
                    return Ok(());
                }
                let removed = self.client.unlink(&path).await;
                match self.is_done(removed).with_context(|| format!("unlink {path}"))? {
                    true => self.throw(&path),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether a change was made, and not refused by a full disk.
    fn is_done(&self, changed: client::Result<()>) -> client::Result<bool> {
        Ok(self.world.unless_full(changed)?.is_some())
    }

    async fn make(&mut self, path: String) -> anyhow::Result<()> {
        let depth = path.matches('/').count();
        let thing = if depth <= DEPTH_MAX && self.random.one_in(3) {
            let made = self.client.mkdir(&path, 0o750).await.map(drop);
            if !self.is_done(made).with_context(|| format!("mkdir {path}"))? {
                return Ok(());
            }
            Thing::Directory
        } else {
            let bytes = self.random.bytes(self.random.index(6000));
            let written = self.client.write(&path, &bytes).await;
            let is_whole = self.is_done(written).with_context(|| format!("write {path}"))?;
            match self.client.stat(&path).await {
                Ok(attr) => Thing::File(attr.ino, if is_whole { bytes } else { Vec::new() }),
                Err(Error::Fs(FsError::NotFound)) if !is_whole => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        };
        self.there.insert(path, thing);
        Ok(())
    }

    fn throw(&mut self, path: &str) -> anyhow::Result<()> {
        let thing = self.there.remove(path).context("it is there")?;
        self.world.trace().say(format_args!("thrown away {path} {}", self.thrown.len()));
        self.thrown.push((path.to_owned(), thing));
        Ok(())
    }

    /// A path in some directory, if its random name is free.
    fn free_path(&self) -> Option<String> {
        let is_dir = |(path, thing): (&String, &Thing)| {
            matches!(thing, Thing::Directory).then(|| path.clone())
        };
        let mut dirs: Vec<String> = self.there.iter().filter_map(is_dir).collect();
        dirs.push(self.dir.clone());
        let dir = &dirs[self.random.index(dirs.len())];
        let path = format!("{dir}/{}", self.random.below(NAMES));
        (!self.there.contains_key(&path)).then_some(path)
    }

    fn is_empty(&self, dir: &str) -> bool {
        let below = format!("{dir}/");
        !self.there.keys().any(|path| path.starts_with(&below))
    }

    /// The things in the trash that are from this workload, with their paths in the trash.
    async fn found(&self) -> anyhow::Result<Vec<(String, Thing, String)>> {
        let below = format!("{}/", self.dir);
        let mut found = Vec::new();
        for thrown in trash::all(&self.client).await? {
            self.world.count(|counts| counts.thrown += 1);
            if !thrown.path.starts_with(&below) {
                continue;
            }
            let attr = self.client.lstat(&thrown.at).await?;
            let thing = match attr.kind {
                FileKind::Directory => Thing::Directory,
                _ => Thing::File(attr.ino, self.client.read(&thrown.at).await?.to_vec()),
            };
            found.push((thrown.path, thing, thrown.at));
        }
        Ok(found)
    }

    async fn compare(&mut self) -> anyhow::Result<()> {
        let found = self.found().await?;
        let mut is: Vec<_> = found.into_iter().map(|(path, thing, _)| (path, thing)).collect();
        is.sort();
        self.thrown.sort();
        let short = |all: &[(String, Thing)]| -> Vec<String> {
            let one = |(path, thing): &(String, Thing)| match thing {
                Thing::File(ino, bytes) => format!("{path} {ino} {}", bytes.len()),
                Thing::Directory => path.clone(),
            };
            all.iter().map(one).collect()
        };
        let (should, has) = (short(&self.thrown), short(&is));
        ensure!(is == self.thrown, "in the trash is {has:?}, but should be {should:?}");
        Ok(())
    }

    /// Puts everything back, directories before what was in them.
    async fn put_back(&mut self) -> anyhow::Result<()> {
        let mut found = self.found().await?;
        found.sort();
        for (path, thing, at) in found {
            let done = loop {
                let done = self.client.rename_with(&at, &path, RenameMode::NoReplace).await;
                match self.world.unless_full(done) {
                    Ok(None) => self.world.wait(PAUSE).await,
                    done => break done,
                }
            };
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            let has_place = above == self.dir || self.there.get(above) == Some(&Thing::Directory);
            match done {
                Ok(_) => {
                    ensure!(has_place, "{path} is back, where nothing was");
                    ensure!(!self.there.contains_key(&path), "{path} has replaced something");
                    self.there.insert(path, thing);
                }
                Err(Error::Fs(FsError::Exists)) => {
                    ensure!(self.there.contains_key(&path), "{path} is not there");
                }
                Err(Error::Fs(FsError::NotFound | FsError::NotDirectory)) => {
                    ensure!(!has_place, "{path} does not come back to where it was");
                }
                Err(error) => return Err(error).with_context(|| format!("put back {path}")),
            }
        }
        for (path, thing) in &self.there {
            let attr = self.client.lstat(path).await.with_context(|| path.clone())?;
            match thing {
                Thing::Directory => ensure!(attr.kind == FileKind::Directory, "{path}"),
                Thing::File(ino, bytes) => {
                    let is = self.client.read(path).await.with_context(|| path.clone())?;
                    ensure!(attr.ino == *ino && is == bytes[..], "{path} is not what it was");
                }
            }
        }
        Ok(())
    }
}
