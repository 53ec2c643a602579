//! Balance at full size: the placement functions by themselves, without any server.

use base::HashKey;
use bench::{
    balance::{Tree, entries, imbalance},
    figure::{Chart, Figure, Marks},
    report::Goal,
};

use super::{outcome::Outcome, params::row};

const TREE: Tree = Tree { directories: 100_000, branches: 10, files: 20 };
/// Default of `pando format`.
const SHARDS: u16 = 64;
const SERVERS: [u16; 6] = [1, 2, 4, 8, 16, 32];
/// File systems, each with a key of its own.
const KEYS: u64 = 5;

pub(super) fn run() -> Outcome {
    let keys: Vec<_> = (1..=KEYS).map(|key| HashKey::new(key, !key)).collect();
    let mut by_servers = Chart::new("max/mean of entries", "servers", Marks::Lines);
    let mut of_one = Chart::new("entries of each of 32 servers", "server", Marks::Bars);
    let mut last = Vec::new();
    for servers in SERVERS {
        let held: Vec<_> = keys.iter().map(|key| entries(TREE, *key, SHARDS, servers)).collect();
        last = held.iter().map(|held| imbalance(held)).collect();
        for (key, value) in last.iter().enumerate() {
            by_servers.add(&servers.to_string(), &format!("key {}", key + 1), *value);
        }
        if servers == 32
            && let Some(held) = held.first()
        {
            for (server, entries) in (0u32..).zip(held) {
                let entries = u32::try_from(*entries).map_or(f64::INFINITY, f64::from);
                of_one.add(&server.to_string(), "entries", entries);
            }
        }
    }
    let how = "By the functions that place directories (base::placement, base::hash), for a tree \
               of 100,000 directories, ten in each, with 20 files each: two million files. No \
               server ran. Five file systems, each with a hash key of its own; 64 shards, as \
               `pando format` makes unless told otherwise.";
    let target = "max/mean of entries over 32 servers, by the placement alone";
    Outcome {
        figure: Figure {
            name: "balance".to_owned(),
            title: "Balance: two million files in 100,000 directories, by the placement alone"
                .to_owned(),
            how: how.to_owned(),
            parameters: Vec::new(),
            charts: vec![by_servers, of_one],
        },
        reach: row(target, ("", Goal::Below(1.08)), last, None, "balance").into_iter().collect(),
    }
}
