//! A storm of renames: clients look at files while other directories are moved as fast as they can
//! be.

use std::{cell::Cell, time::Duration};

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal},
};
use client::Client;
use futures::future::{try_join, try_join_all};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    load::{self, Op, Took, Work, below, float, float64},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

/// Branches of the tree that is looked at, and its depth.
const BRANCHES: usize = 8;
const DEPTH: usize = 4;
/// Directories that are moved to and fro, and how often in a second all of them together, if the
/// machine allows it.
const MOVED: usize = 64;
const RENAMES_PER_SECOND: u64 = 5_000;
/// Runs of each, in turn.
const ROUNDS: usize = 3;

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let (watcher, mover) = (site.client(|_| {}).await?, site.client(|_| {}).await?);
    let dirs = load::chains(&watcher, "branch", BRANCHES, DEPTH).await?;
    let files = below(&dirs, &Op::Create, "file", BRANCHES);
    let stats: Vec<_> = files.iter().map(|(_, path)| (Op::Stat, path.clone())).collect();
    load::run(std::slice::from_ref(&watcher), &watcher, 8, files).await?;
    let to_move: Vec<_> = (0..MOVED).map(|at| format!("/moved{at}")).collect();
    load::mkdirs(&watcher, &to_move).await?;

    let new = |title| Chart::new(title, "clients", Marks::Lines);
    let mut requests = new("requests for a stat");
    let mut rate = new("stats/s on this machine");
    let mut moved = new("renames/s beside the stats");
    let mut reach = Vec::new();
    for crowd in &params.crowds {
        let mut clients = Vec::new();
        for _ in 0..*crowd {
            clients.push(site.client(|_| {}).await?);
        }
        let crowd = usize::from(*crowd);
        // All look at all of it first: what is measured begins with what they know.
        look(params, &clients, &watcher, &stats, crowd * BRANCHES).await?;
        let (mut calm, mut stormy, mut renames) = (Took::default(), Took::default(), 0.0);
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let count = params.operations.get().max(crowd);
            let without = look(params, &clients, &watcher, &stats, count).await?;
            let (done, stop) = (Cell::new(0_u64), Cell::new(false));
            let looks = async {
                let with = look(params, &clients, &watcher, &stats, count).await?;
                stop.set(true);
                Ok((with, done.get()))
            };
            let storm = storm(&mover, &to_move, &done, &stop);
            let ((with, done), ()) = try_join(looks, storm).await?;
            renames += float64(done) / with.elapsed.as_secs_f64().max(1e-9) / float(ROUNDS);
            ratios.push(without.requests_each() / with.requests_each());
            rates.push(with.per_second());
            calm.add(without);
            stormy.add(with);
        }
        let point = crowd.to_string();
        for (name, took) in [("no renames", &calm), ("renames elsewhere", &stormy)] {
            requests.add(&point, name, took.requests_each());
            rate.add(&point, name, took.per_second());
        }
        moved.add(&point, "renames", renames);
        let target = format!(
            "stats for a request of {crowd} clients beside {renames:.0} renames/s, to those without"
        );
        reach.extend(row(&target, ("", Goal::AtLeast(0.97)), ratios, None, "storm"));
        let target = format!("stats a second of {crowd} clients beside {renames:.0} renames/s");
        let goal = ("/s", Goal::PartOf(Against::Beside, 0.97));
        reach.extend(row(&target, goal, rates, Some(calm.per_second()), "storm"));
        for client in clients {
            client.close().await?;
        }
    }
    site.stop()?;
    let how = "Clients that know a tree look at files in it, four directories deep, while one more \
               client moves other directories of the root to and fro, up to 5,000 times a second. \
               The renames take CPU of the same cores, as does the one process of all clients: so \
               the requests for a stat show what invalidation costs, and the rate what the machine \
               is shared for. A stat that fails ends the experiment.";
    let figure = Figure {
        name: "storm".to_owned(),
        title: "Stats beside a storm of renames".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "operations", "in-flight", "crowds"]),
        charts: vec![requests, rate, moved],
    };
    Ok(Outcome { figure, reach })
}

/// Looks at files so often, each client in its turn at another one.
async fn look(
    params: &Params,
    clients: &[Client],
    watcher: &Client,
    stats: &[Work],
    count: usize,
) -> anyhow::Result<Took> {
    // One more after each round of all clients, so that all of them come to all files.
    let work = (0..count).map(|at| stats[(at + at / clients.len()) % stats.len()].clone());
    let under_way = params.under_way(params.servers);
    load::run(clients, watcher, under_way, work.collect()).await
}

/// Moves the directories to and fro, and counts, until it is told to stop. Then all of them are
/// where they were.
async fn storm(
    client: &Client,
    dirs: &[String],
    done: &Cell<u64>,
    stop: &Cell<bool>,
) -> anyhow::Result<()> {
    let each = RENAMES_PER_SECOND / dirs.len() as u64;
    let pause = Duration::from_secs(1) / u32::try_from(each)?;
    let moving = dirs.iter().map(|dir| move_to_and_fro(client, dir, pause, done, stop));
    try_join_all(moving).await.map(drop)
}

async fn move_to_and_fro(
    client: &Client,
    dir: &String,
    pause: Duration,
    done: &Cell<u64>,
    stop: &Cell<bool>,
) -> anyhow::Result<()> {
    let away = format!("{dir}-away");
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !stop.get() {
        for (from, to) in [(dir, &away), (&away, dir)] {
            ticks.tick().await;
            client.rename(from, to).await?;
            done.set(done.get() + 1);
        }
    }
    Ok(())
}
