//! Load with a record of every step: each worker is alone in its directory, and each step is one
//! change that happens whole or not at all.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use client::{Client, OpenOptions};
use futures::future::join_all;
use lab::sim::random::SimRandom;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use wire::RenameMode;

use crate::history::{History, Lane, Step, Thing};

const WORKERS: u64 = 6;
/// Number of things that a worker has at most.
const THINGS_MAX: usize = 30;

/// Workers at work.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    dir: String,
    lanes: Vec<Arc<Mutex<Lane>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Makes `dir`, stable, and starts workers in it, all clients of one connection.
pub(crate) async fn start(
    client: impl Future<Output = anyhow::Result<Client>>,
    dir: &str,
    random: &SimRandom,
) -> anyhow::Result<Load> {
    let client = client.await?;
    client.mkdir(dir, 0o755).await?;
    let over = Arc::new(AtomicBool::new(false));
    let (mut lanes, mut tasks) = (Vec::new(), Vec::new());
    for number in 0..WORKERS {
        let dir = format!("{dir}/{number}");
        client.mkdir(&dir, 0o755).await?;
        let lane = Arc::new(Mutex::new(Lane::default()));
        lanes.push(Arc::clone(&lane));
        let random = random.stream(&dir);
        let worker = Worker { client: client.clone(), dir, lane, random };
        tasks.push((worker, Arc::clone(&over)));
    }
    client.sync().await?;
    let tasks = tasks.into_iter().map(|(worker, over)| tokio::spawn(worker.work(over))).collect();
    Ok(Load { over, dir: dir.to_owned(), lanes, tasks: Mutex::new(tasks) })
}

impl Load {
    /// Begins no new steps; returns when all are answered.
    pub(crate) async fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for ended in join_all(tasks).await {
            ended.expect("a worker does not panic");
        }
    }

    /// History of all steps up to now.
    pub(crate) fn history(self) -> History {
        let lanes = self.lanes.iter().map(|lane| lane.lock().clone()).collect();
        History::new(self.dir, lanes)
    }
}

struct Worker {
    client: Client,
    dir: String,
    lane: Arc<Mutex<Lane>>,
    random: SimRandom,
}

impl Worker {
    async fn work(self, over: Arc<AtomicBool>) {
        let mut made = 0;
        while !over.load(Ordering::Relaxed) {
            let choice = self.random.below(12);
            let things = self.lane.lock().state();
            let name = things.keys().nth(self.random.index(things.len().max(1))).cloned();
            match name {
                Some(name) if choice > 5 || things.len() == THINGS_MAX => {
                    self.change(choice, name, &things, &mut made).await;
                }
                Some(_) | None => Box::pin(self.make(&mut made)).await,
            }
        }
    }

    async fn make(&self, made: &mut u64) {
        *made += 1;
        let name = made.to_string();
        let path = self.path(&name);
        if self.random.one_in(4) {
            let made = Box::pin(self.client.mkdir(&path, 0o755));
            self.step(Step::Put(name, Thing::Directory), made).await;
            return;
        }
        let len = self.random.pick(&[0, 100, 3000, 20_000]);
        let bytes = self.random.bytes(len);
        let options = OpenOptions::both().create_new(0o644);
        let empty = Step::Put(name.clone(), Thing::File(Vec::new()));
        let file = self.step(empty, self.client.open_with(&path, options)).await;
        if len > 0 {
            let full = Step::Put(name, Thing::File(bytes.clone()));
            let written = async {
                file.write_at(0, &bytes).await?;
                file.flush().await
            };
            self.step(full, written).await;
        }
        if self.random.one_in(4) {
            let before = self.lane.lock().answered();
            file.sync_all().await.expect("it is open");
            self.lane.lock().synced(before);
        }
        file.close().await.expect("it is open");
    }

    async fn change(
        &self,
        choice: u64,
        name: String,
        things: &crate::history::Things,
        made: &mut u64,
    ) {
        let path = self.path(&name);
        match (choice, &things[&name]) {
            (0..=8, Thing::Directory) => {
                self.step(Step::Remove(name), self.client.rmdir(&path)).await
            }
            (0..=8, Thing::File(_)) => {
                self.step(Step::Remove(name), self.client.unlink(&path)).await
            }
            (_, _) => {
                *made += 1;
                let new = made.to_string();
                let to = self.path(&new);
                let moved = self.client.rename_with(&path, to, RenameMode::NoReplace);
                self.step(Step::Move(name, new), moved).await;
            }
        }
    }

    /// Does one step, recorded before and after.
    async fn step<T>(&self, step: Step, done: impl Future<Output = client::Result<T>>) -> T {
        let number = self.lane.lock().start(step);
        let done = done.await.expect("nothing is in its way");
        self.lane.lock().answer(number);
        done
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}
