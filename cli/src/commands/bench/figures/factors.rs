//! Figure 11: what speculation, the cache and the placement bring, added one after the other.

use std::time::Duration;

use bench::figure::{Chart, Figure, Marks};
use client::{Config, Resolution};

use super::{
    Outcome, Params,
    load::{self, Op, below},
    site::{Shape, Site},
};

/// A step of the analysis.
struct Step {
    name: &'static str,
    resolution: Resolution,
    cached: bool,
    locality: &'static str,
}

/// Directories at the bottom of the tree.
const CHAINS: usize = 64;

const STEPS: [Step; 4] = [
    Step {
        name: "baseline",
        resolution: Resolution::Sequential,
        cached: false,
        locality: "directory",
    },
    Step {
        name: "+speculation",
        resolution: Resolution::Speculative,
        cached: false,
        locality: "directory",
    },
    Step {
        name: "+cache",
        resolution: Resolution::Speculative,
        cached: true,
        locality: "directory",
    },
    Step {
        name: "subtree placement",
        resolution: Resolution::Speculative,
        cached: true,
        locality: "subtree",
    },
];

impl Step {
    fn configure(&self, config: &mut Config) {
        config.resolution = self.resolution;
        if !self.cached {
            config.access_cache_bytes = 0;
        }
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut latency = Chart::new("latency of a create, µs", "step", Marks::Bars);
    let mut of_mkdir = Chart::new("latency of a mkdir, µs", "step", Marks::Bars);
    let mut requests = Chart::new("requests for an operation", "step", Marks::Bars);
    let mut balance = Chart::new("requests: max/mean over servers", "step", Marks::Bars);
    let mut model =
        Chart::new("model: creates/s when each server has a core of its own", "step", Marks::Bars);
    let samples = params.samples.get();
    for locality in ["directory", "subtree"] {
        let shape = Shape { rtt: params.rtt, locality, ..Shape::of(params.servers) };
        let site = Site::start(params.directory.as_deref(), shape)?;
        let maker = site.client(|_| {}).await?;
        let dirs = tree(&maker, usize::from(params.depth)).await?;
        for step in STEPS.iter().filter(|step| step.locality == locality) {
            let name = step.name;
            let far = [site.client(|config| step.configure(config)).await?];
            if step.cached {
                let know = below(&dirs, &Op::Create, &format!("{name}-first"), dirs.len());
                load::run(&far, &maker, 1, know).await?;
            }
            let create = below(&dirs, &Op::Create, &format!("{name}-file"), samples);
            let took = load::run(&far, &maker, 1, create).await?;
            latency.add(name, "mean", took.mean_us());
            latency.add(name, "median", took.percentile_us(500));
            requests.add(name, "create", took.requests_each());
            let mkdir = below(&dirs, &Op::Mkdir, &format!("{name}-dir"), samples);
            let took = load::run(&far, &maker, 1, mkdir).await?;
            of_mkdir.add(name, "mean", took.mean_us());
            of_mkdir.add(name, "median", took.percentile_us(500));
            requests.add(name, "mkdir", took.requests_each());
            let near = site.client_over(Duration::ZERO, |config| step.configure(config));
            let near = [near.await?];
            let many = below(&dirs, &Op::Create, &format!("{name}-many"), params.operations.get());
            let took = load::run(&near, &maker, params.under_way(params.servers), many).await?;
            balance.add(name, "creates", took.imbalance());
            model.add(name, "creates", took.per_second_with_own_cores());
        }
        site.stop()?;
    }
    let how = "Creates and mkdirs below directories at a depth, all of them in one tree below one directory. baseline: one server \
               after the other is asked, nothing is cached; groups of directories are placed by their own ids throughout, as \
               access and content cannot be put together again. What decoupling brings is read off mkdir instead: where a new \
               file, and the entries and times of its directory, are on two servers, a create is a transaction over both, as \
               every mkdir is. The last bar is not added to the others: it is the same client \
               on a file system where a directory stays with its parent (`pando format --locality subtree`), which here puts \
               all of the tree on one server. Latency: one at a time, with the round trip added. Model: as in figure 9, with \
               many under way and no round trip added to the client.";
    let figure = Figure {
        name: "fig11".to_owned(),
        title: "Figure 11: factor analysis".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "depth", "rtt", "samples", "operations"]),
        charts: vec![latency, of_mkdir, requests, balance, model],
    };
    Ok(Outcome { figure, reach: Vec::new() })
}

/// Directories at `depth`, which have the upper half of their paths in common.
async fn tree(maker: &client::Client, depth: usize) -> anyhow::Result<Vec<String>> {
    let mut path = String::new();
    for level in 0..depth / 2 {
        path += &format!("/near{level}");
        load::mkdirs(maker, std::slice::from_ref(&path)).await?;
    }
    let mut paths: Vec<String> = (0..CHAINS).map(|chain| format!("{path}/far{chain}")).collect();
    for level in depth / 2..depth {
        if level > depth / 2 {
            paths.iter_mut().for_each(|path| *path += &format!("/level{level}"));
        }
        load::mkdirs(maker, &paths).await?;
    }
    Ok(paths)
}
