//! One directory of very many names, on four servers of two cores. One server after the other is
//! killed and started again: eight clients make the directory while it splits, and two remove it
//! while it is merged.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use base::{FileKind, FsError, HashMap};
use client::{Client, Config, Error, New};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{folder, pando, pause, succeed, text};

const CLIENTS: usize = 8;
const FILES: usize = 25_000;
const IN_FLIGHT: usize = 32;
const DIR: &str = "/crowd";
/// The pause between two kills.
const CALM: Duration = Duration::from_millis(2500);

/// `pando dev`, whose servers end with it.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        // If it has ended there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Servers that `pando dev --restart` runs.
struct Servers {
    said: BufReader<ChildStdout>,
    pids: HashMap<String, Pid>,
}

impl Servers {
    /// Reads what is said until it has this; what was said of servers meanwhile is known.
    fn until(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended before it said {what}");
            if let (Some(name), Some((_, pid))) = (line.get(..8), line.split_once("pid ")) {
                let digits: String = pid.chars().take_while(char::is_ascii_digit).collect();
                self.pids.insert(name.to_owned(), Pid::from_raw(digits.parse().unwrap()).unwrap());
            }
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Kills one after the other until it is told to stop; how many it has killed.
    fn kill_until(&mut self, stop: &AtomicBool) -> usize {
        let mut kills = 0;
        while !stop.load(Ordering::Relaxed) {
            let name = format!("server {}", kills % 4);
            kill_process(self.pids[&name], Signal::KILL).unwrap();
            kills += 1;
            self.until(&format!("{name} was started again"));
            pause(CALM);
        }
        kills
    }
}

/// Says that a work has ended, also by a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn make(client: &Client, number: usize) {
    let made = stream::iter(0..FILES).map(|file| async move {
        let new = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
        client.mknod(format!("{DIR}/{number}-{file}"), new).await.map(drop)
    });
    made.buffer_unordered(IN_FLIGHT).try_for_each(async |()| Ok(())).await.unwrap();
}

async fn names(client: &Client) -> Vec<String> {
    let listed = client.read_dir(DIR).await.unwrap().all().await.unwrap();
    listed.iter().map(|entry| entry.name.to_string()).collect()
}

/// Removes everything as `rm -r` does, beside another one.
async fn remove(client: &Client) {
    let removed = stream::iter(names(client).await).map(|name| async move {
        match client.unlink(format!("{DIR}/{name}")).await {
            Ok(()) | Err(Error::Fs(FsError::NotFound)) => Ok(()),
            Err(error) => Err(error),
        }
    });
    removed.buffer_unordered(IN_FLIGHT).try_for_each(async |()| Ok(())).await.unwrap();
}

#[test]
fn a_large_directory_is_made_and_removed_while_servers_are_killed() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let args = ["dev", "--dir", text(&dir), "--servers", "4", "--listen", "127.0.0.1:0"];
    let mut command =
        pando(&[&args[..], &["--restart", "--cores", "2", "--lease", "500ms"]].concat());
    let mut dev = Dev(command.stdout(Stdio::piped()).spawn().unwrap());
    let said = BufReader::new(dev.0.stdout.take().unwrap());
    let mut servers = Servers { said, pids: HashMap::default() };
    let ready = servers.until("serving ");
    let address = ready.split_whitespace().nth(4).unwrap().to_owned();
    let token = dir.join("admin.token");
    let text_of_token = fs::read_to_string(&token).unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let connect = || {
        let addresses = address.split(',').map(str::to_owned).collect();
        let config = Config::new(addresses, text_of_token.trim());
        Box::pin(Client::connect(config))
    };
    let clients: Vec<Client> = runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(connect().await.unwrap());
        }
        clients[0].mkdir(DIR, 0o755).await.unwrap();
        clients
    });
    let while_killing = |servers: &mut Servers, work: &dyn Fn()| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let killer = scope.spawn(|| servers.kill_until(&stop));
            let working = SetAtEnd(&stop);
            work();
            drop(working);
            killer.join().unwrap()
        })
    };
    let kills = while_killing(&mut servers, &|| {
        runtime.block_on(async {
            let making = clients.iter().enumerate().map(|(number, client)| make(client, number));
            futures::future::join_all(making).await;
        });
    });
    assert!(kills > 0, "it was made before a server was killed");

    let all = CLIENTS * FILES;
    let mut expected: Vec<String> = (0..CLIENTS)
        .flat_map(|number| (0..FILES).map(move |file| format!("{number}-{file}")))
        .collect();
    expected.sort_unstable();
    for client in &clients[..2] {
        let mut found = runtime.block_on(names(client));
        found.sort_unstable();
        assert!(found == expected, "{} names are listed, not {all}", found.len());
        assert_eq!(runtime.block_on(client.stat(DIR)).unwrap().size, all as u64);
    }
    let told = succeed(&["get", &format!("{address}{DIR}"), "--token", text(&token)]);
    let partitions = told.lines().find(|line| line.starts_with("partitions")).unwrap();
    let partitions: u32 = partitions.split_whitespace().last().unwrap().parse().unwrap();
    assert!(partitions > 4, "{told}");

    let kills = while_killing(&mut servers, &|| {
        runtime.block_on(async { tokio::join!(remove(&clients[0]), remove(&clients[1])) });
    });
    assert!(kills > 0, "it was removed before a server was killed");
    runtime.block_on(async {
        assert_eq!(names(&clients[2]).await, Vec::<String>::new());
        clients[2].rmdir(DIR).await.unwrap();
    });
    succeed(&["fsck", &address, "--token", text(&token)]);
    kill_process(Pid::from_child(&dev.0), Signal::TERM).unwrap();
    assert_eq!(dev.0.wait().unwrap().code(), Some(0));
}
