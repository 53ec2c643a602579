//! A server and a mount of our own, and this program run beside them.
//!
//! All processes are in groups of their own: the signals of a terminal are for us, and we hand them
//! on to the one that is being waited for. When this is dropped, whatever still runs or is mounted
//! is ended.

use std::{
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{runtime::Runtime, sync::oneshot};

use super::super::{
    folder::Folder,
    started::{MOUNTED, SERVING, started},
};
use crate::{connect, signals::Stop};

/// Memory budget of the server, the same on every machine.
pub(super) const MEMORY: &str = "1GiB";

/// The site of a run.
pub(super) struct Site {
    program: PathBuf,
    mounted: bool,
    server: Option<Server>,
    /// Server and mount in one process, while there is one.
    up: Option<Child>,
    signals: Stop,
    runtime: Runtime,
    /// Goes last.
    folder: Folder,
}

struct Server {
    process: Child,
    address: String,
}

impl Site {
    pub(super) fn make(directory: Option<&Path>) -> anyhow::Result<Site> {
        let runtime = connect::runtime()?;
        let signals = runtime.block_on(async { Stop::listen() })?;
        let folder = Folder::make(directory)?;
        for name in ["mount", "local"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(Site { program, mounted: false, server: None, up: None, signals, runtime, folder })
    }

    /// A folder beside the server's data, on the same disk.
    pub(super) fn local(&self) -> String {
        self.path("local")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Runs this program to its end; what it printed.
    pub(super) fn pando(&mut self, args: &[&str]) -> anyhow::Result<String> {
        tracing::info!(command = args.join(" "), "running");
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot start this program")?;
        let mut said = child.stdout.take().expect("it is piped");
        let (give, mut ended) = oneshot::channel();
        let reader = thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let mut text = String::new();
            let read = said.read_to_string(&mut text).map(|_| text);
            // The receiver is gone only when we are.
            let _ = give.send(read);
        });
        reader.context("cannot start a thread")?;
        let mut interrupted = false;
        let text = self.runtime.block_on(async {
            loop {
                tokio::select! {
                    text = &mut ended => return text,
                    () = self.signals.asked() => {
                        interrupted = true;
                        // The child may have ended by itself.
                        let _ = kill_process(Pid::from_child(&child), Signal::INT);
                    }
                }
            }
        });
        let status = child.wait().context("cannot wait for this program")?;
        if interrupted {
            bail!("interrupted");
        }
        ensure!(status.success(), "pando {} failed", args.join(" "));
        Ok(text.context("nothing was read")??)
    }

    /// Formats a data directory and serves it.
    pub(super) fn serve(&mut self) -> anyhow::Result<()> {
        let data = self.path("data");
        self.pando(&["format", "--data", &data])?;
        self.server = Some(self.start("127.0.0.1:0")?);
        Ok(())
    }

    fn start(&self, listen: &str) -> anyhow::Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--data", &self.path("data"), "--listen", listen, "--http", "off"]);
        command.args(["--memory", MEMORY]);
        let process = started(&mut command, SERVING)?;
        let address = std::fs::read_to_string(self.folder.path().join("data/address"))?;
        let address = address.lines().next().context("the server says no address")?.to_owned();
        Ok(Server { process, address })
    }

    /// Kills the server and starts another one on the same data; after how many seconds that
    /// serves.
    pub(super) fn restart(&mut self) -> anyhow::Result<f64> {
        let mut server = self.server.take().context("there is no server")?;
        server.process.kill()?;
        server.process.wait()?;
        let start = bench::monotonic();
        self.server = Some(self.start(&server.address)?);
        Ok(bench::monotonic().saturating_sub(start).as_secs_f64())
    }

    fn address(&self) -> anyhow::Result<String> {
        Ok(self.server.as_ref().context("there is no server")?.address.clone())
    }

    pub(super) fn mount(&mut self, options: &[&str]) -> anyhow::Result<()> {
        let (address, mount, token) =
            (self.address()?, self.path("mount"), self.path("data/admin.token"));
        let log = self.path("mount.log");
        let mut args = vec!["mount", &address, &mount, "--token", &token, "--log", &log];
        args.extend(options);
        // The process of the mount stays behind and would hold a pipe open.
        self.mounted = true;
        self.pando(&args)?;
        Ok(())
    }

    /// Serves and mounts a file system of its own in one process.
    pub(super) fn up(&mut self, options: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["up", "--data", &self.path("up"), "--mount", &self.path("mount")]);
        command.args(["--listen", "127.0.0.1:0", "--http", "off"]).args(options);
        self.mounted = true;
        self.up = Some(started(&mut command, MOUNTED)?);
        Ok(())
    }

    pub(super) fn unmount(&mut self) -> anyhow::Result<()> {
        let mount = self.path("mount");
        self.pando(&["umount", &mount])?;
        self.mounted = false;
        if let Some(mut up) = self.up.take() {
            ensure!(up.wait()?.success(), "the process of `up` did not end well");
        }
        Ok(())
    }

    /// The token for what is mounted.
    fn mount_token(&self) -> String {
        self.path(if self.up.is_some() { "up/admin.token" } else { "data/admin.token" })
    }

    /// Runs `bench WHAT` on the mount.
    pub(super) fn bench_on_mount(&mut self, what: &str, args: &[&str]) -> anyhow::Result<String> {
        let (mount, token) = (self.path("mount"), self.mount_token());
        self.pando(&[&["bench", what, &mount, "--json", "--token", &token], args].concat())
    }

    /// Runs `bench WHAT` on the server.
    pub(super) fn bench_on_server(&mut self, what: &str, args: &[&str]) -> anyhow::Result<String> {
        let (address, token) = (self.address()?, self.path("data/admin.token"));
        self.pando(&[&["bench", what, &address, "--json", "--token", &token], args].concat())
    }

    /// Runs `bench io` on the mount and beside the server's data.
    pub(super) fn io(&mut self, size: &str) -> anyhow::Result<String> {
        let (mount, local) = (self.path("mount"), self.local());
        self.pando(&["bench", "io", &mount, "--json", "--size", size, "--local", &local])
    }

    /// Ends the server as an operator would.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        let mut server = self.server.take().context("there is no server")?;
        kill_process(Pid::from_child(&server.process), Signal::TERM)?;
        ensure!(server.process.wait()?.success(), "the server did not end well");
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.mounted {
            // The failure itself is reported elsewhere; this removes the mount that it leaves.
            let umount = Command::new(&self.program).args(["umount", &self.path("mount")]).status();
            if !umount.is_ok_and(|status| status.success()) {
                tracing::warn!(mount = self.path("mount"), "a mount may be left");
            }
        }
        let server = self.server.take().map(|server| server.process);
        for mut process in server.into_iter().chain(self.up.take()) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
