//! The servers of a file system, as `pando status` prints them.

use serde::Serialize;
use wire::{BalanceMode, BalanceStatus};

use super::status::indent;
use crate::{balancing, output};

/// All servers.
#[derive(Serialize)]
pub(super) struct Cluster {
    servers_expected: u16,
    epoch: u64,
    invalidation_version: u64,
    directory_renames: u64,
    /// Requests of the busiest server in units of the mean; absent while there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    imbalance: Option<f64>,
    servers: Vec<Server>,
    balance: Balance,
    problems: Vec<String>,
}

/// How evenly the servers are loaded, and what server 0 does about it.
#[derive(Serialize)]
struct Balance {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    look: Option<Look>,
}

/// The last look since server 0 began to serve.
#[derive(Serialize)]
struct Look {
    ago_ms: u64,
    /// Requests and what is stored of the server that has most, in units of the mean; absent where
    /// servers are not compared by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_of_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_of_mean: Option<f64>,
    /// Number of shards that should move, or have moved.
    shards: usize,
    moved: bool,
    because: String,
}

#[derive(Serialize)]
struct Server {
    server: u16,
    address: String,
    shards: u16,
    lease_ms: u64,
    invalidation_version: u64,
    requests: u64,
    /// Number of transactions that have been in doubt there for a second or more, and the age of
    /// the oldest.
    transactions_in_doubt: u64,
    transaction_in_doubt_oldest_ms: u64,
}

impl From<wire::ClusterStatus> for Cluster {
    fn from(status: wire::ClusterStatus) -> Cluster {
        let server = |server: wire::ServerStatus| Server {
            server: server.server,
            address: server.address,
            shards: server.shards,
            lease_ms: server.lease_ms,
            invalidation_version: server.version,
            requests: server.requests,
            transactions_in_doubt: server.in_doubt.map_or(0, |in_doubt| in_doubt.count),
            transaction_in_doubt_oldest_ms: server
                .in_doubt
                .map_or(0, |in_doubt| in_doubt.oldest_ms),
        };
        let servers: Vec<_> = status.servers.into_iter().map(server).collect();
        Cluster {
            servers_expected: status.servers_expected,
            epoch: status.epoch.0,
            invalidation_version: status.version,
            directory_renames: status.renames,
            imbalance: imbalance(&servers),
            servers,
            balance: status.balance.into(),
            problems: status.problems,
        }
    }
}

impl From<BalanceStatus> for Balance {
    fn from(BalanceStatus { mode, look, ago_ms, .. }: BalanceStatus) -> Balance {
        let share = |thousandths| (thousandths > 0).then(|| f64::from(thousandths) / 1000.0);
        let look = look.map(|look| Look {
            ago_ms,
            requests_of_mean: share(look.requests),
            stored_of_mean: share(look.stored),
            shards: look.moves.len(),
            moved: look.moved,
            because: look.because,
        });
        let mode = match mode {
            BalanceMode::Off => "off",
            BalanceMode::Advise => "advise",
            BalanceMode::On => "on",
        };
        Balance { mode, look }
    }
}

impl Balance {
    fn to_text(&self) -> String {
        let mode = self.mode;
        let Some(look) = &self.look else { return format!("balancing: {mode}") };
        let shares = balancing::shares(look.requests_of_mean, look.stored_of_mean);
        let verb = if look.moved { "have moved" } else { "should move" };
        let moves = match look.shards {
            0 => String::new(),
            shards => format!("; {shards} shards {verb}"),
        };
        let (seconds, because) = (look.ago_ms / 1000, output::clean(&look.because));
        format!("balancing: {mode}{shares}{moves}; {seconds} s ago: {because}")
    }
}

fn imbalance(servers: &[Server]) -> Option<f64> {
    let total: u64 = servers.iter().map(|server| server.requests).sum();
    let most = servers.iter().map(|server| server.requests).max()?;
    (total > 0).then(|| most as f64 * servers.len() as f64 / total as f64)
}

/// The epoch of a map, for people.
fn map_of(epoch: u64) -> String {
    match base::Epoch(epoch).moves() {
        0 => epoch.to_string(),
        moves => format!("{} after move {moves}", epoch & u64::from(u32::MAX)),
    }
}

impl Cluster {
    /// Problems of the cluster, a line each.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Lines for people.
    pub(super) fn to_text(&self) -> String {
        let total = self.servers.iter().map(|server| server.requests).sum::<u64>().max(1);
        let row = |server: &Server| {
            vec![
                server.server.to_string(),
                server.address.clone(),
                server.shards.to_string(),
                server.requests.to_string(),
                format!("{} %", server.requests * 100 / total),
                match server.lease_ms {
                    0 => "none".to_owned(),
                    ms => format!("{ms} ms"),
                },
                self.invalidation_version.saturating_sub(server.invalidation_version).to_string(),
            ]
        };
        let rows: Vec<_> = self.servers.iter().map(row).collect();
        let heads = ["SERVER", "ADDRESS", "SHARDS", "REQUESTS", "SHARE", "LEASE", "BEHIND"];
        let (there, all) = (self.servers.len(), self.servers_expected);
        let imbalance =
            self.imbalance.map(|most| format!(", busiest server: {most:.2} x the mean"));
        let mut text = format!("servers  {there} of {all}{}\n", imbalance.unwrap_or_default());
        text += &indent(&output::table(&heads, &rows));
        text += &format!(
            "  map {}, directory renames under way {}\n",
            map_of(self.epoch),
            self.directory_renames
        );
        if self.servers.len() > 1 {
            text += &format!("  {}\n", self.balance.to_text());
        }
        for problem in &self.problems {
            text += &format!("  PROBLEM: {problem}\n");
        }
        text
    }
}
