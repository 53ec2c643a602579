//! `pando bench elastic`: servers come and go while clients work.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use client::{
    Client, Moved,
    balance::{Balancer, Goal},
};
use futures::future::{Either, join_all, select};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::{fill, folder::Folder, started};
use crate::{
    connect::{self, Credentials},
    output,
};

/// Directories in which clients work, which are on all servers.
const DIRECTORIES: u64 = 64;
/// Files that a client has made and not removed yet.
const KEPT_FILES: usize = 100;
/// Lease of sessions at the server that joins: it stays for so long once it has no shards.
const LEASE: &str = "2s";
/// Pause between two looks whether a server is in the map.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Pause until servers have written out what they store, which is counted then.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// Number of times that shards move until servers store equally much, at most.
const EVEN_TURNS: u64 = 8;
/// Time in which a server that has joined must be in the map.
const JOINED_WITHIN: Duration = Duration::from_secs(60);

/// Start servers of one file system on this machine; then one more joins, gets its share, is drained
/// and leaves, while clients make, look at and remove files. Prints what their operations take
/// meanwhile.
///
/// With --servers 1 the file system begins with one server, which is started anew to become the
/// first of two.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of servers at first.
    #[arg(long, default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Files that are there before.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    files: u64,
    /// Operations under way at a time.
    #[arg(long, default_value_t = 8, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,
    /// Length of each phase in which nothing comes or goes.
    #[arg(long, default_value_t = 5, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Where the servers' data are meanwhile [default: where temporary files go].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Operations of a phase, and the time that they took.
#[derive(Debug, Serialize)]
struct Phase {
    name: &'static str,
    seconds: f64,
    operations: usize,
    operations_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    longest_us: f64,
    errors: u64,
}

/// A move of shards.
#[derive(Debug, Serialize)]
struct Move {
    name: &'static str,
    shards: usize,
    shards_of_all: f64,
    /// The part that must move for a server that comes or goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    least_of_all: Option<f64>,
    records: u64,
    waited_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    servers: u16,
    files: u64,
    in_flight: u16,
    phases: Vec<Phase>,
    moves: Vec<Move>,
    /// The most bytes of records that a server stores, by the mean, with equally many shards on each
    /// and when shards have moved by what they store. Absent where too little is stored to be
    /// counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_of_mean: Option<(f64, f64)>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = Folder::make(args.directory.as_deref())?;
    let mut servers = Servers { all: Vec::new(), folder };
    let report = connect::runtime()?.block_on(Box::pin(measure(args, &mut servers)));
    let stopped = servers.stop();
    let report = report?;
    stopped?;
    if args.json {
        output::print(&serde_json::to_string(&report)?)?;
    } else {
        output::print(&report.to_text())?;
    }
    let errors: u64 = report.phases.iter().map(|phase| phase.errors).sum();
    ensure!(errors == 0, "{errors} operations failed");
    Ok(ExitCode::SUCCESS)
}

/// The servers, in the order of their numbers. Those that still run end when this is dropped.
struct Servers {
    all: Vec<Child>,
    folder: Folder,
}

impl Servers {
    fn data(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("server-{server}"))
    }

    fn token(&self) -> PathBuf {
        self.data(0).join("admin.token")
    }

    /// The address of the first server.
    fn address(&self) -> anyhow::Result<String> {
        let file = self.data(0).join("address");
        let said = std::fs::read_to_string(file).context("the server says no address")?;
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    /// Starts the file system with so many servers.
    fn begin(&mut self, servers: u16) -> anyhow::Result<()> {
        let mut format = pando()?;
        format.arg("format").arg("--data").arg(self.data(0));
        format.args(["--name", "elastic", "--servers", &servers.to_string()]);
        let formatted = format.stdin(Stdio::null()).stdout(Stdio::null()).status();
        ensure!(formatted.context("cannot start this program")?.success(), "cannot format");
        self.all.push(serve(&self.data(0), &[])?);
        for _ in 1..servers {
            let joined = self.to_join()?;
            self.all.push(joined.start()?);
        }
        Ok(())
    }

    /// Makes the only server a coordinator.
    fn found(&mut self) -> anyhow::Result<()> {
        let address = self.address()?;
        let alone = self.all.pop().context("there is a server")?;
        end(alone)?;
        self.all.push(serve(&self.data(0), &["--coordinator", "--listen", &address])?);
        Ok(())
    }

    /// The next server, which is still to join.
    fn to_join(&self) -> anyhow::Result<ToJoin> {
        let data = self.data(self.all.len());
        Ok(ToJoin { data, address: self.address()?, token: self.token() })
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let ended: Vec<anyhow::Result<()>> = self.all.drain(..).rev().map(end).collect();
        ended.into_iter().collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "ending the servers of a benchmark");
        }
    }
}

/// A server that is still to join.
struct ToJoin {
    data: PathBuf,
    address: String,
    token: PathBuf,
}

impl ToJoin {
    fn start(&self) -> anyhow::Result<Child> {
        let token = self.token.to_str().context("a path that is no text")?;
        let join = ["--join", &self.address, "--token-file", token, "--lease", LEASE];
        serve(&self.data, &join)
    }
}

fn pando() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program")?))
}

/// Starts a server, and waits until it listens.
fn serve(data: &Path, options: &[&str]) -> anyhow::Result<Child> {
    let mut command = pando()?;
    command.arg("serve").arg("--data").arg(data).args(["--cores", "1", "--http", "off"]);
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    // The warning that only servers of this machine can join is no news.
    command.args(["--log-level", "error"]);
    started::started(command.args(options), started::SERVING)
}

fn end(mut server: Child) -> anyhow::Result<()> {
    if server.try_wait()?.is_none() {
        kill_process(Pid::from_child(&server), Signal::TERM)?;
    }
    let status = server.wait()?;
    ensure!(status.success(), "a server did not end well: {status}");
    Ok(())
}

/// Clients at work.
struct Load {
    client: Client,
    files: u64,
    ends: Cell<bool>,
    /// Nanoseconds of each operation that has ended in this phase.
    took: RefCell<Vec<u64>>,
    errors: Cell<u64>,
}

impl Load {
    fn path(number: u64) -> String {
        format!("/elastic/{}/{}", number % DIRECTORIES, fill::name(number))
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        self.client.mkdir("/elastic", 0o755).await?;
        for directory in 0..DIRECTORIES {
            let path = format!("/elastic/{directory}");
            self.client.mkdir(&path, 0o755).await?;
            let here = (directory..self.files).step_by(usize::try_from(DIRECTORIES)?);
            fill::create_all(&self.client, here.map(Load::path)).await?;
        }
        Ok(())
    }

    /// Makes, looks at and removes files until the end.
    async fn work(self: Rc<Load>, worker: u16) {
        let mut own: VecDeque<String> = VecDeque::new();
        // The golden section: any few in a row are of many directories, and others for each worker.
        let mut number = u64::from(worker).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for turn in 0_u64.. {
            if self.ends.get() {
                return;
            }
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let drawn = number >> 16;
            let began = bench::monotonic();
            let done = match turn % 4 {
                0 | 1 => {
                    let path = format!("/elastic/{}/{worker}-{turn}", drawn % DIRECTORIES);
                    let new = client::New { kind: base::FileKind::File, mode: 0o644, rdev: 0 };
                    let made = self.client.mknod(&path, new).await.map(drop);
                    own.push_back(path);
                    made
                }
                2 if own.len() > KEPT_FILES => {
                    let path = own.pop_front().expect("there are some");
                    self.client.unlink(&path).await
                }
                _ if self.files == 0 => self.client.stat("/elastic").await.map(drop),
                _ => self.client.stat(Load::path(drawn % self.files)).await.map(drop),
            };
            let took = bench::monotonic().saturating_sub(began);
            self.took.borrow_mut().push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            if let Err(error) = done {
                tracing::error!(%error, "an operation has failed");
                self.errors.set(self.errors.get() + 1);
            }
        }
    }

    /// Ends a phase that has begun at this time.
    fn phase(&self, name: &'static str, began: Duration) -> Phase {
        let mut took = self.took.take();
        took.sort_unstable();
        let seconds = bench::monotonic().saturating_sub(began).as_secs_f64().max(1e-9);
        let micros = |permille| micros(bench::percentile(&took, permille).unwrap_or(0));
        Phase {
            name,
            seconds,
            operations: took.len(),
            operations_per_s: float(took.len() as u64) / seconds,
            p50_us: micros(500),
            p99_us: micros(990),
            longest_us: micros(1000),
            errors: self.errors.take(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "what is measured has no 53 significant bits")]
fn float(value: u64) -> f64 {
    value as f64
}

fn micros(nanos: u64) -> f64 {
    float(nanos) / 1000.0
}

async fn measure(args: &Args, servers: &mut Servers) -> anyhow::Result<Report> {
    servers.begin(args.servers)?;
    let credentials = Credentials::read(&servers.token())?;
    let config = || {
        let address = vec![servers.address()?];
        anyhow::Ok(connect::config(address, credentials.clone(), "pando bench elastic"))
    };
    let load = Rc::new(Load {
        client: connect::connect(config()?).await?,
        files: args.files,
        ends: Cell::new(false),
        took: RefCell::default(),
        errors: Cell::new(0),
    });
    let mover = connect::connect(config()?).await?;
    load.prepare().await.context("cannot make the files")?;
    let work = join_all((0..args.in_flight).map(|worker| Rc::clone(&load).work(worker)));
    let lead = Box::pin(lead(args, &load, &mover, servers));
    let report = match select(lead, work).await {
        Either::Left((report, work)) => {
            load.ends.set(true);
            work.await;
            report?
        }
        Either::Right(_) => unreachable!("the clients work until they are told to end"),
    };
    mover.close().await?;
    load.client.close().await?;
    Ok(report)
}

/// Has a server come and go.
async fn lead(
    args: &Args,
    load: &Load,
    mover: &Client,
    servers: &mut Servers,
) -> anyhow::Result<Report> {
    let (mut phases, mut moves) = (Vec::new(), Vec::new());
    let mut began = bench::monotonic();
    let mut ends = |name, phases: &mut Vec<Phase>| {
        phases.push(load.phase(name, began));
        began = bench::monotonic();
    };
    let quiet = || tokio::time::sleep(Duration::from_secs(args.seconds));
    quiet().await;
    ends("before", &mut phases);
    if args.servers == 1 {
        // The clients wait meanwhile, as there is no server.
        servers.found()?;
        mover.statfs().await?;
        ends("made a coordinator", &mut phases);
    }
    let to_join = servers.to_join()?;
    servers.all.push(tokio::task::spawn_blocking(move || to_join.start()).await??);
    let in_map = async {
        while !is_complete(mover, args.servers + 1).await {
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    };
    tokio::time::timeout(JOINED_WITHIN, in_map).await.context("the server does not join")?;
    ends("one joins", &mut phases);
    let balanced = mover.move_shards(&[]).await.context("shards do not move")?;
    ends("it gets shards", &mut phases);
    quiet().await;
    ends("with one more", &mut phases);
    let (evened, stored_of_mean) = even_out(mover).await.context("shards do not move")?;
    ends("shards move by size", &mut phases);
    let drained = mover.move_shards(&[args.servers]).await.context("shards do not move")?;
    ends("it is drained", &mut phases);
    quiet().await;
    ends("with none on it", &mut phases);
    mover.let_leave(args.servers, &|_| ()).await.context("the server does not leave")?;
    ends("it leaves", &mut phases);
    quiet().await;
    ends("after", &mut phases);
    let shards = mover.cluster().await?.servers.iter().map(|server| u64::from(server.shards)).sum();
    let least = Some(1.0 / f64::from(args.servers + 1));
    moves.push(Move::of("it gets shards", &balanced, shards, least));
    if let Some(evened) = evened {
        moves.push(Move::of("shards move by size", &evened, shards, None));
    }
    moves.push(Move::of("it is drained", &drained, shards, least));
    let Args { servers, files, in_flight, .. } = *args;
    Ok(Report { servers, files, in_flight, phases, moves, stored_of_mean })
}

/// Moves shards until servers store equally much. Returns what has moved, and the largest part of a
/// server before and after, by the mean.
async fn even_out(mover: &Client) -> anyhow::Result<(Option<Moved>, Option<(f64, f64)>)> {
    let goal = Goal {
        begins_above: 1.04,
        ends_at: 1.02,
        looks: 1,
        an_hour: 1.0,
        rest: Duration::ZERO,
        // Requests are those of this benchmark, which are of all directories alike.
        requests_min: u64::MAX,
        bytes_min: 1,
    };
    let (mut balancer, mut moved, mut before) = (Balancer::new(goal), None::<Moved>, None);
    let look = async || {
        // Servers write out what is in memory only, when they are asked.
        mover.shard_loads().await?;
        tokio::time::sleep(WRITTEN_WITHIN).await;
        anyhow::Ok(mover.shard_loads().await?)
    };
    let mut turn = 0;
    loop {
        let (servers, loads) = look().await?;
        let now = Duration::from_secs(3600 * turn);
        let plan = balancer.look(now, &loads, (servers, &[]));
        let Some(largest) = plan.largest.bytes else { return Ok((None, None)) };
        let before = *before.get_or_insert(largest);
        if plan.steps.is_empty() || turn == EVEN_TURNS {
            return Ok((moved, Some((before, largest))));
        }
        let moves: Vec<_> = plan.steps.iter().map(|step| step.shard).collect();
        let now_moved = mover.move_these_shards(&moves, &|_| ()).await?;
        balancer.has_moved(now, &plan.steps);
        let all = moved.get_or_insert(Moved { moves: vec![], records: 0, waited: Duration::ZERO });
        all.moves.extend(now_moved.moves);
        all.records += now_moved.records;
        all.waited += now_moved.waited;
        turn += 1;
    }
}

/// Whether the map has so many servers, and each may serve.
async fn is_complete(client: &Client, servers: u16) -> bool {
    let status = client.cluster().await;
    status.is_ok_and(|it| it.servers.len() == usize::from(servers) && it.problems.is_empty())
}

impl Move {
    fn of(name: &'static str, moved: &Moved, shards: u64, least_of_all: Option<f64>) -> Move {
        Move {
            name,
            shards: moved.moves.len(),
            shards_of_all: float(moved.moves.len() as u64) / float(shards.max(1)),
            least_of_all,
            records: moved.records,
            waited_seconds: moved.waited.as_secs_f64(),
        }
    }
}

impl Report {
    fn to_text(&self) -> String {
        let heads =
            ["PHASE", "SECONDS", "OPERATIONS/S", "P50 MS", "P99 MS", "LONGEST MS", "ERRORS"];
        let ms = |us: f64| format!("{:.2}", us / 1000.0);
        let rows: Vec<Vec<String>> = self
            .phases
            .iter()
            .map(|phase| {
                vec![
                    phase.name.to_owned(),
                    format!("{:.1}", phase.seconds),
                    format!("{:.0}", phase.operations_per_s),
                    ms(phase.p50_us),
                    ms(phase.p99_us),
                    ms(phase.longest_us),
                    phase.errors.to_string(),
                ]
            })
            .collect();
        let mut text = output::table(&heads, &rows);
        for it in &self.moves {
            let least = it.least_of_all.map(|least| format!(" (at least {least:.3})"));
            text += &format!(
                "{}: {} shards, {:.3} of all{}, {} records; changes waited for {:.2} s\n",
                it.name,
                it.shards,
                it.shards_of_all,
                least.unwrap_or_default(),
                it.records,
                it.waited_seconds
            );
        }
        if let Some((before, after)) = self.stored_of_mean {
            text += &format!(
                "bytes of records of the server that has most, by the mean: {before:.3} with equally \
                 many shards, {after:.3} when they have moved by size\n"
            );
        }
        text.trim_end().to_owned()
    }
}
