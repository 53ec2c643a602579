//! Everything that the targets speak of, measured in one run on this machine.
//!
//! Each measurement is this program run as a user would run it; the command stands in the table.
//! The server and the mounts are our own, in a folder of their own; all of it ends with the run,
//! however it ends.

mod site;
mod targets;

use std::{num::NonZeroUsize, path::Path};

use bench::report::{Line, RunRow};
use serde_json::Value;

use site::Site;

/// Amount of work in a run of the suite.
pub(crate) struct Scale {
    iterations: u64,
    /// Requests of an echo, records of the engine.
    floor: u64,
    /// Files of a native rank with many under way, and with one.
    native: u64,
    native_alone: u64,
    /// Files of each rank on a mount.
    mounted: u64,
    io: &'static str,
    /// Entries of the large directory.
    entries: u64,
    /// Files for memory, disk and restart.
    fill: u64,
}

impl Scale {
    /// To see that it works.
    pub(crate) const TINY: Scale = Scale {
        iterations: 1,
        floor: 2000,
        native: 200,
        native_alone: 20,
        mounted: 20,
        io: "1MiB",
        entries: 100,
        fill: 200,
    };
    /// For every day.
    pub(crate) const SHORT: Scale = Scale {
        iterations: 3,
        floor: 300_000,
        native: 50_000,
        native_alone: 5000,
        mounted: 2000,
        io: "256MiB",
        entries: 100_000,
        fill: 300_000,
    };
    /// Scale that the targets name.
    pub(crate) const FULL: Scale = Scale {
        iterations: 5,
        floor: 1_000_000,
        native: 200_000,
        native_alone: 20_000,
        mounted: 10_000,
        io: "1GiB",
        entries: 1_000_000,
        fill: 10_000_000,
    };
}

/// The names of the runs.
const NATIVE_128: &str = "native, 128 in flight";
const NATIVE_16: &str = "native, 128 in flight over 16 connections";
const NATIVE_1: &str = "native, 1 in flight";
const MOUNT: &str = "mount";
const MOUNT_OFF: &str = "mount, caches off";
const UP_OFF: &str = "mount of up, caches off";

/// Mount options under which the kernel believes nothing.
const CACHES_OFF: &[&str] = &["-o", "attr_timeout=0,entry_timeout=0"];

/// Measures; all results, and at their end the targets.
pub(crate) fn run(
    scale: &Scale,
    directory: Option<&Path>,
    fuse_threads: NonZeroUsize,
) -> anyhow::Result<Vec<Line>> {
    let mut site = Site::make(directory)?;
    let mut lines = floors(&mut site, scale, fuse_threads)?;
    site.serve()?;
    for (name, native) in natives(scale) {
        lines.extend(md(&mut site, scale, name, On::Server, &native)?);
    }
    let ranks = ["--ranks", "4", "--files", &scale.mounted.to_string()].map(str::to_owned);
    for (name, options) in [(MOUNT, &[][..]), (MOUNT_OFF, CACHES_OFF)] {
        site.mount(options)?;
        lines.extend(md(&mut site, scale, name, On::Mount, &ranks)?);
        site.unmount()?;
    }
    site.up(CACHES_OFF)?;
    lines.extend(md(&mut site, scale, UP_OFF, On::Mount, &ranks)?);
    site.unmount()?;
    site.mount(&[])?;
    let io = site.io(scale.io)?;
    let list = site.bench_on_mount("list", &["--entries", &scale.entries.to_string()])?;
    site.unmount()?;
    let fill = site.bench_on_server("fill", &["--files", &scale.fill.to_string()])?;
    let start = site.restart()?;
    let more = Others { io: object(&io)?, list: object(&list)?, fill: object(&fill)?, start };
    site.end()?;
    lines.extend(targets::all(scale, &lines, &more).into_iter().map(Line::Target));
    Ok(lines)
}

/// Measurements beside phases and floors.
struct Others {
    io: Value,
    list: Value,
    fill: Value,
    /// Seconds from the start of a killed server's successor until it serves.
    start: f64,
}

fn object(said: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(said)?)
}

fn floors(site: &mut Site, scale: &Scale, fuse_threads: NonZeroUsize) -> anyhow::Result<Vec<Line>> {
    let (requests, files) = (scale.floor.to_string(), scale.mounted.to_string());
    let (iterations, threads) = (scale.iterations.to_string(), fuse_threads.to_string());
    let folder = site.local();
    let said = site.pando(&[
        "bench",
        "floor",
        "--json",
        "--requests",
        &requests,
        "--records",
        &requests,
        "--files",
        &files,
        "--iterations",
        &iterations,
        "--fuse-threads",
        &threads,
        "--directory",
        &folder,
    ])?;
    Ok(bench::report::parse(&said)?)
}

/// The shapes of native clients.
fn natives(scale: &Scale) -> [(&'static str, [String; 8]); 3] {
    let shape = |files: u64, in_flight: &str, connections: &str| {
        let files = files.to_string();
        ["--ranks", "1", "--files", &files, "--in-flight", in_flight, "--connections", connections]
            .map(str::to_owned)
    };
    [
        (NATIVE_128, shape(scale.native, "128", "1")),
        (NATIVE_16, shape(scale.native, "128", "16")),
        (NATIVE_1, shape(scale.native_alone, "1", "1")),
    ]
}

/// Object that `bench md` runs on.
#[derive(Clone, Copy)]
enum On {
    Server,
    Mount,
}

/// Runs `bench md`.
fn md(
    site: &mut Site,
    scale: &Scale,
    name: &str,
    on: On,
    shape: &[String],
) -> anyhow::Result<Vec<Line>> {
    let iterations = scale.iterations.to_string();
    let phases = match on {
        On::Server => "file_create,file_stat,file_remove",
        On::Mount => ALL_PHASES,
    };
    let mut args = vec!["--iterations", &iterations, "--phases", phases];
    args.extend(shape.iter().map(String::as_str));
    let said = match on {
        On::Server => site.bench_on_server("md", &args)?,
        On::Mount => site.bench_on_mount("md", &args)?,
    };
    let named = bench::report::parse(&said)?.into_iter().map(|line| match line {
        Line::Run(run) => Line::Run(RunRow { run: name.to_owned(), ..run }),
        Line::Target(_) | Line::Floor(_) => line,
    });
    Ok(named.collect())
}

const ALL_PHASES: &str = "dir_create,dir_stat,dir_rename,dir_remove,file_create,file_stat,file_open,\
                          file_rename,readdir,file_remove";
