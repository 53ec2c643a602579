//! Load from native clients: each worker is alone in its directory and knows what must be there.

use std::{collections::BTreeMap, future::Future};

use client::{Client, OpenOptions};
use futures::future::join_all;
use lab::sim::random::SimRandom;
use wire::RenameMode;

use crate::Over;

const WORKERS: u64 = 8;
/// Number of things that a worker has at most.
const THINGS_MAX: usize = 60;

/// Things by name: `None` for a directory, its contents for a file.
type Things = BTreeMap<String, Option<Vec<u8>>>;

struct Worker {
    client: Client,
    random: SimRandom,
    dir: String,
    things: Things,
    made: u64,
}

/// Works until it is over, then checks; returns the number of operations that were answered.
pub(crate) fn load(clients: &[Client], over: &Over) -> impl Future<Output = u64> {
    let workers = clients.iter().enumerate().flat_map(|(number, client)| {
        (0..WORKERS).map(move |worker| work(client.clone(), format!("/{number}-{worker}"), over))
    });
    let all = join_all(workers.collect::<Vec<_>>());
    async { all.await.into_iter().sum() }
}

async fn work(client: Client, dir: String, over: &Over) -> u64 {
    client.mkdir(&dir, 0o755).await.expect("a new name");
    let seed = dir.bytes().fold(0, |seed, byte| seed * 31 + u64::from(byte));
    let random = SimRandom::new(seed);
    let mut worker = Worker { client, random, dir, things: Things::new(), made: 0 };
    let mut operations = 0;
    while !over.is_over() {
        worker.step().await;
        operations += 1;
    }
    worker.check().await;
    operations
}

impl Worker {
    /// Does one operation, which can succeed exactly once.
    async fn step(&mut self) {
        let names: Vec<String> = self.things.keys().cloned().collect();
        let choice = self.random.below(10);
        if names.is_empty() || names.len() < THINGS_MAX && choice < 4 {
            return self.make().await;
        }
        let name = names[self.random.index(names.len())].clone();
        let path = self.path(&name);
        let thing = self.things.remove(&name).expect("it is there");
        match (choice, &thing) {
            (0..=5, None) => self.client.rmdir(&path).await.expect("it is there, and empty"),
            (0..=5, Some(_)) => self.client.unlink(&path).await.expect("it is there"),
            (6, Some(bytes)) => {
                let found = self.client.read(&path).await.expect("it is there");
                assert!(found == bytes[..], "{path} has other contents");
                self.things.insert(name, thing);
            }
            (_, _) => {
                let new = self.fresh();
                let to = self.path(&new);
                let moved = self.client.rename_with(&path, to, RenameMode::NoReplace).await;
                moved.expect("it is there, and the new name is free");
                self.things.insert(new, thing);
            }
        }
    }

    async fn make(&mut self) {
        let name = self.fresh();
        let path = self.path(&name);
        let thing = if self.random.one_in(4) {
            self.client.mkdir(&path, 0o755).await.expect("a new name");
            None
        } else {
            let len = self.random.pick(&[0, 100, 3000, 20_000]);
            let bytes = self.random.bytes(len);
            let options = OpenOptions::both().create_new(0o644);
            let file = self.client.open_with(&path, options).await.expect("a new name");
            file.write_at(0, &bytes).await.expect("it is open");
            file.close().await.expect("it is open");
            Some(bytes)
        };
        self.things.insert(name, thing);
    }

    async fn check(&self) {
        let listing = self.client.read_dir(&self.dir).await.expect("it is there");
        let entries = listing.all().await.expect("it is there");
        let names: Vec<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
        assert_eq!(names.len(), self.things.len(), "{}: {names:?}", self.dir);
        for (name, thing) in &self.things {
            let path = self.path(name);
            match thing {
                None => assert_eq!(self.client.stat(&path).await.expect("it is there").size, 0),
                Some(bytes) => {
                    let found = self.client.read(&path).await.expect("it is there");
                    assert!(found == bytes[..], "{path} has other contents");
                }
            }
        }
    }

    fn fresh(&mut self) -> String {
        self.made += 1;
        self.made.to_string()
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}
