//! Figure 7: one application makes directories and files, and looks at them.

use std::sync::Arc;

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal},
};
use client::SystemClock;
use region::Memory;

use super::{
    Params,
    clients::{self, Took},
    jobs::Job,
    row,
    slowed::{Direct, Queue},
};
use crate::commands::bench::figures::{
    load::{self, Op, below, float},
    outcome::Outcome,
    site::{Shape, Site},
};

const OPERATIONS: [&str; 3] = ["mkdir", "create", "stat"];
const BELOW: &str = "the file system below";
const REGION: &str = "in a region";
const FLUSHED: &str = "in a region, until all is below";
const PANDO: &str = "a server of Pando, as it is";
/// Operations on the file system below, of which each takes its time.
const DIRECT_MAX: usize = 1000;

/// Rates of one round, by operation.
struct Round {
    direct: [Took; 3],
    region: [Took; 3],
    /// Of directories and files together, until all is below.
    flushed: f64,
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut rate = Chart::new("operations/s", "operation", Marks::Bars);
    let mut cpu = Chart::new(
        "CPU of the region and its clients for an operation, µs",
        "operation",
        Marks::Bars,
    );
    let mut rates: [[Vec<f64>; 2]; 3] = Default::default();
    let (operations, number) = (params.operations.get(), params.clients);
    let (mut flushed, mut native): (Vec<f64>, [Vec<f64>; 3]) = Default::default();
    for _ in 0..params.rounds.get() {
        let delay = params.delay;
        let round =
            tokio::task::spawn_blocking(move || one_round(&Queue::new(delay), number, operations));
        let round = round.await??;
        for at in 0..OPERATIONS.len() {
            rates[at][0].push(round.direct[at].per_second());
            rates[at][1].push(round.region[at].per_second());
            cpu.add(OPERATIONS[at], REGION, round.region[at].cpu_us());
        }
        flushed.push(round.flushed);
        for (rates, took) in native.iter_mut().zip(of_pando(params).await?) {
            rates.push(took);
        }
    }
    let median = |values: &[f64]| bench::median(values.to_vec()).unwrap_or(0.0);
    let mut reach = Vec::new();
    for (at, operation) in OPERATIONS.into_iter().enumerate() {
        let [direct, region] = &rates[at];
        rate.add(operation, BELOW, median(direct));
        rate.add(operation, REGION, median(region));
        rate.add(operation, PANDO, median(&native[at]));
        let times = if operation == "stat" { 6.5 } else { 76.4 };
        let goal = ("/s", Goal::PartOf(Against::Beside, times));
        let target = format!("{operation} in a region, beside {BELOW}");
        reach.extend(row(&target, goal, region.clone(), bench::median(direct.clone()), "fig7"));
        let target = format!("{operation} in a region, beside {PANDO}");
        let beside = bench::median(native[at].clone());
        reach.extend(row(&target, ("/s", Goal::Shown), region.clone(), beside, "fig7"));
    }
    for operation in ["mkdir", "create"] {
        rate.add(operation, FLUSHED, median(&flushed));
    }
    let figure = Figure {
        name: "fig7".to_owned(),
        title: "Pacon figure 7: one application".to_owned(),
        how: format!(
            "{number} clients, threads of one process, each with one operation under way and a \
             directory of its own; the file system below, a region over it, and one server of \
             Pando with as many operations under way, {} times in turns; medians. The file system \
             below is in memory and makes one call at a time, which takes {}; so its rate is that \
             of the delay, and so is the ratio. The region is called without a network and without \
             a mount: it is that of one node. At the end all of it was below, by the account of \
             changes, and a hundred paths were compared.",
            params.rounds,
            humantime::format_duration(params.delay)
        ),
        parameters: params.shown(),
        charts: vec![rate, cpu],
    };
    Ok(Outcome { figure, reach })
}

fn one_round(queue: &Arc<Queue>, number: usize, operations: usize) -> anyhow::Result<Round> {
    let few = operations.min(DIRECT_MAX);
    let direct = Direct::new(queue, Memory::new(Arc::new(SystemClock)), number)?;
    let direct = [
        clients::run(number, few, &|client, at| direct.mkdir(client, &format!("d{at}")))?,
        clients::run(number, few, &|client, at| direct.create(client, &format!("f{at}")))?,
        clients::run(number, few, &|client, at| direct.stat(client, &format!("f{at}")))?,
    ];
    let start = bench::monotonic();
    let job = Job::begin(queue, number)?;
    let region = [
        clients::run(number, operations, &|client, at| {
            job.mkdir(client, &format!("d{at}")).map(drop)
        })?,
        clients::run(number, operations, &|client, at| job.create(client, &format!("f{at}")))?,
        clients::run(number, operations, &|client, at| job.stat(client, &format!("f{at}")))?,
    ];
    job.end()?;
    let took = bench::monotonic().saturating_sub(start).as_secs_f64();
    Ok(Round { direct, region, flushed: float(2 * operations) / took })
}

/// Rates of a server of Pando, with as many operations under way.
async fn of_pando(params: &Params) -> anyhow::Result<[f64; 3]> {
    let site = Site::start(params.directory.as_deref(), Shape::of(1))?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let bases: Vec<_> = (0..params.clients).map(|client| format!("/client{client}")).collect();
    load::mkdirs(&client[0], &bases).await?;
    let mut rates = [0.0; 3];
    let phases = [(Op::Mkdir, "d"), (Op::Create, "f"), (Op::Stat, "f")];
    for (rate, (op, name)) in rates.iter_mut().zip(phases) {
        let work = below(&bases, &op, name, params.operations.get());
        *rate = load::run(&client, &watcher, params.clients, work).await?.per_second();
    }
    let [client] = client;
    client.close().await?;
    site.stop()?;
    Ok(rates)
}
