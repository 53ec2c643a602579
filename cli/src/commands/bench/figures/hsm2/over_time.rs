//! Figure 9: how evenly servers are loaded over time, while the load moves and shards follow it.

use std::{cell::Cell, time::Duration};

use anyhow::Context as _;
use base::Random as _;
use bench::{
    balance::imbalance,
    figure::{Chart, Figure, Marks},
    report::{Goal as Aim, TargetRow},
};
use client::balance::Goal;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::{
    super::{
        load::{self, Op, float},
        outcome::Outcome,
    },
    Params,
    moves::Mover,
    row,
    scan::below,
    trees::{Filled, Placed, Tree},
};
use crate::system::SystemRandom;

/// Stats under way.
const UNDER_WAY: usize = 32;
/// Pause between two looks, in the time of the planner, as that of a coordinator.
const LOOK: Duration = Duration::from_secs(60);
/// Time after a change of the load within which shards should have followed it.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(12 * 60);
/// Largest share of a server that counts as even.
const EVEN: f64 = 1.10;
/// One stat in so many is of the hot top directory; the others are of all directories.
const HOT_IN: usize = 2;

/// The shares of servers at a look.
struct Window {
    at: Duration,
    since_change: Duration,
    requests: f64,
    entries: f64,
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let directories = usize::try_from(params.directories.get()).unwrap_or(usize::MAX);
    let tree = Tree::ten_ary(directories, params.files.get());
    let placed = Placed::Hybrid;
    let directory = params.directory.as_deref();
    let filled = Box::pin(Filled::make(directory, placed, params.servers(), tree)).await?;
    let (windows, moved) = Box::pin(watch(params, &filled)).await?;
    let Filled { site, maker, .. } = filled;
    maker.close().await?;
    site.stop()?;
    let mut shares = Chart::new("most of a server, by the mean", "minute", Marks::Lines);
    for Window { at, requests, entries, .. } in &windows {
        let minute = (at.as_secs() / 60).to_string();
        shares.add(&minute, "requests", *requests);
        shares.add(&minute, "entries", *entries);
    }
    let how = "A 10-ary tree in a file system with hybrid placement. One client asks for attributes \
               of files without a pause, every second time of one below a top directory that is \
               hot, else of any; from time to time another top directory is hot. Every minute the \
               planner looks at the load and moves shards, as a coordinator does \
               (`pando server balance --mode on`), with its bounds: three looks, ten minutes of \
               rest, a fifth in an hour. Its clock, and the axis, are faster than the machine's. \
               All servers share this machine's cores.";
    let figure = Figure {
        name: "fig9".to_owned(),
        title: "HSM² figure 9: balance over time under a load that moves".to_owned(),
        how: how.to_owned(),
        parameters: vec![
            ("servers".to_owned(), params.servers().to_string()),
            ("--directories".to_owned(), params.directories.to_string()),
            ("--files".to_owned(), params.files.to_string()),
            ("--changes".to_owned(), params.changes.to_string()),
            ("--minutes".to_owned(), params.minutes.to_string()),
            ("--speed".to_owned(), params.speed.to_string()),
        ],
        charts: vec![shares],
    };
    let hours = f64::from(params.changes * params.minutes) / 60.0;
    Ok(Outcome { figure, reach: goals(&windows, moved / hours) })
}

fn goals(windows: &[Window], moved_an_hour: f64) -> Vec<TargetRow> {
    let late = || windows.iter().filter(|window| window.since_change >= FOLLOWED_WITHIN);
    let even = |share: fn(&Window) -> f64| {
        float(late().filter(|window| share(window) <= EVEN).count()) / float(late().count().max(1))
    };
    let rows = [
        (
            "looks from 12 min after a change with requests of at most 1.10 of the mean",
            Aim::AtLeast(0.95),
            even(|window| window.requests),
        ),
        ("the same, of entries", Aim::AtLeast(0.95), even(|window| window.entries)),
        ("shards that move in an hour, of all", Aim::Below(0.2), moved_an_hour),
    ];
    rows.into_iter()
        .filter_map(|(what, goal, value)| row(what, ("", goal), value, "fig9"))
        .collect()
}

/// Has the load move, and shards follow it. Returns what was seen, and the part of all shards that
/// has moved.
async fn watch(params: &Params, filled: &Filled) -> anyhow::Result<(Vec<Window>, f64)> {
    let (hot, is_over) = (Cell::new(0), Cell::new(false));
    let watched = async {
        let windows = follow(params, filled, &hot).await;
        is_over.set(true);
        windows
    };
    let (watched, asked) = futures::join!(watched, ask(filled, &hot, &is_over));
    asked?;
    watched
}

/// Stats, until it is over. An error of one is an error of the experiment.
async fn ask(filled: &Filled, hot: &Cell<usize>, is_over: &Cell<bool>) -> anyhow::Result<()> {
    let tree = &filled.tree;
    let mut of_top: Vec<Vec<usize>> = vec![Vec::new(); tree.tops];
    for (number, of) in tree.directories.iter().enumerate().filter(|(_, of)| of.files > 0) {
        of_top[of.top].push(number);
    }
    let random = SystemRandom::default();
    let draw = || {
        let of_hot = &of_top[hot.get() % tree.tops];
        let number = if below(random.next(), HOT_IN) == 0 && !of_hot.is_empty() {
            of_hot[below(random.next(), of_hot.len())]
        } else {
            below(random.next(), tree.directories.len())
        };
        let of = &tree.directories[number];
        format!("{}/f{}", of.path, random.next() % u64::from(of.files.max(1)))
    };
    let asked = std::iter::from_fn(|| (!is_over.get()).then(draw)).map(|path| {
        let client = &filled.maker;
        Box::pin(async move { load::once(client, &Op::Stat, &path).await.context(path) })
    });
    stream::iter(asked).buffer_unordered(UNDER_WAY).try_collect::<()>().await
}

async fn follow(
    params: &Params,
    filled: &Filled,
    hot: &Cell<usize>,
) -> anyhow::Result<(Vec<Window>, f64)> {
    // The leader of a move asks for nothing else: what a server that has stopped refuses would end
    // its connection.
    let leader = &filled.site.client(|_| {}).await?;
    let client = &filled.maker;
    // Trees of an experiment are small.
    let mut mover = Mover::new(Goal { requests_min: 1, bytes_min: 1, ..Goal::default() });
    let shards = mover.loads(leader).await?.len();
    let period = Duration::from_secs(60 * u64::from(params.minutes));
    let (began, mut windows) = (Instant::now(), Vec::new());
    let passed = || began.elapsed() * params.speed;
    while passed() < period * params.changes {
        let change = passed().as_secs() / period.as_secs().max(1);
        hot.set(usize::try_from(change).unwrap_or(0));
        let sent = client.requests_by_server();
        sleep_until(Instant::now() + LOOK / params.speed).await;
        let now = client.requests_by_server();
        let loads = mover.loads(leader).await?;
        let asked: Vec<u64> = now.iter().zip(&sent).map(|(now, sent)| now - sent).collect();
        let at = passed();
        let since_change = at.saturating_sub(period * u32::try_from(change).unwrap_or(0));
        let entries = imbalance(&filled.entries().await?);
        windows.push(Window { at, since_change, requests: imbalance(&asked), entries });
        let plan = mover.act(leader, at, &loads).await?;
        if !plan.steps.is_empty() {
            // Servers that begin anew count anew.
            mover.loads(leader).await?;
        }
    }
    leader.close().await?;
    Ok((windows, float(mover.moved) / float(shards.max(1))))
}
