//! Figure 11: what speculation, the cache and decoupling bring, added one after the other.

use std::time::Duration;

use bench::figure::{Chart, Figure, Marks};
use client::{Client, Config, Resolution};

use super::{
    load::{self, Op, Took, below},
    outcome::Outcome,
    params::Params,
    site::{Shape, Site},
};

/// A step of the analysis.
struct Step {
    name: &'static str,
    resolution: Resolution,
    cached: bool,
    /// Operation that makes a file: a create where access and content are apart; before, an
    /// operation as costly as a mkdir.
    file: Op,
}

/// Directories at the bottom of the tree.
const CHAINS: usize = 64;

const STEPS: [Step; 4] = [
    Step { name: "baseline", resolution: Resolution::Sequential, cached: false, file: Op::Mkdir },
    Step {
        name: "+speculation",
        resolution: Resolution::Speculative,
        cached: false,
        file: Op::Mkdir,
    },
    Step { name: "+cache", resolution: Resolution::Speculative, cached: true, file: Op::Mkdir },
    Step {
        name: "+decoupling",
        resolution: Resolution::Speculative,
        cached: true,
        file: Op::Create,
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

/// The steps of one operation.
struct Charts {
    latency: Chart,
    requests: Chart,
    balance: Chart,
    model: Chart,
}

impl Charts {
    fn new(of: &str) -> Charts {
        let chart = |title: String| Chart::new(&title, "step", Marks::Bars);
        Charts {
            latency: chart(format!("latency of a {of}, µs, medians")),
            requests: chart(format!("requests for a {of}")),
            balance: chart(format!("requests of {of}s: max/mean over servers")),
            model: chart(format!("model: {of}s/s when each server has a core of its own")),
        }
    }

    /// Takes in one at a time, beside what it takes where the way is known, and many.
    fn add(&mut self, step: &str, far: &Took, known: &Took, near: &Took) {
        let (all, processing) = (far.percentile_us(500), known.percentile_us(500));
        self.latency.add(step, "all", all);
        self.latency.add(step, "all, mean", far.mean_us());
        self.latency.add(step, "processing", processing);
        self.latency.add(step, "path resolution", (all - processing).max(0.0));
        self.requests.add(step, "requests", far.requests_each());
        self.balance.add(step, "max/mean", near.imbalance());
        self.model.add(step, "operations", near.per_second_with_own_cores());
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut charts = [Charts::new("create"), Charts::new("mkdir")];
    let shape = Shape { rtt: params.rtt, ..Shape::of(params.servers) };
    let site = Site::start(params.directory.as_deref(), shape)?;
    let maker = site.client(|_| {}).await?;
    let dirs = tree(&maker, usize::from(params.depth)).await?;
    // A client that knows the way does the same operations: what is left is their processing.
    let guide = Guide { watcher: &maker, dirs: &dirs };
    let known = [site.client(|_| {}).await?];
    guide.teach(&known, "known").await?;
    for step in &STEPS {
        let far = [site.client(|config| step.configure(config)).await?];
        let near = [site.client_over(Duration::ZERO, |config| step.configure(config)).await?];
        if step.cached {
            guide.teach(&far, &format!("{}-far", step.name)).await?;
        }
        for (charts, (kind, op)) in
            charts.iter_mut().zip([("create", &step.file), ("mkdir", &Op::Mkdir)])
        {
            let name = |part: &str| format!("{}-{kind}-{part}", step.name);
            let (samples, many) = (params.samples.get(), params.operations.get());
            let below = |part: &str, count: usize| below(&dirs, op, &name(part), count);
            let one = load::run(&far, &maker, 1, below("one", samples)).await?;
            let without = load::run(&known, &maker, 1, below("known", samples)).await?;
            let under_way = params.under_way(params.servers);
            let all = load::run(&near, &maker, under_way, below("many", many)).await?;
            charts.add(step.name, &one, &without, &all);
        }
        for client in far.into_iter().chain(near) {
            client.close().await?;
        }
    }
    site.stop()?;
    let how = "Creates and mkdirs below directories at a depth, all of them in one tree below one \
               directory. baseline: one server after the other is asked, nothing is cached. As in \
               the paper, a create is a transaction over two servers until decoupling is added: \
               what it costs then is measured with mkdirs, which are that here, over the same \
               paths, as access and content cannot be put together again (docs/BENCHMARKS.md says \
               why). A mkdir of this file system waits for no sync and fewer messages than the \
               paper's three round trips, so the steps before decoupling are rather better than \
               the paper's. Latency: medians, one at a time, with the round trip added; processing \
               is that of the same operations by a client that knows the way, and path resolution \
               the rest. Balance and model: as in figure 9, with many under way and no round trip \
               added to the client; the busiest server is that of the directories near the root \
               where nothing is cached.";
    let [of_create, of_mkdir] = charts;
    let charts = [of_create, of_mkdir].into_iter().flat_map(|charts| {
        let Charts { latency, requests, balance, model } = charts;
        [latency, requests, balance, model]
    });
    let figure = Figure {
        name: "fig11".to_owned(),
        title: "Figure 11: factor analysis".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "depth", "rtt", "samples", "operations"]),
        charts: charts.collect(),
    };
    Ok(Outcome { figure, reach: Vec::new() })
}

/// Shows clients the way.
struct Guide<'a> {
    watcher: &'a Client,
    dirs: &'a [String],
}

impl Guide<'_> {
    async fn teach(&self, clients: &[Client], name: &str) -> anyhow::Result<()> {
        let know = below(self.dirs, &Op::Create, &format!("{name}-first"), self.dirs.len());
        load::run(clients, self.watcher, 1, know).await.map(drop)
    }
}

/// Directories at `depth`, which have the upper half of their paths in common.
async fn tree(maker: &Client, depth: usize) -> anyhow::Result<Vec<String>> {
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
