//! Asking every server of a file system what it has, for lists that only all of them together can
//! give.
//!
//! A server that does not answer does not keep back what the others have: the list is printed, and
//! then the command fails.

use std::{fmt, time::Duration};

use anyhow::bail;
use client::Client;
use futures::future::join_all;
use serde::Serialize;

use crate::{connect, failure::usage, output};

/// Time-out after which a server among several counts as absent.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server did not answer in time.
#[derive(Debug)]
struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a server does not answer")
    }
}

impl std::error::Error for Silent {}

/// One of the servers.
pub(super) struct Server<'a> {
    pub(super) client: &'a Client,
    pub(super) number: u16,
}

impl Server<'_> {
    /// Waits for the server's answer. The only server is waited for, as by all commands.
    pub(super) async fn answer<T>(
        &self,
        asked: impl Future<Output = client::Result<T>>,
    ) -> anyhow::Result<T> {
        let answer = if self.client.servers() == 1 {
            asked.await
        } else {
            tokio::time::timeout(PATIENCE, asked).await.map_err(|_| Silent)?
        };
        connect::for_administrators(answer)
    }
}

/// Rows of all servers.
pub(super) struct Found<T> {
    rows: Vec<Row<T>>,
    servers: u16,
    silent: Vec<u16>,
}

#[derive(Serialize)]
struct Row<T> {
    /// Number of the server; `None` where there is one server only.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
    #[serde(flatten)]
    row: T,
}

/// Asks all servers at once.
pub(super) async fn ask<'a, T, F>(
    client: &'a Client,
    ask: impl Fn(Server<'a>) -> F,
) -> anyhow::Result<Found<T>>
where
    F: Future<Output = anyhow::Result<Vec<T>>>,
{
    ask_some(client, None, ask).await
}

/// Asks one of the servers, or all at once.
pub(super) async fn ask_some<'a, T, F>(
    client: &'a Client,
    only: Option<u16>,
    ask: impl Fn(Server<'a>) -> F,
) -> anyhow::Result<Found<T>>
where
    F: Future<Output = anyhow::Result<Vec<T>>>,
{
    let asked = numbers(client, only)?;
    let all = join_all(asked.iter().map(|number| ask(Server { client, number: *number }))).await;
    found(client, asked.into_iter().zip(all))
}

/// The number of the only server that is asked for, or those of all.
pub(super) fn numbers(client: &Client, only: Option<u16>) -> anyhow::Result<Vec<u16>> {
    let members = client.members();
    match only {
        Some(only) if !members.contains(&only) => {
            let all: Vec<String> = members.iter().map(ToString::to_string).collect();
            Err(usage(format!("there is no server {only}: servers are {}", all.join(", "))))
        }
        Some(only) => Ok(vec![only]),
        None => Ok(members),
    }
}

/// Asks the server where sessions begin, and when that has answered or is silent, all others at
/// once.
pub(super) async fn ask_first<'a, T, F>(
    client: &'a Client,
    ask: impl Fn(Server<'a>) -> F,
) -> anyhow::Result<Found<T>>
where
    F: Future<Output = anyhow::Result<Vec<T>>>,
{
    let mut answers = vec![(0, ask(Server { client, number: 0 }).await)];
    let others = client.members().into_iter().filter(|number| *number != 0);
    let others: Vec<u16> = others.collect();
    let asked = others.iter().map(|number| ask(Server { client, number: *number }));
    let asked = join_all(asked).await;
    answers.extend(others.into_iter().zip(asked));
    found(client, answers.into_iter())
}

fn found<T>(
    client: &Client,
    answers: impl Iterator<Item = (u16, anyhow::Result<Vec<T>>)>,
) -> anyhow::Result<Found<T>> {
    let servers = client.servers();
    let mut found = Found { rows: Vec::new(), servers, silent: Vec::new() };
    for (number, answer) in answers {
        let server = (servers > 1).then_some(number);
        match answer {
            Ok(rows) => found.rows.extend(rows.into_iter().map(|row| Row { server, row })),
            Err(error) if error.is::<Silent>() => found.silent.push(number),
            // The server has left meanwhile.
            Err(_) if !client.members().contains(&number) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl<T> Found<T> {
    /// Returns the rows, each with the number of its server.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u16, &T)> {
        self.rows.iter().map(|row| (row.server.unwrap_or(0), &row.row))
    }

    /// Whether no server has anything.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Fails when a server did not answer; `unknown` says what is not known then.
    pub(super) fn complete(&self, unknown: &str) -> anyhow::Result<()> {
        if self.silent.is_empty() {
            return Ok(());
        }
        let silent: Vec<_> = self.silent.iter().map(ToString::to_string).collect();
        bail!("no answer from server {}: {unknown}", silent.join(" and "))
    }
}

impl<T: Serialize> Found<T> {
    /// Prints the rows, as JSON or with `heads` above their `cells`; fails then when a server did
    /// not answer.
    pub(super) fn print(
        &self,
        json: bool,
        heads: &[&str],
        cells: impl Fn(&T) -> Vec<String>,
    ) -> anyhow::Result<()> {
        if json {
            output::print_json(&self.rows)?;
        } else {
            let first = (self.servers > 1).then_some("SERVER");
            let heads: Vec<_> = first.into_iter().chain(heads.iter().copied()).collect();
            let line = |row: &Row<T>| {
                let server = row.server.map(|server| server.to_string());
                server.into_iter().chain(cells(&row.row)).collect::<Vec<_>>()
            };
            output::print(&output::table(&heads, &self.rows.iter().map(line).collect::<Vec<_>>()))?;
        }
        self.complete("its rows are missing")
    }
}
