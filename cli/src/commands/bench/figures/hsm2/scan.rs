//! Figures 5, 6 and 8: what servers hold and are asked for, and a scan of all directories.

use std::time::Duration;

use base::{Cred, Random as _};
use bench::{
    balance::imbalance,
    figure::{Chart, Figure, Marks},
    report::{Goal, TargetRow},
};
use client::{AccessTimes, Client, FileSystem as _};
use futures::future::try_join_all;
use wire::DirRef;

use super::{
    super::{
        load::{self, Op, float, float64},
        outcome::Outcome,
    },
    Params, moves, row,
    trees::{Filled, Placed, TEN_ARY, Tree, zipf},
};
use crate::system::SystemRandom;

/// Entries of a page of a listing.
const PAGE: u32 = 1000;
/// Stats under way.
const UNDER_WAY: usize = 64;

struct Charts {
    entries: Chart,
    requests: Chart,
    each: Chart,
    busiest: Chart,
    rate: Chart,
    shown: Chart,
    moved: Chart,
}

/// Measurements of a scan.
struct Scan {
    directories: usize,
    entries: u64,
    elapsed: Duration,
    requests: u64,
    /// The most CPU time of a server.
    busiest: Duration,
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let chart = |title: &str| Chart::new(title, "tree", Marks::Bars);
    let mut charts = Charts {
        entries: chart("figure 5, entries: max/mean over servers"),
        requests: chart("figure 6, requests of stats by Zipf: max/mean over servers"),
        each: chart("figure 8, requests for a directory that is scanned"),
        busiest: chart("figure 8, CPU of the busiest server for a directory, µs"),
        rate: chart("figure 8, directories/s on this machine"),
        shown: chart("figure 8, entries/s on this machine"),
        moved: chart("shards that have moved, of 1,024"),
    };
    let (directories, files) = (params.directories.get(), params.files.get());
    let directories = usize::try_from(directories).unwrap_or(usize::MAX);
    let mut reach = Vec::new();
    for make in [Tree::ten_ary, Tree::zipf] {
        let mut name = "";
        for placed in Placed::ALL {
            let tree = make(directories, files);
            name = tree.name;
            measure(params, placed, tree, &mut charts).await?;
        }
        reach.extend(goals(name, &charts));
    }
    let how = "A tree is made by one client, directories level by level, in a file system for \
               each placement. Static subtrees are top directories that are dealt out to the \
               servers in turn; dynamic ones move by load, as what is below the boundary of hybrid \
               placement does: shards move under stats of files, whose top directories are drawn \
               by Zipf's law, until no server has too many entries or requests, or no move makes \
               it better. Then such stats are asked for by one client with a warm cache, and \
               counted; and clients scan directories by \
               handle, as `find` with attributes does through a mount: each reads all pages of its \
               part of the tree with attributes, and asks for those that another server has, and keeps \
               no access times. \
               Each client begins elsewhere. All servers share \
               this machine's cores, so rates say little, and the busiest server's CPU time says \
               what machines of their own would give.";
    let Charts { entries, requests, each, busiest, rate, shown, moved } = charts;
    let figure = Figure {
        name: "fig8".to_owned(),
        title: "HSM² figures 5, 6 and 8: balance, and a scan of a tree".to_owned(),
        how: how.to_owned(),
        parameters: vec![
            ("servers".to_owned(), params.servers().to_string()),
            ("--directories".to_owned(), params.directories.to_string()),
            ("--files".to_owned(), params.files.to_string()),
            ("--clients".to_owned(), params.clients.to_string()),
            ("--scanned".to_owned(), params.scanned.to_string()),
            ("--stats".to_owned(), params.stats.to_string()),
        ],
        charts: vec![entries, requests, each, busiest, rate, shown, moved],
    };
    Ok(Outcome { figure, reach })
}

fn goals(tree: &str, charts: &Charts) -> Vec<TargetRow> {
    let of = |chart: &Chart, placed: Placed| chart.value(tree, placed.name()).unwrap_or(f64::NAN);
    let static_busier = of(&charts.busiest, Placed::Static) / of(&charts.busiest, Placed::Hybrid);
    // Ten equal subtrees lie evenly on five servers.
    let busier = if tree == TEN_ARY { 1.0 } else { 1.4 };
    let even = Goal::Below(1.1);
    let rows = [
        ("requests for a directory scanned, hybrid", even, of(&charts.each, Placed::Hybrid)),
        ("max/mean of entries, hybrid", even, of(&charts.entries, Placed::Hybrid)),
        ("max/mean of requests by Zipf, hybrid", even, of(&charts.requests, Placed::Hybrid)),
        ("CPU of the busiest server: static / hybrid", Goal::AtLeast(busier), static_busier),
    ];
    let rows =
        rows.map(|(what, goal, value)| row(&format!("{what}, {tree}"), ("", goal), value, "fig8"));
    rows.into_iter().flatten().collect()
}

async fn measure(
    params: &Params,
    placed: Placed,
    tree: Tree,
    charts: &mut Charts,
) -> anyhow::Result<()> {
    let filled = Filled::make(params.directory.as_deref(), placed, params.servers(), tree).await?;
    let (tree, name) = (filled.tree.name, placed.name());
    if placed.moves() {
        let ask = async || requested(params, &filled).await.map(drop);
        let moved = Box::pin(moves::even_out(&filled.maker, ask)).await?;
        charts.moved.add(tree, name, float(moved));
    }
    charts.entries.add(tree, name, imbalance(&filled.entries().await?));
    charts.requests.add(tree, name, requested(params, &filled).await?);
    let scan = scan(params, &filled).await?;
    let directories = float(scan.directories.max(1));
    let seconds = scan.elapsed.as_secs_f64().max(1e-9);
    charts.each.add(tree, name, float64(scan.requests) / directories);
    charts.busiest.add(tree, name, scan.busiest.as_secs_f64() * 1e6 / directories);
    charts.rate.add(tree, name, directories / seconds);
    charts.shown.add(tree, name, float64(scan.entries) / seconds);
    let Filled { site, maker, .. } = filled;
    maker.close().await?;
    site.stop()
}

/// Stats of files, and how unevenly they were asked of the servers.
async fn requested(params: &Params, filled: &Filled) -> anyhow::Result<f64> {
    let tree = &filled.tree;
    let mut of_top: Vec<Vec<usize>> = vec![Vec::new(); tree.tops];
    for (number, of) in tree.directories.iter().enumerate().filter(|(_, of)| of.files > 0) {
        of_top[of.top].push(number);
    }
    let shares = zipf(tree.tops);
    let random = SystemRandom::default();
    let mut work = Vec::with_capacity(params.stats.get());
    while work.len() < params.stats.get() {
        let mut at = unit(random.next());
        let top = shares.iter().position(|share| {
            at -= share;
            at < 0.0
        });
        let dirs = &of_top[top.unwrap_or(0)];
        if dirs.is_empty() {
            continue;
        }
        let of = &tree.directories[dirs[below(random.next(), dirs.len())]];
        let file = random.next() % u64::from(of.files);
        work.push((Op::Stat, format!("{}/f{file}", of.path)));
    }
    let clients = std::slice::from_ref(&filled.maker);
    Ok(load::run(clients, &filled.maker, UNDER_WAY, work).await?.imbalance())
}

#[expect(clippy::cast_precision_loss, reason = "53 bits are drawn")]
fn unit(drawn: u64) -> f64 {
    (drawn >> 11) as f64 / (1u64 << 53) as f64
}

pub(super) fn below(drawn: u64, end: usize) -> usize {
    let end64 = u64::try_from(end).unwrap_or(u64::MAX);
    usize::try_from(drawn % end64).unwrap_or(0)
}

async fn scan(params: &Params, filled: &Filled) -> anyhow::Result<Scan> {
    let mut clients = Vec::new();
    for _ in 0..params.clients.get() {
        clients.push(filled.site.client(|config| config.access_times = AccessTimes::Never).await?);
    }
    let cpu = async || {
        let statuses = filled.maker.statuses().await?;
        anyhow::Ok(statuses.iter().map(|of| of.process.cpu_micros).collect::<Vec<u64>>())
    };
    let sent =
        |clients: &[Client]| -> u64 { clients.iter().flat_map(Client::requests_by_server).sum() };
    let (before, sent_before) = (cpu().await?, sent(&clients));
    let start = bench::monotonic();
    let count = filled.dirs.len();
    let parts = clients.iter().enumerate().map(|(number, client)| {
        let first = number * count / clients.len();
        let own = filled.dirs.iter().cycle().skip(first).take(params.scanned.get().min(count));
        part(client, own.copied().collect())
    });
    let entries: u64 = try_join_all(parts).await?.into_iter().sum();
    let elapsed = bench::monotonic().saturating_sub(start);
    let requests = sent(&clients) - sent_before;
    let used = cpu().await?.into_iter().zip(before).map(|(after, before)| after - before);
    let busiest = Duration::from_micros(used.max().unwrap_or(0));
    for client in &clients {
        client.close().await?;
    }
    let directories = clients.len() * params.scanned.get().min(count);
    Ok(Scan { directories, entries, elapsed, requests, busiest })
}

/// Lists directories with attributes, one after the other; the number of entries.
async fn part(client: &Client, dirs: Vec<DirRef>) -> anyhow::Result<u64> {
    let root = Cred::ROOT;
    let mut entries = 0;
    for dir in dirs {
        let mut after = 0;
        loop {
            let page = client.readdir(&root, &dir, after, PAGE, true).await?;
            entries += u64::try_from(page.entries.len())?;
            after = page.reach;
            if page.end {
                break;
            }
        }
    }
    Ok(entries)
}
