//! `pando locks`: holders of file locks, and sessions that wait for them.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use base::{ByteRange, Ino, LockKind, LockMode, SessionId};
use client::Client;
use serde::Serialize;
use wire::{LockEntry, LocksQuery};

use super::{everywhere, sessions::session_id};
use crate::connect::{self, Servers, TokenArgs};

/// Number of locks that are asked for at a time.
const PAGE: u32 = 4096;

/// List file locks (flock, fcntl) that are held or waited for. Needs the administrator's token.
///
/// To release a lock, end its process on its machine, or evict its session with `pando sessions
/// --evict`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// List only locks of this file, by its path from the root of the file system.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// List only locks of this session, by its id in `pando sessions`.
    #[arg(long, value_name = "ID", value_parser = session_id)]
    session: Option<SessionId>,
    /// List only locks that are waited for.
    #[arg(long)]
    waiting: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Lock {
    ino: u64,
    /// `None` when it is not known.
    path: Option<String>,
    kind: &'static str,
    mode: &'static str,
    first: u64,
    /// The last byte; `None`: as far as the file may grow.
    last: Option<u64>,
    session: String,
    client: String,
    /// The process on the client's machine; `None` when it is not known.
    pid: Option<u32>,
    owner: u64,
    /// `None` when it is held.
    waiting_ms: Option<u64>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0.clone(), args.token.read()?, "pando locks");
    let locks = connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        let locks = Box::pin(list(&client, &args)).await;
        client.close().await?;
        locks
    })?;
    let heads = ["STATE", "MODE", "KIND", "BYTES", "PID", "SESSION", "CLIENT", "FILE"];
    locks.print(args.json, &heads, cells)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, args: &Args) -> anyhow::Result<everywhere::Found<Lock>> {
    let ino = match &args.path {
        Some(path) => {
            let attr = client.stat(path).await.map_err(|error| anyhow!(error));
            Some(attr.with_context(|| format!("cannot look at {path}"))?.ino)
        }
        None => None,
    };
    let query = LocksQuery { after: Ino(0), session: args.session, ino, max: PAGE };
    everywhere::ask(client, async |server| {
        let mut locks = list_at(server, query).await?;
        locks.retain(|lock| lock.waiting_ms.is_some() || !args.waiting);
        Ok(locks)
    })
    .await
}

/// The locks at a server.
async fn list_at(
    server: everywhere::Server<'_>,
    mut query: LocksQuery,
) -> anyhow::Result<Vec<Lock>> {
    let sessions = server.answer(server.client.sessions(server.number)).await?;
    let mut found: Vec<LockEntry> = Vec::new();
    loop {
        let page = server.answer(server.client.locks(server.number, query)).await?;
        found.extend(page.locks);
        match found.last() {
            Some(last) if !page.end => query.after = last.ino,
            Some(_) | None => break,
        }
    }
    let client_of = |session: SessionId| {
        let detail = sessions.iter().find(|detail| detail.session == session);
        detail.map_or_else(String::new, |detail| detail.client.clone())
    };
    Ok(found.into_iter().map(|lock| Lock::of(lock, client_of)).collect())
}

impl Lock {
    fn of(lock: LockEntry, client_of: impl Fn(SessionId) -> String) -> Lock {
        Lock {
            ino: lock.ino.0,
            path: (!lock.path.is_empty()).then_some(lock.path),
            kind: match lock.kind {
                LockKind::Range => "range",
                LockKind::Whole => "whole",
            },
            mode: match lock.mode {
                LockMode::Shared => "shared",
                LockMode::Exclusive => "exclusive",
            },
            first: lock.range.first,
            last: (lock.range.last < ByteRange::END).then_some(lock.range.last),
            client: client_of(lock.session),
            session: lock.session.to_string(),
            pid: (lock.pid != 0).then_some(lock.pid),
            owner: lock.owner,
            waiting_ms: lock.waiting_us.map(|us| us / 1000),
        }
    }

    fn bytes(&self) -> String {
        match (self.kind, self.last) {
            ("whole", _) | (_, None) if self.first == 0 => "all".to_owned(),
            (_, None) => format!("{}-", self.first),
            (_, Some(last)) => format!("{}-{last}", self.first),
        }
    }
}

fn cells(lock: &Lock) -> Vec<String> {
    let state = lock.waiting_ms.map_or_else(
        || "held".to_owned(),
        |ms| format!("waits {}", humantime::format_duration(Duration::from_secs(ms / 1000))),
    );
    vec![
        state,
        lock.mode.to_owned(),
        lock.kind.to_owned(),
        lock.bytes(),
        lock.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        lock.session.clone(),
        lock.client.clone(),
        lock.path.clone().unwrap_or_else(|| format!("(inode {})", lock.ino)),
    ]
}
