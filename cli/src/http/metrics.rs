//! `/metrics`, in Prometheus' text format.

use std::fmt::Write as _;

use wire::Status;

/// All metrics of a server.
pub(super) fn render(status: &Status, healthy: bool) -> String {
    let mut text = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: u64| {
        writeln!(
            text,
            "# HELP pando_{name} {help}\n# TYPE pando_{name} {kind}\npando_{name} {value}"
        )
        .expect("writing to a string cannot fail");
    };
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let open = status.sessions.iter().map(|session| session.open_files);
    put("healthy", "gauge", "1 while the server can vouch for its data.", u64::from(healthy));
    put("uptime_seconds", "gauge", "Seconds since the server started.", status.uptime_seconds);
    put("shards", "gauge", "Shards that the server serves.", u64::from(status.shards));
    put("sessions", "gauge", "Open sessions.", count(status.sessions.len()));
    put("open_files", "gauge", "Files that sessions have open.", open.sum());
    put("files", "gauge", "Inodes, estimated.", status.files);
    put("store_bytes", "gauge", "Bytes of metadata on disk.", status.store_bytes);
    put("store_records", "gauge", "Records of metadata, estimated.", status.store_records);
    for (name, value) in &status.counters {
        let help = format!("How often since the start: {}.", name.replace('_', " "));
        put(&format!("{name}_total"), "counter", &help, *value);
    }
    let (name, version) = (escape(&status.name), escape(&status.version));
    let info = format!("name=\"{name}\",uuid=\"{:032x}\",version=\"{version}\"", status.uuid);
    writeln!(
        text,
        "# HELP pando_info What is served, as labels.\n# TYPE pando_info gauge\npando_info{{{info}}} 1"
    )
    .expect("writing to a string cannot fail");
    text
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_type_and_a_value() {
        let status = super::super::page::tests::status();
        let text = render(&status, true);
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let types = text.lines().filter(|line| line.starts_with("# TYPE pando_")).count();
        assert_eq!(values.len(), types);
        assert!(values.contains(&"pando_create_total 7"));
        assert!(values.contains(&"pando_healthy 1"));
        assert!(text.contains("name=\"a \\\"b\\\" <c>\""));
    }
}
