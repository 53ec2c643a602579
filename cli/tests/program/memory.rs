//! `--memory`: what is told of the budget, and that what is told stays within it.

use serde_json::Value;

use crate::{
    harness::{Data, Running, fail, folder, run, stderr, succeed, text},
    serve::get,
};

const MIB: u64 = 1 << 20;

fn status(data: &Data, server: &Running) -> Value {
    let token = data.admin_token();
    let said = succeed(&["status", server.address(), "--token", text(&token), "--json"]);
    serde_json::from_str(&said).unwrap()
}

fn bytes(status: &Value, of: &str) -> u64 {
    status["memory"][of].as_u64().unwrap_or_else(|| panic!("no {of} in {status}"))
}

fn metric(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

/// Checks the server's word on its memory: in all places the same limits, which add up, and no part
/// has more than its limit.
fn check(data: &Data, server: &Running, budget: u64) {
    let status = status(data, server);
    let of = |name: &str| bytes(&status, name);
    assert_eq!(of("budget_bytes"), budget);
    let parts =
        ["record_cache_bytes_max", "block_cache_bytes_max", "memtable_bytes_max", "rest_bytes_max"];
    assert_eq!(parts.map(of).iter().sum::<u64>(), budget, "{status}");
    for part in ["record_cache_bytes", "memtable_bytes"] {
        assert!(of(part) <= of(&format!("{part}_max")), "{part}: {status}");
    }
    // A block that is being read is in the cache, however full that is.
    assert!(of("block_cache_bytes") <= of("block_cache_bytes_max") + MIB, "{status}");
    let resident = status["process_resident_bytes"].as_u64().unwrap();
    assert!(resident <= budget + budget / 20, "{resident} of {budget}");
    let metrics = get(server.http(), "/metrics");
    for (metric_name, name) in [
        ("pando_memory_budget_bytes", "budget_bytes"),
        ("pando_memory_rest_bytes_max", "rest_bytes_max"),
        ("pando_record_cache_bytes_max", "record_cache_bytes_max"),
        ("pando_store_block_cache_bytes_max", "block_cache_bytes_max"),
        ("pando_store_memtable_bytes_max", "memtable_bytes_max"),
    ] {
        assert_eq!(metric(&metrics, metric_name), of(name), "{metric_name}");
    }
}

#[test]
fn memory_is_dealt_to_parts_that_add_up_and_stay_within_their_limits() {
    let data = Data::formatted();
    let server = data.serve(&["--memory", "96MiB"]);
    check(&data, &server, 96 * MIB);
    let token = data.admin_token();
    let token = text(&token);
    let fill = ["bench", "fill", server.address(), "--token", token, "--files"];
    succeed(&[&fill[..], &["60000"]].concat());
    check(&data, &server, 96 * MIB);
    let filled = status(&data, &server);
    // More records than the cache has room for went through it.
    assert!(bytes(&filled, "record_cache_bytes") > MIB, "{filled}");
    let work = ["bench", "md", server.address(), "--token", token, "--files", "5000"];
    let phases = ["--iterations", "1", "--phases", "file_create,file_stat,file_remove"];
    succeed(&[&work[..], &["--in-flight", "16"], &phases].concat());
    check(&data, &server, 96 * MIB);
    let said = succeed(&["status", server.address(), "--token", token]);
    assert!(said.contains("at most 96.0 MiB: record cache "), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn without_memory_a_server_takes_a_share_of_the_machine() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let budget = bytes(&status(&data, &server), "budget_bytes");
    assert!((96 * MIB..=8 << 30).contains(&budget), "{budget}");
    check(&data, &server, budget);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn too_little_memory_is_refused_with_what_is_needed() {
    let data = Data::formatted();
    let refused = run(&["serve", "--data", text(&data.path()), "--memory", "16MiB"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("a server needs 96.0 MiB at least"), "{said}");
    let folder = folder();
    let cluster = text(&folder.path().join("cluster")).to_owned();
    let said = fail(2, &["dev", "--dir", &cluster, "--servers", "3", "--memory", "256MiB"]);
    assert!(said.contains("3 servers need 288.0 MiB at least"), "{said}");
}
