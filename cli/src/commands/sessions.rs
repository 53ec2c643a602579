//! `pando sessions`: who is connected, and the end of a session.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use base::SessionId;
use serde::Serialize;

use crate::{
    connect::{self, Servers, TokenArgs},
    output,
};

/// List the sessions of a server, or end one. Needs the administrator's token.
///
/// A session that is evicted loses its open files and its locks; its client opens another one. Whoever has a token
/// can come back: to keep somebody out, their token must expire.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// End this session; its id is the first column.
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
            let evicted = match client.evict(session).await {
                Err(client::Error::Fs(base::FsError::NotFound)) => {
                    Err(anyhow!("there is no session {session}"))
                }
                evicted => connect::for_administrators(evicted),
            };
            client.close().await?;
            return evicted.context("cannot end the session");
        }
        let sessions = connect::for_administrators(client.sessions().await)?;
        client.close().await?;
        let sessions: Vec<Session> = sessions.into_iter().map(Session::from).collect();
        if args.json { output::print_json(&sessions) } else { output::print(&to_text(&sessions)) }
    })?;
    Ok(ExitCode::SUCCESS)
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

fn to_text(sessions: &[Session]) -> String {
    let row = |session: &Session| {
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
    };
    let heads = ["SESSION", "OPEN", "LOCKS", "SILENT", "TREE", "CLIENT"];
    output::table(&heads, &sessions.iter().map(row).collect::<Vec<_>>())
}
