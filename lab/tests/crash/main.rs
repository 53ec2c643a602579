//! Crashes of real processes: a server on RocksDB is killed (SIGKILL) again and again under load
//! from native clients and from a mount, and started again. No program on the file system notices,
//! and in the end every operation that was answered is there exactly once.
//!
//! Needs the built program (`cargo build --workspace --bins`) and, for the mount, `/dev/fuse` and
//! root.
#![expect(clippy::print_stdout, reason = "kills, retries and duplicates are a part of the result")]

mod cluster;
mod mounted;
mod native;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use base::Cred;
use client::{Client, Config};
use lab::{check::tree, process::Server, sim::random::SimRandom};
use tokio::time::{sleep, timeout};

const KILLS: u64 = 20;
/// A server that was started answers within this time.
const ANSWER: Duration = Duration::from_secs(60);
/// The time between two kills.
const BETWEEN_MS: std::ops::Range<u64> = 200..3000;

/// Flag that ends the load.
#[derive(Default)]
pub(crate) struct Over(AtomicBool);

impl Over {
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of the servers that were killed.
#[derive(Debug, Default)]
struct Counted {
    kills: u64,
    duplicates_suppressed: u64,
}

pub(crate) async fn connect(server: &Server, name: &str) -> Client {
    let mut config = Config::new(vec![server.address().to_owned()], server.token());
    config.client_name = name.to_owned();
    config.cred = Cred::ROOT;
    Client::connect(config).await.expect("the token is right")
}

/// A different seed in each run.
pub(crate) fn seed() -> u64 {
    let seed = u64::from(std::process::id());
    println!("seed of the kills: {seed}");
    seed
}

/// Kills the server and starts it again, `kills` times.
async fn kill_again_and_again(server: &mut Server, witness: &Client, kills: u64) -> Counted {
    let random = SimRandom::new(seed());
    let mut counted = Counted::default();
    for kill in 0..kills {
        sleep(random.ms(BETWEEN_MS)).await;
        counted.duplicates_suppressed += duplicates(server, witness).await;
        sleep(random.ms(0..20)).await;
        server.kill();
        counted.kills += 1;
        if !random.one_in(3) {
            sleep(random.ms(0..300)).await;
        }
        // Answers wait for the disk now and then, so that more of them are lost on their way.
        let strict = kill % 2 == 0;
        server.start(&["--durability", if strict { "strict" } else { "relaxed" }]);
    }
    counted.duplicates_suppressed += duplicates(server, witness).await;
    counted
}

/// Number of duplicates that the present server has suppressed.
async fn duplicates(server: &mut Server, witness: &Client) -> u64 {
    let Ok(status) = timeout(ANSWER, witness.status()).await else {
        server.kill();
        unreachable!("a server that runs answers within {ANSWER:?}");
    };
    let counters = status.expect("the session lives").counters;
    let mut found = counters.iter().filter(|(name, _)| name == "duplicates_suppressed");
    found.next().expect("the server counts them").1
}

/// Checks that the file system is sound.
async fn check(witness: &Client) {
    let tree = tree::check(witness).await.expect("the tree is a tree");
    let job = witness.fsck_start(false).await.expect("none is running");
    loop {
        let progress = witness.fsck_poll(job, false).await.expect("it runs");
        if progress.done {
            assert_eq!(progress.findings_total, 0, "{:?}", progress.findings);
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    println!("{} names, {} directories", tree.names, tree.dirs);
}

#[tokio::test]
async fn a_native_client_notices_no_crash_of_the_server() {
    let mut server = Server::temporary();
    let witness = connect(&server, "witness").await;
    let over = Over::default();
    let clients = [connect(&server, "one").await, connect(&server, "other").await];
    let load = native::load(&clients, &over);
    let kill = async {
        let counted = kill_again_and_again(&mut server, &witness, KILLS).await;
        over.0.store(true, Ordering::Relaxed);
        counted
    };
    let (operations, counted) = futures::join!(load, kill);
    let retries: u64 = clients.iter().map(|client| client.stats().retries).sum();
    let Counted { kills, duplicates_suppressed } = counted;
    println!(
        "{operations} operations, {kills} kills, {retries} retries, {duplicates_suppressed} \
         duplicates suppressed"
    );
    assert!(kills > 0 && retries > 0 && duplicates_suppressed > 0);
    check(&witness).await;
}

#[tokio::test]
async fn a_program_on_a_mount_notices_no_crash_of_the_server() {
    let mut server = Server::temporary();
    let witness = connect(&server, "witness").await;
    let mount = mounted::Mount::new(&server);
    let load = mounted::Load::start(mount.path());
    let counted = kill_again_and_again(&mut server, &witness, KILLS / 2).await;
    let Counted { kills, duplicates_suppressed } = counted;
    let operations = load.end();
    println!(
        "on the mount {operations} operations, {kills} kills, {duplicates_suppressed} duplicates suppressed"
    );
    assert!(operations > 0 && kills > 0);
    mount.unmount();
    check(&witness).await;
}
