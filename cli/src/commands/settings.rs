//! `pando set` and `pando get`: settings of a file system, or of a directory, that can be changed any time.

use std::{ffi::OsString, io::IsTerminal as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use client::Client;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::{
    fs::{XattrFlags, lsetxattr},
    io::Errno,
};
use wire::XattrMode;

use super::info;
use crate::{
    connect::{self, Servers, TokenArgs},
    failure::usage,
    output,
};

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// What `get` prints; what else is told of a directory is for `info`.
const SHOWN: [&str; 13] = [
    "compression",
    "inherit",
    "inline_max",
    "large_dir",
    "partitions",
    "quota.bytes",
    "quota.entries",
    "quota.state",
    "split_threshold",
    "spread",
    "trash_days",
    "used.bytes",
    "used.entries",
];

/// What is of directories of several servers only.
const DIVIDES: [&str; 3] = ["large_dir", "split_threshold", "spread"];

/// Change settings of a file system, or of a directory.
///
/// Of a directory: quota.bytes and quota.entries limit what is used below it, as a number with K, M, G or T (of
/// 1024) after it; `unlimited` only counts, so that `pando du` need not walk; `none` takes the limit away. What
/// is there already is counted first, and the command waits for that; Ctrl-C leaves the server counting.
///
/// Of a directory of a file system of several servers: a partition with split_threshold entries (8000, if nothing is set)
/// splits (from 1000 on, later ones at 0.75 to 1.25 of that, so that they do not all split at once), and what has become small is
/// merged again. spread says how: extendible, which is usual, splits each partition by
/// itself and gives each one range of a listing; subsets keeps as many as the size needs and scatters names over all; and none
/// keeps the directory in one. As long as nothing is in it, large_dir divides it at once into so many partitions, and it
/// never has fewer; `none` is one; set spread before.
///
/// Of any directory: inline_max, the bytes up to which contents of files that are made in it are kept with their metadata, if
/// the file system does not say fewer. inherit=yes: directories that are made in it have its inline_max, and are divided as
/// it is.
///
/// Of the whole file system, set on its root: inline_max, for all files; and trash_days, for how long what is removed is kept (see `pando restore`): 0 is not at all,
/// and empties the trash.
///
/// Needs root, and the administrator's token: here, or when PATH was mounted.
#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// A directory on a mount, or HOST:PORT for the root of a server, or HOST:PORT/PATH.
    #[arg(value_name = "PLACE")]
    place: OsString,
    /// What to set.
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = pair)]
    pairs: Vec<(String, String)>,
    #[command(flatten)]
    token: TokenArgs,
}

/// Print the settings of a directory, and what is used below it if that is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// A directory on a mount, or HOST:PORT for the root of a server, or HOST:PORT/PATH.
    #[arg(value_name = "PLACE")]
    place: OsString,
    /// Only these.
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        Some(_) | None => Err("it is not KEY=VALUE".to_owned()),
    }
}

pub(crate) fn set(args: &Set) -> anyhow::Result<ExitCode> {
    let place = Place::open(&args.place, &args.token)?;
    for (key, value) in &args.pairs {
        place.set(key, value)?;
    }
    let bar = bar();
    while let Some(counted) = place.counting()? {
        bar.set_message(format!("counting what is there: {counted} so far"));
        place.pause();
    }
    bar.finish_and_clear();
    place.close()?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn get(args: &Get) -> anyhow::Result<ExitCode> {
    let place = Place::open(&args.place, &args.token)?;
    let mut facts = place.facts()?;
    place.close()?;
    facts.retain(|key, _| SHOWN.contains(&key.as_str()));
    for key in &args.keys {
        if !SHOWN.contains(&key.as_str()) {
            bail!("there is no setting {key}; known are {}", SHOWN.join(", "));
        }
    }
    facts.retain(|key, _| args.keys.is_empty() || args.keys.contains(key));
    if args.json {
        output::print_json(&facts)?;
    } else {
        let rows: Vec<_> = facts.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        output::print(&output::rows(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg}");
    ProgressBar::new_spinner().with_style(style.expect("the template is well-formed"))
}

type Facts = std::collections::BTreeMap<String, String>;

/// A directory, however it is reached.
enum Place {
    Mounted(PathBuf),
    Served { runtime: tokio::runtime::Runtime, client: Client, path: String },
}

impl Place {
    fn open(place: &OsString, token: &TokenArgs) -> anyhow::Result<Place> {
        let path = PathBuf::from(place);
        if path.exists() {
            return Ok(Place::Mounted(path));
        }
        let text = place.to_string_lossy();
        let (servers, path) = match text.split_once('/') {
            Some((servers, path)) => (servers, format!("/{path}")),
            None => (&*text, "/".to_owned()),
        };
        let Ok(Servers(servers)) = connect::servers(servers) else {
            return Err(usage(format!("{text} is neither there nor HOST:PORT")));
        };
        let config = connect::config(servers, token.read()?, "pando set");
        let runtime = connect::runtime()?;
        let client = runtime.block_on(connect::connect(config))?;
        Ok(Place::Served { runtime, client, path })
    }

    fn set(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let name = format!("pando.{key}");
        let done = match self {
            Place::Mounted(path) => lsetxattr(path, name, value.as_bytes(), XattrFlags::empty())
                .map_err(|errno| errno.raw_os_error()),
            Place::Served { runtime, client, path } => {
                let set = client.set_xattr(path, &name, value.as_bytes(), XattrMode::Set);
                match runtime.block_on(set) {
                    Err(client::Error::Fs(error)) => Err(error.errno()),
                    other => return Ok(other?),
                }
            }
        };
        done.map_err(|errno| match Errno::from_raw_os_error(errno) {
            Errno::PERM => anyhow!("only root with an administrator's token may set {key}"),
            Errno::OPNOTSUPP if DIVIDES.contains(&key) => {
                anyhow!("a file system of one server divides no directory: it has no {key}")
            }
            Errno::NOTEMPTY => anyhow!("{key} is set on a directory before anything is in it"),
            Errno::OPNOTSUPP => anyhow!("there is no setting {key}"),
            Errno::INVAL => anyhow!("{key}={value} does not fit here: see `pando set --help`"),
            Errno::BUSY => anyhow!("another quota is being counted; try again when it is done"),
            other => anyhow::Error::new(other).context(format!("cannot set {key}")),
        })
    }

    fn facts(&self) -> anyhow::Result<Facts> {
        match self {
            Place::Mounted(path) => info::facts(path).map(|facts| {
                let text = |value: serde_json::Value| {
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                };
                facts.into_iter().map(|(key, value)| (key, text(value))).collect()
            }),
            Place::Served { runtime, client, path } => {
                let lines = runtime.block_on(client.info(path));
                Ok(lines.with_context(|| format!("cannot ask about {path}"))?.into_iter().collect())
            }
        }
    }

    /// Lets the server count on.
    #[expect(clippy::disallowed_methods, reason = "a command waits for a server")]
    fn pause(&self) {
        match self {
            Place::Mounted(_) => std::thread::sleep(POLL_INTERVAL),
            Place::Served { runtime, .. } => {
                // The timer needs the runtime when it is made.
                runtime.block_on(async { tokio::time::sleep(POLL_INTERVAL).await });
            }
        }
    }

    /// How many inodes were counted so far, while they are.
    fn counting(&self) -> anyhow::Result<Option<String>> {
        let facts = self.facts()?;
        let busy = facts.get("quota.state").is_some_and(|state| state != "active");
        Ok(busy.then(|| facts.get("used.entries").cloned().unwrap_or_default()))
    }

    fn close(self) -> anyhow::Result<()> {
        match self {
            Place::Mounted(_) => Ok(()),
            Place::Served { runtime, client, .. } => Ok(runtime.block_on(client.close())?),
        }
    }
}
