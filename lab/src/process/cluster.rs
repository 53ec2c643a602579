//! A cluster of server processes, by `pando dev`.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    sync::Arc,
};

use base::Cred;
use client::{Client, Config};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{look_through, pando};

/// `pando dev` with servers on ports of the system's choice. Everything ends with this value.
#[derive(Debug)]
pub struct Cluster {
    dev: Child,
    folder: TempDir,
    addresses: Vec<String>,
    /// The present process of each server, as printed by dev.
    processes: Arc<Mutex<BTreeMap<usize, Pid>>>,
}

impl Cluster {
    /// Starts `servers` servers on a new file system; returns when they serve.
    ///
    /// The options are those of `pando dev`.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn start(servers: usize, options: &[&str]) -> Cluster {
        let folder = tempfile::Builder::new().prefix("pando-cluster.").tempdir();
        let folder = folder.expect("there is room for temporary files");
        let mut dev = pando();
        dev.args(["dev", "--servers", &servers.to_string(), "--listen", "127.0.0.1:0"]);
        dev.args(options).arg("--dir").arg(folder.path().join("cluster"));
        let mut dev = dev.stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut said = BufReader::new(dev.stdout.take().expect("it is piped")).lines();
        let processes = Arc::new(Mutex::new(BTreeMap::new()));
        let mut addresses = Vec::new();
        for line in said.by_ref() {
            let line = line.expect("text");
            note(&line, &processes);
            if let Some(served) = line.strip_prefix(&format!("serving {servers} servers at ")) {
                let list = served.split(' ').next().expect("the addresses");
                addresses = list.split(',').map(str::to_owned).collect();
                break;
            }
        }
        assert_eq!(addresses.len(), servers, "dev ended before it served");
        let noted = Arc::clone(&processes);
        let listen = move || said.map_while(Result::ok).for_each(|line| note(&line, &noted));
        std::thread::Builder::new().spawn(listen).expect("a thread can be started");
        Cluster { dev, folder, addresses, processes }
    }

    /// A path for another file of the test, which goes with the cluster.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The addresses of all servers, by number.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The file that has the administrator's token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("cluster/admin.token")
    }

    /// A native client that acts for root.
    ///
    /// # Panics
    /// When no server answers.
    pub async fn connect(&self, name: &str) -> Client {
        let token = fs::read_to_string(self.token_file()).expect("dev has left it");
        let mut config = Config::new(self.addresses.clone(), token.trim().to_owned());
        config.client_name = name.to_owned();
        config.cred = Cred::ROOT;
        Client::connect(config).await.expect("the token is right")
    }

    /// Sends SIGKILL to a server, by its number modulo that of the servers. Returns whether its
    /// process existed.
    ///
    /// # Panics
    /// When dev has not said what its process is.
    pub fn kill(&self, server: usize) -> bool {
        self.signal(server % self.addresses.len(), Signal::KILL)
    }

    /// Sends SIGSTOP to a server: its machine can be reached, but it does not answer.
    ///
    /// # Panics
    /// When there is no such server.
    pub fn stop(&self, server: usize) {
        self.signal(server, Signal::STOP);
    }

    /// Sends SIGCONT to a server.
    ///
    /// # Panics
    /// When there is no such server.
    pub fn go_on(&self, server: usize) {
        self.signal(server, Signal::CONT);
    }

    fn signal(&self, server: usize, signal: Signal) -> bool {
        let process = self.processes.lock().get(&server).copied();
        let process = process.expect("dev says the process of every server");
        // The server may have been killed a moment ago, and not be back.
        kill_process(process, signal).is_ok()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // `pando dev` ends its servers first.
        let _ = kill_process(Pid::from_child(&self.dev), Signal::INT);
        let _ = self.dev.wait();
        for server in 0..self.addresses.len() {
            let log = self.folder.path().join(format!("cluster/server-{server}.log"));
            look_through(&format!("server {server}"), &log);
        }
    }
}

/// Notes lines such as `server 2 at 127.0.0.1:7422, pid 99, …` and `server 2 was started again, pid
/// 100, …`.
fn note(line: &str, processes: &Mutex<BTreeMap<usize, Pid>>) {
    let said = line.strip_prefix("server ").and_then(|rest| rest.split_once(' '));
    let Some((server, rest)) = said else { return };
    let pid = rest.split("pid ").nth(1).and_then(|rest| rest.split(',').next());
    let pid = pid.and_then(|pid| pid.trim().parse().ok()).and_then(Pid::from_raw);
    if let (Ok(server), Some(pid)) = (server.parse(), pid) {
        processes.lock().insert(server, pid);
    }
}
