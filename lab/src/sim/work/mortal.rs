//! Clients that die: with files open that have no name any more, with contents not sent, in the
//! middle of a request. Their leases end, and nothing of them is left. Each of their operations is
//! done as a whole or not at all.
//!
//! Operations answered before a client died stay done: files that were made have one of the names
//! that they were given last, removed files have none, and flushed or closed files have all of
//! their contents. Where a power cut may lose answered changes, this holds for synced files only.
//! Others are whole or empty, or gone.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use base::FsError;
use client::{Client, Error, OpenOptions};
use tokio::time::timeout;

use crate::sim::{random::SimRandom, world::World};

const LIVES: u64 = 3;
const FILES: u64 = 30;
const BYTES: &[u8] = b"all of it, or none";

/// The allowed outcomes for a file.
#[derive(Debug, Clone)]
struct Fate {
    /// The file has one of these names.
    names: Vec<String>,
    /// Whether the file may have no name.
    may_be_gone: bool,
    /// Whether the file must have its contents.
    is_whole: bool,
    /// Whether the file was synced. Only later changes may be lost then.
    is_synced: bool,
}

struct Mortal {
    world: World,
    dir: String,
    random: SimRandom,
    /// The fates of all files that were requested.
    fates: RefCell<Vec<Fate>>,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let witness = world.connect("witness").await?;
    let dir = format!("/mortal-{number}");
    witness.client.mkdir(&dir, 0o755).await?;
    world.divide(&witness.client, &dir).await?;
    let random = world.random(&dir);
    let mortal = Mortal { world: world.clone(), dir, random, fates: RefCell::default() };
    Ok(async move {
        let Mortal { world, random, .. } = &mortal;
        for life in 0..LIVES {
            let machine = world.connect("mortal").await?;
            // The client dies in the middle of any operation.
            match timeout(random.ms(20..1500), mortal.live(&machine.client, life)).await {
                Ok(Err(error)) if world.plan().is_lossy() && is_lost(&error) => {
                    world.trace().say(format_args!("{} {life} has lost {error}", mortal.dir));
                }
                Ok(ended) => ended.context("life")?,
                Err(_) => world.trace().note("in the middle", &[life]),
            }
            machine.die(random.one_in(2));
            world.wait(random.ms(0..200)).await;
        }
        mortal.check(&witness.client).await?;
        witness.close().await
    })
}

/// Whether a power cut may be the cause: it took a file, or the session.
fn is_lost(error: &Error) -> bool {
    matches!(
        error,
        Error::SessionLost | Error::Fs(FsError::NotFound | FsError::Io | FsError::Stale)
    )
}

impl Mortal {
    async fn live(&self, client: &Client, life: u64) -> client::Result<()> {
        let mut held = Vec::new();
        for number in 0..FILES {
            let name = format!("{life}-{number}");
            let path = format!("{}/{name}", self.dir);
            let fate = Fate {
                names: vec![name.clone()],
                may_be_gone: true,
                is_whole: false,
                is_synced: false,
            };
            let index = self.fates.borrow().len();
            self.fates.borrow_mut().push(fate);
            let note = |change: fn(&mut Fate)| change(&mut self.fates.borrow_mut()[index]);
            let file = client.open_with(&path, OpenOptions::both().create_new(0o644)).await?;
            note(|fate| fate.may_be_gone = false);
            file.write_at(0, BYTES).await?;
            let choice = self.random.below(4);
            if self.world.plan().is_lossy() && choice != 1 && self.random.one_in(2) {
                file.sync_all().await?;
                note(|fate| (fate.is_whole, fate.is_synced) = (true, true));
            }
            match choice {
                0 => {
                    file.close().await?;
                    note(|fate| fate.is_whole = true);
                }
                1 => {
                    note(|fate| fate.may_be_gone = true);
                    client.unlink(&path).await?;
                    note(|fate| fate.names.clear());
                    held.push(file);
                }
                2 => {
                    file.flush().await?;
                    let moved = format!("{name}-moved");
                    self.fates.borrow_mut()[index].names.push(moved);
                    note(|fate| fate.is_whole = true);
                    client.rename(&path, format!("{path}-moved")).await?;
                    note(|fate| drop(fate.names.remove(0)));
                    held.push(file);
                }
                _ => held.push(file),
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(())
    }

    async fn check(&self, client: &Client) -> anyhow::Result<()> {
        let (mut found, cuts) = (BTreeMap::new(), self.world.happened().power_cuts);
        loop {
            let entries = client.read_dir(&self.dir).await?.all().await?;
            // The last request of a client may outlive it. A listing beside a rename over two
            // partitions may show neither name; the one after it shows the new name.
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                let name = entry.name.to_string();
                match take(client, &format!("{}/{name}", self.dir)).await {
                    Ok(bytes) => drop(found.insert(name, bytes)),
                    Err(Error::Fs(FsError::NotFound)) => {}
                    Err(error) => return Err(error).context(name),
                }
            }
        }
        // A cut may take back a removal and the rename before it.
        let names_max = if self.world.happened().power_cuts == cuts { 1 } else { 2 };
        for fate in &*self.fates.borrow() {
            self.compare(fate, names_max, &mut found).with_context(|| format!("{fate:?}"))?;
        }
        // A power cut may have lost the removal, or the new name.
        ensure!(found.is_empty() || self.world.plan().is_lossy(), "there are also {found:?}");
        Ok(())
    }

    /// Checks what is left of a file, and removes that from `found`.
    fn compare(
        &self,
        fate: &Fate,
        names_max: usize,
        found: &mut BTreeMap<String, Vec<u8>>,
    ) -> anyhow::Result<()> {
        let lossy = self.world.plan().is_lossy();
        let mut names: BTreeSet<&str> = fate.names.iter().map(String::as_str).collect();
        if lossy {
            // The file may have its first name again.
            names.extend(fate.names.iter().filter_map(|name| name.strip_suffix("-moved")));
        }
        let left: Vec<_> = names.into_iter().filter_map(|name| found.remove(name)).collect();
        ensure!(left.len() <= names_max, "it has {} names", left.len());
        let may_be_gone = fate.may_be_gone || lossy && !fate.is_synced;
        let Some(bytes) = left.first() else {
            ensure!(may_be_gone || fate.names.is_empty(), "it has no name");
            return Ok(());
        };
        let may_be_empty = !fate.is_whole || lossy && !fate.is_synced;
        ensure!(bytes == BYTES || bytes.is_empty() && may_be_empty, "it has {} bytes", bytes.len());
        Ok(())
    }
}

/// Removes a file. Returns its contents.
async fn take(client: &Client, path: &str) -> client::Result<Vec<u8>> {
    let bytes = client.read(path).await?;
    client.unlink(path).await?;
    Ok(bytes.to_vec())
}
