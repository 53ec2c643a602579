//! Locks: several clients count in one file, each under a lock.
//!
//! At most one client has the lock: so no count is lost, whatever happens to the server, to connections and to
//! sessions. A client whose session is gone may have counted or not; then the result may be one more.

use std::{cell::Cell, rc::Rc, time::Duration};

use anyhow::{Context as _, ensure};
use base::{ByteRange, LockKind, LockMode};
use client::{Client, Error, File, OpenOptions};
use futures::future::try_join_all;
use tokio::time::timeout;

use crate::sim::{random::SimRandom, world::World};

const CLIENTS: usize = 3;
const ROUNDS: u64 = 15;
/// While the server dies more often than a lease is long, and a client is gone for good, nobody is given a lock.
const PATIENCE: Duration = Duration::from_secs(20);
const COUNTER: ByteRange = ByteRange { first: 0, last: 7 };

struct Locks {
    world: World,
    path: String,
    kind: LockKind,
    /// Counts that surely happened, and those that may have.
    sure: Cell<u64>,
    unsure: Cell<u64>,
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
    });
    Ok(async move {
        let runs = machines.iter().enumerate().map(|(number, machine)| {
            let random = locks.world.random(&format!("{} {number}", locks.path));
            Rc::clone(&locks).run(machine.client.clone(), random)
        });
        try_join_all(runs).await?;
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

impl Locks {
    async fn run(self: Rc<Self>, client: Client, random: SimRandom) -> anyhow::Result<()> {
        let mut file = None;
        for _ in 0..ROUNDS {
            let open = match file.take() {
                Some(file) => file,
                None => client.open_with(&self.path, OpenOptions::both()).await?,
            };
            match self.round(&open, &random).await {
                Ok(false) => {}
                Ok(true) => {
                    self.sure.set(self.sure.get() + 1);
                    file = Some(open).filter(|_| !random.one_in(4));
                }
                // Opened anew in the next round.
                Err(Error::SessionLost) => self.unsure.set(self.unsure.get() + 1),
                Err(error) => return Err(error.into()),
            }
            self.world.count(|counts| counts.operations += 1);
            self.world.wait(random.ms(0..40)).await;
        }
        Ok(())
    }

    /// Counts once; `false` when it was not given the lock in time. Then the file is not used again: the lock is
    /// given up in the background.
    async fn round(&self, file: &File, random: &SimRandom) -> Result<bool, Error> {
        let lock = async {
            match self.kind {
                LockKind::Range => file.lock_range(COUNTER, LockMode::Exclusive).await,
                LockKind::Whole => file.lock(LockMode::Exclusive).await,
            }
        };
        match timeout(PATIENCE, lock).await {
            Ok(locked) => locked?,
            Err(_) => return Ok(false),
        }
        let bytes = file.read_at(0, 8).await?;
        let counted = <[u8; 8]>::try_from(&bytes[..]).map_or(u64::MAX / 2, u64::from_le_bytes);
        self.world.trace().say(format_args!("{} has {counted}", self.path));
        self.world.wait(random.ms(0..100)).await;
        file.write_at(0, &(counted + 1).to_le_bytes()).await?;
        if random.one_in(2) {
            file.flush().await?;
        }
        match self.kind {
            LockKind::Range => file.unlock_range(COUNTER).await?,
            LockKind::Whole => file.unlock().await?,
        }
        // What was written and could not be stored is told once.
        file.flush().await?;
        Ok(true)
    }
}
