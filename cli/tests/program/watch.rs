//! `pando watch`: what it prints, and from where it goes on.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    cluster::Forming,
    harness::{Data, fail, folder, pando, pause, run, stderr, succeed, text, unmount},
    mounted::Mountpoint,
};

/// A watch in the background, whose lines go to a file.
struct Watcher {
    process: Child,
    lines: PathBuf,
}

impl Watcher {
    /// Starts to watch, and returns when the servers know it.
    fn start(folder: &Path, args: &[&str]) -> Watcher {
        let (lines, said) = (folder.join("watched"), folder.join("said"));
        let mut command = pando(args);
        command.stdout(File::create(&lines).unwrap()).stderr(File::create(&said).unwrap());
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let watcher = Watcher { process, lines };
        for _ in 0..600 {
            if fs::read_to_string(&said).unwrap().contains("watching ") {
                return watcher;
            }
            pause(Duration::from_millis(50));
        }
        panic!("it does not watch: {}", fs::read_to_string(&said).unwrap());
    }

    /// The changes and paths that are printed, once there are so many.
    fn told(&self, count: usize) -> Vec<String> {
        for _ in 0..600 {
            let lines = fs::read_to_string(&self.lines).unwrap();
            if lines.lines().count() >= count {
                return lines.lines().map(short).collect();
            }
            pause(Duration::from_millis(50));
        }
        panic!("only this is told: {}", fs::read_to_string(&self.lines).unwrap());
    }

    /// The changes and paths that are printed, once this is the last one.
    fn told_up_to(&self, last: &str) -> Vec<String> {
        for _ in 0..600 {
            let told = self.told(1);
            if told.last().is_some_and(|line| line == last) {
                return told;
            }
            pause(Duration::from_millis(50));
        }
        panic!("{last} is not told: {:?}", self.told(1));
    }

    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // If it has ended there is nothing to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A line without its time.
fn short(line: &str) -> String {
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

/// The lines of JSON of a watch that ends, but for the one that says where it begins.
fn since(server: &str, token: &Path, position: &str) -> Vec<Value> {
    let args = ["watch", server, "--token", text(token), "--since", position, "--once", "--json"];
    let lines = succeed(&args);
    let mut lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let begins = lines.next().unwrap();
    assert_eq!((&begins["change"], &begins["position"]), (&"begins".into(), &position.into()));
    lines.collect()
}

#[test]
fn a_watch_prints_what_changes_at_any_client_and_goes_on_from_a_position() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let folder = data.folder.path();
    let mount = Mountpoint::new(folder);
    let there = mount.0.clone();
    succeed(&["mount", server.address(), text(&mount.0), "--token", text(&token)]);
    fs::create_dir(there.join("w")).unwrap();

    let at = format!("{}/w", server.address());
    let watcher = Watcher::start(folder, &["watch", &at, "--token", text(&token)]);
    fs::create_dir(there.join("w/dir")).unwrap();
    fs::write(there.join("w/dir/file"), b"some bytes").unwrap();
    fs::rename(there.join("w/dir/file"), there.join("w/other")).unwrap();
    fs::write(there.join("elsewhere"), b"nobody watches").unwrap();
    // A file that is removed before the server hears that it was closed is told as removed only.
    watcher.told(5);
    fs::remove_file(there.join("w/other")).unwrap();
    fs::remove_dir(there.join("w/dir")).unwrap();
    let mut told = watcher.told(7);
    let written = told.iter().position(|line| line.starts_with("written ")).unwrap();
    told.remove(written);
    let expected = [
        "created /w/dir/",
        "created /w/dir/file",
        "moved-from /w/dir/file",
        "moved-to /w/other",
        "removed /w/other",
        "removed /w/dir/",
    ];
    assert_eq!(told, expected);
    assert_eq!(watcher.stop(), Some(0));

    // By a path on the mount, as JSON.
    let mounted = there.join("w");
    let args = ["watch", text(&mounted), "--token", text(&token)];
    let watcher = Watcher::start(folder, &args);
    fs::create_dir(there.join("w/new")).unwrap();
    assert_eq!(watcher.told(1), [format!("created {}/", text(&there.join("w/new")))]);
    let said = fs::read_to_string(folder.join("said")).unwrap();
    let position = said.split_whitespace().last().unwrap();
    let line = &since(&at, &token, position)[0];
    assert_eq!((&line["change"], &line["path"]), (&"created".into(), &"/w/new".into()));
    assert_eq!((&line["kind"], &line["server"]), (&"directory".into(), &0.into()));
    assert!(line["time"].as_str().unwrap().starts_with("20") && line["inode"].is_u64(), "{line}");
    let next = line["position"].as_str().unwrap();
    assert_eq!(since(&at, &token, next), [Value::Null; 0]);
    assert_eq!(watcher.stop(), Some(0));

    let args = ["watch", &at, "--token", text(&token)];
    let output = run(&[&args[..], &["--since", "yesterday"]].concat());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not a position of `pando watch`"), "{said}");
    let said = fail(2, &[&args[..], &["--since", "w1.1.0"]].concat());
    assert!(said.contains("another file system"), "{said}");
    let file = format!("{}/elsewhere", server.address());
    let said = fail(1, &["watch", &file, "--token", text(&token)]);
    assert!(said.contains("cannot watch /elsewhere"), "{said}");
    unmount(&mount.0);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_watch_goes_on_while_a_server_is_dead() {
    let forming = Forming::of("2");
    let second = forming.join("second");
    forming.until_sound();
    let (address, token) = (forming.address.as_str(), text(&forming.token));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let secret = fs::read_to_string(&forming.token).unwrap();
    let config = client::Config::new(vec![address.to_owned()], secret.trim());
    let client = runtime.block_on(Box::pin(client::Client::connect(config))).unwrap();
    let folder = folder();
    let all = format!("{address}/");
    let watcher = Watcher::start(folder.path(), &["watch", &all, "--token", token]);
    let said = fs::read_to_string(folder.path().join("said")).unwrap();
    let position = said.split_whitespace().last().unwrap();

    // A directory whose names the second server has.
    let there = runtime.block_on(async {
        for name in 0.. {
            let dir = format!("/dir-{name}");
            client.mkdir(&dir, 0o755).await.unwrap();
            let told = client.info(&dir).await.unwrap();
            if told.iter().any(|(key, value)| key == "server" && value == second.address()) {
                client.mkdir(format!("{dir}/before"), 0o755).await.unwrap();
                return dir;
            }
        }
        unreachable!("half of all directories are there");
    });
    let before = watcher.told_up_to(&format!("created {there}/before/"));

    second.signal(Signal::KILL);
    drop(second);
    runtime.block_on(async {
        // The root is on the first server.
        client.symlink("nowhere", "/meanwhile").await.unwrap();
    });
    let told = watcher.told_up_to("created /meanwhile");
    assert_eq!(told.len(), before.len() + 1);
    let args = ["watch", &all, "--token", token, "--since", position, "--once"];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("does not answer"), "{}", stderr(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().last().map(short).as_deref(), Some("created /meanwhile"));

    let second = forming.start_again("second");
    forming.until_sound();
    runtime.block_on(async {
        client.mkdir(format!("{there}/after"), 0o755).await.unwrap();
    });
    let told = watcher.told_up_to(&format!("created {there}/after/"));
    assert_eq!(watcher.stop(), Some(0));
    let paths: Vec<_> = since(&all, &forming.token, position)
        .iter()
        .map(|line| line["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(paths.len(), told.len(), "{paths:?} {told:?}");
    runtime.block_on(async { client.close().await }).unwrap();
    assert_eq!((second.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}
