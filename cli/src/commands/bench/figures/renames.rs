//! Figure 14: renames of files and of directories, also of large ones.

use std::time::Duration;

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal, TargetRow},
};

use super::{
    Outcome, Params,
    load::{self, Op, Work, below},
    row,
    site::{Shape, Site},
};

/// Directories between which things are renamed.
const BASES: usize = 64;
/// Files of a large directory.
const MANY: usize = 5000;
/// Renames of the large directory, and of the one beside it.
const REPEATS: usize = 30;
/// A round trip beside which nothing else counts,
const LONG: Duration = Duration::from_millis(5);
/// and at most so many renames with it.
const LONG_SAMPLES_MAX: usize = 100;

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut latency = Chart::new("median latency, µs, round trips added", "servers", Marks::Lines);
    let mut rate = Chart::new("renames/s on this machine, many under way", "servers", Marks::Lines);
    let mut size = Chart::new("latency of renaming a directory, µs", "files in it", Marks::Bars);
    let mut reach = Vec::new();
    let counts = params.counts.iter().copied().filter(|servers| *servers <= 8);
    for servers in counts {
        let point = servers.to_string();
        let (site, client, watcher, bases) = far(params, servers, params.rtt).await?;
        for (name, us) in latencies(&client, &watcher, &bases, params.samples.get()).await? {
            latency.add(&point, name, us);
            if name == "directory" && servers == params.servers {
                reach.extend(trips(params.rtt, us));
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
            let [_, (_, us)] = latencies(&client, &watcher, &bases, samples).await?;
            reach.extend(trips(LONG, us));
            site.stop()?;
        }
        let site = Site::start(params, Shape::of(servers))?;
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
    let how = "Everything is renamed to another directory, of which the server is mostly another one; the paths are cached. \
               Latency: one at a time, with the round trip added for the client and between servers. The paper divides a \
               rename into its phases; here only the whole is seen.";
    let figure = Figure {
        name: "fig14".to_owned(),
        title: "Figure 14: renames".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["rtt", "samples", "operations", "in-flight"]),
        charts: vec![latency, rate, size],
    };
    Ok(Outcome { figure, reach })
}

/// A cluster at a distance, with a client that has made what is renamed to and one that watches.
async fn far(
    params: &Params,
    servers: u16,
    rtt: Duration,
) -> anyhow::Result<(Site, [client::Client; 1], client::Client, Vec<String>)> {
    let site = Site::start(params, Shape { rtt, ..Shape::of(servers) })?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let bases = bases(&client[0]).await?;
    Ok((site, client, watcher, bases))
}

/// Median microseconds of renames of files and of directories, one at a time.
async fn latencies(
    client: &[client::Client; 1],
    watcher: &client::Client,
    bases: &[String],
    samples: usize,
) -> anyhow::Result<[(&'static str, f64); 2]> {
    let [(file, files), (directory, directories)] = moves(&client[0], bases, samples).await?;
    let files = load::run(client, watcher, 1, files).await?;
    let directories = load::run(client, watcher, 1, directories).await?;
    Ok([(file, files.percentile_us(500)), (directory, directories.percentile_us(500))])
}

/// What the rename of a directory takes, in round trips.
fn trips(rtt: Duration, us: f64) -> Option<TargetRow> {
    let trips = us / (rtt.as_secs_f64() * 1e6);
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
