//! Round trips of a cold stat at depth 20: speculative, and by the sequential walk.

use std::time::Duration;

use bench::{
    figure::{Chart, Figure, Marks},
    report::Goal,
};
use client::Resolution;

use super::{
    Outcome, Params,
    load::{self, Op},
    row,
    site::{Shape, Site},
};

const DEPTH: usize = 20;
const RTT: Duration = Duration::from_micros(200);
/// A round trip beside which this machine is fast, to see how many there are.
const LONG_RTT: Duration = Duration::from_millis(5);
/// Paths of each measurement.
const CHAINS: usize = 40;
/// So that every server was asked something before.
const WARM: usize = 64;

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let maker = site.client(|_| {}).await?;
    let dirs = load::chains(&maker, "cold", CHAINS, DEPTH - 1).await?;
    let files: Vec<_> = dirs.iter().map(|dir| format!("{dir}/file")).collect();
    let clients = std::slice::from_ref(&maker);
    let create = files.iter().map(|file| (Op::Create, file.clone())).collect();
    load::run(clients, &maker, 32, create).await?;
    let warm: Vec<_> = (0..WARM).map(|dir| format!("/warm{dir}")).collect();
    load::mkdirs(&maker, &warm).await?;
    let mut trips = Chart::new("median in round trips", "round trip added", Marks::Bars);
    let mut latency = Chart::new("median latency, µs", "round trip added", Marks::Bars);
    let mut requests = Chart::new("requests for a stat", "round trip added", Marks::Bars);
    let mut reach = Vec::new();
    for rtt in [Duration::ZERO, RTT, LONG_RTT] {
        let point = humantime::format_duration(rtt).to_string();
        let kinds =
            [("speculative", Resolution::Speculative), ("sequential", Resolution::Sequential)];
        for (name, resolution) in kinds {
            let client = [site.client_over(rtt, |config| config.resolution = resolution).await?];
            let know = warm.iter().map(|dir| (Op::Stat, dir.clone())).collect();
            load::run(&client, &maker, 16, know).await?;
            let work = files.iter().map(|file| (Op::Stat, file.clone())).collect();
            let took = load::run(&client, &maker, 1, work).await?;
            latency.add(&point, name, took.percentile_us(500));
            requests.add(&point, name, took.requests_each());
            if rtt.is_zero() {
                continue;
            }
            let in_trips = |us: f64| us / (rtt.as_secs_f64() * 1e6);
            let median = in_trips(took.percentile_us(500));
            trips.add(&point, name, median);
            let spread = [100, 500, 900].map(|permille| in_trips(took.percentile_us(permille)));
            if resolution == Resolution::Speculative {
                let target = format!("cold stat at depth {DEPTH}, in round trips of {point}");
                let beside = None;
                reach.extend(row(&target, ("", Goal::Below(1.3)), spread.to_vec(), beside, "cold"));
            } else {
                let target = format!("the same by the sequential walk, in round trips of {point}");
                let goal = ("", Goal::AtLeast(15.0));
                reach.extend(row(&target, goal, spread.to_vec(), None, "cold"));
            }
        }
    }
    site.stop()?;
    let how = "Stats of files in the twentieth directory by a client that knows the root and has spoken to every server; each path \
               is looked at once. With 200 µs the time in which this machine wakes all the processes up is a large part; with 5 ms \
               it is a small one, and round trips are seen. Neighbours on the path that are on one server are one request \
               of the sequential walk. The spread is from the 10th to the 90th percentile.";
    let mut parameters = params.of(&["servers"]);
    parameters.push(("depth".to_owned(), DEPTH.to_string()));
    let figure = Figure {
        name: "cold".to_owned(),
        title: "A cold stat at depth 20".to_owned(),
        how: how.to_owned(),
        parameters,
        charts: vec![trips, latency, requests],
    };
    Ok(Outcome { figure, reach })
}
