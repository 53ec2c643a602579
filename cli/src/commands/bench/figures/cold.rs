//! Round trips of a cold stat, by depth: by the fast path, speculative, and by the sequential walk.

use std::{sync::Arc, time::Duration};

use base::Cred;
use bench::{
    Delayed,
    figure::{Chart, Figure, Marks},
    report::Goal,
};
use client::{Client, Config, Resolution, Tcp};
use wire::Token;

use super::{
    load::{self, Op, Took},
    outcome::Outcome,
    params::{Params, row},
    site::{Shape, Site},
};

const RTT: Duration = Duration::from_micros(200);
/// A round trip beside which this machine is fast, to see how many there are.
const LONG_RTT: Duration = Duration::from_millis(5);
/// Mean delay added to that round trip where it varies, and the seed of its draws.
const JITTER: Duration = Duration::from_millis(1);
const SEED: u64 = 1;
/// Paths of each measurement, at most.
const CHAINS_MAX: usize = 40;
/// Number of directories that a client asks for first, so that it has asked every server.
const WARM: usize = 64;
/// User of the clients that must prove their walks.
const USER: u32 = 1000;

/// How a client finds a path.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    resolution: Resolution,
    /// Whether its token is bound to a user: then servers want proof that the walk was allowed.
    bound: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "fast path", resolution: Resolution::Auto, bound: false },
    Kind { name: "speculative", resolution: Resolution::Speculative, bound: false },
    Kind { name: "sequential", resolution: Resolution::Sequential, bound: false },
    Kind { name: "fast path, bound to a user", resolution: Resolution::Auto, bound: true },
    Kind { name: "sequential, bound to a user", resolution: Resolution::Sequential, bound: true },
];

struct Charts {
    trips: Chart,
    latency: Chart,
    requests: Chart,
    by_depth: Chart,
    jittered: Chart,
}

impl Charts {
    fn new(deepest: u16) -> Charts {
        let long = humantime::format_duration(LONG_RTT);
        let jitter = humantime::format_duration(JITTER);
        let of_deepest = |what: &str| {
            let title = format!("{what} at depth {deepest}");
            Chart::new(&title, "round trip added", Marks::Bars)
        };
        Charts {
            trips: of_deepest("median in round trips"),
            latency: of_deepest("median latency, µs,"),
            requests: of_deepest("requests for a stat"),
            by_depth: Chart::new(
                &format!("median by depth, in round trips of {long}"),
                "depth",
                Marks::Lines,
            ),
            jittered: Chart::new(
                &format!("by depth, with {jitter} of jitter, in round trips of {long}"),
                "depth",
                Marks::Lines,
            ),
        }
    }
}

/// A file system with files that are in no client's cache.
struct World<'a> {
    site: &'a Site,
    maker: Client,
    /// A token that is bound to a user.
    bound: String,
    warm: Vec<String>,
}

pub(super) async fn run(params: &Params) -> anyhow::Result<Outcome> {
    let site = Site::start(params.directory.as_deref(), Shape::of(params.servers))?;
    let maker = site.client(|_| {}).await?;
    let warm: Vec<_> = (0..WARM).map(|dir| format!("/warm{dir}")).collect();
    load::mkdirs(&maker, &warm).await?;
    let deepest = params.depths.iter().copied().max().unwrap_or(1);
    let token = Token { id: 1, uid: Some(USER), gids: vec![USER], ..Token::administrator() };
    let bound = maker.sign_token(token).await?;
    let world = World { site: &site, maker, bound, warm };
    let mut charts = Charts::new(deepest);
    let mut reach = Vec::new();
    let mut depths = params.depths.clone();
    depths.sort_unstable();
    for depth in depths {
        let files = world.files(depth, params.samples.get().min(CHAINS_MAX)).await?;
        for kind in KINDS {
            let name = kind.name;
            let took = world.look(&files, |config| config.dial = far(LONG_RTT), kind).await?;
            charts.by_depth.add(&depth.to_string(), name, in_trips(LONG_RTT, &took, 500));
            let dial = |config: &mut Config| config.dial = jittery();
            let took = world.look(&files, dial, kind).await?;
            for (part, permille) in [("half", 500), ("90 %", 900), ("all", 1000)] {
                let series = format!("{name}, {part}");
                let trips = in_trips(LONG_RTT, &took, permille);
                charts.jittered.add(&depth.to_string(), &series, trips);
            }
        }
        if depth == deepest {
            reach = at_the_bottom(&world, &files, depth, &mut charts).await?;
        }
    }
    drop(world);
    site.stop()?;
    let how = "Stats of files by clients that have seen nothing of the path, only of each server; \
               one at a time. By the fast path the server of the last directory is asked alone, \
               which reads of the others what it has not read before. A client whose token is \
               bound to a user may not guess. A round trip is added to the connections of the \
               client. Without one it is seen what this machine needs by itself: all servers \
               share its cores. \
               Neighbours on the path that are on one server are one request of the sequential \
               walk. The spread is from the 10th to the 90th percentile. With jitter, each message \
               takes longer by a random time of its own, drawn exponentially from a seed: a stat \
               that asks several servers at once waits for the slowest of them, and a walk for all \
               one after the other.";
    let mut parameters = params.of(&["servers", "samples"]);
    parameters.push(("--depths".to_owned(), format!("{:?}", params.depths)));
    let Charts { trips, latency, requests, by_depth, jittered } = charts;
    let figure = Figure {
        name: "cold".to_owned(),
        title: "Cold stats, by depth".to_owned(),
        how: how.to_owned(),
        parameters,
        charts: vec![by_depth, jittered, trips, latency, requests],
    };
    Ok(Outcome { figure, reach })
}

/// Measures stats at the greatest depth beside round trips of several lengths.
async fn at_the_bottom(
    world: &World<'_>,
    files: &[String],
    depth: u16,
    charts: &mut Charts,
) -> anyhow::Result<Vec<bench::report::TargetRow>> {
    let mut reach = Vec::new();
    for rtt in [Duration::ZERO, RTT, LONG_RTT] {
        let point = humantime::format_duration(rtt).to_string();
        for kind in KINDS {
            let name = kind.name;
            let took = world.look(files, |config| config.dial = far(rtt), kind).await?;
            charts.latency.add(&point, name, took.percentile_us(500));
            charts.requests.add(&point, name, took.requests_each());
            if rtt.is_zero() {
                continue;
            }
            charts.trips.add(&point, name, in_trips(rtt, &took, 500));
            let spread = [100, 500, 900].map(|permille| in_trips(rtt, &took, permille)).to_vec();
            // The sequential walk is the base of the comparison and has no goal.
            let goal = match (kind.resolution, kind.bound) {
                (Resolution::Auto, true) => Goal::Below(1.2),
                (Resolution::Auto | Resolution::Speculative, _) => Goal::Below(1.3),
                (Resolution::Sequential, _) => Goal::Shown,
            };
            let target = format!("cold stat at depth {depth}, {name}, in round trips of {point}");
            reach.extend(row(&target, ("", goal), spread, None, "cold"));
        }
    }
    Ok(reach)
}

impl World<'_> {
    /// Makes files at a depth, each at the end of a path of its own.
    async fn files(&self, depth: u16, count: usize) -> anyhow::Result<Vec<String>> {
        let above = usize::from(depth).saturating_sub(1).max(1);
        let dirs = load::chains(&self.maker, &format!("cold{depth}-"), count, above).await?;
        let files: Vec<_> = dirs.iter().map(|dir| format!("{dir}/file")).collect();
        let create = files.iter().map(|file| (Op::Create, file.clone())).collect();
        load::run(std::slice::from_ref(&self.maker), &self.maker, 32, create).await?;
        Ok(files)
    }

    /// Has a new client look at files, after it has met all servers.
    async fn look(
        &self,
        files: &[String],
        network: impl FnOnce(&mut Config),
        kind: Kind,
    ) -> anyhow::Result<Took> {
        let change = |config: &mut Config| {
            config.resolution = kind.resolution;
            if kind.bound {
                config.token.clone_from(&self.bound);
                config.cred = Cred { uid: USER, gid: USER, groups: Vec::new() };
            }
            network(config);
        };
        let client = [self.site.client(change).await?];
        let stats = |paths: &[String]| paths.iter().map(|path| (Op::Stat, path.clone())).collect();
        load::run(&client, &self.maker, 16, stats(&self.warm)).await?;
        let took = load::run(&client, &self.maker, 1, stats(files)).await?;
        let [client] = client;
        client.close().await?;
        Ok(took)
    }
}

fn in_trips(rtt: Duration, took: &Took, permille: usize) -> f64 {
    took.percentile_us(permille) / (rtt.as_secs_f64() * 1e6)
}

fn far(rtt: Duration) -> Arc<dyn wire::Dial> {
    Arc::new(Delayed::new(Arc::new(Tcp::default()), rtt))
}

fn jittery() -> Arc<dyn wire::Dial> {
    Arc::new(Delayed::new(Arc::new(Tcp::default()), LONG_RTT).with_jitter(JITTER, SEED))
}
