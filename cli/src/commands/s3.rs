//! `pando s3`: serve a file system to clients of S3.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use ::s3::{Account, Gateway, KeyLine, Session, Settings};
use anyhow::{Context as _, bail};
use client::{Config, SystemRandom};
use tokio::{net::TcpListener, time::timeout};

use crate::{
    connect::{self, Credentials, Servers, TokenArgs},
    failure::usage,
    output,
    signals::Stop,
    values,
};

/// Time to open all sessions.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest keys file.
const KEYS_BYTES_MAX: u64 = 1 << 20;
/// Environment variables with the only access key, where there is no keys file.
const ACCESS_KEY: &str = "PANDO_S3_ACCESS_KEY";
const SECRET_KEY: &str = "PANDO_S3_SECRET_KEY";
/// The shortest time after which an upload counts as abandoned.
const ABANDONED_MIN: Duration = Duration::from_secs(3600);

/// Serve a file system to clients of S3, until SIGINT or SIGTERM.
///
/// Buckets are the directories in --root whose names S3 allows; the key of an object is its path
/// below the bucket. Requests must be signed. With --keys, each access key has a token of its own;
/// without, there is one access key, in PANDO_S3_ACCESS_KEY and PANDO_S3_SECRET_KEY, and requests
/// do what the token may.
///
/// Once the gateway listens, it prints its address.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The servers of the file system.
    #[arg(value_name = "HOST:PORT[,HOST:PORT...]", value_parser = connect::servers)]
    servers: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// File with a line ACCESS_KEY SECRET_KEY TOKEN_FILE [ro] for each access key; others must not
    /// be allowed to read it. Token files are relative to it. With ro, changes are refused.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// The directory that has the buckets.
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = absolute)]
    root: String,
    /// Where to listen. Nothing is encrypted: for other machines, put a server that speaks TLS
    /// before it.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Listen on an address that other machines reach, although nothing is encrypted there.
    #[arg(long)]
    listen_in_clear: bool,
    /// The most connections at once; more wait.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Remove uploads that were not completed when nothing has happened to them for this time: an
    /// hour at least. The gateway looks for them at its start and each hour.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = abandoned)]
    abandoned_after: Duration,
}

fn absolute(text: &str) -> Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("must be absolute".to_owned()) }
}

fn abandoned(text: &str) -> Result<Duration, String> {
    let time = values::length(text)?;
    if time < ABANDONED_MIN { Err("it is less than 1h".to_owned()) } else { Ok(time) }
}

/// An access key, and with which token it comes.
struct Key {
    access_key: String,
    secret_key: String,
    read_only: bool,
    /// Keys of the same token file share a session.
    token_file: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() && !args.listen_in_clear {
        return Err(usage(format!(
            "--listen {}: other machines reach this address, and nothing is encrypted there; \
             listen on 127.0.0.1 behind a server that speaks TLS, or give --listen-in-clear",
            args.listen
        )));
    }
    let keys = match &args.keys {
        Some(file) => read_keys(file)?,
        None => vec![only_key()?],
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(serve(args, keys))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: Args, keys: Vec<Key>) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let mut sessions: BTreeMap<Option<PathBuf>, Arc<Session>> = BTreeMap::new();
    let mut accounts = Vec::new();
    for key in keys {
        let session = match sessions.get(&key.token_file) {
            Some(session) => Arc::clone(session),
            None => {
                let credentials = args.token.read_of(key.token_file.as_deref())?;
                let session = session(&args.servers, credentials).await?;
                sessions.insert(key.token_file.clone(), Arc::clone(&session));
                session
            }
        };
        accounts.push(Account::new(key.access_key, key.secret_key, key.read_only, session));
    }
    let settings = Settings { root: args.root, abandoned_after: args.abandoned_after };
    let random = Arc::new(SystemRandom::default());
    let gateway = Arc::new(Gateway::new(accounts, settings, random));
    gateway.check_root().await.context("--root")?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    output::print(&format!("serving s3 at {}", listener.local_addr()?))?;
    let connections = usize::try_from(args.connections)?;
    ::s3::serve(listener, gateway, connections, stop.asked()).await;
    Ok(())
}

async fn session(servers: &Servers, credentials: Credentials) -> anyhow::Result<Arc<Session>> {
    let Servers(servers) = servers.clone();
    let config: Config = connect::config(servers.clone(), credentials, "pando s3");
    match timeout(CONNECT_TIMEOUT, Box::pin(::s3::connect(config))).await {
        Ok(connected) => {
            connected.with_context(|| format!("cannot open a session at {}", servers.join(",")))
        }
        Err(_) => Err(connect::no_session(&servers).await),
    }
}

/// The access key of the environment.
fn only_key() -> anyhow::Result<Key> {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (value(ACCESS_KEY), value(SECRET_KEY)) {
        (Some(access_key), Some(secret_key)) => {
            Ok(Key { access_key, secret_key, read_only: false, token_file: None })
        }
        _ => Err(usage(format!(
            "no access key: give --keys FILE, or set {ACCESS_KEY} and {SECRET_KEY}"
        ))),
    }
}

fn read_keys(file: &Path) -> anyhow::Result<Vec<Key>> {
    let shown = file.display();
    let mut text = String::new();
    let opened = File::open(file).with_context(|| format!("cannot read the keys in {shown}"))?;
    let about = opened.metadata()?;
    if about.mode() & 0o077 != 0 {
        bail!("{shown} has secret keys, and others may read or write it: chmod 600 {shown}");
    }
    if about.uid() != 0 && about.uid() != rustix::process::geteuid().as_raw() {
        bail!("{shown} has secret keys, and is another user's who could change them");
    }
    let read = opened.take(KEYS_BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read the keys in {shown}"))?;
    if text.len() as u64 > KEYS_BYTES_MAX {
        bail!("{shown} has more than {KEYS_BYTES_MAX} bytes");
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let lines = ::s3::parse_keys(&text, folder).with_context(|| format!("{shown}"))?;
    let key = |KeyLine { access_key, secret_key, token_file, read_only }| Key {
        access_key,
        secret_key,
        read_only,
        token_file: Some(token_file),
    };
    Ok(lines.into_iter().map(key).collect())
}
