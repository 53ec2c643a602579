//! Reaching a server: which one, with which token, and how long to wait for it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use base::Cred;
use client::{Client, Config, Connector, Encryption, Tcp, Trust};
use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};
use wire::{IdMapping, Standing, Token};

use crate::{data, failure::usage};

/// Time-out after which a server counts as absent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a failed command has to leave its servers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time to look for the reason when no session could be opened.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before an unreachable server is asked again.
const ASK_AGAIN_PAUSE: Duration = Duration::from_millis(200);

/// Options that say with which token to come, and how servers are known.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TokenArgs {
    /// File with the token [default: ~/.config/pando/token].
    #[arg(long, env = "PANDO_TOKEN_FILE", value_name = "FILE")]
    token: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Options that say which connections are encrypted, and whom to trust.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TlsArgs {
    /// Encrypt connections to this machine, too. Connections to other machines always are.
    #[arg(long)]
    pub(crate) tls: bool,
    /// PEM file with the authorities that certify the servers' hosts, where servers have
    /// certificates of your own [default: the authority that the token names].
    #[arg(long, env = "PANDO_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Encrypt nothing: the token and all data can be read on the way. For networks where nobody
    /// else listens.
    #[arg(long, conflicts_with = "tls")]
    pub(crate) insecure: bool,
}

impl TlsArgs {
    /// The options as a command line has them.
    pub(crate) fn to_args(&self) -> Vec<String> {
        let flag = |given: bool, name: &str| given.then(|| name.to_owned());
        let file = self.tls_ca.as_ref().map(|file| format!("--tls-ca={}", file.display()));
        let given = [flag(self.tls, "--tls"), flag(self.insecure, "--insecure"), file];
        given.into_iter().flatten().collect()
    }

    /// The network of a client with this token.
    fn network(&self, token: &str) -> anyhow::Result<Tcp> {
        if self.insecure {
            return Ok(Tcp::new(Encryption::Never));
        }
        Token::unverified(token)?;
        let connector = match &self.tls_ca {
            Some(file) => Some(Connector::new(Trust::read(file)?)?),
            None => client::connector_of(token),
        };
        let always = self.tls.then_some(());
        let encryption = match (always, connector) {
            (Some(()), Some(connector)) => Encryption::Always(connector),
            (Some(()), None) => bail!(
                "--tls: the token does not say by which authority to know the servers; take a \
                 token that does, or give --tls-ca FILE"
            ),
            (None, connector) => Encryption::Elsewhere(connector),
        };
        Ok(Tcp::new(encryption))
    }
}

/// A token, and the network on which it is shown.
#[derive(Clone)]
pub(crate) struct Credentials {
    token: String,
    network: Tcp,
}

impl Credentials {
    /// The credentials of a token, whose authority tells the servers.
    pub(crate) fn of(token: String) -> Credentials {
        Credentials { network: Tcp::of_token(&token), token }
    }

    /// The credentials of the token in a file.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Credentials> {
        Credentials::read_for(file, &TlsArgs::default())
    }

    /// The token, unless the text is none. Its signature is not checked.
    pub(crate) fn says(&self) -> Option<Token> {
        Token::unverified(&self.token).ok()
    }

    /// The credentials of the token in a file, to be shown as the options say.
    pub(crate) fn read_for(file: &Path, tls: &TlsArgs) -> anyhow::Result<Credentials> {
        Credentials::shown(data::read_token(file)?, tls)
    }

    /// The credentials of a token, to be shown as the options say.
    pub(crate) fn shown(token: String, tls: &TlsArgs) -> anyhow::Result<Credentials> {
        Ok(Credentials { network: tls.network(&token)?, token })
    }
}

impl TokenArgs {
    /// The options that say which connections are encrypted.
    pub(crate) fn tls(&self) -> &TlsArgs {
        &self.tls
    }

    /// The token in a file that something else names, shown as the options say; without one, the
    /// token that the options name.
    pub(crate) fn read_of(&self, file: Option<&Path>) -> anyhow::Result<Credentials> {
        match file {
            Some(file) => Credentials::read_for(file, &self.tls),
            None => self.read(),
        }
    }

    /// The token, and how it is shown.
    pub(crate) fn read(&self) -> anyhow::Result<Credentials> {
        if let Some(file) = &self.token {
            return Credentials::read_for(file, &self.tls);
        }
        let none =
            "no token: give --token FILE, set PANDO_TOKEN_FILE, or put it in ~/.config/pando/token";
        let home = std::env::var_os("HOME").ok_or_else(|| anyhow!(none))?;
        let file = PathBuf::from(home).join(".config/pando/token");
        if !file.exists() {
            return Err(anyhow!(none));
        }
        Credentials::read_for(&file, &self.tls)
    }
}

/// The addresses of `HOST:PORT[,HOST:PORT...]`; for clap.
pub(crate) fn servers(text: &str) -> Result<Servers, String> {
    let address = |address: &str| match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(address.to_owned())
        }
        Some(_) | None => Err(format!("{address:?} is not HOST:PORT")),
    };
    text.split(',').map(address).collect::<Result<_, _>>().map(Servers)
}

/// Servers of one file system.
#[derive(Debug, Clone)]
pub(crate) struct Servers(pub(crate) Vec<String>);

/// Configuration of a client; `purpose` is shown with the session. The client acts as root, or as
/// the only user that the token lets act.
pub(crate) fn config(servers: Vec<String>, credentials: Credentials, purpose: &str) -> Config {
    let host = crate::system::host_name();
    let Credentials { token, network } = credentials;
    let only = only_user(&token);
    let mut config = Config::new(servers, token);
    config.dial = Arc::new(network);
    config.cred = only.unwrap_or(config.cred);
    config.client_name = format!("{host} pid {} {purpose}", std::process::id());
    config
}

/// Returns the only user that a token lets act. `None`: the token is for any user, or is invalid,
/// which the server will say.
pub(crate) fn only_user(token: &str) -> Option<Cred> {
    let token = Token::unverified(token).ok()?;
    Some(Cred { uid: token.uid?, gid: *token.gids.first()?, groups: Vec::new() })
}

/// Returns how a token squashes and maps ids. `None`: it does neither, or is invalid, which the
/// server will say.
pub(crate) fn ids(token: &str) -> Option<IdMapping> {
    Token::unverified(token).ok()?.ids
}

/// Opens a session.
pub(crate) async fn connect(config: Config) -> anyhow::Result<Client> {
    let servers = config.addresses.clone();
    within(servers, Client::connect(config)).await
}

/// Connects as [`connect`] does, at the coordinator of a cluster that may not be complete.
pub(crate) async fn connect_incomplete(config: Config) -> anyhow::Result<Client> {
    let servers = config.addresses.clone();
    within(servers, Client::connect_incomplete(config)).await
}

async fn within(
    servers: Vec<String>,
    connecting: impl Future<Output = client::Result<Client>>,
) -> anyhow::Result<Client> {
    match timeout(CONNECT_TIMEOUT, Box::pin(connecting)).await {
        Ok(connected) => {
            connected.with_context(|| format!("cannot open a session at {}", servers.join(",")))
        }
        Err(_) => Err(no_session(&servers).await),
    }
}

/// Returns the state of the first of these servers that answers and is ready, else of the first that
/// answers; `None`: none has answered in time. A silent server is asked again, as it may be starting.
pub(crate) async fn standing(config: &Config) -> anyhow::Result<Option<Standing>> {
    let (began, mut told) = (Instant::now(), false);
    loop {
        let (mut refused, mut unready) = (None, None);
        for server in &config.addresses {
            match Client::standing(config, server).await {
                Ok(Some(standing)) if standing.ready => return Ok(Some(standing)),
                Ok(Some(standing)) => unready = unready.or(Some(standing)),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        if unready.is_some() {
            return Ok(unready);
        }
        if let Some(error) = refused {
            return Err(error.into());
        }
        if began.elapsed() > CONNECT_TIMEOUT {
            return Ok(None);
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(servers = config.addresses.join(","), "waiting for the server");
        }
        tokio::time::sleep(ASK_AGAIN_PAUSE).await;
    }
}

/// Whether a server listens at one of these addresses.
pub(crate) async fn any_answers(servers: &[String]) -> bool {
    let reached = servers.iter().map(|server| timeout(PROBE_TIMEOUT, TcpStream::connect(server)));
    join_all(reached).await.into_iter().any(|reached| matches!(reached, Ok(Ok(_))))
}

/// Error when no session could be opened.
pub(crate) async fn no_session(servers: &[String]) -> anyhow::Error {
    let reasons = join_all(servers.iter().map(|server| why_not(server))).await;
    let seconds = CONNECT_TIMEOUT.as_secs();
    anyhow!("no session after {seconds} s: {}", reasons.join("; "))
}

/// Why a server opens no session, as far as one more connection tells.
async fn why_not(server: &str) -> String {
    match timeout(PROBE_TIMEOUT, TcpStream::connect(server)).await {
        Ok(Ok(mut stream)) => {
            // A server says nothing before it was asked something.
            let said = timeout(PROBE_TIMEOUT, async {
                let mut said = [0; 1024];
                stream.write_all(&wire::frame::opening()).await?;
                stream.read(&mut said).await.map(|length| said[..length].to_vec())
            });
            match said.await {
                Ok(Ok(said)) if refused_in_clear(&said) => {
                    format!("{server}: {}", wire::TLS_ONLY)
                }
                Ok(Ok(said)) if said.starts_with(b"HTTP/") => format!(
                    "{server} does not speak Pando's protocol: is it the address of a status page?"
                ),
                Ok(_) | Err(_) => format!(
                    "{server} accepts connections but does not serve: the cluster is incomplete, \
                     its coordinator is down, or the server's sessions are at their limit"
                ),
            }
        }
        Ok(Err(error)) => format!("{server} cannot be reached: {error}"),
        Err(_) => format!("{server} does not answer"),
    }
}

/// Whether these bytes are a server's refusal of a connection in clear.
fn refused_in_clear(said: &[u8]) -> bool {
    let text = wire::TLS_ONLY.as_bytes();
    said.windows(text.len()).any(|window| window == text)
}

/// A runtime for a command that talks to a server.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .build()
        .context("cannot start a runtime")
}

/// Does something with a client of these servers.
pub(crate) fn on<T>(
    Servers(servers): Servers,
    token: &TokenArgs,
    purpose: &str,
    work: impl AsyncFnOnce(&Client) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let config = config(servers, token.read()?, purpose);
    runtime()?.block_on(async {
        let client = connect(config).await?;
        let done = Box::pin(work(&client)).await;
        close(&client, done).await
    })
}

/// Ends a session when its command is done: so one that failed does not stay in the list of
/// sessions until its lease is over. A server that is away is not waited for then.
pub(crate) async fn close<T>(client: &Client, done: anyhow::Result<T>) -> anyhow::Result<T> {
    if done.is_ok() {
        client.close().await?;
    } else {
        // The error that is told is the first one.
        let _ = timeout(CLOSE_TIMEOUT, client.close()).await;
    }
    done
}

/// Explains in words that only administrators may ask this.
pub(crate) fn for_administrators<T>(answer: client::Result<T>) -> anyhow::Result<T> {
    match answer {
        Err(error @ client::Error::Fs(base::FsError::NotPermitted)) => {
            Err(anyhow::Error::new(error).context("this command needs an administrator's token"))
        }
        answer => Ok(answer?),
    }
}

/// Whether a server has refused a request, so that nothing happened.
pub(crate) fn is_refusal(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(client::Error::Fs(_) | client::Error::Refused(_) | client::Error::TokenExpired) => {
            true
        }
        Some(client::Error::SessionLost | client::Error::Silent(..) | client::Error::Closed)
        | None => false,
    }
}

/// A directory of this machine, or servers: what `bench` takes.
pub(crate) enum Place {
    Servers(Vec<String>),
    Directory(PathBuf),
}

/// Tells the two apart: what exists as a directory is one.
pub(crate) fn place(text: &str) -> anyhow::Result<Place> {
    if Path::new(text).is_dir() {
        return Ok(Place::Directory(PathBuf::from(text)));
    }
    match servers(text) {
        Ok(Servers(servers)) => Ok(Place::Servers(servers)),
        Err(_) => Err(usage(format!("{text} is neither a directory nor HOST:PORT"))),
    }
}
