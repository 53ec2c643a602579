//! Disk reads of existence checks: creates and look-ups on a store that is larger than its cache,
//! with filters and without.
//!
//! The server and its client are tasks of this thread, because the engine is given what servers
//! give it no choice of.
//!
//! Always true: nothing is left of the store when this ends.

use std::{num::NonZeroU64, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use base::{FsError, Locality};
use bench::{
    figure::{Chart, Figure, Marks},
    report::{Goal, TargetRow},
};
use client::{Client, Error, SystemClock};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use meta::{FormatOptions, Offload, Server, ServerOptions};
use store::{BlockReads, Blocks, Engine as _, RocksConfig, RocksEngine};
use tokio::task::{LocalSet, spawn_local};
use wire::Token;

use super::{
    super::{fill, folder::Folder},
    load::{self, Op},
    outcome::Outcome,
    record::single,
};
use crate::{
    connect::{self, Credentials},
    near::Near,
    signals::Stop,
    system::SystemRandom,
    values,
};

const NAME: &str = "reads";
/// Address of the server, which no client dials.
const ADDRESS: &str = "127.0.0.1:7420";
const SIGNING_KEY: [u8; 32] = [7; 32];
const SHARDS: u16 = 64;
/// Operations under way at a time.
const IN_FLIGHT: usize = 64;
/// The store has come to rest after the fill when nothing was read for so long.
const QUIET: Duration = Duration::from_millis(300);
/// Number of looks for that rest, at most.
const QUIET_LOOKS: usize = 400;

/// Disk reads of existence checks, with a store that is larger than its cache.
///
/// Fills a file system that is made for it and starts it anew. Then it counts the blocks that
/// RocksDB reads while files are created in the directories that are there, absent names looked up,
/// and files stat'ed: once without filters in its tables, which no server does, and once with them.
/// Writes DIR/reads.json and .svg, and prints what was aimed at and reached, which is also
/// DIR/reach.jsonl.
#[derive(Debug, clap::Args)]
pub(super) struct Params {
    /// Where results go; it is made if need be.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Files that are there.
    #[arg(long, default_value = "2500000", value_name = "N")]
    files: NonZeroU64,
    /// Directories that they are in.
    #[arg(long, default_value = "100", value_name = "N")]
    directories: NonZeroU64,
    /// The cache of the engine.
    #[arg(long, default_value = "8MiB", value_name = "SIZE", value_parser = values::size)]
    cache: u64,
    /// Operations of each measurement.
    #[arg(long, default_value = "10000", value_name = "N")]
    operations: NonZeroU64,
    /// Where the store is kept [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(super) fn run(params: &Params) -> anyhow::Result<ExitCode> {
    let start = bench::monotonic();
    single(&params.out, start, params.outcome()?)
}

/// Measured phases, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    FirstCreates,
    Creates,
    Absent,
    Stats,
    Mixed,
}

impl Phase {
    const ALL: [Phase; 5] =
        [Phase::FirstCreates, Phase::Creates, Phase::Absent, Phase::Stats, Phase::Mixed];

    fn name(self) -> &'static str {
        match self {
            Phase::FirstCreates => "create, after a start",
            Phase::Creates => "create",
            Phase::Absent => "look up an absent name",
            Phase::Stats => "stat a file",
            Phase::Mixed => "create and stat in turn",
        }
    }
}

/// Measurements of one store.
struct Found {
    /// Bytes on disk.
    store: u64,
    reads: Vec<(Phase, BlockReads)>,
}

impl Params {
    fn outcome(&self) -> anyhow::Result<Outcome> {
        let chart = |kind: &str| {
            Chart::new(&format!("{kind} blocks read for 1000 operations"), "operation", Marks::Bars)
        };
        let mut charts = [chart("data"), chart("filter"), chart("index")];
        let mut sizes = Chart::new("bytes on disk by bytes of cache", "store", Marks::Bars);
        let mut creates = Vec::new();
        for (filters, series) in [(false, "without filters"), (true, "with filters")] {
            let found = self.measure(filters)?;
            sizes.add("filled", series, float(found.store) / float(self.cache));
            for (phase, reads) in found.reads {
                let of_kind = [reads.data, reads.filter, reads.index];
                let each =
                    of_kind.map(|blocks| 1000.0 * float(blocks) / float(self.operations.get()));
                for (chart, each) in charts.iter_mut().zip(each) {
                    chart.add(phase.name(), series, each);
                }
                if phase == Phase::Creates {
                    creates.push(each[0]);
                }
            }
        }
        let with = creates.pop().into_iter().collect();
        let row = TargetRow::of(
            "data blocks read for 1000 creates, beside the same without filters",
            ("", Goal::Below(50.0)),
            with,
            creates.pop(),
            &format!("pando bench figures {NAME}"),
        );
        let figure = Figure {
            name: NAME.to_owned(),
            title: "What existence checks read from disk".to_owned(),
            how: "One server, and a client in the same process. The store was filled by creates \
                  and opened anew. Blocks are those that RocksDB did not find in its cache; the \
                  operating system may have them. Directories are taken in turn, names are new, \
                  files that are stat'ed are drawn from all."
                .to_owned(),
            parameters: self.parameters(),
            charts: charts.into_iter().chain([sizes]).collect(),
        };
        Ok(Outcome { figure, reach: row.into_iter().collect() })
    }

    fn parameters(&self) -> Vec<(String, String)> {
        [
            ("--files", self.files.get()),
            ("--directories", self.directories.get()),
            ("--cache", self.cache),
            ("--operations", self.operations.get()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .into()
    }

    fn measure(&self, filters: bool) -> anyhow::Result<Found> {
        let folder = Folder::make(self.directory.as_deref())?;
        let store = Store { path: folder.path().join("meta"), cache: self.cache, filters };
        let engine = store.open()?;
        let options = FormatOptions {
            name: NAME.to_owned(),
            shards: SHARDS,
            lanes: base::limits::LANES_MAX,
            servers: 1,
            locality: Locality::Directory,
            inline_bytes_max: 0,
            blocks: String::new(),
            signing_key: SIGNING_KEY.to_vec(),
        };
        meta::format(engine.as_ref(), &options, &SystemClock, &SystemRandom::default())?;
        served(engine, async |client, _| self.fill(client).await)?;
        // The last writes are in a table now, and the cache is empty.
        let engine = store.open()?;
        served(engine, async |client, engine| {
            quiet(engine).await?;
            let store = engine.stats().disk_bytes;
            let mut reads = Vec::new();
            for phase in Phase::ALL {
                let before = engine.stats().block_reads;
                self.operate(client, phase).await?;
                let after = engine.stats().block_reads;
                let read = BlockReads {
                    data: after.data - before.data,
                    index: after.index - before.index,
                    filter: after.filter - before.filter,
                };
                reads.push((phase, read));
            }
            Ok(Found { store, reads })
        })
    }

    fn directory_of(&self, number: u64) -> String {
        format!("/d{}", number % self.directories)
    }

    async fn fill(&self, client: &Client) -> anyhow::Result<()> {
        for number in 0..self.directories.get() {
            client.mkdir(self.directory_of(number), 0o755).await?;
        }
        let create = |number| {
            let path = self.file(number);
            async move { load::once(client, &Op::Create, &path).await }
        };
        let created = stream::iter(0..self.files.get()).map(create).buffer_unordered(IN_FLIGHT);
        created.try_collect::<()>().await.context("cannot create a file")
    }

    fn file(&self, number: u64) -> String {
        format!("{}/{}", self.directory_of(number), fill::name(number))
    }

    async fn operate(&self, client: &Client, phase: Phase) -> anyhow::Result<()> {
        let once = |number: u64| async move {
            let directory = self.directory_of(number);
            let new = || (Op::Create, format!("{directory}/{phase:?}.{number}"));
            // From anywhere, and none that a client knows already.
            let nth = if phase == Phase::Mixed { number + self.operations.get() } else { number };
            let drawn = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.files;
            let (op, path) = match phase {
                Phase::FirstCreates | Phase::Creates => new(),
                Phase::Absent => (Op::Stat, format!("{directory}/absent.{number}")),
                Phase::Mixed if number.is_multiple_of(2) => new(),
                Phase::Stats | Phase::Mixed => (Op::Stat, self.file(drawn)),
            };
            match load::once(client, &op, &path).await {
                Err(Error::Fs(FsError::NotFound)) if phase == Phase::Absent => Ok(()),
                Ok(()) if phase == Phase::Absent => Err(anyhow!("{path} is there")),
                done => done.with_context(|| format!("{op:?} {path}")),
            }
        };
        let done = stream::iter(0..self.operations.get()).map(once).buffer_unordered(IN_FLIGHT);
        done.try_collect::<()>().await
    }
}

/// The store of a file system, and how it is opened.
struct Store {
    path: PathBuf,
    cache: u64,
    filters: bool,
}

impl Store {
    fn open(&self) -> anyhow::Result<Arc<RocksEngine>> {
        let config = RocksConfig {
            block_cache_bytes: usize::try_from(self.cache)?,
            filters: self.filters,
            counts_reads: true,
            ..RocksConfig::default()
        };
        Ok(Arc::new(RocksEngine::open(&self.path, &config)?))
    }
}

/// Serves what is in `engine` to a client that does `work`; at the end the engine is closed.
fn served<T>(
    engine: Arc<RocksEngine>,
    work: impl AsyncFnOnce(&Client, &RocksEngine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let options = ServerOptions { offload: Offload::Threads, ..ServerOptions::simulated(ADDRESS) };
    let (clock, random) = (Arc::new(SystemClock), Arc::new(SystemRandom::default()));
    let server = Server::open(engine.clone(), Blocks::memory(), options, clock, random)?;
    let tasks = LocalSet::new();
    let done = tasks.block_on(&connect::runtime()?, async {
        let mut stop = Stop::listen()?;
        let core = server.core(0);
        let background = core.clone();
        spawn_local(async move { background.background().await });
        let token = Token::administrator().sign(&SIGNING_KEY);
        let mut config = connect::config(
            vec![ADDRESS.to_owned()],
            Credentials::of(token),
            "pando bench figures",
        );
        config.dial = Arc::new(Near::start(core));
        let client = connect::connect(config).await?;
        let done = tokio::select! {
            done = Box::pin(work(&client, &engine)) => done,
            () = stop.asked() => bail!("interrupted"),
        };
        client.close().await?;
        done
    });
    drop(tasks);
    server.sync()?;
    done
}

/// Waits until the engine does nothing by itself.
async fn quiet(engine: &RocksEngine) -> anyhow::Result<()> {
    let now = || {
        let stats = engine.stats();
        (stats.block_reads, stats.disk_bytes)
    };
    let mut before = now();
    for _ in 0..QUIET_LOOKS {
        tokio::time::sleep(QUIET).await;
        let after = now();
        if after == before {
            return Ok(());
        }
        before = after;
    }
    bail!("the engine does not come to rest")
}

#[expect(clippy::cast_precision_loss, reason = "counts of blocks have no 53 significant bits")]
fn float(count: u64) -> f64 {
    count as f64
}
