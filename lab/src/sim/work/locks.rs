//! Locks: several clients increment a counter in one file, each time under a lock.
//!
//! At most one client has the lock, so no increment is lost, whatever happens to the server, to
//! connections and to sessions. A client whose session is lost may have incremented or not; then
//! the result may be one more.
//!
//! Where a power cut may lose answered changes, increments are sure once a sync of their client has
//! succeeded. Those before a failed sync are unsure.

use std::{cell::Cell, mem::take, rc::Rc, time::Duration};

use anyhow::{Context as _, ensure};
use base::{ByteRange, FsError, LockKind, LockMode};
use client::{Client, Error, File, OpenOptions};
use futures::future::try_join_all;
use tokio::time::timeout;

use crate::sim::{random::SimRandom, world::World};

const CLIENTS: usize = 3;
const ROUNDS: u64 = 15;
/// Time limit of a lock request. While the server dies more often than once a lease and a client is
/// gone for good, no lock is granted.
const PATIENCE: Duration = Duration::from_secs(20);
const COUNTER: ByteRange = ByteRange { first: 0, last: 7 };

struct Locks {
    world: World,
    path: String,
    kind: LockKind,
    /// Increments that surely happened, and those that may have.
    sure: Cell<u64>,
    unsure: Cell<u64>,
    /// The client that was last granted the lock and has not released it.
    holder: Cell<Option<usize>>,
}

/// One of the clients that increment.
struct Counter {
    locks: Rc<Locks>,
    client: Client,
    random: SimRandom,
    number: usize,
}

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let machines = world.connect_all("locks", CLIENTS).await?;
    let path = format!("/locks-{number}");
    let random = world.random(&path);
    machines[0].client.write(&path, &0u64.to_le_bytes()).await?;
    let locks = Rc::new(Locks {
        world: world.clone(),
        path,
        kind: random.pick(&[LockKind::Range, LockKind::Whole]),
        sure: Cell::new(0),
        unsure: Cell::new(0),
        holder: Cell::new(None),
    });
    Ok(async move {
        let runs = machines.iter().enumerate().map(|(number, machine)| {
            let random = locks.world.random(&format!("{} {number}", locks.path));
            Counter { locks: Rc::clone(&locks), client: machine.client.clone(), random, number }
        });
        try_join_all(runs.map(Counter::run)).await?;
        let found = machines[0].client.read(&locks.path).await?;
        let (found, sure, unsure) = (count(&found)?, locks.sure.get(), locks.unsure.get());
        ensure!(
            (sure..=sure + unsure).contains(&found),
            "counted to {found}, not to {sure} and at most {unsure} more"
        );
        locks.world.count(|counts| counts.locks += sure);
        for machine in machines {
            machine.close().await?;
        }
        Ok(())
    })
}

fn count(bytes: &[u8]) -> anyhow::Result<u64> {
    Ok(u64::from_le_bytes(bytes.try_into().context("a counter has eight bytes")?))
}

impl Counter {
    async fn run(self) -> anyhow::Result<()> {
        let Counter { locks, client, random, number } = &self;
        let (mut file, mut unsynced) = (None, 0);
        let lossy = locks.world.plan().is_lossy();
        let add = |to: &Cell<u64>, count| to.set(to.get() + count);
        for _ in 0..ROUNDS {
            let open = match file.take() {
                Some(file) => file,
                None => client.open_with(&locks.path, OpenOptions::both()).await?,
            };
            let counted = self.round(&open).await;
            if locks.holder.get() == Some(*number) {
                locks.holder.set(None);
            }
            match counted {
                Ok(false) => locks.world.count(|counts| counts.locks_late += 1),
                Ok(true) => {
                    if lossy {
                        unsynced += 1;
                    } else {
                        add(&locks.sure, 1);
                    }
                    file = Some(open).filter(|_| !random.one_in(4));
                }
                // The next round opens the file anew.
                Err(Error::SessionLost) => add(&locks.unsure, 1 + take(&mut unsynced)),
                Err(Error::Fs(FsError::Io)) if lossy => {
                    add(&locks.unsure, 1 + take(&mut unsynced));
                }
                Err(error) => return Err(error.into()),
            }
            if lossy && random.one_in(4) {
                self.sync(take(&mut unsynced)).await?;
            }
            locks.world.count(|counts| counts.operations += 1);
            locks.world.wait(random.ms(0..40)).await;
        }
        if lossy {
            self.sync(unsynced).await?;
        }
        Ok(())
    }

    /// Syncs, and counts `unsynced` increments as sure, or as unsure if the sync fails.
    async fn sync(&self, unsynced: u64) -> anyhow::Result<()> {
        let Locks { sure, unsure, .. } = &*self.locks;
        let to = match self.client.sync().await {
            Ok(()) => sure,
            Err(Error::SessionLost | Error::Fs(FsError::Io)) => unsure,
            Err(error) => return Err(error.into()),
        };
        to.set(to.get() + unsynced);
        Ok(())
    }

    /// Increments once. `false` when the lock was not granted in time. The file must not be used
    /// again then: the lock is given up in the background.
    async fn round(&self, file: &File) -> Result<bool, Error> {
        let Counter { locks, random, number, .. } = self;
        let awaited = locks.holder.get().is_some();
        let lock = async {
            match locks.kind {
                LockKind::Range => file.lock_range(COUNTER, LockMode::Exclusive).await,
                LockKind::Whole => file.lock(LockMode::Exclusive).await,
            }
        };
        match timeout(PATIENCE, lock).await {
            Ok(locked) => locked?,
            Err(_) => return Ok(false),
        }
        locks.holder.set(Some(*number));
        locks.world.count(|counts| counts.locks_awaited += u64::from(awaited));
        let bytes = file.read_at(0, 8).await?;
        let counted = <[u8; 8]>::try_from(&bytes[..]).map_or(u64::MAX / 2, u64::from_le_bytes);
        locks.world.trace().say(format_args!("{} has {counted}", locks.path));
        locks.world.wait(random.ms(0..100)).await;
        file.write_at(0, &(counted + 1).to_le_bytes()).await?;
        if random.one_in(2) {
            file.flush().await?;
        }
        match locks.kind {
            LockKind::Range => file.unlock_range(COUNTER).await?,
            LockKind::Whole => file.unlock().await?,
        }
        // A write that could not be stored is reported once, here.
        file.flush().await?;
        Ok(true)
    }
}
