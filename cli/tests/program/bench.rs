//! `bench`: every command does what it says, with little to do; no figure is looked at.

use std::{fs, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    harness::{Data, folder, pando, pause, stderr, succeed, text},
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
    succeed(&["mount", server.address(), text(&mount.0), "--token", text(&token)]);
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
