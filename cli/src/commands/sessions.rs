//! `pando sessions`: connected clients, and the end of a session.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use base::{FsError, SessionId};
use client::Client;
use serde::Serialize;

use super::everywhere;
use crate::connect::{self, Servers, TokenArgs};

/// List the sessions of a file system, or end one. Needs the administrator's token.
///
/// An evicted session loses its open files and its locks, and its client opens another session with
/// the same token. To keep a client out, revoke its token (`pando token revoke`).
///
/// Each server of a cluster lists its own sessions, with their files and locks there. Eviction ends
/// a session on all servers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// End this session, by its id in the first column.
    #[arg(long, value_name = "ID", value_parser = session_id)]
    evict: Option<SessionId>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A session's id as it is printed; for clap.
pub(crate) fn session_id(text: &str) -> Result<SessionId, String> {
    u64::from_str_radix(text, 16)
        .map(SessionId)
        .map_err(|_| format!("{text:?} is no id of a session: `pando sessions` shows them"))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0, args.token.read()?, "pando sessions");
    connect::runtime()?.block_on(async {
        let client = connect::connect(config).await?;
        if let Some(session) = args.evict {
            let evicted = Box::pin(evict(&client, session)).await;
            client.close().await?;
            return evicted.context("cannot end the session");
        }
        let sessions = everywhere::ask(&client, async |server: everywhere::Server<'_>| {
            let sessions = server.answer(client.sessions(server.number)).await?;
            Ok(sessions.into_iter().map(Session::from).collect())
        });
        let sessions = Box::pin(sessions).await?;
        client.close().await?;
        let heads = ["SESSION", "OPEN", "LOCKS", "SILENT", "TREE", "CLIENT"];
        sessions.print(args.json, &heads, cells)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends a session wherever it is: where it began first, as the others take it in while that server
/// has it.
async fn evict(client: &Client, session: SessionId) -> anyhow::Result<()> {
    let ended = everywhere::ask_first(client, async |server: everywhere::Server<'_>| {
        let evicted = async {
            match client.evict(server.number, session).await {
                Ok(()) => Ok(vec![()]),
                Err(client::Error::Fs(FsError::NotFound)) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        server.answer(evicted).await
    });
    let ended = ended.await?;
    ended.complete("the session may go on there")?;
    if ended.is_empty() {
        bail!("there is no session {session}: `pando sessions` lists them");
    }
    Ok(())
}

#[derive(Serialize)]
struct Session {
    session: String,
    client: String,
    idle_ms: u64,
    open_files: u64,
    locks_held: u64,
    locks_waiting: u64,
    /// `None` when its client has not come back since a restart.
    path: Option<String>,
    uid: Option<u32>,
    read_only: bool,
}

impl From<wire::SessionDetail> for Session {
    fn from(detail: wire::SessionDetail) -> Session {
        Session {
            session: detail.session.to_string(),
            client: detail.client,
            idle_ms: detail.idle_ms,
            open_files: detail.open_files,
            locks_held: detail.locks_held,
            locks_waiting: detail.locks_waiting,
            path: detail.path,
            uid: detail.uid,
            read_only: detail.read_only,
        }
    }
}

fn cells(session: &Session) -> Vec<String> {
    let idle = Duration::from_secs(session.idle_ms / 1000);
    let mut may = session.path.clone().unwrap_or_else(|| "(not back yet)".to_owned());
    if let Some(uid) = session.uid {
        may += &format!(" as {uid}");
    }
    if session.read_only {
        may += " read-only";
    }
    vec![
        session.session.clone(),
        session.open_files.to_string(),
        match session.locks_waiting {
            0 => session.locks_held.to_string(),
            waiting => format!("{}, waits for {waiting}", session.locks_held),
        },
        humantime::format_duration(idle).to_string(),
        may,
        session.client.clone(),
    ]
}
