//! Figure 4: creates in one directory, which splits meanwhile, by the number of clients and servers; and as many in a
//! directory for each client.

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Goal, TargetRow},
};

use super::{
    super::{
        Outcome,
        load::{Op, Took, below, float},
        site::Shape,
    },
    Params,
    crowd::{Crowd, creates},
    row,
};

/// Of a directory that was divided before.
const PARTITIONS: u16 = 16;

struct Charts {
    shared: Chart,
    unique: Chart,
    ratio: Chart,
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
            ratio: chart("one directory beside one for each, ratio"),
            before: chart("the same with a directory that was divided before, ratio"),
            cpu: chart("CPU of all servers for a create, one directory beside one for each, ratio"),
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
                reach.extend(target(*servers, *clients, ratios));
            }
        }
    }
    let how = "Clusters of processes on this machine, and all clients in one process. The same number of empty files is made in one \
               directory, and in one for each client, in turn: each time in new directories. The one splits whenever a partition is too \
               large; the others stay in one partition. A third one has 16 partitions from the beginning, and none of them splits: what is lost by \
               being divided, and not by splits. What is still moved and swept when the last file is made is not in \
               the rate; the next measurement begins after it. A file system of one server divides no directory. CPU is that \
               of the servers' processes while files are made. In the model a server has one core and nothing else: creates / CPU time of the busiest.";
    let Charts { shared, unique, ratio, before, cpu, model, partitions, moved } = charts;
    let figure = Figure {
        name: "fig4".to_owned(),
        title: "SFS figure 4: creates by clients and servers".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&["files", "threshold", "in-flight", "rounds"]),
        charts: vec![shared, unique, ratio, before, cpu, model, partitions, moved],
    };
    Ok(Outcome { figure, reach })
}

/// Creates with so many servers and clients; of each round one directory beside one for each client.
async fn measure(
    params: &Params,
    servers: u16,
    clients: u16,
    charts: &mut Charts,
) -> anyhow::Result<Vec<f64>> {
    let crowd = Crowd::start(params.directory.as_deref(), Shape::of(servers), clients).await?;
    let (files, under_way) = (params.files.get(), params.under_way(clients));
    let (mut shared, mut unique, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let mut moves = Vec::new();
    let mut partitions = 1.0;
    // One more comes before all, to warm up.
    for round in 0..=params.rounds.get() {
        let dirs: Vec<_> = (0..clients).map(|client| format!("/unique{round}-{client}")).collect();
        crowd.whole(&dirs).await?;
        let (of_each, _) =
            crowd.run(&crowd.clients, under_way, below(&dirs, &Op::Create, "file", files)).await?;
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
            shared.push(of_one);
            moves.push(moved.names() / float(files));
        }
    }
    crowd.stop().await?;
    let (point, series) = (clients.to_string(), format!("{servers} servers"));
    let median = |all: &[Took], value: fn(&Took) -> f64| {
        bench::median(all.iter().map(value).collect()).unwrap_or_default()
    };
    let each = |all: &[Took], value: fn(&Took) -> f64| -> Vec<f64> {
        let both = all.iter().zip(&unique);
        both.map(|(of, unique)| value(of) / value(unique).max(1e-9)).collect()
    };
    let ratios = each(&shared, Took::per_second);
    let divided = each(&before, Took::per_second);
    for (chart, value) in [
        (&mut charts.shared, median(&shared, Took::per_second)),
        (&mut charts.unique, median(&unique, Took::per_second)),
        (&mut charts.ratio, bench::median(ratios.clone()).unwrap_or_default()),
        (&mut charts.before, bench::median(divided).unwrap_or_default()),
        (&mut charts.cpu, bench::median(each(&shared, Took::cpu_us)).unwrap_or_default()),
        (&mut charts.model, median(&shared, Took::per_second_with_own_cores)),
        (&mut charts.partitions, partitions),
        (&mut charts.moved, bench::median(moves).unwrap_or_default()),
    ] {
        chart.add(&point, &series, value);
    }
    Ok(ratios)
}

fn target(servers: u16, clients: u16, ratios: Vec<f64>) -> Option<TargetRow> {
    if servers == 1 {
        return None;
    }
    let target = format!(
        "creates in one directory that splits, beside a directory for each of {clients} clients, {servers} servers"
    );
    row(&target, ("", Goal::AtLeast(0.85)), ratios, None, "fig4")
}
