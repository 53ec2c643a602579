//! Power cuts: a real server on a disk that forgets what was not synced (`lab::power`). The power
//! fails at any moment, for the server and its clients. Then the server is started again: what must
//! be there is there, and the rest is gone in whole operations, in order.
//!
//! The tests prove that these checks find errors with disks that answer an fsync without doing it.
//! The server, its blocks or RocksDB would look like that if they left one out.
//!
//! Needs the built program (`cargo build --workspace --bins`), `/dev/fuse` and root.
#![expect(clippy::print_stdout, reason = "how much was cut is a part of the result")]

mod history;
mod outlive;
mod work;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, bail, ensure};
use base::{Clock as _, Cred};
use client::{Client, Config, SystemClock};
use fuse::Timespec;
use lab::{
    check::tree,
    power::{Left, Lie, PowerDisk},
    process::Server,
    sim::random::SimRandom,
};
use store::{RocksConfig, RocksEngine};
use tempfile::TempDir;

use history::{Demand, History};

/// Writes are on stable storage after the commit interval (20 ms); the test waits no longer for it.
const STABLE: Duration = Duration::from_secs(60);
/// Duration of the load before a cut.
const LOAD_MS: std::ops::Range<u64> = 100..1500;

const STRICT: &[&str] = &["--durability", "strict"];
const RELAXED: &[&str] = &["--durability", "relaxed", "--commit-interval", "20ms"];
/// Options with which the server syncs only on request.
const LAZY: &[&str] = &["--durability", "relaxed", "--commit-interval", "1m"];

/// States that a cut may leave. The last is a log that reached the disk before the blocks that it
/// names.
const LEFT: [Left; 3] = [Left::Nothing, Left::Some, Left::FilesNamed(".log")];

/// Moment of a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// At any time under load.
    Any,
    /// When all writes have become stable by themselves.
    Settled,
}

/// A server on a disk, through several cuts.
struct World {
    server: Server,
    disk: PowerDisk,
    random: SimRandom,
    histories: Vec<History>,
    /// Action on the data after a cut.
    before_start: fn(&Path) -> anyhow::Result<()>,
    // The folder is removed last.
    _folder: TempDir,
}

impl World {
    fn new(seed: u64) -> anyhow::Result<World> {
        let folder = tempfile::Builder::new().prefix("pando-power.").tempdir()?;
        let disk = PowerDisk::mount(folder.path(), || {
            let now = SystemClock.now();
            Timespec { secs: now.sec, nanos: now.nsec }
        })?;
        let server = Server::format(&disk.path().join("data"));
        let random = SimRandom::new(seed);
        let before_start = |_: &Path| Ok(());
        Ok(World { server, disk, random, histories: Vec::new(), before_start, _folder: folder })
    }

    /// Serves, works, cuts, serves again and checks.
    fn round(&mut self, options: &[&str], demand: Demand, moment: Moment) -> anyhow::Result<u64> {
        self.start(options)?;
        let dir = format!("/round-{}", self.histories.len());
        let runtime = runtime(2)?;
        let load = runtime.block_on(work::start(connect(&self.server), &dir, &self.random))?;
        let time = self.random.ms(LOAD_MS);
        runtime.block_on(async {
            tokio::time::sleep(time).await;
            if moment == Moment::Settled {
                load.end().await;
                self.settle().await?;
            }
            anyhow::Ok(())
        })?;
        self.server.kill();
        // Clients lose power too, with all unfinished work.
        runtime.shutdown_background();
        let history = load.history();
        let left = self.random.pick(&LEFT);
        self.disk.cut(left, &self.random);
        let steps = history.answered();

        (self.before_start)(&self.disk.path().join("data"))?;
        self.start(options)?;
        let checked = runtime_block(self.check(history, demand));
        self.server.kill();
        self.histories
            .push(checked.with_context(|| format!("{left:?} was left of {steps} steps"))?);
        Ok(steps)
    }

    fn start(&mut self, options: &[&str]) -> anyhow::Result<()> {
        match self.server.try_start(options) {
            Ok(()) => Ok(()),
            Err(status) => bail!("the server does not start: {status}"),
        }
    }

    async fn settle(&self) -> anyhow::Result<()> {
        let stable = async {
            // A log that is stable may name blocks that the next sync makes stable, and is cut
            // behind these.
            while !self.disk.is_stable(".log") || !self.disk.is_stable_below("blocks") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(STABLE, stable).await;
        waited.context("what was written does not become stable by itself")
    }

    /// Checks this round's directory and those of all earlier rounds, then the whole file system.
    async fn check(&self, mut history: History, demand: Demand) -> anyhow::Result<History> {
        let client = connect(&self.server).await?;
        history.check(&client, demand).await?;
        for (round, earlier) in self.histories.iter().enumerate() {
            let same = earlier.check_same(&client).await;
            same.with_context(|| format!("what round {round} left has changed"))?;
        }
        tree::check(&client).await?;
        let job = client.fsck_start(false).await?;
        let found = loop {
            let progress = client.fsck_poll(job, false).await?;
            if progress.done {
                break progress;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        ensure!(found.findings_total == 0, "fsck: {:?}", found.findings);
        // Clients may rely on what was seen after a cut, so the next cut must not take it.
        client.sync().await?;
        Ok(history)
    }
}

async fn connect(server: &Server) -> anyhow::Result<Client> {
    let mut config = Config::new(vec![server.address().to_owned()], server.token());
    config.cred = Cred::ROOT;
    Ok(Client::connect(config).await?)
}

fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    Ok(runtime.worker_threads(threads).enable_all().build()?)
}

fn runtime_block<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime(1)?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Failures when answered changes are missing, in a worker's directory or with it.
const MISSING: &[&str] = &["steps are left, and", "no such file or directory"];
/// Failures when a file has its name, but not its contents.
const NO_CONTENTS: &[&str] = &["input/output error"];
/// Failures when `RocksDB` misses its own writes.
const NO_START: &[&str] = &["the server does not start"];

/// Runs rounds on a disk that lies until one fails, with one of `words`. The tests above run the
/// same rounds on an honest disk.
fn found(lie: Lie, options: &[&str], demand: Demand, words: &[&str]) {
    let world = World::new(1).expect("a disk can be mounted");
    world.disk.lie(lie);
    found_in(world, options, demand, words);
}

/// Runs rounds until one fails, with one of `words`.
fn found_in(mut world: World, options: &[&str], demand: Demand, words: &[&str]) {
    for _ in 0..20 {
        if let Err(error) = world.round(options, demand, Moment::Any) {
            let failure = format!("{error:#}");
            println!("found: {failure}");
            assert!(words.iter().any(|word| failure.contains(word)), "another failure: {failure}");
            return;
        }
    }
    unreachable!("20 cuts took nothing away that anybody missed");
}

#[test]
fn strict_loses_nothing_that_was_answered() {
    let mut world = World::new(11).unwrap();
    let steps: u64 =
        (0..8).map(|_| world.round(STRICT, Demand::Answered, Moment::Any).unwrap()).sum();
    println!("8 cuts, {steps} steps");
}

#[test]
fn relaxed_keeps_what_was_synced_and_loses_the_rest_in_order() {
    let mut world = World::new(12).unwrap();
    let steps: u64 = (0..8)
        .map(|round| {
            let options = if round % 2 == 0 { LAZY } else { RELAXED };
            world.round(options, Demand::Synced, Moment::Any).unwrap()
        })
        .sum();
    println!("8 cuts, {steps} steps");
}

#[test]
fn relaxed_keeps_what_is_older_than_the_commit_interval() {
    let mut world = World::new(13).unwrap();
    for _ in 0..4 {
        world.round(RELAXED, Demand::Answered, Moment::Settled).unwrap();
    }
}

#[test]
fn a_file_system_that_was_just_formatted_survives_a_cut() {
    let mut world = World::new(14).unwrap();
    world.disk.cut(Left::Nothing, &world.random);
    world.round(STRICT, Demand::Answered, Moment::Any).unwrap();
}

#[test]
fn an_answer_that_does_not_wait_for_the_sync_is_found() {
    found(Lie::None, LAZY, Demand::Answered, MISSING);
}

#[test]
fn a_log_that_is_not_synced_is_found() {
    found(Lie::FilesNamed(".log"), STRICT, Demand::Answered, MISSING);
}

#[test]
fn a_table_that_is_not_synced_is_found() {
    found(Lie::FilesNamed(".sst"), STRICT, Demand::Answered, NO_START);
}

#[test]
fn a_manifest_that_is_not_synced_is_found() {
    found(Lie::FilesNamed("MANIFEST"), STRICT, Demand::Answered, NO_START);
}

#[test]
fn directories_that_are_not_synced_are_found() {
    found(Lie::Directories, STRICT, Demand::Answered, &[MISSING, NO_CONTENTS, NO_START].concat());
}

#[test]
fn blocks_that_are_not_synced_are_found_although_the_log_is_cut_behind_them() {
    // A server that has not forgotten which blocks are new finds them gone, and cuts its log.
    found(Lie::Below("blocks"), RELAXED, Demand::Synced, &[MISSING, NO_CONTENTS].concat());
}

#[test]
fn a_log_that_is_taken_without_a_look_at_the_blocks_it_names_is_found() {
    let mut world = World::new(1).expect("a disk can be mounted");
    // The log's contents are in tables when the server comes to look.
    world.before_start = |data| {
        RocksEngine::open(&data.join("meta"), &RocksConfig::default())?;
        Ok(())
    };
    found_in(world, LAZY, Demand::Synced, NO_CONTENTS);
}

#[test]
fn blocks_that_are_not_synced_are_found() {
    found(Lie::Below("blocks"), STRICT, Demand::Answered, &[MISSING, NO_CONTENTS].concat());
}
