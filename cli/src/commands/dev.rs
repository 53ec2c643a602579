//! `pando dev`: a whole cluster on this machine, each server a process of its own.

use std::{
    fs,
    net::TcpListener,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::value_parser;

use super::{format, serve};
use crate::{
    children::{Child, Program, SERVING, STANDING_BY},
    connect::{self, Credentials, TlsArgs},
    data,
    failure::usage,
    memory::{self, MemoryOption},
    output, server,
    signals::Stop,
};

const TOKEN: &str = "admin.token";
/// Contents of files where servers have standbys, which need them as well.
const CONTENTS: &str = "contents";
/// How long a server may say nothing to its journal before a standby takes its place.
const JOURNAL_LEASE: &str = "3s";
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
///
/// With --journal and --standbys, machines may be lost: remove a server's directory, kill it, and see
/// a standby take its place. With --restart the lost one comes back as another standby. DIR/backup.key
/// is the key of the journals. Give both options at each start.
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
    /// Each server keeps a journal there: a directory that is there, or the URL of an object store.
    /// A new DIR has the contents of files in DIR/contents then, and not with each server.
    #[arg(long, value_name = "DIR|URL")]
    journal: Option<String>,
    /// Number of standbys of each server, with data in DIR/server-I-standby-K. They take the ports
    /// after the servers, those of server 0 first.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "journal")]
    #[arg(value_parser = value_parser!(u16).range(0..=8))]
    standbys: u16,
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
        let mut cluster =
            Cluster { args, addresses: Vec::new(), children: Vec::new(), mount: None };
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
    /// Where machines listen, by their numbers.
    addresses: Vec<String>,
    /// Servers first, then standbys, once all have been started.
    children: Vec<(Machine, Child)>,
    mount: Option<Child>,
}

/// A machine that the processes play: it serves one server, or stands by for it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Machine {
    server: u16,
    /// Number of the standby, from 1; 0: the machine is the server's first.
    standby: u16,
}

impl Machine {
    fn name(self) -> String {
        match self.standby {
            0 => format!("server {}", self.server),
            number => format!("standby {number} of server {}", self.server),
        }
    }

    /// Name of its data directory, and the beginning of that of its log.
    fn folder(self) -> String {
        match self.standby {
            0 => format!("server-{}", self.server),
            number => format!("server-{}-standby-{number}", self.server),
        }
    }
}

/// The machine whose data directory has this name.
fn of_folder(name: &str) -> Option<Machine> {
    let rest = name.strip_prefix("server-")?;
    let (server, standby) = match rest.split_once("-standby-") {
        Some((server, number)) => (server, number.parse().ok().filter(|number| *number > 0)?),
        None => (rest, 0),
    };
    Some(Machine { server: server.parse().ok()?, standby })
}

impl Cluster<'_> {
    /// Starts everything, and sees to it until something fails.
    async fn serve(&mut self) -> anyhow::Result<()> {
        self.prepare()?;
        self.choose_addresses()?;
        // First those that have served: the others would take their places.
        let mut others = Vec::new();
        for server in 0..self.args.servers {
            let mut all: Vec<_> = self.machines_of(server).collect();
            let owner = (0..all.len()).rev().max_by_key(|at| self.served_in(all[*at]));
            self.start(all.remove(owner.unwrap_or_default())).await?;
            self.keep_key(server)?;
            others.extend(all);
        }
        for machine in others {
            self.start(machine).await?;
        }
        self.children.sort_by_key(|(machine, _)| (machine.standby > 0, machine.server));
        self.ready().await?;
        if let Some(mountpoint) = &self.args.mount {
            fs::create_dir_all(mountpoint)
                .with_context(|| format!("cannot make {}", mountpoint.display()))?;
            let program =
                Program::new("the mount", &self.args.dir.join("mount.log"), &["mounted at "])?
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

    fn data(&self, machine: Machine) -> PathBuf {
        self.args.dir.join(machine.folder())
    }

    fn addresses(&self) -> String {
        let addresses = self.children.iter().map(|(_, child)| child.address());
        addresses.collect::<Vec<_>>().join(",")
    }

    fn machines_of(&self, server: u16) -> impl Iterator<Item = Machine> + use<> {
        (0..=self.args.standbys).map(move |standby| Machine { server, standby })
    }

    /// Number of machines.
    fn machines(&self) -> u16 {
        self.args.servers.saturating_mul(1 + self.args.standbys)
    }

    /// Number of a machine: the servers come first.
    fn number(&self, Machine { server, standby }: Machine) -> u16 {
        match standby {
            0 => server,
            number => self.args.servers + server * self.args.standbys + number - 1,
        }
    }

    /// Chooses where each machine listens. Standbys, and who looks for them, must know that before
    /// they do.
    fn choose_addresses(&mut self) -> anyhow::Result<()> {
        // Held until all are chosen, so that no two are the same.
        let mut held = Vec::new();
        for number in 0..self.machines() {
            let address = server::port_after(&self.args.listen, number)?;
            let address = if self.args.standbys > 0 && address.ends_with(":0") {
                let free = TcpListener::bind(&address);
                let free = free.with_context(|| format!("cannot listen on {address}"))?;
                let address = free.local_addr()?.to_string();
                held.push(free);
                address
            } else {
                address
            };
            self.addresses.push(address);
        }
        Ok(())
    }

    /// Starts a machine.
    async fn start(&mut self, machine: Machine) -> anyhow::Result<()> {
        let program = self.program(machine)?;
        let mut child = self.within(Child::start(program), &machine.name()).await?;
        if self.stands_by_number() {
            // The server has joined; without a directory it is to stand by.
            child.starts_again_with("--server", &machine.server.to_string());
        }
        self.children.push((machine, child));
        Ok(())
    }

    /// Waits for a first start; of standbys not for ever: where nothing can be recovered, they wait.
    async fn within<T>(
        &self,
        start: impl Future<Output = anyhow::Result<T>>,
        name: &str,
    ) -> anyhow::Result<T> {
        if self.args.standbys == 0 {
            return start.await;
        }
        let started = tokio::time::timeout(READY_TIMEOUT, start).await;
        started.with_context(|| format!("{name} does not say that it works: see its log"))?
    }

    /// Whether machines are told for which server they stand by.
    fn stands_by_number(&self) -> bool {
        self.args.standbys > 0 && self.args.servers > 1
    }

    /// The generation of the journal in which a machine has served last; 0 without a journal, and
    /// `None` where it has stood by since, or never served.
    fn served_in(&self, machine: Machine) -> Option<u64> {
        let data = self.data(machine);
        let note = data::JournalNote::read(&data).ok().flatten();
        let follows = note.as_ref().is_some_and(|noted| noted.note.follows);
        let served = data::is_formatted(&data) && !follows;
        served.then(|| note.map_or(0, |noted| noted.note.generation))
    }

    /// The machines that have directories, whatever the options say.
    fn found(&self) -> anyhow::Result<Vec<Machine>> {
        let dir = &self.args.dir;
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry?;
            let machine = entry.file_name().to_str().and_then(of_folder);
            found.extend(machine.filter(|_| entry.path().is_dir()));
        }
        Ok(found)
    }

    /// Whether a server has joined: its directory says so, or it has had standbys.
    fn has_joined(&self, server: u16) -> bool {
        let mut machines = self.machines_of(server);
        machines.any(|machine| {
            let data = self.data(machine);
            if machine.standby > 0 { data.exists() } else { data::is_formatted(&data) }
        })
    }

    /// Puts the key of the journals, which server 0 has made, beside the servers.
    fn keep_key(&self, server: u16) -> anyhow::Result<()> {
        let dir = &self.args.dir;
        if server > 0 || self.args.journal.is_none() || data::has_backup_key(dir) {
            return Ok(());
        }
        let made = data::backup_key(&self.data(Machine { server, standby: 0 }))?;
        data::keep_backup_key(dir, &made)
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
        let found = self.found()?;
        let formatted = |machine: &&Machine| data::is_formatted(&self.data(**machine));
        ensure!(
            !found.iter().filter(formatted).any(|machine| machine.server >= servers),
            "{} holds a cluster of more than {servers} servers: give their number with --servers",
            dir.display()
        );
        let standbys = found.iter().map(|machine| machine.standby).max().unwrap_or_default();
        ensure!(
            standbys <= self.args.standbys,
            "the servers in {} have standbys: give --journal, and --standbys {standbys} or more",
            dir.display()
        );
        let is_alone = found
            .iter()
            .filter(formatted)
            .any(|machine| machine.server == 0 && data::server_of(&self.data(*machine)).is_none());
        ensure!(
            !(is_alone && self.stands_by_number()),
            "{} holds one server. To make a cluster of it: remove the directories of its standbys \
             while server 0 serves, and start it once with --standbys 0",
            dir.display()
        );
        let first = self.data(Machine { server: 0, standby: 0 });
        if data::has_backup_key(dir) {
            // The journal has the file system, also where this machine was lost.
            ensure!(
                self.args.journal.is_some(),
                "{} holds a cluster with journals: say with --journal where they are",
                dir.display()
            );
            let token = first.join(TOKEN);
            return if token.exists() { copy_token(&token, &self.token()) } else { Ok(()) };
        }
        if !data::is_formatted(&first) {
            holds_nothing_else(dir, self.args.journal.as_deref())?;
            let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
            let contents = self.args.journal.as_ref().map(|_| dir.join(CONTENTS));
            let contents = contents.map(std::path::absolute).transpose()?;
            let contents = contents.map(|it| it.to_string_lossy().into_owned());
            format::of_servers(&first, name, servers, (self.args.locality, contents))?;
        }
        copy_token(&first.join(TOKEN), &self.token())
    }

    /// How a machine is started.
    fn program(&self, machine: Machine) -> anyhow::Result<Program> {
        let args = self.args;
        let log = args.dir.join(machine.folder() + ".log");
        let number = self.number(machine);
        let program = Program::new(&machine.name(), &log, &[SERVING, STANDING_BY])?
            .arg("serve")
            .arg("--with-parent")
            .arg("--data")
            .arg(self.data(machine))
            .arg("--listen")
            .arg(&self.addresses[usize::from(number)])
            .arg("--cores")
            .arg(args.cores.to_string())
            .args(args.tls.then_some("--tls").into_iter())
            .args(args.serve_options.split_whitespace());
        let program = if args.serve_options.contains("--memory") {
            program
        } else {
            let memory = args.memory.share(self.machines().into()).map_err(usage)?;
            program.arg("--memory").arg(memory.to_string())
        };
        let program = if args.serve_options.contains("--http") {
            program
        } else {
            let page = self.machines() + number;
            program.arg("--http").arg(server::port_after(&args.listen, page)?)
        };
        let program = self.with_journal(program, machine);
        if args.servers == 1 {
            return Ok(program);
        }
        if machine.server > 0 {
            let program = program.arg("--join").arg(self.coordinators());
            return Ok(program.arg("--token-file").arg(self.token()));
        }
        let lease = humantime::format_duration(args.lease).to_string().replace(' ', "");
        // Standbys are told by the journal that they are.
        let role = (args.standbys == 0).then_some("--coordinator");
        Ok(program.args(role.into_iter()).arg("--cluster-lease").arg(lease))
    }

    /// Addresses where server 0 may be: of a machine that has been started as it said.
    fn coordinators(&self) -> String {
        let address = |machine| {
            let started = self.children.iter().find(|(started, _)| *started == machine);
            let chosen = &self.addresses[usize::from(self.number(machine))];
            started.map_or_else(|| chosen.clone(), |(_, child)| child.address().to_owned())
        };
        self.machines_of(0).map(address).collect::<Vec<_>>().join(",")
    }

    fn with_journal(&self, program: Program, Machine { server, standby }: Machine) -> Program {
        let Some(journal) = &self.args.journal else { return program };
        let program = program.arg("--journal").arg(journal);
        let program = program.arg("--journal-key").arg(self.args.dir.join(data::BACKUP_KEY));
        if self.args.standbys == 0 {
            return program;
        }
        let program = program.args(["--standby", "--journal-lease", JOURNAL_LEASE].into_iter());
        let has_joined = server == 0 || standby > 0 || self.has_joined(server);
        if self.stands_by_number() && has_joined {
            program.arg("--server").arg(server.to_string())
        } else {
            program
        }
    }

    /// Returns when all servers have leases.
    async fn ready(&self) -> anyhow::Result<()> {
        let tls = TlsArgs { tls: self.args.tls, ..TlsArgs::default() };
        let credentials = Credentials::read_for(&self.token(), &tls)?;
        let all = async {
            loop {
                // Anew each time: who came before the cluster was complete is to come again.
                let servers = self.coordinators().split(',').map(str::to_owned).collect();
                let config = connect::config(servers, credentials.clone(), "pando dev");
                let client = match connect::connect_incomplete(config).await {
                    // One of them takes the place of another, perhaps.
                    Err(_) if self.args.standbys > 0 => {
                        tokio::time::sleep(LOOK_PERIOD).await;
                        continue;
                    }
                    client => client?,
                };
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
        for (_, child) in &self.children {
            let (page, process) = (child.page(), child.process());
            let stands_by = if child.stands_by() { "stands by, " } else { "" };
            let (name, address) = (child.name(), child.address());
            text += &format!("{name} at {address}, {stands_by}{page}{process}\n");
        }
        if let (Some(mount), Some(mountpoint)) = (&self.mount, &self.args.mount) {
            text += &format!("mounted at {}, {}\n", mountpoint.display(), mount.process());
        }
        let (servers, token) = (self.args.servers, self.token());
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
            let servers = self.children.iter_mut().map(|(_, child)| child);
            for child in servers.chain(&mut self.mount) {
                if child.has_taken_over() {
                    say(&format!("{} serves now", child.name()));
                }
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
        // Standbys first, or they would take over.
        self.children.iter().rev().for_each(|(_, child)| child.terminate());
        for (_, child) in self.children {
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
fn holds_nothing_else(dir: &Path, journal: Option<&str>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let name = entry?.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with("server-"));
        let of_journal = journal
            .is_some_and(|journal| name == CONTENTS || dir.join(&name) == Path::new(journal));
        ensure!(
            ours || of_journal || name == "lost+found",
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
