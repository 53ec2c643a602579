//! Limit of a repeated line of the log: one in a period, with the number of those left out.

use std::time::Duration;

use tokio::time::Instant;

/// Time of the last line, and the number of events that were not logged since.
pub(crate) struct LogLimit {
    /// Minimum time between two lines.
    period: Duration,
    last: Option<Instant>,
    unlogged: u64,
}

impl LogLimit {
    pub(crate) fn new(period: Duration) -> LogLimit {
        LogLimit { period, last: None, unlogged: 0 }
    }

    /// Counts an event. Returns the number of events not logged since the last line, or `None` if
    /// this one must not be logged either.
    pub(crate) fn due(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < self.period) {
            self.unlogged += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_in_a_period_counts_the_events_before_it() {
        let period = Duration::from_secs(1);
        let mut limit = LogLimit::new(period);
        assert_eq!(limit.due(), Some(0));
        assert_eq!([limit.due(), limit.due()], [None, None]);
        tokio::time::advance(period).await;
        assert_eq!(limit.due(), Some(2));
        tokio::time::advance(period).await;
        assert_eq!(limit.due(), Some(0));
    }
}
