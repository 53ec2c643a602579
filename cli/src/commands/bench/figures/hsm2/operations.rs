//! Figure 4: latencies of single operations by servers.

use std::time::Duration;

use anyhow::Context as _;
use bench::{
    figure::{Chart, Figure, Marks},
    report::Goal,
};
use wire::XattrMode;

use super::{
    super::{
        load::{self, Op, below},
        outcome::Outcome,
        site::{Shape, Site},
    },
    Params, row,
    trees::Placed,
};

/// Added to round trips of clients and between servers.
const RTT: Duration = Duration::from_micros(200);
/// Entries of a directory that is listed.
const LISTED: usize = 1000;
/// Listings of each measurement.
const LISTINGS: usize = 50;
/// The directory in which everything is done, and those above it.
const PLACE: [&str; 4] = ["/a", "/a/b", "/a/b/c", "/a/b/c/d"];

/// Placements, the last with each entry hashed: a directory is in as many partitions as there are
/// servers, so that a listing asks them all.
const KINDS: [(&str, Placed, bool); 3] = [
    ("hybrid", Placed::Hybrid, false),
    ("directories hashed", Placed::Hashed, false),
    ("entries hashed", Placed::Hashed, true),
];

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let names = ["create", "mkdir", "stat", "readdir of 1,000 entries"];
    let title = |name: &&str| Chart::new(&format!("{name}: median, µs"), "servers", Marks::Lines);
    let mut charts: Vec<Chart> = names.iter().map(title).collect();
    for servers in &params.counts {
        for (name, placed, divided) in KINDS {
            let medians = measure(params, *servers, placed, divided).await?;
            for (chart, median) in charts.iter_mut().zip(medians) {
                chart.add(&servers.to_string(), name, median);
            }
        }
    }
    let last = params.servers().to_string();
    let first = params.counts.first().map(ToString::to_string).unwrap_or_default();
    let of = |chart: &Chart, servers: &str, name| chart.value(servers, name).unwrap_or(f64::NAN);
    let create = of(&charts[0], &last, "hybrid") / of(&charts[0], &first, "hybrid");
    let readdir = of(&charts[3], &last, "hybrid") / of(&charts[3], &first, "hybrid");
    let hashed = of(&charts[3], &last, "entries hashed") / of(&charts[3], &last, "hybrid");
    let reach = [
        row(
            &format!("create with {last} servers / with {first}"),
            ("", Goal::Below(1.05)),
            create,
            "fig4",
        ),
        row(
            &format!("readdir with {last} servers / with {first}"),
            ("", Goal::Below(1.1)),
            readdir,
            "fig4",
        ),
        row("readdir, entries hashed / hybrid", ("", Goal::AtLeast(3.0)), hashed, "fig4"),
    ];
    let how = "One client does one operation after the other in a directory four levels deep, with \
               warm caches, over a network of 200 µs a round trip, also between servers. mkdir \
               makes directories in that directory. With entries hashed the directories are \
               divided into as many partitions as there are servers when they are made. All servers \
               share this machine's cores.";
    let figure = Figure {
        name: "fig4".to_owned(),
        title: "HSM² figure 4: single operations by servers".to_owned(),
        how: how.to_owned(),
        parameters: vec![
            ("--counts".to_owned(), format!("{:?}", params.counts)),
            ("--samples".to_owned(), params.samples.to_string()),
        ],
        charts,
    };
    Ok(Outcome { figure, reach: reach.into_iter().flatten().collect() })
}

async fn measure(
    params: &Params,
    servers: u16,
    placed: Placed,
    divided: bool,
) -> anyhow::Result<[f64; 4]> {
    let shape = Shape { rtt: RTT, ..placed.shape(servers) };
    let site = Site::start(params.directory.as_deref(), shape)?;
    let client = site.client(|_| {}).await?;
    for path in PLACE {
        load::mkdirs(&client, &[path.to_owned()]).await?;
    }
    let place = PLACE[PLACE.len() - 1];
    let dir = |name: &str| format!("{place}/{name}");
    for name in ["files", "dirs", "listed"] {
        load::mkdirs(&client, &[dir(name)]).await?;
        if divided && servers > 1 {
            let partitions = servers.to_string();
            let value = partitions.as_bytes();
            let set = client.set_xattr(dir(name), "pando.large_dir", value, XattrMode::Set);
            set.await.context("dividing a directory")?;
        }
    }
    let samples = params.samples.get();
    let one_by_one = async |work| {
        let clients = std::slice::from_ref(&client);
        anyhow::Ok(load::run(clients, &client, 1, work).await?.percentile_us(500))
    };
    let create = one_by_one(below(&[dir("files")], &Op::Create, "f", samples)).await?;
    let mkdir = one_by_one(below(&[dir("dirs")], &Op::Mkdir, "d", samples)).await?;
    let stat = one_by_one(below(&[dir("files")], &Op::Stat, "f", samples)).await?;
    let listed = below(&[dir("listed")], &Op::Create, "f", LISTED);
    load::run(std::slice::from_ref(&client), &client, 64, listed).await?;
    let list = one_by_one(vec![(Op::List, dir("listed")); LISTINGS]).await?;
    site.stop()?;
    Ok([create, mkdir, stat, list])
}
