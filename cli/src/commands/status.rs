//! `pando status`: what a server is doing.

use std::{process::ExitCode, time::Duration};

use serde::Serialize;

use super::cluster::Cluster;
use crate::{
    connect::{self, Servers, TokenArgs},
    observed::{Operation, micros},
    output,
};

/// Print what a server is doing: file system, sessions, counters. Needs the administrator's token.
///
/// Of a file system with several servers it prints what they all are and have: shards, share of the requests, what is
/// left of their leases, and what is wrong. The rest is of the coordinator.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server.
    #[arg(value_name = "HOST:PORT", value_parser = connect::servers)]
    server: Servers,
    #[command(flatten)]
    token: TokenArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0, args.token.read()?, "pando status");
    let status = connect::runtime()?.block_on(async {
        let client = connect::connect_incomplete(config).await?;
        let status = connect::for_administrators(client.status().await)?;
        let load = client.server_load().await?;
        let cluster = client.cluster().await?;
        client.close().await?;
        let operations = load.operations.iter().map(Operation::from).collect();
        let cluster = (cluster.servers_expected > 1).then(|| Cluster::from(cluster));
        anyhow::Ok(Status { operations, cluster, ..Status::from(status) })
    })?;
    if args.json {
        output::print_json(&status)?;
    } else {
        output::print(&status.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Status {
    name: String,
    uuid: String,
    version: String,
    uptime_seconds: u64,
    shards: u16,
    durability: String,
    commit_interval_ms: u64,
    blocks: String,
    files: u64,
    store_bytes: u64,
    store_records: u64,
    process_id: u32,
    process_cpu_seconds: f64,
    process_resident_bytes: u64,
    sessions: Vec<Session>,
    operations: Vec<Operation>,
    counters: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Cluster>,
}

#[derive(Serialize)]
struct Session {
    session: String,
    client: String,
    idle_seconds: u64,
    open_files: u64,
}

impl From<wire::Status> for Status {
    fn from(status: wire::Status) -> Status {
        let session = |session: wire::SessionStatus| Session {
            session: session.session.to_string(),
            client: session.client,
            idle_seconds: session.idle_seconds,
            open_files: session.open_files,
        };
        Status {
            name: status.name,
            uuid: format!("{:032x}", status.uuid),
            version: status.version,
            uptime_seconds: status.uptime_seconds,
            shards: status.shards,
            durability: status.durability,
            commit_interval_ms: status.commit_interval_ms,
            blocks: status.blocks,
            files: status.files,
            store_bytes: status.store_bytes,
            store_records: status.store_records,
            process_id: status.process.id,
            process_cpu_seconds: Duration::from_micros(status.process.cpu_micros).as_secs_f64(),
            process_resident_bytes: status.process.resident_bytes,
            sessions: status.sessions.into_iter().map(session).collect(),
            operations: Vec::new(),
            counters: status.counters.into_iter().map(|(name, n)| (name, n.into())).collect(),
            cluster: None,
        }
    }
}

impl Status {
    fn to_text(&self) -> String {
        let uptime = humantime::format_duration(Duration::from_secs(self.uptime_seconds));
        let interval = self.commit_interval_ms;
        let mut text = output::rows(&[
            ("name", self.name.clone()),
            ("unique id", self.uuid.clone()),
            ("version", self.version.clone()),
            ("up for", uptime.to_string()),
            ("shards", self.shards.to_string()),
            ("durability", format!("{}, commit interval {interval} ms", self.durability)),
            ("blocks", self.blocks.clone()),
            ("files", format!("about {}", self.files)),
            (
                "metadata",
                format!(
                    "{}, about {} records",
                    output::bytes(self.store_bytes),
                    self.store_records
                ),
            ),
            (
                "process",
                format!(
                    "{}, {:.1} s of CPU time, {} of memory",
                    self.process_id,
                    self.process_cpu_seconds,
                    output::bytes(self.process_resident_bytes)
                ),
            ),
            ("sessions", self.sessions.len().to_string()),
        ]);
        let row = |session: &Session| {
            vec![
                session.open_files.to_string(),
                format!("{} s", session.idle_seconds),
                session.client.clone(),
            ]
        };
        let sessions: Vec<_> = self.sessions.iter().map(row).collect();
        text += &indent(&output::table(&["OPEN FILES", "SILENT", "CLIENT"], &sessions));
        text += &self.cluster.as_ref().map(Cluster::to_text).unwrap_or_default();
        let row = |operation: &Operation| {
            vec![
                operation.name.clone(),
                operation.count.to_string(),
                operation.failed.to_string(),
                micros(operation.mean_us),
                micros(operation.p50_us),
                micros(operation.p99_us),
            ]
        };
        let operations: Vec<_> = self.operations.iter().map(row).collect();
        let heads = ["OPERATION", "COUNT", "FAILED", "MEAN", "P50", "P99"];
        text += "operations\n";
        text += &indent(&output::table(&heads, &operations));
        let counted = self.counters.iter().filter(|(_, value)| value.as_u64() != Some(0));
        let counted: Vec<_> =
            counted.map(|(name, value)| (name.as_str(), value.to_string())).collect();
        text + "since the start\n" + &indent(&output::rows(&counted))
    }
}

pub(super) fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
