//! A cluster of processes for one experiment, as `pando dev` runs it; with one server, as `pando
//! serve` does.
//!
//! Always true: when this is dropped its processes have ended and its folder is gone.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use base::limits::INLINE_BYTES_MAX;
use bench::Delayed;
use client::{Client, Config, Tcp};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use super::super::folder::Folder;
use crate::connect::{self, Credentials};

/// Time that processes have to end when they are asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// Properties of a cluster.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    pub(super) servers: u16,
    /// Added to the round trips between servers, and of clients unless they say otherwise.
    pub(super) rtt: Duration,
    /// Value of `pando format --inline-max`.
    pub(super) inline_max: u32,
    /// More options of `pando serve`, separated by spaces.
    pub(super) serve: &'a str,
    /// Value of `pando format --locality`.
    pub(super) locality: &'a str,
}

impl<'a> Shape<'a> {
    /// Returns the properties of a usual cluster.
    pub(super) fn of(servers: u16) -> Shape<'a> {
        let (rtt, inline_max) = (Duration::ZERO, INLINE_BYTES_MAX);
        Shape { servers, rtt, inline_max, serve: "", locality: "directory" }
    }
}

pub(super) struct Site {
    process: Child,
    addresses: Vec<String>,
    credentials: Credentials,
    rtt: Duration,
    /// Arguments that the process was started with.
    arguments: Vec<OsString>,
    _folder: Folder,
}

impl Site {
    /// Starts it; its data is in a folder of its own in `directory`.
    pub(super) fn start(directory: Option<&Path>, shape: Shape<'_>) -> anyhow::Result<Site> {
        let folder = Folder::make(directory)?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let first = folder.path().join("server-0");
        let mut format = Command::new(&program);
        format.arg("format").arg("--data").arg(&first).args(["--name", "figures"]);
        format.args(["--servers", &shape.servers.to_string()]);
        format.args(["--inline-max", &shape.inline_max.to_string()]);
        format.args(["--locality", shape.locality]);
        let formatted = format.stdin(Stdio::null()).stdout(Stdio::null()).status();
        ensure!(formatted.context("cannot start this program")?.success(), "cannot format");
        let credentials = Credentials::read(&first.join("admin.token"))?;
        let mut arguments: Vec<OsString> = Vec::new();
        let rtt = humantime::format_duration(shape.rtt).to_string().replace(' ', "");
        if shape.servers == 1 {
            arguments.extend(["serve".into(), "--data".into(), first.into()]);
            arguments.extend(["--cores", "1", "--http", "off"].map(OsString::from));
            arguments.extend(shape.serve.split_whitespace().map(OsString::from));
        } else {
            arguments.extend(["dev".into(), "--dir".into(), folder.path().into()]);
            arguments.extend(["--servers".into(), shape.servers.to_string().into()]);
            arguments.push(format!("--serve-options=--rtt {rtt} {}", shape.serve).into());
        }
        arguments.extend(["--listen", "127.0.0.1:0"].map(OsString::from));
        let (process, said) = spawn(&program, &arguments)?;
        let (addresses, rtt) = (Vec::new(), shape.rtt);
        let mut site = Site { process, addresses, credentials, rtt, arguments, _folder: folder };
        site.addresses = said_addresses(said)?;
        Ok(site)
    }

    /// Kills the servers and starts them again; how long it takes until they serve.
    pub(super) fn restart(&mut self) -> anyhow::Result<Duration> {
        self.process.kill()?;
        self.process.wait()?;
        let start = bench::monotonic();
        let program = std::env::current_exe().context("cannot find this program")?;
        let (process, said) = spawn(&program, &self.arguments)?;
        self.process = process;
        self.addresses = said_addresses(said)?;
        Ok(bench::monotonic().saturating_sub(start))
    }

    /// A session, with what `change` makes of how it is opened; every server knows it.
    pub(super) async fn client(&self, change: impl FnOnce(&mut Config)) -> anyhow::Result<Client> {
        self.client_over(self.rtt, change).await
    }

    /// Returns a client over a network of another round trip.
    pub(super) async fn client_over(
        &self,
        rtt: Duration,
        change: impl FnOnce(&mut Config),
    ) -> anyhow::Result<Client> {
        let credentials = self.credentials.clone();
        let mut config =
            connect::config(self.addresses.clone(), credentials, "pando bench figures");
        config.dial = Arc::new(Delayed::new(Arc::new(Tcp::default()), rtt));
        change(&mut config);
        let client = connect::connect(config).await?;
        client.statfs().await.context("a server does not answer")?;
        Ok(client)
    }

    /// Ends the servers as an operator would.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if self.process.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        }
        let process = pidfd_open(Pid::from_child(&self.process), PidfdFlags::empty())?;
        let mut ends = [PollFd::new(&process, PollFlags::IN)];
        let timeout = Timespec::try_from(STOP_TIMEOUT).context("a time too long")?;
        if poll(&mut ends, Some(&timeout))? > 0 {
            let status = self.process.wait()?;
            ensure!(status.success(), "the servers did not end well: {status}");
            return Ok(());
        }
        // The servers end with the process that started them.
        self.process.kill()?;
        self.process.wait()?;
        bail!("the servers had not ended after {} s and were killed", STOP_TIMEOUT.as_secs())
    }
}

fn spawn(
    program: &Path,
    arguments: &[OsString],
) -> anyhow::Result<(Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(program);
    // In a group of its own: the signals of a terminal are for us.
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut process = command.spawn().context("cannot start servers")?;
    let said = BufReader::new(process.stdout.take().expect("it is piped"));
    Ok((process, said))
}

/// Waits until the servers work; where they are. What they say later is read as well, or they would
/// wait for a reader.
fn said_addresses(said: impl BufRead + Send + 'static) -> anyhow::Result<Vec<String>> {
    let mut lines = said.lines();
    let serving = loop {
        match lines.next() {
            Some(line) => {
                let line = line?;
                if line.starts_with("serving ") {
                    break line;
                }
            }
            None => bail!("the servers ended before they were ready"),
        }
    };
    // The thread ends with the servers.
    let reader = std::thread::Builder::new().name("reader".to_owned());
    let reader = reader.spawn(move || lines.map_while(Result::ok).for_each(drop));
    reader.context("cannot start a thread")?;
    // `serving WHAT at HOST:PORT[,HOST:PORT...][ with token FILE][, status page ...]`
    let (_, rest) = serving.rsplit_once(" at ").context("the servers say no address")?;
    let addresses = rest.split_whitespace().next().unwrap_or_default();
    Ok(addresses.split(',').filter(|address| !address.is_empty()).map(str::to_owned).collect())
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        if let Err(error) = self.end() {
            tracing::warn!(%error, "ending the servers of an experiment");
        }
    }
}
