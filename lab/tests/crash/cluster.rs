//! A cluster of four processes, which are killed and started again one after the other.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use client::Client;
use lab::{check::tree, process::Cluster, sim::random::SimRandom};
use tokio::time::{sleep, timeout};

use super::{Over, native, seed};

const SERVERS: usize = 4;
const KILLS: usize = 12;
const BETWEEN_MS: std::ops::Range<u64> = 1000..3000;
/// All servers answer within this time after a kill.
const ANSWER: Duration = Duration::from_secs(60);

/// Counts of suppressed duplicates, as each process last reported, by process number.
type Suppressed = BTreeMap<u32, u64>;

async fn count(witness: &Client, suppressed: &mut Suppressed) {
    let statuses = timeout(ANSWER, witness.statuses()).await.expect("all servers answer again");
    for status in statuses.expect("the session lives") {
        let mut found = status.counters.iter().filter(|(name, _)| name == "duplicates_suppressed");
        let count = found.next().expect("every server counts them").1;
        suppressed.insert(status.process.id, count);
    }
}

#[tokio::test]
async fn a_native_client_notices_no_crash_of_any_server_of_a_cluster() {
    // Answers wait for the disk, so more of them are lost on their way. Also, another core may
    // outdate a request that one core has executed, before that is written.
    let options = ["--restart", "--cores", "3", "--serve-options", "--durability strict"];
    let cluster = Cluster::start(SERVERS, &options);
    let witness = cluster.connect("witness").await;
    let over = Over::default();
    let clients = [cluster.connect("one").await, cluster.connect("other").await];
    let load = native::load(&clients, &over);
    let kill = async {
        let random = SimRandom::new(seed());
        let mut suppressed = Suppressed::new();
        let first = random.index(SERVERS);
        for kill in 0..KILLS {
            sleep(random.ms(BETWEEN_MS)).await;
            // All servers answer: the process that will be killed runs.
            count(&witness, &mut suppressed).await;
            assert!(cluster.kill(first + kill), "the server has ended by itself");
        }
        count(&witness, &mut suppressed).await;
        over.0.store(true, Ordering::Relaxed);
        suppressed.values().sum::<u64>()
    };
    let (operations, suppressed) = futures::join!(load, kill);
    let retries: u64 = clients.iter().map(|client| client.stats().retries).sum();
    println!(
        "{SERVERS} servers: {operations} operations, {KILLS} kills, {retries} retries, \
         {suppressed} duplicates suppressed"
    );
    assert!(retries > 0 && suppressed > 0);
    let tree = tree::check(&witness).await.expect("the tree is a tree");
    let mut check = witness.fsck_start_everywhere(false).await.expect("none is running");
    loop {
        let progress = check.poll(&witness, false).await.expect("it runs");
        if progress.done {
            assert_eq!(progress.findings_total, 0, "{:?}", progress.findings);
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    println!("{} names, {} directories", tree.names, tree.dirs);
}
