//! What the ranks measured, put together.

use std::time::Duration;

use crate::{Phase, Timing};

/// One phase over all ranks and iterations.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The phase.
    pub phase: Phase,
    /// Operations per second: from the first start to the last end, the median of the iterations.
    pub per_second: f64,
    /// The slowest iteration.
    pub per_second_min: f64,
    /// The fastest iteration.
    pub per_second_max: f64,
    /// Half of the calls took no longer.
    pub p50: Duration,
    /// All but one in a hundred took no longer.
    pub p99: Duration,
    /// Operations of all iterations.
    pub operations: u64,
}

/// Puts together what each rank returned.
#[must_use]
pub fn summarize(ranks: &[Vec<Vec<Timing>>]) -> Vec<Summary> {
    let of_phase = |phase| {
        let iterations = ranks.first().map_or(0, Vec::len);
        let timings = |iteration: usize| {
            let all = ranks.iter().flat_map(move |rank| rank.get(iteration).into_iter().flatten());
            all.filter(move |timing| timing.phase == phase)
        };
        let mut rates: Vec<f64> =
            (0..iterations).filter_map(|iteration| rate(timings(iteration))).collect();
        rates.sort_by(f64::total_cmp);
        let all = || (0..iterations).flat_map(timings);
        let mut latencies: Vec<_> = all().flat_map(|timing| timing.latencies.clone()).collect();
        latencies.sort_unstable();
        Some(Summary {
            phase,
            per_second: *rates.get(rates.len() / 2)?,
            per_second_min: *rates.first()?,
            per_second_max: *rates.last()?,
            p50: percentile(&latencies, 50)?,
            p99: percentile(&latencies, 99)?,
            operations: all().map(|timing| timing.operations).sum(),
        })
    };
    Phase::ALL.into_iter().filter_map(of_phase).collect()
}

fn rate<'a>(timings: impl Iterator<Item = &'a Timing> + Clone) -> Option<f64> {
    let start = timings.clone().map(|timing| timing.start).min()?;
    let end = timings.clone().map(|timing| timing.end).max()?;
    let operations: u64 = timings.map(|timing| timing.operations).sum();
    let seconds = (end - start).as_secs_f64().max(1e-9);
    #[expect(clippy::cast_precision_loss, reason = "a rate has no 53 significant bits")]
    Some(operations as f64 / seconds)
}

/// The smallest of `sorted` that at least `percent` of them do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&sorted, 50), Some(Duration::from_micros(100)));
        assert_eq!(percentile(&sorted, 99), Some(Duration::from_micros(198)));
        assert_eq!(percentile(&sorted[..1], 99), Some(Duration::from_micros(1)));
        assert_eq!(percentile(&[], 50), None);
    }
}
