//! Power cuts: whatever was stable in a directory is there with it, and with all the directories
//! above it, on whichever servers these are; or in `/lost+found`, if some of these were lost before
//! it was made.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use base::FsError;
use client::{Client, Error, OpenOptions};

use crate::{
    check::rescued,
    sim::{random::SimRandom, world::World},
};

const ROUNDS: u64 = 80;
const DEPTH_MAX: u64 = 4;

struct Below {
    world: World,
    client: Client,
    random: SimRandom,
    dir: String,
    /// What is stable: paths of files, and their contents.
    stable: BTreeMap<String, Vec<u8>>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machine = world.connect("below").await?;
    let dir = format!("/below-{number}");
    machine.client.mkdir(&dir, 0o755).await?;
    machine.client.sync().await?;
    let mut below = Below {
        world: world.clone(),
        client: machine.client.clone(),
        random: world.random(&dir),
        dir,
        stable: BTreeMap::new(),
    };
    Ok(async move {
        for round in 0..ROUNDS {
            let cuts = below.world.counts().power_cuts;
            match below.deepen(round).await {
                Ok(()) => {}
                // What it stood on was lost, or a removal was.
                Err(Error::Fs(FsError::NotFound | FsError::Stale | FsError::Exists))
                    if below.world.counts().power_cuts != cuts => {}
                // Something was, of this or of an earlier round: that is said once.
                Err(Error::Fs(FsError::Io)) if below.world.counts().power_cuts > 0 => {}
                Err(Error::SessionLost) => break,
                Err(error) => return Err(error).with_context(|| format!("{} {round}", below.dir)),
            }
            below.world.count(|counts| counts.operations += 1);
            if below.random.one_in(4) {
                below.world.wait(below.random.ms(0..300)).await;
            }
        }
        machine.close().await?;
        loop {
            // Who has seen nothing of it yet.
            let machine = below.world.connect("looks").await?;
            below.client = machine.client.clone();
            let compared = below.compare().await;
            machine.close().await?;
            match compared {
                // The power was cut once more, and took the time at which a file was read.
                Err(error) if matches!(error.downcast_ref(), Some(Error::SessionLost)) => {}
                compared => return compared,
            }
        }
    })
}

impl Below {
    /// Makes some directories, each in the one before, and a stable file in the last. Now and then
    /// the first are old ones, moved elsewhere, or removed on the way.
    async fn deepen(&mut self, round: u64) -> Result<(), Error> {
        let mut path = format!("{}/{round}", self.dir);
        self.client.mkdir(&path, 0o755).await?;
        for depth in 0..self.random.below(DEPTH_MAX) {
            path = format!("{path}/{depth}");
            self.client.mkdir(&path, 0o755).await?;
        }
        if self.random.one_in(6) {
            let to = format!("{}/moved-{round}", self.dir);
            self.client.rename(&path, &to).await?;
            path = to;
        }
        if self.random.one_in(6) {
            self.client.rmdir(&path).await?;
            self.client.mkdir(&path, 0o755).await?;
        }
        let file = format!("{path}/file");
        let contents = format!("contents {round}").into_bytes();
        // What moves from where it is stable to where nothing is yet is somewhere, at least.
        let moves = self.random.one_in(3);
        let made = if moves { format!("{}/file-{round}", self.dir) } else { file.clone() };
        let open = self.client.open_with(&made, OpenOptions::writing().create_new(0o644)).await?;
        open.write_at(0, &contents).await?;
        open.sync_all().await?;
        open.close().await?;
        self.stable.insert(made.clone(), contents.clone());
        if moves {
            self.stable.remove(&made);
            self.client.rename(&made, &file).await?;
            self.client.sync().await?;
            self.stable.insert(file, contents);
        }
        Ok(())
    }

    async fn compare(&self) -> anyhow::Result<()> {
        let mut all_rescued = None;
        for (path, contents) in &self.stable {
            let found = match self.client.read(path).await {
                Err(Error::Fs(FsError::NotFound)) => {
                    if all_rescued.is_none() {
                        all_rescued =
                            Some(rescued::files(&self.client).await.context("in /lost+found")?);
                    }
                    let is_there = all_rescued.iter().flatten().any(|rescued| rescued == contents);
                    ensure!(is_there, "stable: {path} is nowhere");
                    continue;
                }
                found => found.with_context(|| format!("stable: {path}"))?,
            };
            ensure!(found[..] == contents[..], "stable: {path} has {found:?}");
        }
        Ok(())
    }
}
