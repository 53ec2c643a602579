//! The audit log of a server: who did what, whatever happens to its file and its process.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use base::{Cred, FsError};
use client::{Client, Config, Error};
use rustix::{fs::FallocateFlags, process::Signal};
use serde_json::Value;

use crate::{
    cluster::{FREE, formatted, join, until_sound},
    harness::{Data, Running, fail, folder, pando, pause, run, succeed, text, unmount},
    mounted::Mountpoint,
    serve::get,
};

async fn connect(address: &str, token: &Path) -> Client {
    let token = fs::read_to_string(token).expect("the test wrote it");
    let config = Config::new(vec![address.to_owned()], token.trim());
    Box::pin(Client::connect(config)).await.expect("the token is good")
}

/// Runs a test's part that talks to the server.
fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("it can be made").block_on(Box::pin(work))
}

/// All lines of a log; each must be whole.
fn lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).expect("there is a log of UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Lines of an operation.
fn of<'a>(lines: &'a [Value], operation: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["op"] == operation).collect()
}

/// All files that a log has become, whichever is the newest.
fn files(log: &Path) -> Vec<PathBuf> {
    let name = log.file_name().unwrap().as_bytes();
    let entries = fs::read_dir(log.parent().unwrap()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().as_bytes().starts_with(name)).collect()
}

/// Waits until a log has a line of which this is so.
fn until(log: &Path, is_so: impl Fn(&Value) -> bool) {
    let has = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).any(|line| is_so(&line))
    };
    while !files(log).iter().any(has) {
        pause(Duration::from_millis(20));
    }
}

fn audited(data: &Data, more: &[&str]) -> (Running, PathBuf) {
    let log = data.folder.path().join("audit.log");
    let server = data.serve(&[&["--audit", text(&log)], more].concat());
    (server, log)
}

fn token_id(token: &Path) -> Value {
    let shown = succeed(&["token", "show", "--json", text(token)]);
    serde_json::from_str::<Value>(&shown).unwrap()["id"].clone()
}

#[test]
fn the_audit_log_has_who_did_what_and_no_secret() {
    let data = Data::formatted();
    let (server, log) = audited(&data, &[]);
    let bound = data.token(&["--uid", "7", "--path", "/d"]);
    let odd = Path::new(OsStr::from_bytes(b"/d/odd \xff\""));
    on_a_runtime(async {
        let admin = connect(server.address(), &data.admin_token()).await;
        admin.mkdir("/d", 0o755).await.unwrap();
        admin.write("/d/file", b"contents").await.unwrap();
        admin.write(odd, b"odd").await.unwrap();
        admin.chmod("/d/file", 0o640).await.unwrap();
        admin.chown("/d/file", Some(5), Some(6)).await.unwrap();
        admin.chmod("/d", 0o711).await.unwrap();
        admin.rename("/d/file", "/renamed \"so\"").await.unwrap();
        admin.rename("/renamed \"so\"", "/d/file").await.unwrap();
        let seven = connect(server.address(), &bound).await;
        let seven = seven.as_user(Cred { uid: 7, gid: 7, groups: Vec::new() });
        let refused = seven.chmod("/file", 0o777).await.map(drop);
        assert_eq!(refused, Err(Error::Fs(FsError::NotPermitted)));
        assert!(seven.stat("/file").await.is_ok());
        let missing = admin.unlink("/d/missing").await.map(drop);
        assert_eq!(missing, Err(Error::Fs(FsError::NotFound)));
        seven.close().await.unwrap();
        admin.unlink("/d/file").await.unwrap();
        admin.close().await.unwrap();
    });
    let admin = ["--token", text(&data.admin_token())].map(str::to_owned);
    let admin = admin.each_ref().map(String::as_str);
    let made =
        [&["token", "create", server.address(), "--path", "/d", "--ro"], &admin[..]].concat();
    let made = succeed(&made);
    let made_file = data.folder.path().join("made");
    fs::write(&made_file, &made).unwrap();
    succeed(&[&["set", server.address(), "trash_days=3"], &admin[..]].concat());
    let mut forged = fs::read_to_string(&bound).unwrap().trim().to_owned();
    let last = if forged.ends_with('0') { "1" } else { "0" };
    forged.replace_range(forged.len() - 1.., last);
    let stranger = Config::new(vec![server.address().to_owned()], forged.clone());
    assert!(on_a_runtime(Client::connect(stranger)).is_err());
    assert_eq!(server.stop(), Some(0));

    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    let told = lines(&log);
    let one = |operation: &str, which: &dyn Fn(&Value) -> bool| {
        let found: Vec<_> = of(&told, operation).into_iter().filter(|line| which(line)).collect();
        assert_eq!(found.len(), 1, "{operation}: {found:#?}");
        found[0].clone()
    };
    let mkdir = one("mkdir", &|_| true);
    assert_eq!(
        (&mkdir["dir"], &mkdir["name"], &mkdir["mode"]),
        (&"/".into(), &"d".into(), &"0755".into())
    );
    assert_eq!((&mkdir["uid"], &mkdir["gid"], &mkdir["server"]), (&0.into(), &0.into(), &0.into()));
    assert_eq!(mkdir["token"], token_id(&data.admin_token()));
    assert_eq!(mkdir["token_path"], "/");
    assert!(mkdir["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")));
    let time = mkdir["time"].as_str().unwrap();
    assert!(time.len() == 27 && time.ends_with('Z') && time.starts_with("20"), "{time}");
    let create = one("create", &|line| line["name"] == "file");
    assert_eq!((&create["dir"], &create["result"]), (&"/d".into(), &"ok".into()));
    let odd = one("create", &|line| line["name_hex"] == "6f646420ff22");
    assert_eq!(odd.get("name"), None);
    let ino = create["ino"].clone();
    let chmod = one("setattr", &|line| line["mode"] == "0640");
    assert_eq!((&chmod["ino"], &chmod["name"]), (&ino, &"file".into()));
    let chown = one("setattr", &|line| line["set_uid"] == 5);
    assert_eq!(chown["set_gid"], 6);
    let of_dir = one("setattr", &|line| line["mode"] == "0711");
    assert_eq!((&of_dir["dir"], of_dir.get("name")), (&"/d".into(), None));
    let there = one("rename", &|line| line["dir"] == "/d");
    assert_eq!((&there["to_dir"], &there["to_name"]), (&"/".into(), &"renamed \"so\"".into()));
    let back = one("rename", &|line| line["dir"] == "/");
    assert_eq!((&back["to_dir"], &back["ino"]), (&"/d".into(), &ino));
    let refused = one("setattr", &|line| line["result"] == "EPERM");
    assert_eq!((&refused["uid"], &refused["token_uid"]), (&7.into(), &7.into()));
    assert_eq!((&refused["token"], &refused["token_path"]), (&token_id(&bound), &"/d".into()));
    assert_eq!((&refused["dir"], &refused["name"]), (&"/d".into(), &"file".into()));
    let unlink = one("unlink", &|_| true);
    assert_eq!(unlink["ino"], ino);
    let signed = one("sign_token", &|_| true);
    assert_eq!((&signed["new_token"], &signed["new_path"]), (&token_id(&made_file), &"/d".into()));
    assert_eq!(signed["new_read_only"], true);
    let setting = one("setxattr", &|_| true);
    assert_eq!((&setting["xattr"], &setting["value"]), (&"pando.trash_days".into(), &"3".into()));
    let stranger = one("hello", &|line| line["result"] == "refused");
    assert!(stranger["reason"].as_str().is_some_and(|why| why.contains("altered")), "{stranger}");
    assert!(of(&told, "hello").len() > 3 && !of(&told, "bye").is_empty());
    assert!(of(&told, "lookup").is_empty() && of(&told, "getattr").is_empty());

    let text = fs::read_to_string(&log).unwrap();
    assert!(!text.contains("pando2."));
    for secret in [&made, &forged, &fs::read_to_string(data.admin_token()).unwrap()] {
        let signature = secret.trim();
        assert!(!text.contains(&signature[signature.len() - 40..]));
    }
}

#[test]
fn everything_is_told_that_is_asked_for_and_nothing_else() {
    let data = Data::formatted();
    let (server, log) = audited(&data, &["--audit-what", "failures,opens,reads"]);
    on_a_runtime(async {
        let admin = connect(server.address(), &data.admin_token()).await;
        admin.write("/file", b"contents").await.unwrap();
        admin.close().await.unwrap();
        let admin = connect(server.address(), &data.admin_token()).await;
        assert_eq!(&admin.read("/file").await.unwrap()[..], b"contents");
        assert!(admin.mkdir("/file", 0o755).await.is_err());
        admin.close().await.unwrap();
    });
    assert_eq!(server.stop(), Some(0));
    let told = lines(&log);
    assert_eq!(of(&told, "open").len(), 1, "{told:#?}");
    assert_eq!(of(&told, "mkdir").iter().filter(|line| line["result"] == "EEXIST").count(), 1);
    for silent in ["create", "write", "hello", "bye"] {
        assert!(of(&told, silent).is_empty(), "{silent}");
    }
    let path = data.path();
    let wrong = run(&["serve", "--data", text(&path), "--audit", "x", "--audit-what", "some"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn each_change_of_a_mount_that_holds_its_directory_is_told_once() {
    let data = Data::formatted();
    let (server, log) = audited(&data, &[]);
    let mount = Mountpoint::new(&data.folder.path().join("at"));
    let token = data.admin_token();
    succeed(&["mount", server.address(), text(&mount.0), "--token", text(&token), "--log", "none"]);
    let dir = mount.0.join("held/below");
    fs::create_dir_all(&dir).unwrap();
    for number in 0..300 {
        fs::write(dir.join(format!("f{number}")), "some").unwrap();
    }
    // A file that is removed before it was sent is never sent.
    fs::File::open(&dir).unwrap().sync_all().unwrap();
    for number in 0..100 {
        fs::remove_file(dir.join(format!("f{number}"))).unwrap();
    }
    fs::set_permissions(dir.join("f200"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&dir, mount.0.join("moved")).unwrap();
    fs::write(mount.0.join("moved/last"), "some").unwrap();
    unmount(&mount.0);
    assert_eq!(server.stop(), Some(0));
    let told = lines(&log);
    let mut made: Vec<_> = of(&told, "create")
        .into_iter()
        .map(|line| (line["dir"].as_str().unwrap(), line["name"].as_str().unwrap()))
        .collect();
    made.sort_unstable();
    let mut wanted: Vec<_> = (0..300).map(|number| ("/held/below", format!("f{number}"))).collect();
    wanted.push(("/moved", "last".to_owned()));
    wanted.sort_unstable();
    let wanted: Vec<_> = wanted.iter().map(|(dir, name)| (*dir, name.as_str())).collect();
    assert_eq!(made, wanted);
    assert_eq!(of(&told, "unlink").len(), 100);
    // A mount sends a chmod with the creation or the contents of the file, if these wait still.
    assert_eq!(told.iter().filter(|line| line["mode"] == "0600").count(), 1);
}

#[test]
fn the_log_of_a_server_that_is_killed_has_whole_lines_but_for_the_last() {
    let data = Data::formatted();
    let (mut server, log) = audited(&data, &["--audit-size", "16KiB", "--audit-keep", "1000"]);
    let address = server.address().to_owned();
    on_a_runtime(async {
        let admin = connect(&address, &data.admin_token()).await;
        for number in 0..500 {
            admin.mkdir(format!("/d{number}"), 0o755).await.unwrap();
        }
    });
    until(&log, |line| line["name"] == "d499");
    server.signal(Signal::KILL);
    assert!(!server.wait().success());
    // A death within a write leaves this.
    let torn = fs::read_to_string(&log).unwrap() + "{\"time\":\"2026-01-01T";
    fs::write(&log, torn).unwrap();
    let (server, _) = audited(&data, &["--audit-size", "16KiB", "--audit-keep", "1000"]);
    on_a_runtime(async {
        let admin = connect(server.address(), &data.admin_token()).await;
        admin.mkdir("/later", 0o755).await.unwrap();
        admin.close().await.unwrap();
    });
    assert_eq!(server.stop(), Some(0));

    let (mut names, mut torn) = (Vec::new(), 0);
    for path in files(&log) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() < 20 << 10, "it is rotated");
        for line in text.lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(line) if line["op"] == "mkdir" => names.push(line["name"].to_string()),
                Ok(_) => {}
                Err(_) => torn += 1,
            }
        }
    }
    assert_eq!((names.len(), torn), (501, 1));
}

#[test]
fn a_change_over_several_servers_is_told_once_by_the_server_that_was_asked() {
    let data = formatted("2");
    let logs = [0, 1].map(|number| data.folder.path().join(format!("audit-{number}")));
    let mut args = FREE.to_vec();
    args.extend(["--coordinator", "--cluster-lease", "500ms", "--audit", text(&logs[0])]);
    let coordinator = data.serve(&args);
    let (address, token) = (coordinator.address().to_owned(), data.admin_token());
    let member = data.folder.path().join("member");
    let mut member = pando(&join(&member, &address, &token));
    member.args(["--audit", text(&logs[1])]);
    let member = Running::start(member, "serving ");
    until_sound(&address, &token);
    on_a_runtime(async {
        let admin = connect(&address, &token).await;
        for number in 0..40 {
            admin.mkdir(format!("/a{number}"), 0o755).await.unwrap();
            admin.mkdir(format!("/a{number}/b"), 0o755).await.unwrap();
            admin.write(format!("/a{number}/b/file"), b"some").await.unwrap();
        }
        for number in 0..39 {
            let (from, to) = (format!("/a{number}/b/file"), format!("/a{}/moved", number + 1));
            admin.rename(from, to).await.unwrap();
        }
        admin.close().await.unwrap();
    });
    assert_eq!([member.stop(), coordinator.stop()], [Some(0), Some(0)]);
    let told = logs.map(|log| lines(&log));
    for (server, told) in told.iter().enumerate() {
        assert!(told.iter().all(|line| line["server"] == server));
        assert!(!of(told, "mkdir").is_empty(), "server {server} was asked for some");
    }
    let told = told.concat();
    let done =
        |operation| of(&told, operation).iter().filter(|line| line["result"] == "ok").count();
    assert_eq!((done("mkdir"), done("create"), done("rename")), (80, 40, 39));
    for rename in of(&told, "rename") {
        assert_eq!(rename["to_name"], "moved");
    }
}

/// A small disk of its own, which only root can mount.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new(size: &str) -> Disk {
        let folder = folder();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "pando-test"]).arg(folder.path());
        assert!(mount.status().unwrap().success(), "this test mounts a tmpfs, as root");
        Disk(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A test has failed already if this does.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

fn metric(server: &Running, name: &str) -> u64 {
    let page = get(server.http(), "/metrics");
    let line = page.lines().find(|line| line.split(' ').next() == Some(name)).expect("it is there");
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_full_disk_stops_the_audit_log_and_nothing_else() {
    let (data, disk) = (Data::formatted(), Disk::new("256k"));
    let log = disk.0.path().join("audit.log");
    let said = data.folder.path().join("said");
    let path = data.path();
    let args = ["serve", "--data", text(&path), "--listen", "127.0.0.1:0"];
    let more = ["--http", "127.0.0.1:0", "--audit", text(&log)];
    let mut command = pando(&[&args[..], &more].concat());
    command.stderr(fs::File::create(&said).unwrap());
    let server = Running::start(command, "serving ");
    assert_eq!(metric(&server, "pando_audit"), 1);
    let other = disk.0.path().join("another program's");
    let file = fs::File::create(&other).unwrap();
    let free = rustix::fs::statvfs(disk.0.path()).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, free.f_bavail * free.f_frsize)
        .unwrap();
    on_a_runtime(async {
        let admin = connect(server.address(), &data.admin_token()).await;
        let mut made = 0;
        while made < 200 || metric(&server, "pando_audit") == 1 {
            admin.mkdir(format!("/d{made}"), 0o755).await.unwrap();
            made += 1;
        }
        let token = data.admin_token();
        let status = run(&["status", server.address(), "--json", "--token", text(&token)]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let problems = status["problems"].to_string();
        assert!(problems.contains("the audit log cannot be written"), "{problems}");
        drop(file);
        fs::remove_file(&other).unwrap();
        while metric(&server, "pando_audit") == 0 {
            pause(Duration::from_millis(20));
        }
        admin.mkdir("/last", 0o755).await.unwrap();
        admin.close().await.unwrap();
        until(&log, |line| line["name"] == "last");
        let mkdirs = of(&lines(&log), "mkdir").len();
        assert_eq!(mkdirs, made + 1, "nothing was lost: the queue has room");
    });
    assert_eq!(metric(&server, "pando_audit_lost"), 0);
    assert_eq!(server.stop(), Some(0));
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(said.matches("the audit log cannot be written").count(), 1, "{said}");
    assert!(said.contains("the audit log is written again"), "{said}");
}

#[test]
fn a_server_does_not_serve_unaudited_that_is_to_be_audited() {
    let data = Data::formatted();
    let nowhere = data.folder.path().join("no/such/folder/log");
    let said = fail(1, &["serve", "--data", text(&data.path()), "--audit", text(&nowhere)]);
    assert!(said.contains("cannot write"), "{said}");
}
