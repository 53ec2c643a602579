//! Summaries of the iterations' measurements, for people and programs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Measured, Phase};

/// One phase of one iteration, as `--json` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The phase's name.
    pub phase: String,
    /// Operations of all ranks.
    pub ops: u64,
    /// From the first begin to the last end.
    pub seconds: f64,
    /// Operations divided by seconds.
    pub ops_per_s: f64,
    /// Half of the calls took no longer, in microseconds.
    pub p50_us: f64,
    /// All but one in a hundred took no longer.
    pub p99_us: f64,
    /// CPU time of the client for an operation; a mount's process is part of it.
    pub client_cpu_us_per_op: f64,
    /// CPU time of the server for an operation, where it is known.
    pub server_cpu_us_per_op: Option<f64>,
    /// Requests for an operation, where it is known.
    pub requests_per_op: Option<f64>,
}

impl From<&Measured> for Row {
    fn from(measured: &Measured) -> Row {
        let ops = float(measured.operations);
        let seconds = measured.elapsed.as_secs_f64().max(1e-9);
        let each = |cpu: Duration| rounded(cpu.as_secs_f64() * 1e6 / ops);
        Row {
            phase: measured.phase.name().to_owned(),
            ops: measured.operations,
            seconds,
            ops_per_s: rounded(ops / seconds),
            p50_us: micros(&measured.latencies, 500),
            p99_us: micros(&measured.latencies, 990),
            client_cpu_us_per_op: each(measured.client_cpu),
            server_cpu_us_per_op: measured.server_cpu.map(each),
            requests_per_op: measured.requests.map(|requests| rounded(float(requests) / ops)),
        }
    }
}

/// One phase over all iterations: medians, and the spread of the rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The phase.
    pub phase: Phase,
    /// Operations per second.
    pub per_second: f64,
    /// The slowest iteration.
    pub per_second_min: f64,
    /// The fastest iteration.
    pub per_second_max: f64,
    /// Microseconds that half of the calls did not exceed.
    pub p50_us: f64,
    /// Microseconds that all but one in a hundred calls did not exceed.
    pub p99_us: f64,
    /// Microseconds that all but one in a thousand calls did not exceed.
    pub p999_us: f64,
    /// CPU time of the client for an operation.
    pub client_cpu_us: f64,
    /// CPU time of the server for an operation, where it is known.
    pub server_cpu_us: Option<f64>,
    /// Requests for an operation, where it is known.
    pub requests: Option<f64>,
}

/// Puts the iterations of each phase together.
#[must_use]
pub fn summarize(measured: &[Measured]) -> Vec<Summary> {
    let of_phase = |phase| {
        let of_phase = || measured.iter().filter(move |measured| measured.phase == phase);
        let rows: Vec<_> = of_phase().map(Row::from).collect();
        let of_rows = |value: fn(&Row) -> f64| rows.iter().map(value).collect::<Vec<_>>();
        let known = |value: fn(&Row) -> Option<f64>| {
            rows.iter().map(value).collect::<Option<Vec<_>>>().and_then(median)
        };
        let rates = of_rows(|row| row.ops_per_s);
        Some(Summary {
            phase,
            per_second_min: rates.iter().copied().min_by(f64::total_cmp)?,
            per_second_max: rates.iter().copied().max_by(f64::total_cmp)?,
            per_second: median(rates)?,
            p50_us: median(of_rows(|row| row.p50_us))?,
            p99_us: median(of_rows(|row| row.p99_us))?,
            p999_us: median(of_phase().map(|one| micros(&one.latencies, 999)).collect())?,
            client_cpu_us: median(of_rows(|row| row.client_cpu_us_per_op))?,
            server_cpu_us: known(|row| row.server_cpu_us_per_op),
            requests: known(|row| row.requests_per_op),
        })
    };
    Phase::ALL.into_iter().filter_map(of_phase).collect()
}

/// The value in the middle; of an even number, the larger of the two.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The smallest of `sorted` that at least `permille` of them do not exceed.
#[must_use]
pub fn percentile(sorted: &[u64], permille: usize) -> Option<u64> {
    let rank = (sorted.len() * permille).div_ceil(1000);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Microseconds of a percentile of `sorted` nanoseconds; 0 when there are none.
pub(crate) fn micros(sorted: &[u64], permille: usize) -> f64 {
    rounded(float(percentile(sorted, permille).unwrap_or(0)) / 1000.0)
}

/// To a thousandth: what is beyond is noise.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "what is measured has no 53 significant bits")]
pub(crate) fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<_> = (1..=200).collect();
        assert_eq!(percentile(&sorted, 500), Some(100));
        assert_eq!(percentile(&sorted, 990), Some(198));
        assert_eq!(percentile(&sorted, 999), Some(200));
        assert_eq!(percentile(&sorted[..1], 990), Some(1));
        assert_eq!(percentile(&[], 500), None);
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let measured = Measured {
            phase: Phase::FileStat,
            operations: 4,
            elapsed: Duration::from_millis(2),
            latencies: vec![1000, 2000, 3000, 500_000],
            client_cpu: Duration::from_micros(10),
            server_cpu: None,
            requests: Some(5),
        };
        let row = serde_json::to_value(Row::from(&measured)).unwrap();
        let expected = serde_json::json!({
            "phase": "file_stat", "ops": 4, "seconds": 0.002, "ops_per_s": 2000.0, "p50_us": 2.0,
            "p99_us": 500.0, "client_cpu_us_per_op": 2.5, "server_cpu_us_per_op": null,
            "requests_per_op": 1.25,
        });
        assert_eq!(row, expected);
    }
}
