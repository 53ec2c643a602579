//! Backups of one server: made beside load, restored elsewhere, and what is said when they fail.

mod changed;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use client::{Client, Config};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use rustix::process::Signal;
use s3s::{S3, auth::SimpleAuth, service::S3ServiceBuilder};
use tokio::{net::TcpListener, runtime::Runtime};

use crate::harness::{Data, Running, fail, folder, pando, pause, run, stderr, succeed, text};

pub(crate) const SECRET: &str = "of-the-store";
const FREE: [&str; 4] = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];

/// An S3 server with one bucket on loopback, which goes with the value.
pub(crate) struct Store {
    pub(crate) address: SocketAddr,
    _runtime: Runtime,
}

impl Store {
    pub(crate) fn start(root: &Path, at: &str) -> Store {
        fs::create_dir_all(root.join("bucket")).unwrap();
        Store::over(s3s_fs::FileSystem::new(root).unwrap(), at)
    }

    /// A store of this service.
    pub(crate) fn over(service: impl S3, at: &str) -> Store {
        let mut service = S3ServiceBuilder::new(service);
        service.set_auth(SimpleAuth::from_single("id", SECRET));
        let service = service.build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind(at)).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    builder.serve_connection(TokioIo::new(socket), service).await
                });
            }
        });
        Store { address, _runtime: runtime }
    }

    pub(crate) fn url(address: SocketAddr) -> String {
        format!("s3://bucket/here?endpoint=http://{address}&allow_http=true&region=here")
    }
}

pub(crate) fn with_keys(mut command: Command, secret: &str) -> Command {
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", secret);
    command
}

pub(crate) fn serve(data: &Path, more: &[&str]) -> Command {
    pando(&[&["serve", "--data", text(data)], &FREE[..], more].concat())
}

pub(crate) fn start(data: &Path, more: &[&str]) -> Running {
    Running::start(serve(data, more), "serving ")
}

/// `pando status --json`, and its exit code.
pub(crate) fn status(server: &Running, data: &Path) -> (i32, serde_json::Value) {
    let token = data.join("admin.token");
    let output = run(&["status", "--json", server.address(), "--token", text(&token)]);
    let status = serde_json::from_slice(&output.stdout);
    (output.status.code().unwrap(), status.unwrap_or_else(|_| panic!("{}", stderr(&output))))
}

/// Waits until the state of the backup is as it should be.
pub(crate) fn until(
    server: &Running,
    data: &Path,
    what: &str,
    is: impl Fn(i32, &serde_json::Value) -> bool,
) {
    for _ in 0..600 {
        let (code, status) = status(server, data);
        if is(code, &status) {
            return;
        }
        pause(Duration::from_millis(50));
    }
    panic!("not {what}: {:#}", status(server, data).1);
}

/// Number of the newest base.
fn newest(status: &serde_json::Value) -> u64 {
    status["backup"]["newest"].as_u64().unwrap()
}

/// Waits until a base was made whose copy was begun after this call: the second one from now on.
fn until_current(server: &Running, data: &Path) {
    let before = newest(&status(server, data).1);
    until(server, data, "backed up", |code, status| code == 0 && newest(status) >= before + 2);
}

fn until_failing(server: &Running, data: &Path) {
    until(server, data, "failing", |code, status| {
        code == 3 && status["problems"][0].as_str().is_some_and(|it| it.contains("the backup to"))
    });
}

pub(crate) fn as_admin<T>(
    server: &Running,
    data: &Path,
    work: impl AsyncFnOnce(&Client) -> T,
) -> T {
    let token = fs::read_to_string(data.join("admin.token")).unwrap();
    let config = Config::new(vec![server.address().to_owned()], token.trim());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        let done = Box::pin(work(&client)).await;
        client.close().await.unwrap();
        done
    })
}

/// Makes a tree of small files; the paths and contents.
fn make_tree(server: &Running, data: &Path, round: u32) -> Vec<(String, Vec<u8>)> {
    as_admin(server, data, async |client| {
        let mut made = Vec::new();
        for number in 0..20 {
            let dir = format!("/{round}-{number}");
            client.mkdir(&dir, 0o755).await.unwrap();
            let (file, contents) = (format!("{dir}/file"), format!("{round} {number}").repeat(50));
            client.write(&file, contents.as_bytes()).await.unwrap();
            made.push((file, contents.into_bytes()));
        }
        made
    })
}

fn compare(server: &Running, data: &Path, tree: &[(String, Vec<u8>)]) {
    as_admin(server, data, async |client| {
        for (file, contents) in tree {
            assert_eq!(client.read(file).await.unwrap()[..], contents[..], "{file}");
        }
    });
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.map(|entry| entry.path());
    below.flat_map(|path| if path.is_dir() { objects(&path) } else { vec![path] }).collect()
}

#[test]
fn a_server_that_is_lost_with_its_directory_is_restored_elsewhere() {
    let data = Data { folder: folder() };
    let blocks = data.folder.path().join("contents");
    succeed(&["format", "--data", text(&data.path()), "--blocks", text(&blocks)]);
    let place = data.folder.path().join("store");
    let key = data.folder.path().join("key");
    let server = start(&data.path(), &["--backup", text(&place), "--backup-every", "1s"]);
    let mut tree = make_tree(&server, &data.path(), 0);
    until_current(&server, &data.path());
    tree.extend(make_tree(&server, &data.path(), 1));
    until_current(&server, &data.path());
    fs::write(&key, succeed(&["backup", "key", "--data", text(&data.path())])).unwrap();
    let newest = as_admin(&server, &data.path(), async |client| {
        client.stat("/1-19/file").await.unwrap().ino.0
    });
    server.signal(Signal::KILL);
    drop(server);
    fs::remove_dir_all(data.path()).unwrap();

    let elsewhere = data.folder.path().join("elsewhere");
    let from = ["--from", text(&place), "--key", text(&key)];
    assert!(succeed(&[&["backup", "check"], &from[..]].concat()).contains("is sound"));
    let listed = succeed(&[&["backup", "list", "--json"], &from[..]].concat());
    assert!(listed.contains("\"complete\": true"), "{listed}");
    let said = succeed(&[&["backup", "restore", "--data", text(&elsewhere)], &from[..]].concat());
    assert!(said.contains("restored data in"), "{said}");
    let server = start(&elsewhere, &[]);
    compare(&server, &elsewhere, &tree);
    let (_, shown) = status(&server, &elsewhere);
    assert_eq!(shown["backup"]["is_restored_copy"], true, "{shown:#}");
    let next = as_admin(&server, &elsewhere, async |client| {
        client.write("/new", b"x").await.unwrap();
        client.stat("/new").await.unwrap().ino.0
    });
    assert_ne!(next, newest);
    // The original may live: its blocks stay.
    let token = elsewhere.join("admin.token");
    let fsck = |more: &str| run(&["fsck", server.address(), "--token", text(&token), more]);
    assert!(fsck("--json").status.success());
    let refused = fsck("--gc");
    assert!(stderr(&refused).contains("pando backup final"), "{}", stderr(&refused));
    assert_eq!(server.stop(), Some(0));
    succeed(&["backup", "final", "--data", text(&elsewhere)]);
    // The copy has a history of its own in the same place.
    let more = ["--backup", text(&place), "--backup-every", "1s"];
    let server = start(&elsewhere, &more);
    until_current(&server, &elsewhere);
    let gc = run(&["fsck", server.address(), "--token", text(&token), "--gc"]);
    assert!(gc.status.success(), "{}", stderr(&gc));
    assert_eq!(server.stop(), Some(0));
    let listed = succeed(&[&["backup", "list"], &from[..]].concat());
    let histories = listed.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2));
    let histories: BTreeSet<_> = histories.collect();
    assert_eq!(histories.len(), 2, "{listed}");
    choose_and_forget(&elsewhere, &from, &listed);
}

/// Two histories are told apart, and the one of the original is removed.
fn choose_and_forget(copy: &Path, from: &[&str], listed: &str) {
    let check = [&["backup", "check"], from].concat();
    let said = fail(1, &check);
    assert!(said.contains("choose one of them"), "{said}");
    let noted = fs::read_to_string(copy.join("backup.json")).unwrap();
    let noted: serde_json::Value = serde_json::from_str(&noted).unwrap();
    let own = format!("{:016x}", noted["history"].as_u64().unwrap());
    let histories = listed.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2));
    let original = histories.filter(|history| *history != own).last().unwrap();
    for history in [own.as_str(), original] {
        assert!(said.contains(&format!("--history {history}  data, newest base 2")), "{said}");
        let checked = succeed(&[&check[..], &["--history", history]].concat());
        assert!(checked.contains(&format!("in history {history}")), "{checked}");
    }
    let forget = |history: &str, more: &[&str]| {
        let args = ["backup", "forget", "--data", text(copy), "--history", history];
        run(&[&args[..], more].concat())
    };
    let refused = forget(&own, &["--yes"]);
    assert!(stderr(&refused).contains("it stays"), "{}", stderr(&refused));
    let stdout =
        |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let told = stdout(&forget(original, &[]));
    assert!(told.contains("would remove") && told.contains("without --yes"), "{told}");
    assert!(succeed(&[&["backup", "list"], from].concat()).contains(original));
    let told = stdout(&forget(original, &["--yes"]));
    assert!(told.contains("removed history"), "{told}");
    let left = succeed(&[&["backup", "list"], from].concat());
    assert!(left.contains(&own) && !left.contains(original), "{left}");
    succeed(&check);
    let none = forget(original, &["--yes"]);
    assert!(stderr(&none).contains("no base of history"), "{}", stderr(&none));
}

#[test]
fn a_store_that_is_away_is_told_and_nobody_waits() {
    let (data, root) = (Data::formatted(), folder());
    // The address of a store that is not there yet.
    let store = Store::start(root.path(), "127.0.0.1:0");
    let (address, url) = (store.address, Store::url(store.address));
    drop(store);
    let options = ["--backup", url.as_str(), "--backup-every", "1s"];
    let server = Running::start(with_keys(serve(&data.path(), &options), SECRET), "serving ");
    let mut tree = make_tree(&server, &data.path(), 0);
    until_failing(&server, &data.path());
    let (_, shown) = status(&server, &data.path());
    let problem = shown["problems"][0].as_str().unwrap();
    assert!(problem.contains("s3://bucket/here fails for"), "{problem}");
    assert!(!problem.contains("endpoint"), "{problem}");
    let store = Store::start(root.path(), &address.to_string());
    until_current(&server, &data.path());
    assert_eq!(status(&server, &data.path()).0, 0);
    drop(store);
    tree.extend(make_tree(&server, &data.path(), 1));
    until_failing(&server, &data.path());
    let store = Store::start(root.path(), &address.to_string());
    until_current(&server, &data.path());
    tree.extend(make_tree(&server, &data.path(), 2));
    // A stop makes a last base.
    assert_eq!(server.stop(), Some(0));

    // Another start takes the same backup, and wrong credentials are told.
    let server = Running::start(with_keys(serve(&data.path(), &[]), "wrong"), "serving ");
    until_failing(&server, &data.path());
    assert_eq!(server.stop(), Some(0));
    let key = data.path().join("backup.key");
    let elsewhere = data.folder.path().join("elsewhere");
    let (key, to) = (text(&key), text(&elsewhere));
    let args = ["backup", "restore", "--from", &url, "--key", key, "--data", to];
    let restored = with_keys(pando(&args), SECRET).output().unwrap();
    assert!(restored.status.success(), "{}", stderr(&restored));
    let server = start(&elsewhere, &[]);
    compare(&server, &elsewhere, &tree);
    // The copy has blocks of its own: nothing is held.
    assert!(status(&server, &elsewhere).1["backup"].is_null());
    let token = elsewhere.join("admin.token");
    succeed(&["fsck", server.address(), "--token", text(&token), "--gc"]);
    drop((server, store));
}

#[test]
fn what_cannot_be_restored_is_refused_with_its_reason() {
    let (data, other) = (Data::formatted(), Data::formatted());
    let place = data.folder.path().join("store");
    let now = |data: &Path| succeed(&["backup", "now", "--data", text(data), "--to", text(&place)]);
    assert!(now(&data.path()).starts_with("made base 1"));
    assert!(now(&data.path()).starts_with("made base 2"));
    let key = data.path().join("backup.key");
    let to = data.folder.path().join("to");
    let restore = |key: &Path| {
        let key = text(key);
        fail(1, &["backup", "restore", "--from", text(&place), "--key", key, "--data", text(&to)])
    };
    // Of another file system.
    let elsewhere = other.folder.path().join("store");
    succeed(&["backup", "now", "--data", text(&other.path()), "--to", text(&elsewhere)]);
    let said = restore(&other.path().join("backup.key"));
    assert!(said.contains("was sealed with the backup key"), "{said}");
    let said = restore(&data.path().join("admin.token"));
    assert!(said.contains("holds no backup key"), "{said}");
    assert!(!to.exists());
    let none = data.folder.path().join("none");
    let said = fail(1, &["backup", "list", "--from", text(&none), "--key", text(&key)]);
    assert!(said.contains("there is no directory"), "{said}");

    // An altered object leaves a directory that is not served.
    let all = objects(&place);
    let tables = all.iter().filter(|path| text(path).contains("/objects/"));
    let originals: Vec<_> = tables.map(|path| (path, fs::read(path).unwrap())).collect();
    for (path, bytes) in &originals {
        let mut altered = bytes.clone();
        *altered.last_mut().unwrap() ^= 1;
        fs::write(path, altered).unwrap();
    }
    let said = restore(&key);
    assert!(said.contains("is altered or damaged"), "{said}");
    let said = fail(1, &["serve", "--data", text(&to)]);
    assert!(said.contains("run `pando backup restore` again, or remove"), "{said}");
    for (path, bytes) in &originals {
        fs::write(path, bytes).unwrap();
    }
    // A base that lacks an object is passed over, and is no base when it is the last one.
    for (path, _) in &originals {
        fs::remove_file(path).unwrap();
    }
    assert!(restore(&key).contains("no base has all its objects"));
    for (path, bytes) in &originals {
        fs::write(path, bytes).unwrap();
    }
    let restored = ["backup", "restore", "--from", text(&place), "--key", text(&key)];
    succeed(&[&restored[..], &["--data", text(&to)]].concat());
    let said = restore(&key);
    assert!(said.contains("holds a file system already"), "{said}");
    let server = start(&to, &[]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn contents_that_kept_bases_name_stay_in_a_shared_store() {
    let data = Data { folder: folder() };
    let blocks = data.folder.path().join("contents");
    let place = data.folder.path().join("store");
    succeed(&["format", "--data", text(&data.path()), "--blocks", text(&blocks)]);
    let options = ["--backup", text(&place), "--backup-every", "1s", "--backup-keep", "0s"];
    let server = start(&data.path(), &options);
    let contents = vec![7; 300_000];
    as_admin(&server, &data.path(), async |client| client.write("/big", &contents).await.unwrap());
    until_current(&server, &data.path());
    let stored = objects(&blocks).len();
    assert!(stored > 0);
    let before = newest(&status(&server, &data.path()).1);
    as_admin(&server, &data.path(), async |client| client.unlink("/big").await.unwrap());
    until_current(&server, &data.path());
    let (found, listed) = (objects(&blocks).len(), newest(&status(&server, &data.path()).1));
    // With two bases since, the older one may name them; a third one frees them.
    assert!(found == stored || listed > before + 2, "{found} of {stored}, base {listed}");
    let mut rounds = 0;
    while !objects(&blocks).is_empty() {
        rounds += 1;
        assert!(rounds < 20, "they are never deleted");
        make_tree(&server, &data.path(), rounds);
        until_current(&server, &data.path());
    }
    assert!(rounds > 0 || found == 0, "they went at once");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_cluster_and_a_wrong_address_are_refused() {
    let folder = folder();
    let data = folder.path().join("data");
    succeed(&["format", "--data", text(&data), "--servers", "2"]);
    let place = folder.path().join("store");
    let args = ["serve", "--data", text(&data), "--backup", text(&place)];
    assert!(fail(2, &[&args[..], &FREE[..]].concat()).contains("a file system of one server"));
    for url in ["http://x/y", "s3://b/p?secret_access_key=x"] {
        assert_eq!(run(&["serve", "--data", text(&data), "--backup", url]).status.code(), Some(2));
    }
    let one = Data::formatted();
    let data = one.path();
    let args = ["serve", "--data", text(&data), "--backup-every", "5m"];
    assert!(fail(2, &args).contains("need --backup URL"));
}
