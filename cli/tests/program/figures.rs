//! `bench figures`: every experiment runs at toy size, and its drawing has what it is for; no rate
//! is looked at.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{folder, pause, succeed, text};

/// Files and output of experiments.
struct Drawn {
    out: TempDir,
    said: String,
}

impl Drawn {
    /// Runs an experiment of InfiniFS with two servers, unless `args` say otherwise.
    fn infinifs(only: &str, args: &str) -> Drawn {
        let (out, data) = (folder(), folder());
        let paths = ["--out", text(out.path()), "--directory", text(data.path())];
        let usual = ["--only", only, "--in-flight", "4", "--seconds", "1"];
        let servers = if args.contains("--servers") { "" } else { "--servers 2" };
        let args: Vec<_> = args.split_whitespace().chain(servers.split_whitespace()).collect();
        let all = [&["bench", "figures", "infinifs"], &usual[..], &args, &paths].concat();
        let said = succeed(&all);
        assert!(is_empty(data.path()), "{only} leaves its servers' data");
        Drawn { out, said }
    }

    fn figure(&self, name: &str) -> Value {
        let read = |end: &str| fs::read_to_string(self.out.path().join(format!("{name}.{end}")));
        assert!(read("svg").unwrap().ends_with("</svg>\n"));
        serde_json::from_str(&read("json").unwrap()).unwrap()
    }

    /// The values of a series of the chart whose title begins so, by its points.
    fn series(&self, name: &str, chart: &str, series: &str) -> Vec<f64> {
        let figure = self.figure(name);
        let charts = figure["charts"].as_array().unwrap();
        let titled = |of: &&Value| of["title"].as_str().unwrap().starts_with(chart);
        let chart = charts.iter().find(titled).unwrap_or_else(|| panic!("{chart}: {figure}"));
        let all = chart["series"].as_array().unwrap();
        let found = all.iter().find(|of| of["name"] == series);
        let found = found.unwrap_or_else(|| panic!("{series}: {chart}"));
        found["values"].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
    }

    fn value(&self, name: &str, chart: &str, series: &str) -> f64 {
        self.series(name, chart, series)[0]
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn fig9_shows_that_more_servers_need_no_more_requests() {
    let small = "--counts 1,2 --operations 64 --samples 4";
    let drawn = Drawn::infinifs("fig9", small);
    for op in ["create", "stat", "unlink"] {
        let requests = drawn.series("fig9", "requests for an operation", op);
        assert!(requests.len() == 2 && requests.iter().all(|each| (0.9..1.2).contains(each)));
    }
    assert_eq!(drawn.series("fig9", "servers that an operation", "create"), [1.0, 1.0]);
}

#[test]
fn fig11_shows_what_each_step_saves() {
    let small = "--servers 3 --samples 8 --operations 32 --depth 6 --rtt 2ms";
    let drawn = Drawn::infinifs("fig11", small);
    let requests = drawn.series("fig11", "requests for a create", "requests");
    assert!(requests[0] > 2.0 && requests[0] > requests[2], "{requests:?}");
    assert!(requests[2] < 1.1 && requests[3] < 1.1, "{requests:?}");
    let latency = drawn.series("fig11", "latency of a create", "all, mean");
    assert!(latency[0] > latency[1] && latency[0] > latency[2], "{latency:?}");
    assert!(latency[2] > latency[3], "a transaction takes longer: {latency:?}");
    let resolution = drawn.series("fig11", "latency of a mkdir", "path resolution");
    assert!(resolution.len() == 4 && resolution[2] < resolution[0], "{resolution:?}");
}

#[test]
fn fig12_grows_a_tree_until_all_is_there_or_the_time_is_over() {
    let small = "--files 1600 --operations 40 --memtable 256KiB";
    let drawn = Drawn::infinifs("fig12", small);
    for what in ["create", "stat, new files", "stat, oldest files"] {
        assert_eq!(drawn.series("fig12", "CPU of all servers", what).len(), 8);
    }
    assert!(drawn.value("fig12", "metadata on disk for a file", "bytes") > 1.0);
    assert!(drawn.said.contains("1600 files beside an eighth of them"), "{}", drawn.said);
    let late = Drawn::infinifs("fig12", &format!("{small} --growth-limit 1ms"));
    assert_eq!(late.series("fig12", "CPU of all servers", "create").len(), 1);
    let how = late.figure("fig12")["how"].as_str().unwrap().to_owned();
    assert!(how.contains("--growth-limit ended before"), "{how}");
}

#[test]
fn fig13_shows_what_leases_and_small_caches_cost() {
    let small = "--clients 3 --leases 100ms --caches 0,100";
    let drawn = Drawn::infinifs("fig13", small);
    let requests = |of: &str| drawn.series("fig13", "requests for a stat", of);
    let (lazy, leased) = (requests("lazy"), requests("lease 100ms"));
    assert!(lazy[0] > 1.2, "without a cache directories are asked for: {lazy:?}");
    assert!(lazy[1] < 1.1 && lazy[1] < leased[1], "{lazy:?} {leased:?}");
}

#[test]
fn fig14_shows_parts_of_renames() {
    let small = "--counts 2 --samples 2 --operations 16 --rtt 50us";
    let drawn = Drawn::infinifs("fig14", small);
    assert_eq!(drawn.series("fig14", "where the time goes", "directory").len(), 8);
    let trips = drawn.series("fig14", "the same, with 5 ms", "directory");
    assert!(trips.iter().take(6).sum::<f64>() > 2.0, "{trips:?}");
    assert_eq!(drawn.series("fig14", "latency of renaming a directory", "median").len(), 2);
}

#[test]
fn fig15_shows_rounds_and_requests_that_mispredictions_cost() {
    let drawn = Drawn::infinifs("fig15", "--samples 2 --rtt 50us");
    let rounds = drawn.series("fig15", "rounds and mispredictions", "mispredictions");
    assert_eq!(rounds.len(), 7);
    assert!(rounds[0] < 0.1 && rounds[6] > 0.5, "{rounds:?}");
    let requests = drawn.series("fig15", "requests for a cold stat", "speculative");
    assert!(requests[0] < requests[6], "{requests:?}");
}

#[test]
fn cold_stats_take_one_round_trip_at_any_depth_and_walks_more_with_each() {
    let drawn = Drawn::infinifs("cold", "--samples 5 --depths 2,8");
    let by_depth = |of: &str| drawn.series("cold", "median by depth", of);
    let (guessed, walked) = (by_depth("speculative"), by_depth("sequential"));
    assert!(guessed.iter().all(|trips| (1.0..4.0).contains(trips)), "{guessed:?}");
    assert!(walked[1] > walked[0] + 1.0 && walked[1] > guessed[1], "{walked:?}");
    let jittered = |of: &str| drawn.series("cold", "by depth, with", of);
    let (half, all) = (jittered("sequential, half"), jittered("sequential, all"));
    assert!(half.len() == 2 && half[1] >= 1.0 && all[1] > half[1], "{half:?} {all:?}");
    for bound in ["", ", bound to a user"] {
        let (fast, walked) =
            (by_depth(&format!("fast path{bound}")), by_depth(&format!("sequential{bound}")));
        assert!(fast[1] < walked[1], "{fast:?} {walked:?}");
        let requests = |of| drawn.series("cold", "requests for a stat", &format!("{of}{bound}"));
        let (fast, walked) = (requests("fast path"), requests("sequential"));
        assert!(fast[0] < 1.5 && fast[0] < walked[0], "{fast:?} {walked:?}");
    }
    assert!(drawn.said.contains("sequential, in round trips of 5ms | – |"), "{}", drawn.said);
}

#[test]
fn rates_and_invalidation_are_measured() {
    let drawn = Drawn::infinifs("rates,invalidation", "--operations 40 --rename-every 20");
    for run in ["run 1", "run 2", "run 3"] {
        let rates = drawn.series("rates", "operations/s", run);
        assert!(rates.len() == 4 && rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
    }
    assert_eq!(drawn.series("invalidation", "stats/s", "1 rename in 20").len(), 4);
    assert!(drawn.said.contains("with 1 directory rename in 20 operations"), "{}", drawn.said);
}

#[test]
fn the_mix_of_table_1_is_what_the_paper_gives() {
    let drawn = Drawn::infinifs("mix", "--counts 1,2 --operations 3000 --clients 2");
    let parts = drawn.series("mix", "operations of the mix", "drawn");
    assert_eq!(parts.len(), 12);
    assert!((parts[0] - 52.6).abs() < 4.0 && (parts[1] - 12.4).abs() < 3.0, "{parts:?}");
    // A close sends no request: a mix with so many needs less than a request for each.
    let requests = drawn.series("mix", "requests for an operation", "the mix");
    assert!(requests.iter().all(|each| (0.5..1.2).contains(each)), "{requests:?}");
}

#[test]
fn what_large_file_systems_need_is_computed_from_what_is_measured() {
    let (out, data) = (folder(), folder());
    let paths = ["--out", text(out.path()), "--directory", text(data.path())];
    let small = ["--files", "2000", "--operations", "480", "--servers", "3", "--seconds", "1"];
    let said = succeed(&[&["bench", "scale"], &small[..], &paths].concat());
    assert!(is_empty(data.path()));
    let file = out.path().join("scale.json");
    let kept: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let of = |name: &str| kept["constants"][name].as_f64().unwrap();
    assert!(of("bytes_per_file") > 1.0 && of("names_moved_per_create") > 0.0, "{kept}");
    for (operation, cpu) in kept["constants"]["cpu"].as_object().unwrap() {
        assert!(cpu.as_f64() > Some(0.0), "{operation}");
    }
    assert!(said.contains("| **servers** |") && said.contains("First comes: **"), "{said}");
    assert!(said.contains("This is no release build"), "{said}");
    assert_eq!(succeed(&["bench", "scale", "--page", text(&file)]), said);
}

#[test]
fn figures_are_recorded_one_by_one_and_not_twice() {
    let out = folder();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/figures");
    let record = |args: &[&str]| {
        let mut command = Command::new(&script);
        command.args(["--size", "toy", "--out", text(out.path())]).args(args);
        let output = command.env("PANDO", env!("CARGO_BIN_EXE_pando")).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), said + &String::from_utf8(output.stderr).unwrap())
    };
    let names = ["infinifs/balance", "infinifs/fig10", "duplex-balance"];
    // Without time nothing is begun.
    let (code, said) = record(&[&["--minutes", "0"], &names[..]].concat());
    assert_eq!(code, Some(3), "{said}");
    let (code, said) = record(&names);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("[3/3] duplex-balance"), "{said}");
    for name in names {
        let file = out.path().join(format!("{name}.json"));
        let kept: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let command = kept["record"]["command"].as_str().unwrap();
        assert!(command.starts_with("pando bench figures ") && !command.contains("--out"));
        assert_eq!(kept["record"]["build"], "debug");
        assert!(kept["record"]["machine"]["cores"].as_u64() > Some(0));
        assert!(out.path().join(format!("{name}.svg")).exists());
    }
    // Existing figures are kept; missing ones are made again.
    fs::remove_file(out.path().join("infinifs/balance.json")).unwrap();
    let (code, said) = record(&names);
    assert_eq!((code, said.matches("is there").count()), (Some(0), 2), "{said}");
    assert!(out.path().join("infinifs/balance.json").exists());
    let (code, said) = record(&["infinifs/nothing"]);
    assert!(code == Some(2) && said.contains("infinifs/nothing"), "{said}");
}

#[test]
fn a_recording_that_is_interrupted_leaves_what_it_has_and_goes_on_from_there() {
    let out = folder();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/figures");
    let command = || {
        let mut command = Command::new(&script);
        command.args(["--size", "toy", "--out", text(out.path())]);
        command.args(["infinifs/balance", "infinifs/fig15"]);
        command.env("PANDO", env!("CARGO_BIN_EXE_pando")).env("TMPDIR", out.path());
        command
    };
    let mut interrupted = command().stdout(Stdio::null()).spawn().unwrap();
    let recorded = |name: &str| out.path().join(format!("infinifs/{name}.json")).exists();
    while !recorded("balance") {
        assert!(interrupted.try_wait().unwrap().is_none(), "it ends by itself");
        pause(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&interrupted), Signal::TERM).unwrap();
    assert_eq!(interrupted.wait().unwrap().code(), Some(130));
    assert!(!recorded("fig15"));
    let left = fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["infinifs"], "servers and folders are gone");
    let output = command().output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("infinifs/balance: is there") && recorded("fig15"), "{said}");
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
fn regions_are_measured_beside_the_file_system_that_they_are_over() {
    let (out, data) = (folder(), folder());
    let paths = ["--out", text(out.path()), "--directory", text(data.path())];
    let toy = "--operations 20 --clients 2 --counts 1,2 --jobs 1,2 --rounds 1 --delay 10us";
    let toy: Vec<_> = toy.split(' ').collect();
    let said = succeed(&[&["bench", "figures", "pacon"], &toy[..], &paths].concat());
    assert!(said.contains("create in a region, beside the file system below"), "{said}");
    let drawn = Drawn { out, said };
    for series in ["the file system below", "in a region", "a server of Pando, as it is"] {
        assert_eq!(drawn.series("fig7", "operations/s", series).len(), 3, "{series}");
    }
    assert_eq!(drawn.series("fig7", "operations/s", "in a region, until all is below").len(), 2);
    assert_eq!(drawn.series("fig8", "creates/s", "in regions").len(), 2);
    assert_eq!(drawn.series("fig11", "CPU", "in a region").len(), 2);
    assert!(is_empty(data.path()), "the server's data is gone");
}

#[test]
fn hybrid_placement_is_measured_beside_hashing_and_subtrees() {
    let (out, data) = (folder(), folder());
    let paths = ["--out", text(out.path()), "--directory", text(data.path())];
    let toy = "--counts 1,2 --samples 5 --directories 600 --files 600 --clients 2 --scanned 60 \
               --stats 100 --changes 1 --minutes 15 --speed 100";
    let toy: Vec<_> = toy.split_whitespace().collect();
    let said = succeed(&[&["bench", "figures", "hsm2"], &toy[..], &paths].concat());
    assert!(said.contains("requests for a directory scanned, hybrid, 10-ary tree"), "{said}");
    assert!(said.contains("shards that move in an hour, of all"), "{said}");
    let drawn = Drawn { out, said };
    for series in ["requests", "entries"] {
        assert!(drawn.series("fig9", "most of a server", series).len() > 5, "{series}");
    }
    for series in ["hybrid", "directories hashed", "entries hashed"] {
        assert_eq!(drawn.series("fig4", "readdir", series).len(), 2, "{series}");
    }
    let scanned = |series| drawn.series("fig8", "figure 8, requests", series);
    let (hybrid, hashed) = (scanned("hybrid"), scanned("hash"));
    // In the other tree of this size nearly all directories are above the boundary or at it.
    assert!(hybrid[0] < hashed[0], "{}", drawn.said);
    assert!(is_empty(data.path()), "the servers' data is gone");
}

#[test]
fn the_balance_of_divided_directories_is_drawn_for_every_spread() {
    let out = folder();
    let args = ["bench", "figures", "duplex-balance", "--out", text(out.path())];
    let small = ["--entries", "6400", "--files", "30", "--threshold", "100"];
    let said = succeed(&[&args[..], &small].concat());
    assert!(said.contains("6400 entries over 32 servers, `extendible`, 64"), "{said}");
    assert!(said.contains("512 directories of 30 entries over 16 servers"), "{said}");
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
    let by_threshold = charts[6]["series"][2]["values"].as_array().unwrap();
    assert_eq!(by_threshold.len(), 6);
    let over_32 = |series: usize| charts[2]["series"][series]["values"][1].as_f64().unwrap();
    assert!((over_32(0) - 32.0).abs() < 1e-9, "one server has all");
    assert!(over_32(1) < 3.0 && over_32(2) < 3.0, "{said}");
    assert!(
        out.path().join("duplex-balance.svg").exists() && out.path().join("reach.jsonl").exists()
    );
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
    assert_eq!(reach.lines().count(), 20, "{reach}");
}
