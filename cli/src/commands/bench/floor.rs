//! `pando bench floor`: what nothing could beat on this machine.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use bench::{
    Measured, Phase, Plan, Row,
    floor::{
        FloorRow,
        echo::{self, Echo},
        engine,
        null::NullMount,
    },
};
use store::{RocksConfig, RocksEngine};

use super::{folder::Folder, interrupt::Interrupt, md};
use crate::{connect::TokenArgs, output};

/// Processes that use the null file system, as `bench md` has ranks.
const RANKS: usize = 4;

/// Time what no file system could be faster than here: an echo of frames of the size of a create,
/// the bare work of the engine for a create and a stat, and a FUSE file system that does nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Requests of each echo; with one in flight, a tenth of them.
    #[arg(long, default_value = "400000", value_name = "N")]
    requests: NonZeroUsize,
    /// Files of the engine.
    #[arg(long, default_value = "500000", value_name = "N")]
    records: NonZeroUsize,
    /// Files of each of the four processes on the null file system.
    #[arg(long, default_value = "10000", value_name = "N")]
    files: NonZeroUsize,
    /// Threads that serve the null file system.
    #[arg(long, default_value = "1", value_name = "N")]
    fuse_threads: NonZeroUsize,
    /// Take the requests of the null file system over io_uring; root turns that on.
    #[arg(long)]
    io_uring: bool,
    /// How often to measure each; the medians are printed.
    #[arg(long, default_value = "3", value_name = "N")]
    iterations: NonZeroUsize,
    /// Leave out the null file system: it needs /dev/fuse.
    #[arg(long)]
    no_fuse: bool,
    /// Where to make the folder for the engine and the mount [default: the folder for temporary
    /// files].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print a JSON object for each floor and iteration, a line each.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::watch()?;
    let folder = Folder::make(args.directory.as_deref())?;
    let mut rows = Vec::new();
    for _ in 0..args.iterations.get() {
        rows.extend(echoes(args.requests.get(), &interrupt)?);
        rows.extend(engine(&folder, args.records)?);
        interrupt.check()?;
    }
    if !args.no_fuse {
        rows.extend(null(&folder, args)?);
    }
    if args.json {
        for row in &rows {
            output::print(&serde_json::to_string(row)?)?;
        }
    } else {
        output::print(&table(&bench::report::medians(&rows)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn echoes(requests: usize, interrupt: &Interrupt) -> anyhow::Result<Vec<FloorRow>> {
    let shapes = [(1, 1), (1, 16), (1, 128), (16, 16), (16, 128)];
    let run = |(connections, in_flight): (usize, usize)| {
        let requests = if in_flight == 1 { requests.div_ceil(10) } else { requests };
        interrupt.check()?;
        echo::run(&Echo { connections, in_flight, requests }).context("cannot echo")
    };
    shapes.into_iter().map(run).collect()
}

fn engine(folder: &Folder, records: NonZeroUsize) -> anyhow::Result<Vec<FloorRow>> {
    let path = folder.path().join("engine");
    let engine = RocksEngine::open(&path, &RocksConfig::default())?;
    let records = u64::try_from(records.get())?;
    let rows = engine::run(&engine, records)?;
    drop(engine);
    std::fs::remove_dir_all(&path).context("cannot remove the engine")?;
    Ok(rows)
}

fn null(folder: &Folder, args: &Args) -> anyhow::Result<Vec<FloorRow>> {
    let io_uring = if args.io_uring { mount::IoUring::On } else { mount::IoUring::Off };
    let path = folder.path().join("null");
    std::fs::create_dir(&path).context("cannot make a mount point")?;
    let mount = NullMount::mount(&path, args.fuse_threads.get(), io_uring)?;
    let plan = Plan {
        ranks: RANKS,
        files: args.files.get(),
        shared: false,
        depth: 0,
        phases: vec![Phase::FileCreate, Phase::FileStat, Phase::FileRemove],
        in_flight: 1,
        iterations: args.iterations.get(),
        folder: "pando-bench".to_owned(),
    };
    let measured = md::on_directory(&path, &TokenArgs::default(), plan);
    let unmounted = mount.unmount();
    let measured = measured?;
    unmounted?;
    Ok(measured.iter().map(null_row).collect())
}

fn null_row(measured: &Measured) -> FloorRow {
    let row = Row::from(measured);
    FloorRow {
        floor: format!("null_{}", row.phase),
        ops: row.ops,
        ops_per_s: row.ops_per_s,
        p50_us: Some(row.p50_us),
        client_cpu_us_per_op: Some(row.client_cpu_us_per_op),
        server_cpu_us_per_op: None,
    }
}

fn table(rows: &[FloorRow]) -> String {
    let mut text = format!(
        "{:20}{:>12}{:>10}{:>11}{:>11}\n",
        "floor", "ops/s", "p50 µs", "client µs", "server µs"
    );
    let known =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    for row in rows {
        text += &format!(
            "{:20}{:>12.0}{:>10}{:>11}{:>11}\n",
            row.floor,
            row.ops_per_s,
            known(row.p50_us),
            known(row.client_cpu_us_per_op),
            known(row.server_cpu_us_per_op)
        );
    }
    text + "client and server: CPU time for an operation; that of the engine is the server's\n"
}
