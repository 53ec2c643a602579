//! Figure 12: creates, and stats of new and old files, while the tree grows.

use bench::figure::{Chart, Figure, Marks};

use super::{
    Outcome, Params,
    load::{self, Op, below},
    site::{Shape, Site},
};

const STEPS: usize = 5;
const FILES_OF_DIRECTORY: usize = 500;

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let client = [site.client(|_| {}).await?];
    let watcher = site.client(|_| {}).await?;
    let under_way = params.under_way(params.servers);
    let mut cpu = Chart::new("CPU of all servers for an operation, µs", "files", Marks::Lines);
    let mut here = Chart::new("operations/s on this machine", "files", Marks::Lines);
    let step = params.files.get().div_ceil(STEPS);
    let looked_at = params.operations.get().min(step);
    let mut first = Vec::new();
    for number in 0..STEPS {
        let dirs: Vec<_> = (0..step.div_ceil(FILES_OF_DIRECTORY))
            .map(|dir| format!("/step{number}-dir{dir}"))
            .collect();
        load::mkdirs(&client[0], &dirs).await?;
        let create = below(&dirs, &Op::Create, "file", step);
        // As many as are looked at, from all over the step.
        let stride = (step / looked_at).max(1);
        let new = create.iter().step_by(stride).take(looked_at);
        let new: Vec<_> = new.map(|(_, path)| (Op::Stat, path.clone())).collect();
        if number == 0 {
            first.clone_from(&new);
        }
        let point = ((number + 1) * step).to_string();
        for (name, work) in
            [("create", create), ("stat, new files", new), ("stat, oldest files", first.clone())]
        {
            let took = load::run(&client, &watcher, under_way, work).await?;
            cpu.add(&point, name, took.cpu_us());
            here.add(&point, name, took.per_second());
        }
    }
    site.stop()?;
    let how = "Files are added step by step, in directories of 500. After each step some of its files are looked at, and as many \
               of the first step's. All clients and servers share this machine.";
    let figure = Figure {
        name: "fig12".to_owned(),
        title: "Figure 12: a growing tree".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "files", "operations", "in-flight"]),
        charts: vec![cpu, here],
    };
    Ok(Outcome { figure, reach: Vec::new() })
}
