//! Cost of invalidations: the same load with and without renames of directories in it.

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

const DIRECTORIES: usize = 256;
const CLIENTS: usize = 8;
/// Runs of each, in turn.
const ROUNDS: usize = 4;

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let watcher = site.client(|_| {}).await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(site.client(|_| {}).await?);
    }
    let dirs: Vec<_> = (0..DIRECTORIES).map(|dir| format!("/dir{dir}")).collect();
    load::mkdirs(&watcher, &dirs).await?;
    let under_way = params.under_way(params.servers);
    // One operation of so many is the rename of a directory.
    let every = params.rename_every.get();
    let operations = (3 * params.operations.get()).max(every * 3);
    // Each rename has a directory of its own: one that is slow does not keep the next from finding
    // its name.
    let renames = ROUNDS * operations.div_ceil(every);
    let to_move: Vec<_> = (0..renames).map(|at| format!("/move-{at}")).collect();
    load::mkdirs(&watcher, &to_move).await?;
    let mut to_move = to_move.into_iter();
    let create = below(&dirs, &Op::Create, "file", operations);
    let stat = |create: &[Work]| -> Vec<Work> {
        create.iter().map(|(_, path)| (Op::Stat, path.clone())).collect()
    };
    load::run(&clients, &watcher, under_way, create.clone()).await?;
    let mut rate = Chart::new("stats/s on this machine", "run", Marks::Bars);
    let mut cpu = Chart::new("CPU of all servers for an operation, µs", "run", Marks::Bars);
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let series = format!("1 rename in {every}");
    // One more comes before all, to warm up.
    load::run(&clients, &watcher, under_way, stat(&create)).await?;
    for round in 1..=ROUNDS {
        let point = round.to_string();
        let took = load::run(&clients, &watcher, under_way, stat(&create)).await?;
        rate.add(&point, "no renames", took.per_second());
        cpu.add(&point, "no renames", took.cpu_us());
        without.push(took.per_second());
        let mut work = stat(&create);
        for at in (every / 2..work.len()).step_by(every) {
            if let Some(from) = to_move.next() {
                work[at] = (Op::Rename(format!("{from}-moved")), from);
            }
        }
        let renamed = load::run(&clients, &watcher, under_way, work).await?;
        rate.add(&point, &series, renamed.per_second());
        cpu.add(&point, &series, renamed.cpu_us());
        ratios.push(renamed.per_second() / took.per_second());
        with.push(renamed.per_second());
    }
    site.stop()?;
    let target =
        format!("stats a second with 1 directory rename in {every} operations, beside none");
    let goal = ("/s", Goal::PartOf(Against::Beside, 0.97));
    let mut reach: Vec<_> =
        row(&target, goal, with, bench::median(without), "invalidation").into_iter().collect();
    let target = "the same, each run beside the one before it";
    reach.extend(row(target, ("", Goal::AtLeast(0.97)), ratios, None, "invalidation"));
    let how = "Eight clients with warm caches look at files; in every other run some operations \
               are renames of directories beside them. Every client that stands on the list of \
               before is sent what has changed with its next answer.";
    let figure = Figure {
        name: "invalidation".to_owned(),
        title: "The cost of invalidation".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["servers", "operations", "in-flight", "rename-every"]),
        charts: vec![rate, cpu],
    };
    Ok(Outcome { figure, reach })
}
