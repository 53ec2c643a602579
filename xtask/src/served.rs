//! A mount of ours for the length of one suite: `pando up`, from the built binary.
//!
//! The suites call this. Whatever happens to the suite (failure, panic, deadline), the server is stopped
//! and nothing stays mounted. Data and mount lie in a new folder that any user may walk through,
//! because the suites change users.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

use crate::step::{self, now, pause, say};

const MOUNT_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// A running `pando up` and its mount. Stopped when dropped.
struct Served {
    process: Child,
    mountpoint: PathBuf,
    log: PathBuf,
    /// Taken out only when unmounting failed: a folder is never removed through a mount.
    folder: Option<TempDir>,
}

/// Runs a suite in the given directory, or on a new mount when none is given.
pub(crate) fn on_a_mount_or_in(
    root: &Path,
    dir: Option<PathBuf>,
    suite: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match dir {
        Some(dir) => suite(&dir),
        None => on_a_mount(root, suite),
    }
}

/// Runs a suite on a new mount, which is stopped and unmounted before this returns.
pub(crate) fn on_a_mount(
    root: &Path,
    suite: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let served = Served::start(root)?;
    let result = suite(&served.mountpoint);
    if result.is_err() {
        served.show_log();
    }
    result.and(served.stop())
}

impl Served {
    fn start(root: &Path) -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let pando = target.unwrap_or_else(|| root.join("target")).join("debug/pando");
        ensure!(pando.exists(), "build it first: {} is missing", pando.display());

        let folder = tempfile::Builder::new().prefix("pando-posix.").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let mountpoint = folder.path().join("mnt");
        fs::create_dir(&mountpoint)?;
        let log = folder.path().join("log");
        let output = File::create(&log)?;
        let process = Command::new(&pando)
            .arg("up")
            .arg("--data")
            .arg(folder.path().join("data"))
            .arg("--mount")
            .arg(&mountpoint)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", pando.display()))?;
        let mut served = Self { process, mountpoint, log, folder: Some(folder) };
        served.wait_for_mount().inspect_err(|_| served.show_log())?;
        Ok(served)
    }

    fn wait_for_mount(&mut self) -> anyhow::Result<()> {
        let start = now();
        while !is_mounted(&self.mountpoint)? {
            if let Some(status) = self.process.try_wait()? {
                bail!("pando up ended before it mounted: {status}");
            }
            ensure!(start.elapsed() < MOUNT_DEADLINE, "no mount after {MOUNT_DEADLINE:?}");
            pause();
        }
        Ok(())
    }

    /// The normal end: an interrupt, as from a keyboard, after which all is unmounted.
    fn stop(mut self) -> anyhow::Result<()> {
        step::signal(self.process.id(), "INT");
        let ended = step::wait(&mut self.process, STOP_DEADLINE).context("pando up");
        let left = is_mounted(&self.mountpoint)?;
        if ended.is_err() || left {
            self.show_log();
        }
        ended?;
        ensure!(!left, "pando up ended and left its mount behind");
        Ok(())
    }

    fn show_log(&self) {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        say("the end of what pando up wrote:");
        for line in &lines[lines.len().saturating_sub(40)..] {
            say(&format!("    {line}"));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !matches!(self.process.try_wait(), Ok(Some(_))) {
            step::signal(self.process.id(), "INT");
            if let Err(error) = step::wait(&mut self.process, STOP_DEADLINE) {
                say(&format!("pando up: {error:#}"));
            }
        }
        let unmount = || Command::new("umount").arg("--lazy").arg(&self.mountpoint).status();
        let mounted = is_mounted(&self.mountpoint).unwrap_or(true);
        if mounted && !unmount().is_ok_and(|status| status.success()) {
            say(&format!("still mounted: {}", self.mountpoint.display()));
            drop(self.folder.take().map(TempDir::keep));
        }
    }
}

/// Whether a file system of ours is mounted at exactly this path.
fn is_mounted(path: &Path) -> anyhow::Result<bool> {
    let table =
        fs::read_to_string("/proc/self/mountinfo").context("cannot read the mount table")?;
    Ok(holds_mount(&table, path))
}

fn holds_mount(table: &str, path: &Path) -> bool {
    table.lines().any(|line| {
        let Some((mount, source)) = line.split_once(" - ") else { return false };
        let at = mount.split(' ').nth(4).unwrap_or_default();
        Path::new(at) == path && source.starts_with("fuse.pando ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mount_at_this_path_counts() {
        let table = "36 35 0:31 / /tmp/a rw,nosuid - fuse.pando pando rw\n\
                     37 35 0:32 / /tmp/b rw shared:1 - tmpfs tmpfs rw\n";
        assert!(holds_mount(table, Path::new("/tmp/a")));
        assert!(!holds_mount(table, Path::new("/tmp/b")));
        assert!(!holds_mount(table, Path::new("/tmp")));
    }
}
