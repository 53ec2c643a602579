//! Figure 7: requests to the wrong partition, of clients that know a directory as it was.

use base::{Splits, Spread};
use bench::{
    figure::{Chart, Figure, Marks},
    probes::{Crowd as Modelled, Probes, probe},
    report::{Goal, TargetRow},
};
use client::{Client, Stats};

use super::{
    super::{
        load::{float, float64},
        outcome::Outcome,
        site::Shape,
    },
    crowd::{Crowd, creates},
    params::{Params, row},
};

/// Partitions of the models.
const PARTITIONS: [u16; 6] = [1, 2, 4, 8, 16, MOST];
const MOST: u16 = 32;
/// Shards of a file system, unless told otherwise: a directory has no more partitions.
const SHARDS: u16 = 64;
/// Names of the models are drawn from it.
const SEED: u64 = 1;
/// The paper has fewer wrong requests than this.
const WRONG_PERCENT: f64 = 0.08;
const SPREADS: [(&str, Spread); 2] =
    [("extendible", Spread::Extendible), ("subsets", Spread::Subsets)];

struct Charts {
    wrong: Chart,
    when: Chart,
    of_client: Chart,
    met: Chart,
    real: Chart,
}

impl Charts {
    fn new() -> Charts {
        Charts {
            wrong: Chart::new("model: wrong requests, % of creates", "partitions", Marks::Lines),
            when: Chart::new(
                "model: when clients asked the wrong partition, % of those",
                "within the first names of a client",
                Marks::Bars,
            ),
            of_client: Chart::new(
                "model: most wrong requests of one client",
                "partitions",
                Marks::Lines,
            ),
            met: Chart::new(
                "creates that asked wrong partitions first, of a million",
                "how many wrong ones",
                Marks::Bars,
            ),
            real: Chart::new("wrong requests, % of creates", "", Marks::Bars),
        }
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut charts = Charts::new();
    let mut reach = Vec::new();
    for (name, spread) in SPREADS {
        for partitions in PARTITIONS {
            reach.extend(model(params, partitions, (name, spread), &mut charts));
            // A model takes a while, and a user may want to end the run.
            tokio::task::yield_now().await;
        }
    }
    reach.extend(with_servers(params, &mut charts).await?);
    let how = "Models: by the functions that divide directories (base::layout), without servers. \
               Clients make names in turn and know at first one partition; a partition that is too \
               large shifts names at once, tells the master, and hears from it of others' shifts. \
               With fewer partitions there are fewer names, in proportion. Servers: a real \
               directory that grows to fewer names, so that what each client learns once is a \
               larger part; beside it a model of that size. Requests are counted: a create that \
               asks two wrong partitions counts twice.";
    let Charts { wrong, when, of_client, met, real } = charts;
    let figure = Figure {
        name: "fig7".to_owned(),
        title: "SFS figure 7: requests to the wrong partition".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&[
            "modelled",
            "modelled-clients",
            "grown",
            "grown-threshold",
            "clients",
            "servers",
        ]),
        charts: vec![wrong, when, of_client, met, real],
    };
    Ok(Outcome { figure, reach })
}

/// Models a directory that grows to so many partitions, with names in proportion.
fn model(
    params: &Params,
    partitions: u16,
    (name, spread): (&str, Spread),
    charts: &mut Charts,
) -> Vec<TargetRow> {
    let all = count(params.modelled.get());
    let crowd = Modelled {
        clients: params.modelled_clients.get(),
        names: (all * u64::from(partitions) / u64::from(MOST)).max(1),
        threshold: params.grown_threshold.get().into(),
        shards: partitions,
    };
    let probes = probe(crowd, spread, SEED);
    let wrong = percent(probes.wrong, crowd.names);
    let point = partitions.to_string();
    charts.wrong.add(&point, name, wrong);
    charts.of_client.add(&point, name, float64(probes.of_a_client_max));
    if partitions < MOST {
        return Vec::new();
    }
    by_turn(&mut charts.when, name, &probes);
    let met = padded(&probes.in_a_row);
    by_wrong(&mut charts.met, &format!("model, {name}"), &met);
    if spread != Spread::Extendible {
        return Vec::new();
    }
    let of = format!("{} creates by {} simulated clients", crowd.names, crowd.clients);
    let target = format!("wrong requests of {of}, {partitions} partitions");
    let rows = [
        row(&target, ("%", Goal::Below(WRONG_PERCENT)), vec![wrong], None, "fig7"),
        at_most(&format!("the same {of}"), &met),
    ];
    rows.into_iter().flatten().collect()
}

/// When clients asked the wrong partition: each point is for twice as many names as the one before.
fn by_turn(chart: &mut Chart, name: &str, probes: &Probes) {
    let (mut from, mut to) = (0, 1);
    while from < probes.by_turn.len() {
        let part = &probes.by_turn[from..to.min(probes.by_turn.len())];
        chart.add(&to.to_string(), name, percent(part.iter().sum(), probes.wrong));
        (from, to) = (to, to * 2);
    }
}

/// Creates by how many wrong partitions they asked, as clients count them: the last is for all that
/// are more.
fn padded(in_a_row: &[u64]) -> [u64; 4] {
    let mut met = [0; 4];
    for (at, names) in in_a_row.iter().enumerate() {
        met[at.min(3)] += names;
    }
    met
}

fn by_wrong(chart: &mut Chart, series: &str, met: &[u64; 4]) {
    let all: u64 = met.iter().sum();
    for (point, names) in ["1", "2", "3 or more"].iter().zip(&met[1..]) {
        chart.add(point, series, float64(*names) * 1e6 / float64(all.max(1)));
    }
}

fn at_most(of: &str, met: &[u64; 4]) -> Option<TargetRow> {
    let most = met.iter().rposition(|names| *names > 0).unwrap_or(0);
    let target = format!("wrong partitions that one create asked at most, of {of}");
    row(&target, ("", Goal::Below(3.0)), vec![float(most)], None, "fig7")
}

/// Lets clients of a real cluster fill a directory, beside a model of the same size.
async fn with_servers(params: &Params, charts: &mut Charts) -> anyhow::Result<Vec<TargetRow>> {
    let (clients, servers) = (params.most_clients(), params.servers());
    let crowd = Crowd::start(params.directory.as_deref(), Shape::of(servers), clients).await?;
    crowd.divided("/grown", params.grown_threshold.get()).await?;
    let before: Vec<Stats> = crowd.clients.iter().map(Client::stats).collect();
    let work = creates("/grown", params.grown.get());
    crowd.run(&crowd.clients, params.under_way(clients), work).await?;
    let (mut wrong, mut met) = (0, [0; 4]);
    for (client, before) in crowd.clients.iter().zip(before) {
        let after = client.stats();
        wrong += after.wrong_partitions - before.wrong_partitions;
        for (at, names) in met.iter_mut().enumerate() {
            *names += after.probes[at] - before.probes[at];
        }
    }
    let partitions = crowd.partitions("/grown").await?;
    crowd.stop().await?;
    by_wrong(&mut charts.met, &format!("{servers} servers"), &met);
    let same = Modelled {
        clients: clients.into(),
        names: count(params.grown.get()),
        threshold: params.grown_threshold.get().into(),
        shards: Splits::partitions_max(servers, SHARDS),
    };
    let modelled = probe(same, Spread::Extendible, SEED);
    let (of, series) = (count(params.grown.get()), "wrong requests");
    let point = format!("{servers} servers, {clients} clients, {partitions} partitions");
    charts.real.add(&point, series, percent(wrong, of));
    let point = format!("model of that size, {} partitions", modelled.held.len());
    charts.real.add(&point, series, percent(modelled.wrong, of));
    let creates = format!("{of} creates by {clients} clients of {servers} servers");
    let (wrong, of_model) = (percent(wrong, of), percent(modelled.wrong, of));
    let target = format!("wrong requests of {creates}, beside a model of that size");
    let goal = ("%", Goal::Below(WRONG_PERCENT));
    let rows = [row(&target, goal, vec![wrong], Some(of_model), "fig7"), at_most(&creates, &met)];
    Ok(rows.into_iter().flatten().collect())
}

fn count(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn percent(part: u64, of: u64) -> f64 {
    float64(part) * 100.0 / float64(of.max(1))
}
