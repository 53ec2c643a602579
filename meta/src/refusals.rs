//! Log of refused tokens: a line a second at most, however many clients are refused.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum time between two lines; refusals in between are only counted.
const PERIOD: Duration = Duration::from_secs(1);

/// Time of the last line, and the number of refusals not logged since.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    /// Notes that a client is refused.
    pub(crate) fn note(&self, client: &str, reason: &str) {
        let Some(unlogged) = self.due() else { return };
        match unlogged {
            0 => tracing::warn!(client, reason, "a client is refused"),
            others => tracing::warn!(client, reason, others, "a client is refused, as others were"),
        }
    }

    /// Number of refusals not logged since the last line; `None` if this one is not logged either.
    fn due(&self) -> Option<u64> {
        let (last, unlogged) = &mut *self.0.lock();
        let now = Instant::now();
        if last.is_some_and(|last| now.duration_since(last) < PERIOD) {
            *unlogged += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_tells_of_all() {
        let refusals = Refusals::default();
        assert_eq!(refusals.due(), Some(0));
        assert_eq!([refusals.due(), refusals.due()], [None, None]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(refusals.due(), Some(2));
        tokio::time::advance(PERIOD).await;
        assert_eq!(refusals.due(), Some(0));
    }
}
