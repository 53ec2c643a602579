//! A file system on several servers: `pando format --servers`, `serve --coordinator`, `serve
//! --join`, `dev`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base::LockMode;
use client::{Client, Config, OpenOptions};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    harness::{Data, Running, fail, folder, pando, pause, run, stderr, succeed, text},
    serve::get,
};

pub(crate) const FREE: [&str; 4] = ["--listen", "127.0.0.1:0", "--http", "off"];

pub(crate) fn formatted(servers: &str) -> Data {
    let data = Data { folder: folder() };
    succeed(&["format", "--data", text(&data.path()), "--servers", servers]);
    data
}

fn coordinate(data: &Data) -> Running {
    data.serve(&["--http", "off", "--coordinator", "--cluster-lease", "500ms"])
}

pub(crate) fn join<'a>(data: &'a Path, coordinator: &'a str, token: &'a Path) -> Vec<&'a str> {
    let join = ["serve", "--data", text(data), "--join", coordinator, "--token-file", text(token)];
    [&join[..], &FREE].concat()
}

/// The coordinator of a cluster that waits for others to join, each in a folder of its own.
pub(crate) struct Forming {
    pub(crate) coordinator: Running,
    pub(crate) address: String,
    pub(crate) token: PathBuf,
    folder: TempDir,
    pub(crate) data: Data,
}

impl Forming {
    pub(crate) fn of(servers: &str) -> Forming {
        Forming::with(&["--servers", servers])
    }

    /// One that was formatted with these options.
    pub(crate) fn with(options: &[&str]) -> Forming {
        let data = Data { folder: folder() };
        succeed(&[&["format", "--data", text(&data.path())], options].concat());
        let coordinator = coordinate(&data);
        let (address, token) = (coordinator.address().to_owned(), data.admin_token());
        Forming { coordinator, address, token, folder: folder(), data }
    }

    /// A file system of one server, which is served there anew as a coordinator.
    pub(crate) fn founded(data: Data, address: &str) -> Forming {
        Forming::founded_with(data, address, &[])
    }

    /// The same, with more options of `pando serve`.
    pub(crate) fn founded_with(data: Data, address: &str, options: &[&str]) -> Forming {
        let lease = ["--coordinator", "--cluster-lease", "500ms"];
        let listen = ["--http", "off", "--listen", address];
        let coordinator = data.serve(&[&lease[..], &listen, options].concat());
        let (address, token) = (coordinator.address().to_owned(), data.admin_token());
        Forming { coordinator, address, token, folder: folder(), data }
    }

    pub(crate) fn data_of(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn join(&self, name: &str) -> Running {
        self.join_with(name, &[])
    }

    /// Lets a server join that is started with these options, too.
    pub(crate) fn join_with(&self, name: &str, options: &[&str]) -> Running {
        let mut command = pando(&join(&self.data_of(name), &self.address, &self.token));
        command.args(options);
        Running::start(command, "serving ")
    }

    /// Starts a server that has joined, and is not told where the coordinator is.
    pub(crate) fn start_again(&self, name: &str) -> Running {
        let mut command = pando(&["serve", "--data", text(&self.data_of(name))]);
        command.args(FREE);
        Running::start(command, "serving ")
    }

    pub(crate) fn until_sound(&self) -> Value {
        until_sound(&self.address, &self.token)
    }
}

/// The output of `pando status --json`, which exits with code 3 if it says that something is wrong.
fn all_status(server: &str, token: &Path) -> Value {
    let output = run(&["status", server, "--token", text(token), "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    let sound = status["problems"].as_array().unwrap().is_empty();
    assert_eq!(output.status.code(), Some(if sound { 0 } else { 3 }), "{status:#}");
    status
}

/// The cluster's part of the status.
pub(crate) fn status(server: &str, token: &Path) -> Value {
    all_status(server, token)["cluster"].clone()
}

/// Waits until nothing is wrong.
pub(crate) fn until_sound(server: &str, token: &Path) -> Value {
    for _ in 0..300 {
        let cluster = status(server, token);
        if cluster["epoch"] != 0 && cluster["problems"].as_array().unwrap().is_empty() {
            return cluster;
        }
        pause(Duration::from_millis(100));
    }
    panic!("it is never sound: {}", status(server, token));
}

#[test]
fn servers_join_serve_and_come_back() {
    let forming = Forming::of("2");
    let (address, token) = (forming.address.as_str(), forming.token.as_path());
    let said = status(address, token)["problems"][0].to_string();
    assert!(said.contains("1 of 2 servers have not joined"), "{said}");

    let joined = forming.join("second");
    assert!(joined.said.starts_with("joined as server 1 of 2\n"), "{}", joined.said);
    let cluster = forming.until_sound();
    assert_eq!(cluster["servers"][1]["shards"], 512);
    assert_eq!(cluster["servers"][1]["address"], joined.address());
    let said = succeed(&["status", address, "--token", text(token)]);
    assert!(said.contains("servers  2 of 2") && !said.contains("PROBLEM"), "{said}");

    // The second server knows where the coordinator is, and has another address now.
    assert_eq!(joined.stop(), Some(0));
    let back = forming.start_again("second");
    assert_eq!(forming.until_sound()["servers"][1]["address"], back.address());
    assert_eq!((back.stop(), forming.coordinator.stop()), (Some(0), Some(0)));
}

/// A server with a status page and a log, which outlive it.
struct Watched {
    running: Running,
    /// Of this start; the whole log with those before it is in the file.
    log: PathBuf,
}

impl Watched {
    fn start(args: &[&str], log: &Path) -> Watched {
        let file = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = pando(args);
        command.stderr(file);
        Watched { running: Running::start(command, "serving "), log: log.to_owned() }
    }

    /// The code and the body of a page.
    fn page(&self, path: &str) -> (u16, String) {
        let answer = get(self.running.http(), path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.trim().to_owned())
    }

    fn gauge(&self, name: &str) -> String {
        let metrics = self.page("/metrics").1;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).to_owned()
    }

    /// Waits for a line of the log that has all of these.
    fn logs(&self, parts: &[&str]) {
        let has = || {
            let log = fs::read_to_string(&self.log).unwrap();
            log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
        };
        for _ in 0..200 {
            if has() {
                return;
            }
            pause(Duration::from_millis(50));
        }
        panic!("no line with {parts:?} in {}", fs::read_to_string(&self.log).unwrap());
    }

    /// Waits until `/readyz` says something of this, and sees that everything else says it too.
    fn until(&self, token: &Path, ready: bool, part: &str) {
        let mut said = self.page("/readyz");
        // `ok` alone, and not `ok, but`.
        let says = |body: &str| if part == "ok" { body == part } else { body.contains(part) };
        for _ in 0..200 {
            if (said.0 == 200) == ready && says(&said.1) {
                break;
            }
            pause(Duration::from_millis(50));
            said = self.page("/readyz");
        }
        assert_eq!((said.0 == 200, says(&said.1)), (ready, true), "{said:?}");
        assert_eq!(self.gauge("pando_ready"), u8::from(ready).to_string());
        assert_eq!(self.gauge("pando_problems") == "0", said.1 == "ok");
        let page: Value = serde_json::from_str(&self.page("/status.json").1).unwrap();
        let status = all_status(self.running.address(), token);
        for shown in [&page, &status] {
            assert_eq!(shown["ready"], ready, "{shown:#}");
            let problems = shown["problems"].to_string();
            assert!(said.1 == "ok" || problems.contains(part), "{part}: {problems}");
        }
        let first = run(&["status", self.running.address(), "--token", text(token)]).stdout;
        let first = String::from_utf8(first).unwrap().lines().next().unwrap().to_owned();
        let state = status["state"].as_str().unwrap();
        let begins = match (ready, &said.1[..]) {
            (true, "ok") => "serving",
            (true, _) => "serving, but ",
            (false, _) => "NOT SERVING: ",
        };
        assert!(first.starts_with("state ") && first.contains(begins), "{first}");
        assert!(state.starts_with(begins) && (said.1 == "ok" || state.contains(part)), "{state}");
    }
}

#[test]
fn what_is_wrong_is_said_alike_everywhere() {
    let data = formatted("2");
    let (token, logs) = (data.admin_token(), folder());
    let page = ["--http", "127.0.0.1:0"];
    let (data_of_it, log) = (data.path(), logs.path().join("coordinator"));
    let serve = ["serve", "--data", text(&data_of_it), "--coordinator", "--cluster-lease", "500ms"];
    let coordinator =
        Watched::start(&[&serve[..], &["--listen", "127.0.0.1:0"], &page].concat(), &log);
    let address = coordinator.running.address().to_owned();
    // Before all have joined nobody is ready.
    coordinator.until(&token, false, "1 of 2 servers have not joined");
    coordinator.logs(&["WARN", "1 of 2 servers have not joined"]);

    let second = logs.path().join("second");
    let mut joined = join(&second, &address, &token);
    joined.truncate(joined.len() - 2);
    joined.extend(page);
    let log = logs.path().join("member");
    let member = Watched::start(&joined, &log);
    until_sound(&address, &token);
    coordinator.until(&token, true, "ok");
    member.until(&token, true, "ok");
    coordinator.logs(&["WARN", "serving again"]);
    assert_eq!(coordinator.gauge("pando_servers_silent"), "0");
    assert_eq!(coordinator.gauge("pando_servers_expected"), "2");
    assert!(coordinator.gauge("pando_lease_left_seconds").parse::<f64>().unwrap() > 0.0);

    // A server is lost: the coordinator names it, and is ready itself.
    let lost = member.running.address().to_owned();
    drop(member);
    coordinator.until(&token, true, &format!("server 1 at {lost} has no lease"));
    assert_eq!(coordinator.gauge("pando_servers_silent"), "1");
    coordinator.logs(&["WARN", "nothing is heard of a server", "server=1", &lost]);
    let member = Watched::start(&joined, &log);
    coordinator.until(&token, true, "ok");
    coordinator.logs(&["WARN", "is back", "server=1"]);
    member.until(&token, true, "ok");

    // The coordinator is lost: the other one is not ready, and says what it knows.
    let (killed, last) = (coordinator.running.pid(), coordinator.log.clone());
    kill_process(killed, Signal::KILL).unwrap();
    let wanted = format!("the coordinator at {address} does not answer");
    member.until(&token, false, &wanted);
    assert_eq!(member.gauge("pando_lease"), "0");
    member.logs(&["WARN", "the lease has ended"]);
    let began = Instant::now();
    let status = all_status(member.running.address(), &token);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((&status["role"], &status["server"]), (&"member".into(), &1.into()));
    assert_eq!(status["coordinator"], address);
    assert!(status["without_lease_ms"].as_u64() > Some(0), "{status:#}");
    drop(coordinator);

    let again = Watched::start(&[&serve[..], &["--listen", &address], &page].concat(), &last);
    member.until(&token, true, "ok");
    member.logs(&["WARN", "serving again"]);
    again.until(&token, true, "ok");
    assert_eq!((member.running.stop(), again.running.stop()), (Some(0), Some(0)));
}

#[test]
fn a_port_of_a_status_page_is_told_from_one_of_a_server() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let said = fail(1, &["sessions", server.http(), "--token", text(&token)]);
    assert!(said.contains("is it the address of a status page?"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_server_that_has_joined_comes_back_before_the_cluster_is_complete() {
    let forming = Forming::of("3");
    assert_eq!(forming.join("second").stop(), Some(0));
    let back = forming.start_again("second");
    let last = forming.join("third");
    assert_eq!(forming.until_sound()["servers"][1]["address"], back.address());
    for running in [back, last, forming.coordinator] {
        assert_eq!(running.stop(), Some(0));
    }
}

#[test]
fn who_does_not_serve_is_told_from_who_cannot_be_reached() {
    let forming = Forming::of("2");
    let both = format!("127.0.0.1:1,{}", forming.address);
    let said = fail(1, &["sessions", &both, "--token", text(&forming.token)]);
    assert!(said.contains("127.0.0.1:1 cannot be reached"), "{said}");
    assert!(
        said.contains(&format!("{} accepts connections but does not serve", forming.address)),
        "{said}"
    );
}

#[test]
fn a_server_that_cannot_listen_takes_no_place() {
    let forming = Forming::of("2");
    let (second, taken) = (forming.data_of("second"), forming.address.as_str());
    let mut args = join(&second, taken, &forming.token);
    let listen = args.iter().position(|arg| *arg == FREE[1]).unwrap();
    args[listen] = taken;
    let said = fail(1, &args);
    assert!(said.contains("cannot listen") && !second.exists(), "{said}");
    let joined = forming.join("third");
    assert!(joined.said.starts_with("joined as server 1 of 2\n"), "{}", joined.said);
}

#[test]
fn a_check_that_waits_for_a_server_ends_when_it_is_asked_to() {
    let forming = Forming::of("2");
    let joined = forming.join("second");
    forming.until_sound();
    assert_eq!(joined.stop(), Some(0));
    let mut command = pando(&["fsck", &forming.address, "--token", text(&forming.token)]);
    let mut check = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    pause(Duration::from_secs(2));
    assert_eq!(check.try_wait().unwrap(), None, "it waits");
    kill_process(Pid::from_child(&check), Signal::TERM).unwrap();
    for _ in 0..400 {
        if check.try_wait().unwrap().is_some() {
            break;
        }
        pause(Duration::from_millis(50));
    }
    assert!(check.try_wait().unwrap().is_some(), "it does not end");
    let output = check.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("does not answer"), "{}", stderr(&output));
    assert_eq!(forming.coordinator.stop(), Some(0));
}

#[test]
fn directories_of_a_cluster_are_not_served_as_something_else() {
    let alone = Data::formatted();
    let data = formatted("2");
    let serve = |data: &Data, args: &[&str]| {
        let path = data.path();
        fail(2, &[&["serve", "--data", text(&path)], &FREE[..], args].concat())
    };
    let said = serve(&data, &["--join", "127.0.0.1:1"]);
    assert!(
        said.contains("which does not join: serve it with `pando serve --coordinator`"),
        "{said}"
    );
    let backups = format!("file://{}", text(&data.folder.path().join("backups")));
    let path = alone.path();
    let args = ["serve", "--data", text(&path), "--coordinator", "--backup", &backups];
    let said = fail(1, &[&args[..], &FREE].concat());
    assert!(said.contains("end that with `--backup off`"), "{said}");
    assert!(serve(&alone, &["--join", "127.0.0.1:1"]).contains("of its own"));
    let mountpoint = data.folder.path().join("mnt");
    let said = fail(2, &["up", "--data", text(&data.path()), "--mount", text(&mountpoint)]);
    assert!(said.contains("one server"), "{said}");
    let folder = folder();
    let new = folder.path().join("new");
    let said = fail(2, &["serve", "--data", text(&new), "--join", "127.0.0.1:1"]);
    assert!(said.contains("--token-file") && !new.exists(), "{said}");
    let said = fail(2, &["format", "--data", text(&new), "--shards", "4", "--servers", "5"]);
    assert!(said.contains("4 shards"), "{said}");
}

#[test]
fn a_join_that_was_interrupted_goes_on_with_the_same_number() {
    let data = formatted("2");
    let folder = folder();
    let second = folder.path().join("second");
    // No server listens at this address.
    let token = data.admin_token();
    let output = run(&join(&second, "127.0.0.1:1", &token));
    assert!(!output.status.success(), "{}", stderr(&output));
    let member = fs::read(second.join("member")).unwrap();
    let coordinator = coordinate(&data);
    let joined = Running::start(pando(&join(&second, coordinator.address(), &token)), "serving ");
    assert_eq!(fs::read(second.join("member")).unwrap(), member);
    until_sound(coordinator.address(), &token);
    drop(joined);
}

/// The rows of a command that lists something for administrators.
fn list(command: &str, server: &str, token: &Path) -> Vec<Value> {
    let said = succeed(&[command, server, "--token", text(token), "--json"]);
    serde_json::from_str(&said).unwrap()
}

/// The servers of which a list has rows of this session.
fn servers_of(rows: &[Value], session: &Value) -> Vec<u64> {
    let rows = rows.iter().filter(|row| row["session"] == *session);
    rows.map(|row| row["server"].as_u64().expect("each row says its server")).collect()
}

#[test]
fn lists_of_a_cluster_are_of_all_servers_and_a_session_is_evicted_at_all() {
    let data = formatted("2");
    let coordinator = coordinate(&data);
    let (address, token) = (coordinator.address().to_owned(), data.admin_token());
    let folder = folder();
    let second = folder.path().join("second");
    let joined = Running::start(pando(&join(&second, &address, &token)), "serving ");
    until_sound(&address, &token);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let text_of_token = fs::read_to_string(&token).unwrap();
    let mut config = Config::new(vec![address.clone()], text_of_token.trim());
    config.client_name = "the test".into();
    // One file open, and locked, at each server: of so many directories some are at either.
    let (client, files) = runtime.block_on(async {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        let mut files = Vec::new();
        for dir in 0..16 {
            client.mkdir(format!("/{dir}"), 0o755).await.unwrap();
            let options = OpenOptions::both().create(0o644);
            let file = client.open_with(format!("/{dir}/file"), options).await.unwrap();
            file.lock(LockMode::Exclusive).await.unwrap();
            files.push(file);
        }
        (client, files)
    });
    let sessions = list("sessions", &address, &token);
    let ours = sessions.iter().find(|row| row["client"] == "the test").expect("it is listed");
    let session = &ours["session"];
    assert_eq!(servers_of(&sessions, session), [0, 1]);
    let opens = list("opens", &address, &token);
    let locks = list("locks", &address, &token);
    for rows in [&opens, &locks] {
        let servers = servers_of(rows, session);
        assert_eq!(servers.len(), 16);
        assert!(servers.contains(&0) && servers.contains(&1), "{servers:?}");
        assert!(rows.iter().all(|row| row["client"] == "the test"), "{rows:#?}");
    }
    let said = succeed(&["opens", &address, "--token", text(&token)]);
    assert!(said.starts_with("SERVER"), "{said}");

    let id = session.as_str().unwrap();
    succeed(&["sessions", &address, "--token", text(&token), "--evict", id]);
    assert_eq!(servers_of(&list("opens", &address, &token), session), [0; 0]);
    assert_eq!(servers_of(&list("locks", &address, &token), session), [0; 0]);
    let none = ["sessions", &address, "--token", text(&token), "--evict", "1234"];
    assert!(fail(1, &none).contains("there is no session"));
    drop((files, client));
    assert_eq!((joined.stop(), coordinator.stop()), (Some(0), Some(0)));
}

/// A process that `pando dev` started, as it said.
fn pid(line: &str) -> Pid {
    let (_, rest) = line.split_once("pid ").unwrap();
    Pid::from_raw(rest.split(',').next().unwrap().parse().unwrap()).unwrap()
}

#[test]
fn dev_runs_a_cluster_starts_what_is_killed_and_ends_all_of_it() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let args = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0"];
    let new = ["--restart", "--lease", "500ms", "--locality", "hybrid"];
    let mut command = pando(&[&args[..], &new].concat());
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = said.find(|line| line.starts_with("server 0 at ")).unwrap();
    let second = said.find(|line| line.starts_with("server 1 at ")).unwrap();
    let ready = said.find(|line| line.starts_with("serving ")).unwrap();
    assert!(ready.contains("admin.token"), "{ready}");
    let page = |line: &str| {
        let page = line.split_once("status page http://").expect("each has a page").1;
        page.split(',').next().unwrap().to_owned()
    };
    let of_second = page(&second);
    for page in [&page(&first), &of_second] {
        assert!(get(page, "/readyz").contains("200 OK"), "{page}");
    }

    let address = first.split(" at ").nth(1).unwrap().split(',').next().unwrap();
    let token = dir.join("admin.token");
    assert!(succeed(&["get", address, "--token", text(&token)]).contains("hybrid:2"));

    kill_process(pid(&second), Signal::KILL).unwrap();
    let ended = said.find(|line| line.starts_with("server 1 has ended")).unwrap();
    assert!(ended.contains("signal: 9"), "{ended}");
    let again = said.find(|line| line.starts_with("server 1 was started again")).unwrap();
    until_sound(address, &token);
    assert!(get(&of_second, "/metrics").contains("role=\"member\",server=\"1\""));

    kill_process(Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap(), Signal::TERM)
        .unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(0));
    for line in [&first, &second, &again] {
        assert!(test_kill_process(pid(line)).is_err(), "still there: {line}");
    }

    // Existing data is served again, even when nobody reads the output any more.
    let again = [&args[..], &["--restart", "--lease", "500ms"]].concat();
    let again = Running::start(pando(&again), "serving ");
    let line = |start: &str| again.said.lines().find(|line| line.starts_with(start)).unwrap();
    let (address, second) = (line("server 0 at "), pid(line("server 1 at ")));
    let address = address.split(' ').nth(3).unwrap().trim_end_matches(',');
    kill_process(second, Signal::KILL).unwrap();
    while test_kill_process(second).is_ok() {
        pause(Duration::from_millis(10));
    }
    until_sound(address, &dir.join("admin.token"));
    assert_eq!(again.stop(), Some(0));
    // One more server joins, which has no shards yet.
    let more = ["dev", "--dir", text(&dir), "--servers", "3", "--listen", "127.0.0.1:0"];
    let more = Running::start(pando(&more), "serving ");
    assert!(more.said.contains("server 2 at "), "{}", more.said);
    assert_eq!(more.stop(), Some(0));
}

#[test]
fn dev_leaves_directories_and_tokens_of_others_alone() {
    // A server may be at work in it.
    let data = Data::formatted();
    let token = fs::read(data.admin_token()).unwrap();
    let dev = |dir: &Path| {
        let args = ["dev", "--dir", text(dir), "--servers", "2", "--listen", "127.0.0.1:0"];
        fail(1, &args)
    };
    let said = dev(&data.path());
    assert!(said.contains("is the data directory of a server"), "{said}");
    assert_eq!(fs::read(data.admin_token()).unwrap(), token);
    assert!(!data.path().join("server-0").exists());

    let folder = folder();
    let dir = folder.path().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("admin.token"), &token).unwrap();
    let said = dev(&dir);
    assert!(said.contains("is not empty: it holds admin.token"), "{said}");
    assert_eq!(fs::read(dir.join("admin.token")).unwrap(), token);

    // A cluster is there, and the token beside it is another's.
    fs::remove_file(dir.join("admin.token")).unwrap();
    let args = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0"];
    assert_eq!(Running::start(pando(&args), "serving ").stop(), Some(0));
    fs::write(dir.join("admin.token"), &token).unwrap();
    let said = dev(&dir);
    assert!(said.contains("is not the token of the cluster"), "{said}");
    assert_eq!(fs::read(dir.join("admin.token")).unwrap(), token);
    fs::remove_file(dir.join("admin.token")).unwrap();
    assert_eq!(Running::start(pando(&args), "serving ").stop(), Some(0));
}

#[test]
fn a_setting_of_the_file_system_is_set_on_a_cluster_and_stays() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let args = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0"];
    let token = dir.join("admin.token");
    let address = |running: &Running| {
        running.said.lines().last().unwrap().split_whitespace().nth(4).unwrap().to_owned()
    };
    let running = Running::start(pando(&args), "serving ");
    let set = |what| ["set", &address(&running), what, "--token", text(&token)].map(str::to_owned);
    let run_it = |args: [String; 5]| run(&args.each_ref().map(String::as_str));
    assert!(run_it(set("inline_max=1K")).status.success());
    assert_eq!(running.stop(), Some(0));

    let running = Running::start(pando(&args), "serving ");
    let said = succeed(&["get", &address(&running), "--token", text(&token)]);
    assert!(said.contains("1024"), "{said}");
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn blocks_that_nothing_names_are_removed_on_each_server() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let args = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0"];
    assert_eq!(Running::start(pando(&args), "serving ").stop(), Some(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for server in ["server-0", "server-1"] {
        let blocks = store::Blocks::directory(&dir.join(server).join("blocks")).unwrap();
        let put = blocks.put(base::BlockId(7), vec![1; 5000].into());
        runtime.block_on(put).unwrap();
    }
    let running = Running::start(pando(&args), "serving ");
    let address = running.said.lines().last().unwrap().split_whitespace().nth(4).unwrap();
    let token = dir.join("admin.token");
    let collect = || {
        let fsck = ["fsck", address, "--token", text(&token), "--gc", "--json"];
        let said: Value = serde_json::from_str(&succeed(&fsck)).unwrap();
        said["counts"]["blocks_removed"].clone()
    };
    assert_eq!((collect(), collect()), (2.into(), 0.into()));
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn dev_runs_one_server_as_it_runs_several() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let args = ["dev", "--dir", text(&dir), "--servers", "1", "--listen", "127.0.0.1:0"];
    for _ in ["new", "served again"] {
        let running = Running::start(pando(&args), "serving ");
        let ready = running.said.lines().last().unwrap();
        let address = ready.split_whitespace().nth(4).unwrap();
        let token = dir.join("admin.token");
        let said = succeed(&["status", address, "--token", text(&token)]);
        assert!(said.contains("relaxed"), "{said}");
        assert_eq!(running.stop(), Some(0));
    }
}
