//! `pando bench io`: one large file, written and read from end to end, beside the local disk.
//!
//! Both files are written before either is read, and each is read twice with caches emptied before,
//! once before the other and once after it: so neither finds a disk's own caches warmer than the
//! other does.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::{folder::Folder, interrupt::Interrupt};
use crate::output;

/// Bytes of each read and write.
const PIECE_BYTES: usize = 1 << 20;

/// Time a large file: write it from end to end, fsync included, and read it with cold caches;
/// beside a file on a local disk, read in turn with it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory on a mount.
    directory: PathBuf,
    /// How large the file is: a number with KiB, MiB or GiB.
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = size)]
    size: u64,
    /// A directory of the local disk to compare with: that of the server's data, for a fair
    /// comparison [default: the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1_u64 << 30)];
    let found = units.into_iter().find_map(|(unit, bytes)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(bytes).filter(|size| *size > 0)
    });
    found.ok_or_else(|| format!("{text:?} is not a size such as 256MiB"))
}

/// Speeds of one file, and where it was.
#[derive(Debug, Clone, Copy, Serialize)]
struct Speed {
    write_mb_per_s: f64,
    read_mb_per_s: f64,
}

/// The file system beside the local disk.
#[derive(Debug, Serialize)]
struct Compared {
    bytes: u64,
    target: Speed,
    local: Speed,
    write_ratio: f64,
    read_ratio: f64,
    /// The kernel's caches were emptied before each read; otherwise only those of the file.
    all_caches_dropped: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::watch()?;
    let folders = [Folder::make(args.local.as_deref())?, Folder::make(Some(&args.directory))?];
    let paths = folders.each_ref().map(|folder| folder.path().join("file"));
    let mut written = [Duration::ZERO; 2];
    for (path, took) in paths.iter().zip(&mut written) {
        *took = timed(|| write(path, args.size, &interrupt)).context("cannot write")?;
    }
    let (mut all_caches_dropped, mut read_in) = (true, [Duration::ZERO; 2]);
    for order in [[0, 1], [1, 0]] {
        for at in order {
            all_caches_dropped &= drop_caches(&paths).context("cannot empty caches")?;
            let read = || read(&paths[at], args.size, &interrupt);
            read_in[at] += timed(read).context("cannot read")?;
        }
    }
    let speed = |at: usize| Speed {
        write_mb_per_s: rate(args.size, written[at]),
        read_mb_per_s: rate(2 * args.size, read_in[at]),
    };
    let (local, target) = (speed(0), speed(1));
    let compared = Compared {
        bytes: args.size,
        target,
        local,
        write_ratio: target.write_mb_per_s / local.write_mb_per_s,
        read_ratio: target.read_mb_per_s / local.read_mb_per_s,
        all_caches_dropped,
    };
    if args.json {
        output::print(&serde_json::to_string(&compared)?)?;
    } else {
        output::print(&compared.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Compared {
    fn to_text(&self) -> String {
        let row = |what: &str, target: f64, local: f64, ratio: f64| {
            format!("{what:12}{target:>12.0}{local:>12.0}{ratio:>9.2}\n")
        };
        let (target, local) = (&self.target, &self.local);
        let mut text = format!("{:12}{:>12}{:>12}{:>9}\n", "", "MB/s", "local", "ratio");
        text += &row("write+fsync", target.write_mb_per_s, local.write_mb_per_s, self.write_ratio);
        text += &row("cold read", target.read_mb_per_s, local.read_mb_per_s, self.read_ratio);
        if !self.all_caches_dropped {
            text += "not root: only the file's own cache was emptied, not that of the server\n";
        }
        text
    }
}

/// Returns the duration of some work.
fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let start = bench::monotonic();
    work()?;
    Ok(bench::monotonic().saturating_sub(start))
}

/// Megabytes (of a million bytes) in a second.
#[expect(clippy::cast_precision_loss, reason = "a rate has no 53 significant bits")]
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

/// The bytes of a piece: no two of them repeat within it, so nothing compresses them away.
fn piece() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(PIECE_BYTES);
    while bytes.len() < PIECE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

fn write(path: &Path, size: u64, interrupt: &Interrupt) -> anyhow::Result<()> {
    let piece = piece();
    let mut file = File::create_new(path)?;
    let mut left = size;
    while left > 0 {
        interrupt.check()?;
        let now = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        file.write_all(&piece[..now])?;
        left -= u64::try_from(now)?;
    }
    file.sync_all()?;
    Ok(())
}

fn read(path: &Path, size: u64, interrupt: &Interrupt) -> anyhow::Result<()> {
    let expected = piece();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut total = 0;
    loop {
        interrupt.check()?;
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        // A few bytes tell contents from holes, and cost nothing.
        let at = usize::try_from(total % u64::try_from(PIECE_BYTES)?)?;
        if buffer[0] != expected[at] {
            bail!("the file reads other than it was written at byte {total}");
        }
        total += u64::try_from(count)?;
    }
    if total != size {
        bail!("the file has {total} bytes in place of {size}");
    }
    Ok(())
}

/// Empties all caches of the kernel, or, without the right to do so, those of the files; whether it
/// was all.
fn drop_caches(paths: &[PathBuf]) -> anyhow::Result<bool> {
    rustix::fs::sync();
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok(true);
    }
    for path in paths {
        fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        for wrong in ["1", "0GiB", "GiB", "-1KiB", "99999999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
