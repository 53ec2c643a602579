//! Figure 10: one client, over a network, beside memcached.

use std::time::Duration;

use base::FileKind;
use bench::{
    figure::{Chart, Figure, Marks},
    floor::memcached::Memcached,
    report::{Against, Goal},
};

use super::{Params, clients::Took, elsewhere::Serving, jobs::Job, row, slowed::Queue};
use crate::commands::bench::figures::outcome::Outcome;

const KINDS: [(&str, FileKind); 2] = [("mkdir", FileKind::Directory), ("create", FileKind::File)];
const REGION: &str = "in a region";
const MEMCACHED: &str = "memcached, set of 100 bytes";

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let mut rate = Chart::new("operations/s of one client", "operation", Marks::Bars);
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut sets = Vec::new();
    for _ in 0..params.rounds.get() {
        let (operations, delay) = (params.operations.get(), params.delay);
        let round = tokio::task::spawn_blocking(move || one_round(operations, delay)).await??;
        for (rates, took) in rates.iter_mut().zip(&round.0) {
            rates.push(took.per_second());
        }
        sets.extend(round.1.map(|took| took.per_second()));
    }
    let beside = bench::median(sets);
    let mut reach = Vec::new();
    for ((operation, _), rates) in KINDS.into_iter().zip(rates) {
        rate.add(operation, REGION, bench::median(rates.clone()).unwrap_or(0.0));
        if let Some(beside) = beside {
            rate.add(operation, MEMCACHED, beside);
            let target = format!("{operation} of one client over a network, beside {MEMCACHED}");
            let goal = ("/s", Goal::PartOf(Against::Beside, 0.646));
            reach.extend(row(&target, goal, rates, Some(beside), "fig10"));
        }
    }
    let missing = if beside.is_none() { " memcached is not installed here." } else { "" };
    let figure = Figure {
        name: "fig10".to_owned(),
        title: "Pacon figure 10: one client".to_owned(),
        how: format!(
            "One client with one operation under way, of another machine than the one that has the \
             region: a thread with an encrypted connection on the loopback, to a lead that answers \
             on a thread of its own. Beside it memcached with one thread, not encrypted, and a \
             client that waits for each answer; {} times in turns; medians. The file system below \
             makes one call at a time in {}; at the end all of it was below.{missing}",
            params.rounds,
            humantime::format_duration(params.delay)
        ),
        parameters: params.shown(),
        charts: vec![rate],
    };
    Ok(Outcome { figure, reach })
}

fn one_round(operations: usize, delay: Duration) -> anyhow::Result<([Took; 2], Option<Took>)> {
    let job = Job::begin(&Queue::new(delay), 1)?;
    let made = {
        let (region, dirs) = job.parts();
        let serving = Serving::begin(region)?;
        let make =
            |(name, kind): (&str, FileKind)| serving.make((1, 1), operations, kind, dirs, name);
        let [mkdir, create] = KINDS.map(make);
        [mkdir?, create?]
    };
    job.end()?;
    let set = match Memcached::start()? {
        Some(mut memcached) => Some(Took::of(operations, || {
            (0..operations).try_for_each(|number| memcached.set(&format!("create{number}")))?;
            Ok(())
        })?),
        None => None,
    };
    Ok((made, set))
}
