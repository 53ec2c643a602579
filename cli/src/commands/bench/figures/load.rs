//! Operations that are measured: what clients send, and what servers use for it.

use std::{cell::RefCell, time::Duration};

use anyhow::Context as _;
use base::FileKind;
use client::{Client, New, OpenOptions};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

/// Operation on a path.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Mkdir,
    /// An empty file, by one request.
    Create,
    /// A file with so many bytes, which is closed.
    Fill(usize),
    Stat,
    /// To read, and closed.
    Open,
    /// Other permission bits.
    Chmod(u32),
    Unlink,
    Rmdir,
    List,
    /// To another path.
    Rename(String),
}

/// An operation.
pub(super) type Work = (Op, String);

/// Operations between two looks at the clock.
const PIECE: usize = 4096;

/// Measurements of a run of operations.
#[derive(Debug, Clone, Default)]
pub(super) struct Took {
    pub(super) operations: usize,
    pub(super) elapsed: Duration,
    /// Latency of each operation, ascending.
    pub(super) latencies: Vec<Duration>,
    /// When each had ended, since the first began; ascending.
    pub(super) ended: Vec<Duration>,
    /// By server.
    pub(super) requests: Vec<u64>,
    /// By server.
    pub(super) cpu: Vec<Duration>,
    pub(super) speculations: u64,
    pub(super) mispredictions: u64,
}

#[expect(clippy::cast_precision_loss, reason = "what is measured has no 53 significant bits")]
pub(super) fn float(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "what is measured has no 53 significant bits")]
pub(super) fn float64(count: u64) -> f64 {
    count as f64
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Took {
    /// Takes in what more of the same took, but for single operations.
    pub(super) fn add(&mut self, more: Took) {
        self.operations += more.operations;
        self.elapsed += more.elapsed;
        self.requests.resize(more.requests.len(), 0);
        self.cpu.resize(more.cpu.len(), Duration::ZERO);
        self.requests.iter_mut().zip(more.requests).for_each(|(all, more)| *all += more);
        self.cpu.iter_mut().zip(more.cpu).for_each(|(all, more)| *all += more);
        self.speculations += more.speculations;
        self.mispredictions += more.mispredictions;
    }

    pub(super) fn per_second(&self) -> f64 {
        float(self.operations) / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// CPU time of all servers for an operation, in microseconds.
    pub(super) fn cpu_us(&self) -> f64 {
        micros(self.cpu.iter().sum()) / float(self.operations.max(1))
    }

    /// The model: operations a second when each server has a core of its own and that is all it
    /// has. The busiest server ends last.
    pub(super) fn per_second_with_own_cores(&self) -> f64 {
        let busiest = self.cpu.iter().max().copied().unwrap_or_default();
        float(self.operations) / busiest.as_secs_f64().max(1e-9)
    }

    /// Requests of clients for an operation.
    pub(super) fn requests_each(&self) -> f64 {
        float64(self.requests.iter().sum()) / float(self.operations.max(1))
    }

    /// The most requests of a server in relation to their mean.
    pub(super) fn imbalance(&self) -> f64 {
        bench::balance::imbalance(&self.requests)
    }

    pub(super) fn mean_us(&self) -> f64 {
        micros(self.latencies.iter().sum()) / float(self.latencies.len().max(1))
    }

    /// Microseconds that so many of a thousand operations did not exceed.
    pub(super) fn percentile_us(&self, permille: usize) -> f64 {
        let rank = (self.latencies.len() * permille).div_ceil(1000);
        self.latencies.get(rank.saturating_sub(1)).map_or(0.0, |time| micros(*time))
    }

    pub(super) fn mispredictions_each(&self) -> f64 {
        float64(self.mispredictions) / float(self.operations.max(1))
    }

    /// Rounds of guesses for an operation.
    pub(super) fn rounds_each(&self) -> f64 {
        float64(self.speculations) / float(self.operations.max(1))
    }
}

/// Counts of clients and servers at one moment.
struct Counts {
    requests: Vec<u64>,
    cpu: Vec<Duration>,
    speculations: u64,
    mispredictions: u64,
}

impl Counts {
    async fn read(clients: &[Client], watcher: &Client) -> anyhow::Result<Counts> {
        let status = watcher.statuses().await.context("a server does not say what it uses")?;
        let cpu = |status: &wire::Status| Duration::from_micros(status.process.cpu_micros);
        let mut requests = vec![0; status.len()];
        let (mut speculations, mut mispredictions) = (0, 0);
        for client in clients {
            let sent = client.requests_by_server();
            requests.iter_mut().zip(sent).for_each(|(all, sent)| *all += sent);
            let stats = client.stats();
            speculations += stats.speculations;
            mispredictions += stats.mispredictions;
        }
        let cpu = status.iter().map(cpu).collect();
        Ok(Counts { requests, cpu, speculations, mispredictions })
    }
}

/// Does all of `work`, so many at a time, the clients in turn. What the servers use is asked by
/// `watcher`, which is none of the clients.
pub(super) async fn run(
    clients: &[Client],
    watcher: &Client,
    under_way: usize,
    work: Vec<Work>,
) -> anyhow::Result<Took> {
    let latencies = RefCell::new(Vec::with_capacity(work.len()));
    let ended = RefCell::new(Vec::with_capacity(work.len()));
    let operations = work.len();
    let before = Counts::read(clients, watcher).await?;
    let start = bench::monotonic();
    let done = work.into_iter().zip(clients.iter().cycle()).map(|((op, path), client)| {
        let (latencies, ended) = (&latencies, &ended);
        Box::pin(async move {
            let began = bench::monotonic();
            once(client, &op, &path).await.with_context(|| format!("{op:?} {path}"))?;
            let now = bench::monotonic();
            latencies.borrow_mut().push(now.saturating_sub(began));
            ended.borrow_mut().push(now.saturating_sub(start));
            anyhow::Ok(())
        })
    });
    stream::iter(done).buffer_unordered(under_way.max(1)).try_collect::<()>().await?;
    let elapsed = bench::monotonic().saturating_sub(start);
    let after = Counts::read(clients, watcher).await?;
    let mut latencies = latencies.into_inner();
    latencies.sort_unstable();
    let requests = after.requests.iter().zip(&before.requests);
    let cpu = after.cpu.iter().zip(&before.cpu);
    Ok(Took {
        operations,
        elapsed,
        latencies,
        ended: ended.into_inner(),
        requests: requests.map(|(after, before)| after - before).collect(),
        cpu: cpu.map(|(after, before)| after.saturating_sub(*before)).collect(),
        speculations: after.speculations - before.speculations,
        mispredictions: after.mispredictions - before.mispredictions,
    })
}

/// Runs so much work that it is made piece by piece, for as long as `goes_on`. Latencies are of no
/// single operation.
pub(super) async fn run_on(
    clients: &[Client],
    watcher: &Client,
    under_way: usize,
    work: &mut impl Iterator<Item = Work>,
    mut goes_on: impl FnMut() -> bool,
) -> anyhow::Result<Took> {
    let mut all = Took::default();
    while goes_on() {
        let piece: Vec<_> = work.by_ref().take(PIECE).collect();
        if piece.is_empty() {
            break;
        }
        all.add(run(clients, watcher, under_way, piece).await?);
    }
    Ok(all)
}

/// Does one operation.
pub(super) async fn once(client: &Client, op: &Op, path: &str) -> client::Result<()> {
    let file = New { kind: FileKind::File, mode: 0o644, rdev: 0 };
    match op {
        Op::Mkdir => client.mkdir(path, 0o755).await.map(drop),
        Op::Create => client.mknod(path, file).await.map(drop),
        Op::Fill(bytes) => {
            let options = OpenOptions::writing().create_new(0o644);
            let file = client.open_with(path, options).await?;
            file.write_at(0, &vec![b'x'; *bytes]).await?;
            file.close().await
        }
        Op::Stat => client.lstat(path).await.map(drop),
        Op::Open => client.open(path).await?.close().await,
        Op::Chmod(mode) => client.chmod(path, *mode).await.map(drop),
        Op::Unlink => client.unlink(path).await,
        Op::Rmdir => client.rmdir(path).await,
        Op::List => client.read_dir(path).await?.all().await.map(drop),
        Op::Rename(to) => client.rename(path, to).await,
    }
}

/// Returns the number of servers that an operation makes a client ask, on average, when operations
/// are done one after the other.
pub(super) async fn servers_touched(client: &Client, work: &[Work]) -> anyhow::Result<f64> {
    let mut touched = 0;
    for (op, path) in work {
        let before = client.requests_by_server();
        once(client, op, path).await.with_context(|| format!("{op:?} {path}"))?;
        let after = client.requests_by_server();
        touched += after.iter().zip(&before).filter(|(after, before)| after > before).count();
    }
    Ok(float(touched) / float(work.len().max(1)))
}

/// Makes directories, one after the other in order of depth or all at once: `paths` do not stand on
/// each other.
pub(super) async fn mkdirs(client: &Client, paths: &[String]) -> anyhow::Result<()> {
    let made = paths.iter().map(|path| {
        Box::pin(async move {
            client.mkdir(path, 0o755).await.map(drop).with_context(|| format!("mkdir {path}"))
        })
    });
    stream::iter(made).buffer_unordered(32).try_collect().await
}

/// Makes chains of directories below each other, all chains at once; the deepest of each.
pub(super) async fn chains(
    client: &Client,
    prefix: &str,
    count: usize,
    depth: usize,
) -> anyhow::Result<Vec<String>> {
    let mut paths: Vec<String> = (0..count).map(|chain| format!("/{prefix}{chain}")).collect();
    for level in 0..depth {
        if level > 0 {
            paths.iter_mut().for_each(|path| *path += &format!("/level{level}"));
        }
        mkdirs(client, &paths).await?;
    }
    Ok(paths)
}

/// `count` operations on paths below the directories in turn.
pub(super) fn below(dirs: &[String], op: &Op, name: &str, count: usize) -> Vec<Work> {
    let dirs = dirs.iter().cycle().take(count).enumerate();
    dirs.map(|(at, dir)| (op.clone(), format!("{dir}/{name}{at}"))).collect()
}
