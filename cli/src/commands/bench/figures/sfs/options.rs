//! Figure 5: what it brings to keep contents with their names, and large memtables.

use base::limits::INLINE_BYTES_MAX;
use bench::figure::{Chart, Figure, Marks};

use super::{
    super::{
        load::{Op, Took},
        outcome::Outcome,
        site::Shape,
    },
    crowd::Crowd,
    params::Params,
};

/// Bytes of each file.
const BYTES: usize = 500;

/// Settings of a measurement.
struct Options {
    name: &'static str,
    inline_max: u32,
    serve: &'static str,
}

const OPTIONS: [Options; 4] = [
    Options { name: "1 MiB, blocks", inline_max: 0, serve: "--memtable 1M" },
    Options { name: "256 MiB, blocks", inline_max: 0, serve: "--memtable 256M" },
    Options { name: "1 MiB, inline", inline_max: INLINE_BYTES_MAX, serve: "--memtable 1M" },
    Options { name: "256 MiB, inline", inline_max: INLINE_BYTES_MAX, serve: "--memtable 256M" },
];

struct Charts {
    rate: Chart,
    empty: Chart,
    cpu: Chart,
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let chart = |title: &str| Chart::new(title, "clients", Marks::Lines);
    let mut charts = Charts {
        rate: chart(&format!("files of {BYTES} bytes made/s on this machine")),
        empty: chart("empty files made/s on this machine"),
        cpu: chart(&format!("CPU of all servers for a file of {BYTES} bytes, µs")),
    };
    for options in &OPTIONS {
        measure(params, options, &mut charts).await?;
    }
    let how = "Files are made in one directory, which splits meanwhile, on a new cluster for each \
               line, by more and more clients. A file is made, written and closed; one with its \
               contents in a block has a block of its own, in a folder of this machine's disk. \
               Empty files are made by one request. A memtable is what the store keeps before it \
               writes a table: 1 MiB for each server is far less than what is made, as the paper's \
               8 MiB are, and 256 MiB more.";
    let Charts { rate, empty, cpu } = charts;
    let figure = Figure {
        name: "fig5".to_owned(),
        title: "SFS figure 5: contents kept inline, and memtables".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&[
            "contents",
            "files",
            "threshold",
            "in-flight",
            "servers",
            "rounds",
        ]),
        charts: vec![rate, empty, cpu],
    };
    Ok(Outcome { figure, reach: Vec::new() })
}

async fn measure(params: &Params, options: &Options, charts: &mut Charts) -> anyhow::Result<()> {
    let Options { name, inline_max, serve } = *options;
    let shape = Shape { inline_max, serve, ..Shape::of(params.servers()) };
    let most = params.most_clients();
    let crowd = Crowd::start(params.directory.as_deref(), shape, most).await?;
    for clients in &params.clients {
        let (mut filled, mut empty) = (Vec::new(), Vec::new());
        for round in 0..params.rounds.get() {
            for (op, files, all) in [
                (Op::Fill(BYTES), params.contents.get(), &mut filled),
                (Op::Create, params.files.get(), &mut empty),
            ] {
                let dir = format!("/made{clients}-{round}-{op:?}");
                crowd.divided(&dir, params.threshold.get()).await?;
                let work = (0..files).map(|at| (op.clone(), format!("{dir}/file{at}"))).collect();
                let some = &crowd.clients[..usize::from(*clients).min(crowd.clients.len())];
                all.push(crowd.run(some, params.under_way(*clients), work).await?.0);
            }
        }
        let point = clients.to_string();
        let median = |all: &[Took], value: fn(&Took) -> f64| {
            bench::median(all.iter().map(value).collect()).unwrap_or_default()
        };
        charts.rate.add(&point, name, median(&filled, Took::per_second));
        charts.empty.add(&point, name, median(&empty, Took::per_second));
        charts.cpu.add(&point, name, median(&filled, Took::cpu_us));
    }
    crowd.stop().await
}
