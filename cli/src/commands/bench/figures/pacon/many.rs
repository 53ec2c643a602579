//! Figures 8 and 11: several applications at once, and more clients of one.

use std::time::Duration;

use base::FileKind;
use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal},
};

use super::{
    Params,
    clients::{self, Took},
    elsewhere::Serving,
    jobs::Job,
    row,
    slowed::Queue,
};
use crate::commands::bench::figures::outcome::Outcome;

const ELSEWHERE: &str = "from other machines";

/// Creates of as many jobs, which share the clients, over one file system.
fn creates(
    (jobs, number): (usize, usize),
    operations: usize,
    delay: Duration,
) -> anyhow::Result<Took> {
    let queue = Queue::new(delay);
    let each = number.div_ceil(jobs);
    let all = (0..jobs).map(|_| Job::begin(&queue, each));
    let all = all.collect::<anyhow::Result<Vec<_>>>()?;
    let create =
        |client: usize, at: usize| all[client % jobs].create(client / jobs, &format!("f{at}"));
    let took = clients::run(each * jobs, operations, &create)?;
    all.into_iter().try_for_each(Job::end)?;
    Ok(took)
}

async fn measured(shape: (usize, usize), params: &Params) -> anyhow::Result<Took> {
    let (operations, delay) = (params.operations.get(), params.delay);
    tokio::task::spawn_blocking(move || creates(shape, operations, delay)).await?
}

/// Creates of as many clients on other machines than the lead.
fn elsewhere(number: usize, params: (usize, usize, Duration)) -> anyhow::Result<Took> {
    let (machines, operations, delay) = params;
    let queue = Queue::new(delay);
    let machines = machines.min(number);
    let each = number.div_ceil(machines);
    let job = Job::begin(&queue, each * machines)?;
    let took = {
        let (region, dirs) = job.parts();
        let serving = Serving::begin(region)?;
        serving.make((machines, each), operations, FileKind::File, dirs, "f")?
    };
    job.end()?;
    Ok(took)
}

async fn measured_elsewhere(number: usize, params: &Params) -> anyhow::Result<Took> {
    let params = (params.machines, params.operations.get(), params.delay);
    tokio::task::spawn_blocking(move || elsewhere(number, params)).await?
}

pub(super) async fn jobs(params: &Params) -> anyhow::Result<Outcome> {
    let mut rate = Chart::new("creates/s of all jobs", "jobs", Marks::Lines);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); params.jobs.len()];
    for _ in 0..params.rounds.get() {
        for (rates, jobs) in rates.iter_mut().zip(&params.jobs) {
            rates.push(measured((*jobs, params.clients), params).await?.per_second());
        }
    }
    let mut reach = Vec::new();
    let beside = rates.first().and_then(|one| bench::median(one.clone()));
    for (rates, jobs) in rates.into_iter().zip(&params.jobs) {
        rate.add(&jobs.to_string(), "in regions", bench::median(rates.clone()).unwrap_or(0.0));
        if *jobs > 1 {
            let target = format!("creates of {jobs} jobs at once, beside one of as many clients");
            let goal = ("/s", Goal::PartOf(Against::Beside, 0.9));
            reach.extend(row(&target, goal, rates, beside, "fig8"));
        }
    }
    let how = format!(
        "{} clients in all, each a thread with one create under way; each job has a region of its \
         own, and all regions one file system below, which makes one call at a time in {}. \
         Acknowledged creates; at the end all was below.",
        params.clients,
        humantime::format_duration(params.delay)
    );
    Ok(outcome(
        "fig8",
        "Pacon figure 8: several applications at once",
        how,
        params,
        (vec![rate], reach),
    ))
}

pub(super) async fn clients(params: &Params) -> anyhow::Result<Outcome> {
    let mut rate = Chart::new("creates/s", "clients", Marks::Lines);
    let mut cpu =
        Chart::new("CPU of the region and its clients for a create, µs", "clients", Marks::Lines);
    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); params.counts.len()];
    let mut rates = costs.clone();
    let (mut rates_elsewhere, mut costs_elsewhere) = (costs.clone(), costs.clone());
    for _ in 0..params.rounds.get() {
        for (at, number) in params.counts.iter().enumerate() {
            let took = measured((1, *number), params).await?;
            rates[at].push(took.per_second());
            costs[at].push(took.cpu_us());
            let took = measured_elsewhere(*number, params).await?;
            rates_elsewhere[at].push(took.per_second());
            costs_elsewhere[at].push(took.cpu_us());
        }
    }
    let mut reach = Vec::new();
    let beside = costs.first().and_then(|one| bench::median(one.clone()));
    let all = rates.into_iter().zip(costs).zip(&params.counts);
    for (at, ((rates, costs), number)) in all.enumerate() {
        let point = number.to_string();
        rate.add(&point, "in a region", bench::median(rates).unwrap_or(0.0));
        cpu.add(&point, "in a region", bench::median(costs.clone()).unwrap_or(0.0));
        let elsewhere = (&rates_elsewhere[at], &costs_elsewhere[at]);
        rate.add(&point, ELSEWHERE, bench::median(elsewhere.0.clone()).unwrap_or(0.0));
        cpu.add(&point, ELSEWHERE, bench::median(elsewhere.1.clone()).unwrap_or(0.0));
        let target = format!("CPU of a create with {number} clients, beside one of the fewest");
        let goal = ("µs", Goal::Times(Against::Beside, 1.1));
        reach.extend(row(&target, goal, costs, beside, "fig11"));
    }
    let how = format!(
        "Clients are threads with one create under way and a directory each; one region, over a \
         file system that makes one call at a time in {}. Acknowledged creates, with the CPU time \
         of clients, region and commits meanwhile; at the end all was below. From other machines: \
         the same clients on up to {} of them, each with a thread and an encrypted connection on the \
         loopback to the lead, which answers on a thread of its own; CPU is that of both ends. All of \
         it on this machine's cores: the paper's 320 clients of 16 nodes are not here.",
        humantime::format_duration(params.delay),
        params.machines
    );
    Ok(outcome(
        "fig11",
        "Pacon figure 11: creates by clients",
        how,
        params,
        (vec![rate, cpu], reach),
    ))
}

fn outcome(
    name: &str,
    title: &str,
    how: String,
    params: &Params,
    (charts, reach): (Vec<Chart>, Vec<bench::report::TargetRow>),
) -> Outcome {
    let (name, title) = (name.to_owned(), title.to_owned());
    let figure = Figure { name, title, how, parameters: params.shown(), charts };
    Outcome { figure, reach }
}
