//! The requests for each shard since this server began.

use std::sync::atomic::{AtomicU64, Ordering};

use base::ShardId;
use wire::ShardRequests;

/// Numbers of requests, by shard.
pub(crate) struct Loads(Box<[AtomicU64]>);

impl Loads {
    pub(crate) fn new(shards: u16) -> Loads {
        Loads((0..shards).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a request for a shard.
    pub(crate) fn count(&self, shard: ShardId) {
        if let Some(requests) = self.0.get(usize::from(shard.0)) {
            requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The requests for shards of which this says that they are meant.
    pub(crate) fn of(&self, is_meant: impl Fn(ShardId) -> bool) -> Vec<ShardRequests> {
        let all = (0..).map(ShardId).zip(&self.0);
        all.filter(|(shard, _)| is_meant(*shard))
            .map(|(shard, count)| ShardRequests { shard, requests: count.load(Ordering::Relaxed) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_shard() {
        let loads = Loads::new(3);
        for shard in [2, 0, 2, 7] {
            loads.count(ShardId(shard));
        }
        let of = |shard, requests| ShardRequests { shard: ShardId(shard), requests };
        assert_eq!(loads.of(|shard| shard.0 > 0), [of(1, 0), of(2, 2)]);
    }
}
