//! Figure 13: lazy invalidation beside leases, by the size of the client's cache, with renames of
//! directories in the load.

use std::time::Duration;

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal},
};
use client::{Client, Resolution};

use super::{
    load::{self, Op, Took, Work, below, float},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

/// The tree: each directory has so many in it, down to this depth.
const BRANCHES: usize = 4;
const DEPTH: usize = 5;
/// Files of each directory at the bottom.
const FILES: usize = 4;
/// One operation of so many is the rename of a directory or a change of its permissions, as in
/// table 1 of the paper (0.0083 %).
const RENAME_EVERY: usize = 12_048;
/// Directories that are renamed, all over the tree: one moves again only long after it has moved.
const MOVED: usize = 256;
/// Bytes that the client's cache takes for a directory, next to its name.
const CACHED_BYTES: u64 = 460;

struct Charts {
    requests: Chart,
    more: Chart,
    busiest: Chart,
    rate: Chart,
    model: Chart,
}

impl Charts {
    fn new() -> Charts {
        let chart = |title| Chart::new(title, "cached, % of the directories", Marks::Lines);
        Charts {
            requests: chart("requests for a stat"),
            more: chart("requests for directories, /s and client"),
            busiest: chart("requests: max/mean over servers"),
            rate: chart("stats/s on this machine"),
            model: chart("model: stats/s when each server has a core of its own"),
        }
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let watcher = site.client(|_| {}).await?;
    let tree = Tree::make(&watcher).await?;
    let mut renames = tree.renames();
    let mut charts = Charts::new();
    let mut most_cached = Vec::new();
    for percent in &params.caches {
        let point = percent.to_string();
        let bytes = CACHED_BYTES * tree.directories * u64::from(*percent) / 100;
        for lease in [None].into_iter().chain(params.leases.iter().copied().map(Some)) {
            let name = lease.map_or_else(
                || "lazy".to_owned(),
                |lease| format!("lease {}", humantime::format_duration(lease)),
            );
            let mut clients = Vec::new();
            for _ in 0..params.clients.get() {
                let change = |config: &mut client::Config| {
                    (config.cache_lease, config.access_cache_bytes) = (lease, bytes);
                    // By the fast path a client without a cache asks no more than one with it.
                    config.resolution = Resolution::Speculative;
                };
                clients.push(site.client(change).await?);
            }
            let took = tree.look(params, &clients, &watcher, lease, &mut renames).await?;
            let each = took.requests_each();
            charts.requests.add(&point, &name, each);
            let more = (each - 1.0) * took.per_second() / float(clients.len());
            charts.more.add(&point, &name, more);
            charts.busiest.add(&point, &name, took.imbalance());
            charts.rate.add(&point, &name, took.per_second());
            charts.model.add(&point, &name, took.per_second_with_own_cores());
            if Some(percent) == params.caches.iter().max() {
                most_cached.push((name, each));
            }
            for client in clients {
                client.close().await?;
            }
        }
    }
    site.stop()?;
    let reach = match &most_cached[..] {
        [(_, lazy), .., (longest, leased)] => {
            let target = format!(
                "requests for a stat with lazy invalidation, {} clients, beside a {longest}",
                params.clients
            );
            let goal = ("", Goal::Times(Against::Beside, 1.0));
            row(&target, goal, vec![*lazy], Some(*leased), "fig13").into_iter().collect()
        }
        _ => Vec::new(),
    };
    let how = "Many clients in one process look at files drawn from a tree of directories (four in \
               each, five deep), as fast as they can; one operation in 12,048 is the rename of a \
               directory somewhere in the tree, which is in nobody's way. A cache has room for a \
               part of the directories; those near the root stay longest. Each kind begins with \
               empty caches, which fill in a time of their own that is not measured. With a lease \
               a directory is asked for again, by itself, when its lease has ended; what is cached \
               below it goes on. Renames do not wait for leases, as they would have to if what \
               others see were to be right: the leases of the figure cost less than true ones. All \
               clients share one core: requests tell more than rates. How much leases cost depends \
               on how seldom a client looks at a directory within a lease: with few clients each \
               looks often.";
    let Charts { requests, more, busiest, rate, model } = charts;
    let mut parameters = params.of(&["servers", "clients", "in-flight", "seconds", "caches"]);
    let leases = params.leases.iter().map(|lease| humantime::format_duration(*lease).to_string());
    parameters.push(("--leases".to_owned(), leases.collect::<Vec<_>>().join(",")));
    let figure = Figure {
        name: "fig13".to_owned(),
        title: "Figure 13: lazy invalidation and leases".to_owned(),
        how: how.to_owned(),
        parameters,
        charts: vec![requests, more, busiest, rate, model],
    };
    Ok(Outcome { figure, reach })
}

/// Tree in which files are looked up.
struct Tree {
    directories: u64,
    files: Vec<String>,
    /// Directories that are renamed, one in the place of each draw.
    moved: Vec<String>,
}

impl Tree {
    async fn make(maker: &Client) -> anyhow::Result<Tree> {
        let mut level = vec!["/top".to_owned()];
        load::mkdirs(maker, &level).await?;
        let mut all = level.clone();
        for _ in 1..DEPTH {
            level = level
                .iter()
                .flat_map(|dir| (0..BRANCHES).map(move |branch| format!("{dir}/b{branch}")))
                .collect();
            load::mkdirs(maker, &level).await?;
            all.extend_from_slice(&level);
        }
        let create = below(&level, &Op::Create, "file", level.len() * FILES);
        let files = create.iter().map(|(_, path)| path.clone()).collect();
        load::run(std::slice::from_ref(maker), maker, 32, create).await?;
        let moved =
            all.iter().cycle().take(MOVED).enumerate().map(|(at, dir)| format!("{dir}/moved{at}"));
        let moved: Vec<_> = moved.collect();
        load::mkdirs(maker, &moved).await?;
        Ok(Tree { directories: u64::try_from(all.len())?, files, moved })
    }

    /// Renames of directories, each to and fro, without an end.
    fn renames(&self) -> impl Iterator<Item = Work> {
        let (moved, count) = (self.moved.clone(), self.moved.len());
        (0_usize..).map(move |turn| {
            let here = moved[turn % count].clone();
            let there = format!("{here}-away");
            let is_away = (turn / count) % 2 == 1;
            let (from, to) = if is_away { (there, here) } else { (here, there) };
            (Op::Rename(to), from)
        })
    }

    /// Looks at files from all over the tree for a while, after as long a while to fill caches.
    async fn look(
        &self,
        params: &Params,
        clients: &[Client],
        watcher: &Client,
        lease: Option<Duration>,
        renames: &mut impl Iterator<Item = Work>,
    ) -> anyhow::Result<Took> {
        // A lease that has not ended by the end would look like none.
        let least = lease.map_or(Duration::ZERO, |lease| lease + lease / 10);
        let time = Duration::from_secs(params.seconds).max(least);
        let count = self.files.len();
        let mut drawn = (1_usize..).map(|at| {
            if at.is_multiple_of(RENAME_EVERY)
                && let Some(rename) = renames.next()
            {
                return rename;
            }
            // The golden section: any few in a row are from all over the tree, and other ones for
            // each client.
            let file = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            (Op::Stat, self.files[file % count].clone())
        });
        let under_way = params.under_way(params.servers).max(clients.len());
        let mut took = Took::default();
        for _ in ["fill", "measure"] {
            let until = bench::monotonic() + time;
            let goes_on = || bench::monotonic() < until;
            took = load::run_on(clients, watcher, under_way, &mut drawn, goes_on).await?;
        }
        Ok(took)
    }
}
