//! Servers that stand by: one is killed, stopped, held up or cut off, and another one takes over.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use client::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    backups::{as_admin, start, status, until},
    harness::{Running, fail, folder, pando, pause, run, succeed, text},
};

/// Machines that share a store, each with an address of its own.
struct Machines {
    folder: TempDir,
    addresses: Vec<String>,
    lease: &'static str,
}

impl Machines {
    fn new(count: usize) -> Machines {
        Machines::with_lease(count, "1s")
    }

    fn with_lease(count: usize, lease: &'static str) -> Machines {
        let folder = folder();
        let contents = folder.path().join("contents");
        let data = folder.path().join("0");
        succeed(&["format", "--data", text(&data), "--blocks", text(&contents)]);
        let listeners: Vec<_> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        Machines { folder, addresses: listeners.iter().map(address).collect(), lease }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn data(&self, machine: usize) -> PathBuf {
        self.at(&machine.to_string())
    }

    /// A path to the store that can be cut for one machine.
    fn way(&self, machine: usize) -> PathBuf {
        self.at(&format!("way-{machine}"))
    }

    fn join(&self, machine: usize) {
        fs::create_dir_all(self.at("store")).unwrap();
        symlink("store", self.way(machine)).unwrap();
    }

    /// The command that all machines are started with.
    fn command(&self, machine: usize) -> Command {
        if !self.way(machine).exists() {
            self.join(machine);
        }
        let (data, key) = (self.data(machine), self.at("key"));
        let (listen, way) = (&*self.addresses[machine], self.way(machine));
        let serve = ["serve", "--data", text(&data), "--listen", listen, "--http", "off"];
        let journal =
            ["--journal", text(&way), "--journal-lease", self.lease, "--backup-every", "1s"];
        let standby = ["--standby", "--journal-key", text(&key)];
        pando(&[&serve[..], &journal, &standby].concat())
    }

    /// Starts the first machine, and has its key known.
    fn first(&self) -> Running {
        let server = Running::start(self.command(0), "serving ");
        until(&server, &self.data(0), "in force", |_, status| {
            status["journal"]["in_force"] == true && status["journal"]["lease_left_nanos"] != 0
        });
        fs::copy(self.data(0).join("backup.key"), self.at("key")).unwrap();
        fs::copy(self.data(0).join("admin.token"), self.at("token")).unwrap();
        server
    }

    fn stands_by(&self, machine: usize) -> Running {
        Running::start(self.command(machine), "standing by for ")
    }

    async fn client(&self) -> Client {
        self.client_of(&self.addresses).await
    }

    async fn client_of(&self, addresses: &[String]) -> Client {
        let token = fs::read_to_string(self.at("token")).unwrap();
        let config = Config::new(addresses.to_vec(), token.trim());
        Box::pin(Client::connect(config)).await.unwrap()
    }

    /// Waits until a machine is reached and serves.
    fn until_serving(&self, machine: usize) {
        let token = self.at("token");
        for _ in 0..600 {
            let asked =
                run(&["status", "--json", &self.addresses[machine], "--token", text(&token)]);
            let status = serde_json::from_slice::<serde_json::Value>(&asked.stdout);
            if status.is_ok_and(|status| status["journal"]["in_force"] == true) {
                return;
            }
            pause(Duration::from_millis(50));
        }
        panic!("machine {machine} does not serve");
    }

    /// Has the file system checked, at the machine that serves.
    fn check(&self, machine: usize) {
        let token = self.at("token");
        let checked = succeed(&["fsck", &self.addresses[machine], "--token", text(&token)]);
        assert!(checked.contains("nothing is wrong"), "{checked}");
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// Makes a file that is stable, and sees it.
async fn make(client: &Client, path: &str) {
    client.write(path, path.as_bytes()).await.unwrap();
    client.sync().await.unwrap();
}

/// The same after another server has taken over. The first sync may say that something was lost
/// that had been answered and was not stable.
async fn make_after(client: &Client, path: &str) {
    client.write(path, path.as_bytes()).await.unwrap();
    let _ = client.sync().await;
    make(client, path).await;
}

async fn compare(client: &Client, paths: &[String]) {
    for path in paths {
        let found = client.read(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found, path.as_bytes(), "{path}");
    }
}

#[test]
fn a_machine_that_is_lost_is_replaced_and_comes_back_as_a_standby() {
    let machines = Machines::new(2);
    let mut serving = machines.first();
    let mut standing = machines.stands_by(1);
    let mut paths = Vec::new();
    block_on(async {
        let client = machines.client().await;
        for round in 0..4 {
            for file in 0..20 {
                paths.push(format!("/{round}-{file}"));
                make(&client, paths.last().unwrap()).await;
            }
            serving.signal(Signal::KILL);
            serving.wait();
            // The call waits for the other machine, and does not fail.
            paths.push(format!("/{round}-after"));
            make_after(&client, paths.last().unwrap()).await;
            compare(&client, &paths).await;
            let (gone, left) = (round % 2, (round + 1) % 2);
            machines.check(left);
            serving = std::mem::replace(&mut standing, machines.stands_by(gone));
            let replaced = machines.data(gone).join("meta.replaced");
            assert!(replaced.exists(), "what the machine had is kept aside");
        }
        client.close().await.unwrap();
    });
    let said = succeed(&[
        "journal",
        "verify",
        "--from",
        text(&machines.at("store")),
        "--key",
        text(&machines.at("key")),
    ]);
    assert!(said.contains("leads to the end"), "{said}");
    assert_eq!(standing.stop(), Some(0));
    // A directory that has followed does not turn away from a server that lives.
    let followed = machines.data(1);
    let serve = ["serve", "--data", text(&followed), "--listen", "127.0.0.1:0", "--http", "off"];
    let said = fail(1, &[&serve[..], &["--journal", "off"]].concat());
    assert!(said.contains("has followed the journal of another server"), "{said}");
    block_on(async {
        let client = machines.client().await;
        make(&client, "/undisturbed").await;
        client.close().await.unwrap();
    });
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn a_server_that_is_stopped_hands_over_at_once() {
    // Longer than anybody waits.
    let machines = Machines::with_lease(2, "10m");
    let serving = machines.first();
    let standing = machines.stands_by(1);
    block_on(async {
        let client = machines.client().await;
        make(&client, "/before").await;
        client.write("/last", b"/last").await.unwrap();
        assert_eq!(serving.stop(), Some(0));
        let after = make_after(&client, "/after");
        tokio::time::timeout(Duration::from_secs(60), after).await.unwrap();
        compare(&client, &["/before".to_owned(), "/last".to_owned(), "/after".to_owned()]).await;
        client.close().await.unwrap();
    });
    assert_eq!(standing.stop(), Some(0));
}

#[test]
fn a_server_that_is_held_up_or_cut_off_is_replaced_and_tells_nothing_old() {
    let machines = Machines::new(3);
    let mut held_up = machines.first();
    let second = machines.stands_by(1);
    let third = machines.stands_by(2);
    let clients = || async { (machines.client().await, machines.client().await) };
    block_on(async {
        let (writer, reader) = clients().await;
        make(&writer, "/file").await;
        assert_eq!(reader.read("/file").await.unwrap(), b"/file"[..]);
        held_up.signal(Signal::STOP);
        // Both have their connections still, and say nothing at first.
        make_after(&writer, "/another").await;
        writer.write("/file", b"newer").await.unwrap();
        writer.sync().await.unwrap();
        held_up.signal(Signal::CONT);
        assert_eq!(reader.read("/file").await.unwrap(), b"newer"[..]);
        writer.close().await.unwrap();
        reader.close().await.unwrap();
    });
    // The old server sees that another one has the journal.
    assert!(!held_up.wait().success());

    // One of the two others serves now: it is cut off from the store, and from nothing else.
    let asked = |machine: usize| {
        let token = machines.at("token");
        let asked =
            run(&["status", "--json", &machines.addresses[machine], "--token", text(&token)]);
        !asked.stdout.is_empty()
    };
    let (serves, stands) = if asked(1) { (1, 2) } else { (2, 1) };
    machines.until_serving(serves);
    block_on(async {
        let (writer, reader) = clients().await;
        make(&writer, "/file").await;
        assert_eq!(reader.read("/file").await.unwrap(), b"/file"[..]);
        fs::remove_file(machines.way(serves)).unwrap();
        machines.until_serving(stands);
        make_after(&writer, "/third").await;
        writer.write("/file", b"newest").await.unwrap();
        writer.sync().await.unwrap();
        assert_eq!(reader.read("/file").await.unwrap(), b"newest"[..]);
        // No client comes in where the lease has ended.
        let old = machines.client_of(&machines.addresses[serves..=serves]);
        assert!(tokio::time::timeout(Duration::from_secs(1), old).await.is_err());
        writer.close().await.unwrap();
        reader.close().await.unwrap();
    });
    machines.join(serves);
    let (mut old, new) = if serves == 1 { (second, third) } else { (third, second) };
    assert!(!old.wait().success());
    machines.check(stands);
    assert_eq!(new.stop(), Some(0));
}

#[test]
fn a_standby_whose_way_to_the_store_is_cut_keeps_what_it_has() {
    let machines = Machines::new(2);
    let mut serving = machines.first();
    let mut standing = machines.stands_by(1);
    let metadata = machines.data(1).join("meta");
    let made = |folder: &Path| fs::metadata(folder).unwrap().ino();
    let before = made(&metadata);
    let write = |path: &'static str| {
        as_admin(&serving, &machines.data(0), async |client| make(client, path).await);
    };
    write("/before");
    // First nothing is there, and then an empty directory, as a mount point is.
    let way = machines.way(1);
    fs::remove_file(&way).unwrap();
    pause(Duration::from_secs(3));
    fs::create_dir(&way).unwrap();
    pause(Duration::from_secs(3));
    write("/while");
    fs::remove_dir_all(&way).unwrap();
    machines.join(1);
    write("/after");
    serving.signal(Signal::KILL);
    serving.wait();
    block_on(async {
        let client = machines.client().await;
        let paths = ["/before", "/while", "/after"].map(str::to_owned);
        compare(&client, &paths).await;
        client.close().await.unwrap();
    });
    assert_eq!(made(&metadata), before, "it was made anew");
    // The same for one that has served, and is started while the way is cut.
    standing.signal(Signal::KILL);
    standing.wait();
    fs::remove_file(&way).unwrap();
    fs::create_dir(&way).unwrap();
    let mut waits = machines.command(1).stdout(Stdio::null()).spawn().unwrap();
    pause(Duration::from_secs(3));
    assert_eq!(waits.try_wait().unwrap(), None);
    assert_eq!(made(&metadata), before, "it was taken away");
    fs::remove_dir_all(&way).unwrap();
    machines.join(1);
    machines.until_serving(1);
    kill_process(Pid::from_child(&waits), Signal::TERM).unwrap();
    assert!(waits.wait().unwrap().success());
}

#[test]
fn a_journal_that_is_ended_lets_nobody_take_over() {
    let machines = Machines::new(2);
    assert_eq!(machines.first().stop(), Some(0));
    let data = machines.data(0);
    let server = start(&data, &["--journal", "off"]);
    let standing = machines.stands_by(1);
    pause(Duration::from_secs(3));
    let token = machines.at("token");
    let asked = run(&["status", "--json", &machines.addresses[1], "--token", text(&token)]);
    assert!(asked.stdout.is_empty(), "it serves");
    assert_eq!(standing.stop(), Some(0));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn while_the_store_is_away_longer_than_the_lease_nobody_is_served() {
    let machines = Machines::new(1);
    let server = machines.first();
    let (store, away) = (machines.at("store"), machines.at("away"));
    as_admin(&server, &machines.data(0), async |client| {
        make(client, "/before").await;
        fs::rename(&store, &away).unwrap();
        let mut comes_in = true;
        for _ in 0..100 {
            let other = machines.client();
            match tokio::time::timeout(Duration::from_millis(500), other).await {
                Ok(other) => other.close().await.unwrap(),
                Err(_) => comes_in = false,
            }
            if !comes_in {
                break;
            }
            pause(Duration::from_millis(50));
        }
        assert!(!comes_in, "the lease has ended");
        let (code, said) = status(&server, &machines.data(0));
        let problems = said["problems"].to_string();
        assert!(code != 0 && problems.contains("lease"), "{said:#}");
        fs::rename(&away, &store).unwrap();
        // The same server goes on, as nobody has taken over.
        make(client, "/after").await;
        compare(client, &["/before".to_owned()]).await;
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn nobody_takes_over_from_a_server_without_a_lease() {
    let machines = Machines::new(2);
    assert_eq!(machines.first().stop(), Some(0));
    let (data, store) = (machines.data(0), machines.way(0));
    let mut server = start(
        &data,
        &["--journal", text(&store), "--journal-lease", "off", "--backup-every", "1s"],
    );
    let standing = machines.stands_by(1);
    as_admin(&server, &data, async |client| make(client, "/before").await);
    server.signal(Signal::KILL);
    server.wait();
    pause(Duration::from_secs(3));
    let token = machines.at("token");
    let asked = run(&["status", "--json", &machines.addresses[1], "--token", text(&token)]);
    assert!(asked.stdout.is_empty(), "it serves");
    // With a lease again it is followed, and replaced.
    let mut server = Running::start(machines.command(0), "serving ");
    as_admin(&server, &data, async |client| make(client, "/after").await);
    server.signal(Signal::KILL);
    server.wait();
    block_on(async {
        let client = machines.client().await;
        compare(&client, &["/before".to_owned(), "/after".to_owned()]).await;
        client.close().await.unwrap();
    });
    assert_eq!(standing.stop(), Some(0));
}

#[test]
fn standing_by_without_what_it_needs_is_refused() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let refused = |data: &Path, more: &[&str], code: i32| {
        let serve = ["serve", "--data", text(data), "--listen", "127.0.0.1:0", "--http", "off"];
        fail(code, &[&serve[..], &["--standby"], more].concat())
    };
    let said = refused(&at("new"), &[], 2);
    assert!(said.contains("--standby needs --journal"), "{said}");
    fs::create_dir(at("store")).unwrap();
    let store = at("store");
    let said = refused(&at("new"), &["--journal", text(&store)], 2);
    assert!(said.contains("--journal-lease"), "{said}");
    let journal = ["--journal", text(&store), "--journal-lease", "3s"];
    let said = refused(&at("new"), &journal, 2);
    assert!(said.contains("--journal-key"), "{said}");
    assert!(!at("new").exists());
    // A directory of another journal is not touched.
    let machines = Machines::new(1);
    assert_eq!(machines.first().stop(), Some(0));
    let said = refused(&machines.data(0), &journal, 1);
    assert!(said.contains("is of the journal at"), "{said}");
    assert!(machines.data(0).join("meta").exists());
}
