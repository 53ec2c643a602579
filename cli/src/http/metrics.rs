//! `/metrics`, in Prometheus' text format. `docs/OPERATIONS.md` has a row for each.

use std::fmt::Write as _;

use wire::{Distribution, Load, Standing, Status};

use super::help;
use crate::observed;

/// Description of a metric, without its value.
struct Metric {
    /// Name of the metric in the server's answer.
    of: &'static str,
    name: &'static str,
    help: &'static str,
    /// Factor from the server's unit to the metric's: nanoseconds are billionths of a second.
    scale: f64,
}

const fn metric(of: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric { of, name, help, scale: 1.0 }
}

const fn seconds(of: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric { of, name, help, scale: 1e-9 }
}

const GAUGES: &[Metric] = &[
    metric("cores", "cores", "Threads that execute requests."),
    metric("connections", "connections", "Open connections."),
    metric(
        "queued_requests",
        "queued_requests",
        "Requests that have arrived and are not executed.",
    ),
    seconds("busy_nanos", "busy_seconds", "Time that the busiest core has worked without a pause."),
    metric("writable", "writable", "1 while there is room on the disks for writes."),
    metric("block_store", "block_store", "1 while the block store takes and gives blocks."),
    metric("backup", "backup", "1 while bases of the backup can be made."),
    metric("backup_newest", "backup_newest", "Number of the newest base since the start."),
    metric("backup_changes", "backup_changes", "Changes of records since the last base."),
    seconds("backup_age_nanos", "backup_age_seconds", "Age of the last base since the start."),
    metric("backup_bases", "backup_bases", "Number of bases that are kept."),
    metric("backup_stored_bytes", "backup_stored_bytes", "Bytes in the store of the backup."),
    metric(
        "backup_uploaded_bytes",
        "backup_uploaded_bytes",
        "Bytes uploaded for bases since the start, before they are sealed.",
    ),
    metric(
        "backup_restored_copy",
        "backup_restored_copy",
        "1 while the server is a restored copy, which deletes no contents.",
    ),
    metric("journal", "journal", "1 while what is stable is in the journal, and puts work."),
    metric("journal_in_force", "journal_in_force", "1 once the journal has begun."),
    metric("journal_generation", "journal_generation", "Generation of the server's process."),
    metric("journal_segment", "journal_segment", "Number of the journal's last segment."),
    seconds(
        "journal_lease_left_nanos",
        "journal_lease_left_seconds",
        "Remaining time of the journal's lease; 0 without one, too.",
    ),
    seconds("journal_lag_nanos", "journal_lag_seconds", "Time that the journal is behind."),
    metric("journal_lag_bytes", "journal_lag_bytes", "Bytes of changes that the journal lacks."),
    metric("journal_puts", "journal_puts", "Puts of the journal since the start."),
    metric("journal_put_hedges", "journal_put_hedges", "Puts sent beside one that took long."),
    metric("journal_put_retries", "journal_put_retries", "Tries to put a segment that failed."),
    metric("journal_bytes", "journal_bytes", "Bytes of segments stored since the start."),
    seconds("journal_put_p50_nanos", "journal_put_p50_seconds", "Median time of the last puts."),
    seconds(
        "journal_put_p99_nanos",
        "journal_put_p99_seconds",
        "99th percentile of the last puts.",
    ),
    metric("audit", "audit", "1 while the audit log can be written."),
    metric("audit_lines", "audit_lines", "Lines of the audit log since the start."),
    metric("audit_bytes", "audit_bytes", "Bytes of the audit log since the start."),
    metric("audit_lost", "audit_lost", "Lines of the audit log that were lost."),
    metric("lease", "lease", "1 while the server has a lease, or is the only one."),
    seconds("lease_left_nanos", "lease_left_seconds", "Remaining time of the lease."),
    metric("coordinator", "coordinator", "1 on the coordinator, or the only server."),
    metric("servers_expected", "servers_expected", "Servers that the file system has."),
    metric("servers_heard", "servers_heard", "Servers that the coordinator hears of."),
    metric("servers_silent", "servers_silent", "Servers that the coordinator does not hear of."),
    metric(
        "balance_requests_thousandths",
        "balance_requests_thousandths",
        "Most requests of a server, in thousandths of the mean, at the last look; 0: too few.",
    ),
    metric(
        "balance_stored_thousandths",
        "balance_stored_thousandths",
        "Most that a server stores, in thousandths of the mean, at the last look; 0: too little.",
    ),
    metric(
        "balance_moves_advised",
        "balance_moves_advised",
        "Shards that should move, and that nobody moves.",
    ),
    metric(
        "alone",
        "alone",
        "1 while the server serves, without a lease, what needs no cached path.",
    ),
    metric("sessions_max", "sessions_max", "Limit of sessions."),
    metric("sync_waiters", "sync_waiters", "Requests that wait for stable storage."),
    metric(
        "transactions_in_doubt",
        "transactions_in_doubt",
        "Transactions of other servers whose outcome has been lacking for a second or more.",
    ),
    seconds(
        "transaction_in_doubt_oldest_nanos",
        "transaction_in_doubt_oldest_seconds",
        "Age of the oldest transaction in doubt.",
    ),
    metric(
        "births_unconfirmed",
        "births_unconfirmed",
        "Directories whose entries other servers have, and that are not confirmed yet.",
    ),
    metric(
        "reclaim_queue",
        "reclaim_queue",
        "Removed inodes whose contents are still to be freed.",
    ),
    metric("orphans_open", "orphans_open", "Removed files that somebody has open."),
    metric("compact_queue", "compact_queue", "Chunks that wait to be rewritten."),
    metric("invalidation_events", "invalidation_events", "Events in the invalidation list."),
    metric("open_inodes", "open_inodes", "Inodes that anybody has open."),
    metric("files_locked", "files_locked", "Files that have locks, or whose locks are waited for."),
    metric("locks_held", "locks_held", "Locks that are held."),
    metric("locks_waiting", "locks_waiting", "Locks that are waited for."),
    metric(
        "sessions_unclaimed",
        "sessions_unclaimed",
        "Sessions of before the restart that are not back yet.",
    ),
    seconds(
        "slow_threshold_nanos",
        "slow_threshold_seconds",
        "Time from which an operation is slow for `pando profile`.",
    ),
    metric("space_bytes", "space_bytes", "Size of the place where blocks are."),
    metric("space_free_bytes", "space_free_bytes", "Free bytes of the place where blocks are."),
    metric("memory_budget_bytes", "memory_budget_bytes", "Limit of the process' memory."),
    metric(
        "memory_rest_bytes_max",
        "memory_rest_bytes_max",
        "Part of the memory budget for all but caches and memtables.",
    ),
    metric("record_cache_bytes", "record_cache_bytes", "Memory of the record cache."),
    metric("record_cache_bytes_max", "record_cache_bytes_max", "Limit of the record cache."),
    metric("store_memtable_bytes", "store_memtable_bytes", "Recent metadata held in memory."),
    metric("store_memtable_bytes_max", "store_memtable_bytes_max", "Limit of recent metadata."),
    metric("store_block_cache_bytes", "store_block_cache_bytes", "Cached metadata in memory."),
    metric(
        "store_block_cache_bytes_max",
        "store_block_cache_bytes_max",
        "Limit of cached metadata.",
    ),
    metric(
        "store_table_reader_bytes",
        "store_table_reader_bytes",
        "Indexes and filters held outside the cache.",
    ),
    metric(
        "store_compaction_pending_bytes",
        "store_compaction_pending_bytes",
        "Metadata that the store has still to rewrite, estimated.",
    ),
];

const COUNTERS: &[Metric] = &[
    metric("received_bytes", "received_bytes_total", "Bytes read from connections."),
    metric("sent_bytes", "sent_bytes_total", "Bytes written to connections."),
    metric("locks_granted", "locks_granted_total", "Locks that were granted."),
    metric(
        "locks_refused",
        "locks_refused_total",
        "Locks that were refused: held, deadlock, too many.",
    ),
];

const HISTOGRAMS: &[Metric] = &[
    metric("group_requests", "group_requests", "Requests of a group, which share one write."),
    metric("group_bytes", "group_bytes", "Bytes of a group's write."),
    seconds("write_nanos", "store_write_seconds", "Durations of the groups' writes."),
    seconds("sync_nanos", "store_sync_seconds", "Durations of syncs."),
    seconds("lock_wait_nanos", "lock_wait_seconds", "Waiting times for locks that were granted."),
    seconds(
        "handoff_frozen_nanos",
        "handoff_frozen_seconds",
        "Times for which names that move to another partition were frozen.",
    ),
    seconds(
        "handoff_wait_nanos",
        "handoff_wait_seconds",
        "Waiting times of requests for names that move, without those that did not wait.",
    ),
];

/// All metrics of a server.
pub(super) fn render(status: &Status, load: &Load, standing: &Standing, healthy: bool) -> String {
    let mut page = Page(String::new());
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let open = status.sessions.iter().map(|session| session.open_files).sum();
    for (name, help, value) in [
        ("healthy", "1 while the server can vouch for its data.", u64::from(healthy)),
        ("ready", "1 while clients should be sent here.", u64::from(standing.ready)),
        (
            "problems",
            "Number of problems; /status.json names them.",
            count(standing.problems.len()),
        ),
        ("uptime_seconds", "Seconds since the server started.", status.uptime_seconds),
        ("shards", "Shards that the server serves.", u64::from(status.shards)),
        ("sessions", "Open sessions.", count(status.sessions.len())),
        ("open_files", "Files that sessions have open.", open),
        ("store_bytes", "Bytes of metadata on disk.", status.store_bytes),
        ("store_records", "Records of metadata, estimated.", status.store_records),
    ] {
        page.family(name, "gauge", help);
        page.sample(name, "", value);
    }
    let process = &status.process;
    page.family("process_cpu_seconds_total", "counter", "CPU time of the server's process.");
    page.sample("process_cpu_seconds_total", "", scaled(process.cpu_micros, 1e-6));
    page.family("process_resident_bytes", "gauge", "Memory that the server's process occupies.");
    page.sample("process_resident_bytes", "", process.resident_bytes);
    page.scaled("gauge", GAUGES, &load.gauges);
    page.scaled("counter", COUNTERS, &load.counters);
    if let Some((_, slow)) = load.gauges.iter().find(|(name, _)| name == "slow_operations") {
        let name = "slow_operations_total";
        page.family(name, "counter", "Operations that were slow for `pando profile`.");
        page.sample(name, "", slow);
    }
    // Among the counters, because `pando status` shows them there.
    let now = ["files_locked", "locks_held", "locks_waiting"];
    for (name, value) in status.counters.iter().filter(|(name, _)| !now.contains(&name.as_str())) {
        let help = help::of(name);
        let name = format!("{name}_total");
        page.family(&name, "counter", &help);
        page.sample(&name, "", value);
    }
    page.operations(load);
    for Metric { of, name, help, scale } in HISTOGRAMS {
        page.family(name, "histogram", help);
        if let Some((_, distribution)) = load.distributions.iter().find(|(name, _)| name == of) {
            page.histogram(name, "", distribution, (*scale, 1));
        }
    }
    page.transactions(load);
    let (name, version) = (escape(&status.name), escape(&status.version));
    page.family("info", "gauge", "The file system and its server, as labels.");
    let (role, server) = (observed::role(standing), standing.server);
    let labels = format!(
        "name=\"{name}\",uuid=\"{:032x}\",version=\"{version}\",role=\"{role}\",server=\"{server}\"",
        status.uuid
    );
    page.sample("info", &labels, 1);
    page.0
}

struct Page(String);

impl Page {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string cannot fail");
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.put(format_args!("# HELP pando_{name} {help}\n# TYPE pando_{name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        match labels {
            "" => self.put(format_args!("pando_{name} {value}\n")),
            labels => self.put(format_args!("pando_{name}{{{labels}}} {value}\n")),
        }
    }

    fn scaled(&mut self, kind: &str, metrics: &[Metric], values: &[(String, u64)]) {
        for Metric { of, name, help, scale } in metrics {
            let Some((_, value)) = values.iter().find(|(name, _)| name == of) else { continue };
            self.family(name, kind, help);
            self.sample(name, "", scaled(*value, *scale));
        }
    }

    fn operations(&mut self, load: &Load) {
        let name = "operations_total";
        self.family(name, "counter", "Requests by kind and by how they ended.");
        for operation in &load.operations {
            for (outcome, count) in &operation.outcomes {
                let labels = format!("operation=\"{}\",outcome=\"{outcome}\"", operation.name);
                self.sample(name, &labels, count);
            }
        }
        let name = "operation_stage_seconds_total";
        self.family(name, "counter", "Where the time of requests went, by kind and stage.");
        for operation in &load.operations {
            for (stage, nanos) in &operation.stages {
                let labels = format!("operation=\"{}\",stage=\"{stage}\"", operation.name);
                self.sample(name, &labels, scaled(*nanos, 1e-9));
            }
        }
        let name = "operation_seconds";
        self.family(name, "histogram", "Time from a request's arrival to its answer, by kind.");
        for operation in &load.operations {
            let labels = format!("operation=\"{}\"", operation.name);
            self.histogram(name, &labels, &operation.latency, (1e-9, 2));
        }
    }

    /// `transaction.move.read` is how long transactions that moved directories have read.
    fn transactions(&mut self, load: &Load) {
        let name = "transaction_part_seconds";
        self.family(
            name,
            "histogram",
            "Parts of transactions over several servers that began here.",
        );
        for (of, distribution) in &load.distributions {
            let mut words = of.split('.');
            if let (Some("transaction"), Some(kind), Some(part)) =
                (words.next(), words.next(), words.next())
            {
                let labels = format!("kind=\"{kind}\",part=\"{part}\"");
                self.histogram(name, &labels, distribution, (1e-9, 1));
            }
        }
    }

    /// With one in so many bounds: those of operations were two thirds of all that a server said.
    fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        distribution: &Distribution,
        (scale, every): (f64, usize),
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let (bucket, mut sum) = (format!("{name}_bucket"), 0);
        for (at, count) in distribution.buckets.iter().enumerate() {
            sum += count;
            let is_last = at + 1 == distribution.buckets.len();
            if !is_last && (at + 1) % every != 0 {
                continue;
            }
            let bound =
                if is_last { "+Inf".to_owned() } else { scaled(distribution.unit << at, scale) };
            self.sample(&bucket, &format!("{labels}{comma}le=\"{bound}\""), sum);
        }
        self.sample(&format!("{name}_sum"), labels, scaled(distribution.sum, scale));
        self.sample(&format!("{name}_count"), labels, sum);
    }
}

/// A number of the server in the metric's unit.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has nothing but doubles")]
fn scaled(value: u64, scale: f64) -> String {
    // Divided by a whole number: 1000 nanoseconds are 0.000001 seconds, to the last digit.
    if scale == 1.0 {
        value.to_string()
    } else {
        (value as f64 / scale.recip().round()).to_string()
    }
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::{super::json, *};

    #[test]
    fn every_metric_has_a_type_before_its_values() {
        let standing = json::tests::standing(false);
        let text = render(&json::tests::status(), &json::tests::load(), &standing, false);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .filter(|family| text.contains(&format!("# TYPE {family} histogram\n")))
                .unwrap_or(name);
            let kind = text.find(&format!("# TYPE {family} ")).expect("it has a type");
            assert!(kind < text.find(&format!("\n{line}\n")).unwrap(), "{line}");
        }
        for line in ["pando_create_total 7", "pando_healthy 0", "pando_ready 0", "pando_problems 1"]
        {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert!(text.contains("name=\"a \\\"b\\\" <c>\""));
        assert!(text.contains("# HELP pando_create_total Requests of the kind `create` that were"));
    }

    #[test]
    fn buckets_are_cumulative_and_in_seconds() {
        let standing = json::tests::standing(true);
        let text = render(&json::tests::status(), &json::tests::load(), &standing, true);
        let buckets: Vec<&str> = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix("pando_operation_seconds_bucket{operation=\"create\",le=")
            })
            .collect();
        assert_eq!(buckets, ["\"0.000002\"} 3", "\"+Inf\"} 7"]);
        assert!(text.contains("pando_operation_seconds_count{operation=\"create\"} 7\n"));
        assert!(text.contains("pando_operation_seconds_sum{operation=\"create\"} 0.0007\n"));
    }
}
