//! `pando bench list`: one large directory on a mount.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, anyhow, ensure};
use client::Client;
use rustix::fs::{Dir, Mode, OFlags};
use serde::Serialize;

use super::{fill, folder::Folder, interrupt::Interrupt, meter::MountProcess};
use crate::{
    connect::{self, TokenArgs},
    mounts::{self, Mount},
    output,
    signals::Stop,
    system,
};

/// Time a large directory on a mount: make its entries, by the native client where a token for the
/// mount's server is there, list it, look at every entry as `find` does, and remove it as `rm -r`
/// does.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory on a mount.
    directory: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    /// How many entries.
    #[arg(long, default_value = "1000000", value_name = "N")]
    entries: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of the listings. Bytes are of the memory of the mount's process, where it can be seen.
#[derive(Debug, Serialize)]
struct Listed {
    entries: u64,
    made_natively: bool,
    make_seconds: f64,
    list_seconds: f64,
    find_seconds: f64,
    remove_seconds: f64,
    resident_bytes_before: Option<u64>,
    resident_bytes_listed: Option<u64>,
    /// The most since the listing began; where the kernel does not let us begin anew there, since
    /// the mount began.
    resident_bytes_listed_peak: Option<u64>,
    /// The most since the mount began, or since the listing.
    resident_bytes_peak: Option<u64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mount = mounts::holding(&args.directory)?;
    let process = mount.as_ref().and_then(MountProcess::of);
    let memory = || process.as_ref().and_then(|process| system::memory(process.0));
    let resident = || memory().map(|memory| memory.resident);
    let interrupt = Interrupt::watch()?;
    let folder = Folder::make(Some(&args.directory))?;
    let start = bench::monotonic();
    let made_natively = make(args, mount.as_ref(), folder.path(), &interrupt)?;
    let make_seconds = since(start);
    if let Some(process) = &process {
        system::forget_peak(process.0);
    }
    let before = resident();
    let (list_seconds, listed) = timed(|| list(folder.path(), &interrupt))?;
    ensure!(listed == args.entries, "{listed} entries were listed in place of {}", args.entries);
    let after = memory();
    let (find_seconds, found) = timed(|| find(folder.path(), &interrupt))?;
    ensure!(found == args.entries, "{found} entries were found in place of {}", args.entries);
    let path = folder.path().to_owned();
    let (remove_seconds, ()) = timed(|| Ok(fs::remove_dir_all(&path)?))?;
    fs::create_dir(&path).context("cannot make the folder again")?;
    let listed = Listed {
        entries: args.entries,
        made_natively,
        make_seconds,
        list_seconds,
        find_seconds,
        remove_seconds,
        resident_bytes_before: before,
        resident_bytes_listed: after.as_ref().map(|memory| memory.resident),
        resident_bytes_listed_peak: after.as_ref().map(|memory| memory.peak),
        resident_bytes_peak: memory().map(|memory| memory.peak),
    };
    if args.json {
        output::print(&serde_json::to_string(&listed)?)?;
    } else {
        output::print(&listed.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Listed {
    fn to_text(&self) -> String {
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), output::bytes);
        let how = if self.made_natively { "by the native client" } else { "through the mount" };
        output::rows(&[
            ("entries", self.entries.to_string()),
            ("made", format!("{} {how}", seconds(self.make_seconds))),
            ("listed", seconds(self.list_seconds)),
            ("found", seconds(self.find_seconds)),
            ("removed", seconds(self.remove_seconds)),
            ("mount before", bytes(self.resident_bytes_before)),
            ("mount after listing", bytes(self.resident_bytes_listed)),
            ("mount while listing", bytes(self.resident_bytes_listed_peak)),
            ("mount at most", bytes(self.resident_bytes_peak)),
        ])
    }
}

fn since(start: std::time::Duration) -> f64 {
    bench::monotonic().saturating_sub(start).as_secs_f64()
}

fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(f64, T)> {
    let start = bench::monotonic();
    let done = work()?;
    Ok((since(start), done))
}

/// Makes the entries; whether the native client did.
fn make(
    args: &Args,
    mount: Option<&Mount>,
    folder: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<bool> {
    let servers = mount.and_then(Mount::servers);
    let (Some(mount), Some(servers), Ok(token)) = (mount, servers, args.token.read()) else {
        for entry in 0..args.entries {
            interrupt.check()?;
            fs::File::create_new(folder.join(fill::name(entry)))?;
        }
        return Ok(false);
    };
    let below = folder.canonicalize()?;
    let below = below.strip_prefix(&mount.path).context("the mount is not where it says")?;
    let native = Path::new("/").join(below);
    connect::runtime()?.block_on(async {
        let config = connect::config(servers, token, "pando bench list");
        let mut stop = Stop::listen()?;
        let client: Client = connect::connect(config).await?;
        // The path of a part of the tree that is mounted by itself is not known.
        let there = client.stat(&native).await.with_context(|| {
            format!("{} is not {} on the server", folder.display(), native.display())
        });
        let made = match there {
            Ok(_) => tokio::select! {
                made = Box::pin(fill::create(&client, &native, 0..args.entries)) => made,
                () = stop.asked() => Err(anyhow!("interrupted")),
            },
            Err(error) => Err(error),
        };
        client.close().await?;
        made
    })?;
    Ok(true)
}

fn list(path: &Path, interrupt: &Interrupt) -> anyhow::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = Dir::new(rustix::fs::open(path, flags, Mode::empty())?)?;
    let mut entries = 0;
    while let Some(entry) = dir.read() {
        interrupt.check()?;
        let of_the_directory = matches!(entry?.file_name().to_bytes(), b"." | b"..");
        entries += u64::from(!of_the_directory);
    }
    Ok(entries)
}

/// Walks the tree as `find -size +0 -o -print` does: looks at each entry.
fn find(path: &Path, interrupt: &Interrupt) -> anyhow::Result<u64> {
    let mut found = 0;
    for entry in fs::read_dir(path)? {
        interrupt.check()?;
        found += u64::from(entry?.metadata()?.is_file());
    }
    Ok(found)
}
