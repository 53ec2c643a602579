//! Figure 13: lazy invalidation beside leases, with many clients.

use std::time::Duration;

use bench::figure::{Chart, Figure, Marks};
use client::Client;

use super::{
    Outcome, Params,
    load::{self, Op, Took, below},
    site::{Shape, Site},
};

/// Branches of the tree and its depth: a client looks at files in all of them.
const BRANCHES: usize = 24;
const DEPTH: usize = 4;
/// Stats of one look at the clock.
const PIECE: usize = 4096;

const CACHES: [(&str, Option<u64>); 4] =
    [("lazy", None), ("lease 1 s", Some(1)), ("lease 5 s", Some(5)), ("lease 10 s", Some(10))];

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let watcher = site.client(|_| {}).await?;
    let dirs = load::chains(&watcher, "branch", BRANCHES, DEPTH).await?;
    let files = below(&dirs, &Op::Create, "file", BRANCHES * 8);
    let stats: Vec<_> = files.iter().map(|(_, path)| (Op::Stat, path.clone())).collect();
    load::run(std::slice::from_ref(&watcher), &watcher, 32, files).await?;
    let mut rate = Chart::new("stats/s on this machine", "cache", Marks::Bars);
    let mut requests = Chart::new("requests for a stat", "cache", Marks::Bars);
    let mut model =
        Chart::new("model: stats/s when each server has a core of its own", "cache", Marks::Bars);
    let mut renewals = Chart::new("requests for directories, /s and client", "cache", Marks::Bars);
    for (name, lease) in CACHES {
        let mut clients = Vec::new();
        for _ in 0..params.clients.get() {
            let lease = lease.map(Duration::from_secs);
            clients.push(site.client(|config| config.cache_lease = lease).await?);
        }
        // A lease that has not ended by the end would look like none.
        let seconds = params.seconds.max(lease.map_or(0, |lease| lease + 1));
        let took = for_a_time(params, &clients, &watcher, &stats, Duration::from_secs(seconds));
        let took = took.await?;
        rate.add(name, "stats", took.per_second());
        requests.add(name, "requests", took.requests_each());
        model.add(name, "stats", took.per_second_with_own_cores());
        let more = (took.requests_each() - 1.0) * took.per_second();
        renewals.add(name, "requests", more / f64::from(params.clients.get()));
        for client in clients {
            client.close().await?;
        }
    }
    site.stop()?;
    let how = "Many clients in one process look at the same files, four directories deep, as fast as they can. \
               With a lease a directory is asked for again when it expires. Clients begin with \
               empty caches. All of them share one core: the figure shows requests rather than rates.";
    let figure = Figure {
        name: "fig13".to_owned(),
        title: "Figure 13: lazy invalidation and leases".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "clients", "in-flight", "seconds"]),
        charts: vec![requests, renewals, rate, model],
    };
    Ok(Outcome { figure, reach: Vec::new() })
}

async fn for_a_time(
    params: &Params,
    clients: &[Client],
    watcher: &Client,
    stats: &[load::Work],
    time: Duration,
) -> anyhow::Result<Took> {
    let start = bench::monotonic();
    let mut all = Took::default();
    let mut next = stats.iter().cycle();
    while bench::monotonic().saturating_sub(start) < time {
        let piece: Vec<_> = next.by_ref().take(PIECE).cloned().collect();
        let took = load::run(clients, watcher, params.under_way(params.servers), piece).await?;
        all.add(took);
    }
    Ok(all)
}
