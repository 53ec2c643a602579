//! A place at which programs are timed: a directory that was named, or a file system that was made
//! for the run and ends with it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bench::{Meter as _, floor::null::NullMount};
use mount::IoUring;
use rustix::{
    fs::lgetxattr,
    process::{Pid, Signal, kill_process},
};
use tokio::runtime::Runtime;

use super::Own;
use crate::{
    commands::bench::{
        meter::Gauge,
        started::{MOUNTED, SERVING, started},
    },
    connect::{self, Credentials},
};

/// Extended attribute in which a mount of pando tells the requests of the kernel.
const REQUESTS: &str = "pando.requests";
/// Bytes of that attribute, at most.
const REQUESTS_BYTES_MAX: usize = 8192;
/// Size of the file that holds the ext4. Only what is written takes memory.
const EXT4_BYTES: u64 = 4 << 30;
/// Directory that is in memory on Linux.
const MEMORY: &str = "/dev/shm";

/// A place.
pub(super) struct Place {
    name: String,
    root: PathBuf,
    gauge: Option<Asked>,
    /// Ends with the place.
    made: Made,
}

/// Requests so far, as far as they are known.
pub(super) struct Requests {
    pub(super) kernel: Option<BTreeMap<String, u64>>,
    pub(super) server: Option<u64>,
}

/// A server that is asked for its count of requests.
struct Asked {
    runtime: Runtime,
    gauge: Gauge,
}

/// File system that was made.
enum Made {
    /// A directory that was there.
    No,
    Null(NullMount),
    Others(Box<Others>),
}

/// Mounts and processes that were made; whatever is left of them ends when this is dropped.
#[derive(Default)]
struct Others {
    /// Mount point and the command that unmounts it.
    mount: Option<(PathBuf, Command)>,
    processes: Vec<Child>,
    /// File to remove at last.
    file: Option<PathBuf>,
}

impl Place {
    /// A directory that is there.
    pub(super) fn given(directory: &Path) -> anyhow::Result<Place> {
        let root = directory
            .canonicalize()
            .with_context(|| format!("cannot use {}", directory.display()))?;
        ensure!(root.is_dir(), "{} is no directory", directory.display());
        let name = directory.display().to_string();
        Ok(Place { name, root, gauge: None, made: Made::No })
    }

    /// Makes a file system in the empty folder `path`.
    pub(super) fn make(
        own: Own,
        path: &Path,
        options: Option<&str>,
        (rtt, inline_max): (Duration, Option<u32>),
    ) -> anyhow::Result<Place> {
        let root = path.join("mount");
        fs::create_dir(&root)?;
        let (made, token) = match own {
            Own::Ext4 => (Made::Others(Box::new(ext4(&root)?)), None),
            Own::Null => (Made::Null(NullMount::with_contents(&root, IoUring::Off)?), None),
            Own::NullIoUring => (Made::Null(NullMount::with_contents(&root, IoUring::On)?), None),
            Own::Up => up(path, &root, options)?,
            Own::Serve => serve(path, &root, options, (Duration::ZERO, inline_max))?,
            Own::ServeFar => serve(path, &root, options, (rtt, inline_max))?,
        };
        let gauge = token.map(|(address, token)| Asked::of(address, &token)).transpose()?;
        Ok(Place { name: own.name().to_owned(), root, gauge, made })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the counts of requests.
    pub(super) fn requests(&mut self) -> Requests {
        let server = self
            .gauge
            .as_mut()
            .and_then(|asked| asked.runtime.block_on(asked.gauge.read()).requests);
        Requests { kernel: kernel_requests(&self.root), server }
    }

    /// Ends what was made; says what does not end.
    pub(super) fn end(self) -> anyhow::Result<()> {
        if let Some(Asked { runtime, gauge }) = self.gauge {
            // The session would end with the server, too.
            let _ = runtime.block_on(gauge.close());
        }
        match self.made {
            Made::No => Ok(()),
            Made::Null(mount) => Ok(mount.unmount()?),
            Made::Others(mut others) => others.end(),
        }
    }
}

impl Asked {
    fn of(address: String, token: &Path) -> anyhow::Result<Asked> {
        let runtime = connect::runtime()?;
        let config = connect::config(vec![address], Credentials::read(token)?, "pando bench apps");
        let gauge = runtime.block_on(async {
            let client = connect::connect(config).await?;
            anyhow::Ok(Gauge::new(Some(client), None).await)
        })?;
        Ok(Asked { runtime, gauge })
    }
}

fn kernel_requests(root: &Path) -> Option<BTreeMap<String, u64>> {
    let mut bytes = vec![0; REQUESTS_BYTES_MAX];
    let len = lgetxattr(root, REQUESTS, &mut bytes[..]).ok()?;
    serde_json::from_slice(&bytes[..len]).ok()
}

/// File system that was made, and for a server its address and token.
type WithServer = (Made, Option<(String, PathBuf)>);

fn ext4(root: &Path) -> anyhow::Result<Others> {
    let memory = Path::new(MEMORY);
    let folder = if memory.is_dir() { memory } else { root };
    let unique = u64::from_le_bytes(crate::system::secret());
    let file = folder.join(format!("pando-bench.{unique:016x}.ext4"));
    let mut others = Others::default();
    others.file = Some(file.clone());
    File::create_new(&file)?.set_len(EXT4_BYTES)?;
    ended_well(Command::new("mkfs.ext4").arg("-q").arg("-F").arg(&file))?;
    ended_well(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(root))?;
    let mut umount = Command::new("umount");
    umount.arg(root);
    others.mount = Some((root.to_owned(), umount));
    Ok(others)
}

fn pando(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(args);
    Ok(command)
}

fn up(path: &Path, root: &Path, options: Option<&str>) -> anyhow::Result<WithServer> {
    let data = path.join("data");
    let mut others = Others::default();
    let mut command = pando(["up", "--listen", "127.0.0.1:0", "--http", "off", "--data"])?;
    command.arg(&data).arg("--mount").arg(root);
    command.args(options.iter().flat_map(|options| ["-o", options]));
    others.mount = Some((root.to_owned(), unmounting(root)?));
    others.processes.push(started(&mut command, MOUNTED)?);
    Ok((Made::Others(Box::new(others)), Some((address(&data)?, data.join("admin.token")))))
}

fn serve(
    path: &Path,
    root: &Path,
    options: Option<&str>,
    (rtt, inline_max): (Duration, Option<u32>),
) -> anyhow::Result<WithServer> {
    let data = path.join("data");
    let mut others = Others::default();
    let mut format = pando(["format", "--data"])?;
    format.arg(&data);
    format.args(inline_max.iter().map(|bytes| format!("--inline-max={bytes}")));
    ended_well(&mut format)?;
    let mut command = pando(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"])?;
    others.processes.push(started(command.arg(&data), SERVING)?);
    let (address, token) = (address(&data)?, data.join("admin.token"));
    let mut mount = pando(["mount", &address])?;
    mount.arg(root).arg("--token").arg(&token).arg("--log").arg(path.join("mount.log"));
    mount.arg(format!("--rtt={}us", rtt.as_micros()));
    mount.args(options.iter().flat_map(|options| ["-o", options]));
    others.mount = Some((root.to_owned(), unmounting(root)?));
    ended_well(&mut mount)?;
    Ok((Made::Others(Box::new(others)), Some((address, token))))
}

fn unmounting(root: &Path) -> anyhow::Result<Command> {
    let mut umount = pando(["umount"])?;
    umount.arg(root);
    Ok(umount)
}

/// Address at which the server of `data` is.
fn address(data: &Path) -> anyhow::Result<String> {
    let address = fs::read_to_string(data.join("address"))?;
    Ok(address.lines().next().context("the server says no address")?.to_owned())
}

/// Runs a command to its end. What it prints is not shown, what it complains of is.
fn ended_well(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} failed: {status}");
    Ok(())
}

impl Others {
    fn end(&mut self) -> anyhow::Result<()> {
        if let Some((_, mut umount)) = self.mount.take() {
            ended_well(&mut umount)?;
        }
        for mut process in self.processes.drain(..) {
            // The process of `up` ends with its mount.
            if process.try_wait()?.is_none() {
                let _ = kill_process(Pid::from_child(&process), Signal::TERM);
            }
            let status = process.wait()?;
            ensure!(status.success(), "a server did not end well: {status}");
        }
        if let Some(file) = self.file.take() {
            fs::remove_file(file)?;
        }
        Ok(())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        if let Some((root, mut umount)) = self.mount.take()
            && !umount.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
        {
            tracing::warn!(mount = %root.display(), "a mount may be left");
        }
        for mut process in self.processes.drain(..) {
            // The process may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Some(file) = self.file.take()
            && let Err(error) = fs::remove_file(&file)
        {
            tracing::warn!(%error, file = %file.display(), "a file is left");
        }
    }
}
