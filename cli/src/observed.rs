//! Counts of a server, as programs and people read them. `status`, `top`, `profile` and the status
//! page use them.

use std::cmp::Reverse;

use serde::Serialize;
use wire::{Distribution, Load};

/// One kind of operation since the start, or between two moments.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub(crate) struct Operation {
    pub(crate) name: String,
    /// All outcomes together.
    pub(crate) count: u64,
    /// Operations that found nothing of that name: `ENOENT`, which programs that look for files get
    /// all day.
    pub(crate) not_found: u64,
    /// Operations that were not done for another reason: other errnos, refusals, halts.
    pub(crate) failed: u64,
    /// Operations of `failed`, by errno, `refused` and `halted`.
    pub(crate) errors: serde_json::Map<String, serde_json::Value>,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Microseconds of all of them together in each stage.
    pub(crate) stages_us: serde_json::Map<String, serde_json::Value>,
}

impl From<&wire::Operation> for Operation {
    fn from(operation: &wire::Operation) -> Operation {
        let count = operation.outcomes.iter().map(|(_, count)| count).sum();
        let errors = operation.outcomes.iter().filter(|(name, count)| is_error(name) && *count > 0);
        let not_found = operation.outcomes.iter().find(|(name, _)| name == NOT_FOUND);
        let stages = operation.stages.iter().map(|(name, nanos)| (name.clone(), nanos / 1000));
        Operation {
            name: operation.name.clone(),
            count,
            not_found: not_found.map_or(0, |(_, count)| *count),
            failed: errors.clone().map(|(_, count)| count).sum(),
            errors: map(errors.cloned()),
            mean_us: mean(&operation.latency) / 1000.0,
            p50_us: quantile(&operation.latency, 0.5) / 1000.0,
            p99_us: quantile(&operation.latency, 0.99) / 1000.0,
            stages_us: map(stages),
        }
    }
}

impl Operation {
    /// Number of failures, with their kinds: `3 (EIO 2, EEXIST 1)`.
    pub(crate) fn failures(&self) -> String {
        if self.failed == 0 {
            return "0".to_owned();
        }
        let each: Vec<_> =
            self.errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
        format!("{} ({})", self.failed, each.join(", "))
    }
}

/// The outcome of a look at what is not there.
const NOT_FOUND: &str = "ENOENT";

/// Whether an outcome is a failure that an operator may want to know of.
fn is_error(outcome: &str) -> bool {
    let errno = outcome.starts_with('E') && outcome != NOT_FOUND;
    errno || matches!(outcome, "refused" | "halted")
}

/// State of a server, as `status --json` and `/status.json` have it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Standing {
    /// Clients should be sent there.
    pub(crate) ready: bool,
    pub(crate) problems: Vec<String>,
    pub(crate) role: &'static str,
    pub(crate) server: u16,
    pub(crate) servers_expected: u16,
    /// Number of servers that the coordinator hears of; absent elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) servers_heard: Option<u16>,
    /// Address of the coordinator; absent on the coordinator itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) coordinator: String,
    pub(crate) lease_ms: u64,
    /// Time since the lease ended; absent with a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without_lease_ms: Option<u64>,
    pub(crate) alone_ms: u64,
    pub(crate) server_uptime_ms: u64,
}

impl From<wire::Standing> for Standing {
    fn from(standing: wire::Standing) -> Standing {
        Standing {
            role: role(&standing),
            ready: standing.ready,
            problems: standing.problems,
            server: standing.server,
            servers_expected: standing.servers,
            servers_heard: standing.heard,
            coordinator: standing.coordinator,
            lease_ms: standing.lease_ms,
            without_lease_ms: standing.without_lease_ms,
            alone_ms: standing.alone_ms,
            server_uptime_ms: standing.uptime_ms,
        }
    }
}

/// The role of a server among those of its file system.
pub(crate) fn role(standing: &wire::Standing) -> &'static str {
    match (standing.servers, standing.server) {
        (1, _) => "only server",
        (_, 0) => "coordinator",
        _ => "member",
    }
}

/// Adds the counts of several servers, as if they were one server. A session or directory that one
/// server cannot name may be named by another.
pub(crate) fn together(loads: &[&Load]) -> Load {
    let mut sum = Load {
        at_us: 0,
        operations: Vec::new(),
        distributions: Vec::new(),
        gauges: Vec::new(),
        counters: Vec::new(),
        busy_sessions: Vec::new(),
        busy_directories: Vec::new(),
    };
    for load in loads {
        sum.at_us = sum.at_us.max(load.at_us);
        add_all(&mut sum.gauges, &load.gauges);
        add_all(&mut sum.counters, &load.counters);
        for (name, distribution) in &load.distributions {
            match sum.distributions.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => add(known, distribution),
                None => sum.distributions.push((name.clone(), distribution.clone())),
            }
        }
        for operation in &load.operations {
            match sum.operations.iter_mut().find(|known| known.name == operation.name) {
                Some(known) => {
                    add_all(&mut known.outcomes, &operation.outcomes);
                    add_all(&mut known.stages, &operation.stages);
                    add(&mut known.latency, &operation.latency);
                }
                None => sum.operations.push(operation.clone()),
            }
        }
        for busy in &load.busy_sessions {
            match sum.busy_sessions.iter_mut().find(|known| known.session == busy.session) {
                Some(known) => {
                    known.milli_rate += busy.milli_rate;
                    if known.client.is_empty() {
                        known.client.clone_from(&busy.client);
                    }
                }
                None => sum.busy_sessions.push(busy.clone()),
            }
        }
        for busy in &load.busy_directories {
            match sum.busy_directories.iter_mut().find(|known| known.dir == busy.dir) {
                Some(known) => {
                    known.milli_rate += busy.milli_rate;
                    if known.path.is_empty() {
                        known.path.clone_from(&busy.path);
                    }
                }
                None => sum.busy_directories.push(busy.clone()),
            }
        }
    }
    sum.busy_sessions.sort_by_key(|busy| Reverse(busy.milli_rate));
    sum.busy_directories.sort_by_key(|busy| Reverse(busy.milli_rate));
    sum
}

fn add_all(sum: &mut Vec<(String, u64)>, more: &[(String, u64)]) {
    for (name, value) in more {
        match sum.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known += value,
            None => sum.push((name.clone(), *value)),
        }
    }
}

fn add(sum: &mut Distribution, more: &Distribution) {
    sum.buckets.resize(sum.buckets.len().max(more.buckets.len()), 0);
    for (sum, more) in sum.buckets.iter_mut().zip(&more.buckets) {
        *sum += more;
    }
    sum.sum += more.sum;
}

/// Heading that says which of several servers something is of; empty where there is one server.
pub(crate) fn servers(numbers: &[u16], of: usize) -> String {
    match numbers {
        _ if of == 1 => String::new(),
        all if all.len() == of => format!("all {of} servers\n"),
        [one] => format!("server {one} of {of}\n"),
        some => {
            let some: Vec<_> = some.iter().map(ToString::to_string).collect();
            format!("servers {} of {of}\n", some.join(" and "))
        }
    }
}

/// Returns the counts between two moments; `None` when nothing happened.
pub(crate) fn between(
    earlier: Option<&wire::Operation>,
    later: &wire::Operation,
) -> Option<wire::Operation> {
    let Some(earlier) = earlier else { return Some(later.clone()) };
    let less = |later: &[(String, u64)], earlier: &[(String, u64)]| -> Vec<(String, u64)> {
        let before = |name: &String| earlier.iter().find(|(other, _)| other == name);
        let left = |(name, value): &(String, u64)| {
            (name.clone(), value.saturating_sub(before(name).map_or(0, |(_, value)| *value)))
        };
        later.iter().map(left).collect()
    };
    let buckets = later.latency.buckets.iter().enumerate();
    let latency = Distribution {
        unit: later.latency.unit,
        buckets: buckets
            .map(|(at, count)| {
                count.saturating_sub(earlier.latency.buckets.get(at).copied().unwrap_or(0))
            })
            .collect(),
        sum: later.latency.sum.saturating_sub(earlier.latency.sum),
    };
    let outcomes = less(&later.outcomes, &earlier.outcomes);
    outcomes.iter().any(|(_, count)| *count > 0).then(|| wire::Operation {
        name: later.name.clone(),
        outcomes,
        latency,
        stages: less(&later.stages, &earlier.stages),
    })
}

/// The value that a part of all are at most, by bucket: between half of the truth and the double of
/// it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are far below 2^53, and a rank is none of the negative numbers"
)]
pub(crate) fn quantile(distribution: &Distribution, part: f64) -> f64 {
    let count: u64 = distribution.buckets.iter().sum();
    if count == 0 {
        return 0.0;
    }
    let rank = ((count as f64 * part).ceil() as u64).max(1);
    let mut below = 0;
    for (at, inside) in distribution.buckets.iter().enumerate() {
        if below + inside >= rank {
            let high = distribution.unit as f64 * 2f64.powi(i32::try_from(at).unwrap_or(0));
            let low = if at == 0 { 0.0 } else { high / 2.0 };
            return low + (high - low) * ((rank - below) as f64 / *inside as f64);
        }
        below += inside;
    }
    0.0
}

/// The mean value.
pub(crate) fn mean(distribution: &Distribution) -> f64 {
    ratio(distribution.sum, distribution.buckets.iter().sum())
}

/// Share of `of` in `value`; 0 when `of` is 0.
#[expect(clippy::cast_precision_loss, reason = "what is shown has three digits")]
pub(crate) fn ratio(value: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { value as f64 / of as f64 }
}

/// Names and numbers as a JSON object.
pub(crate) fn map(
    pairs: impl IntoIterator<Item = (String, u64)>,
) -> serde_json::Map<String, serde_json::Value> {
    pairs.into_iter().map(|(name, value)| (name, value.into())).collect()
}

/// A duration for people, of microseconds: `7.2 us`, `1.5 ms`, `3.0 s`.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.1} us"),
        us if us < 1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{:.1} s", us / 1_000_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let distribution = Distribution { unit: 1000, buckets: vec![0, 0, 100, 0], sum: 300_000 };
        let median = quantile(&distribution, 0.5);
        assert!((2000.0..=4000.0).contains(&median), "{median}");
        assert_eq!(quantile(&Distribution::default(), 0.5), 0.0);
        assert_eq!(mean(&distribution), 3000.0);
    }

    #[test]
    fn a_name_that_is_not_there_is_no_failure() {
        let outcomes = [("done", 4), ("ENOENT", 3), ("EIO", 2), ("refused", 1), ("halted", 0)];
        let outcomes = outcomes.map(|(name, count)| (name.to_owned(), count)).to_vec();
        let operation = wire::Operation {
            name: "lookup".into(),
            outcomes,
            latency: Distribution::default(),
            stages: Vec::new(),
        };
        let operation = Operation::from(&operation);
        assert_eq!((operation.count, operation.not_found, operation.failed), (10, 3, 3));
        assert_eq!(operation.failures(), "3 (EIO 2, refused 1)");
    }

    #[test]
    fn between_two_moments_is_what_came_in_between() {
        let operation = |count: u64| wire::Operation {
            name: "create".into(),
            outcomes: vec![("done".into(), count)],
            latency: Distribution { unit: 1000, buckets: vec![count], sum: count * 500 },
            stages: vec![("execute".into(), count * 400)],
        };
        let (earlier, later) = (operation(10), operation(25));
        let passed = Operation::from(&between(Some(&earlier), &later).unwrap());
        assert_eq!((passed.count, passed.mean_us), (15, 0.5));
        assert_eq!(between(Some(&later), &later), None);
        assert_eq!(between(None, &later), Some(later.clone()));
    }

    #[test]
    fn what_servers_count_is_added_up_and_a_client_has_the_name_that_one_knows() {
        let load = |create: u64, client: &str, session: u64| Load {
            at_us: create,
            operations: vec![wire::Operation {
                name: "create".into(),
                outcomes: vec![("done".into(), create)],
                latency: Distribution { unit: 1000, buckets: vec![0, create], sum: create * 500 },
                stages: vec![("execute".into(), create)],
            }],
            distributions: vec![],
            gauges: vec![("connections".into(), create)],
            counters: vec![],
            busy_sessions: vec![wire::BusySession {
                session: base::SessionId(session),
                client: client.into(),
                milli_rate: create,
            }],
            busy_directories: vec![],
        };
        let sum = together(&[&load(3, "", 7), &load(4, "mount", 7), &load(9, "", 0)]);
        assert_eq!(Operation::from(&sum.operations[0]).count, 16);
        assert_eq!(sum.operations[0].latency.buckets, [0, 16]);
        assert_eq!(sum.gauges, [("connections".to_owned(), 16)]);
        let busy: Vec<_> =
            sum.busy_sessions.iter().map(|busy| (&*busy.client, busy.milli_rate)).collect();
        assert_eq!(busy, [("", 9), ("mount", 7)]);
    }

    #[test]
    fn it_is_said_of_which_servers_something_is() {
        assert_eq!(servers(&[0], 1), "");
        assert_eq!(servers(&[0, 1, 2], 3), "all 3 servers\n");
        assert_eq!(servers(&[1], 3), "server 1 of 3\n");
        assert_eq!(servers(&[0, 2], 3), "servers 0 and 2 of 3\n");
    }

    #[test]
    fn durations_are_shown_in_a_unit_that_fits() {
        assert_eq!([7.24, 1500.0, 3e6].map(micros), ["7.2 us", "1.5 ms", "3.0 s"]);
    }
}
