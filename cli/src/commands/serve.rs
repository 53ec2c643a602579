//! `pando serve`: serve a file system.

mod standby;

use std::{
    future::pending,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use meta::Word;
use wire::{Join, Joined};

use crate::{
    audit::AuditArgs,
    balancing::Balancing,
    certificates,
    connect::{self, Credentials, Servers, TlsArgs},
    data::{self, DataDir, Joining, Kept, KeptAddress, KeptBackup},
    failure::usage,
    journal::start::must_own,
    memory::{self, MemoryOption},
    notify, output,
    server::{self, Listen, Options, Role, Running, Tls},
    serving,
    signals::Stop,
    trace::TraceArgs,
    values,
};

const LISTEN: &str = "127.0.0.1:7420";
const HTTP: &str = "127.0.0.1:7421";
const HTTP_OFF: &str = "off";
/// Cores that are taken unasked. More are for machines that do nothing else.
const CORES_MAX: usize = 8;
/// Bounds of the length of the leases that a coordinator gives.
const CLUSTER_LEASE_MIN: Duration = Duration::from_millis(200);
const CLUSTER_LEASE_MAX: Duration = Duration::from_secs(600);

/// Serve the file system in a data directory until SIGINT or SIGTERM.
///
/// Once the server listens, it prints its addresses, and writes them to DIR/address, a line each.
/// A file system that was formatted for several servers is served by one process with
/// --coordinator and the others with --join.
///
/// The directory keeps the role of the server, the address of the coordinator, and --listen,
/// --http, --advertise, --cluster-lease and the options of encryption as they were last given:
/// `pando serve --data DIR` starts the server again. All other options must be given at each start.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data directory, made by `pando format`; of a server that joins: missing or empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    standby: standby::StandbyArgs,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Role of a server among several.
#[derive(Debug, clap::Args)]
struct ClusterArgs {
    /// Be the coordinator: the data directory is the one that `pando format --servers N` made. The
    /// directory says the same, so the option may be left out. A file system of one server becomes
    /// the first server of a cluster, to which others come with --join; it stays that.
    #[arg(long, conflicts_with_all = ["join", "token_file", "standby"])]
    coordinator: bool,
    /// Join the cluster whose coordinator is there; of several addresses, at one of them. A server
    /// that has joined before keeps the address, and also looks where the coordinator was last.
    #[arg(long, value_name = "HOST:PORT", value_parser = connect::servers)]
    join: Option<Servers>,
    /// The administrator's token. Needed for the first start with --join only.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// On the coordinator: servers of the cluster serve this long without a word from the
    /// coordinator. When a server is lost, renames of directories wait this long [default: what DIR
    /// keeps of the last start, or 3s].
    #[arg(long, value_name = "TIME", value_parser = cluster_lease)]
    cluster_lease: Option<Duration>,
    /// When the coordinator is lost and the lease has ended, serve this much longer what needs no
    /// cached path: files that mounts have open, and directories that they know. 0: stop at once.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = alone)]
    alone: Duration,
    /// The machine or disk that served DIR before is off, or is cut off for good: do not wait for
    /// the time that the server there may serve without its coordinator (its --alone). For this
    /// start only.
    #[arg(long)]
    replace: bool,
    /// DIR is an old copy, and the newest one left: the server goes on from it, and changes made
    /// since are lost. Inode numbers begin further on, and `pando status` names the server until
    /// `pando fsck` has run. For this start only.
    #[arg(long)]
    restored: bool,
    /// Delay messages to other servers by this round trip, for measurements.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = values::rtt)]
    rtt: Duration,
    /// End when the parent process ends.
    #[arg(long, hide = true)]
    with_parent: bool,
    /// On the coordinator: pause between two looks at the load of shards (`pando server balance
    /// --mode`), for measurements.
    #[arg(long, hide = true, default_value = "60", value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    balance_look: u64,
}

/// How to serve, for `serve` and `up`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where to listen for clients; port 0 takes a free one [default: what DIR keeps of the last
    /// start, or 127.0.0.1:7420].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Where to show the status page, with /metrics and /healthz; port 0 takes a free one, `off`
    /// shows none [default: what DIR keeps of the last start, or 127.0.0.1:7421].
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Make answered operations stable within this time.
    #[arg(long, default_value = "20ms", value_name = "TIME", value_parser = interval)]
    commit_interval: Duration,
    /// When to answer an operation.
    #[arg(long, value_enum, default_value_t = Durability::Relaxed)]
    durability: Durability,
    /// Threads that execute requests [default: half of the cores of this machine, at least 1, at
    /// most 8, as clients on it need some too].
    #[arg(long, value_name = "N")]
    cores: Option<NonZeroUsize>,
    /// End a session after this long without a word from its client.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = lease)]
    lease: Duration,
    /// Keep this much of the disks free. Below that, writes fail with ENOSPC; reads and removals
    /// work. 0 lets the disk fill to its last byte [default: 256MiB, or a twentieth of the disk if
    /// that is less].
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    reserve: Option<u64>,
    /// Limit of the process' memory. Caches of metadata take what memtables, requests and the rest
    /// of the process leave, and grow only as they are used. `auto`: a quarter of the memory that
    /// the machine or the control group (cgroup) has, at least 256MiB and at most 8GiB; of less
    /// than 512MiB, half. At least 96MiB. `pando status` prints what uses it.
    #[arg(long, default_value = "auto", value_name = "SIZE|auto", value_parser = memory::option)]
    memory: MemoryOption,
    /// Limit of connections; clients beyond it wait [default: 65536, or what the limit of open
    /// files leaves].
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Limit of sessions; clients beyond it wait. Each mount and each running command has one
    /// session.
    #[arg(long, value_name = "N", default_value_t = 65536)]
    sessions_max: usize,
    /// Limit of sessions per token, except administrators' tokens; clients beyond it wait.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    sessions_per_token: usize,
    #[command(flatten)]
    backup: BackupArgs,
    #[command(flatten)]
    encryption: EncryptionArgs,
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    compared: Compared,
    #[command(flatten)]
    trace: TraceArgs,
}

/// Backups of the metadata, made beside the work.
#[derive(Debug, clap::Args)]
struct BackupArgs {
    /// Back the metadata up to an object store: a directory, or s3://BUCKET/PREFIX with the
    /// credentials of AWS_* in the environment. Everything there is encrypted with DIR/backup.key,
    /// which is made at the first start: keep a copy of that file elsewhere. Contents in DIR/blocks
    /// are not backed up. `off` ends the backups [default: what DIR keeps of the last start].
    #[arg(long, value_name = "URL|off", value_parser = backup_url)]
    backup: Option<String>,
    /// Keep a journal: what is stable is in the object store at URL, too, before anybody is told, so
    /// that a lost machine takes nothing that was stable (`pando journal recover`). URL is that of
    /// the backup, whose bases the journal begins with. Contents of files must be in a shared store.
    /// Each `fsync` waits for a put. `off` ends the journal [default: what DIR keeps].
    #[arg(long, value_name = "URL|off", value_parser = backup_url)]
    journal: Option<String>,
    /// Serve only for this long after the journal was last written, so that a server with --standby
    /// may take over when it was not for longer. While the store is away for longer nobody is
    /// served. Choose several times what a slow put takes (`pando journal check`). `off`: serve
    /// whatever the store does, and have nobody take over [default: what DIR keeps, or off].
    #[arg(long, value_name = "TIME|off", value_parser = journal_lease)]
    journal_lease: Option<Duration>,
    /// Make a base this often, if something has changed [default: what DIR keeps, or 5m].
    #[arg(long, value_name = "TIME", value_parser = backup_every)]
    backup_every: Option<Duration>,
    /// Keep an hourly base this long; the newest two are always kept. In a shared store, contents
    /// of removed files are kept as long [default: what DIR keeps, or 24h].
    #[arg(long, value_name = "TIME", value_parser = backup_keep)]
    backup_keep: Option<Duration>,
}

const BACKUP_OFF: &str = "off";
const JOURNAL_LEASE_MIN: Duration = Duration::from_secs(1);
const JOURNAL_LEASE_MAX: Duration = Duration::from_secs(600);

impl BackupArgs {
    /// The backups of this start, where the directory keeps those of the last one.
    fn kept(&self, before: Option<KeptBackup>) -> anyhow::Result<Option<KeptBackup>> {
        let journal = match &self.journal {
            Some(url) if url == BACKUP_OFF => None,
            Some(url) => Some(url.clone()),
            None if self.backup.as_deref() == Some(BACKUP_OFF) => None,
            None => before.as_ref().filter(|before| before.journal).map(|it| it.url.clone()),
        };
        let given = match (&self.backup, &journal) {
            (Some(url), Some(journal)) if url != journal => {
                return Err(usage(
                    "the bases of --backup and the journal are in one place: give one URL",
                ));
            }
            (None, journal) => journal.as_ref(),
            (given, _) => given.as_ref(),
        };
        let url = match (given, &before) {
            (Some(url), _) if url == BACKUP_OFF => return Ok(None),
            (Some(url), _) => url.clone(),
            (None, Some(before)) => before.url.clone(),
            (None, None) if self.backup_every.or(self.backup_keep).is_some() => {
                return Err(usage("--backup-every and --backup-keep need --backup URL"));
            }
            (None, None) => return Ok(None),
        };
        let seconds = |given: Option<Duration>, before: Option<u64>, default| {
            given.map(|time| time.as_secs()).or(before).unwrap_or(default)
        };
        let every = before.as_ref().map(|before| before.every_seconds);
        let keep = before.as_ref().map(|before| before.keep_seconds);
        let lease = match self.journal_lease {
            _ if journal.is_none() => 0,
            Some(lease) => u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            None => before.as_ref().map_or(0, |before| before.journal_lease_ms),
        };
        if lease == 0 && self.journal_lease.is_some_and(|lease| !lease.is_zero()) {
            return Err(usage("--journal-lease needs --journal URL"));
        }
        let unsaid = KeptBackup::at(&url);
        Ok(Some(KeptBackup {
            every_seconds: seconds(self.backup_every, every, unsaid.every_seconds),
            keep_seconds: seconds(self.backup_keep, keep, unsaid.keep_seconds),
            journal: journal.is_some(),
            journal_lease_ms: lease,
            url,
        }))
    }
}

/// Parses the address of a backup, or `off`.
fn backup_url(text: &str) -> Result<String, String> {
    if text == BACKUP_OFF { Ok(text.to_owned()) } else { super::backup::place_url(text) }
}

/// Parses the lease of a journal; `off` is no time.
fn journal_lease(text: &str) -> Result<Duration, String> {
    if text == BACKUP_OFF {
        return Ok(Duration::ZERO);
    }
    between(text, JOURNAL_LEASE_MIN, JOURNAL_LEASE_MAX)
}

fn backup_every(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_secs(1), Duration::from_secs(24 * 3600))
}

fn backup_keep(text: &str) -> Result<Duration, String> {
    between(text, Duration::ZERO, Duration::from_secs(366 * 24 * 3600))
}

/// How connections are encrypted. Connections of other machines are, with a certificate that the
/// server issues to itself, and programs of this machine may talk in clear.
#[derive(Debug, clap::Args)]
struct EncryptionArgs {
    /// Let nobody talk in clear, programs of this machine neither.
    #[arg(long, conflicts_with = "insecure")]
    tls: bool,
    /// PEM file with a certificate of your own for this host, and those of intermediate authorities
    /// after it. The file is read again when it changes [default: the file system's own authority
    /// issues one].
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities by which the server knows the others of its cluster. Clients
    /// need the file, too (--tls-ca).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Let clients on other machines talk in clear: tokens and data can be read on the way. For
    /// networks where nobody else listens. Servers talk to each other encrypted all the same.
    #[arg(long)]
    insecure: bool,
    /// Show the status page to everybody, in clear and without a token.
    #[arg(long)]
    http_insecure: bool,
    /// Address at which clients and other servers reach this one, where it listens on another, such
    /// as 0.0.0.0 [default: what DIR keeps of the last start, or that of --listen].
    #[arg(long, value_name = "HOST:PORT", value_parser = one_address)]
    advertise: Option<String>,
}

/// Parses one address, for clap.
fn one_address(text: &str) -> Result<String, String> {
    match &connect::servers(text)?.0[..] {
        [address] => Ok(address.clone()),
        _ => Err("must be one HOST:PORT".to_owned()),
    }
}

/// Options for comparisons of benchmarks. People have no use for them.
#[derive(Debug, clap::Args)]
struct Compared {
    /// A partition of a directory that splits is locked while all of it is read.
    #[arg(long, hide = true)]
    split_by_locked_scan: bool,
    /// About how large a memtable becomes.
    #[arg(long, hide = true, value_name = "SIZE", value_parser = memtable)]
    memtable: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Durability {
    /// After execution: the operation survives a crash of the server, and a power cut after fsync
    /// or the commit interval.
    Relaxed,
    /// Once the operation is on stable storage.
    Strict,
}

fn interval(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_millis(1), Duration::from_secs(60))
}

fn lease(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_secs(1), Duration::from_secs(24 * 3600))
}

/// Parses the time for which a server of a cluster serves without its coordinator.
pub(crate) fn cluster_lease(text: &str) -> Result<Duration, String> {
    between(text, CLUSTER_LEASE_MIN, CLUSTER_LEASE_MAX)
}

/// Parses the time for which a server of a cluster goes on without a lease.
fn alone(text: &str) -> Result<Duration, String> {
    between(text, Duration::ZERO, Duration::from_secs(24 * 3600))
}

fn memtable(text: &str) -> Result<u64, String> {
    let bytes = values::size(text)?;
    let fits = (1 << 18..=1 << 32).contains(&bytes);
    fits.then_some(bytes).ok_or_else(|| "must be between 256KiB and 4GiB".to_owned())
}

fn between(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (min..=max).contains(&time) {
        return Ok(time);
    }
    let [min, max] = [min, max].map(humantime::format_duration);
    Err(format!("must be between {min} and {max}"))
}

impl Args {
    /// Whether to write a trace.
    pub(crate) fn trace(&self) -> &TraceArgs {
        self.serve.trace()
    }
}

impl ServeArgs {
    /// Whether to write a trace.
    pub(crate) fn trace(&self) -> &TraceArgs {
        &self.trace
    }

    /// Returns the addresses that a later start of this directory listens on, unless it is told
    /// others.
    pub(crate) fn kept(&self, data: &Path) -> anyhow::Result<Kept> {
        let kept = Kept::read(data)?;
        let keep = |given: Option<&String>, insecure: bool, kept: Option<KeptAddress>| match given {
            Some(given) => Some(KeptAddress { address: given.clone(), insecure }),
            None => kept.map(|kept| KeptAddress { insecure: kept.insecure || insecure, ..kept }),
        };
        let encryption = &self.encryption;
        let EncryptionArgs { tls_cert, tls_key, tls_ca, .. } = encryption;
        let files =
            certificates::files(tls_cert.as_deref(), tls_key.as_deref(), tls_ca.as_deref())?;
        // With another address, how it is to be encrypted is said anew.
        let before = kept.listen.as_ref().map(|kept| &kept.address);
        let anew = self.listen.is_some() && self.listen.as_ref() != before;
        let mut kept = Kept {
            listen: keep(self.listen.as_ref(), encryption.insecure, kept.listen),
            http: keep(self.http.as_ref(), encryption.http_insecure, kept.http),
            advertise: encryption.advertise.clone().or(kept.advertise.filter(|_| !anew)),
            tls: encryption.tls || (kept.tls && !anew && !encryption.insecure),
            certificate: files.or(kept.certificate.filter(|_| !anew)),
            backup: self.backup.kept(kept.backup.clone())?,
            ..kept
        };
        // The last word counts: an earlier start allowed talk in clear.
        if encryption.tls {
            kept.listen.iter_mut().for_each(|listen| listen.insecure = false);
            kept.http.iter_mut().for_each(|http| http.insecure = encryption.http_insecure);
        }
        Ok(kept)
    }

    /// How to serve, at addresses that are given or `kept`. Within `up`, where an address is not
    /// given and the other one is taken, a free port will do, and the mount has a core beside it.
    pub(crate) fn options(&self, kept: &Kept, up: bool) -> Options {
        let listen =
            |given: bool, kept: Option<&KeptAddress>, insecure: bool, default: &str| Listen {
                address: kept.map_or(default, |kept| &kept.address).to_owned(),
                or_free_port: up && !given,
                insecure: kept.map_or(insecure, |kept| kept.insecure),
                is_kept: !given && kept.is_some(),
            };
        let EncryptionArgs { insecure, http_insecure, .. } = self.encryption;
        let available = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let cores = NonZeroUsize::new((available / 2).min(CORES_MAX)).unwrap_or(NonZeroUsize::MIN);
        Options {
            listen: listen(self.listen.is_some(), kept.listen.as_ref(), insecure, LISTEN),
            http: Some(listen(self.http.is_some(), kept.http.as_ref(), http_insecure, HTTP))
                .filter(|http| http.address != HTTP_OFF),
            tls: Tls { only: kept.tls, files: kept.certificate.clone() },
            advertise: kept.advertise.clone(),
            kept: kept.clone(),
            cores: self.cores.unwrap_or(cores),
            near: up,
            durability: match self.durability {
                Durability::Relaxed => meta::Durability::Relaxed,
                Durability::Strict => meta::Durability::Strict,
            },
            audit: self.audit.options(),
            commit_interval: self.commit_interval,
            lease: self.lease,
            reserve: self.reserve,
            connections_max: self.connections_max,
            sessions_max: self.sessions_max,
            sessions_a_token_max: self.sessions_per_token,
            split_by_locked_scan: self.compared.split_by_locked_scan,
            memory: memory::deal(self.memory.bytes(), self.compared.memtable),
            role: Role::Alone,
            alone: server::ALONE,
            word: Word::default(),
            ends_at: None,
            peer_rtt: Duration::ZERO,
        }
    }
}

impl ClusterArgs {
    /// Adds the options that a later start of this directory takes, unless it is told others.
    fn keep(&self, kept: &mut Kept) {
        if let Some(lease) = self.cluster_lease {
            kept.cluster_lease_ms = Some(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// The operator's word on this data directory.
    fn word(&self, data: &Path) -> anyhow::Result<Word> {
        let word = Word { replaces: self.replace, restored: self.restored };
        if word != Word::default() && data::is_formatted(data) && data::server_of(data).is_none() {
            return Err(usage(
                "--replace and --restored are for servers of a cluster: no other server knows \
                 anything of a file system of one",
            ));
        }
        Ok(word)
    }

    /// Role of a server with this data directory, which keeps this.
    fn role(&self, data: &Path, kept: &Kept) -> Role {
        let lease = kept.cluster_lease().unwrap_or(server::CLUSTER_LEASE);
        let coordinator =
            Role::Coordinator { lease: lease.clamp(CLUSTER_LEASE_MIN, CLUSTER_LEASE_MAX) };
        if self.coordinator {
            return coordinator;
        }
        // Without any option the server is what its directory says.
        match (&self.join, data::server_of(data)) {
            (Some(Servers(told)), _) => Role::Member { coordinators: told.clone() },
            (None, Some(0)) => coordinator,
            (None, Some(_)) => Role::Member { coordinators: data::coordinators(data) },
            (None, None) => Role::Alone,
        }
    }

    /// Makes a file system of one server one that others can join, when it is to be a coordinator.
    fn found(&self, data: &Path, options: &Options, kept: &Kept) -> anyhow::Result<()> {
        if !self.coordinator || !data::is_formatted(data) || data::server_of(data).is_some() {
            return Ok(());
        }
        server::try_listen(options)?;
        let address = options.advertise.as_ref().unwrap_or(&options.listen.address);
        if address.starts_with("127.") || address.starts_with("localhost:") {
            tracing::warn!(address, "servers of this machine alone can join, and clients reach it");
        }
        // Changes of the metadata must follow on the journal.
        must_own(data)?;
        DataDir::found_cluster(data, kept)
    }

    /// Makes the data directory of a server that has not joined yet.
    async fn join(&self, data: &Path, options: &Options) -> anyhow::Result<()> {
        let Some(Servers(coordinators)) = self.join.clone().filter(|_| !data::is_formatted(data))
        else {
            return Ok(());
        };
        let Some(token) = &self.token_file else {
            return Err(usage(
                "the first --join needs --token-file with the administrator's token",
            ));
        };
        let ca = options.tls.files.as_ref().map(|files| files.ca.clone());
        // The answer has the keys of the file system, so it is never sent in clear.
        let tls = TlsArgs { tls: options.tls.only, tls_ca: ca, insecure: false };
        let credentials = Credentials::read_for(token, &tls)?;
        // A place in the cluster is given once.
        server::try_listen(options)?;
        let joining = Joining::begin(data)?;
        let address = options.advertise.as_ref().unwrap_or(&options.listen.address).clone();
        let join = Join { address, member: joining.member() };
        let (servers, joined) = match ask_to_join(&coordinators, credentials, join).await {
            Err(error) if connect::is_refusal(&error) => {
                if let Err(left) = joining.withdraw() {
                    let data = data.display();
                    tracing::warn!(error = %left, "files of the refused join are left in {data}");
                }
                return Err(error);
            }
            answer => answer?,
        };
        data::write_coordinators(data, &coordinators)?;
        joining.finish(&joined, servers)?;
        let servers = servers.max(joined.server + 1);
        output::print(&format!("joined as server {} of {servers}", joined.server))
    }
}

/// Asks the coordinator for a place; returns the number of servers, and the answer.
async fn ask_to_join(
    coordinators: &[String],
    credentials: Credentials,
    join: Join,
) -> anyhow::Result<(u16, Joined)> {
    let config = connect::config(coordinators.to_owned(), credentials, "joins");
    let client = connect::connect_incomplete(config).await?;
    let asked = async {
        let servers = connect::for_administrators(client.cluster().await)?.servers_expected;
        Ok((servers, connect::for_administrators(client.join(join).await)?))
    };
    let joined = asked.await;
    if joined.is_err() {
        return connect::close(&client, joined).await;
    }
    // The place is given, whatever becomes of the session.
    if let Err(error) = client.close().await {
        tracing::debug!(%error, "the session of the join was not closed");
    }
    joined
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut stop = Stop::listen()?;
        if args.cluster.with_parent {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        }
        let mut kept = args.serve.kept(&args.data)?;
        args.cluster.keep(&mut kept);
        kept.server = args.standby.number(&args.data, &kept)?;
        let mut options = args.serve.options(&kept, false);
        options.alone = args.cluster.alone;
        options.peer_rtt = args.cluster.rtt;
        options.word = args.cluster.word(&args.data)?;
        args.cluster.found(&args.data, &options, &kept)?;
        if kept.server.is_none() {
            tokio::select! {
                joined = args.cluster.join(&args.data, &options) => joined?,
                () = stop.asked() => bail!("interrupted"),
            }
        }
        // A join gives the number.
        kept.server = args.standby.number(&args.data, &kept)?;
        options.kept = kept.clone();
        args.standby.keep_key(&args.data, &kept)?;
        let role = || args.cluster.role(&args.data, &kept);
        let as_told = (args.cluster.join.is_some(), &role);
        let started = args.standby.start(&args.data, &options, as_told, &mut stop).await?;
        let Some(mut serving) = started else {
            return Ok(ExitCode::SUCCESS);
        };
        options.role = role();
        let looks = Duration::from_secs(args.cluster.balance_look);
        let balancing = Balancing::of(&args.data, &options, looks);
        if let Some(Servers(told)) = &args.cluster.join {
            data::write_coordinators(&args.data, told)?;
        }
        let announced = announce(serving.running());
        if args.standby.is_given() {
            // The reader of the line that it stands by may have gone since.
            output::or_log(announced);
        } else {
            announced?;
        }
        notify::ready();
        let address = serving.running().address();
        let mut balanced = Box::pin(async {
            match &balancing {
                Some(balancing) => balancing.keep(address).await,
                None => pending().await,
            }
        });
        let failed = tokio::select! {
            () = stop.asked() => None,
            error = serving.failed() => Some(error),
            // Ends only when it is told to.
            () = &mut balanced => None,
        };
        if let Some(balancing) = &balancing {
            balancing.end(balanced).await;
        }
        let stopped = serving.stop();
        // The log says why.
        let failed = failed.filter(|error| !serving::has_left(error));
        failed.map_or(stopped, Err)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The one line that a server prints.
pub(crate) fn announce(running: &Running) -> anyhow::Result<()> {
    let page = running.page_url().map(|url| format!(", status page {url}"));
    let page = page.unwrap_or_default();
    output::print(&format!("serving {} at {}{page}", running.name(), running.address()))
}
