//! What a server counted, as programs and people read it. `status`, `top`, `profile` and the status page use it.

use serde::Serialize;
use wire::Distribution;

/// One kind of operation since the start, or between two moments.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub(crate) struct Operation {
    pub(crate) name: String,
    /// All outcomes together.
    pub(crate) count: u64,
    /// Those that were not done: errnos, refusals, halts.
    pub(crate) failed: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Microseconds of all of them together in each stage.
    pub(crate) stages_us: serde_json::Map<String, serde_json::Value>,
}

impl From<&wire::Operation> for Operation {
    fn from(operation: &wire::Operation) -> Operation {
        let count = operation.outcomes.iter().map(|(_, count)| count).sum();
        let failed =
            |(name, _): &&(String, u64)| matches!(name.as_str(), "failed" | "refused" | "halted");
        let stages = operation.stages.iter().map(|(name, nanos)| (name.clone(), nanos / 1000));
        Operation {
            name: operation.name.clone(),
            count,
            failed: operation.outcomes.iter().filter(failed).map(|(_, count)| count).sum(),
            mean_us: mean(&operation.latency) / 1000.0,
            p50_us: quantile(&operation.latency, 0.5) / 1000.0,
            p99_us: quantile(&operation.latency, 0.99) / 1000.0,
            stages_us: map(stages),
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

/// What happened between two moments; `None` when nothing did.
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

/// The value that a part of all are at most, by bucket: between half of the truth and the double of it.
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

/// How often `of` is in `value`; 0 of nothing.
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
    fn durations_are_shown_in_a_unit_that_fits() {
        assert_eq!([7.24, 1500.0, 3e6].map(micros), ["7.2 us", "1.5 ms", "3.0 s"]);
    }
}
