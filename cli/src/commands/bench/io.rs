//! `pando bench io`: one large file, written and read from end to end, beside the local disk.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::{folder::Folder, interrupt::Interrupt};
use crate::output;

/// Bytes of each read and write.
const PIECE_BYTES: usize = 1 << 20;

/// Time a large file: write it from end to end, fsync included, and read it with cold caches; then the same on a
/// local disk.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory on a mount.
    directory: PathBuf,
    /// How large the file is: a number with KiB, MiB or GiB.
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = size)]
    size: u64,
    /// A directory of the local disk to compare with: that of the server's data, for a fair comparison [default:
    /// the folder for temporary files].
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

/// What one file took, and where.
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
    let (local, all_local) = measure(args.local.as_deref(), args.size, &interrupt)?;
    let (target, all_target) = measure(Some(&args.directory), args.size, &interrupt)?;
    let compared = Compared {
        bytes: args.size,
        target,
        local,
        write_ratio: target.write_mb_per_s / local.write_mb_per_s,
        read_ratio: target.read_mb_per_s / local.read_mb_per_s,
        all_caches_dropped: all_local && all_target,
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

/// Writes and reads a file in a new folder of `parent`; and whether all caches were emptied in between.
fn measure(
    parent: Option<&Path>,
    size: u64,
    interrupt: &Interrupt,
) -> anyhow::Result<(Speed, bool)> {
    let folder = Folder::make(parent)?;
    let path = folder.path().join("file");
    let write = timed(size, || write(&path, size, interrupt)).context("cannot write")?;
    let dropped = drop_caches(&path).context("cannot empty caches")?;
    let read = timed(size, || read(&path, size, interrupt)).context("cannot read")?;
    Ok((Speed { write_mb_per_s: write, read_mb_per_s: read }, dropped))
}

/// Megabytes (of a million bytes) in a second.
#[expect(clippy::cast_precision_loss, reason = "a rate has no 53 significant bits")]
fn timed(size: u64, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let start = bench::monotonic();
    work()?;
    let seconds = bench::monotonic().saturating_sub(start).as_secs_f64().max(1e-9);
    Ok(size as f64 / 1e6 / seconds)
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

/// Empties all caches of the kernel, or, without the right to do so, those of the file.
fn drop_caches(path: &Path) -> anyhow::Result<bool> {
    rustix::fs::sync();
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok(true);
    }
    fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
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
