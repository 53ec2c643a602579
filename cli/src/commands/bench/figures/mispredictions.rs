//! Figure 15: what directories on the path cost that were renamed.

use std::time::Duration;

use bench::figure::{Chart, Figure, Marks};
use client::{Client, Resolution};

use super::{
    load::{self, Op},
    outcome::Outcome,
    params::Params,
    site::{Shape, Site},
};

const DEPTH: usize = 24;
/// Paths of each measurement, at most: each is looked at once, so that it is new.
const CHAINS_MAX: usize = 24;
const RENAMED: [usize; 7] = [0, 2, 4, 8, 12, 16, 24];

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    // Trees are made without it: only look-ups are measured.
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let maker = site.client(|_| {}).await?;
    let client = async |resolution| {
        anyhow::Ok([site.client_over(params.rtt, |config| config.resolution = resolution).await?])
    };
    let speculative = client(Resolution::Speculative).await?;
    let sequential = client(Resolution::Sequential).await?;
    let mut latency =
        Chart::new("median latency of a cold stat, µs", "renamed of 24", Marks::Lines);
    let mut requests = Chart::new("requests for a cold stat", "renamed of 24", Marks::Lines);
    let mut rounds = Chart::new("rounds and mispredictions", "renamed of 24", Marks::Lines);
    for renamed in RENAMED {
        let point = renamed.to_string();
        let paths = chains(&maker, params.samples.get().min(CHAINS_MAX), renamed).await?;
        for (name, client) in [("speculative", &speculative), ("sequential", &sequential)] {
            let work = paths.iter().map(|path| (Op::Stat, path.clone())).collect();
            let took = load::run(client, &maker, 1, work).await?;
            latency.add(&point, name, took.percentile_us(500));
            requests.add(&point, name, took.requests_each());
            if name == "speculative" {
                rounds.add(&point, "rounds of guesses", took.rounds_each());
                rounds.add(&point, "mispredictions", took.mispredictions_each());
            }
        }
    }
    site.stop()?;
    let how = "Stats of files 24 directories deep by clients that have seen nothing of the path; \
               each path is looked at once. So many of its directories were renamed, evenly \
               distributed on it. A request is one message to a server, which the paper counts as \
               packets.";
    let mut parameters = params.of(&["servers", "rtt", "samples"]);
    parameters.push(("depth".to_owned(), DEPTH.to_string()));
    let figure = Figure {
        name: "fig15".to_owned(),
        title: "Figure 15: mispredictions".to_owned(),
        how: how.to_owned(),
        parameters,
        charts: vec![latency, requests, rounds],
    };
    Ok(Outcome { figure, reach: Vec::new() })
}

/// Files at the bottom of chains of directories of which so many were renamed.
async fn chains(maker: &Client, count: usize, renamed: usize) -> anyhow::Result<Vec<String>> {
    let mut paths = load::chains(maker, &format!("with{renamed}-"), count, 1).await?;
    for level in 1..=DEPTH {
        // Evenly distributed, and as many as are asked for.
        let is_renamed = level * renamed / DEPTH > (level - 1) * renamed / DEPTH;
        let born = if is_renamed { "before" } else { "level" };
        let made: Vec<_> = paths.iter().map(|path| format!("{path}/{born}{level}")).collect();
        load::mkdirs(maker, &made).await?;
        paths.iter_mut().for_each(|path| *path += &format!("/level{level}"));
        if is_renamed {
            let work = made.into_iter().zip(&paths);
            let work = work.map(|(from, to)| (Op::Rename(to.clone()), from)).collect();
            load::run(std::slice::from_ref(maker), maker, 8, work).await?;
        }
    }
    let work = paths.iter().map(|path| (Op::Create, format!("{path}/file"))).collect::<Vec<_>>();
    let files = work.iter().map(|(_, path)| path.clone()).collect();
    load::run(std::slice::from_ref(maker), maker, 32, work).await?;
    // The pause lets clients hear of the renames before the stats, which do not include that.
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(files)
}
