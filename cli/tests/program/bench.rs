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
fn figures_are_data_and_drawings() {
    let out = folder();
    let args = ["bench", "figures", "infinifs", "--only", "balance", "--out", text(out.path())];
    let said = succeed(&args);
    assert!(said.contains("| target | goal |") && said.contains("over 32 servers"), "{said}");
    let read = |name: &str| fs::read_to_string(out.path().join(name)).unwrap();
    let figure: Value = serde_json::from_str(&read("balance.json")).unwrap();
    assert_eq!(figure["charts"][1]["points"].as_array().unwrap().len(), 32);
    assert!(figure["how"].as_str().unwrap().contains("No server ran"));
    assert!(read("balance.svg").ends_with("</svg>\n"));
    let reach: Value = serde_json::from_str(read("reach.jsonl").lines().next().unwrap()).unwrap();
    assert!(reach["met"].is_boolean());
}

#[test]
fn the_balance_of_divided_directories_is_drawn_for_every_spread() {
    let out = folder();
    let args = ["bench", "figures", "duplex-balance", "--out", text(out.path())];
    let small = ["--entries", "6400", "--files", "30", "--threshold", "100"];
    let said = succeed(&[&args[..], &small].concat());
    assert!(said.contains("6400 entries over 32 servers, `extendible`, 64"), "{said}");
    let figure = fs::read_to_string(out.path().join("duplex-balance.json")).unwrap();
    let figure: Value = serde_json::from_str(&figure).unwrap();
    let charts = figure["charts"].as_array().unwrap();
    let spreads = |chart: &Value| {
        let series = chart["series"].as_array().unwrap();
        series.iter().map(|series| series["name"].clone()).collect::<Vec<_>>()
    };
    for chart in charts {
        assert_eq!(spreads(chart), ["none", "subsets", "extendible"], "{}", chart["title"]);
    }
    assert_eq!(charts[0]["points"].as_array().unwrap().len(), 16, "a bar for each server");
    let over_32 = |series: usize| charts[2]["series"][series]["values"][1].as_f64().unwrap();
    assert!((over_32(0) - 32.0).abs() < 1e-9, "one server has all");
    assert!(over_32(1) < 3.0 && over_32(2) < 3.0, "{said}");
    assert!(
        out.path().join("duplex-balance.svg").exists() && out.path().join("reach.jsonl").exists()
    );
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

#[test]
fn creates_read_next_to_no_data_blocks_because_of_filters() {
    let (out, data) = (folder(), folder());
    let small = ["--files", "20000", "--directories", "3", "--cache", "256KiB"];
    let small = [&small[..], &["--operations", "500"]].concat();
    let paths = ["--out", text(out.path()), "--directory", text(data.path())];
    let said = succeed(&[&["bench", "figures", "reads"], &small[..], &paths].concat());
    assert!(said.contains("data blocks read for 1000 creates"), "{said}");
    let figure = fs::read_to_string(out.path().join("reads.json")).unwrap();
    let figure: Value = serde_json::from_str(&figure).unwrap();
    let data_blocks = |series: usize| {
        let values = figure["charts"][0]["series"][series]["values"].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (without, with) = (data_blocks(0), data_blocks(1));
    assert_eq!((without.len(), with.len()), (5, 5));
    assert!(with[1] * 4.0 < without[1], "{said}");
    assert!(is_empty(data.path()));
}

#[test]
fn figures_of_a_cluster_of_processes_leave_nothing_behind() {
    let (out, data) = (folder(), folder());
    let small = ["--samples", "2", "--operations", "16", "--servers", "2", "--rtt", "50us"];
    let paths = ["--depth", "2", "--out", text(out.path()), "--directory", text(data.path())];
    let few = ["--crowds", "3", "--in-flight", "4"];
    let figures = ["bench", "figures", "infinifs", "--only", "fig10,storm"];
    let said = succeed(&[&figures[..], &small, &few, &paths].concat());
    assert!(said.contains("fig10: Figure 10") && said.contains("storm: Stats beside"), "{said}");
    assert!(out.path().join("fig10.svg").exists() && out.path().join("storm.svg").exists());
    assert!(is_empty(data.path()));
}

#[test]
fn figures_of_one_directory_with_many_clients_show_its_splits() {
    let (out, data) = (folder(), folder());
    let files = ["--files", "500", "--contents", "20", "--threshold", "60"];
    let grown = ["--grown", "600", "--grown-threshold", "90", "--modelled", "40000"];
    let few = ["--counts", "2", "--clients", "2", "--rounds", "1", "--in-flight", "4"];
    let paths = ["--out", text(out.path()), "--directory", text(data.path())];
    let said = succeed(&[&["bench", "figures", "sfs"], &files[..], &grown, &few, &paths].concat());
    assert!(is_empty(data.path()));
    let figure = |name: &str| -> Value {
        assert!(said.contains(&format!("{name}: SFS figure")), "{said}");
        let read = |name: String| fs::read_to_string(out.path().join(name)).unwrap();
        assert!(read(format!("{name}.svg")).ends_with("</svg>\n"));
        serde_json::from_str(&read(format!("{name}.json"))).unwrap()
    };
    let chart = |figure: &Value, title: &str| -> Value {
        let charts = figure["charts"].as_array().unwrap();
        let named = |chart: &&Value| chart["title"].as_str().unwrap().starts_with(title);
        charts.iter().find(named).unwrap_or_else(|| panic!("{title}: {figure}")).clone()
    };
    let value = |chart: &Value, series: usize| chart["series"][series]["values"][0].as_f64();
    let by_clients = figure("fig4");
    assert!(value(&chart(&by_clients, "partitions of"), 0) > Some(1.0), "{by_clients}");
    assert!(value(&chart(&by_clients, "names that moved"), 0) > Some(0.0), "{by_clients}");
    assert_eq!(chart(&figure("fig5"), "files of 500 bytes")["series"].as_array().unwrap().len(), 4);
    let growth = figure("fig6");
    let variants = ["split ordering", "locked scan", "divided before"];
    for (at, variant) in variants.iter().enumerate() {
        assert_eq!(chart(&growth, "creates/s")["series"][at]["name"], *variant);
    }
    for variant in 0..2 {
        assert!(value(&chart(&growth, "splits"), variant) > Some(0.0), "{growth}");
        assert!(value(&chart(&growth, "names are frozen"), variant) > Some(0.0), "{growth}");
    }
    let probes = figure("fig7");
    let modelled = chart(&probes, "model: wrong");
    assert_eq!(modelled["points"].as_array().unwrap().len(), 6);
    // Clients that know one partition ask the wrong one when there are more.
    assert!(modelled["series"][0]["values"][5].as_f64() > Some(0.0), "{probes}");
    // Real ones may be done before there are.
    assert!(value(&chart(&probes, "wrong requests"), 0) >= Some(0.0), "{probes}");
    let reach = fs::read_to_string(out.path().join("reach.jsonl")).unwrap();
    assert_eq!(reach.lines().count(), 17, "{reach}");
}
