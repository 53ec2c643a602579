//! A server with a journal: its machine is lost, its store is away, and two processes want it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use client::Client;
use rustix::process::Signal;
use s3s::{
    S3, S3Request, S3Response, S3Result,
    dto::{
        DeleteObjectInput, DeleteObjectOutput, GetObjectInput, GetObjectOutput, PutObjectInput,
        PutObjectOutput,
    },
};
use tempfile::TempDir;

use crate::{
    backups::{SECRET, Store, as_admin, serve, start, status, until, with_keys},
    harness::{Running, fail, folder, pando, pause, run, stderr, succeed, text},
};

/// A file system with contents in a shared store, and a place for its journal.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn formatted() -> Machine {
        let machine = Machine { folder: folder() };
        let contents = machine.at("contents");
        succeed(&["format", "--data", text(&machine.at("data")), "--blocks", text(&contents)]);
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self, more: &[&str]) -> Running {
        let store = self.at("store");
        let server = start(&self.at("data"), &[&["--journal", text(&store)], more].concat());
        until_in_force(&server, &self.at("data"));
        server
    }

    /// Makes a directory `name` that goes on where the journal ends.
    fn recover(&self, name: &str) -> String {
        let (store, key) = (self.at("store"), self.at("data/backup.key"));
        let from = ["journal", "recover", "--from", text(&store), "--key", text(&key)];
        succeed(&[&from[..], &["--data", text(&self.at(name))]].concat())
    }

    /// Segments in the store, by name.
    fn segments(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.at("store")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if text(&path).contains("/journal/") {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

/// An S3 store where a put never looks whether the object is there.
struct Careless(s3s_fs::FileSystem);

#[async_trait::async_trait]
impl S3 for Careless {
    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        request.input.if_none_match = None;
        self.0.put_object(request).await
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.0.get_object(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.0.delete_object(request).await
    }
}

fn gauge(status: &serde_json::Value, name: &str) -> u64 {
    status["journal"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status:#}"))
}

fn until_in_force(server: &Running, data: &Path) {
    until(server, data, "in force", |_, status| status["journal"]["in_force"] == true);
}

/// Makes files, each stable when its number is counted, until it is told to stop or a call fails.
async fn make_files(client: &Client, names: &str, made: &mut Vec<String>, stop: &AtomicBool) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let path = format!("/{names}-{number}");
        let contents = path.repeat(1 + number % 400);
        let done = async {
            client.write(&path, contents.as_bytes()).await?;
            client.sync().await
        };
        match tokio::time::timeout(Duration::from_secs(5), done).await {
            Ok(Ok(())) => made.push(path),
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

fn compare(server: &Running, data: &Path, names: &[String]) {
    as_admin(server, data, async |client| {
        for (number, path) in names.iter().enumerate() {
            let found = client.read(path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(found, path.repeat(1 + number % 400).as_bytes(), "{path}");
        }
    });
    let token = data.join("admin.token");
    let checked = succeed(&["fsck", server.address(), "--token", text(&token)]);
    assert!(checked.contains("nothing is wrong"), "{checked}");
}

#[test]
fn what_was_stable_on_a_machine_that_is_lost_is_there_on_another_one() {
    let machine = Machine::formatted();
    let server = machine.serve(&["--backup-every", "1s"]);
    let mut made = Vec::new();
    // The key is kept elsewhere, as everybody is told to.
    as_admin_until_killed(&server, &machine.at("data"), &mut made);
    drop(server);
    assert!(made.len() > 20, "{}", made.len());
    let said = machine.recover("second");
    assert!(said.contains("and the journal up to change"), "{said}");
    // The directory says how it is served.
    let mut second = start(&machine.at("second"), &[]);
    compare(&second, &machine.at("second"), &made);
    assert_eq!(gauge(&status(&second, &machine.at("second")).1, "generation"), 2);

    // The old directory never serves again, however it is tried.
    let data = machine.at("data");
    let elsewhere = machine.at("elsewhere");
    let tries: [&[&str]; 5] =
        [&[], &[], &["--journal", "off"], &["--backup", "off"], &["--journal", text(&elsewhere)]];
    for more in tries {
        let args = ["serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
        let said = fail(1, &[&args[..], more].concat());
        assert!(said.contains("another server has taken the journal"), "{more:?}: {said}");
    }
    let said = fail(1, &["backup", "now", "--data", text(&data)]);
    assert!(said.contains("another server has taken the journal"), "{said}");
    // A directory that was recovered before the other one served is out of date as well.
    until_in_force(&second, &machine.at("second"));
    machine.recover("third");
    assert_eq!(second.stop(), Some(0));
    second = start(&machine.at("second"), &[]);
    let said = fail(1, &["serve", "--data", text(&machine.at("third")), "--listen", "127.0.0.1:0"]);
    assert!(said.contains("another server has taken the journal"), "{said}");
    compare(&second, &machine.at("second"), &made);
    // Crashes and starts in turns, each with changes that are stable, and then another machine.
    for round in 0..3 {
        as_admin(&second, &machine.at("second"), async |client| {
            client.write(&format!("/round-{round}"), b"round").await.unwrap();
            client.sync().await.unwrap();
        });
        second.signal(Signal::KILL);
        second.wait();
        second = start(&machine.at("second"), &[]);
    }
    assert_eq!(second.stop(), Some(0));
    machine.recover("fourth");
    second = start(&machine.at("fourth"), &[]);
    compare(&second, &machine.at("fourth"), &made);
    as_admin(&second, &machine.at("fourth"), async |client| {
        for round in 0..3 {
            assert_eq!(client.read(&format!("/round-{round}")).await.unwrap(), b"round"[..]);
        }
    });
    assert_eq!(second.stop(), Some(0));
    let (store, key) = (machine.at("store"), machine.at("second/backup.key"));
    let said = succeed(&["journal", "verify", "--from", text(&store), "--key", text(&key)]);
    assert!(said.contains("generation 7") && said.contains("leads to the end"), "{said}");
}

/// Makes files until the server is killed.
fn as_admin_until_killed(server: &Running, data: &Path, made: &mut Vec<String>) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            pause(Duration::from_secs(3));
            server.signal(Signal::KILL);
            stop.store(true, Ordering::Relaxed);
        });
        let token = fs::read_to_string(data.join("admin.token")).unwrap();
        let config = client::Config::new(vec![server.address().to_owned()], token.trim());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Box::pin(Client::connect(config)).await.unwrap();
            make_files(&client, "file", made, &stop).await;
        });
        killer.join().unwrap();
    });
}

#[test]
fn a_server_that_wakes_up_after_it_was_replaced_tells_nothing_and_stops() {
    let machine = Machine::formatted();
    let mut old = machine.serve(&[]);
    as_admin(&old, &machine.at("data"), async |client| {
        client.write("/before", b"before").await.unwrap();
        client.sync().await.unwrap();
    });
    old.signal(Signal::STOP);
    machine.recover("second");
    let second = start(&machine.at("second"), &[]);
    as_admin(&second, &machine.at("second"), async |client| {
        client.write("/after", b"after").await.unwrap();
        client.sync().await.unwrap();
    });
    old.signal(Signal::CONT);
    // An idle server looks at its journal, and ends.
    assert!(!old.wait().success());
    as_admin(&second, &machine.at("second"), async |client| {
        assert_eq!(client.read("/before").await.unwrap(), b"before"[..]);
        assert_eq!(client.read("/after").await.unwrap(), b"after"[..]);
    });
    assert_eq!(second.stop(), Some(0));
}

#[test]
fn a_store_that_is_away_holds_up_what_must_be_stable_and_nothing_else() {
    let machine = Machine::formatted();
    let (store, away) = (machine.at("store"), machine.at("away"));
    let data = machine.at("data");
    let server = machine.serve(&[]);
    as_admin(&server, &data, async |client| {
        client.write("/before", b"before").await.unwrap();
        client.sync().await.unwrap();
        fs::rename(&store, &away).unwrap();
        client.write("/while", b"while").await.unwrap();
        let sync = tokio::time::timeout(Duration::from_millis(500), client.sync());
        assert!(sync.await.is_err(), "it is stable nowhere else");
        assert_eq!(client.read("/while").await.unwrap(), b"while"[..]);
    });
    until(&server, &data, "failing", |code, status| {
        code == 3 && status["problems"][0].as_str().is_some_and(|it| it.contains("the journal at"))
    });
    // Not even a directory is made beneath the mount point.
    assert!(!store.exists());
    fs::create_dir(&store).unwrap();
    pause(Duration::from_millis(300));
    assert_eq!(fs::read_dir(&store).unwrap().count(), 0);
    fs::remove_dir(&store).unwrap();
    fs::rename(&away, &store).unwrap();
    as_admin(&server, &data, async |client| client.sync().await.unwrap());
    until(&server, &data, "well", |code, _| code == 0);

    // Changes that only the log has go to the journal at the next start.
    fs::rename(&store, &away).unwrap();
    as_admin(&server, &data, async |client| {
        client.write("/unsent", b"unsent").await.unwrap();
    });
    server.signal(Signal::KILL);
    drop(server);
    let said = fail(1, &["serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
    assert!(said.contains("there is no directory"), "{said}");
    fs::rename(&away, &store).unwrap();
    let mut server = start(&data, &[]);
    server.signal(Signal::KILL);
    server.wait();
    machine.recover("second");
    let second = start(&machine.at("second"), &[]);
    as_admin(&second, &machine.at("second"), async |client| {
        for path in ["/before", "/while", "/unsent"] {
            client.stat(path).await.unwrap();
        }
    });
    assert_eq!(second.stop(), Some(0));
}

#[test]
fn segments_that_no_base_needs_are_removed_and_a_journal_can_be_ended() {
    let machine = Machine::formatted();
    let data = machine.at("data");
    let server = machine.serve(&["--backup-every", "1s", "--backup-keep", "0s"]);
    for round in 0..200 {
        as_admin(&server, &data, async |client| {
            client.write(&format!("/{round}"), b"contents").await.unwrap();
            client.sync().await.unwrap();
        });
        let segments = machine.segments();
        // The first one is a fence, which stays.
        assert!(text(&segments[0]).ends_with("0000000000000001"));
        if segments.get(1).is_some_and(|next| !text(next).ends_with("0000000000000002")) {
            break;
        }
        assert!(round < 199, "nothing is removed");
        pause(Duration::from_millis(100));
    }
    // The last segments stay.
    let (store, key) = (machine.at("store"), data.join("backup.key"));
    let verify = ["journal", "verify", "--from", text(&store), "--key", text(&key)];
    assert_eq!(server.stop(), Some(0));
    assert!(succeed(&verify).contains("leads to the end"));

    // Without the journal bases have a history of their own, and with one again it begins anew.
    let server = start(&data, &["--journal", "off"]);
    assert!(status(&server, &data).1["journal"].is_null());
    assert_eq!(server.stop(), Some(0));
    assert!(!data.join("journal.json").exists());
    let server = machine.serve(&[]);
    assert_eq!(server.stop(), Some(0));
    let said = fail(1, &verify);
    assert!(said.contains("several histories have a journal"), "{said}");
    let noted = fs::read_to_string(data.join("backup.json")).unwrap();
    let noted: serde_json::Value = serde_json::from_str(&noted).unwrap();
    let history = format!("{:016x}", noted["history"].as_u64().unwrap());
    let said = succeed(&[&verify[..], &["--history", &history]].concat());
    assert!(said.contains("generation 1"), "{said}");
}

#[test]
fn a_place_that_cannot_hold_a_journal_is_refused() {
    let machine = Machine::formatted();
    let local = machine.at("local");
    let store = machine.at("store");
    succeed(&["format", "--data", text(&local)]);
    let said = fail(2, &["serve", "--data", text(&local), "--journal", text(&store)]);
    assert!(said.contains("needs contents of files in a shared store"), "{said}");
    let other = machine.at("other");
    let data = machine.at("data");
    let both =
        ["serve", "--data", text(&data), "--journal", text(&store), "--backup", text(&other)];
    assert!(fail(2, &both).contains("in one place"));

    // A store that takes no notice of conditions.
    let root = folder();
    fs::create_dir(root.path().join("bucket")).unwrap();
    let careless = Careless(s3s_fs::FileSystem::new(root.path()).unwrap());
    let s3 = Store::over(careless, "127.0.0.1:0");
    let url = Store::url(s3.address);
    let check = with_keys(pando(&["journal", "check", &url]), SECRET).output().unwrap();
    assert!(!check.status.success() && stderr(&check).contains("must not hold a journal"));
    let mut served: Command = serve(&data, &["--journal", &url]);
    served = with_keys(served, SECRET);
    let served = served.output().unwrap();
    assert!(stderr(&served).contains("must not hold a journal"), "{}", stderr(&served));

    fs::create_dir(&store).unwrap();
    let said = succeed(&["journal", "check", text(&store), "--puts", "3"]);
    assert!(said.contains("can hold a journal") && said.contains("half of 3"), "{said}");
    assert!(run(&["journal", "check", text(&other)]).status.code() == Some(1));
}
