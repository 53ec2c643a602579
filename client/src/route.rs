//! Where a request goes: home and layout to shard, shard to server, and the map by which that was found.
//!
//! `channel` asks for every request that it sends, so a request that is sent again goes by the newest map.

use base::{ClusterMap, DirId, Epoch, Layout, ShardId, placement::shard_of};

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
}

/// The newest cluster map that any server has shown.
#[derive(Debug)]
pub(crate) struct Router {
    map: ClusterMap,
}

impl Router {
    /// Knows nothing yet; what goes before the first map is addressed to shard 0.
    pub(crate) fn new() -> Router {
        Router { map: ClusterMap { epoch: Epoch(0), servers: Vec::new(), shards: Vec::new() } }
    }

    /// Takes in a map; `false` when it is no newer than the present one.
    pub(crate) fn learn(&mut self, map: ClusterMap) -> bool {
        let newer = map.epoch > self.map.epoch;
        if newer {
            self.map = map;
        }
        newer
    }

    /// The place of the name at `pos` in the group of `home`.
    pub(crate) fn place(&self, home: DirId, pos: u64) -> Place {
        let partition = Layout::WHOLE.partition(pos);
        let shard = match self.map.shard_count() {
            0 => ShardId(0),
            shards => shard_of(home, partition, shards),
        };
        Place { shard, epoch: self.map.epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_map_never_replaces_a_newer_one() {
        let mut router = Router::new();
        let old = ClusterMap::single("a:1", 8);
        let new = ClusterMap { epoch: Epoch(2), ..ClusterMap::single("b:1", 8) };
        assert!(router.learn(new));
        assert!(!router.learn(old));
        assert_eq!(router.place(DirId(300), 0).epoch, Epoch(2));
    }
}
