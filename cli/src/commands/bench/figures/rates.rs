//! mkdir and renames of files beside creates, with many under way.

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Against, Goal},
};

use super::{
    load::{self, Op, Work, below},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

const BASES: usize = 256;
const ROUNDS: usize = 3;

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let under_way = params.under_way(params.servers);
    let bases: Vec<_> = (0..BASES).map(|base| format!("/base{base}")).collect();
    load::mkdirs(&client[0], &bases).await?;
    let operations = params.operations.get();
    let mut rate = Chart::new("operations/s on this machine", "operation", Marks::Bars);
    let mut cpu = Chart::new("CPU of all servers for an operation, µs", "operation", Marks::Bars);
    let mut model = Chart::new(
        "model: operations/s when each server has a core of its own",
        "operation",
        Marks::Bars,
    );
    let mut rates: Vec<(&str, Vec<f64>)> = Vec::new();
    for round in 1..=ROUNDS {
        let name = |what: &str| format!("r{round}-{what}");
        let create = below(&bases, &Op::Create, &name("file"), operations);
        let phases = [
            ("create", create.clone()),
            ("mkdir", below(&bases, &Op::Mkdir, &name("dir"), operations)),
            ("rename in a directory", renames(&create, &bases, 0)),
            ("rename to another one", renames(&create, &bases, 1)),
        ];
        for (name, work) in phases {
            let took = load::run(&client, &watcher, under_way, work).await?;
            let series = format!("run {round}");
            rate.add(name, &series, took.per_second());
            cpu.add(name, &series, took.cpu_us());
            model.add(name, &series, took.per_second_with_own_cores());
            match rates.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(took.per_second()),
                None => rates.push((name, vec![took.per_second()])),
            }
        }
    }
    site.stop()?;
    let of = |name: &str| {
        let found = rates.iter().find(|(known, _)| *known == name);
        found.map(|(_, values)| values.clone()).unwrap_or_default()
    };
    let beside = bench::median(of("create"));
    let beside_create = |name: &str, part: f64| {
        let target = format!("{name} beside create, {} servers", params.servers);
        row(&target, ("/s", Goal::PartOf(Against::Beside, part)), of(name), beside, "rates")
    };
    let rows = [
        beside_create("mkdir", 0.5),
        beside_create("rename in a directory", 0.4),
        beside_create("rename to another one", 0.4),
    ];
    let how = "Many operations under way, in 256 directories. A mkdir, and a rename to another \
               directory, concern two servers; a create and a rename within a directory concern \
               one.";
    let figure = Figure {
        name: "rates".to_owned(),
        title: "mkdir and file renames beside creates".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "operations", "in-flight"]),
        charts: vec![rate, cpu, model],
    };
    Ok(Outcome { figure, reach: rows.into_iter().flatten().collect() })
}

/// Renames of what was created: within its directory, or, after that, to the one so many places on.
fn renames(create: &[Work], bases: &[String], on: usize) -> Vec<Work> {
    let rename = |(at, (_, path)): (usize, &Work)| {
        let within = format!("{path}-renamed");
        match on {
            0 => (Op::Rename(within), path.clone()),
            on => {
                let base = &bases[(at + on) % bases.len()];
                let name = path.rsplit('/').next().unwrap_or_default();
                (Op::Rename(format!("{base}/{name}-moved")), within)
            }
        }
    };
    create.iter().enumerate().map(rename).collect()
}
