//! `/status.json`: facts of the status page, which any user of this machine may see: no paths.

use serde::Serialize;
use wire::{Load, SessionStatus, Standing, Status};

use crate::observed::{self, Operation};

/// Document that the page reads every few seconds. The page computes rates from two of these.
#[derive(Serialize)]
pub(super) struct Page {
    name: String,
    uuid: String,
    version: String,
    /// Problem of the server, in one line.
    problem: Option<String>,
    #[serde(flatten)]
    standing: observed::Standing,
    uptime_seconds: u64,
    /// Seconds since the start, finely.
    at_seconds: f64,
    durability: String,
    commit_interval_ms: u64,
    blocks: String,
    shards: u16,
    store_bytes: u64,
    store_records: u64,
    sessions: Vec<Session>,
    operations: Vec<Operation>,
    group_requests_mean: f64,
    write_p99_us: f64,
    sync_p99_us: f64,
    process_cpu_seconds: f64,
    process_resident_bytes: u64,
    /// Latencies of operations, in the order of `operations`. The reader computes what came since
    /// an earlier reading.
    latencies: Vec<Latency>,
    gauges: serde_json::Map<String, serde_json::Value>,
    counters: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct Latency {
    /// The bound of the first bucket; each other one has the double of that before it, the last has
    /// none.
    unit_us: f64,
    buckets: Vec<u64>,
}

#[derive(Serialize)]
struct Session {
    client: String,
    idle_seconds: u64,
    open_files: u64,
}

/// Returns the document to show.
pub(super) fn page(status: Status, load: Load, standing: Standing) -> Page {
    let quantile = |name: &str| {
        let found = load.distributions.iter().find(|(other, _)| other == name);
        found.map_or(0.0, |(_, distribution)| observed::quantile(distribution, 0.99) / 1000.0)
    };
    let groups = load.distributions.iter().find(|(name, _)| name == "group_requests");
    let session = |session: SessionStatus| Session {
        client: session.client,
        idle_seconds: session.idle_seconds,
        open_files: session.open_files,
    };
    let latency = |operation: wire::Operation| Latency {
        unit_us: observed::ratio(operation.latency.unit, 1000),
        buckets: operation.latency.buckets,
    };
    Page {
        group_requests_mean: groups.map_or(0.0, |(_, groups)| observed::mean(groups)),
        write_p99_us: quantile("write_nanos"),
        sync_p99_us: quantile("sync_nanos"),
        at_seconds: observed::ratio(load.at_us, 1_000_000),
        operations: load.operations.iter().map(Operation::from).collect(),
        process_cpu_seconds: observed::ratio(status.process.cpu_micros, 1_000_000),
        process_resident_bytes: status.process.resident_bytes,
        latencies: load.operations.into_iter().map(latency).collect(),
        gauges: observed::map(load.gauges),
        counters: observed::map(load.counters.into_iter().chain(status.counters)),
        name: status.name,
        uuid: format!("{:032x}", status.uuid),
        version: status.version,
        problem: Some(standing.problems.join("; ")).filter(|problem| !problem.is_empty()),
        standing: standing.into(),
        uptime_seconds: status.uptime_seconds,
        durability: status.durability,
        commit_interval_ms: status.commit_interval_ms,
        blocks: status.blocks,
        shards: status.shards,
        store_bytes: status.store_bytes,
        store_records: status.store_records,
        sessions: status.sessions.into_iter().map(session).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use wire::Distribution;

    use super::*;

    pub(in super::super) fn status() -> Status {
        Status {
            name: "a \"b\" <c>".to_owned(),
            uuid: 1,
            version: "0".to_owned(),
            uptime_seconds: 61,
            shards: 64,
            durability: "relaxed".to_owned(),
            commit_interval_ms: 20,
            blocks: "blocks".to_owned(),
            sessions: vec![SessionStatus {
                session: base::SessionId(1),
                client: "<script>".to_owned(),
                idle_seconds: 0,
                open_files: 2,
            }],
            counters: vec![("create".to_owned(), 7), ("mkdir".to_owned(), 0)],
            store_bytes: 1 << 20,
            store_records: 5,
            process: wire::ProcessStatus::default(),
        }
    }

    pub(in super::super) fn standing(ready: bool) -> Standing {
        let unready = if ready { "" } else { "no lease" };
        Standing {
            name: "a".to_owned(),
            server: 1,
            servers: 2,
            heard: None,
            coordinator: "b:1".to_owned(),
            uptime_ms: 61_000,
            lease_ms: 0,
            without_lease_ms: None,
            alone_ms: 0,
            ready,
            unready: unready.to_owned(),
            problems: if ready { Vec::new() } else { vec![unready.to_owned()] },
        }
    }

    pub(in super::super) fn load() -> Load {
        Load {
            at_us: 1_500_000,
            operations: vec![wire::Operation {
                name: "create".to_owned(),
                outcomes: vec![("done".to_owned(), 5), ("EEXIST".to_owned(), 2)],
                latency: Distribution { unit: 1000, buckets: vec![1, 2, 4], sum: 700_000 },
                stages: vec![("queue".to_owned(), 100), ("execute".to_owned(), 300)],
            }],
            ..Load::default()
        }
    }

    #[test]
    fn the_page_is_told_numbers() {
        let unready = serde_json::to_value(page(status(), load(), standing(false))).unwrap();
        assert_eq!((&unready["ready"], &unready["problem"]), (&false.into(), &"no lease".into()));
        let page = serde_json::to_value(page(status(), load(), standing(true))).unwrap();
        assert_eq!(page["operations"][0]["name"], "create");
        assert_eq!(page["operations"][0]["count"], 7);
        assert_eq!(page["counters"]["create"], 7);
        assert_eq!(page["at_seconds"], 1.5);
        assert_eq!(page["latencies"][0], serde_json::json!({"unit_us": 1.0, "buckets": [1, 2, 4]}));
        assert_eq!(page["problem"], serde_json::Value::Null);
    }
}
