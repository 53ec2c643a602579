//! `pando set` and `pando get`: settings of a file system, or of a directory, that can be changed
//! any time.

mod rules;

use std::{ffi::OsString, io::IsTerminal as _, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use base::Account;
use client::Client;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use serde_json::json;

use super::{
    place::{Place, Served},
    trash,
};
use crate::{connect::TokenArgs, output};

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Settings that `get` prints; `info` shows the other facts of a directory.
const SHOWN: [&str; 14] = [
    "compression",
    "inherit",
    "inline_max",
    "large_dir",
    "locality",
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

/// Settings that only directories of several servers have.
const DIVIDES: [&str; 3] = ["large_dir", "split_threshold", "spread"];

/// Change settings of a file system, or of a directory.
///
/// Needs root and the administrator's token, given here or to the mount of PATH. A new quota first
/// counts what exists. The command waits for that, and Ctrl-C leaves the server counting.
#[derive(Debug, clap::Args)]
#[command(after_long_help = rules::help())]
pub(crate) struct Set {
    /// A directory on a mount, or HOST:PORT for the root of a server, or HOST:PORT/PATH.
    #[arg(value_name = "PLACE")]
    place: OsString,
    /// Settings with their values.
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = pair)]
    pairs: Vec<(String, String)>,
    /// Let trash_days=0 empty the trash.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    token: TokenArgs,
}

/// Print the settings of a directory, and its usage if that is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// A directory on a mount, or HOST:PORT for the root of a server, or HOST:PORT/PATH.
    #[arg(value_name = "PLACE")]
    place: OsString,
    /// Print only these settings.
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
        Some(_) | None => Err("not KEY=VALUE".to_owned()),
    }
}

pub(crate) fn set(args: &Set) -> anyhow::Result<ExitCode> {
    let place = Place::open(&args.place, &args.token, "pando set")?;
    let done = set_at(&place, args);
    place.close(done)?;
    Ok(ExitCode::SUCCESS)
}

/// Sets all values, or none when one of them cannot be set.
fn set_at(place: &Place, args: &Set) -> anyhow::Result<()> {
    let facts = place.facts()?;
    let mut numbered = Vec::new();
    for (key, value) in &args.pairs {
        if let Some(broken) = rules::broken(key, value, &facts) {
            return Err(anyhow!("{key}={value}: {broken}"));
        }
        let known = rules::in_numbers(key).map_err(|why| anyhow!("{key}={value}: {why}"))?;
        numbered.push((known, value));
    }
    let empties = |(key, value): &(String, String)| {
        key == "trash_days" && matches!(value.as_str(), "0" | "none")
    };
    if args.pairs.iter().any(empties) {
        may_empty(place, args.yes)?;
    }
    for (key, value) in &numbered {
        set_one(place, key, value)?;
    }
    if let Place::Served(Served { runtime, client, .. }) = place {
        for account in numbered.iter().filter_map(|(key, _)| rules::account_of(key)) {
            while !runtime.block_on(all_have_heard(client, account))? {
                place.pause(POLL_INTERVAL);
            }
        }
    }
    let bar = bar();
    while let Some(counted) = counting(place)? {
        bar.set_message(format!("counting what is there: {counted} so far"));
        place.pause(POLL_INTERVAL);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Whether all servers know the same limits of a user or a group: those of the first, who has them.
async fn all_have_heard(client: &Client, account: Account) -> anyhow::Result<bool> {
    let mut known = Vec::new();
    for server in client.members() {
        let told = Box::pin(client.accounts(server)).await?;
        let told = told.into_iter().find(|told| told.account == account.number());
        known.push(told.and_then(|told| told.limits));
    }
    Ok(known.windows(2).all(|pair| pair[0] == pair[1]))
}

/// Says how much is in the trash, and fails if there is anything and the user has not agreed to
/// lose it.
fn may_empty(place: &Place, yes: bool) -> anyhow::Result<()> {
    let things = match place {
        Place::Mounted(path) => trash::count_mounted(path).context("cannot read the trash")?,
        Place::Served(Served { runtime, client, .. }) => runtime.block_on(trash::count(client))?,
    };
    let goes = match things {
        0 => return Ok(()),
        1 => "1 entry of the trash will be deleted for good within two hours".to_owned(),
        things => {
            format!("{things} entries of the trash will be deleted for good within two hours")
        }
    };
    if !yes {
        bail!("{goes}; --yes confirms");
    }
    output::print(&goes)
}

fn set_one(place: &Place, key: &str, value: &str) -> anyhow::Result<()> {
    let done = place.set_xattr(&format!("pando.{key}"), value)?;
    done.map_err(|errno| match Errno::from_raw_os_error(errno) {
        Errno::PERM => anyhow!("only root with an administrator's token may set {key}"),
        Errno::OPNOTSUPP if DIVIDES.contains(&key) => {
            anyhow!("{key} needs several servers: one server divides no directory")
        }
        Errno::NOTEMPTY => anyhow!("{key} can only be set on an empty directory"),
        Errno::OPNOTSUPP => anyhow!("the server has no setting {key}"),
        Errno::INVAL => anyhow!("the server refuses {key}={value}: {}", rules::range(key)),
        Errno::BUSY => anyhow!("another quota is being counted; try again when it is done"),
        other => anyhow::Error::new(other).context(format!("cannot set {key}")),
    })
}

/// Returns the number of inodes counted so far, during a count.
fn counting(place: &Place) -> anyhow::Result<Option<String>> {
    let facts = place.facts()?;
    let busy = facts.get("quota.state").is_some_and(|state| state != "active");
    Ok(busy.then(|| facts.get("used.entries").cloned().unwrap_or_default()))
}

pub(crate) fn get(args: &Get) -> anyhow::Result<ExitCode> {
    let place = Place::open(&args.place, &args.token, "pando get")?;
    let facts = place.facts();
    let mut facts = place.close(facts)?;
    facts.retain(|key, _| SHOWN.contains(&key.as_str()));
    for key in &args.keys {
        if rules::is_owners(key) {
            bail!("`pando quota HOST:PORT` shows the limits of users and groups");
        }
        if !SHOWN.contains(&key.as_str()) {
            bail!("there is no setting {key}; known are {}", SHOWN.join(", "));
        }
    }
    facts.retain(|key, _| args.keys.is_empty() || args.keys.contains(key));
    if args.json {
        let number = |value: &String| value.parse::<u64>().map_or(json!(value), |n| json!(n));
        let facts: serde_json::Map<_, _> =
            facts.iter().map(|(key, value)| (key.clone(), number(value))).collect();
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
