//! Where a request goes: home and partition to shard, shard to server, and the map by which that
//! was found.
//!
//! `channels` asks which server gets a request, and a channel for every request that it sends, so
//! that one which is sent again goes by the newest map.

use base::{ClusterMap, DirId, Epoch, ShardId, placement::shard_of};

/// The coordinator's position in every map.
pub(crate) const COORDINATOR: u16 = 0;

/// Rule by which a request finds its shard or server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The group of this home.
    Home(DirId),
    /// A partition of the directory with this home.
    Partition(DirId, u16),
    /// This shard.
    Shard(ShardId),
    /// This server, by its position in the map, whatever it has.
    Server(u16),
}

impl Route {
    /// The coordinator, whatever shards it has.
    pub(crate) const COORDINATOR: Route = Route::Server(COORDINATOR);
}

impl From<DirId> for Route {
    fn from(home: DirId) -> Route {
        Route::Home(home)
    }
}

/// Shard of a request, and the epoch of the map by which it was found.
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
    /// Knows nothing yet; what goes before the first map is addressed to no shard.
    pub(crate) fn new() -> Router {
        Router { map: ClusterMap { epoch: Epoch(0), servers: Vec::new(), shards: Vec::new() } }
    }

    /// Takes in a map; `false` when it is no newer than the present one.
    pub(crate) fn learn(&mut self, map: &ClusterMap) -> bool {
        let newer = map.epoch > self.map.epoch;
        if newer {
            self.map = map.clone();
        }
        newer
    }

    /// Servers that have shards by a newer map which another one has by this.
    pub(crate) fn gain(&self, map: &ClusterMap) -> Vec<u16> {
        if map.epoch <= self.map.epoch {
            return Vec::new();
        }
        let both = self.map.shards.iter().zip(&map.shards);
        let mut gain: Vec<u16> =
            both.filter(|(before, now)| before != now).map(|(_, now)| *now).collect();
        gain.sort_unstable();
        gain.dedup();
        gain
    }

    /// The place of what goes by `route`.
    pub(crate) fn place(&self, route: Route) -> Place {
        Place { shard: self.shard(route), epoch: self.map.epoch }
    }

    /// The server of what goes by `route`, if the map knows it.
    pub(crate) fn server(&self, route: Route) -> Option<u16> {
        match route {
            Route::Server(server) => Some(server),
            Route::Home(_) | Route::Partition(..) | Route::Shard(_) => {
                self.map.server_of(self.shard(route))
            }
        }
    }

    /// The first shard that a server has; [`ShardId::SERVER`] if it has none.
    pub(crate) fn first_shard(&self, server: u16) -> ShardId {
        let first = self.map.shards.iter().position(|owner| *owner == server);
        let first = first.and_then(|shard| u16::try_from(shard).ok());
        first.map_or(ShardId::SERVER, ShardId)
    }

    /// Where a server is.
    pub(crate) fn address(&self, server: u16) -> Option<&str> {
        self.map.address(server)
    }

    /// Whether a server has left the cluster.
    pub(crate) fn has_left(&self, server: u16) -> bool {
        self.map.has_left(server)
    }

    /// The shard that a request by this route is addressed to.
    pub(crate) fn shard(&self, route: Route) -> ShardId {
        match route {
            Route::Shard(shard) => shard,
            Route::Home(home) => self.shard_of(home, 0),
            Route::Partition(home, partition) => self.shard_of(home, partition),
            Route::Server(_) => ShardId::SERVER,
        }
    }

    fn shard_of(&self, home: DirId, partition: u16) -> ShardId {
        match self.map.shard_count() {
            0 => ShardId::SERVER,
            shards => shard_of(home, partition, shards),
        }
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
        assert!(router.learn(&new));
        assert!(!router.learn(&old));
        assert_eq!(router.place(Route::Home(DirId(300))).epoch, Epoch(2));
    }

    #[test]
    fn what_goes_to_a_server_is_addressed_to_no_shard() {
        let mut router = Router::new();
        let servers = vec!["a:1".to_owned(), "b:1".to_owned()];
        router.learn(&ClusterMap { epoch: Epoch(1), servers, shards: vec![0, 1, 0, 1] });
        assert_eq!(router.place(Route::Server(1)).shard, ShardId::SERVER);
        assert_eq!(router.server(Route::Shard(ShardId(3))), Some(1));
        assert_eq!(router.server(Route::Shard(ShardId(4))), None);
    }
}
