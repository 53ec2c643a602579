//! Figure 4: creates in one directory, which splits meanwhile, by the number of clients and
//! servers; and as many in a directory for each client, and in one for each create that is under
//! way, as for each process of mdtest.

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Goal, TargetRow},
};

use super::{
    super::{
        load::{Op, Took, below, float},
        outcome::Outcome,
        site::Shape,
    },
    crowd::{Crowd, creates},
    params::{Params, row},
};

/// Number of partitions of the directory that was divided before.
const PARTITIONS: u16 = 16;

struct Charts {
    shared: Chart,
    unique: Chart,
    own: Chart,
    ratio: Chart,
    to_own: Chart,
    before: Chart,
    cpu: Chart,
    model: Chart,
    partitions: Chart,
    moved: Chart,
}

impl Charts {
    fn new() -> Charts {
        let chart = |title| Chart::new(title, "clients", Marks::Lines);
        Charts {
            shared: chart("creates/s on this machine, all in one directory"),
            unique: chart("creates/s on this machine, a directory for each client"),
            own: chart("creates/s on this machine, a directory for each create under way"),
            ratio: chart("one directory beside one for each client, ratio"),
            to_own: chart("one directory beside one for each create under way, ratio"),
            before: chart("a directory that was divided before beside one for each client, ratio"),
            cpu: chart(
                "CPU of all servers for a create, one directory beside one for each client, ratio",
            ),
            model: chart("model: creates/s in one when each server has a core of its own"),
            partitions: chart("partitions of the directory at the end"),
            moved: chart("names that moved to another partition, for each create"),
        }
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut charts = Charts::new();
    let mut reach = Vec::new();
    for servers in &params.counts {
        for clients in &params.clients {
            let ratios = measure(params, *servers, *clients, &mut charts).await?;
            if *clients == params.most_clients() {
                reach.extend(targets(params, *servers, ratios));
            }
        }
    }
    let how = "Clusters of processes on this machine, and all clients in one process. The same \
               number of empty files is made in one directory, in one for each client, and in one \
               for each create that is under way, as each process of mdtest has one (-u), in turn: \
               each time in new directories. The one splits whenever a partition is too large; the \
               others stay in one partition. Whoever has one directory talks to one server; with \
               several, as in the one that is divided, each client has to do with all servers. A \
               fourth one has 16 partitions from the beginning, and none of them splits: what is \
               lost by being divided, and not by splits. What is still moved and swept when the \
               last file is made is not in the rate; the next measurement begins after it. A file \
               system of one server divides no directory. CPU is that of the servers' processes \
               while files are made. In the model a server has one core and nothing else: creates \
               / CPU time of the busiest.";
    let Charts { shared, unique, own, ratio, to_own, before, cpu, model, partitions, moved } =
        charts;
    let figure = Figure {
        name: "fig4".to_owned(),
        title: "SFS figure 4: creates by clients and servers".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["files", "threshold", "in-flight", "rounds"]),
        charts: vec![shared, unique, own, ratio, to_own, before, cpu, model, partitions, moved],
    };
    Ok(Outcome { figure, reach })
}

/// Creates in one directory beside others, of each round.
struct Ratios {
    /// One for each client.
    unique: Vec<f64>,
    /// One for each create that is under way.
    own: Vec<f64>,
}

async fn measure(
    params: &Params,
    servers: u16,
    clients: u16,
    charts: &mut Charts,
) -> anyhow::Result<Ratios> {
    let crowd = Crowd::start(params.directory.as_deref(), Shape::of(servers), clients).await?;
    let (files, under_way) = (params.files.get(), params.under_way(clients));
    let (mut shared, mut unique, mut own, mut before) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut moves = Vec::new();
    let mut partitions = 1.0;
    // One more comes before all, to warm up.
    for round in 0..=params.rounds.get() {
        let load = (under_way, files);
        let of_each = in_whole(&crowd, &format!("/unique{round}"), clients.into(), load).await?;
        let of_own = in_whole(&crowd, &format!("/own{round}"), under_way, load).await?;
        let dir = format!("/shared{round}");
        crowd.divided(&dir, params.threshold.get()).await?;
        let (of_one, moved) = crowd.run(&crowd.clients, under_way, creates(&dir, files)).await?;
        let path = format!("/before{round}");
        crowd.divided_before(&path, PARTITIONS).await?;
        let (of_divided, _) = crowd.run(&crowd.clients, under_way, creates(&path, files)).await?;
        if round > 0 {
            before.push(of_divided);
            partitions = crowd.partitions(&dir).await?;
            unique.push(of_each);
            own.push(of_own);
            shared.push(of_one);
            moves.push(moved.names() / float(files));
        }
    }
    crowd.stop().await?;
    let (point, series) = (clients.to_string(), format!("{servers} servers"));
    let median = |all: &[Took], value: fn(&Took) -> f64| {
        bench::median(all.iter().map(value).collect()).unwrap_or_default()
    };
    let each = |all: &[Took], others: &[Took], value: fn(&Took) -> f64| -> Vec<f64> {
        all.iter().zip(others).map(|(of, other)| value(of) / value(other).max(1e-9)).collect()
    };
    let ratios = Ratios {
        unique: each(&shared, &unique, Took::per_second),
        own: each(&shared, &own, Took::per_second),
    };
    let divided = each(&before, &unique, Took::per_second);
    let cpu = each(&shared, &unique, Took::cpu_us);
    for (chart, value) in [
        (&mut charts.shared, median(&shared, Took::per_second)),
        (&mut charts.unique, median(&unique, Took::per_second)),
        (&mut charts.own, median(&own, Took::per_second)),
        (&mut charts.ratio, bench::median(ratios.unique.clone()).unwrap_or_default()),
        (&mut charts.to_own, bench::median(ratios.own.clone()).unwrap_or_default()),
        (&mut charts.before, bench::median(divided).unwrap_or_default()),
        (&mut charts.cpu, bench::median(cpu).unwrap_or_default()),
        (&mut charts.model, median(&shared, Took::per_second_with_own_cores)),
        (&mut charts.partitions, partitions),
        (&mut charts.moved, bench::median(moves).unwrap_or_default()),
    ] {
        chart.add(&point, &series, value);
    }
    Ok(ratios)
}

/// Measures creates in so many directories, each in one partition.
async fn in_whole(
    crowd: &Crowd,
    name: &str,
    dirs: usize,
    (under_way, files): (usize, usize),
) -> anyhow::Result<Took> {
    let dirs: Vec<_> = (0..dirs).map(|dir| format!("{name}-{dir}")).collect();
    crowd.whole(&dirs).await?;
    let work = below(&dirs, &Op::Create, "file", files);
    let (took, _) = crowd.run(&crowd.clients, under_way, work).await?;
    Ok(took)
}

fn targets(params: &Params, servers: u16, ratios: Ratios) -> Vec<TargetRow> {
    if servers == 1 {
        return Vec::new();
    }
    let clients = params.most_clients();
    let under_way = params.under_way(clients);
    let beside = [
        (format!("each of {clients} clients, {servers} servers"), ratios.unique),
        (format!("each of {under_way} creates under way, {servers} servers"), ratios.own),
    ];
    let rows = beside.into_iter().filter_map(|(each, ratios)| {
        let target = format!("creates in one directory that splits, beside a directory for {each}");
        row(&target, ("", Goal::AtLeast(0.85)), ratios, None, "fig4")
    });
    rows.collect()
}
