//! Loops: directories are moved below each other at the same time, in a ring. Each of these renames
//! alone is sound. Together they would leave a loop that is not reachable from the root. So one of
//! them must fail, and all directories stay in the tree.
//!
//! The clients rename by handle, as a kernel does that has looked the directories up long ago. So
//! only the rename itself checks the ancestors.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};
use base::{Cred, EntryName, FsError};
use client::{Client, Error, FileSystem};
use futures::future::join_all;
use wire::{DirRef, NodeRef, RenameMode};

use crate::sim::{
    random::SimRandom,
    world::{Machine, World},
};

const RINGS: u64 = 10;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Name of the directory in each of [`NAMES`] into which another one is moved.
const WITHIN: &str = "in";

struct Crossed {
    world: World,
    path: String,
    top: DirRef,
    within: Vec<DirRef>,
    machines: Vec<Machine>,
    random: SimRandom,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let path = format!("/crossed-{number}");
    let random = world.random(&path);
    let machines = world.connect_all("crosses", NAMES.len()).await?;
    let client = &machines[0].client;
    let top = make(client, &path).await?;
    world.divide(client, &path).await?;
    let mut within = Vec::new();
    for name in NAMES {
        make(client, &format!("{path}/{name}")).await?;
        within.push(make(client, &format!("{path}/{name}/{WITHIN}")).await?);
    }
    let crossed = Crossed { world: world.clone(), path, top, within, machines, random };
    Ok(async move {
        for _ in 0..RINGS {
            crossed.ring().await?;
            crossed.check().await?;
        }
        for machine in crossed.machines {
            machine.close().await?;
        }
        Ok(())
    })
}

async fn make(client: &Client, path: &str) -> anyhow::Result<DirRef> {
    client.mkdir(path, 0o755).await?;
    match client.resolve(path).await? {
        NodeRef::Dir(dir) => Ok(dir),
        NodeRef::File(file) => bail!("{path} is {file:?}"),
    }
}

impl Crossed {
    /// Moves each of two or three directories below the next one, at once.
    async fn ring(&self) -> anyhow::Result<()> {
        let many = 2 + self.random.index(NAMES.len() - 1);
        let moves = (0..many).map(|place| {
            let late = self.random.ms(0..20);
            async move {
                self.world.wait(late).await;
                let to = &self.within[(place + 1) % many];
                match self.rename(&self.machines[place].client, place, &self.top, to).await {
                    Ok(()) => Ok(true),
                    Err(Error::Fs(FsError::Invalid)) => Ok(false),
                    Err(error) => Err(error).with_context(|| format!("{} moved", NAMES[place])),
                }
            }
        });
        let moved = join_all(moves).await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let failed = moved.iter().filter(|moved| !**moved).count();
        ensure!(failed == 1, "of a ring of {many} renames {failed} were refused");
        // The directories go back one after the other.
        for place in (0..many).filter(|place| moved[*place]) {
            let from = &self.within[(place + 1) % many];
            let client = &self.machines[place].client;
            let back = self.rename(client, place, from, &self.top).await;
            back.with_context(|| format!("{} moved back", NAMES[place]))?;
        }
        Ok(())
    }

    async fn rename(
        &self,
        client: &Client,
        place: usize,
        from: &DirRef,
        to: &DirRef,
    ) -> Result<(), Error> {
        let name = EntryName::new(NAMES[place].as_bytes()).expect("it is a name");
        let mode = RenameMode::NoReplace;
        let (from_name, to_name) = ((from, &name), (to, &name));
        let renamed = FileSystem::rename(client, &Cred::ROOT, from_name, to_name, mode).await;
        let (path, name) = (&self.path, NAMES[place]);
        self.world
            .trace()
            .say(format_args!("{path}: {name} from {} to {} {renamed:?}", from.ino, to.ino));
        self.world.count(|counts| counts.operations += 1);
        renamed.map(|_| ())
    }

    /// Checks that all directories are back in their places.
    async fn check(&self) -> anyhow::Result<()> {
        let client = &self.machines[self.random.index(self.machines.len())].client;
        let found = client.read_dir(&self.path).await?.all().await?;
        let found: BTreeSet<String> = found.iter().map(|entry| entry.name.to_string()).collect();
        ensure!(found.iter().eq(NAMES.iter()), "{}: only {found:?} are in the tree", self.path);
        Ok(())
    }
}
