//! `pando watch`: what changes below a directory, at any client.

use std::{
    ffi::{OsStr, OsString},
    mem,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use client::{Change, Client, Error, FileChange, News, Position, Watch, WatchOptions};
use serde::Serialize;

use crate::{
    connect::{self, Credentials, Servers, TokenArgs},
    failure, mounts, output,
    signals::Stop,
    values,
};

/// Print what changes in a directory and below it, at any client.
///
/// Each line has the time, the change and the path: created, linked, removed, moved-from, moved-to,
/// attributes, and written, when a file that was written is closed. Names that the token may not
/// list are left out. The changes of one server come in their order.
///
/// At the beginning and the end, on stderr, and in each line of JSON there is a position: with
/// --since the command goes on after it. Servers record changes from the first watch until --keep
/// after the last one, the newest million of each server. When some are lost, the line `gap` says
/// so: then look at everything again.
///
/// Exit codes: 0 it was interrupted, or all is told; 1 something failed, or a server did not answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory on a mount, or HOST:PORT/PATH.
    #[arg(value_name = "PATH")]
    place: OsString,
    #[command(flatten)]
    token: TokenArgs,
    /// Begin with what changed after this position, and not now.
    #[arg(long, value_name = "POSITION")]
    since: Option<Position>,
    /// Print what has changed since the position, and end.
    #[arg(long, requires = "since")]
    once: bool,
    /// How long the servers record changes after the last watch has ended: a minute to a week. An
    /// hour at most with a token that is bound to a user or a directory.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::length)]
    keep: Duration,
    /// Print JSON, an object in each line.
    #[arg(long)]
    json: bool,
}

/// Time to leave the servers.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A line of JSON.
#[derive(Default, Serialize)]
struct Line {
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The bytes of the path in hex, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
    position: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let at = At::of(args)?;
    let runtime = connect::runtime()?;
    runtime.block_on(Box::pin(watch(&at, args)))
}

/// The directory that is watched, at its servers. A session that is lost, as nobody has read the
/// output for long or the servers were away, is followed by another one from the same position.
struct At {
    servers: Vec<String>,
    credentials: Credentials,
    path: PathBuf,
    /// Where its paths are printed to be.
    above: PathBuf,
    /// Inode number of the directory, if it was given by a path on a mount.
    ino: Option<u64>,
}

impl At {
    fn of(args: &Args) -> anyhow::Result<At> {
        let credentials = || args.token.read();
        let path = Path::new(&args.place);
        let Ok(there) = path.metadata() else {
            let bytes = args.place.as_bytes();
            let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
            let (servers, path) = bytes.split_at(slash);
            let Ok(Servers(servers)) = connect::servers(&String::from_utf8_lossy(servers)) else {
                let place = args.place.display();
                return Err(failure::usage(format!(
                    "{place} is neither an existing path nor HOST:PORT"
                )));
            };
            let path = Path::new("/").join(OsStr::from_bytes(path));
            return Ok(At {
                servers,
                credentials: credentials()?,
                above: path.clone(),
                path,
                ino: None,
            });
        };
        let mount = mounts::holding(path)?
            .with_context(|| format!("{} is not on a mount of pando", path.display()))?;
        let servers = mount.servers().with_context(|| {
            let mount = mount.path.display();
            format!("the mount at {mount} has its server within: give HOST:PORT/PATH")
        })?;
        let whole =
            path.canonicalize().with_context(|| format!("cannot use {}", path.display()))?;
        let below = whole.strip_prefix(&mount.path).ok().map(|below| Path::new("/").join(below));
        let elsewhere = || format!("{} is not below {}", whole.display(), mount.path.display());
        let below = below.with_context(elsewhere)?;
        let (above, ino) = (path.to_owned(), Some(there.ino()));
        Ok(At { servers, credentials: credentials()?, path: below, above, ino })
    }

    async fn connect(&self) -> anyhow::Result<Client> {
        let (servers, credentials) = (self.servers.clone(), self.credentials.clone());
        connect::connect(connect::config(servers, credentials, "pando watch")).await
    }

    /// Begins to watch, where the mount has the directory, too.
    async fn begin(&self, client: &Client, options: WatchOptions) -> anyhow::Result<Watch> {
        let shown = self.path.display();
        let failed = |error| match error {
            Error::Fs(base::FsError::Invalid) => {
                failure::usage("the position is of another file system")
            }
            error => anyhow::Error::new(error).context(format!("cannot watch {shown}")),
        };
        if let Some(ino) = self.ino {
            let there = client.stat(&self.path).await.map(|attr| attr.ino.0);
            if there.ok() != Some(ino) {
                bail!(
                    "the mount shows another tree than the token: {shown} is another directory \
                     there; give HOST:PORT/PATH"
                );
            }
        }
        client.watch(&self.path, options).await.map_err(failed)
    }
}

async fn watch(at: &At, args: &Args) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::listen()?;
    let (mut since, mut is_anew) = (args.since.clone(), true);
    loop {
        let client = tokio::select! {
            client = Box::pin(at.connect()) => match client {
                // The servers may be away for longer than a session lasts. A refusal is final.
                Err(error) if !is_anew && !error.is::<Error>() => {
                    tracing::warn!("{error:#}");
                    continue;
                }
                client => client?,
            },
            () = stop.asked() => return Ok(ExitCode::SUCCESS),
        };
        let options = WatchOptions { since: since.clone(), follow: !args.once, keep: args.keep };
        let told = tokio::select! {
            begun = Box::pin(at.begin(&client, options)) => match begun {
                Ok(mut watch) => {
                    if mem::take(&mut is_anew) {
                        say(at, &watch, args)?;
                    }
                    let told = print(&mut watch, &at.above, &mut stop, args.json).await;
                    since = Some(watch.position().clone());
                    told
                }
                Err(error) => Err(error),
            },
            () = stop.asked() => Ok(ExitCode::SUCCESS),
        };
        let is_lost = |error: &anyhow::Error| {
            matches!(error.downcast_ref(), Some(Error::SessionLost)) && since.is_some()
        };
        if let Err(error) = &told
            && is_lost(error)
        {
            tracing::warn!("the session was lost: goes on with another one");
            continue;
        }
        if let Some(since) = since.filter(|_| !args.json) {
            eprintln!("position {since}");
        }
        // A server may be away.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, client.close()).await;
        return told;
    }
}

/// Says that the watch has begun, and with which position.
fn say(at: &At, watch: &Watch, args: &Args) -> anyhow::Result<()> {
    let position = watch.position();
    if args.json {
        let begins = Line { change: "begins", position: position.to_string(), ..Line::default() };
        output::print(&serde_json::to_string(&begins)?)?;
    }
    if !args.once {
        eprintln!("watching {}; position {position}", at.path.display());
    }
    Ok(())
}

/// Prints all news until there are no more, or somebody asks for the end.
async fn print(
    watch: &mut Watch,
    above: &Path,
    stop: &mut Stop,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut is_gone = false;
    loop {
        let news = tokio::select! {
            news = watch.next() => news,
            () = stop.asked() => return Ok(code),
        };
        let news = match news {
            None if is_gone => bail!("the directory is gone"),
            None => return Ok(code),
            Some(Ok(news)) => news,
            Some(Err(error @ Error::Silent(..))) => {
                eprintln!(
                    "error: {error}, or needs another one; not all changes there are printed"
                );
                code = failure::failed();
                continue;
            }
            Some(Err(Error::Fs(base::FsError::Stale))) => bail!("the directory is gone"),
            Some(Err(error)) => return Err(anyhow::Error::new(error)),
        };
        is_gone = news.is_end();
        if json {
            output::print(&serde_json::to_string(&line(&news, above, watch.position()))?)?;
        } else {
            output::print(&text(&news, above))?;
        }
    }
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Created => "created",
        Change::Linked => "linked",
        Change::Removed => "removed",
        Change::MovedFrom => "moved-from",
        Change::MovedTo => "moved-to",
        Change::Attributes => "attributes",
        Change::Written => "written",
    }
}

fn time(change: &FileChange) -> String {
    let since = Duration::new(u64::try_from(change.time.sec).unwrap_or(0), change.time.nsec);
    humantime::format_rfc3339_micros(SystemTime::UNIX_EPOCH + since).to_string()
}

fn path_of(change: &FileChange, above: &Path) -> PathBuf {
    if change.path.as_os_str().is_empty() { above.to_owned() } else { above.join(&change.path) }
}

fn text(news: &News, above: &Path) -> String {
    match news {
        News::Change(change) => {
            let path = path_of(change, above);
            let slash = if change.kind == Some(base::FileKind::Directory) { "/" } else { "" };
            let path = path.to_string_lossy();
            let path = output::clean(path.trim_end_matches('/'));
            format!("{}  {:10}  {path}{slash}", time(change), word(change.change))
        }
        News::Gap { server } => {
            format!("gap: changes at server {server} are lost; look at everything again")
        }
    }
}

fn line(news: &News, above: &Path, position: &Position) -> Line {
    let position = position.to_string();
    match news {
        News::Change(change) => {
            let path = path_of(change, above);
            let bytes = path.as_os_str().as_bytes();
            let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Line {
                change: word(change.change),
                path: Some(path.to_string_lossy().into_owned()),
                path_hex: path.to_str().is_none().then(hex),
                inode: Some(change.ino.0),
                kind: change.kind.map(kind),
                time: Some(time(change)),
                server: Some(change.server),
                position,
            }
        }
        News::Gap { server } => {
            Line { change: "gap", server: Some(*server), position, ..Line::default() }
        }
    }
}

fn kind(kind: base::FileKind) -> &'static str {
    match kind {
        base::FileKind::File => "file",
        base::FileKind::Directory => "directory",
        base::FileKind::Symlink => "symlink",
        base::FileKind::Fifo => "fifo",
        base::FileKind::Socket => "socket",
        base::FileKind::CharDevice => "char-device",
        base::FileKind::BlockDevice => "block-device",
    }
}
