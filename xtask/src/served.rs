//! A mount of ours for the length of a suite, in one of the configurations, from the built binary.
//!
//! The suites call this. Whatever happens to the suite (failure, panic, deadline), all processes
//! are stopped and nothing stays mounted. Data and mount lie in a new folder that any user may walk
//! through, because the suites change users.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use tempfile::TempDir;

use crate::{
    matrix::{Configuration, USUAL},
    step::{self, now, pause, say},
};

const MOUNT_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// The servers of a cluster.
const SERVERS: usize = 4;
const BETWEEN_KILLS: Duration = Duration::from_secs(2);
/// Further runs of a suite, at most, until each server was killed.
const AGAIN_MAX: usize = 20;
/// The S3 store among the processes; it knows no end.
const STORE: &str = "the S3 store";

/// A running file system and its mount. Stopped when dropped.
struct Served {
    /// In the order of their start, each with what it is; they end in the other order.
    processes: Vec<(&'static str, Child)>,
    mountpoint: PathBuf,
    log: PathBuf,
    /// Taken out only when unmounting failed: a folder is never removed through a mount.
    folder: Option<TempDir>,
}

/// Runs a suite in the given directory, or on a new mount as a new user has it when none is given.
pub(crate) fn on_a_mount_or_in(
    root: &Path,
    dir: Option<PathBuf>,
    suite: impl Fn(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match dir {
        Some(dir) => suite(&dir),
        None => on_a_mount(root, &USUAL, suite),
    }
}

/// Runs a suite on a new mount, which is stopped and unmounted before this returns. Where servers
/// are killed, the suite runs again until each of them was: on a fast machine it ends before.
pub(crate) fn on_a_mount(
    root: &Path,
    configuration: &Configuration,
    suite: impl Fn(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let served = Served::start(root, configuration)?;
    let killer = configuration.killed.then(|| Killer::start(&served)).transpose()?;
    let mut result = suite(&served.mountpoint);
    for _ in 0..AGAIN_MAX {
        if result.is_err() || killer.as_ref().is_none_or(Killer::has_killed_all) {
            break;
        }
        result = suite(&served.mountpoint);
    }
    let killed = killer.map_or(Ok(()), Killer::end);
    if result.is_err() {
        served.show_log();
    }
    result.and(killed).and(served.stop())
}

/// A program of this workspace that was built.
fn built(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let program = target.unwrap_or_else(|| root.join("target")).join("debug").join(name);
    ensure!(program.exists(), "build it first: {} is missing", program.display());
    Ok(program)
}

impl Served {
    fn start(root: &Path, configuration: &Configuration) -> anyhow::Result<Self> {
        let pando = built(root, "pando")?;
        let folder = tempfile::Builder::new().prefix("pando-posix.").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let (data, mountpoint) = (folder.path().join("data"), folder.path().join("mnt"));
        fs::create_dir(&mountpoint)?;
        let log = folder.path().join("log");
        File::create(&log)?;
        let s3 = configuration.s3.then(|| folder.path().join("s3"));
        let mut served = Self { processes: Vec::new(), mountpoint, log, folder: Some(folder) };

        if !configuration.killed {
            served.format(&pando, &data, configuration, root, s3)?;
        }

        let started = if configuration.killed {
            served.start_cluster(&pando, &data, configuration)
        } else if configuration.apart {
            served.start_apart(&pando, &data, configuration)
        } else {
            let mut up = Command::new(&pando);
            up.args(["up", "--listen", "127.0.0.1:0", "--http", "off", "--data"]).arg(&data);
            up.arg("--mount").arg(&served.mountpoint).args(configuration.serve);
            served.spawn("pando up", &mut up).map(|_| ())
        };
        let mounted = started
            .and_then(|()| served.wait_until("no mount", |served| is_mounted(&served.mountpoint)));
        mounted.inspect_err(|_| served.show_log())?;
        Ok(served)
    }

    fn format(
        &mut self,
        pando: &Path,
        data: &Path,
        configuration: &Configuration,
        root: &Path,
        s3: Option<PathBuf>,
    ) -> anyhow::Result<()> {
        let mut format = Command::new(pando);
        format.args(["format", "--data"]).arg(data).args(configuration.format);
        if let Some(store) = s3 {
            let address = self.start_store(root, &store)?;
            format
                .arg("--blocks")
                .arg(format!("s3://bucket/suite?endpoint={address}&allow_http=true&region=here"));
        }
        let formatted = keys(&mut format).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&formatted.stderr);
        ensure!(formatted.status.success(), "pando format: {said}");
        Ok(())
    }

    /// A cluster that starts again what is killed, and its mount.
    fn start_cluster(
        &mut self,
        pando: &Path,
        data: &Path,
        configuration: &Configuration,
    ) -> anyhow::Result<()> {
        let mut dev = Command::new(pando);
        dev.args(["dev", "--servers", &SERVERS.to_string(), "--cores", "3", "--restart"]);
        dev.args(["--listen", "127.0.0.1:0", "--dir"]);
        self.spawn("pando dev", dev.arg(data))?;
        let ready = format!("serving {SERVERS} servers at ");
        let served = |log: &str| {
            let line = log.lines().find_map(|line| line.strip_prefix(&ready));
            line.and_then(|line| line.split(' ').next()).map(str::to_owned)
        };
        self.wait_until(
            "no cluster",
            |this| Ok(served(&fs::read_to_string(&this.log)?).is_some()),
        )?;
        let addresses = served(&fs::read_to_string(&self.log)?).context("it was there")?;
        self.mount(pando, (&data.join("admin.token"), &addresses), configuration)
    }

    fn mount(
        &mut self,
        pando: &Path,
        (token, addresses): (&Path, &str),
        configuration: &Configuration,
    ) -> anyhow::Result<()> {
        let mut mount = Command::new(pando);
        mount.args(["mount", "--foreground", "--token"]).arg(token);
        mount.args(["-o", configuration.mount, addresses]).arg(&self.mountpoint);
        self.spawn("pando mount", &mut mount)
    }

    /// The stand-in of an S3 store; its address.
    fn start_store(&mut self, root: &Path, folder: &Path) -> anyhow::Result<String> {
        let program = built(root, "examples/s3_stand_in")?;
        let mut store = Command::new(program);
        store.arg(folder).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut store = store.spawn().context("cannot start the S3 store")?;
        let output = store.stdout.take().context("it is piped")?;
        self.processes.push((STORE, store));
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the S3 store ended");
        Ok(line.trim().to_owned())
    }

    fn start_apart(
        &mut self,
        pando: &Path,
        data: &Path,
        configuration: &Configuration,
    ) -> anyhow::Result<()> {
        let mut serve = Command::new(pando);
        serve.args(["serve", "--listen", "127.0.0.1:0", "--http", "off", "--data"]).arg(data);
        self.spawn("pando serve", serve.args(configuration.serve))?;
        let file = data.join("address");
        self.wait_until("no address", |_| Ok(file.exists()))?;
        let addresses = fs::read_to_string(&file)?;
        let address = addresses.lines().next().context("the address file is empty")?;
        self.mount(pando, (&data.join("admin.token"), address), configuration)
    }

    fn spawn(&mut self, name: &'static str, command: &mut Command) -> anyhow::Result<()> {
        let output = File::options().append(true).open(&self.log)?;
        let process = keys(command)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.processes.push((name, process));
        Ok(())
    }

    fn wait_until(
        &mut self,
        otherwise: &str,
        is_so: impl Fn(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let start = now();
        while !is_so(self)? {
            for (name, process) in &mut self.processes {
                if let Some(status) = process.try_wait()? {
                    bail!("{name} ended before it was ready: {status}");
                }
            }
            ensure!(start.elapsed() < MOUNT_DEADLINE, "{otherwise} after {MOUNT_DEADLINE:?}");
            pause();
        }
        Ok(())
    }

    /// The normal end: an interrupt, as from a keyboard, after which all is unmounted.
    fn stop(mut self) -> anyhow::Result<()> {
        let ended = self.end_all();
        let left = is_mounted(&self.mountpoint)?;
        if ended.is_err() || left {
            self.show_log();
        }
        ended?;
        ensure!(!left, "the mount is left behind");
        no_panics(&self.log)?;
        // The servers of a cluster have logs of their own.
        for entry in fs::read_dir(self.log.with_file_name("data"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                no_panics(&path)?;
            }
        }
        Ok(())
    }

    /// Ends what runs, the newest first.
    fn end_all(&mut self) -> anyhow::Result<()> {
        let mut result = Ok(());
        while let Some((name, mut process)) = self.processes.pop() {
            if name == STORE {
                process.kill()?;
                process.wait()?;
                continue;
            }
            step::signal(process.id(), "INT");
            result = result.and(step::wait(&mut process, STOP_DEADLINE).context(name));
        }
        result
    }

    fn show_log(&self) {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        say("the end of what pando wrote:");
        for line in &lines[lines.len().saturating_sub(40)..] {
            say(&format!("    {line}"));
        }
    }
}

/// Looks for panics in what processes have written.
fn no_panics(log: &Path) -> anyhow::Result<()> {
    let said = fs::read(log).with_context(|| log.display().to_string())?;
    let said = String::from_utf8_lossy(&said);
    let panic = said.lines().find(|line| line.contains("panicked"));
    ensure!(panic.is_none(), "{}: {}", log.display(), panic.unwrap_or_default());
    Ok(())
}

/// Kills the servers of a cluster, one every few seconds, for as long as a suite takes.
struct Killer {
    over: Sender<()>,
    /// Number of servers that were killed at least once.
    killed: Arc<AtomicUsize>,
    /// Number of kills of each server, by its number.
    thread: thread::JoinHandle<BTreeMap<usize, u64>>,
}

impl Killer {
    fn start(served: &Served) -> anyhow::Result<Killer> {
        let dev = served.processes.first().map(|(_, dev)| dev.id()).unwrap_or_default();
        let (over, ended) = mpsc::channel();
        let killed = Arc::new(AtomicUsize::new(0));
        let so_far = Arc::clone(&killed);
        let thread = thread::Builder::new().spawn(move || {
            let mut kills = BTreeMap::new();
            // One after the other, the coordinator too.
            for server in (0..SERVERS).cycle() {
                if ended.recv_timeout(BETWEEN_KILLS) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                // One that is about to be started again is killed the next time.
                if let Some(pid) = server_of(dev, server) {
                    step::signal(pid, "KILL");
                    *kills.entry(server).or_default() += 1;
                    so_far.store(kills.len(), Ordering::Relaxed);
                }
            }
            kills
        });
        Ok(Killer { over, killed, thread: thread? })
    }

    fn has_killed_all(&self) -> bool {
        self.killed.load(Ordering::Relaxed) == SERVERS
    }

    fn end(self) -> anyhow::Result<()> {
        drop(self.over);
        let kills =
            self.thread.join().map_err(|_| anyhow!("the thread that kills servers has failed"))?;
        let sum: u64 = kills.values().sum();
        say(&format!("{sum} times a server was killed and started again meanwhile: {kills:?}"));
        ensure!(kills.len() == SERVERS, "some server was never killed: {kills:?}");
        Ok(())
    }
}

/// The process that `pando dev` has started for a server, by the data directory among its
/// arguments.
fn server_of(dev: u32, server: usize) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{dev}/task/{dev}/children"));
    let children = children.unwrap_or_default();
    let mut ids = children.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
    let data = format!("/server-{server}");
    ids.find(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word.ends_with(data.as_bytes()))
    })
}

/// The keys of the S3 store, where they are asked for.
fn keys(command: &mut Command) -> &mut Command {
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret")
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.end_all() {
            say(&format!("{error:#}"));
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
