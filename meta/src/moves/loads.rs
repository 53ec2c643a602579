//! The requests for each shard since this server began.

use std::sync::atomic::{AtomicU64, Ordering};

use base::ShardId;

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

    /// The requests for a shard.
    pub(super) fn of(&self, shard: ShardId) -> u64 {
        self.0.get(usize::from(shard.0)).map_or(0, |requests| requests.load(Ordering::Relaxed))
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
        assert_eq!([0, 1, 2, 7].map(|shard| loads.of(ShardId(shard))), [1, 0, 2, 0]);
    }
}
