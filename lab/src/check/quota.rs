//! The usage charged to a quota equals what is below its directory, summed over all servers, after
//! everything that happened.
//!
//! In some worlds `/` has a quota, from the beginning or from some moment on. It may also have been
//! removed and set again meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use base::{Account, FileKind, FsError};
use client::{Client, Error, OpenOptions};
use wire::{AccountLimits, AccountUse, XattrMode};

use super::tree::Tree;
use crate::sim::{plan::Quotas, work::filled, world::World};

const BYTES: &str = "bytes";
/// Interval at which the check looks whether counting has ended.
const PERIOD: Duration = Duration::from_millis(200);
/// Maximum number of attempts to set a quota while servers die. A count begins anew with its
/// coordinator, so where that never lives long enough, the quota stays as it is.
const LOOKS_MAX: u32 = 25;

/// Sets, removes and sets the quota of `/` again while workloads run, as the plan says.
///
/// # Errors
/// When the quota is refused.
pub async fn run(world: World) -> anyhow::Result<()> {
    let random = world.random("quotas");
    let machine = world.connect("quotas").await?;
    let client = &machine.client;
    match world.plan().quotas {
        Quotas::None => {}
        Quotas::Before => try_to_set(&world, client, "unlimited").await?,
        Quotas::Meanwhile => {
            world.wait(random.ms(0..3000)).await;
            try_to_set(&world, client, "unlimited").await?;
        }
        Quotas::Again => {
            try_to_set(&world, client, "unlimited").await?;
            world.wait(random.ms(0..2000)).await;
            try_to_set(&world, client, "none").await?;
            world.wait(random.ms(0..2000)).await;
            try_to_set(&world, client, "unlimited").await?;
        }
    }
    machine.close().await
}

/// Sets the quota of `/` if that does not take too long, and counts whether it did.
async fn try_to_set(world: &World, client: &Client, max: &str) -> anyhow::Result<()> {
    let set = set_of(world, client, ("/", BYTES), max, LOOKS_MAX).await?;
    world.count(|counts| {
        counts.quotas_set += u64::from(set);
        counts.quotas_left += u64::from(!set);
    });
    Ok(())
}

/// Sets a limit of `entries` or `bytes`. The limit is enforced when this returns.
///
/// # Errors
/// When the limit is refused.
pub async fn limit(
    world: &World,
    client: &Client,
    path: &str,
    what: &str,
    max: u64,
) -> anyhow::Result<()> {
    ensure!(set_of(world, client, (path, what), &max.to_string(), u32::MAX).await?);
    used(world, client, path).await.map(drop)
}

/// Sets a limit of a user. The limit is enforced on all servers when this returns.
///
/// # Errors
/// When the limit is refused.
pub async fn limit_user(
    world: &World,
    client: &Client,
    uid: u32,
    what: &str,
    max: u64,
) -> anyhow::Result<()> {
    let setting = format!("user.{uid}.{what}");
    ensure!(set_of(world, client, ("/", &setting), &max.to_string(), u32::MAX).await?);
    for server in client.members() {
        loop {
            let limits = limits_of(&client.accounts(server).await?, uid);
            let here = match what {
                BYTES => limits.and_then(|limits| limits.bytes_max),
                _ => limits.and_then(|limits| limits.entries_max),
            };
            if here == Some(max) {
                break;
            }
            world.wait(PERIOD).await;
        }
    }
    Ok(())
}

fn limits_of(accounts: &[AccountUse], uid: u32) -> Option<AccountLimits> {
    let user = Account::User(uid).number();
    accounts.iter().find(|told| told.account == user)?.limits
}

/// Sets a quota. `false`: counting for the previous setting has not ended in `looks_max` looks.
async fn set_of(
    world: &World,
    client: &Client,
    (path, what): (&str, &str),
    max: &str,
    looks_max: u32,
) -> anyhow::Result<bool> {
    let name = format!("pando.quota.{what}");
    for _ in 0..looks_max {
        match client.set_xattr(path, &name, max.as_bytes(), XattrMode::Set).await {
            Ok(()) => return Ok(true),
            Err(Error::Fs(FsError::Busy)) => world.wait(PERIOD).await,
            Err(error) => return Err(error).context("a quota is refused"),
        }
    }
    Ok(false)
}

/// The facts that `pando get` prints about a path.
///
/// # Errors
/// When the server gives no facts.
pub async fn facts(client: &Client, path: &str) -> anyhow::Result<BTreeMap<String, String>> {
    Ok(client.info(path).await.with_context(|| format!("info of {path}"))?.into_iter().collect())
}

/// Waits until counting has ended. Returns the usage below a directory: inodes and allocated bytes.
///
/// # Errors
/// When the directory has no quota.
pub async fn used(world: &World, client: &Client, path: &str) -> anyhow::Result<(u64, u64)> {
    loop {
        let facts = facts(client, path).await?;
        let fact = |name: &str| facts.get(name).with_context(|| format!("{path} has no {name}"));
        if fact("quota.state")? == "active" {
            return Ok((fact("used.entries")?.parse()?, fact("used.bytes")?.parse()?));
        }
        world.wait(PERIOD).await;
    }
}

/// Fills the directory with limits, or that of the user with limits, if there is one, and checks
/// that exactly as many bytes and inodes fit as the limits allow.
///
/// # Errors
/// When more or fewer fit.
pub async fn fill(world: &World, client: &Client) -> anyhow::Result<()> {
    let top = filled::path(0);
    let facts: BTreeMap<_, _> = match client.info(&top).await {
        Err(Error::Fs(FsError::NotFound)) => return Ok(()),
        info => info?.into_iter().collect(),
    };
    // A power cut may have lost the limit.
    let of_user = limits_of(&client.accounts(0).await?, filled::USER);
    let max = |name: &str| facts.get(name).and_then(|max| max.parse::<u64>().ok());
    let bytes_max = max("quota.bytes").or(of_user.and_then(|limits| limits.bytes_max));
    let entries_max = max("quota.entries").or(of_user.and_then(|limits| limits.entries_max));
    let client = if of_user.is_some() { &client.as_user(filled::user()) } else { client };
    let path = |number| format!("{top}/in-the-end-{number}");
    if let Some(max) = bytes_max {
        fill_bytes(world, client, &top, max).await.context("a limit of bytes")?;
    }
    let Some(max) = entries_max else { return Ok(()) };
    until_full(max + 1, async |number| client.mkdir(path(number), 0o755).await.map(drop)).await?;
    let there = match of_user {
        // Directories in the trash count for the user, too.
        Some(_) => inodes_of_user(client).await?,
        None => walk(client, &top).await?.0,
    };
    ensure!(there == max, "{there} are below {top} when it is full, and {max} may be");
    Ok(())
}

/// The inodes of the limited user, as all servers together say.
async fn inodes_of_user(client: &Client) -> anyhow::Result<u64> {
    let user = Account::User(filled::USER).number();
    let mut sum = 0;
    for server in client.members() {
        let told = client.accounts(server).await?;
        sum += told
            .iter()
            .filter(|told| told.account == user)
            .map(|told| told.used.entries)
            .sum::<i64>();
    }
    Ok(u64::try_from(sum)?)
}

/// Writes one file with as many bytes as there is room for, and checks that one more is refused.
async fn fill_bytes(world: &World, client: &Client, top: &str, max: u64) -> anyhow::Result<()> {
    let (_, there) = walk(client, top).await?;
    let Some(room) = max.checked_sub(there) else {
        // Directories whose entries were lost in a power cut have got them back since.
        ensure!(world.plan().is_lossy(), "{there} bytes are below {top}, and {max} may be");
        return Ok(());
    };
    let path = format!("{top}/in-the-end");
    let file = match client.open_with(&path, OpenOptions::both().create_new(0o644)).await {
        // No room for another inode.
        Err(Error::Fs(FsError::QuotaExceeded)) => return Ok(()),
        file => file?,
    };
    let room = usize::try_from(room)?;
    file.write_at(0, &vec![7; room]).await?;
    file.flush().await.with_context(|| format!("there is room for {room} bytes"))?;
    let passes = async {
        file.write_at(room as u64, &[7]).await?;
        file.flush().await
    };
    match passes.await {
        Err(Error::Fs(FsError::QuotaExceeded)) => {}
        other => bail!("a byte more than {max} gives {other:?}"),
    }
    file.close().await?;
    let (_, there) = walk(client, top).await?;
    ensure!(there == max, "{there} bytes are below {top} when it is full, and {max} may be");
    Ok(())
}

/// Calls `make` until the quota refuses it, at most `max` times. Returns how often it succeeded.
///
/// # Errors
/// Any error of `make` but a full quota.
pub async fn until_full(
    max: u64,
    make: impl AsyncFn(u64) -> client::Result<()>,
) -> anyhow::Result<u64> {
    for number in 0..max {
        match make(number).await {
            Ok(()) => {}
            Err(Error::Fs(FsError::QuotaExceeded)) => return Ok(number),
            Err(error) => return Err(error).context("a limit"),
        }
    }
    Ok(max)
}

/// Counts what is below a directory: inodes, with the directory itself, and allocated bytes. A file
/// with several names is counted once.
///
/// # Errors
/// When a directory cannot be listed or an inode cannot be read.
pub async fn walk(client: &Client, top: &str) -> anyhow::Result<(u64, u64)> {
    let (mut inos, mut bytes) = (BTreeSet::new(), 0);
    let mut dirs = vec![top.trim_end_matches('/').to_owned()];
    inos.insert(client.lstat(top).await?.ino);
    while let Some(dir) = dirs.pop() {
        let listed = if dir.is_empty() { "/" } else { &dir };
        for entry in client.read_dir(listed).await?.all().await? {
            let path = format!("{dir}/{}", entry.name);
            let attr = client.lstat(&path).await?;
            if inos.insert(attr.ino) {
                bytes += attr.allocated;
            }
            if attr.kind == FileKind::Directory {
                dirs.push(path);
            }
        }
    }
    Ok((inos.len() as u64, bytes))
}

/// Compares the counted usage of `/` with a walk.
///
/// # Errors
/// When they differ.
pub async fn check(world: &World, client: &Client, tree: &Tree) -> anyhow::Result<()> {
    if world.plan().quotas == Quotas::None {
        return Ok(());
    }
    // A power cut may have lost the quota.
    ensure!(set_of(world, client, ("/", BYTES), "unlimited", u32::MAX).await?);
    let used = used(world, client, "/").await?;
    let bytes = tree.inodes.values().map(|(attr, _)| attr.allocated).sum::<u64>();
    let there = (tree.inodes.len() as u64, bytes);
    ensure!(used == there, "(entries, bytes) counted are {used:?}, but there are {there:?}");
    Ok(())
}
