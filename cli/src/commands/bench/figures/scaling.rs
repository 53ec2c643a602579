//! Figure 9, scaling: what it is made of while servers are added.

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal},
};

use super::{
    load::{self, Op, Took, below},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

/// Directories in which those of the mkdir phase are made: so many are under way in different ones.
const BASES: usize = 128;
/// A mkdir is a transaction: fewer are needed.
const MKDIR_PART: usize = 4;
/// Number of rounds of create, stat and unlink.
const ROUNDS: usize = 3;

struct Charts {
    requests: Chart,
    touched: Chart,
    cpu: Chart,
    balance: Chart,
    model: Chart,
    here: Chart,
}

impl Charts {
    fn new() -> Charts {
        let chart = |title| Chart::new(title, "servers", Marks::Lines);
        Charts {
            requests: chart("requests for an operation"),
            touched: chart("servers that an operation makes the client ask"),
            cpu: chart("CPU of all servers for an operation, µs"),
            balance: chart("balance: max/mean over servers"),
            model: chart("model: operations/s when each server has a core of its own"),
            here: chart("operations/s on this machine"),
        }
    }

    fn add(&mut self, servers: &str, op: &str, rounds: &[Took]) {
        let median = |value: fn(&Took) -> f64| bench::median(rounds.iter().map(value).collect());
        for (chart, value) in [
            (&mut self.requests, median(Took::requests_each)),
            (&mut self.cpu, median(Took::cpu_us)),
            (&mut self.model, median(Took::per_second_with_own_cores)),
            (&mut self.here, median(Took::per_second)),
        ] {
            chart.add(servers, op, value.unwrap_or_default());
        }
    }
}

const FILE_OPS: [(&str, Op); 3] =
    [("create", Op::Create), ("stat", Op::Stat), ("unlink", Op::Unlink)];

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut charts = Charts::new();
    let mut reach = Vec::new();
    let mut last: Vec<(&str, Vec<Took>)> = Vec::new();
    for servers in &params.counts {
        last = of_cluster(params, *servers, &mut charts).await?;
    }
    if let (Some(most), Some(least)) = (params.counts.last(), params.counts.first()) {
        for (op, rounds) in &last {
            let cpu = rounds.iter().map(Took::cpu_us).collect();
            let beside = charts.cpu.value(&least.to_string(), op);
            let target = format!("server CPU of a {op}, {most} servers beside {least}");
            reach.extend(row(
                &target,
                ("µs", Goal::Times(Against::Beside, 1.1)),
                cpu,
                beside,
                "fig9",
            ));
            let requests = rounds.iter().map(Took::requests_each).collect();
            let target = format!("requests for a {op}, warm, {most} servers");
            reach.extend(row(&target, ("", Goal::Below(1.005)), requests, None, "fig9"));
        }
    }
    let how = "Clusters of processes on this machine, one client process, the same number of \
               operations under way for each server. CPU is that of the servers' processes as they \
               tell it, with all their work in the background. In the model a server has one core \
               and nothing else: operations / CPU time of the busiest server, which is 1 core / \
               CPU for an operation × servers / imbalance. Of a mkdir the client asks one server, \
               which asks the other.";
    let Charts { requests, touched, cpu, balance, model, here } = charts;
    let figure = Figure {
        name: "fig9".to_owned(),
        title: "Figure 9: scaling".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["operations", "in-flight"]),
        charts: vec![requests, touched, cpu, balance, model, here],
    };
    Ok(Outcome { figure, reach })
}

async fn of_cluster(
    params: &Params,
    servers: u16,
    charts: &mut Charts,
) -> anyhow::Result<Vec<(&'static str, Vec<Took>)>> {
    let site = Site::start(params.directory.as_deref(), Shape::of(servers))?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let (point, under_way) = (servers.to_string(), params.under_way(servers));
    let bases: Vec<_> = (0..BASES).map(|base| format!("/base{base}")).collect();
    load::mkdirs(&client[0], &bases).await?;
    let operations = params.operations.get();
    let work = below(&bases, &Op::Mkdir, "dir", operations.div_ceil(MKDIR_PART));
    let dirs: Vec<_> = work.iter().map(|(_, path)| path.clone()).collect();
    let mkdir = load::run(&client, &watcher, under_way, work).await?;
    charts.add(&point, "mkdir", &[mkdir]);
    // From here on the client knows all directories.
    let know = dirs.iter().map(|dir| (Op::Stat, dir.clone())).collect();
    load::run(&client, &watcher, under_way, know).await?;
    let mut results: Vec<(&str, Vec<Took>)> =
        FILE_OPS.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for round in 0..ROUNDS {
        for ((name, op), (_, rounds)) in FILE_OPS.iter().zip(&mut results) {
            let work = below(&dirs, op, &format!("r{round}-file"), operations);
            rounds.push(load::run(&client, &watcher, under_way, work).await?);
            let (round_of, last) = (round, ROUNDS - 1);
            if round_of == last && *name == "create" {
                let files: Vec<_> =
                    watcher.statuses().await?.iter().map(|status| status.store_records).collect();
                charts.balance.add(&point, "inodes", bench::balance::imbalance(&files));
            }
        }
    }
    for (name, rounds) in &results {
        charts.add(&point, name, rounds);
    }
    if let Some((_, rounds)) = results.first()
        && let Some(took) = rounds.last()
    {
        charts.balance.add(&point, "requests of creates", took.imbalance());
    }
    let samples = params.samples.get();
    for (name, op) in
        [("mkdir", &Op::Mkdir)].into_iter().chain(FILE_OPS.iter().map(|(n, o)| (*n, o)))
    {
        let among = if name == "mkdir" { &bases } else { &dirs };
        let work = below(among, op, "sample", samples);
        charts.touched.add(&point, name, load::servers_touched(&client[0], &work).await?);
    }
    site.stop()?;
    Ok(results)
}
