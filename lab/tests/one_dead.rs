//! One dead server of three stops only operations on its own shards.
//!
//! A server that is not the coordinator is killed under a load of operations that each concern it
//! and another server, so that it leaves transactions in doubt, and stays dead. Programs on a mount
//! then work with files of the two others.
//!
//! Needs the built program (`cargo build --workspace --bins`), `/dev/fuse` and root.
#![expect(clippy::print_stdout, reason = "how long programs took is a part of the result")]

use std::{
    cell::Cell,
    collections::BTreeMap,
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use client::Client;
use futures::future::{select, select_all};
use lab::process::{Cluster, pando, text};
use tokio::time::{Instant, sleep};

const SERVERS: usize = 3;
const DEAD: usize = 1;
/// Duration of the load before the kill, and of the watch afterwards, which is longer than a lease.
const LOAD: Duration = Duration::from_millis(1500);
const WATCHED: Duration = Duration::from_secs(6);
/// Time limit of every program on living servers: of one that looks, and of one that changes
/// something. A second is promised for looks; a busy machine gets more.
const LOOKED: Duration = Duration::from_secs(2);
const ENDED: Duration = Duration::from_secs(5);
/// Number of tasks that work on several servers at once.
const LOADERS: usize = 12;

/// A mount that is removed however the test ends.
struct Mount {
    path: PathBuf,
    process: Child,
}

impl Mount {
    fn new(cluster: &Cluster) -> Mount {
        let path = cluster.beside("mnt");
        fs::create_dir(&path).expect("the folder is ours");
        let mut command = pando();
        command.args(["mount", &cluster.addresses().join(","), text(&path), "--foreground"]);
        let process = command.arg("--token").arg(cluster.token_file()).spawn();
        let mount = Mount { path, process: process.expect("it can be started") };
        let table = || fs::read_to_string("/proc/self/mountinfo").expect("there is a mount table");
        while !table().contains(text(&mount.path)) {
            std::thread::yield_now();
        }
        mount
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A server is away, and an orderly unmount would wait for it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The path of a directory in `/` on each server.
async fn directories(client: &Client, cluster: &Cluster) -> Vec<String> {
    let mut found = vec![None; SERVERS];
    for name in 0.. {
        let dir = format!("/dir-{name}");
        client.mkdir(&dir, 0o755).await.expect("all servers are there");
        let told = client.info(&dir).await.expect("it was just made");
        let (_, server) = told.iter().find(|(key, _)| key == "server").expect("it says where");
        let number = cluster.addresses().iter().position(|address| address == server);
        found[number.expect("it is one of ours")].get_or_insert(dir);
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().flatten().collect()
}

/// Moves files from the server that is killed to the others, adds and removes names, for ever.
async fn load_across(client: &Client, dirs: &[String], task: usize) -> Infallible {
    let root = String::new();
    let (doomed, living) = (&dirs[DEAD], [&dirs[0], &dirs[2], &root]);
    let (here, there) = (living[task % 3], living[(task + 1) % 3]);
    for n in 0_u64.. {
        let name = format!("{task}-{n}");
        let step = async {
            client.write(format!("{doomed}/{name}"), b"x").await?;
            client.rename(format!("{doomed}/{name}"), format!("{here}/{name}")).await?;
            client.link(format!("{here}/{name}"), format!("{there}/{name}")).await?;
            client.unlink(format!("{here}/{name}")).await?;
            client.mkdir(format!("{here}/d{name}"), 0o755).await?;
            client.rmdir(format!("{here}/d{name}")).await
        };
        step.await.expect("nothing is refused");
    }
    unreachable!("so many operations take longer than any test")
}

/// Makes and removes files on one living server, for ever; counts them.
async fn load_beside(client: &Client, dir: &str, task: usize, done: &Cell<u64>) -> Infallible {
    for n in 0_u64.. {
        let path = format!("{dir}/own-{task}-{n}");
        client.write(&path, b"x").await.expect("it is on a server that lives");
        client.unlink(&path).await.expect("it is on a server that lives");
        done.set(done.get() + 1);
    }
    unreachable!("so many operations take longer than any test")
}

/// Programs that are run again and again, with their arguments.
fn programs(mount: &Path, living: &[&String]) -> Vec<Vec<String>> {
    let at = |path: &str| format!("{}{path}", mount.display());
    let words = |line: &[&str]| line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let root = at("/");
    let mut all = vec![words(&["ls", &root]), words(&["stat", &root]), words(&["df", &root])];
    for dir in living {
        let (dir, old, probe) = (at(dir), at(&format!("{dir}/old")), at(&format!("{dir}/probe")));
        // Not with -l: names in doubt are in the directory, and directories on the dead server.
        all.push(words(&["ls", &dir]));
        all.push(words(&["stat", &dir]));
        all.push(words(&["stat", &old]));
        all.push(words(&["cat", &old]));
        let (to, conv) = (format!("of={probe}"), "conv=fsync".to_owned());
        all.push(words(&["dd", "if=/dev/zero", &to, "bs=1k", "count=8", &conv, "status=none"]));
        all.push(words(&["rm", &probe]));
    }
    all
}

/// Runs a program; returns its duration, or `None` when it did not end in time.
async fn run(words: Vec<String>) -> Option<Duration> {
    let within = if ["dd", "rm"].contains(&words[0].as_str()) { ENDED } else { LOOKED };
    let begin = Instant::now();
    let run = move || {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", &within.as_secs().to_string()]).args(&words);
        let end = command.stdout(Stdio::null()).stderr(Stdio::piped()).output();
        end.expect("it can be started")
    };
    let end = tokio::task::spawn_blocking(run).await.expect("it does not panic");
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&end.stderr);
    assert!(took >= within || end.status.success(), "{said}");
    (took < within).then_some(took)
}

#[tokio::test(flavor = "current_thread")]
async fn one_dead_server_of_three_stops_only_what_is_on_it() {
    watch(|cluster, server| assert!(cluster.kill(server))).await;
}

#[tokio::test(flavor = "current_thread")]
async fn one_silent_server_of_three_stops_only_what_is_on_it() {
    watch(Cluster::stop).await;
}

/// Works on three servers while one of them goes `away`.
async fn watch(away: fn(&Cluster, usize)) {
    // Answers wait for the disk, so that more transactions are under way when the server dies.
    let cluster =
        Cluster::start(SERVERS, &["--cores", "2", "--serve-options", "--durability strict"]);
    let client = cluster.connect("load").await;
    let dirs = directories(&client, &cluster).await;
    let living: Vec<&String> = (0..SERVERS).filter(|n| *n != DEAD).map(|n| &dirs[n]).collect();
    for dir in &living {
        client.write(format!("{dir}/old"), b"old").await.expect("all servers are there");
    }
    let mount = Mount::new(&cluster);
    let done = Cell::new(0);
    let across = select_all((0..LOADERS).map(|task| Box::pin(load_across(&client, &dirs, task))));
    let beside = living.iter().enumerate();
    let beside = beside.map(|(task, dir)| Box::pin(load_beside(&client, dir, task, &done)));
    let load = select(across, select_all(beside));

    let watch = async {
        for program in programs(&mount.path, &living) {
            let said = program.join(" ");
            assert!(run(program).await.is_some(), "{said}: with all servers alive");
        }
        sleep(LOAD).await;
        away(&cluster, DEAD);
        let (killed, before) = (Instant::now(), done.get());
        let mut taken: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        while killed.elapsed() < WATCHED {
            for program in programs(&mount.path, &living) {
                let said = program.join(" ");
                let at = killed.elapsed();
                let took = run(program).await;
                let took =
                    took.unwrap_or_else(|| unreachable!("{said}: hangs, {at:?} after the kill"));
                taken.entry(said).or_default().push(took);
            }
        }
        let beside = done.get() - before;
        for (said, mut took) in taken {
            took.sort_unstable();
            let [median, most] = [took[took.len() / 2], took[took.len() - 1]]
                .map(|took| took.as_secs_f64() * 1000.0);
            println!("{median:6.0} ms, {most:6.0} ms at most of {:3}: {said}", took.len());
        }
        println!("{beside} files were made and removed beside the dead server");
        assert!(beside > 0, "what is on a living server goes on");
        cluster.go_on(DEAD);
    };
    tokio::select! {
        () = watch => {}
        _ = load => unreachable!("the load has no end"),
    }
}
