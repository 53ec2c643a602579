//! `pando token list`: the tokens of open sessions, and those that are revoked.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use base::SessionId;
use client::Client;
use serde::Serialize;
use wire::{KeysChange, SessionDetail};

use super::{id, moment};
use crate::{
    commands::everywhere,
    connect::{self, Servers, TokenArgs},
    output,
};

/// List the tokens of open sessions, and the revoked ones. Needs the administrator's token.
///
/// Servers keep no list of the tokens that were made: a token that no session uses is not shown.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// All that is known of tokens.
#[derive(Serialize)]
struct Tokens {
    used: Vec<Used>,
    revoked: Vec<Revoked>,
}

/// A token with which sessions are open.
#[derive(Serialize)]
struct Used {
    /// `None`: the token cannot be revoked.
    id: Option<String>,
    key: u32,
    /// Seconds since the Unix epoch; `None`: never.
    expires: Option<i64>,
    path: String,
    uid: Option<u32>,
    read_only: bool,
    sessions: usize,
}

#[derive(Serialize)]
struct Revoked {
    id: String,
    /// Seconds since the Unix epoch; `None`: never, or not known.
    expires: Option<i64>,
}

impl List {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = connect::config(self.server.0, self.token.read()?, "pando token list");
        let (tokens, sessions) = connect::runtime()?.block_on(async {
            let client = connect::connect(config).await?;
            let asked = Box::pin(ask(&client)).await;
            connect::close(&client, asked).await
        })?;
        if self.json {
            output::print_json(&tokens)?;
        } else {
            output::print(&tokens.to_text())?;
        }
        sessions.complete("its sessions are missing")?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn ask(client: &Client) -> anyhow::Result<(Tokens, everywhere::Found<SessionDetail>)> {
    let keys = connect::for_administrators(client.keys(KeysChange::Show).await)?;
    let sessions = sessions(client).await?;
    let revoked = keys
        .revoked
        .iter()
        .map(|token| Revoked { id: id(token.id), expires: token.expires.map(|time| time.sec) });
    let tokens = Tokens { used: used(sessions.rows()), revoked: revoked.collect() };
    Ok((tokens, sessions))
}

/// The sessions of all servers.
pub(super) async fn sessions(client: &Client) -> anyhow::Result<everywhere::Found<SessionDetail>> {
    everywhere::ask(client, async |server: everywhere::Server<'_>| {
        server.answer(client.sessions(server.number)).await
    })
    .await
}

/// The tokens of these sessions. A session counts once, at however many servers it is.
fn used<'a>(sessions: impl Iterator<Item = (u16, &'a SessionDetail)>) -> Vec<Used> {
    let mut found: BTreeMap<_, (&SessionDetail, BTreeSet<SessionId>)> = BTreeMap::new();
    for (_, session) in sessions {
        let Some(token) = session.token else { continue };
        let rights = (session.path.clone(), session.uid, session.read_only);
        let (_, ids) = found.entry((token, rights)).or_insert((session, BTreeSet::new()));
        ids.insert(session.session);
    }
    let used =
        |((token, (path, uid, read_only)), (_, ids)): ((wire::TokenShown, _), (_, BTreeSet<_>))| {
            let path: Option<String> = path;
            Used {
                id: (token.id != 0).then(|| id(token.id)),
                key: token.key,
                expires: token.expires.map(|time| time.sec),
                path: path.unwrap_or_default(),
                uid,
                read_only,
                sessions: ids.len(),
            }
        };
    found.into_iter().map(used).collect()
}

impl Tokens {
    fn to_text(&self) -> String {
        let until = |expires: Option<i64>| expires.map_or_else(|| "never".to_owned(), moment);
        let used = self.used.iter().map(|token| {
            let mut may = token.path.clone();
            if let Some(uid) = token.uid {
                may += &format!(" as {uid}");
            }
            if token.read_only {
                may += " read-only";
            }
            let id = token.id.clone().unwrap_or_else(|| "(none)".to_owned());
            vec![id, token.key.to_string(), token.sessions.to_string(), until(token.expires), may]
        });
        let revoked = self.revoked.iter().map(|token| {
            let dash = || "-".to_owned();
            vec![token.id.clone(), dash(), dash(), until(token.expires), "revoked".to_owned()]
        });
        let heads = ["TOKEN", "KEY", "SESSIONS", "ENDS", "TREE"];
        output::table(&heads, &used.chain(revoked).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use base::Time;
    use wire::TokenShown;

    use super::*;

    fn session(session: u64, id: u64, path: &str) -> SessionDetail {
        SessionDetail {
            session: SessionId(session),
            client: String::new(),
            idle_ms: 0,
            open_files: 0,
            locks_held: 0,
            locks_waiting: 0,
            path: Some(path.to_owned()),
            uid: None,
            read_only: false,
            token: Some(TokenShown { id, key: 1, expires: Some(Time { sec: 5, nsec: 0 }) }),
        }
    }

    #[test]
    fn a_session_counts_once_at_however_many_servers_it_is() {
        let not_back = SessionDetail { token: None, path: None, ..session(4, 0, "") };
        let sessions = [session(1, 7, "/a"), session(2, 7, "/a"), session(1, 7, "/a"), not_back];
        let found = used((0..).zip(&sessions));
        let of = |used: &Used| (used.id.clone(), used.key, used.sessions, used.expires);
        let seven = Some("0000000000000007".to_owned());
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), [(seven, 1, 2, Some(5))]);
    }
}
