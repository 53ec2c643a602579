//! Power cuts: everything that was stable in a directory is still there, with the directory and all
//! directories above it, on any servers. If some of these were lost before it was made, it is in
//! `/lost+found`.

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
    /// Stable files: their paths and contents.
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
            let cuts = below.world.happened().power_cuts;
            match below.deepen(round).await {
                Ok(()) => {}
                // A power cut has lost a directory above, or a removal.
                Err(Error::Fs(FsError::NotFound | FsError::Stale | FsError::Exists))
                    if below.world.happened().power_cuts != cuts => {}
                // A loss in this round or an earlier one is reported once.
                Err(Error::Fs(FsError::Io)) if below.world.happened().power_cuts > 0 => {}
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
            // A new client, which has nothing in its caches.
            let machine = below.world.connect("looks").await?;
            below.client = machine.client.clone();
            let compared = below.compare().await;
            machine.close().await?;
            match compared {
                // Another power cut took the access time of a file that was read.
                Err(error) if matches!(error.downcast_ref(), Some(Error::SessionLost)) => {}
                compared => return compared,
            }
        }
    })
}

impl Below {
    /// Makes some directories, each in the one before, and a stable file in the last. Sometimes the
    /// last directory is moved, or is removed and made anew.
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
        // A stable file that moves to a directory that is not stable yet must be in one of the two
        // places.
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
