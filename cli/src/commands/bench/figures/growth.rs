//! Figure 12: creates, and stats of new and old files, while the tree grows until the store has
//! left memory.

use std::time::Duration;

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal, TargetRow},
};
use client::Client;
use meta::MemoryBudget;

use super::{
    load::{self, Op, Took, Work, float, float64},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};
use crate::{memory, output};

const STEPS: u64 = 8;
const FILES_OF_DIRECTORY: u64 = 500;
/// Memory of each server without its memtables, in bytes.
const MEMORY_BYTES: u64 = 192 << 20;

struct Charts {
    cpu: Chart,
    here: Chart,
    store: Chart,
    memory: Chart,
}

impl Charts {
    fn new() -> Charts {
        let chart = |title| Chart::new(title, "files", Marks::Lines);
        Charts {
            cpu: chart("CPU of all servers for an operation, µs"),
            here: chart("operations/s on this machine"),
            store: chart("metadata on disk for a file, bytes"),
            memory: chart("all servers, MB"),
        }
    }
}

/// A file system that grows.
struct Tree<'a> {
    params: &'a Params,
    client: [Client; 1],
    watcher: Client,
    /// When the time is over in which it may grow.
    until: Duration,
    files: u64,
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let budget = budget(params);
    let serve = format!("--memtable {} --memory {}", params.memtable, budget.process);
    let shape = Shape { serve: &serve, ..Shape::of(params.servers) };
    let site = Site::start(params.directory.as_deref(), shape)?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let until = bench::monotonic() + params.growth_limit;
    let mut tree = Tree { params, client, watcher, until, files: 0 };
    let mut charts = Charts::new();
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let step = u64::try_from(params.files.get())?.div_ceil(STEPS);
    for number in 0..STEPS {
        let create = tree.grow(step).await?;
        let new = tree.look(tree.files - create_count(&create)..tree.files, number).await?;
        let old = tree.look(0..step.min(tree.files), number).await?;
        let point = tree.files.to_string();
        let names = ["create", "stat, new files", "stat, oldest files"];
        last = names
            .iter()
            .zip([&create, &new, &old])
            .map(|(name, took)| {
                charts.cpu.add(&point, name, took.cpu_us());
                charts.here.add(&point, name, took.per_second());
                (*name, took.cpu_us())
            })
            .collect();
        if first.is_empty() {
            first.clone_from(&last);
        }
        tree.measure(&point, &mut charts).await?;
        if tree.is_late() {
            break;
        }
    }
    let reach = targets(tree.files, &first, &last);
    let stopped = if tree.files < u64::try_from(params.files.get())? {
        " The time given by --growth-limit ended before all files were made."
    } else {
        ""
    };
    site.stop()?;
    let how = format!(
        "Files are added step by step, in directories of 500. After each step some of its files \
         are looked at, and as many of the first step's, each time other ones, from all over the \
         step. All clients and servers share this machine. The store of each server has a memtable \
         of --memtable, and a cache of blocks ({}); names that were used lately are kept beside it \
         ({}). The metadata of a server is larger than that as soon as the disk of \
         all servers exceeds that of their caches; the operating system keeps tables in its own \
         cache all the same while it has room.{stopped}",
        output::bytes(budget.block_cache),
        output::bytes(budget.record_cache)
    );
    let Charts { cpu, here, store, memory } = charts;
    let figure = Figure {
        name: "fig12".to_owned(),
        title: "Figure 12: a growing tree".to_owned(),
        how,
        parameters: params.of(&[
            "servers",
            "files",
            "operations",
            "in-flight",
            "memtable",
            "growth-limit",
        ]),
        charts: vec![cpu, here, store, memory],
    };
    Ok(Outcome { figure, reach })
}

fn create_count(took: &Took) -> u64 {
    u64::try_from(took.operations).unwrap_or(u64::MAX)
}

/// Compares the cost of an operation in the large tree with its cost after the tree's first step.
fn targets(files: u64, first: &[(&str, f64)], last: &[(&str, f64)]) -> Vec<TargetRow> {
    let rows = first.iter().zip(last).filter_map(|((name, small), (_, large))| {
        let target = format!("server CPU of a {name}, {files} files beside an eighth of them");
        // The paper loses a fifth of its stats of old files on the way to its largest tree.
        let goal = ("µs", Goal::Times(Against::Beside, 1.25));
        row(&target, goal, vec![*large], Some(*small), "fig12")
    });
    rows.collect()
}

impl Tree<'_> {
    fn is_late(&self) -> bool {
        bench::monotonic() >= self.until
    }

    /// Adds so many files, or as many as the time allows.
    async fn grow(&mut self, count: u64) -> anyhow::Result<Took> {
        let (from, to) = (self.files, self.files + count);
        let mut took = Took::default();
        while self.files < to && (self.files == from || !self.is_late()) {
            let upto = to.min(self.files + FILES_OF_DIRECTORY * 64);
            let dirs = self.files.div_ceil(FILES_OF_DIRECTORY)..upto.div_ceil(FILES_OF_DIRECTORY);
            let dirs: Vec<_> = dirs.map(directory).collect();
            load::mkdirs(&self.client[0], &dirs).await?;
            let create = (self.files..upto).map(|file| (Op::Create, path(file))).collect();
            took.add(self.run(create).await?);
            self.files = upto;
        }
        Ok(took)
    }

    /// Looks at some of the files, evenly distributed; each `turn` at others.
    async fn look(&self, files: std::ops::Range<u64>, turn: u64) -> anyhow::Result<Took> {
        let count = files.end - files.start;
        let looked_at = u64::try_from(self.params.operations.get())?.min(count).max(1);
        let stride = (count / looked_at).max(1);
        let drawn = (0..looked_at).map(|at| files.start + (at * stride + turn) % count.max(1));
        self.run(drawn.map(|file| (Op::Stat, path(file))).collect()).await
    }

    async fn run(&self, work: Vec<Work>) -> anyhow::Result<Took> {
        let under_way = self.params.under_way(self.params.servers);
        load::run(&self.client, &self.watcher, under_way, work).await
    }

    async fn measure(&self, point: &str, charts: &mut Charts) -> anyhow::Result<()> {
        let statuses = self.watcher.statuses().await?;
        let sum = |of: fn(&wire::Status) -> u64| float64(statuses.iter().map(of).sum());
        let store = sum(|status| status.store_bytes);
        charts.store.add(point, "bytes", store / float64(self.files.max(1)));
        charts.memory.add(point, "metadata on disk", store / 1e6);
        charts.memory.add(point, "memory", sum(|status| status.process.resident_bytes) / 1e6);
        let budget = budget(self.params);
        let cache = budget.block_cache + 2 * self.params.memtable + budget.record_cache;
        let caches = float64(cache) * float(statuses.len());
        charts.memory.add(point, "caches, memtables and hot names", caches / 1e6);
        Ok(())
    }
}

/// The memory budget of each server: caches are as small as on a small machine, so that files
/// outgrow them.
fn budget(params: &Params) -> MemoryBudget {
    let memtables = memory::deal(MEMORY_BYTES, Some(params.memtable)).memtables;
    memory::deal(MEMORY_BYTES + memtables, Some(params.memtable))
}

fn directory(number: u64) -> String {
    format!("/dir{number}")
}

fn path(file: u64) -> String {
    format!("/dir{}/file{file}", file / FILES_OF_DIRECTORY)
}
