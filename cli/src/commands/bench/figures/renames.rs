//! Figure 14: renames of files and of directories, also of large ones.

use std::time::Duration;

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal, TargetRow},
};

use super::{
    load::{self, Op, Work, below},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

/// Directories between which things are renamed.
const BASES: usize = 64;
/// Files of a large directory.
const MANY: usize = 5000;
/// Renames of the large directory, and of the one beside it.
const REPEATS: usize = 30;
/// A round trip beside which nothing else counts.
const LONG: Duration = Duration::from_millis(5);
/// Number of renames with the long round trip, at most.
const LONG_SAMPLES_MAX: usize = 100;
/// Idle time after which servers have told each other of all changes.
const SETTLED: Duration = Duration::from_millis(300);
/// Parts of a transaction: see docs/MONITORING.md.
const BEFORE_ANSWER: [&str; 5] = ["again", "read", "prepare", "announce", "commit"];
const AFTER_ANSWER: [&str; 2] = ["sync", "tell"];

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut latency = Chart::new("median latency, µs, round trips added", "servers", Marks::Lines);
    let mut rate = Chart::new("renames/s on this machine, many under way", "servers", Marks::Lines);
    let mut parts = Chart::new(
        &format!("where the time goes, {} servers, mean µs", params.servers),
        "part",
        Marks::Bars,
    );
    let mut rounds = Chart::new(
        "the same, with 5 ms added to each round trip, in round trips",
        "part",
        Marks::Bars,
    );
    let mut size = Chart::new("latency of renaming a directory, µs", "files in it", Marks::Bars);
    let mut reach = Vec::new();
    let counts = params.counts.iter().copied().filter(|servers| *servers <= 8);
    for servers in counts {
        let point = servers.to_string();
        let (site, client, watcher, bases) = far(params, servers, params.rtt).await?;
        for took in one_by_one(&client, &watcher, &bases, params.samples.get()).await? {
            latency.add(&point, took.of, took.median_us);
            if servers == params.servers {
                took.parts.iter().for_each(|(part, us)| parts.add(part, took.of, *us));
                reach.extend(trips(params.rtt, &took));
            }
        }
        if servers == params.servers {
            for (files, us) in by_size(&client, &watcher).await? {
                size.add(&files.to_string(), "median", us);
            }
        }
        site.stop()?;
        if servers == params.servers {
            let (site, client, watcher, bases) = far(params, servers, LONG).await?;
            let samples = params.samples.get().min(LONG_SAMPLES_MAX);
            for took in one_by_one(&client, &watcher, &bases, samples).await? {
                let long_us = LONG.as_secs_f64() * 1e6;
                took.parts.iter().for_each(|(part, us)| rounds.add(part, took.of, us / long_us));
                reach.extend(trips(LONG, &took));
            }
            site.stop()?;
        }
        let site = Site::start(params.directory.as_deref(), Shape::of(servers))?;
        let client = [site.client(|_| {}).await?];
        let watcher = site.client(|_| {}).await?;
        let under_way = params.under_way(servers);
        let bases = self::bases(&client[0]).await?;
        let many = params.operations.get().div_ceil(4);
        for (name, work) in moves(&client[0], &bases, many).await? {
            let took = load::run(&client, &watcher, under_way, work).await?;
            rate.add(&point, name, took.per_second());
            if name == "directory" && servers == params.servers {
                let target = format!("directory renames a second, {servers} servers");
                let goal = ("/s", Goal::AtLeast(5000.0));
                reach.extend(row(&target, goal, vec![took.per_second()], None, "fig14"));
            }
        }
        site.stop()?;
    }
    if let (Some(many), Some(one)) =
        (size.value(&MANY.to_string(), "median"), size.value("1", "median"))
    {
        let target = format!("rename of a directory with {MANY} files, beside one with one");
        reach.extend(row(
            &target,
            ("µs", Goal::Times(Against::Beside, 1.1)),
            vec![many],
            Some(one),
            "fig14",
        ));
    }
    let how = "Everything is renamed to another directory, of which the server is mostly another \
               one; the paths are cached. Latency: one at a time, with the round trip added for \
               the client and between servers. Parts: what servers count at the initiator, which \
               is the coordinator for directories, over all renames; the last two come after the \
               answer. `client` is the rest of the latency: to the initiator and back, by way of \
               another server if the client does not know, and for files that stay on one server \
               all of it.";
    let figure = Figure {
        name: "fig14".to_owned(),
        title: "Figure 14: renames".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["rtt", "samples", "operations", "in-flight"]),
        charts: vec![latency, parts, rounds, rate, size],
    };
    Ok(Outcome { figure, reach })
}

/// A cluster at a distance, with a client that has made what is renamed to and one that watches.
async fn far(
    params: &Params,
    servers: u16,
    rtt: Duration,
) -> anyhow::Result<(Site, [client::Client; 1], client::Client, Vec<String>)> {
    let site = Site::start(params.directory.as_deref(), Shape { rtt, ..Shape::of(servers) })?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let bases = bases(&client[0]).await?;
    Ok((site, client, watcher, bases))
}

/// Measurements of renames of one thing.
struct Renamed {
    of: &'static str,
    median_us: f64,
    /// Mean microseconds of a rename. Those before the answer add up to its latency.
    parts: Vec<(&'static str, f64)>,
}

/// Renames files and directories, one at a time.
async fn one_by_one(
    client: &[client::Client; 1],
    watcher: &client::Client,
    bases: &[String],
    samples: usize,
) -> anyhow::Result<[Renamed; 2]> {
    let [(file, files), (directory, directories)] = moves(&client[0], bases, samples).await?;
    let files = renamed(client, watcher, file, "other", files).await?;
    Ok([files, renamed(client, watcher, directory, "move", directories).await?])
}

async fn renamed(
    client: &[client::Client; 1],
    watcher: &client::Client,
    of: &'static str,
    kind: &str,
    work: Vec<Work>,
) -> anyhow::Result<Renamed> {
    // By then servers have told each other of earlier changes; the same wait ends the measurement.
    tokio::time::sleep(SETTLED).await;
    let before = watcher.loads().await?;
    let took = load::run(client, watcher, 1, work).await?;
    tokio::time::sleep(SETTLED).await;
    let after = watcher.loads().await?;
    let count = load::float(took.operations.max(1));
    let us = |part: &str| {
        let sum = |loads: &[wire::Load]| -> u64 {
            loads.iter().map(|load| nanos_of(load, kind, part)).sum()
        };
        Duration::from_nanos(sum(&after) - sum(&before)).as_secs_f64() * 1e6 / count
    };
    let before_answer = BEFORE_ANSWER.map(|part| (part, us(part)));
    let known: f64 = before_answer.iter().map(|(_, us)| us).sum();
    let mut parts = vec![("client", took.mean_us() - known)];
    parts.extend(before_answer);
    parts.extend(AFTER_ANSWER.map(|part| (part, us(part))));
    Ok(Renamed { of, median_us: took.percentile_us(500), parts })
}

/// Returns the time that one part of a server's transactions has taken.
fn nanos_of(load: &wire::Load, kind: &str, part: &str) -> u64 {
    let name = format!("transaction.{kind}.{part}");
    let found = load.distributions.iter().find(|(known, _)| *known == name);
    found.map_or(0, |(_, part)| part.sum)
}

/// Compares the rename of a directory with its goal in round trips.
fn trips(rtt: Duration, took: &Renamed) -> Option<TargetRow> {
    if took.of != "directory" {
        return None;
    }
    let trips = took.median_us / (rtt.as_secs_f64() * 1e6);
    let time = humantime::format_duration(rtt);
    let target = format!("round trips of {time} of a directory rename, commit included");
    if rtt.is_zero() {
        return None;
    }
    row(&target, ("", Goal::Below(4.0)), vec![trips], None, "fig14")
}

async fn bases(client: &client::Client) -> anyhow::Result<Vec<String>> {
    let bases: Vec<_> = (0..BASES).map(|base| format!("/base{base}")).collect();
    load::mkdirs(client, &bases).await?;
    Ok(bases)
}

/// Renames of as many files and directories, which are made here, each to another directory.
async fn moves(
    client: &client::Client,
    bases: &[String],
    count: usize,
) -> anyhow::Result<[(&'static str, Vec<Work>); 2]> {
    let to_next = |name: &str| -> Vec<Work> {
        let next = bases.iter().cycle().skip(1);
        let from = below(bases, &Op::Stat, name, count).into_iter().zip(next).enumerate();
        from.map(|(at, ((_, path), base))| (Op::Rename(format!("{base}/to-{name}{at}")), path))
            .collect()
    };
    let clients = std::slice::from_ref(client);
    load::run(clients, client, 32, below(bases, &Op::Create, "file", count)).await?;
    load::run(clients, client, 32, below(bases, &Op::Mkdir, "dir", count)).await?;
    Ok([("file", to_next("file")), ("directory", to_next("dir"))])
}

/// Median microseconds of renaming a directory with one file and with many, in turn.
async fn by_size(
    client: &[client::Client],
    watcher: &client::Client,
) -> anyhow::Result<[(usize, f64); 2]> {
    let sizes = [1, MANY];
    let mut paths = sizes.map(|files| format!("/base0/with{files}"));
    load::mkdirs(watcher, &paths).await?;
    for (path, files) in paths.iter().zip(sizes) {
        let create = below(std::slice::from_ref(path), &Op::Create, "file", files);
        load::run(client, watcher, 64, create).await?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for repeat in 0..REPEATS {
        for ((path, files), times) in paths.iter_mut().zip(sizes).zip(&mut times) {
            let to = format!("/base{}/with{files}", repeat % 2 + 1);
            let work = vec![(Op::Rename(to.clone()), std::mem::replace(path, to))];
            times.push(load::run(client, watcher, 1, work).await?.mean_us());
        }
    }
    let [one, many] = times.map(|times| bench::median(times).unwrap_or_default());
    Ok([(1, one), (MANY, many)])
}
