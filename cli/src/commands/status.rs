//! `pando status`: what a server is doing.

use std::{process::ExitCode, time::Duration};

use client::Config;
use serde::Serialize;
use tokio::time::timeout;

use super::cluster::Cluster;
use crate::{
    backups,
    connect::{self, Servers, TokenArgs},
    observed::{Operation, Standing, micros},
    output,
};

/// Print the state of a server: health, file system, sessions, counters. Needs the administrator's
/// token.
///
/// The first line is the state: `serving`, or what is wrong. For a cluster, the servers follow:
/// shards, share of the requests, remaining lease, problems. The rest describes the coordinator. A
/// server that does not serve now prints what it knows.
///
/// Exit codes: 0 all is well; 1 no server answers, or the token is refused; 2 wrong usage; 3
/// something is wrong, as the first line says.
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

/// The exit code when a server answers, and something is wrong.
const WRONG: u8 = 3;
/// Time to wait for a session with a server that is not ready: the moment may have been a bad one.
const UNREADY_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = connect::config(args.server.0, args.token.read()?, "pando status");
    let (asked, status) = connect::runtime()?.block_on(async {
        let Some(standing) = connect::standing(&config).await? else {
            return Err(connect::no_session(&config.addresses).await);
        };
        // The coordinator answers administrators also before the cluster is complete.
        let coordinates = standing.server == 0 && standing.servers > 1;
        let status = if standing.ready || coordinates {
            Some(Box::pin(ask(config)).await?)
        } else {
            timeout(UNREADY_TIMEOUT, Box::pin(ask(config))).await.ok().transpose()?
        };
        anyhow::Ok((Asked::new(standing, status.as_ref()), status))
    })?;
    if args.json {
        output::print_json(&Whole { asked: &asked, status: status.as_ref() })?;
    } else {
        let status = status.as_ref().map(Status::to_text).unwrap_or_default();
        output::print(&(asked.to_text() + &status))?;
    }
    Ok(if asked.standing.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

async fn ask(config: Config) -> anyhow::Result<Status> {
    let client = connect::connect_incomplete(config).await?;
    let status = connect::for_administrators(client.status().await)?;
    let load = client.server_load().await?;
    let cluster = client.cluster().await?;
    client.close().await?;
    let operations = load.operations.iter().map(Operation::from).collect();
    let memory = MemoryUse::of(&load);
    let (backup, journal) = (BackupState::of(&load), JournalState::of(&load));
    let cluster = (cluster.servers_expected > 1).then(|| Cluster::from(cluster));
    anyhow::Ok(Status { operations, cluster, memory, backup, journal, ..Status::from(status) })
}

/// State of the server that was asked.
#[derive(Serialize)]
struct Asked {
    /// `serving`, or what is wrong.
    state: String,
    #[serde(flatten)]
    standing: Standing,
}

/// Status as it is printed as JSON.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    asked: &'a Asked,
    #[serde(flatten)]
    status: Option<&'a Status>,
}

impl Asked {
    /// `status` has what the coordinator says, if it was reached.
    fn new(standing: wire::Standing, status: Option<&Status>) -> Asked {
        let mut standing = Standing::from(standing);
        let problems = &mut standing.problems;
        let cluster = status.and_then(|status| status.cluster.as_ref());
        for problem in cluster.map(Cluster::problems).unwrap_or_default() {
            if !problems.contains(problem) {
                problems.push(problem.clone());
            }
        }
        let state = match (standing.ready, &standing.problems[..]) {
            (true, []) => "serving".to_owned(),
            (true, problems) => format!("serving, but {}", problems.join("; ")),
            (false, problems) => format!("NOT SERVING: {}", problems.join("; ")),
        };
        Asked { state, standing }
    }

    fn to_text(&self) -> String {
        let Asked { state, standing } = self;
        let mut rows = vec![("state", state.clone())];
        if standing.servers_expected > 1 {
            let (server, servers) = (standing.server, standing.servers_expected);
            let up = Duration::from_secs(standing.server_uptime_ms / 1000);
            let up = humantime::format_duration(up);
            let role = match &standing.coordinator[..] {
                "" => standing.role.to_owned(),
                coordinator => format!("{}, the coordinator is at {coordinator}", standing.role),
            };
            rows.push(("asked", format!("server {server} of {servers}, up for {up}")));
            rows.push(("role", role));
        }
        output::rows(&rows)
    }
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
    store_bytes: u64,
    store_records: u64,
    process_id: u32,
    process_cpu_seconds: f64,
    process_resident_bytes: u64,
    memory: MemoryUse,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<BackupState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<JournalState>,
    sessions: Vec<Session>,
    operations: Vec<Operation>,
    counters: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Cluster>,
}

/// The journal of a server.
#[derive(Serialize)]
struct JournalState {
    /// Whether the last put worked.
    works: bool,
    /// Whether what is stable is in the journal.
    in_force: bool,
    generation: u64,
    /// Number of the last segment.
    segment: u64,
    /// Bytes of changes that the journal lacks.
    lag_bytes: u64,
    lag_ms: u64,
    puts: u64,
    put_p50_ms: f64,
    put_p99_ms: f64,
}

impl JournalState {
    /// `None` for a server without a journal.
    fn of(load: &wire::Load) -> Option<JournalState> {
        let number = |name: &str| gauge(load, name).unwrap_or_default();
        let time = |name: &str| Duration::from_nanos(number(name));
        Some(JournalState {
            works: gauge(load, "journal")? == 1,
            in_force: number("journal_in_force") == 1,
            generation: number("journal_generation"),
            segment: number("journal_segment"),
            lag_bytes: number("journal_lag_bytes"),
            lag_ms: u64::try_from(time("journal_lag_nanos").as_millis()).unwrap_or(u64::MAX),
            puts: number("journal_puts"),
            put_p50_ms: time("journal_put_p50_nanos").as_secs_f64() * 1000.0,
            put_p99_ms: time("journal_put_p99_nanos").as_secs_f64() * 1000.0,
        })
    }

    fn to_text(&self) -> String {
        if !self.in_force {
            return "begins with the first base".to_owned();
        }
        let Self { generation, segment, lag_ms, put_p50_ms, put_p99_ms, .. } = self;
        let fails = if self.works { "" } else { "FAILS, " };
        format!(
            "{fails}segment {segment} of generation {generation}, {lag_ms} ms behind; puts take \
             {put_p50_ms:.1} ms, p99 {put_p99_ms:.1} ms"
        )
    }
}

fn gauge(load: &wire::Load, name: &str) -> Option<u64> {
    let found = load.gauges.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| *value)
}

/// The backups of a server, and whether it is a restored copy.
#[derive(Serialize)]
struct BackupState {
    /// Whether the last try worked; absent where there are no backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    works: Option<bool>,
    /// Age of the last base since the start; absent before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<u64>,
    /// Changes of records since the last base; absent before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<u64>,
    /// Number of the newest base since the start; 0: none.
    newest: u64,
    bases: u64,
    stored_bytes: u64,
    is_restored_copy: bool,
}

impl BackupState {
    /// `None` for a server that has nothing to do with backups.
    fn of(load: &wire::Load) -> Option<BackupState> {
        let gauge = |name: &str| gauge(load, name);
        let is_restored_copy = gauge("backup_restored_copy")? == 1;
        Some(BackupState {
            works: gauge("backup").map(|works| works == 1),
            age_seconds: gauge("backup_age_nanos").map(|age| Duration::from_nanos(age).as_secs()),
            changes: gauge("backup_changes"),
            newest: gauge("backup_newest").unwrap_or_default(),
            bases: gauge("backup_bases").unwrap_or_default(),
            stored_bytes: gauge("backup_stored_bytes").unwrap_or_default(),
            is_restored_copy,
        })
    }

    fn to_text(&self) -> String {
        let mut text = match (self.works, self.age_seconds) {
            (None, _) => "none".to_owned(),
            (Some(works), age) => {
                let age = age.map(|age| backups::span(Duration::from_secs(age)));
                let last = match age {
                    None => "no base since the start".to_owned(),
                    Some(age) => {
                        let changes = self.changes.unwrap_or_default();
                        format!("last base {age} ago, {changes} changes since")
                    }
                };
                let fails = if works { "" } else { "FAILS, " };
                let bytes = output::bytes(self.stored_bytes);
                format!("{fails}{last}; {} kept, {bytes}", self.bases)
            }
        };
        if self.is_restored_copy {
            text += "; a restored copy, which deletes no contents (`pando backup final`)";
        }
        text
    }
}

/// The memory budget of a server's process, and what uses it. The four limits add up to the budget.
#[derive(Default, Serialize)]
struct MemoryUse {
    budget_bytes: u64,
    record_cache_bytes: u64,
    record_cache_bytes_max: u64,
    block_cache_bytes: u64,
    block_cache_bytes_max: u64,
    memtable_bytes: u64,
    memtable_bytes_max: u64,
    rest_bytes_max: u64,
}

impl MemoryUse {
    fn of(load: &wire::Load) -> MemoryUse {
        let gauge = |name: &str| {
            let found = load.gauges.iter().find(|(other, _)| other == name);
            found.map_or(0, |(_, value)| *value)
        };
        MemoryUse {
            budget_bytes: gauge("memory_budget_bytes"),
            record_cache_bytes: gauge("record_cache_bytes"),
            record_cache_bytes_max: gauge("record_cache_bytes_max"),
            block_cache_bytes: gauge("store_block_cache_bytes"),
            block_cache_bytes_max: gauge("store_block_cache_bytes_max"),
            memtable_bytes: gauge("store_memtable_bytes"),
            memtable_bytes_max: gauge("store_memtable_bytes_max"),
            rest_bytes_max: gauge("memory_rest_bytes_max"),
        }
    }

    fn to_text(&self) -> String {
        let part = |name: &str, bytes: u64, max: u64| {
            format!("{name} {} of {}", output::bytes(bytes), output::bytes(max))
        };
        let parts = [
            part("record cache", self.record_cache_bytes, self.record_cache_bytes_max),
            part("block cache", self.block_cache_bytes, self.block_cache_bytes_max),
            part("memtables", self.memtable_bytes, self.memtable_bytes_max),
            format!("{} for the rest", output::bytes(self.rest_bytes_max)),
        ];
        format!("at most {}: {}", output::bytes(self.budget_bytes), parts.join(", "))
    }
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
            store_bytes: status.store_bytes,
            store_records: status.store_records,
            process_id: status.process.id,
            process_cpu_seconds: Duration::from_micros(status.process.cpu_micros).as_secs_f64(),
            process_resident_bytes: status.process.resident_bytes,
            memory: MemoryUse::default(),
            backup: None,
            journal: None,
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
        let backup = self.backup.as_ref().map(|backup| ("backup", backup.to_text()));
        let journal = self.journal.as_ref().map(|journal| ("journal", journal.to_text()));
        let mut rows = vec![
            ("name", self.name.clone()),
            ("unique id", self.uuid.clone()),
            ("version", self.version.clone()),
            ("up for", uptime.to_string()),
            ("shards", self.shards.to_string()),
            ("durability", format!("{}, commit interval {interval} ms", self.durability)),
            ("blocks", self.blocks.clone()),
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
            ("memory", self.memory.to_text()),
        ];
        rows.extend(backup);
        rows.extend(journal);
        rows.push(("sessions", self.sessions.len().to_string()));
        let mut text = output::rows(&rows);
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
                operation.not_found.to_string(),
                operation.failures(),
                micros(operation.mean_us),
                micros(operation.p50_us),
                micros(operation.p99_us),
            ]
        };
        let operations: Vec<_> = self.operations.iter().map(row).collect();
        let heads = ["OPERATION", "COUNT", "NOT FOUND", "FAILED", "MEAN", "P50", "P99"];
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
