//! `pando dev`: a whole cluster on this machine, each server a process of its own.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::value_parser;

use super::{format, serve};
use crate::{
    children::{Child, Program},
    connect::{self, Credentials, TlsArgs},
    data,
    failure::usage,
    memory::{self, MemoryOption},
    output, server,
    signals::Stop,
};

const TOKEN: &str = "admin.token";
const LISTEN: &str = "127.0.0.1:7420";
/// How often it is seen whether a process has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Pause before a process that could not be started is tried again.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// Time for a process to end after it was asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time within which all servers have joined and have leases, or something is wrong.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Run a cluster on this machine, for development and tests, until SIGINT or SIGTERM.
///
/// Each server is a process with its data in DIR/server-I and its log in DIR/server-I.log; with
/// --servers 1 there is no coordinator. DIR/admin.token is the administrator's token. A missing or
/// empty DIR is formatted. A DIR with a cluster is served again, by as many servers or
/// more, where those that are new have no shards yet (`pando server balance`). Any other DIR is
/// refused. The command prints addresses, status pages and process ids: kill a server
/// to see how the cluster copes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of servers.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    servers: u16,
    /// Directory for data, logs and the token.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Address of server 0. The other servers take the ports after it, and the status pages the
    /// ports after these. With port 0, each takes a free port.
    #[arg(long, value_name = "HOST:PORT", default_value = LISTEN)]
    listen: String,
    /// Shard of a new directory, when the cluster is made.
    #[arg(long, value_enum, default_value_t = format::Locality::Directory)]
    locality: format::Locality,
    /// Mount the file system there as well.
    #[arg(long, value_name = "MOUNTPOINT")]
    mount: Option<PathBuf>,
    /// Encrypt everything, as between machines: the servers start with --tls, and clients need
    /// --tls as well.
    #[arg(long)]
    tls: bool,
    /// Restart a process that has ended, whatever the reason.
    #[arg(long)]
    restart: bool,
    /// Threads of each server that execute requests.
    #[arg(long, value_name = "N", default_value = "1")]
    cores: NonZeroUsize,
    /// Limit of the memory of all servers together, which share it alike; see `pando serve --help`.
    #[arg(long, default_value = "auto", value_name = "SIZE|auto", value_parser = memory::option)]
    memory: MemoryOption,
    /// Servers serve this long without a word from the coordinator.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = serve::cluster_lease)]
    lease: Duration,
    /// More options for each `pando serve`, separated by spaces.
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    serve_options: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    connect::runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let mut cluster = Cluster { args, servers: Vec::new(), mount: None };
        let served = tokio::select! {
            served = cluster.serve() => served,
            () = stop.asked() => Ok(()),
        };
        let stopped = cluster.stop().await;
        served.and(stopped)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The processes that were started.
struct Cluster<'a> {
    args: &'a Args,
    servers: Vec<Child>,
    mount: Option<Child>,
}

impl Cluster<'_> {
    /// Starts everything, and sees to it until something fails.
    async fn serve(&mut self) -> anyhow::Result<()> {
        self.prepare()?;
        for server in 0..self.args.servers {
            let program = self.server(server)?;
            self.servers.push(Child::start(program).await?);
        }
        self.ready().await?;
        if let Some(mountpoint) = &self.args.mount {
            fs::create_dir_all(mountpoint)
                .with_context(|| format!("cannot make {}", mountpoint.display()))?;
            let program =
                Program::new("the mount", &self.args.dir.join("mount.log"), "mounted at ")?
                    .arg("mount")
                    .arg(self.addresses())
                    .arg(mountpoint)
                    .arg("--foreground")
                    .arg("--token")
                    .arg(self.token())
                    .args(self.args.tls.then_some("--tls").into_iter());
            self.mount = Some(Child::start(program).await?);
        }
        self.announce()?;
        self.watch().await
    }

    fn token(&self) -> PathBuf {
        self.args.dir.join(TOKEN)
    }

    fn data(&self, server: u16) -> PathBuf {
        self.args.dir.join(format!("server-{server}"))
    }

    fn addresses(&self) -> String {
        self.servers.iter().map(Child::address).collect::<Vec<_>>().join(",")
    }

    /// Formats what is not there yet.
    fn prepare(&self) -> anyhow::Result<()> {
        let (dir, servers) = (&self.args.dir, self.args.servers);
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        ensure!(
            !data::is_formatted(dir),
            "{} is the data directory of a server; give `pando dev` another --dir",
            dir.display()
        );
        ensure!(
            !data::is_formatted(&self.data(servers)),
            "{} holds a cluster of more than {servers} servers: give their number with --servers",
            dir.display()
        );
        let first = self.data(0);
        if !data::is_formatted(&first) {
            holds_nothing_else(dir)?;
            let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
            format::of_servers(&first, name, servers, self.args.locality)?;
        }
        copy_token(&first.join(TOKEN), &self.token())
    }

    /// How a server is started.
    fn server(&self, server: u16) -> anyhow::Result<Program> {
        let log = self.args.dir.join(format!("server-{server}.log"));
        let program = Program::new(&format!("server {server}"), &log, "serving ")?
            .arg("serve")
            .arg("--with-parent")
            .arg("--data")
            .arg(self.data(server))
            .arg("--listen")
            .arg(server::port_after(&self.args.listen, server)?)
            .arg("--cores")
            .arg(self.args.cores.to_string())
            .args(self.args.tls.then_some("--tls").into_iter())
            .args(self.args.serve_options.split_whitespace());
        let program = if self.args.serve_options.contains("--memory") {
            program
        } else {
            let memory = self.args.memory.share(self.args.servers.into()).map_err(usage)?;
            program.arg("--memory").arg(memory.to_string())
        };
        let program = if self.args.serve_options.contains("--http") {
            program
        } else {
            let page = self.args.servers + server;
            program.arg("--http").arg(server::port_after(&self.args.listen, page)?)
        };
        Ok(match self.servers.first() {
            None if self.args.servers == 1 => program,
            None => {
                let lease =
                    humantime::format_duration(self.args.lease).to_string().replace(' ', "");
                program.arg("--coordinator").arg("--cluster-lease").arg(lease)
            }
            Some(coordinator) => program
                .arg("--join")
                .arg(coordinator.address())
                .arg("--token-file")
                .arg(self.token()),
        })
    }

    /// Returns when all servers have leases.
    async fn ready(&self) -> anyhow::Result<()> {
        let tls = TlsArgs { tls: self.args.tls, ..TlsArgs::default() };
        let credentials = Credentials::read_for(&self.token(), &tls)?;
        let all = async {
            loop {
                // Anew each time: who came before the cluster was complete is to come again.
                let servers = vec![self.servers[0].address().to_owned()];
                let config = connect::config(servers, credentials.clone(), "pando dev");
                let client = connect::connect_incomplete(config).await?;
                let status = client.cluster().await?;
                client.close().await?;
                if status.epoch.0 > 0 && status.problems.is_empty() {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(LOOK_PERIOD).await;
            }
        };
        tokio::time::timeout(READY_TIMEOUT, all)
            .await
            .context("not all servers got leases in time")?
    }

    fn announce(&self) -> anyhow::Result<()> {
        let mut text = String::new();
        for child in &self.servers {
            let (page, process) = (child.page(), child.process());
            text += &format!("{} at {}, {page}{process}\n", child.name(), child.address());
        }
        if let (Some(mount), Some(mountpoint)) = (&self.mount, &self.args.mount) {
            text += &format!("mounted at {}, {}\n", mountpoint.display(), mount.process());
        }
        let (servers, token) = (self.servers.len(), self.token());
        let noun = if servers == 1 { "server" } else { "servers" };
        text += &format!(
            "serving {servers} {noun} at {} with token {}{}\n",
            self.addresses(),
            token.display(),
            if self.args.tls { " and --tls" } else { "" }
        );
        output::print(&text)
    }

    /// Tells of processes that have ended, and starts them again if that was asked for.
    async fn watch(&mut self) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            for child in self.servers.iter_mut().chain(&mut self.mount) {
                let Some(end) = child.ended()? else { continue };
                say(&format!("{} has ended: {end}", child.name()));
                if self.args.restart {
                    match child.start_again().await {
                        Ok(()) => {
                            let (name, process) = (child.name(), child.process());
                            say(&format!("{name} was started again, {process}"));
                        }
                        Err(error) => {
                            say(&format!("{error:#}"));
                            tokio::time::sleep(AGAIN_PAUSE).await;
                        }
                    }
                }
            }
        }
    }

    /// Ends all processes, the mount first.
    async fn stop(self) -> anyhow::Result<()> {
        if let Some(mount) = self.mount {
            mount.stop(STOP_TIMEOUT).await?;
        }
        for child in &self.servers {
            child.terminate();
        }
        for child in self.servers {
            child.stop(STOP_TIMEOUT).await?;
        }
        Ok(())
    }
}

/// Tells what has happened. Whoever started this may not listen any more; the cluster goes on.
fn say(text: &str) {
    if let Err(error) = output::print(text) {
        tracing::warn!("{error:#}: {text}");
    }
}

/// Sees that a directory without a cluster has nothing but what an earlier attempt to make one may
/// have left.
fn holds_nothing_else(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let name = entry?.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with("server-"));
        ensure!(
            ours || name == "lost+found",
            "{} holds no cluster, and is not empty: it holds {}",
            dir.display(),
            name.display()
        );
    }
    Ok(())
}

/// Puts the administrator's token beside the servers, unless it is there. That of another file
/// system is left.
fn copy_token(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        ensure!(
            data::read_token(from)? == data::read_token(to)?,
            "{} is not the token of the cluster, {}: move it away",
            to.display(),
            from.display()
        );
        return Ok(());
    }
    fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}
