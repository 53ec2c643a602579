//! `pando bench scale`: constants of this machine, from which it is computed what large file
//! systems need.
//!
//! One server is filled and killed, and two clusters are asked to do each operation. `bench::scale`
//! computes the rest.

use std::{
    fs,
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use bench::scale::{Constants, Cpu, FILES_OF_DIRECTORY, page};
use clap::value_parser;
use client::Client;
use serde::{Deserialize, Serialize};
use wire::XattrMode;

use super::{
    load::{self, Op, Took, Work, below, float, float64},
    record::{self, Record},
    site::{Shape, Site},
};
use crate::{connect, output, signals::Stop};

/// Where the constants are written.
const FILE: &str = "scale.json";
/// Directories of a cluster in which operations are done.
const BASES: usize = 64;
/// A directory that splits has so many names before its first split, of those that are made in it.
const NAMES_BY_THRESHOLD: usize = 16;
/// Idle time after which servers have told each other of all changes.
const SETTLED: Duration = Duration::from_millis(500);
/// Number of looks whether names still move, at most.
const LOOKS_MAX: u32 = 120;

/// Measure what large file systems would need, or compute it from what was measured.
///
/// Fills a server, kills it and starts it again, and counts the CPU time of each operation on two
/// clusters. Writes DIR/scale.json, and prints docs/SCALE.md as it follows from that. With --page
/// it measures nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where scale.json goes; it is made if need be.
    #[arg(long, value_name = "DIR", required_unless_present = "page")]
    out: Option<PathBuf>,
    /// Print the page from the constants in FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    page: Option<PathBuf>,
    /// Files of the server that is filled.
    #[arg(long, default_value = "2000000", value_name = "N")]
    files: NonZeroU64,
    /// Operations of each kind.
    #[arg(long, default_value = "40000", value_name = "N")]
    operations: NonZeroUsize,
    /// Servers of the larger cluster; the other one has two.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = value_parser!(u16).range(3..=32))]
    servers: u16,
    /// For how long it is looked what servers use that nobody asks for anything.
    #[arg(
        long, default_value_t = 10, value_name = "SECONDS",
        value_parser = value_parser!(u64).range(1..=600)
    )]
    seconds: u64,
    /// Where the servers keep their data [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// The constants with where they come from, as they are written.
#[derive(Serialize)]
struct Written {
    record: Record,
    constants: Constants,
}

/// The same facts, as they are read from a record.
#[derive(Deserialize)]
struct Read {
    record: Origin,
    constants: Constants,
}

/// Facts of a record that the page quotes.
#[derive(Deserialize)]
struct Origin {
    command: String,
    commit: Option<String>,
    build: String,
    machine: OfMachine,
}

#[derive(Deserialize)]
struct OfMachine {
    processor: Option<String>,
    cores: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.page {
        output::print(&page_of(file)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = args.out.as_deref().context("--out says where to write")?;
    record::make_folder(out)?;
    let start = bench::monotonic();
    let constants = connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        tokio::select! {
            measured = Box::pin(args.measure()) => measured,
            () = stop.asked() => bail!("interrupted"),
        }
    })?;
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64();
    let written = Written { record: Record::of_now(seconds), constants };
    record::write_file(out, FILE, &(serde_json::to_string_pretty(&written)? + "\n"))?;
    output::print(&page_of(&out.join(FILE))?)?;
    Ok(ExitCode::SUCCESS)
}

fn page_of(file: &Path) -> anyhow::Result<String> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let Read { record, constants } = serde_json::from_str(&text)
        .with_context(|| format!("{} has no constants of this program", file.display()))?;
    let commit = record.commit.map_or_else(String::new, |commit| format!(" of commit {commit}"));
    let processor = record.machine.processor.unwrap_or_else(|| "an unknown processor".to_owned());
    let warning = match record.build.as_str() {
        "release" => "",
        _ => " **This is no release build: CPU times are too high.**",
    };
    let source = format!(
        "The constants are of a {} build{commit} on {} cores ({processor}), by `{}`.{warning}",
        record.build, record.machine.cores, record.command
    );
    Ok(page(&constants, &source))
}

impl Args {
    async fn measure(&self) -> anyhow::Result<Constants> {
        say("a server that is filled");
        let filled = self.fill().await?;
        let servers = [2, self.servers];
        say("two servers");
        let few = self.cluster(servers[0]).await?;
        say(&format!("{} servers", servers[1]));
        let many = self.cluster(servers[1]).await?;
        Ok(Constants {
            files: self.files.get(),
            bytes_per_file: filled.bytes_per_file,
            resident_bytes: filled.resident_bytes,
            start_seconds: filled.start_seconds,
            servers,
            cpu: many.cpu,
            coordinator_cpu_us: [few.coordinator_cpu_us, many.coordinator_cpu_us],
            coordinator_idle_us: [few.coordinator_idle_us, many.coordinator_idle_us],
            split_cpu_us_per_name: many.split_cpu_us_per_name,
            names_moved_per_create: many.names_moved_per_create,
        })
    }

    /// Fills one server, and starts it anew with nothing and with all.
    async fn fill(&self) -> anyhow::Result<Filled> {
        let mut site = Site::start(self.directory.as_deref(), Shape::of(1))?;
        let empty_start = site.restart()?;
        let watcher = site.client(|_| {}).await?;
        let empty = resident(&watcher).await?;
        let client = [site.client(|_| {}).await?];
        let mut made = 0;
        while made < self.files.get() {
            let upto = self.files.get().min(made + FILES_OF_DIRECTORY * 1000);
            let dirs = made / FILES_OF_DIRECTORY..upto.div_ceil(FILES_OF_DIRECTORY);
            let dirs: Vec<_> = dirs.map(|dir| format!("/dir{dir}")).collect();
            load::mkdirs(&client[0], &dirs).await?;
            let create = (made..upto)
                .map(|file| (Op::Create, format!("/dir{}/file{file}", file / FILES_OF_DIRECTORY)));
            load::run(&client, &watcher, 64, create.collect()).await?;
            made = upto;
        }
        let statuses = watcher.statuses().await?;
        let store: u64 = statuses.iter().map(|status| status.store_bytes).sum();
        let full = resident(&watcher).await?;
        let full_start = site.restart()?;
        site.stop()?;
        Ok(Filled {
            bytes_per_file: float64(store) / float64(self.files.get()),
            resident_bytes: [empty, full],
            start_seconds: [empty_start, full_start].map(|time| time.as_secs_f64()),
        })
    }

    async fn cluster(&self, servers: u16) -> anyhow::Result<Measured> {
        let site = Site::start(self.directory.as_deref(), Shape::of(servers))?;
        let cluster = Cluster {
            client: [site.client(|_| {}).await?],
            watcher: site.client(|_| {}).await?,
            operations: self.operations.get(),
            under_way: 16 * usize::from(servers),
        };
        let coordinator_idle_us = cluster.idle(Duration::from_secs(self.seconds)).await?;
        let (cpu, coordinator_cpu_us) = cluster.operate().await?;
        let (split_cpu_us_per_name, names_moved_per_create) = cluster.split().await?;
        drop(cluster);
        site.stop()?;
        Ok(Measured {
            cpu,
            coordinator_cpu_us,
            coordinator_idle_us,
            split_cpu_us_per_name,
            names_moved_per_create,
        })
    }
}

struct Filled {
    bytes_per_file: f64,
    resident_bytes: [f64; 2],
    start_seconds: [f64; 2],
}

struct Measured {
    cpu: Cpu,
    coordinator_cpu_us: f64,
    coordinator_idle_us: f64,
    split_cpu_us_per_name: f64,
    names_moved_per_create: f64,
}

async fn resident(watcher: &Client) -> anyhow::Result<f64> {
    let statuses = watcher.statuses().await.context("a server does not say what it uses")?;
    Ok(float64(statuses.iter().map(|status| status.process.resident_bytes).sum()))
}

/// Progress; what is printed is the page.
fn say(what: &str) {
    eprintln!("measuring {what}");
}

struct Cluster {
    client: [Client; 1],
    watcher: Client,
    operations: usize,
    under_way: usize,
}

impl Cluster {
    async fn run(&self, work: Vec<Work>) -> anyhow::Result<Took> {
        load::run(&self.client, &self.watcher, self.under_way, work).await
    }

    /// CPU microseconds a second of the coordinator when there is nothing to do.
    async fn idle(&self, time: Duration) -> anyhow::Result<f64> {
        tokio::time::sleep(SETTLED).await;
        let cpu = async || {
            let statuses = self.watcher.statuses().await?;
            let first = statuses.first().context("there is no server")?;
            anyhow::Ok(float64(first.process.cpu_micros))
        };
        let before = cpu().await?;
        tokio::time::sleep(time).await;
        Ok((cpu().await? - before) / time.as_secs_f64())
    }

    /// CPU microseconds of all servers for each operation, and of the coordinator for the rename of
    /// a directory.
    async fn operate(&self) -> anyhow::Result<(Cpu, f64)> {
        let bases: Vec<_> = (0..BASES).map(|base| format!("/base{base}")).collect();
        load::mkdirs(&self.client[0], &bases).await?;
        let listed: Vec<_> = (0..BASES).map(|dir| format!("/listed{dir}")).collect();
        load::mkdirs(&self.client[0], &listed).await?;
        let in_each = usize::try_from(FILES_OF_DIRECTORY)?;
        self.run(below(&listed, &Op::Create, "file", BASES * in_each)).await?;
        let count = self.operations;
        // Transactions take longer, and fewer tell as much.
        let some = count.div_ceil(4);
        let files = below(&bases, &Op::Create, "file", count);
        let again = |op: &Op| files.iter().map(|(_, path)| (op.clone(), path.clone())).collect();
        // The client knows the way, as nearly all clients do.
        self.run(below(&bases, &Op::Create, "first", BASES)).await?;
        let create = self.run(files.clone()).await?.cpu_us();
        let stat = self.run(again(&Op::Stat)).await?.cpu_us();
        let open = self.run(again(&Op::Open)).await?.cpu_us();
        let chmod = self.run(again(&Op::Chmod(0o600))).await?.cpu_us();
        let list = (0..some).map(|at| (Op::List, listed[at % BASES].clone())).collect();
        let list = self.run(list).await?.cpu_us();
        let rename = self.run(moves(&files, &bases, "renamed")).await?.cpu_us();
        let unlink = places(&files, &bases, "renamed").map(|path| (Op::Unlink, path));
        let unlink = self.run(unlink.collect()).await?.cpu_us();
        let dirs = below(&bases, &Op::Mkdir, "dir", some);
        let mkdir = self.run(dirs.clone()).await?.cpu_us();
        tokio::time::sleep(SETTLED).await;
        let renamed = self.run(moves(&dirs, &bases, "moved")).await?;
        let coordinator = renamed.cpu.first().copied().unwrap_or_default();
        let coordinator = coordinator.as_secs_f64() * 1e6 / float(renamed.operations.max(1));
        let rmdir = places(&dirs, &bases, "moved").map(|path| (Op::Rmdir, path));
        let rmdir = self.run(rmdir.collect()).await?.cpu_us();
        let rename_dir = renamed.cpu_us();
        let cpu = Cpu { open, stat, create, unlink, rename, chmod, list, mkdir, rmdir, rename_dir };
        Ok((cpu, coordinator))
    }

    /// Returns the cost of a name that moves because its directory splits, and the number of such
    /// names.
    async fn split(&self) -> anyhow::Result<(f64, f64)> {
        let threshold = (self.operations / NAMES_BY_THRESHOLD).max(20);
        let mut cpu = Vec::new();
        let mut moved = 0;
        for (dir, spread) in [("/whole", "none"), ("/divided", "extendible")] {
            self.watcher.mkdir(dir, 0o755).await?;
            self.set(dir, "spread", spread).await?;
            self.set(dir, "split_threshold", &threshold.to_string()).await?;
            let (before, names) = self.used().await?;
            let create = (0..self.operations).map(|file| (Op::Create, format!("{dir}/f{file}")));
            self.run(create.collect()).await?;
            let (after, upto) = self.settled().await?;
            cpu.push(float64(after - before));
            moved = upto - names;
        }
        ensure!(moved > 0, "no name has moved in a directory that splits");
        let more = (cpu[1] - cpu[0]).max(0.0);
        Ok((more / float64(moved), float64(moved) / float(self.operations)))
    }

    async fn set(&self, path: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let name = format!("pando.{key}");
        let set = self.watcher.set_xattr(path, &name, value.as_bytes(), XattrMode::Set);
        set.await.with_context(|| format!("setting {key} of {path}"))
    }

    /// CPU microseconds of all servers, and names that have moved.
    async fn used(&self) -> anyhow::Result<(u64, u64)> {
        let statuses = self.watcher.statuses().await?;
        let counters = statuses.iter().flat_map(|status| &status.counters);
        let names = counters.filter(|(name, _)| name == "handoff_names").map(|(_, of)| of).sum();
        Ok((statuses.iter().map(|status| status.process.cpu_micros).sum(), names))
    }

    /// Returns the same counts once no name moves any more.
    async fn settled(&self) -> anyhow::Result<(u64, u64)> {
        let mut before = self.used().await?;
        for _ in 0..LOOKS_MAX {
            tokio::time::sleep(SETTLED).await;
            let now = self.used().await?;
            if now.1 == before.1 {
                return Ok(now);
            }
            before = now;
        }
        bail!("the servers did not come to rest")
    }
}

/// Renames of what is there, half of them within its directory, and half to the next.
fn moves(work: &[Work], bases: &[String], name: &str) -> Vec<Work> {
    let from = work.iter().map(|(_, path)| path.clone());
    places(work, bases, name).zip(from).map(|(to, from)| (Op::Rename(to), from)).collect()
}

/// Returns the paths after the renames.
fn places(work: &[Work], bases: &[String], name: &str) -> impl Iterator<Item = String> {
    (0..work.len()).map(move |at| {
        let to = &bases[(at + at / bases.len() % 2) % bases.len()];
        format!("{to}/{name}{at}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_scale_is_the_page_of_the_constants_that_are_recorded() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let page = page_of(&docs.join("figures/scale.json")).unwrap();
        let written = fs::read_to_string(docs.join("SCALE.md")).unwrap();
        for (is, wanted) in written.lines().zip(page.lines()) {
            assert_eq!(is, wanted, "run `pando bench scale --page docs/figures/scale.json`");
        }
        assert_eq!(written.trim_end(), page.trim_end());
    }
}
