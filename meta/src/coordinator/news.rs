//! A map by which servers begin anew, on its way to them.
//!
//! Each of the others is called, asks for its lease, which brings the map, and begins anew. They ask
//! the coordinator, so it begins anew itself when all have the map, or after a while.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// Time for which the coordinator waits until the others have a map.
const TOLD_WITHIN: Duration = Duration::from_millis(200);

/// A map that some servers lack.
#[derive(Debug)]
pub(crate) struct News {
    until: Instant,
    /// Servers that are still to be called.
    to_call: BTreeSet<u16>,
    /// Servers that have not been given the map.
    lacking: BTreeSet<u16>,
}

impl News {
    /// There is a new map, which these servers lack.
    pub(super) fn new(others: impl Iterator<Item = u16>, now: Instant) -> News {
        let lacking: BTreeSet<u16> = others.collect();
        News { until: now + TOLD_WITHIN, to_call: lacking.clone(), lacking }
    }

    /// Whether a server is to be called, which is done once.
    pub(super) fn calls(&mut self, server: u16) -> bool {
        self.to_call.remove(&server)
    }

    /// A call was lost.
    pub(super) fn calls_again(&mut self, server: u16) {
        if self.lacking.contains(&server) {
            self.to_call.insert(server);
        }
    }

    /// Notes that a server is given the map. Returns whether it was the last one.
    pub(super) fn is_given_to(&mut self, server: u16) -> bool {
        self.lacking.remove(&server) && self.lacking.is_empty()
    }

    /// Whether the coordinator itself is to have the map.
    pub(super) fn is_told(&self, now: Instant) -> bool {
        self.lacking.is_empty() || now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_coordinator_is_the_last_to_have_a_map_but_waits_for_nobody_who_is_gone() {
        let now = Instant::now();
        let mut news = News::new([1, 2].into_iter(), now);
        assert!(news.calls(1) && !news.calls(1) && news.calls(2) && !news.calls(3));
        news.calls_again(1);
        assert!(news.calls(1) && !news.is_told(now));
        assert!(!news.is_given_to(1) && !news.is_given_to(1));
        assert!(!news.is_told(now) && news.is_told(now + TOLD_WITHIN));
        assert!(news.is_given_to(2));
        assert!(news.is_told(now));
        news.calls_again(2);
        assert!(!news.calls(2), "it has the map");
    }
}
