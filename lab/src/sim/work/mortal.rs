//! Clients that die: with files open that have no name any more, with contents not sent, in the middle of a
//! request. Their leases end, and nothing of them is left; what they did is there as a whole or not at all.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use base::FsError;
use client::{Client, Error, OpenOptions};
use tokio::time::timeout;

use crate::sim::{random::SimRandom, world::World};

const LIVES: u64 = 3;
const BYTES: &[u8] = b"all of it, or none";

pub(super) async fn set_up(
    world: &World,
    number: u64,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + 'static> {
    let witness = world.connect("witness").await?;
    let dir = format!("/mortal-{number}");
    witness.client.mkdir(&dir, 0o755).await?;
    world.divide(&witness.client, &dir).await?;
    let random = world.random(&dir);
    let world = world.clone();
    Ok(async move {
        for life in 0..LIVES {
            let machine = world.connect("mortal").await?;
            let living = live(&machine.client, &dir, life, &random);
            // It dies in the middle of what it does, whatever that is.
            match timeout(random.ms(20..1500), living).await {
                Ok(ended) => ended.context("life")?,
                Err(_) => world.trace().note("in the middle", &[life]),
            }
            machine.die(random.one_in(2));
            world.wait(random.ms(0..200)).await;
        }
        check(&witness.client, &dir).await?;
        witness.close().await
    })
}

async fn live(client: &Client, dir: &str, life: u64, random: &SimRandom) -> anyhow::Result<()> {
    let mut held = Vec::new();
    for name in 0..30 {
        let path = format!("{dir}/{life}-{name}");
        let file = client.open_with(&path, OpenOptions::both().create_new(0o644)).await?;
        file.write_at(0, BYTES).await?;
        match random.below(4) {
            0 => file.close().await?,
            1 => {
                client.unlink(&path).await?;
                held.push(file);
            }
            2 => {
                file.flush().await?;
                client.rename(&path, format!("{path}-moved")).await?;
                held.push(file);
            }
            _ => held.push(file),
        }
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}

async fn check(client: &Client, dir: &str) -> anyhow::Result<()> {
    loop {
        let mut moved = false;
        for entry in client.read_dir(dir).await?.all().await? {
            let path = format!("{dir}/{}", entry.name);
            match look(client, &path).await {
                // What a client did last may take longer than it lived: a rename over two servers.
                Err(Error::Fs(FsError::NotFound)) => moved = true,
                looked => looked.with_context(|| path)??,
            }
        }
        if !moved {
            return Ok(());
        }
    }
}

/// Removes a file; what is wrong with it.
async fn look(client: &Client, path: &str) -> client::Result<anyhow::Result<()>> {
    let bytes = client.read(path).await?;
    if !bytes.is_empty() && bytes != BYTES {
        return Ok(Err(anyhow!("it has {} bytes", bytes.len())));
    }
    client.unlink(path).await.map(Ok)
}
