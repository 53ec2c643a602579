//! Figure 6: creates while one directory grows: splits that copy while everything goes on, beside
//! splits that lock the partition and scan it, and beside a directory that was divided before.

use std::time::Duration;

use bench::{
    figure::{Chart, Figure, Marks},
    report::{Goal, TargetRow},
};

use super::{
    super::{
        load::{Took, float},
        outcome::Outcome,
        site::Shape,
    },
    crowd::{Crowd, Moved, creates},
    params::{Params, row},
};

/// A create waits no longer for splits, but for one in a thousand; a bound of what servers count.
const WAIT_MS: f64 = 20.0;
/// Names are frozen no longer.
const FROZEN_MS: f64 = 5.0;
/// Option of a server whose partitions split by a locked scan.
const LOCKED: &str = "--split-by-locked-scan";
/// Number of partitions of the directory with which a cluster is warmed up.
const WARM_PARTITIONS: u16 = 16;

/// Way in which the directory comes to its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Ordered,
    Locked,
    Before,
}

impl Variant {
    const ALL: [Variant; 3] = [Variant::Ordered, Variant::Locked, Variant::Before];

    fn name(self) -> &'static str {
        match self {
            Variant::Ordered => "split ordering",
            Variant::Locked => "locked scan",
            Variant::Before => "divided before",
        }
    }
}

/// One time that the directory grew.
struct Grown {
    took: Took,
    moved: Moved,
    partitions: f64,
}

struct Charts {
    rate: Chart,
    seconds: Chart,
    latency: Chart,
    light: Chart,
    frozen: Chart,
    waits: Chart,
    splits: Chart,
}

impl Charts {
    fn new(params: &Params) -> Charts {
        let full = params.under_way(params.most_clients());
        Charts {
            rate: Chart::new("creates/s on this machine", "seconds", Marks::Lines),
            seconds: Chart::new("until all are made, s", "", Marks::Bars),
            latency: Chart::new(
                &format!("latency of a create, {full} under way, ms"),
                "not exceeded by",
                Marks::Bars,
            ),
            light: Chart::new(
                &format!("latency of a create, {} under way, ms", params.in_flight),
                "not exceeded by",
                Marks::Bars,
            ),
            frozen: Chart::new("names are frozen for a split, ms", "", Marks::Bars),
            waits: Chart::new(
                &format!("a create waits for splits, {full} under way, ms"),
                "not exceeded by",
                Marks::Bars,
            ),
            splits: Chart::new(
                "splits, those that were given up and begun anew; names that moved, and creates \
                 that waited, for each create",
                "",
                Marks::Bars,
            ),
        }
    }
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut charts = Charts::new(params);
    let mut reach = Vec::new();
    let mut partitions = 1.0;
    for variant in Variant::ALL {
        let (full, light) = grow(params, variant, partitions).await?;
        if variant == Variant::Ordered {
            partitions = full.first().map_or(1.0, |grown| grown.partitions);
        }
        draw(params, variant, (&full, &light), &mut charts);
        reach.extend(targets(params, variant, (&full, &light)));
    }
    let how = "Empty files are made in one directory by all clients, which are one process, on a \
               cluster of processes. Split ordering: what `pando` does; a partition's names are \
               copied while everything goes on, and frozen when little is left. Locked scan: the \
               names of the whole partition are frozen before the first is read, all of them are \
               read, and those that move are sent; a hidden option of servers, for this figure. \
               Frozen names are still looked up. Divided before: the directory begins with about \
               as many partitions as the first has at its end, and none of them splits: what of a \
               latency is not for splits. Rates are of the first round, latencies of all; for how \
               long names were frozen is counted by servers, each time once, and bounds are powers \
               of two of a microsecond. So is what creates waited for splits, all waits of one \
               together: because its name was frozen, or promised to a server that did not know \
               yet that it had come, or because names changed faster than they could be sent; all \
               others count as 0, and bounds are 20 ms, doubled and halved.";
    let Charts { rate, seconds, latency, light, frozen, waits, splits } = charts;
    let figure = Figure {
        name: "fig6".to_owned(),
        title: "SFS figure 6: a growing directory".to_owned(),
        how: how.to_owned(),
        parameters: params.of(&[
            "grown",
            "grown-threshold",
            "clients",
            "in-flight",
            "servers",
            "rounds",
            "bucket",
        ]),
        charts: vec![rate, seconds, latency, light, frozen, waits, splits],
    };
    Ok(Outcome { figure, reach })
}

/// Lets directories grow, one after the other on one cluster, with all clients' creates under way
/// and with those of one.
async fn grow(
    params: &Params,
    variant: Variant,
    partitions: f64,
) -> anyhow::Result<(Vec<Grown>, Vec<Grown>)> {
    let serve = match variant {
        Variant::Locked => LOCKED,
        Variant::Ordered | Variant::Before => "",
    };
    let (clients, files) = (params.most_clients(), params.grown.get());
    let shape = Shape { serve, ..Shape::of(params.servers()) };
    let crowd = Crowd::start(params.directory.as_deref(), shape, clients).await?;
    // Every server is asked something by every client first.
    crowd.divided_before("/warm", WARM_PARTITIONS).await?;
    let warm = creates("/warm", files.div_ceil(10));
    crowd.run(&crowd.clients, params.under_way(clients), warm).await?;
    let (mut full, mut light) = (Vec::new(), Vec::new());
    for round in 0..params.rounds.get() {
        for (under_way, all) in
            [(params.under_way(clients), &mut full), (params.under_way(1), &mut light)]
        {
            let dir = format!("/grown{round}-{under_way}");
            match variant {
                Variant::Ordered | Variant::Locked => {
                    crowd.divided(&dir, params.grown_threshold.get()).await?;
                }
                Variant::Before => crowd.divided_before(&dir, power_of_two(partitions)).await?,
            }
            let work = creates(&dir, files);
            let (took, moved) = crowd.run(&crowd.clients, under_way, work).await?;
            all.push(Grown { took, moved, partitions: crowd.partitions(&dir).await? });
        }
    }
    crowd.stop().await?;
    Ok((full, light))
}

/// The least power of two that is not below it: partitions of one size.
fn power_of_two(partitions: f64) -> u16 {
    let powers = (0..6).map(|power| 1_u16 << power);
    powers.into_iter().find(|power| f64::from(*power) >= partitions).unwrap_or(64)
}

fn median(grown: &[Grown], value: impl Fn(&Grown) -> f64) -> f64 {
    bench::median(grown.iter().map(value).collect()).unwrap_or_default()
}

fn latency_ms(grown: &Grown, permille: usize) -> f64 {
    grown.took.percentile_us(permille) / 1000.0
}

fn waited_ms(grown: &Grown, permille: u64) -> f64 {
    grown.moved.waited_within_ms(grown.took.operations, permille)
}

fn draw(
    params: &Params,
    variant: Variant,
    (full, light): (&[Grown], &[Grown]),
    charts: &mut Charts,
) {
    let name = variant.name();
    if let Some(first) = full.first() {
        over_time(&mut charts.rate, name, &first.took, params.bucket);
    }
    charts.seconds.add("all", name, median(full, |grown| grown.took.elapsed.as_secs_f64()));
    for (chart, grown) in [(&mut charts.latency, full), (&mut charts.light, light)] {
        for (point, permille) in [("half", 500), ("99%", 990), ("99.9%", 999), ("all", 1000)] {
            chart.add(point, name, median(grown, |grown| latency_ms(grown, permille)));
        }
    }
    if variant == Variant::Before {
        return;
    }
    charts.frozen.add("mean", name, median(full, |grown| grown.moved.frozen_ms()));
    for (point, permille) in [("99% within", 990), ("all within", 1000)] {
        charts.frozen.add(
            point,
            name,
            median(full, |grown| grown.moved.frozen_within_ms(permille)),
        );
    }
    for (point, permille) in [("99%", 990), ("99.9%", 999), ("all", 1000)] {
        charts.waits.add(point, name, median(full, |grown| waited_ms(grown, permille)));
    }
    let names = float(params.grown.get());
    charts.splits.add("splits", name, median(full, |grown| grown.moved.handoffs()));
    charts.splits.add("given up", name, median(full, |grown| grown.moved.given_up()));
    charts.splits.add("names moved", name, median(full, |grown| grown.moved.names() / names));
    charts.splits.add("waited", name, median(full, |grown| grown.moved.waited() / names));
}

/// Creates a second, of each piece of time.
fn over_time(chart: &mut Chart, name: &str, took: &Took, bucket: Duration) {
    let (mut from, mut done) = (Duration::ZERO, 0);
    while from < took.elapsed {
        let to = from + bucket;
        let upto = took.ended.partition_point(|ended| *ended < to);
        let length = to.min(took.elapsed) - from;
        let rate = float(upto - done) / length.as_secs_f64().max(1e-9);
        chart.add(&format!("{:.2}", to.as_secs_f64()), name, rate);
        (from, done) = (to, upto);
    }
}

fn targets(
    params: &Params,
    variant: Variant,
    (full, light): (&[Grown], &[Grown]),
) -> Vec<TargetRow> {
    let name = variant.name();
    // Variants that serve as the base of comparisons have no goal.
    let goal = |goal: Goal| if variant == Variant::Ordered { goal } else { Goal::Shown };
    let mut rows = Vec::new();
    if variant != Variant::Before {
        // The longest of all splits is within the bound; so many are frozen that a mean says little
        // of it.
        let target = format!("all splits freeze names for so long at most, {name}");
        let frozen = full.iter().map(|grown| grown.moved.frozen_within_ms(1000)).collect();
        rows.extend(row(&target, ("ms", goal(Goal::Below(FROZEN_MS))), frozen, None, "fig6"));
        let target = format!("the same, mean of splits, {name}");
        let frozen = full.iter().map(|grown| grown.moved.frozen_ms()).collect();
        rows.extend(row(&target, ("ms", Goal::Shown), frozen, None, "fig6"));
    }
    let loads = [(params.under_way(params.most_clients()), full), (params.under_way(1), light)];
    for (under_way, grown) in loads {
        if variant != Variant::Before {
            let target = format!("99.9% of creates wait for splits, {name}, {under_way} under way");
            let waits = grown.iter().map(|grown| waited_ms(grown, 999)).collect();
            rows.extend(row(&target, ("ms", goal(Goal::AtMost(WAIT_MS))), waits, None, "fig6"));
        }
        let target = format!("99.9% of creates within, {name}, {under_way} under way");
        let waits = grown.iter().map(|grown| latency_ms(grown, 999)).collect();
        rows.extend(row(&target, ("ms", goal(Goal::Below(WAIT_MS))), waits, None, "fig6"));
    }
    rows
}
