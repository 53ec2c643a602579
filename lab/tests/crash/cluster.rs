//! A cluster of four processes, of which one after the other is killed and started again.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::Cred;
use client::{Client, Config};
use lab::{check::tree, process::pando, sim::random::SimRandom};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::{Over, native};

const SERVERS: usize = 4;
const KILLS: u64 = 12;
const BETWEEN_MS: std::ops::Range<u64> = 1000..3000;
/// All servers answer within this time after a kill.
const ANSWER: Duration = Duration::from_secs(60);

/// `pando dev`, which starts again what is killed. It ends with this.
struct Cluster {
    dev: Child,
    folder: TempDir,
    addresses: Vec<String>,
    /// The present process of each server, as dev says.
    processes: Arc<Mutex<BTreeMap<usize, Pid>>>,
}

impl Cluster {
    fn start() -> Cluster {
        let folder = tempfile::Builder::new().prefix("pando-crash.").tempdir();
        let folder = folder.expect("there is room for temporary files");
        let mut dev = pando();
        dev.args(["dev", "--servers", &SERVERS.to_string(), "--listen", "127.0.0.1:0"]);
        // Answers wait for the disk, so that more of them are lost on their way.
        dev.args(["--serve-options", "--durability strict"]);
        dev.args(["--restart", "--dir"]).arg(folder.path().join("cluster"));
        let mut dev = dev.stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut said = BufReader::new(dev.stdout.take().expect("it is piped")).lines();
        let processes = Arc::new(Mutex::new(BTreeMap::new()));
        let mut addresses = Vec::new();
        for line in said.by_ref() {
            let line = line.expect("text");
            note(&line, &processes);
            if let Some(served) = line.strip_prefix(&format!("serving {SERVERS} servers at ")) {
                let list = served.split(' ').next().expect("the addresses");
                addresses = list.split(',').map(str::to_owned).collect();
                break;
            }
        }
        assert_eq!(addresses.len(), SERVERS, "dev ended before it served");
        let noted = Arc::clone(&processes);
        let listen = move || said.map_while(Result::ok).for_each(|line| note(&line, &noted));
        std::thread::Builder::new().spawn(listen).expect("a thread can be started");
        Cluster { dev, folder, addresses, processes }
    }

    fn token(&self) -> String {
        let file: PathBuf = self.folder.path().join("cluster/admin.token");
        fs::read_to_string(file).expect("dev has left it").trim().to_owned()
    }

    async fn connect(&self, name: &str) -> Client {
        let mut config = Config::new(self.addresses.clone(), self.token());
        config.client_name = name.to_owned();
        config.cred = Cred::ROOT;
        Client::connect(config).await.expect("the token is right")
    }

    fn kill(&self, server: usize) {
        let process = self.processes.lock().get(&server).copied();
        let process = process.expect("dev says the process of every server");
        // It may have been killed a moment ago, and not be there again.
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Takes in lines such as `server 2 at 127.0.0.1:7422, pid 99, …` and `server 2 was started again, pid 100, …`.
fn note(line: &str, processes: &Mutex<BTreeMap<usize, Pid>>) {
    let said = line.strip_prefix("server ").and_then(|rest| rest.split_once(' '));
    let Some((server, rest)) = said else { return };
    let pid = rest.split("pid ").nth(1).and_then(|rest| rest.split(',').next());
    let pid = pid.and_then(|pid| pid.trim().parse().ok()).and_then(Pid::from_raw);
    if let (Ok(server), Some(pid)) = (server.parse(), pid) {
        processes.lock().insert(server, pid);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It ends its servers first.
        let dev = Pid::from_child(&self.dev);
        let _ = kill_process(dev, Signal::INT);
        let _ = self.dev.wait();
    }
}

/// What each process had counted when it was last asked, by its number: duplicates that it has suppressed.
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
    let cluster = Cluster::start();
    let witness = cluster.connect("witness").await;
    let over = Over::default();
    let clients = [cluster.connect("one").await, cluster.connect("other").await];
    let load = native::load(&clients, &over);
    let kill = async {
        let random = SimRandom::new(u64::from(std::process::id()));
        let mut suppressed = Suppressed::new();
        for _ in 0..KILLS {
            sleep(random.ms(BETWEEN_MS)).await;
            count(&witness, &mut suppressed).await;
            cluster.kill(random.index(SERVERS));
        }
        count(&witness, &mut suppressed).await;
        over.0.store(true, Ordering::Relaxed);
        suppressed.values().sum::<u64>()
    };
    let (operations, suppressed) = futures::join!(load, kill);
    let retries: u64 = clients.iter().map(|client| client.stats().retries).sum();
    println!(
        "{SERVERS} servers: {operations} operations, {KILLS} kills, {retries} retries, {suppressed} duplicates suppressed"
    );
    assert!(retries > 0 && suppressed > 0);
    let tree = tree::check(&witness).await.expect("the tree is a tree");
    println!("{} names, {} directories", tree.names, tree.dirs);
}
