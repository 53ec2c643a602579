//! Clusters whose servers have journals and standbys: machines are lost with all they had.

use std::{
    cell::RefCell,
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use client::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Running, fail, folder, pando, pause, run, stderr, succeed, text};

/// Machines of a cluster that share a store. Each serves one server of it, or stands by for one.
struct Site {
    folder: TempDir,
    servers: u16,
    /// Lease of the journals.
    lease: &'static str,
    /// Ports that machines have had. All that a machine or a client is told is the first of server
    /// 0.
    addresses: RefCell<Vec<(u16, String)>>,
}

/// A machine: its process, and what it has on disk.
struct Machine {
    process: Running,
    data: PathBuf,
    address: String,
}

impl Machine {
    /// The machine is gone, and its disk as well.
    fn lose(mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
        fs::remove_dir_all(&self.data).unwrap();
    }
}

impl Site {
    fn new(servers: u16) -> Site {
        Site::with_lease(servers, "1s")
    }

    fn with_lease(servers: u16, lease: &'static str) -> Site {
        let site = Site { folder: folder(), servers, lease, addresses: RefCell::default() };
        let (data, contents) = (site.at("first"), site.at("contents"));
        let servers = servers.to_string();
        let of = ["format", "--data", text(&data), "--servers", &servers];
        succeed(&[&of[..], &["--blocks", text(&contents)]].concat());
        fs::create_dir(site.at("store")).unwrap();
        fs::copy(data.join("admin.token"), site.at("token")).unwrap();
        site.address(0);
        site
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A machine's path to the store, which can be cut.
    fn way(&self, data: &Path) -> PathBuf {
        let way = data.with_extension("way");
        if !way.exists() {
            symlink("store", &way).unwrap();
        }
        way
    }

    /// A port for a machine of this server.
    fn address(&self, server: u16) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        self.addresses.borrow_mut().push((server, address.clone()));
        address
    }

    /// Where server 0 may be.
    fn coordinators(&self) -> Vec<String> {
        let addresses = self.addresses.borrow();
        addresses.iter().filter(|(of, _)| *of == 0).map(|(_, address)| address.clone()).collect()
    }

    fn command(&self, data: &Path, address: &str, options: &[&str]) -> Command {
        let (store, key) = (self.way(data), self.at("key"));
        let of = ["serve", "--data", text(data), "--listen", address, "--http", "off"];
        let journal =
            ["--journal", text(&store), "--journal-lease", self.lease, "--backup-every", "1s"];
        let key: &[&str] = if key.exists() { &["--journal-key", text(&key)] } else { &[] };
        pando(&[&of[..], &journal, key, &["--cores", "1", "--standby"], options].concat())
    }

    fn starts(&self, data: PathBuf, address: String, (ready, options): (&str, &[&str])) -> Machine {
        let process = Running::start(self.command(&data, &address, options), ready);
        Machine { process, data, address }
    }

    /// Starts the machines of all servers.
    fn forms(&self) -> Vec<Machine> {
        let joins = self.coordinators();
        let first = self.starts(self.at("first"), joins[0].clone(), ("serving ", &[]));
        fs::copy(self.at("first/backup.key"), self.at("key")).unwrap();
        let token = self.at("token");
        let join = ["--join", &joins[0], "--token-file", text(&token)];
        let others = (1..self.servers).map(|server| {
            let data = self.at(&format!("member-{server}"));
            self.starts(data, self.address(server), ("serving ", &join))
        });
        let machines: Vec<_> = std::iter::once(first).chain(others).collect();
        machines.iter().for_each(|machine| self.until_in_force(machine));
        machines
    }

    /// Starts a machine that stands by for a server.
    fn stands_by(&self, server: u16, name: &str) -> Machine {
        let number = server.to_string();
        let joins = self.coordinators().swap_remove(0);
        let address = self.address(server);
        let of = ["--server", &number, "--join", &joins];
        let options = if server == 0 { &of[..2] } else { &of[..] };
        self.starts(self.at(name), address, ("standing by for ", options))
    }

    fn status(&self, address: &str) -> Value {
        let token = self.at("token");
        let asked = run(&["status", "--json", address, "--token", text(&token)]);
        serde_json::from_slice(&asked.stdout).unwrap_or_default()
    }

    /// Waits until a machine serves with its journal and the lease of it.
    fn until_in_force(&self, machine: &Machine) {
        for _ in 0..600 {
            let status = self.status(&machine.address);
            let journal = &status["journal"];
            if journal["in_force"] == true && journal["lease_left_nanos"] != 0 {
                return;
            }
            pause(Duration::from_millis(50));
        }
        panic!("{} does not serve: {}", machine.address, self.status(&machine.address));
    }

    fn client(&self) -> Client {
        let token = fs::read_to_string(self.at("token")).unwrap();
        let first = self.coordinators().swap_remove(0);
        let config = Config::new(vec![first], token.trim());
        block_on(Client::connect(config)).unwrap()
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(Box::pin(work)))
}

std::thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
}

/// Makes directories with files, in the shards of all servers, and sees that they are stable.
async fn make(client: &Client, round: &str, paths: &mut Vec<String>) {
    for directory in 0..8 {
        let directory = format!("/{round}-{directory}");
        client.mkdir(&directory, 0o755).await.unwrap();
        for file in 0..3 {
            let path = format!("{directory}/{file}");
            client.write(&path, path.as_bytes()).await.unwrap();
            paths.push(path);
        }
    }
    if let Err(error) = client.sync().await {
        panic!("{round}: {error}");
    }
}

async fn compare(client: &Client, paths: &[String]) {
    for path in paths {
        let found = client.read(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found, path.as_bytes(), "{path}");
    }
}

impl Site {
    /// Sees that everything is there, and that nothing is wrong with it.
    fn check(&self, client: &Client, paths: &[String]) {
        block_on(compare(client, paths));
        let (token, at) = (self.at("token"), self.coordinators().join(","));
        let checked = succeed(&["fsck", &at, "--token", text(&token)]);
        assert!(checked.contains("nothing is wrong"), "{checked}");
    }
}

#[test]
fn machines_of_a_cluster_are_lost_one_after_the_other_and_replaced() {
    let site = Site::new(2);
    let mut serving = site.forms();
    let mut standing = vec![site.stands_by(0, "standby-0"), site.stands_by(1, "standby-1")];
    let (client, mut paths) = (site.client(), Vec::new());
    block_on(make(&client, "before", &mut paths));
    // The coordinator's machine is among them, and then one that has taken over.
    for (round, server) in [1, 0, 1].into_iter().enumerate() {
        let (of, number) = (usize::from(server == 1), u16::from(server == 1));
        let next = standing.remove(of);
        std::mem::replace(&mut serving[of], next).lose();
        block_on(async {
            // No call fails; what was stable is there.
            compare(&client, &paths).await;
            // Changes that were answered a moment ago may be lost, and that is told once.
            let _ = client.sync().await;
            make(&client, &format!("round-{round}"), &mut paths).await;
        });
        site.check(&client, &paths);
        standing.insert(of, site.stands_by(number, &format!("again-{round}")));
    }
    block_on(client.close()).unwrap();
}

#[test]
fn servers_that_are_held_up_or_cut_off_from_the_store_are_replaced() {
    let site = Site::new(3);
    let mut serving = site.forms();
    let standing = [site.stands_by(1, "standby-1"), site.stands_by(2, "standby-2")];
    let (client, mut paths) = (site.client(), Vec::new());
    block_on(make(&client, "before", &mut paths));
    // The one is reached by all others, and goes on asking for the cluster's lease.
    let mut cut_off = serving.remove(1);
    let mut held_up = serving.remove(1);
    fs::remove_file(cut_off.data.with_extension("way")).unwrap();
    site.until_in_force(&standing[0]);
    held_up.process.signal(Signal::STOP);
    site.until_in_force(&standing[1]);
    held_up.process.signal(Signal::CONT);
    block_on(async {
        compare(&client, &paths).await;
        let _ = client.sync().await;
        make(&client, "after", &mut paths).await;
    });
    assert!(!held_up.process.wait().success());
    symlink("store", cut_off.data.with_extension("way")).unwrap();
    assert!(!cut_off.process.wait().success());
    site.check(&client, &paths);
    block_on(client.close()).unwrap();
}

#[test]
fn a_file_system_with_a_journal_gets_servers_and_no_standby_takes_that_for_a_loss() {
    // Longer than anybody waits.
    let site = Site::with_lease(1, "10m");
    let (data, member) = (site.at("first"), site.at("member"));
    let joins = site.coordinators();
    let alone = site.forms().remove(0);
    assert_eq!(alone.process.stop(), Some(0));
    let (store, token, key) = (site.at("store"), site.at("token"), site.at("key"));
    // Standbys of its own come later.
    let serve = |data: &Path, address: &str, options: &[&str]| {
        let of = ["serve", "--data", text(data), "--listen", address, "--http", "off"];
        let way = site.way(data);
        let journal = ["--journal", text(&way), "--journal-lease", "10m", "--backup-every", "1s"];
        pando(&[&of[..], &journal, options].concat())
    };
    let founded = serve(&data, &joins[0], &["--coordinator"]);
    let process = Running::start(founded, "serving ");
    let first = Machine { process, data, address: joins[0].clone() };
    site.until_in_force(&first);
    let standing = site.stands_by(0, "standby");
    let (client, mut paths) = (site.client(), Vec::new());
    block_on(make(&client, "alone", &mut paths));
    let at = joins.join(",");
    let join = ["--join", &at, "--token-file", text(&token)];
    let mut refused = serve(&member, "127.0.0.1:0", &join);
    let refused = refused.output().unwrap();
    let said = stderr(&refused);
    assert!(refused.status.code() == Some(2) && said.contains("needs --journal-key"), "{said}");
    let address = site.address(1);
    let options = [&join[..], &["--journal-key", text(&key)]].concat();
    let process = Running::start(serve(&member, &address, &options), "serving ");
    let second = Machine { process, data: member, address };
    site.until_in_force(&second);
    // Both begin anew.
    let moved = succeed(&["server", "balance", &joins[0], "--token", text(&token)]);
    assert!(moved.contains("shard"), "{moved}");
    block_on(make(&client, "two", &mut paths));
    let status = site.status(&first.address);
    assert_eq!(status["journal"]["in_force"], true, "{status}");
    assert_eq!(site.status(&standing.address), Value::Null, "it serves");
    site.check(&client, &paths);
    // One that ends gives its lease up, and the other one is there at once.
    assert_eq!(first.process.stop(), Some(0));
    site.until_in_force(&standing);
    block_on(compare(&client, &paths));
    block_on(client.close()).unwrap();
    // A journal of a cluster is that of one of its servers.
    let to = site.at("recovered");
    let from = ["--from", text(&store), "--key", text(&key)];
    let recover = [&["journal", "recover"][..], &from, &["--data", text(&to)]].concat();
    let said = fail(2, &recover);
    assert!(said.contains("--server (0, 1)"), "{said}");
    let said = succeed(&[&recover[..], &["--server", "1"]].concat());
    assert!(said.contains("--replace"), "{said}");
    let verify = ["journal", "verify", "--server", "1"];
    let said = succeed(&[&verify[..], &from].concat());
    assert!(said.contains("leads to the end"), "{said}");
    let listen = ["--listen", "127.0.0.1:0", "--http", "off", "--standby"];
    let wrong = ["serve", "--data", text(&to), "--server", "0"];
    let said = fail(2, &[&wrong[..], &listen, &["--journal-lease", "10m"]].concat());
    assert!(said.contains("is that of server 1, and not of 0"), "{said}");
    // A standby that could not serve does not wait for its turn.
    let never = ["serve", "--data", "/nonexistent/pando", "--server", "0", "--join", &at];
    let journal = ["--journal", text(&store), "--journal-lease", "10m"];
    let said = fail(2, &[&never[..], &listen, &journal].concat());
    assert!(said.contains("start its standbys without --join"), "{said}");
    let alone = site.at("alone");
    succeed(&["format", "--data", text(&alone)]);
    let wrong = ["serve", "--data", text(&alone), "--server", "1"];
    let said = fail(2, &[&wrong[..], &listen, &journal].concat());
    assert!(said.contains("of one server, and not of server 1"), "{said}");
}

#[test]
fn dev_runs_standbys_and_a_machine_that_was_lost_comes_back_as_one() {
    let folder = folder();
    let (dir, store) = (folder.path().join("dev"), folder.path().join("store"));
    fs::create_dir(&store).unwrap();
    let of = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0"];
    let journal = ["--journal", text(&store), "--standbys", "1", "--cores", "1"];
    let command = || pando(&[&of[..], &journal, &["--lease", "500ms"]].concat());
    let start = || {
        let mut process = command().stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<_> =
            said.by_ref().take_while(|line| !line.starts_with("serving ")).collect();
        (process, said, lines)
    };
    let stop = |mut process: Child| {
        kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(0));
    };
    let about = |lines: &[String], name: &str| {
        let line = lines.iter().find(|line| line.starts_with(&format!("{name} at ")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {lines:?}"));
        let (_, rest) = line.split_once(" at ").unwrap();
        let (_, pid) = line.split_once("pid ").unwrap();
        let pid = pid.split(',').next().unwrap().parse().unwrap();
        (rest.split(',').next().unwrap().to_owned(), Pid::from_raw(pid).unwrap())
    };
    let connect = |addresses: Vec<String>| {
        let token = fs::read_to_string(dir.join("admin.token")).unwrap();
        block_on(Client::connect(Config::new(addresses, token.trim()))).unwrap()
    };
    let (process, mut said, lines) = start();
    let (address, pid) = about(&lines, "server 0");
    about(&lines, "standby 1 of server 1");
    let (client, mut paths) = (connect(vec![address]), Vec::new());
    block_on(make(&client, "before", &mut paths));
    kill_process(pid, Signal::KILL).unwrap();
    said.find(|line| line.starts_with("server 0 has ended")).unwrap();
    said.find(|line| line.starts_with("standby 1 of server 0 serves now")).unwrap();
    block_on(compare(&client, &paths));
    block_on(client.close()).unwrap();
    stop(process);

    // Of the machines of server 0 only the one is left that has taken over.
    fs::remove_dir_all(dir.join("server-0")).unwrap();
    let (process, _said, lines) = start();
    let machines = ["server 0", "standby 1 of server 0"];
    let client = connect(machines.map(|name| about(&lines, name).0).to_vec());
    block_on(compare(&client, &paths));
    block_on(client.close()).unwrap();
    stop(process);
    let said = stderr(&pando(&of[..7]).output().unwrap());
    assert!(said.contains("give --journal, and --standbys 1 or more"), "{said}");
}
