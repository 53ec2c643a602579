//! Where a request goes: home and layout to shard, shard to server, and the map by which that was found.
//!
//! `channels` asks which server gets a request, and a channel for every request that it sends, so that one which is sent
//! again goes by the newest map.

use base::{ClusterMap, DirId, Epoch, Layout, ShardId, placement::shard_of};

/// By what a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The group of this home.
    Home(DirId),
    /// This shard.
    Shard(ShardId),
    /// This server, by its position in the map, whatever it has.
    Server(u16),
}

impl From<DirId> for Route {
    fn from(home: DirId) -> Route {
        Route::Home(home)
    }
}

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
    pub(crate) fn learn(&mut self, map: &ClusterMap) -> bool {
        let newer = map.epoch > self.map.epoch;
        if newer {
            self.map = map.clone();
        }
        newer
    }

    /// The place of what goes by `route`.
    pub(crate) fn place(&self, route: Route) -> Place {
        Place { shard: self.shard(route), epoch: self.map.epoch }
    }

    /// The server of what goes by `route`, if the map knows it.
    pub(crate) fn server(&self, route: Route) -> Option<u16> {
        match route {
            Route::Server(server) => Some(server),
            Route::Home(_) | Route::Shard(_) => self.map.server_of(self.shard(route)),
        }
    }

    /// Where a server is.
    pub(crate) fn address(&self, server: u16) -> Option<&str> {
        self.map.servers.get(usize::from(server)).map(String::as_str)
    }

    fn shard(&self, route: Route) -> ShardId {
        match route {
            Route::Shard(shard) => shard,
            Route::Home(home) => match self.map.shard_count() {
                0 => ShardId(0),
                shards => shard_of(home, Layout::Whole.partition(0), shards),
            },
            Route::Server(server) => {
                let first = self.map.shards.iter().position(|owner| *owner == server);
                let first = first.and_then(|shard| u16::try_from(shard).ok());
                ShardId(first.unwrap_or(0))
            }
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
    fn what_goes_to_a_server_is_addressed_to_a_shard_that_it_has() {
        let mut router = Router::new();
        let servers = vec!["a:1".to_owned(), "b:1".to_owned()];
        router.learn(&ClusterMap { epoch: Epoch(1), servers, shards: vec![0, 1, 0, 1] });
        assert_eq!(router.place(Route::Server(1)).shard, ShardId(1));
        assert_eq!(router.server(Route::Shard(ShardId(3))), Some(1));
        assert_eq!(router.server(Route::Shard(ShardId(4))), None);
    }
}
