//! Log of refused tokens: a line a second at most, however many clients are refused.

use std::time::Duration;

use parking_lot::Mutex;

use crate::log_limit::LogLimit;

/// Minimum time between two lines; refusals in between are only counted.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct Refusals(Mutex<LogLimit>);

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals(Mutex::new(LogLimit::new(PERIOD)))
    }
}

impl Refusals {
    /// Notes that a client is refused.
    pub(crate) fn note(&self, client: &str, reason: &str) {
        let Some(unlogged) = self.0.lock().due() else { return };
        match unlogged {
            0 => tracing::warn!(client, reason, "a client is refused"),
            others => tracing::warn!(client, reason, others, "a client is refused, as others were"),
        }
    }
}
