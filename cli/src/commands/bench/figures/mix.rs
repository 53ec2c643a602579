//! The mix of operations of table 1 of the paper, beside creates and stats alone.

use bench::{
    figure::{Chart, Figure, Marks},
    report::Goal,
};
use client::Client;

use super::{
    load::{self, Op, Took, Work, below, float},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

/// Directories with files, and files of each that are looked at: both stay.
const DIRECTORIES: usize = 256;
const LOOKED_AT: usize = 20;
/// Larger clusters show nothing more on one machine.
const SERVERS_MAX: u16 = 8;
/// Draws begin here.
const SEED: u64 = 1;

/// An operation of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A file is opened and closed, which the table counts as two operations.
    OpenClose,
    Stat,
    Create,
    Delete,
    Rename,
    Chmod,
    Readdir,
    StatDir,
    Mkdir,
    Rmdir,
    RenameDir,
    ChmodDir,
}

/// Parts of a hundred million operations: 95.8 % are of files and 4.2 % of directories, which the
/// table divides among kinds, each to a tenth of a percent. The last two are those 0.0083 % of all
/// that the paper gives in its text.
const MIX: [(Kind, u32); 12] = [
    (Kind::OpenClose, 52_594_200),
    (Kind::Stat, 12_358_200),
    (Kind::Create, 9_580_000),
    (Kind::Delete, 11_879_200),
    (Kind::Rename, 9_292_600),
    (Kind::Chmod, 95_800),
    (Kind::Readdir, 3_914_400),
    (Kind::StatDir, 277_200),
    (Kind::Mkdir, 4_200),
    (Kind::Rmdir, 4_200),
    (Kind::RenameDir, 4_150),
    (Kind::ChmodDir, 4_150),
];

struct Charts {
    rate: Chart,
    requests: Chart,
    cpu: Chart,
    balance: Chart,
    model: Chart,
}

impl Charts {
    fn new() -> Charts {
        let chart = |title| Chart::new(title, "servers", Marks::Lines);
        Charts {
            rate: chart("operations/s on this machine"),
            requests: chart("requests for an operation"),
            cpu: chart("CPU of all servers for an operation, µs"),
            balance: chart("requests: max/mean over servers"),
            model: chart("model: operations/s when each server has a core of its own"),
        }
    }

    /// Adds the measurements of a load of so many operations.
    fn add(&mut self, servers: u16, name: &str, took: &Took, operations: usize) {
        let times = float(operations) / float(took.operations.max(1));
        let point = servers.to_string();
        self.rate.add(&point, name, took.per_second() * times);
        self.requests.add(&point, name, took.requests_each() / times);
        self.cpu.add(&point, name, took.cpu_us() / times);
        self.balance.add(&point, name, took.imbalance());
        self.model.add(&point, name, took.per_second_with_own_cores() * times);
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut charts = Charts::new();
    let mut drawn = Chart::new("operations of the mix, %", "operation", Marks::Bars);
    let mut reach = Vec::new();
    let counts = params.counts.iter().copied().filter(|servers| *servers <= SERVERS_MAX);
    for servers in counts {
        let site = Site::start(params.directory.as_deref(), Shape::of(servers))?;
        let watcher = site.client(|_| {}).await?;
        let mut clients = Vec::new();
        for _ in 0..params.clients.get() {
            clients.push(site.client(|_| {}).await?);
        }
        let operations = params.operations.get();
        let load = Load::draw(operations);
        load.prepare(&watcher, params.under_way(servers)).await?;
        let under_way = params.under_way(servers);
        let work = load.work.clone();
        let dirs: Vec<_> = (0..DIRECTORIES).map(directory).collect();
        let stats = load.stats(operations);
        // This run lets clients learn the tree, which is not part of the mix.
        load::run(&clients, &watcher, under_way, stats.clone()).await?;
        let took = load::run(&clients, &watcher, under_way, work).await?;
        charts.add(servers, "the mix", &took, load.operations);
        let took_stats = load::run(&clients, &watcher, under_way, stats).await?;
        charts.add(servers, "stats alone", &took_stats, operations);
        let create = below(&dirs, &Op::Create, "alone", operations);
        let took_creates = load::run(&clients, &watcher, under_way, create).await?;
        charts.add(servers, "creates alone", &took_creates, operations);
        if drawn.points.is_empty() {
            for (kind, count) in &load.counts {
                let percent = 100.0 * float(*count) / float(load.operations.max(1));
                drawn.add(&format!("{kind:?}"), "drawn", percent);
            }
        }
        let target = format!("requests for an operation of table 1's mix, {servers} servers");
        let each = charts.requests.value(&servers.to_string(), "the mix");
        reach.extend(row(&target, ("", Goal::Shown), each.into_iter().collect(), None, "mix"));
        for client in clients {
            client.close().await?;
        }
        site.stop()?;
    }
    let how = "Operations are drawn from a seed with the parts that table 1 of the paper gives for \
               three production file systems: 95.8 % of files (open and close 54.9 %, stat 12.9, \
               create 10.0, delete 12.4, rename 9.7, set_permission 0.1), 4.2 % of directories \
               (readdir 93.3 %, stat 6.6, mkdir and rmdir 0.1 each), and 0.0083 % renames and \
               set_permission of directories, half of them each. An open with its close are two \
               operations of the table, and one request here. Half of the file renames are within \
               a directory and half to another one, of which the table does not speak. 256 \
               directories with 20 files that stay; what is removed or renamed was made before, \
               and nothing else is done to it. Clients have warm caches.";
    let Charts { rate, requests, cpu, balance, model } = charts;
    let figure = Figure {
        name: "mix".to_owned(),
        title: "The mix of operations of InfiniFS table 1".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["operations", "clients", "in-flight"]),
        charts: vec![rate, requests, cpu, balance, model, drawn],
    };
    Ok(Outcome { figure, reach })
}

/// Operations to run, and the files and directories that they need.
struct Load {
    work: Vec<Work>,
    /// Number of operations as the table counts them.
    operations: usize,
    counts: Vec<(Kind, usize)>,
    files: Vec<Work>,
    dirs: Vec<String>,
}

impl Load {
    fn draw(count: usize) -> Load {
        let mut draw = Draw(SEED);
        let mut load = Load {
            work: Vec::with_capacity(count),
            operations: 0,
            counts: MIX.iter().map(|(kind, _)| (*kind, 0)).collect(),
            files: Vec::new(),
            dirs: Vec::new(),
        };
        while load.operations < count {
            let kind = draw.kind();
            let operations = if kind == Kind::OpenClose { 2 } else { 1 };
            load.operations += operations;
            if let Some((_, drawn)) = load.counts.iter_mut().find(|(known, _)| *known == kind) {
                *drawn += operations;
            }
            load.add(kind, &mut draw);
        }
        load
    }

    fn add(&mut self, kind: Kind, draw: &mut Draw) {
        let number = self.work.len();
        let dir = draw.below(DIRECTORIES);
        let kept = format!("{}/kept{}", directory(dir), draw.below(LOOKED_AT));
        let named = |what: &str| format!("{}/{what}{number}", directory(dir));
        let work = match kind {
            Kind::OpenClose => (Op::Open, kept),
            Kind::Stat => (Op::Stat, kept),
            Kind::Chmod => (Op::Chmod(if number.is_multiple_of(2) { 0o644 } else { 0o640 }), kept),
            Kind::Create => (Op::Create, named("new")),
            Kind::Delete => (Op::Unlink, self.file(named("old"))),
            Kind::Rename => {
                let to = (dir + number % 2) % DIRECTORIES;
                let to = format!("{}/renamed{number}", directory(to));
                (Op::Rename(to), self.file(named("named")))
            }
            Kind::Readdir => (Op::List, directory(dir)),
            Kind::StatDir => (Op::Stat, directory(dir)),
            Kind::Mkdir => (Op::Mkdir, named("dir")),
            Kind::Rmdir => (Op::Rmdir, self.dir(named("empty"))),
            Kind::RenameDir => (Op::Rename(named("moved")), self.dir(named("moves"))),
            Kind::ChmodDir => (Op::Chmod(0o700), self.dir(named("changes"))),
        };
        self.work.push(work);
    }

    /// A file that has to be there.
    fn file(&mut self, path: String) -> String {
        self.files.push((Op::Create, path.clone()));
        path
    }

    fn dir(&mut self, path: String) -> String {
        self.dirs.push(path.clone());
        path
    }

    async fn prepare(&self, maker: &Client, under_way: usize) -> anyhow::Result<()> {
        let dirs: Vec<_> = (0..DIRECTORIES).map(directory).collect();
        load::mkdirs(maker, &dirs).await?;
        load::mkdirs(maker, &self.dirs).await?;
        let kept = dirs
            .iter()
            .flat_map(|dir| (0..LOOKED_AT).map(move |at| (Op::Create, format!("{dir}/kept{at}"))));
        let files = kept.chain(self.files.iter().cloned()).collect();
        load::run(std::slice::from_ref(maker), maker, under_way, files).await.map(drop)
    }

    /// Stats of files that stay.
    fn stats(&self, count: usize) -> Vec<Work> {
        let mut draw = Draw(SEED + 1);
        let path = |draw: &mut Draw| {
            format!("{}/kept{}", directory(draw.below(DIRECTORIES)), draw.below(LOOKED_AT))
        };
        (0..count).map(|_| (Op::Stat, path(&mut draw))).collect()
    }
}

fn directory(number: usize) -> String {
    format!("/dir{number}")
}

/// Numbers from a seed (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).expect("it fits");
        usize::try_from(self.next() % bound).expect("it is below a usize")
    }

    /// One of the table's, with its weight; an open is drawn with its close.
    fn kind(&mut self) -> Kind {
        let weight = |(kind, parts): &(Kind, u32)| {
            u64::from(if *kind == Kind::OpenClose { parts / 2 } else { *parts })
        };
        let all: u64 = MIX.iter().map(weight).sum();
        let mut at = self.next() % all;
        for entry in &MIX {
            match at.checked_sub(weight(entry)) {
                Some(left) => at = left,
                None => return entry.0,
            }
        }
        unreachable!("what was drawn is below the sum of all")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_that_of_the_table() {
        let load = Load::draw(400_000);
        let percent = |wanted: &[Kind]| {
            let drawn = load.counts.iter().filter(|(kind, _)| wanted.contains(kind));
            100.0 * float(drawn.map(|(_, count)| count).sum()) / float(load.operations)
        };
        let dirs = [Kind::Readdir, Kind::StatDir, Kind::Mkdir, Kind::Rmdir];
        for (kinds, table) in [
            (&[Kind::OpenClose][..], 95.8 * 0.549),
            (&[Kind::Delete], 95.8 * 0.124),
            (&[Kind::Rename], 95.8 * 0.097),
            (&dirs, 4.2),
        ] {
            assert!((percent(kinds) - table).abs() < 0.3, "{kinds:?} {} {table}", percent(kinds));
        }
        let rare = percent(&[Kind::RenameDir, Kind::ChmodDir]);
        assert!(rare > 0.003 && rare < 0.02, "{rare}");
    }

    #[test]
    fn nothing_is_done_twice_to_what_goes() {
        let load = Load::draw(50_000);
        let mut gone: Vec<_> = load.files.iter().map(|(_, path)| path).chain(&load.dirs).collect();
        let count = gone.len();
        gone.sort();
        gone.dedup();
        assert_eq!(gone.len(), count);
        assert!(load.work.len() < load.operations);
    }
}
