//! Figure 5 of Duplex: how evenly entries lie on servers, by the way in which directories are
//! divided. Layouts and placement by themselves; no server runs.

use std::{num::NonZeroU64, path::PathBuf, process::ExitCode};

use base::{DirId, EntryName, HashKey, NameVersion, Spread, limits::SHARDS_MAX};
use bench::{
    balance::{deviation, imbalance},
    division::{Division, Rules},
    figure::{Chart, Figure, Marks},
    report::{Goal, TargetRow},
};
use clap::value_parser;

use super::{outcome::Outcome, record::single};

/// File systems, each with a hash key of its own.
const KEYS: u64 = 5;
/// Number of file systems that fill many directories, which takes longer.
const KEYS_OF_MIX: u64 = 1;
/// Number of times that the growing directory is looked at.
const LOOKS: u64 = 16;
/// Number of directories, as in the paper: a binary tree of depth 9.
const DIRECTORIES: u64 = 512;
const BRANCHES: u64 = 2;
const SPREADS: [(Spread, &str); 3] =
    [(Spread::None, "none"), (Spread::Subsets, "subsets"), (Spread::Extendible, "extendible")];
const NAME: &str = "duplex-balance";
/// Servers of many directories have no more than so many times the mean.
const MANY_MAX: f64 = 1.1;
/// Beside the threshold that is given, the directories with the fewest entries are divided at so
/// many.
const THRESHOLDS: [u64; 5] = [4000, 2000, 1000, 500, 250];

/// The load balance of Duplex (figure 5), for each way in which directories are divided.
///
/// One directory that grows to --entries, and 512 directories with --files in each as the paper has
/// them (3125 of 100,000 for each of 16 servers), are divided as servers do it: layouts and
/// placement decide where each name goes, but no server runs. Writes DIR/duplex-balance.json and
/// .svg, and prints what was aimed at and reached, which is also DIR/reach.jsonl.
#[derive(Debug, clap::Args)]
pub(super) struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Entries of the one directory.
    #[arg(long, default_value = "1000000", value_name = "N")]
    entries: NonZeroU64,
    /// Entries of each of the 512 directories, one case after the other; the paper has 3125 to
    /// 200000.
    #[arg(long, default_value = "3125,20000", value_name = "N,...", value_delimiter = ',')]
    files: Vec<u64>,
    /// Entries with which a partition is too large.
    #[arg(long, default_value = "8000", value_name = "N")]
    threshold: NonZeroU64,
    /// Shards of the file system.
    #[arg(long, default_value_t = 64, value_name = "N",
          value_parser = value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: u16,
    /// Numbers of servers.
    #[arg(long, default_value = "16,32", value_name = "N,...", value_delimiter = ',',
          value_parser = value_parser!(u16).range(1..=64))]
    servers: Vec<u16>,
}

pub(super) fn run(params: &Params) -> anyhow::Result<ExitCode> {
    let start = bench::monotonic();
    single(&params.out, start, params.outcome())
}

/// The charts, while they are made.
struct Charts {
    most: Chart,
    deviation: Chart,
    /// Of one directory and of many, on the first number of servers.
    each: [Chart; 2],
    /// Of the growing directory, on the last number of servers.
    growth: Chart,
    partitions: Chart,
    /// Of many small directories, by the threshold.
    thresholds: Chart,
}

impl Params {
    fn outcome(&self) -> Outcome {
        let (first, last) = (self.first(), self.last());
        let each = |what: &str| {
            let title = format!("{what}: entries of each of {first} servers, by their mean");
            Chart::new(&title, "server", Marks::Bars)
        };
        let mut charts = Charts {
            most: Chart::new("max/mean of entries", "what, servers", Marks::Bars),
            deviation: Chart::new("std/mean of entries, in percent", "what, servers", Marks::Bars),
            each: [each("one directory"), each("512 directories")],
            growth: Chart::new(
                &format!("one directory while it grows: max/mean over {last} servers"),
                "entries",
                Marks::Lines,
            ),
            partitions: Chart::new("its partitions", "entries", Marks::Lines),
            thresholds: Chart::new(
                &format!("512 directories of {}: max/mean over {first} servers", self.fewest()),
                "threshold",
                Marks::Lines,
            ),
        };
        let mut reach = Vec::new();
        for (spread, name) in SPREADS {
            let of_one = self.one_directory(spread, name, &mut charts);
            reach.extend(of_one.filter(|_| spread != Spread::None));
            for files in &self.files {
                let many = self.many_directories(*files, spread, name, &mut charts);
                reach.extend(many.filter(|_| spread != Spread::None));
            }
            self.small_directories(spread, name, &mut charts.thresholds);
        }
        let Charts { most, deviation, each: [one, many], growth, partitions, thresholds } = charts;
        let figure = Figure {
            name: NAME.to_owned(),
            title: "Duplex figure 5: load balance, by how directories are divided".to_owned(),
            how: format!(
                "By the layouts and the placement of a file system; no server ran, and names move \
                 in no time. One directory of {} entries, mean of {KEYS} file systems with a hash \
                 key each; 512 directories of a binary tree with {} files in each. Entries of each \
                 server are those with the fewest files in each.",
                self.entries,
                list(&self.files)
            ),
            parameters: self.parameters(),
            charts: vec![one, many, most, deviation, growth, partitions, thresholds],
        };
        Outcome { figure, reach }
    }

    fn parameters(&self) -> Vec<(String, String)> {
        [
            ("--entries", self.entries.to_string()),
            ("--files", list(&self.files)),
            ("--threshold", self.threshold.to_string()),
            ("--shards", self.shards.to_string()),
            ("--servers", list(&self.servers)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn first(&self) -> u16 {
        self.servers.first().copied().unwrap_or(1)
    }

    fn last(&self) -> u16 {
        self.servers.last().copied().unwrap_or(1)
    }

    /// In the directories with the fewest entries.
    fn fewest(&self) -> u64 {
        self.files.iter().copied().min().unwrap_or(0)
    }

    fn empty(&self, spread: Spread, threshold: u64) -> Division {
        Division::new(Rules { spread, threshold, shards: self.shards })
    }

    /// The imbalance over the last number of servers for each file system, as a row beside its
    /// goal.
    fn one_directory(&self, spread: Spread, name: &str, charts: &mut Charts) -> Option<TargetRow> {
        let entries = self.entries.get();
        let looks = (1..=LOOKS).map(|look| entries * look / LOOKS);
        let mut looks: Vec<u64> = looks.filter(|entries| *entries > 0).collect();
        looks.dedup();
        let mut grown = Vec::new();
        let (mut by_size, mut partitions) = (vec![0.0; looks.len()], vec![0.0; looks.len()]);
        for key in keys(KEYS) {
            let home = key.dir_id(DirId::ROOT, &entry("large"), NameVersion(0));
            let mut division = self.empty(spread, self.threshold.get());
            let mut number = 0;
            for (look, upto) in looks.iter().enumerate() {
                (number..*upto).for_each(|number| division.add(key.pos(&file(number))));
                number = *upto;
                by_size[look] += imbalance(&self.held(&division, home, self.last()));
                partitions[look] += float(division.partitions() as u64);
            }
            grown.push((division, home));
        }
        for (look, entries) in looks.iter().enumerate() {
            charts.growth.add(&entries.to_string(), name, by_size[look] / float(KEYS));
            charts.partitions.add(&entries.to_string(), name, partitions[look] / float(KEYS));
        }
        let mut of_last = Vec::new();
        for servers in &self.servers {
            let held: Vec<_> =
                grown.iter().map(|(one, home)| self.held(one, *home, *servers)).collect();
            charts.measured(&format!("one directory, {servers}"), name, &held);
            of_last = held.iter().map(|held| imbalance(held)).collect();
        }
        let (division, home) = grown.first()?;
        add_each(&mut charts.each[0], name, &self.held(division, *home, self.first()));
        let target = format!(
            "max/mean of one directory of {} entries over {} servers, `{name}`, {} partitions",
            self.entries,
            self.last(),
            division.partitions()
        );
        let command = format!("pando bench figures {NAME}");
        TargetRow::of(&target, ("", Goal::Below(1.05)), of_last, None, &command)
    }

    /// Charts the entries that servers hold of many directories. Returns a row beside its goal,
    /// over the first number of servers.
    fn many_directories(
        &self,
        files: u64,
        spread: Spread,
        name: &str,
        charts: &mut Charts,
    ) -> Option<TargetRow> {
        let held = self.held_of_many(files, spread, self.threshold.get());
        for (servers, held) in self.servers.iter().zip(&held) {
            let point = format!("512 directories of {files}, {servers}");
            charts.measured(&point, name, held);
        }
        let of_first = held.first()?;
        if files == self.fewest()
            && let Some(held) = of_first.first()
        {
            add_each(&mut charts.each[1], name, held);
        }
        let target = format!(
            "max/mean of 512 directories of {files} entries over {} servers, `{name}`",
            self.first()
        );
        let values = of_first.iter().map(|held| imbalance(held)).collect();
        let command = format!("pando bench figures {NAME}");
        TargetRow::of(&target, ("", Goal::AtMost(MANY_MAX)), values, None, &command)
    }

    /// Charts the imbalance of the smallest directories if smaller ones were divided.
    fn small_directories(&self, spread: Spread, name: &str, chart: &mut Chart) {
        for threshold in [self.threshold.get()].into_iter().chain(THRESHOLDS) {
            let held = self.held_of_many(self.fewest(), spread, threshold);
            if let Some(held) = held.first().and_then(|held| held.first()) {
                chart.add(&threshold.to_string(), name, imbalance(held));
            }
        }
    }

    /// The entries of each server, for each number of servers and each file system.
    fn held_of_many(&self, files: u64, spread: Spread, threshold: u64) -> Vec<Vec<Vec<u64>>> {
        let mut held: Vec<Vec<Vec<u64>>> = vec![Vec::new(); self.servers.len()];
        for key in keys(KEYS_OF_MIX) {
            let mut of_servers: Vec<Vec<u64>> =
                self.servers.iter().map(|servers| vec![0; usize::from(*servers)]).collect();
            for id in tree(key) {
                let mut division = self.empty(spread, threshold);
                (0..files).for_each(|number| division.add(key.pos(&file(number))));
                of_servers.iter_mut().for_each(|servers| division.count(id, servers));
            }
            held.iter_mut().zip(of_servers).for_each(|(all, of)| all.push(of));
        }
        held
    }

    fn held(&self, division: &Division, home: DirId, servers: u16) -> Vec<u64> {
        let mut held = vec![0; usize::from(servers)];
        division.count(home, &mut held);
        held
    }
}

impl Charts {
    /// Takes in what servers hold in some file systems.
    fn measured(&mut self, point: &str, name: &str, held: &[Vec<u64>]) {
        let mean = |of: fn(&[u64]) -> f64| {
            held.iter().map(|held| of(held)).sum::<f64>() / held.len() as f64
        };
        self.most.add(point, name, mean(imbalance));
        self.deviation.add(point, name, 100.0 * mean(deviation));
    }
}

/// Charts the entries that each server holds, relative to the mean.
fn add_each(chart: &mut Chart, name: &str, held: &[u64]) {
    let mean = float(held.iter().sum::<u64>()) / held.len() as f64;
    for (server, entries) in held.iter().enumerate() {
        chart.add(&server.to_string(), name, if mean > 0.0 { float(*entries) / mean } else { 0.0 });
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of entries have no 53 significant bits")]
fn float(count: u64) -> f64 {
    count as f64
}

fn list(of: &[impl ToString]) -> String {
    of.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn keys(count: u64) -> impl Iterator<Item = HashKey> {
    (1..=count).map(|key| HashKey::new(key, !key))
}

fn entry(name: &str) -> EntryName {
    EntryName::new(name.as_bytes()).expect("a name")
}

/// The name of a file, as mdtest calls it.
fn file(number: u64) -> EntryName {
    entry(&format!("file.mdtest.0.{number}"))
}

/// The directories of a binary tree.
fn tree(key: HashKey) -> Vec<DirId> {
    let mut ids = vec![DirId::ROOT];
    for number in 1..DIRECTORIES {
        let parent = usize::try_from((number - 1) / BRANCHES).expect("one of those before");
        let name = entry(&format!("mdtest_tree.0.{number}"));
        ids.push(key.dir_id(ids[parent], &name, NameVersion(0)));
    }
    ids
}
