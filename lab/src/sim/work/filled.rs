//! Limits: clients make and remove things below a directory whose inodes and bytes are limited, or as
//! a user whose are. The limits are never exceeded, whatever happens. In the end the directory can be
//! filled up to them.

use std::{cell::Cell, collections::BTreeMap, rc::Rc};

use anyhow::{Context as _, ensure};
use base::{Cred, FsError, SetAttr};
use client::{Client, Error, OpenOptions};
use futures::future::try_join_all;

use crate::{
    check::quota::{limit, limit_user},
    sim::{random::SimRandom, world::World},
};

const CLIENTS: usize = 3;
const OPERATIONS: u64 = 50;
/// Directories below the limited one, which stay.
const DIRS: u64 = 3;
/// Files have fewer bytes than this.
const FILE_BYTES: usize = 6000;

/// The user who is limited in every second world.
pub const USER: u32 = 77;

/// The identity of [`USER`].
#[must_use]
pub fn user() -> Cred {
    Cred { uid: USER, gid: USER, groups: Vec::new() }
}

/// The path of the limited directory.
#[must_use]
pub fn path(number: u64) -> String {
    format!("/filled-{number}")
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let (top, beside) = (path(number), format!("/beside-{number}"));
    let random = world.random(&top);
    let machines = world.connect_all("fills", CLIENTS).await?;
    let client = &machines[0].client;
    let max = 1 + DIRS + random.within(4..14);
    for dir in [&top, &beside] {
        client.mkdir(dir, 0o755).await?;
        world.divide(client, dir).await?;
    }
    for dir in 0..DIRS {
        client.mkdir(format!("{top}/{dir}"), 0o755).await?;
    }
    // About as many bytes as the files will have, or fewer.
    let bytes_max = world.random(&format!("{top} bytes")).within(6000..30_000);
    let by_user = world.random("filled by").one_in(2);
    if by_user {
        let own = SetAttr { uid: Some(USER), gid: Some(USER), ..SetAttr::default() };
        for dir in (0..DIRS).map(|dir| format!("{top}/{dir}")).chain([top.clone()]) {
            client.set_attr(&dir, own).await?;
        }
        limit_user(world, client, USER, "entries", max).await?;
        limit_user(world, client, USER, "bytes", bytes_max).await?;
    } else {
        limit(world, client, &top, "entries", max).await?;
        limit(world, client, &top, "bytes", bytes_max).await?;
    }
    let there = Rc::new(Cell::new(Used { inodes: 1 + DIRS, bytes: 0 }));
    let fills = machines.iter().enumerate().map(|(number, machine)| Fills {
        world: world.clone(),
        client: if by_user { machine.client.as_user(user()) } else { machine.client.clone() },
        by_user,
        random: world.random(&format!("{top} by {number}")),
        number,
        top: top.clone(),
        beside: beside.clone(),
        names: BTreeMap::new(),
        made: 0,
        there: there.clone(),
        max: Used { inodes: max, bytes: bytes_max },
    });
    let fills: Vec<Fills> = fills.collect();
    Ok(async move {
        try_join_all(fills.into_iter().map(Fills::run)).await?;
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

/// Place of a file or directory that a client has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Below(u64),
    Beside,
}

/// Usage below the limited directory.
#[derive(Debug, Clone, Copy)]
struct Used {
    inodes: u64,
    bytes: u64,
}

/// A file or directory that a client has made.
#[derive(Debug, Clone, Copy)]
struct Thing {
    place: Place,
    is_dir: bool,
    /// Bytes that are certainly stored.
    bytes: u64,
}

struct Fills {
    world: World,
    client: Client,
    /// Whether the user is limited, wherever he makes something.
    by_user: bool,
    random: SimRandom,
    number: usize,
    top: String,
    beside: String,
    names: BTreeMap<String, Thing>,
    made: u64,
    /// Usage by things that certainly exist: they were made, and their removal has not begun.
    there: Rc<Cell<Used>>,
    max: Used,
}

impl Fills {
    async fn run(mut self) -> anyhow::Result<()> {
        for _ in 0..OPERATIONS {
            let chosen = self.names.keys().nth(self.random.index(self.names.len().max(1))).cloned();
            let done = match (chosen, self.random.below(10)) {
                (None, _) | (_, 0..=5) => self.make().await,
                (Some(name), 6..=7) => self.remove(&name).await,
                (Some(name), _) => self.rename(&name).await,
            };
            match done {
                // A power cut has lost the session.
                Err(error)
                    if self.world.happened().power_cuts > 0
                        && self.world.plan().is_lossy()
                        && matches!(error.downcast_ref(), Some(Error::SessionLost)) =>
                {
                    return Ok(());
                }
                done => done?,
            }
            self.world.count(|counts| counts.operations += 1);
            self.world.wait(self.random.ms(0..40)).await;
        }
        Ok(())
    }

    fn path(&self, name: &str, place: Place) -> String {
        match place {
            Place::Below(dir) => format!("{}/{dir}/{name}", self.top),
            Place::Beside => format!("{}/{name}", self.beside),
        }
    }

    fn place(&self) -> Place {
        if self.random.one_in(6) && !self.by_user {
            Place::Beside
        } else {
            Place::Below(self.random.below(DIRS))
        }
    }

    /// Counts a thing that was made, and checks the limits. Where a power cut may have taken
    /// others, only counts.
    fn counts(&self, thing: Thing, name: &str) -> anyhow::Result<()> {
        if thing.place == Place::Beside {
            return Ok(());
        }
        let Used { inodes, bytes } = self.there.get();
        let there = Used { inodes: inodes + 1, bytes: bytes + thing.bytes };
        self.there.set(there);
        if self.world.plan().is_lossy() {
            return Ok(());
        }
        let passes = |what: &str, there, max| {
            ensure!(
                there <= max,
                "{there} {what} are below {} with {name}, where {max} may be",
                self.top
            );
            Ok(())
        };
        passes("inodes", there.inodes, self.max.inodes)?;
        passes("bytes", there.bytes, self.max.bytes)
    }

    async fn make(&mut self) -> anyhow::Result<()> {
        self.made += 1;
        let (name, place) = (format!("{}-{}", self.number, self.made), self.place());
        let (path, is_dir) = (self.path(&name, place), self.random.one_in(3));
        let made = match is_dir {
            true => self.client.mkdir(&path, 0o755).await.map(|_| 0),
            false => self.make_file(&path, place).await,
        };
        self.world.trace().say(format_args!("{path} made: {made:?}"));
        let bytes = match made {
            Err(Error::Fs(FsError::QuotaExceeded)) if place != Place::Beside => {
                self.world.count(|counts| counts.refused += 1);
                return Ok(());
            }
            made => self.world.unless_full(made).with_context(|| format!("make {path}"))?,
        };
        let Some(bytes) = bytes else { return Ok(()) };
        let thing = Thing { place, is_dir, bytes };
        self.counts(thing, &name)?;
        self.names.insert(name, thing);
        Ok(())
    }

    /// Makes a file. Returns the bytes it has: all, or none where there is no room for its
    /// contents.
    async fn make_file(&self, path: &str, place: Place) -> client::Result<u64> {
        let file = self.client.open_with(path, OpenOptions::both().create_new(0o644)).await?;
        let bytes = self.random.bytes(self.random.index(FILE_BYTES));
        let written = async {
            file.write_at(0, &bytes).await?;
            file.close().await
        };
        match self.world.unless_full(written.await) {
            Ok(Some(())) => Ok(bytes.len() as u64),
            Ok(None) => Ok(0),
            Err(Error::Fs(FsError::QuotaExceeded)) if place != Place::Beside => {
                self.world.count(|counts| counts.refused_contents += 1);
                Ok(0)
            }
            // A power cut has lost the file with its contents, or the session that had it open.
            Err(Error::Fs(FsError::Io | FsError::Stale) | Error::SessionLost)
                if self.world.plan().is_lossy() =>
            {
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    async fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        let thing = self.names.remove(name).expect("it was chosen");
        let path = self.path(name, thing.place);
        self.goes(thing);
        let removed = match thing.is_dir {
            true => self.client.rmdir(&path).await,
            false => self.client.unlink(&path).await,
        };
        self.world.trace().say(format_args!("{path} removed: {removed:?}"));
        match self.world.unless_full(removed) {
            Ok(None) => {
                self.stays(thing);
                self.names.insert(name.to_owned(), thing);
                Ok(())
            }
            removed => self.is_lost(removed.map(drop)).with_context(|| format!("remove {path}")),
        }
    }

    async fn rename(&mut self, name: &str) -> anyhow::Result<()> {
        let thing = self.names[name];
        let (from, to) = (thing.place, self.place());
        let (old, new) = (self.path(name, from), self.path(name, to));
        let crosses = (from == Place::Beside) != (to == Place::Beside);
        if crosses {
            self.goes(thing);
        }
        let renamed = self.client.rename(&old, &new).await;
        self.world.trace().say(format_args!("{old} to {new}: {renamed:?}"));
        match renamed {
            Err(Error::Fs(FsError::QuotaExceeded)) if from == Place::Beside => {
                self.world.count(|counts| counts.refused += 1);
                return Ok(());
            }
            Err(Error::Fs(FsError::NotFound)) if self.world.plan().is_lossy() => {
                self.names.remove(name);
                return Ok(());
            }
            renamed => {
                let renamed = self.world.unless_full(renamed);
                let renamed = renamed.with_context(|| format!("rename {old} to {new}"))?;
                if renamed.is_none() {
                    if crosses {
                        self.stays(thing);
                    }
                    return Ok(());
                }
            }
        }
        let thing = Thing { place: to, ..thing };
        if crosses {
            self.counts(thing, name)?;
        }
        self.names.insert(name.to_owned(), thing);
        Ok(())
    }

    /// Subtracts a thing whose removal begins.
    fn goes(&self, thing: Thing) {
        if thing.place != Place::Beside {
            let Used { inodes, bytes } = self.there.get();
            self.there.set(Used { inodes: inodes - 1, bytes: bytes - thing.bytes });
        }
    }

    /// Adds a thing again whose removal was refused.
    fn stays(&self, thing: Thing) {
        if thing.place != Place::Beside {
            let Used { inodes, bytes } = self.there.get();
            self.there.set(Used { inodes: inodes + 1, bytes: bytes + thing.bytes });
        }
    }

    /// Turns a missing name into success where a power cut may have taken it.
    fn is_lost(&self, removed: client::Result<()>) -> anyhow::Result<()> {
        match removed {
            Err(Error::Fs(FsError::NotFound)) if self.world.plan().is_lossy() => Ok(()),
            removed => Ok(removed?),
        }
    }
}
