//! `bench`: every command does what it says, with little to do; no figure is looked at.

use std::{fs, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    harness::{Data, fail, folder, pando, pause, stderr, succeed, text},
    mounted::Mountpoint,
};

/// The fields of a phase in `bench md --json`, which are a contract.
const FIELDS: [&str; 9] = [
    "phase",
    "ops",
    "seconds",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "client_cpu_us_per_op",
    "server_cpu_us_per_op",
    "requests_per_op",
];

const PHASES: [&str; 10] = [
    "dir_create",
    "dir_stat",
    "dir_rename",
    "dir_remove",
    "file_create",
    "file_stat",
    "file_open",
    "file_rename",
    "readdir",
    "file_remove",
];

fn rows(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text_of(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap().to_owned()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn md_measures_a_directory_with_a_process_for_each_rank() {
    let folder = folder();
    let small = ["--files", "3", "--iterations", "2", "--depth", "1", "--json"];
    let said = succeed(&[&["bench", "md", text(folder.path())], &small[..]].concat());
    let rows = rows(&said);
    let phases: Vec<_> = rows.iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, [PHASES, PHASES].concat());
    for row in rows {
        let fields: Vec<_> = row.as_object().unwrap().keys().collect();
        assert_eq!(fields, FIELDS);
        assert!(row["ops_per_s"].as_f64() > Some(0.0), "{row}");
        assert_eq!(
            (&row["server_cpu_us_per_op"], &row["requests_per_op"]),
            (&Value::Null, &Value::Null)
        );
    }
    assert!(is_empty(folder.path()));
}

#[test]
fn md_measures_a_server_and_what_it_uses() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    for shape in [
        &["--ranks", "2", "--shared"][..],
        &["--ranks", "1", "--in-flight", "8", "--connections", "4"],
        &["--ranks", "3", "--connections", "2"],
    ] {
        let args = ["bench", "md", server.address(), "--token", text(&token), "--files", "20"];
        let said = succeed(&[&args[..], shape, &["--iterations", "1", "--json"]].concat());
        for row in rows(&said) {
            assert!(row["server_cpu_us_per_op"].as_f64() > Some(0.0), "{shape:?} {row}");
            let requests = row["requests_per_op"].as_f64().unwrap();
            assert!(row["phase"] == "readdir" || requests >= 1.0, "{shape:?} {row}");
        }
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn md_on_a_mount_counts_the_requests_that_reach_its_server() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mount = Mountpoint::new(data.folder.path());
    let token = data.admin_token();
    let asks = ["--token", text(&token), "-o", "delegations=off"];
    succeed(&[&["mount", server.address(), text(&mount.0)], &asks[..]].concat());
    let args = ["bench", "md", text(&mount.0), "--files", "3", "--iterations", "1", "--json"];
    let with_token = rows(&succeed(&[&args[..], &["--token", text(&token)]].concat()));
    let created = with_token.iter().find(|row| row["phase"] == "file_create").unwrap();
    assert!(created["requests_per_op"].as_f64() >= Some(1.0), "{created}");
    let without = rows(&succeed(&args));
    assert!(without.iter().all(|row| row["requests_per_op"].is_null()));
    assert!(is_empty(&mount.0));
    succeed(&["umount", text(&mount.0)]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn md_that_is_interrupted_leaves_nothing() {
    let folder = folder();
    let args = ["bench", "md", text(folder.path()), "--files", "20000", "--iterations", "1000"];
    let mut command = pando(&args);
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    while is_empty(folder.path()) {
        pause(Duration::from_millis(5));
        assert!(process.try_wait().unwrap().is_none(), "it ends by itself");
    }
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert!(is_empty(folder.path()));
}

#[test]
fn floors_are_measured_and_leave_nothing() {
    let folder = folder();
    let few = ["--requests", "200", "--records", "200", "--files", "5", "--iterations", "1"];
    let args =
        ["bench", "floor", "--json", "--fuse-threads", "2", "--directory", text(folder.path())];
    let rows = rows(&succeed(&[&args[..], &few].concat()));
    let floors: Vec<_> = rows.iter().map(|row| row["floor"].as_str().unwrap()).collect();
    let expected = [
        "echo_1",
        "echo_16",
        "echo_128",
        "echo_16_over_16",
        "echo_128_over_16",
        "engine_create",
        "engine_get_hit",
        "engine_get_miss",
        "null_file_create",
        "null_file_stat",
        "null_file_remove",
    ];
    assert_eq!(floors, expected);
    assert!(rows.iter().all(|row| row["ops_per_s"].as_f64() > Some(0.0)));
    assert!(is_empty(folder.path()));
}

#[test]
fn everything_is_measured_and_drawn_beside_its_floors() {
    let (out, folder) = (folder(), folder());
    let args = ["bench", "report", "--size", "tiny", "--out", text(out.path())];
    let said = succeed(&[&args[..], &["--directory", text(folder.path())]].concat());
    assert_eq!(said.lines().filter(|line| line.contains("`pando ")).count(), 19, "{said}");
    assert!(said.contains("| null_file_stat | "), "{said}");
    assert!(is_empty(folder.path()));
    let drawn = fs::read_to_string(out.path().join("report.svg")).unwrap();
    // The native runs have three phases each, and the mounts ten.
    assert_eq!(drawn.matches("fill=\"#4c78a8\"").count(), 3 * 3 + 3 * 10);
    let results = out.path().join("results.jsonl");
    let again = succeed(&["bench", "report", text(&results), "--out", text(out.path())]);
    assert_eq!(again, said);
}

#[test]
fn a_large_directory_is_made_listed_looked_at_and_removed() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let part = |part: &str, entries: &str| -> Vec<String> {
        let args = ["bench", "large", server.address(), part, "--token", text(&token), "--json"];
        let args = [&args[..], &["--entries", entries, "--stats", "20"]].concat();
        args.into_iter().map(str::to_owned).collect()
    };
    for (name, entries) in [("make", 1200), ("list", 1200), ("stat", 20), ("remove", 1200)] {
        let args = part(name, "1200");
        let said = succeed(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&said["part"], &said["entries"]), (&name.into(), &entries.into()));
        assert!(said["resident_bytes_peak"].as_u64() > Some(0));
        if name == "list" {
            let wrong = part(name, "1199");
            let out =
                pando(&wrong.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
            assert!(stderr(&out).contains("1200 entries are there in place of 1199"));
        }
    }
    assert_eq!(server.stop(), Some(0));
}

const APPS: [&str; 11] = [
    "untar",
    "find",
    "find-again",
    "grep",
    "copy",
    "git-add",
    "git-commit",
    "git-status",
    "make",
    "remove-copy",
    "remove-tree",
];

#[test]
fn programs_are_timed_at_all_places_and_their_requests_counted() {
    let (local, out, data) = (folder(), folder(), folder());
    let here = text(local.path());
    let small = ["--entries", "40", "--bytes", "100KiB", "--turns", "1", "--json"];
    // Each entry of the tree has a request of its own then.
    let own = ["--with", "ext4,null,up,serve,serve-far", "-o", "delegations=off"];
    let paths = ["--out", text(out.path()), "--directory", text(data.path()), here];
    let said = succeed(&[&["bench", "apps"], &small[..], &own, &paths].concat());
    assert!(is_empty(local.path()) && is_empty(data.path()), "the run leaves something");
    assert_eq!(
        fs::read_to_string(out.path().join("apps.jsonl")).unwrap().trim_end(),
        said.trim_end()
    );
    let rows = rows(&said);
    let places = ["ext4", "null", "up", "serve", "serve-far", here];
    let expected =
        places.iter().flat_map(|place| APPS.map(|app| ((*place).to_owned(), app.to_owned())));
    let name = |row: &Value| (text_of(row, "place"), text_of(row, "app"));
    let named: Vec<_> = rows.iter().map(name).collect();
    assert_eq!(named, expected.collect::<Vec<_>>());
    for row in &rows {
        let (place, app) = (text_of(row, "place"), text_of(row, "app"));
        assert!(row["seconds"].as_f64() > Some(0.0), "{row}");
        assert!(row["synced_seconds"].as_f64() >= row["seconds"].as_f64(), "{row}");
        let mounted = ["up", "serve", "serve-far"].contains(&place.as_str());
        assert_eq!(mounted, row["kernel_requests"].is_object(), "{row}");
        assert_eq!(mounted, row["server_requests"].is_u64(), "{row}");
        if mounted && app == "untar" {
            let kinds = |kind: &str| row["kernel_requests"][kind].as_u64().unwrap_or_default();
            let entries = row["entries"].as_u64().unwrap();
            // The root of the tree is made, too.
            assert_eq!(kinds("CREATE") + kinds("MKDIR"), entries + 1, "{row}");
            assert!(row["server_requests"].as_u64() > Some(entries), "{row}");
        }
    }
    // The added round trips of 200 us are of the mount that has them.
    let of = |place: &str| {
        let row = rows.iter().find(|row| row["place"] == place && row["app"] == "untar").unwrap();
        (row["seconds"].as_f64().unwrap(), row["server_requests"].as_f64().unwrap())
    };
    let (far, requests) = of("serve-far");
    assert!(far > requests * 200e-6 * 0.5, "{far} s for {requests} requests");
    let figure: Value =
        serde_json::from_str(&fs::read_to_string(out.path().join("apps.json")).unwrap()).unwrap();
    assert_eq!(figure["charts"][0]["points"].as_array().unwrap().len(), APPS.len());
    assert!(fs::read_to_string(out.path().join("apps.svg")).unwrap().contains("serve-far"));
}

#[test]
fn programs_that_fail_or_are_interrupted_leave_nothing() {
    let (local, data) = (folder(), folder());
    let paths = ["--directory", text(data.path()), text(local.path())];
    let small = ["bench", "apps", "--entries", "40", "--bytes", "100KiB", "--turns", "1"];
    // A directory in which nothing may be made.
    let error = fail(1, &[&small[..], &["--directory", text(data.path()), "/proc"]].concat());
    assert!(error.contains("/proc"), "{error}");
    assert!(is_empty(data.path()));
    let many = ["bench", "apps", "--entries", "40", "--bytes", "100KiB", "--turns", "100"];
    let mut running = pando(&[&many[..], &["--with", "up"], &paths].concat())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Programs run once there is something in the mount.
    let runs_programs = || {
        let run = fs::read_dir(data.path()).unwrap().next().map(|run| run.unwrap().path());
        let mount = run.and_then(|run| fs::read_dir(run.join("up/mount")).ok());
        mount.is_some_and(|mut all| all.next().is_some())
    };
    while !runs_programs() {
        assert!(running.try_wait().unwrap().is_none(), "it ends by itself");
        pause(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(1));
    assert!(is_empty(local.path()) && is_empty(data.path()), "the run leaves something");
}
