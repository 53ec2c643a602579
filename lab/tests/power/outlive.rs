//! Clients on other machines, which live on when the server's machine loses power: what they were
//! told is durable is there, and they are told of what is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use client::{Client, File, OpenOptions};
use lab::{check::tree, power::Left, sim::random::SimRandom};

use super::{LAZY, LEFT, RELAXED, World, connect, runtime};

const WORKERS: u64 = 4;
const CUTS: u64 = 6;
const LIFE_MS: std::ops::Range<u64> = 50..500;
/// More bytes than an entry holds.
const BYTES: usize = 20_000;

impl World {
    /// Cuts the power, and starts the server again.
    fn cut(&mut self, left: Left, options: &[&str]) {
        self.server.kill();
        self.disk.cut(left, &self.random);
        self.start(options).expect("what is left is enough to serve");
    }
}

async fn written(client: &Client, path: &str, bytes: &[u8]) -> client::Result<File> {
    let file = client.open_with(path, OpenOptions::both().create_new(0o644)).await?;
    file.write_at(0, bytes).await?;
    file.flush().await?;
    Ok(file)
}

#[test]
fn a_client_that_outlives_the_cut_is_told_that_something_is_gone() {
    let mut world = World::new(21).unwrap();
    world.start(LAZY).unwrap();
    runtime(2).unwrap().block_on(async {
        let client = connect(&world.server).await.unwrap();
        let bytes = world.random.bytes(BYTES);
        let kept = written(&client, "/kept", &bytes).await.unwrap();
        kept.sync_all().await.unwrap();
        let [synced_later, closed_later] =
            ["/synced", "/closed"].map(|path| written(&client, path, &bytes));
        let (synced_later, closed_later) =
            (synced_later.await.unwrap(), closed_later.await.unwrap());
        client.mkdir("/made", 0o755).await.unwrap();
        world.cut(Left::Nothing, LAZY);

        synced_later.sync_all().await.unwrap_err();
        synced_later.sync_all().await.unwrap();
        closed_later.close().await.unwrap_err();
        kept.sync_all().await.unwrap();
        client.sync().await.unwrap_err();
        client.sync().await.unwrap();
        assert_eq!(client.stats().losses, 1);
        for gone in ["/synced", "/closed", "/made"] {
            client.stat(gone).await.unwrap_err();
        }
        assert_eq!(client.read("/kept").await.unwrap(), bytes);

        // No trace of the loss is left: further work is as before.
        written(&client, "/synced", &bytes).await.unwrap().sync_all().await.unwrap();
        world.cut(Left::Nothing, LAZY);
        client.sync().await.unwrap();
        assert_eq!(client.read("/synced").await.unwrap(), bytes);
        assert_eq!(client.stats().losses, 1);
    });
}

#[test]
fn what_a_client_that_outlives_cuts_was_told_is_durable_is_there() {
    let mut world = World::new(22).unwrap();
    world.start(RELAXED).unwrap();
    runtime(2).unwrap().block_on(async {
        let over = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            let client = connect(&world.server).await.unwrap();
            client.mkdir(format!("/{number}"), 0o755).await.unwrap();
            client.sync().await.unwrap();
            let random = world.random.stream(&number.to_string());
            workers.push(tokio::spawn(work(client, number, random, Arc::clone(&over))));
        }
        for _ in 0..CUTS {
            tokio::time::sleep(world.random.ms(LIFE_MS)).await;
            let left = world.random.pick(&LEFT);
            world.cut(left, RELAXED);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        over.store(true, Ordering::Relaxed);
        let (mut durable, mut losses) = (Vec::new(), 0);
        for worker in workers {
            let (files, lost) = worker.await.unwrap();
            durable.extend(files);
            losses += lost;
        }
        println!("{CUTS} cuts, {} files durable, {losses} losses told", durable.len());
        assert!(!durable.is_empty() && losses > 0);
        let client = connect(&world.server).await.unwrap();
        for (path, bytes) in durable {
            assert_eq!(client.read(&path).await.unwrap(), bytes, "{path}");
        }
        // All existing files can be read, also blocks that were sent before a cut and named after
        // it.
        for number in 0..WORKERS {
            let dir = format!("/{number}");
            for entry in client.read_dir(&dir).await.unwrap().all().await.unwrap() {
                client.read(format!("{dir}/{}", entry.name)).await.unwrap();
            }
        }
        tree::check(&client).await.unwrap();
    });
}

/// Writes files until it is over. Returns files that the server called durable, and the number of
/// losses.
async fn work(
    client: Client,
    number: u64,
    random: SimRandom,
    over: Arc<AtomicBool>,
) -> (Vec<(String, Vec<u8>)>, u64) {
    let mut durable = Vec::new();
    for name in 0_u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let path = format!("/{number}/{name}");
        let bytes = random.bytes(BYTES);
        // The directory is stable, and the name new; so any failure is due to the power.
        let Ok(file) = written(&client, &path, &bytes).await else { continue };
        if random.one_in(3) && file.sync_all().await.is_ok() {
            durable.push((path, bytes));
        }
        // The close reports lost writes, too.
        let _ = file.close().await;
    }
    (durable, client.stats().losses)
}
