//! Figure 10: latency of each operation, one at a time, at a depth, with a warm cache.

use bench::figure::{Chart, Figure, Marks};

use super::{
    load::{self, Op, below},
    outcome::Outcome,
    params::Params,
    site::{Shape, Site},
};

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let shape = Shape { rtt: params.rtt, ..Shape::of(params.servers) };
    let site = Site::start(params.directory.as_deref(), shape)?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let dirs = load::chains(&client[0], "a", 8, usize::from(params.depth)).await?;
    let samples = params.samples.get();
    let mut chart = Chart::new("latency, µs", "operation", Marks::Bars);
    let mut trips = Chart::new("median in round trips", "operation", Marks::Bars);
    let renamed = |path: &str| Op::Rename(format!("{path}-renamed"));
    let renames: Vec<_> = below(&dirs, &Op::Stat, "file", samples)
        .into_iter()
        .map(|(_, path)| (renamed(&path), path))
        .collect();
    let phases = [
        ("mkdir", below(&dirs, &Op::Mkdir, "dir", samples)),
        ("stat of directory", below(&dirs, &Op::Stat, "dir", samples)),
        ("create", below(&dirs, &Op::Create, "file", samples)),
        ("stat", below(&dirs, &Op::Stat, "file", samples)),
        ("list", below(&dirs, &Op::List, "dir", samples)),
        ("rename", renames),
        ("unlink", below(&dirs, &Op::Unlink, "file", samples)),
        ("rmdir", below(&dirs, &Op::Rmdir, "dir", samples)),
    ];
    for (name, mut work) in phases {
        if name == "unlink" {
            work.iter_mut().for_each(|(_, path)| *path += "-renamed");
        }
        let took = load::run(&client, &watcher, 1, work).await?;
        chart.add(name, "mean", took.mean_us());
        chart.add(name, "median", took.percentile_us(500));
        chart.add(name, "99 %", took.percentile_us(990));
        if !params.rtt.is_zero() {
            trips.add(
                name,
                "round trips",
                took.percentile_us(500) / (params.rtt.as_secs_f64() * 1e6),
            );
        }
    }
    site.stop()?;
    let how = "One operation at a time by one client with a warm cache; a round trip is added to \
               each connection of the client and between servers. What this machine takes to wake \
               processes up is in all figures: all servers share its cores.";
    let figure = Figure {
        name: "fig10".to_owned(),
        title: "Figure 10: latency of operations".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "depth", "rtt", "samples"]),
        charts: vec![chart, trips],
    };
    Ok(Outcome { figure, reach: Vec::new() })
}
